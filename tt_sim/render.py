"""Simulated cameras that make images: room, table, ball with motion blur, noise, changing light, a person.

Built for speed: the still scene of a camera is traced once and kept as a set of noisy copies; each frame
copies one and draws only what moves. `render_kernels` holds the compiled parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel
from tt_perception.lens import undistort_kernel
from tt_perception.table import BALL_RADIUS_M, TABLE_HEIGHT_M
from tt_sim.render_kernels import background_kernel, ball_kernel, noise_kernel, shadow_kernel
from tt_sim.render_person import bounding_box, draw_lines, limb_lines, person_limbs

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

BALL_COLOURS = {"white": (235.0, 238.0, 238.0), "orange": (40.0, 140.0, 245.0)}  # blue, green, red
# Two rows of lamps above the long sides of the hall, unit vectors towards them; the shadow falls from
# between.
_LAMPS_TABLE = np.array([[0.5, 0.35, 0.79], [-0.45, -0.25, 0.86]])
_LAMPS_TABLE /= np.linalg.norm(_LAMPS_TABLE, axis=1, keepdims=True)
_SHADOW_TABLE = np.array([0.05, 0.08, 1.0])
_RING = 8  # images that stay valid after they were returned


@dataclass(frozen=True)
class RenderConfig:
    """What the simulated cameras see and how they see it.

    Attributes:
        exposure_s: shutter time.
        read_noise: standard deviation, grey levels.
        shot_noise: variance per grey level.
        flicker: relative brightness change of the lamps at 100 Hz.
        drift: relative slow brightness change, period 7 s.
        blackout: relative drop of the light for half a second every 5 s (somebody passes a lamp).
        ambient: share of the light that has no direction.
        softness_px: width of the edges: pixel area and lens blur.
        colour: images are BGR instead of grey.
        ball_colour: `white` or `orange`.
        shadow: the ball throws a shadow on the table.
        second_ball: another ball rolls on the floor beside the table.
        person: a person moves behind the opponent's end.
        samples: rays per pixel and axis for the still scene.
        noise_frames: noisy copies of the still scene.
    """

    exposure_s: float = 0.002
    read_noise: float = 2.0
    shot_noise: float = 0.03
    flicker: float = 0.0
    drift: float = 0.0
    blackout: float = 0.0
    ambient: float = 0.5
    softness_px: float = 1.4
    colour: bool = False
    ball_colour: str = "white"
    shadow: bool = True
    second_ball: bool = False
    person: bool = False
    samples: int = 3
    noise_frames: int = 12


@dataclass(frozen=True)
class MovingBall:
    """A ball at mid-exposure.

    Attributes:
        pos_table: shape (3,), m.
        vel_table: shape (3,), m/s.
    """

    pos_table: FloatArray
    vel_table: FloatArray


def second_ball(time_s: float) -> MovingBall:
    """A ball that rolls to and fro on the floor beside the table."""
    phase = 2.0 * np.pi * 0.11 * time_s
    return MovingBall(
        np.array([1.9, 1.6 * np.sin(phase), BALL_RADIUS_M - TABLE_HEIGHT_M]),
        np.array([0.0, 1.6 * 2.0 * np.pi * 0.11 * np.cos(phase), 0.0]),
    )


class CameraRenderer:
    """Images of one camera.

    Args:
        camera: its true calibration.
        config: scene and sensor.
        seed: of the noise.
    """

    def __init__(self, camera: CameraModel, config: RenderConfig | None = None, seed: int = 0) -> None:
        self.camera = camera
        self.config = config or RenderConfig()
        self._rng = np.random.default_rng(seed)
        self._rays = pixel_rays(camera)
        channels = 3 if self.config.colour else 1
        background = np.empty((camera.height, camera.width, channels), np.float32)
        background_kernel(
            self._rays,
            np.ascontiguousarray(camera.table_from_camera),
            1.0 / camera.matrix[0, 0],
            self.config.samples,
            background,
        )
        self._background = cv2.GaussianBlur(background, (0, 0), 0.5).reshape(background.shape)
        self._still = np.clip(self._background + 0.5, 0, 255).astype(np.uint8)
        self._normals = self._rng.standard_normal(1 << 16).astype(np.float32)
        self._noisy = [self._with_noise(self._background) for _ in range(max(self.config.noise_frames, 1))]
        grain = self._rng.normal(128.0, np.hypot(self.config.read_noise, 1.5), background.shape)
        self._grain = np.clip(grain, 0, 255).astype(np.uint8)
        self._ring = [np.empty(background.shape, np.uint8) for _ in range(_RING)]
        self._frame = 0
        rotation = camera.camera_from_table[:3, :3]
        self._lamps = np.ascontiguousarray(_LAMPS_TABLE @ rotation.T)
        b, g, r = BALL_COLOURS[self.config.ball_colour]
        grey = 0.114 * b + 0.587 * g + 0.299 * r
        self._ball_colour = np.array([b, g, r] if self.config.colour else [grey])

    def gain(self, time_s: float) -> float:
        """Brightness of the light at a time, relative."""
        c = self.config
        value = 1.0 + c.flicker * np.sin(2.0 * np.pi * 100.0 * time_s)
        value += c.drift * np.sin(2.0 * np.pi * time_s / 7.0)
        if c.blackout > 0.0 and time_s % 5.0 > 4.5:
            value *= 1.0 - c.blackout
        return float(value)

    def render(self, time_s: float, balls: Sequence[MovingBall] = ()) -> Image:
        """One image, mid-exposure at `time_s`.

        Args:
            time_s: drives light, person and second ball.
            balls: at `time_s`; out of sight is allowed.

        Returns:
            (h, w) uint8 grey or (h, w, 3) BGR. The array is reused after 8 more images.
        """
        gain = self.gain(time_s)
        out = self._ring[self._frame % _RING]
        still = self._noisy[int(self._rng.integers(len(self._noisy)))]
        self._frame += 1
        if abs(gain - 1.0) < 1e-3:
            np.copyto(out, still)
        else:
            cv2.convertScaleAbs(still.reshape(out.shape[0], -1), out.reshape(out.shape[0], -1), gain, 0.0)
        everything = list(balls)
        if self.config.second_ball:
            everything.append(second_ball(time_s))
        everything.sort(key=lambda ball: -float(self.camera.depth_m(ball.pos_table)[0]))
        lines = limb_lines(self.camera, person_limbs(time_s)) if self.config.person else []
        box = bounding_box(self.camera, lines)
        clean = None
        if box is not None:
            distance = float(self.camera.depth_m(np.concatenate([limb.ends for _, _, limb in lines])).mean())
            depths = [float(self.camera.depth_m(ball.pos_table)[0]) for ball in everything]
            behind = [ball for ball, depth in zip(everything, depths, strict=True) if depth > distance]
            everything = everything[len(behind) :]
            clean = self._draw_person(out, box, lines, behind, gain)
        for ball in everything:
            self._draw_ball(out, ball, gain, box, clean)
        return out if self.config.colour else out[:, :, 0]

    def hidden(self, time_s: float, pos_table: FloatArray) -> bool:
        """The person stands between the camera and most of a ball."""
        if not self.config.person:
            return False
        uv = self.camera.project(pos_table)
        depth = float(self.camera.depth_m(pos_table)[0])
        for ends, thickness, limb in limb_lines(self.camera, person_limbs(time_s)):
            if float(self.camera.depth_m(limb.ends).mean()) > depth:
                continue
            along = ends[1] - ends[0]
            share = np.clip((uv - ends[0]) @ along / max(float(along @ along), 1e-9), 0.0, 1.0)
            if np.linalg.norm(uv - ends[0] - share * along) < 0.5 * thickness:
                return True
        return False

    def _draw_person(self, out, box, lines, behind, gain):  # type: ignore[no-untyped-def]
        """Draw the figure and the balls behind it; returns its picture without noise."""
        left, top, right, bottom = box
        for ball in behind:
            self._draw_ball(out, ball, gain, None, None)
        clean = cv2.convertScaleAbs(self._still[top:bottom, left:right], alpha=gain).reshape(
            bottom - top, right - left, -1
        )
        for ball in behind:
            self._draw_behind(clean, ball, box, gain)
        draw_lines(clean, lines, left, top, gain)
        flat = clean.reshape(bottom - top, -1)
        grain = self._grain[: bottom - top, : right - left].reshape(bottom - top, -1)
        out[top:bottom, left:right] = cv2.addWeighted(flat, 1.0, grain, 1.0, -128.0).reshape(clean.shape)
        return clean

    def _draw_behind(self, clean, ball, box, gain):  # type: ignore[no-untyped-def]
        """Draw a ball into the picture that the figure will be drawn over."""
        rectangle = self._ball_rectangle(ball)
        if rectangle is None:
            return
        left, top = max(rectangle[0], box[0]), max(rectangle[1], box[1])
        right, bottom = min(rectangle[2], box[2]), min(rectangle[3], box[3])
        if right <= left or bottom <= top:
            return
        window = clean[top - box[1] : bottom - box[1], left - box[0] : right - box[0]]
        patch = window.astype(np.float32)
        self._blend_ball(patch, ball, left, top, gain)
        window[:] = np.clip(patch, 0, 255)

    def _draw_ball(self, out, ball, gain, box, clean):  # type: ignore[no-untyped-def]
        if self.config.shadow and ball.pos_table[2] > 0.0:
            rectangle = self._shadow_rectangle(ball)
            if rectangle is not None:
                patch = self._shadowed(rectangle, ball, gain, box, clean)
                self._store(out, patch, rectangle[0], rectangle[1])
        rectangle = self._ball_rectangle(ball)
        if rectangle is None:
            return
        left, top, *_ = rectangle
        patch = self._shadowed(rectangle, ball, gain, box, clean)
        self._blend_ball(patch, ball, left, top, gain)
        self._store(out, patch, left, top)

    def _shadowed(self, rectangle, ball, gain, box, clean):  # type: ignore[no-untyped-def]
        """What is behind a ball in a part of the picture: background with the ball's shadow, and the figure."""
        left, top, right, bottom = rectangle
        patch = self._background[top:bottom, left:right] * np.float32(gain)
        self._blend_shadow(patch, ball, left, top)
        _overlay(patch, left, top, box, clean)
        return patch

    def _blend_shadow(self, patch, ball, left, top):  # type: ignore[no-untyped-def]
        height = float(ball.pos_table[2])
        if not self.config.shadow or not 0.0 < height < 0.6:
            return
        foot = ball.pos_table[:2] - _SHADOW_TABLE[:2] * (height / _SHADOW_TABLE[2])
        blur = 0.15 * height
        depth = 0.35 * (BALL_RADIUS_M / (BALL_RADIUS_M + blur)) ** 2
        shadow_kernel(
            patch, self._rays, top, left, np.ascontiguousarray(self.camera.table_from_camera), float(foot[0]),
            float(foot[1]), max(BALL_RADIUS_M - blur, 0.0), BALL_RADIUS_M + blur, depth,
        )  # fmt: skip

    def _blend_ball(self, patch, ball, left, top, gain):  # type: ignore[no-untyped-def]
        start, end = self._shutter(ball)
        travel_px = float(np.linalg.norm((end - start)[:2]) / start[2] * self.camera.matrix[0, 0])
        samples = int(np.clip(np.ceil(2.0 * travel_px), 1, 24))
        ball_kernel(
            patch, self._rays, top, left, start, end, BALL_RADIUS_M, samples,
            self.config.softness_px / float(self.camera.matrix[0, 0]), self._ball_colour, self._lamps,
            self.config.ambient, gain,
        )  # fmt: skip

    def _store(self, out, patch, left, top):  # type: ignore[no-untyped-def]
        rows, columns = patch.shape[:2]
        noise_kernel(
            patch, self._normals, int(self._rng.integers(1 << 16)), self.config.read_noise,
            self.config.shot_noise, out[top : top + rows, left : left + columns],
        )  # fmt: skip

    def _with_noise(self, clean: NDArray[np.float32]) -> Image:
        sigma = np.sqrt(self.config.read_noise**2 + self.config.shot_noise * clean)
        noisy = clean + sigma * self._rng.standard_normal(clean.shape, dtype=np.float32)
        return np.clip(noisy + 0.5, 0, 255).astype(np.uint8)

    def _shutter(self, ball: MovingBall) -> tuple[FloatArray, FloatArray]:
        """Ball centre in the optical frame when the shutter opens and closes."""
        half = 0.5 * self.config.exposure_s * ball.vel_table
        transform = self.camera.camera_from_table
        start = transform[:3, :3] @ (ball.pos_table - half) + transform[:3, 3]
        end = transform[:3, :3] @ (ball.pos_table + half) + transform[:3, 3]
        return np.ascontiguousarray(start), np.ascontiguousarray(end)

    def _ball_rectangle(self, ball: MovingBall) -> tuple[int, int, int, int] | None:
        half = 0.5 * self.config.exposure_s * ball.vel_table
        uv = self.camera.project(np.array([ball.pos_table - half, ball.pos_table + half]))
        depth = float(self.camera.depth_m(ball.pos_table)[0])
        if not np.isfinite(uv).all() or depth < 0.2:
            return None
        radius = 1.2 * BALL_RADIUS_M * float(self.camera.matrix[0, 0]) / depth + 3.0
        return self._clip(uv.min(axis=0) - radius, uv.max(axis=0) + radius)

    def _shadow_rectangle(self, ball: MovingBall) -> tuple[int, int, int, int] | None:
        height = float(ball.pos_table[2])
        if height >= 0.6:
            return None
        foot = np.array([*(ball.pos_table[:2] - _SHADOW_TABLE[:2] * (height / _SHADOW_TABLE[2])), 0.0])
        reach = BALL_RADIUS_M + 0.15 * height
        corners = foot + reach * np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
        uv = self.camera.project(corners)
        return self._clip(uv.min(axis=0) - 1.0, uv.max(axis=0) + 1.0) if np.isfinite(uv).all() else None

    def _clip(self, low: FloatArray, high: FloatArray) -> tuple[int, int, int, int] | None:
        left, top = max(int(np.floor(low[0])), 0), max(int(np.floor(low[1])), 0)
        right = min(int(np.ceil(high[0])) + 1, self.camera.width)
        bottom = min(int(np.ceil(high[1])) + 1, self.camera.height)
        return (left, top, right, bottom) if right > left and bottom > top else None


class RenderedCameras:
    """A set of rendered cameras on one trigger.

    Args:
        cameras: their true calibration.
        config: scene and sensor, the same for all.
        seed: of the noise.
    """

    def __init__(
        self, cameras: Sequence[CameraModel], config: RenderConfig | None = None, seed: int = 0
    ) -> None:
        self.cameras = tuple(cameras)
        self.renderers = tuple(
            CameraRenderer(camera, config, seed + index) for index, camera in enumerate(cameras)
        )

    def render(self, time_s: float, balls: Sequence[MovingBall] = ()) -> list[Image]:
        """One image per camera, mid-exposure at `time_s`."""
        return [renderer.render(time_s, balls) for renderer in self.renderers]


def pixel_rays(camera: CameraModel) -> NDArray[np.float32]:
    """Undistorted normalised coordinates of every pixel centre, shape (h, w, 2)."""
    u, v = np.meshgrid(np.arange(camera.width, dtype=np.float64), np.arange(camera.height, dtype=np.float64))
    raw = np.column_stack([u.ravel(), v.ravel()])
    flat = np.empty_like(raw)
    undistort_kernel(raw, camera.matrix, camera.distortion, flat)
    y = (flat[:, 1] - camera.matrix[1, 2]) / camera.matrix[1, 1]
    x = (flat[:, 0] - camera.matrix[0, 2] - camera.matrix[0, 1] * y) / camera.matrix[0, 0]
    rays = np.column_stack([x, y]).astype(np.float32)
    # Beyond the reach of the lens model nothing is drawn: a ray along the image plane meets no surface.
    return np.nan_to_num(rays, nan=1e3).reshape(camera.height, camera.width, 2)


def _overlay(patch, left, top, box, clean):  # type: ignore[no-untyped-def]
    """Copy the part of the person's picture that a patch covers."""
    if clean is None:
        return
    x0, y0 = max(left, box[0]), max(top, box[1])
    x1, y1 = min(left + patch.shape[1], box[2]), min(top + patch.shape[0], box[3])
    if x1 > x0 and y1 > y0:
        patch[y0 - top : y1 - top, x0 - left : x1 - left] = clean[
            y0 - box[1] : y1 - box[1], x0 - box[0] : x1 - box[0]
        ]
