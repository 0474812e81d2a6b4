"""Calibration reports: one HTML page with numbers, verdict and pictures, readable without a network."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel
from tt_perception.files import write_whole
from tt_perception.table import TABLE_LENGTH_M, TABLE_WIDTH_M

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left}
.pass{color:#0a7d33}.fail{color:#b3261e}img{max-width:100%;border:1px solid #ddd}figure{margin:1em 0}"""


def write_report(
    path: Path | str,
    title: str,
    facts: Sequence[tuple[str, str]],
    problems: Sequence[str],
    pictures: Sequence[tuple[str, Image]],
) -> None:
    """Write the page.

    Args:
        path: HTML file.
        title: heading.
        facts: name and value, in the order shown.
        problems: why the calibration does not pass; empty when it does.
        pictures: caption and BGR or grey image.
    """
    rows = "\n".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in facts
    )
    if problems:
        items = "".join(f"<li>{html.escape(text)}</li>" for text in problems)
        verdict = f'<p class="fail"><b>FAIL</b></p><ul>{items}</ul>'
    else:
        verdict = '<p class="pass"><b>PASS</b></p>'
    figures = []
    for caption, picture in pictures:
        encoded = base64.b64encode(cv2.imencode(".png", picture)[1].tobytes()).decode()
        figures.append(
            f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{encoded}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>{verdict}<table>{rows}</table>"
        f"{''.join(figures)}</body></html>\n"
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, page)


def residual_map(
    size: tuple[int, int], pixels: FloatArray, residuals: FloatArray, magnify: float = 100.0
) -> Image:
    """Residual arrows over the image area, `magnify` times longer than they are.

    Args:
        size: width, height of the camera's images, px.
        pixels: shape (n, 2).
        residuals: shape (n, 2), px.
        magnify: length factor.
    """
    scale = 900.0 / size[0]
    picture = np.full((round(size[1] * scale), 900, 3), 255, np.uint8)
    step = max(len(pixels) // 3000, 1)
    for (u, v), (du, dv) in zip(pixels[::step], residuals[::step], strict=True):
        start = (round(u * scale), round(v * scale))
        end = (round((u + magnify * du) * scale), round((v + magnify * dv) * scale))
        bad = np.hypot(du, dv) > 0.5
        cv2.line(picture, start, end, (40, 40, 220) if bad else (160, 90, 20), 1, cv2.LINE_AA)
        cv2.circle(picture, start, 1, (0, 0, 0), -1)
    return picture


def coverage_picture(grid: NDArray[np.int64], size: tuple[int, int]) -> Image:
    """Points per cell of the image; red cells are empty."""
    width, height = 600, round(600 * size[1] / size[0])
    picture = np.full((height, width, 3), 255, np.uint8)
    rows, columns = grid.shape
    for row in range(rows):
        for column in range(columns):
            corner = (column * width // columns, row * height // rows)
            end = ((column + 1) * width // columns - 1, (row + 1) * height // rows - 1)
            count = int(grid[row, column])
            shade = (90, 90, 230) if count == 0 else (255 - min(count, 200), 230, 255 - min(count, 200))
            cv2.rectangle(picture, corner, end, shade, -1)
            cv2.putText(
                picture, str(count), (corner[0] + 8, corner[1] + 24), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 1,
                cv2.LINE_AA,
            )  # fmt: skip
    return picture


def poses_picture(cameras: Sequence[CameraModel], points_table: FloatArray | None = None) -> Image:
    """Table, cameras with their viewing directions, and ball positions, seen from above and from the side.

    The robot's end is at the bottom (above view) and on the left (side view).
    """
    reach = max(4.5, *(float(np.abs(camera.centre_table[:2]).max()) + 0.6 for camera in cameras))
    scale = 330.0 / reach
    above = np.full((660, 660, 3), 255, np.uint8)
    side = np.full((660, 660, 3), 255, np.uint8)

    def top(point: FloatArray) -> tuple[int, int]:
        return round(330 + scale * point[0]), round(330 - scale * point[1])

    def flank(point: FloatArray) -> tuple[int, int]:
        return round(330 + scale * point[1]), round(430 - scale * point[2])

    half = np.array([TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2, 0.0])
    cv2.rectangle(above, top(-half), top(half), (150, 90, 30), -1)
    cv2.line(side, flank(-half), flank(half), (150, 90, 30), 3)
    cv2.line(above, top(np.array([-0.915, 0, 0])), top(np.array([0.915, 0, 0])), (255, 255, 255), 2)
    cv2.line(side, flank(np.zeros(3)), flank(np.array([0, 0, 0.1525])), (90, 90, 90), 2)
    cv2.line(
        side, flank(np.array([0, -reach, -0.76])), flank(np.array([0, reach, -0.76])), (180, 180, 180), 1
    )
    if points_table is not None:
        for point in points_table[:: max(len(points_table) // 2000, 1)]:
            cv2.circle(above, top(point), 1, (0, 140, 255), -1)
            cv2.circle(side, flank(point), 1, (0, 140, 255), -1)
    for camera in cameras:
        centre = camera.centre_table
        ahead = centre + 1.0 * camera.table_from_camera[:3, 2]
        for picture, to_pixel in ((above, top), (side, flank)):
            cv2.arrowedLine(picture, to_pixel(centre), to_pixel(ahead), (20, 20, 200), 2, cv2.LINE_AA)
            cv2.circle(picture, to_pixel(centre), 5, (20, 20, 200), -1)
            cv2.putText(
                picture, camera.name, to_pixel(centre + np.array([0.1, 0.1, 0.1])), cv2.FONT_HERSHEY_SIMPLEX, 0.5,
                (0, 0, 0), 1, cv2.LINE_AA,
            )  # fmt: skip
    return np.hstack([above, np.full((660, 4, 3), 0, np.uint8), side])


def overlay_picture(image: Image, camera: CameraModel) -> Image:
    """The image with the lines of the table drawn where the calibration puts them."""
    picture = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR) if image.ndim == 2 else image.copy()
    w, length = TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2
    share = np.linspace(0.0, 1.0, 60)[:, None]
    ends = [((-w, -length), (w, -length)), ((w, -length), (w, length)), ((w, length), (-w, length))]
    ends += [((-w, length), (-w, -length)), ((0.0, -length), (0.0, length))]
    for start, end in ends:
        a, b = np.array([*start, 0.0]), np.array([*end, 0.0])
        uv = camera.project(a + share * (b - a))
        if np.isfinite(uv).all():
            cv2.polylines(
                picture, [np.round(uv * 16).astype(np.int32)], False, (60, 60, 255), 1, cv2.LINE_AA, 4
            )
    return picture
