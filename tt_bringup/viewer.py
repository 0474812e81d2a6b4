"""The scene in a browser (viser): what one `View` holds is drawn; where views come from is not known here."""

from __future__ import annotations

import contextlib
import html
import io
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tt_bringup import scene
from tt_bringup.frustum import frustum_lines
from tt_bringup.urdf_scene import UrdfScene
from tt_perception.camera import CameraModel
from tt_perception.errors import TTError
from tt_perception.table import BALL_RADIUS_M, TABLE_HEIGHT_M, TABLE_LENGTH_M, TABLE_WIDTH_M

FloatArray = NDArray[np.float64]
DEFAULT_PORT = 8080
LOCALHOST = "127.0.0.1"
PREVIEW_WIDTH = 320
HOLD_HZ = 10.0
SPEEDS = ("0.1×", "0.25×", "0.5×", "1×", "2×")
_CONNECT_S, _DRAW_S = 3.0, 5.0  # so long the work that fills the scene waits for the browser
_AMBIENT = 0.8
_LAST = 1e9  # place of the warnings in the panel: below everything, because their number changes
_TEXT_STYLE = "font-size: 0.9em; line-height: 1.4; margin: 0.2em 0.75em"
_LOOK_FROM, _LOOK_AT = (2.1, -3.3, 1.5), (0.0, -0.1, 0.0)


class ViewerError(TTError):
    """The viewer cannot start."""


@dataclass
class View:
    """What can be seen at one moment; None and empty for what is not known.

    Attributes:
        time_s: of the moment.
        joints: position by joint name.
        ball: position (3,), position covariance (3, 3), spin (3,).
        path: predicted path, shape (n, 3).
        trail: where the ball was, shape (n, 3).
        racket_pos, racket_quat, racket_vel, aim: of the planned hit.
        landing: where a returned ball came down, shape (2,).
        text: one line.
        warnings: a line each.
        uv: detections by camera, shape (n, 2) each, pixels.
        pictures: grey preview by camera.
    """

    time_s: float = 0.0
    joints: dict[str, float] | None = None
    ball: tuple[FloatArray, FloatArray, FloatArray] | None = None
    path: FloatArray | None = None
    trail: FloatArray | None = None
    racket_pos: FloatArray | None = None
    racket_quat: FloatArray | None = None
    racket_vel: FloatArray | None = None
    aim: FloatArray | None = None
    landing: FloatArray | None = None
    text: str = ""
    warnings: tuple[str, ...] = ()
    uv: dict[str, FloatArray] = field(default_factory=dict)
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)


def free_port(host: str, port: int) -> int:
    """The port, when it is free; 0 chooses one.

    Raises:
        ViewerError: it is in use, or the host has no such address.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ViewerError(
                f"port {port} on {host} cannot be used: {(error.strerror or str(error)).lower()}; "
                "choose another with --port, or 0 for any"
            ) from error
        return int(probe.getsockname()[1])


class Viewer:
    """A server that draws views for every browser that connects.

    Args:
        urdf: the robot.
        cameras: to draw and to project into; may be empty.
        racket_size: width, thickness, height, m.
        host: address to listen on.
        port: 0 chooses a free one.
    """

    def __init__(
        self,
        urdf: str,
        cameras: Sequence[CameraModel],
        racket_size: tuple[float, float, float],
        host: str = LOCALHOST,
        port: int = DEFAULT_PORT,
    ) -> None:
        port = free_port(host, port)
        import viser

        # Browsers open connections that they do not use, and the server would print a trace for each.
        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
        with contextlib.redirect_stdout(io.StringIO()):  # it greets on stdout, which belongs to --json
            self.server = viser.ViserServer(host=host, port=port, label="table tennis robot", verbose=False)
        self.url = f"http://{'localhost' if host == LOCALHOST else host}:{port}"
        self._robot = UrdfScene(urdf)
        self._cameras = {camera.name: camera for camera in cameras}
        self._preview_lines: dict[str, FloatArray] = {}
        self._draw_fixed()
        self._links = self._draw_robot()
        self._make_moving(racket_size)
        self.gui = self.server.gui
        self.gui.configure_theme(dark_mode=True, control_width="medium")
        self._state = _Words(self.gui, lines=1)
        self._state.say("waiting for data")
        self._warnings = self.gui.add_html("", order=_LAST)
        self._plots: dict[str, Any] = {}
        self._preview: Any = None
        self.show(View(joints={}))
        self._connected, self._drawn = threading.Event(), threading.Event()
        self._told: Callable[[], None] = lambda: None
        self.server.on_client_connect(self._greet)

    def close(self) -> None:
        """Ends the server."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.server.stop()

    def on_first_picture(self, told: Callable[[], None]) -> None:
        """Calls `told` when a browser has drawn the scene for the first time; set it before one can connect."""
        self._told = told

    def complete(self) -> None:
        """Leaves the processor to a browser that is starting, a moment at most; then draws the cameras.

        Their names alone take a browser as long as everything else in its first picture.
        """
        if self._connected.wait(_CONNECT_S):
            self._drawn.wait(_DRAW_S)
        with self.server.atomic():
            for camera in self._cameras.values():
                lines = frustum_lines(camera).reshape(-1, 2, 3)
                name, pos = f"/cameras/{camera.name}", tuple(camera.centre_table)
                _lines(self.server.scene, name, lines, (120, 120, 130), thickness=0.004)
                self.server.scene.add_label(f"{name}/name", camera.name, position=pos)

    def _greet(self, client: Any) -> None:
        """Asks the first browser for a small picture, which it sends when it has drawn table and robot."""
        if self._connected.is_set():
            return
        self._connected.set()
        try:
            client.get_render(height=72, width=128)
            self._told()
        finally:
            self._drawn.set()

    # Scene

    def _draw_fixed(self) -> None:
        world = self.server.scene
        world.set_up_direction("+z")
        # Without a graphics card shadows and reflections take most of the time of a picture.
        world.configure_default_lights(enabled=True, cast_shadow=False)
        world.configure_environment_map(hdri=None)
        world.add_light_ambient("/light", intensity=_AMBIENT)
        self.server.initial_camera.position = _LOOK_FROM
        self.server.initial_camera.look_at = _LOOK_AT
        world.add_grid(
            "/floor",
            width=10.0,
            height=10.0,
            cell_size=1.0,
            position=(0.0, 0.0, -TABLE_HEIGHT_M),
            plane="xy",
            cell_color=(55, 58, 64),
            section_color=(55, 58, 64),
        )
        for box in scene.table_boxes():
            world.add_box(
                f"/table/{box.name}",
                color=_rgb(box.colour),
                dimensions=box.size,
                position=box.centre,
                opacity=box.colour[3] if box.colour[3] < 1.0 else None,
            )

    def _draw_robot(self) -> list[tuple[str, FloatArray, Any]]:
        """One node per shape: link, pose of the shape in the link, handle."""
        world, found = self.server.scene, []
        for number, visual in enumerate(self._robot.visuals):
            name, (x, y, z) = f"/robot/{number} {visual.link}", visual.size
            handle: Any
            colour = _rgb(visual.colour)
            if visual.kind == "box":
                handle = world.add_box(name, color=colour, dimensions=(x, y, z))
            elif visual.kind == "cylinder":
                handle = world.add_cylinder(name, radius=x, height=z, color=colour)
            else:
                handle = world.add_icosphere(name, radius=x, color=colour)
            found.append((visual.link, visual.link_from_visual, handle))
        return found

    def _make_moving(self, racket_size: tuple[float, float, float]) -> None:
        world = self.server.scene
        self._ball = world.add_icosphere(
            "/ball", radius=BALL_RADIUS_M, color=_rgb(scene.BALL_COLOUR), visible=False
        )
        self._cloud = world.add_icosphere(
            "/covariance", radius=1.0, color=_rgb(scene.COVARIANCE_COLOUR), opacity=0.3, visible=False
        )
        self._racket = world.add_box(
            "/planned racket",
            color=_rgb(scene.RACKET_COLOUR),
            dimensions=racket_size,
            opacity=0.55,
            visible=False,
        )
        self._aim = world.add_cylinder(
            "/aim", radius=0.08, height=0.003, color=_rgb(scene.AIM_COLOUR), visible=False
        )
        self._bounce = world.add_cylinder(
            "/bounce", radius=0.04, height=0.002, color=_rgb(scene.BOUNCE_COLOUR), visible=False
        )
        self._landing = world.add_cylinder(
            "/landing", radius=0.035, height=0.004, color=_rgb(scene.LANDING_COLOUR), visible=False
        )
        self._line_handles: dict[str, Any] = {}

    def _line(self, name: str, points: FloatArray | None, colour: scene.Colour) -> None:
        """A polyline; replaced, because its number of points changes."""
        old = self._line_handles.pop(name, None)
        if old is not None:
            old.remove()
        if points is not None and len(points) >= 2:
            segments = np.stack((points[:-1], points[1:]), axis=1)
            self._line_handles[name] = _lines(self.server.scene, name, segments, _rgb(colour))

    def show(self, view: View) -> None:
        """Draws a view for all browsers."""
        with self.server.atomic():
            if view.joints is not None:
                poses = self._robot.link_poses(view.joints)
                for link, link_from_visual, handle in self._links:
                    pose = poses.get(link, np.eye(4)) @ link_from_visual
                    handle.position = pose[:3, 3]
                    handle.wxyz = _wxyz(pose[:3, :3])
            self._show_ball(view)
            self._line("/path", view.path, scene.PATH_COLOUR)
            self._line("/trail", view.trail, scene.BALL_COLOUR)
            bounce = scene.first_bounce(view.path) if view.path is not None else None
            _put(self._bounce, None if bounce is None else (bounce[0], bounce[1], 0.002))
            _put(self._racket, view.racket_pos)
            if view.racket_quat is not None:
                x, y, z, w = view.racket_quat
                self._racket.wxyz = (w, x, y, z)
            start = view.racket_pos
            end = None if start is None or view.racket_vel is None else start + 0.08 * view.racket_vel
            self._line(
                "/planned velocity", None if end is None else np.array((start, end)), scene.RACKET_COLOUR
            )
            aim = view.aim
            _put(self._aim, aim if aim is not None and bool(np.isfinite(aim).all()) else None)
            _put(self._landing, None if view.landing is None else (view.landing[0], view.landing[1], 0.002))
        if view.text:
            self._state.say(view.text)
            lines = "".join(f"<div>{html.escape(line)}</div>" for line in view.warnings)
            self._warnings.content = f'<div style="{_TEXT_STYLE}">{lines}</div>' if lines else ""

    def _show_ball(self, view: View) -> None:
        if view.ball is None:
            self._ball.visible = self._cloud.visible = False
            self._line("/spin", None, scene.SPIN_COLOUR)
            return
        pos, cov, spin = view.ball
        _put(self._ball, pos)
        axes, rotation = scene.ellipsoid(cov)
        _put(self._cloud, pos)
        self._cloud.scale = (float(axes[0]) / 2.0, float(axes[1]) / 2.0, float(axes[2]) / 2.0)
        self._cloud.wxyz = _wxyz(rotation)
        self._line("/spin", np.array(scene.spin_arrow(pos, spin)), scene.SPIN_COLOUR)

    # Panels

    def preview(self, view: View) -> None:
        """Pictures of all cameras with what they detected, in one image."""
        if not self._cameras:
            return
        if not self._preview_lines:
            self._preview_lines = {name: table_outline(camera) for name, camera in self._cameras.items()}
        image = preview_image(self._cameras, self._preview_lines, view)
        if self._preview is None:
            self._preview = self.gui.add_image(image, label="cameras", format="jpeg")
        else:
            self._preview.image = image

    def plot(self, name: str, x: FloatArray, y: FloatArray, x_label: str, y_label: str) -> None:
        """A small chart, drawn here as a picture: the same in every browser; replaced when it is there already."""
        image = chart_image(np.asarray(x, float), np.asarray(y, float), x_label, y_label)
        chart = self._plots.get(name)
        if chart is None:
            self._plots[name] = self.gui.add_image(image, label=name, format="png")
        else:
            chart.image = image

    def buttons(self, actions: Sequence[tuple[str, Any, Callable[[], str]]]) -> None:
        """A row of buttons; each action returns the sentence to show."""
        with self.gui.add_folder("robot"):
            buttons = [self.gui.add_button(label, color=colour) for label, colour, _ in actions]
            said = _Words(self.gui)
            for button, (_, _, action) in zip(buttons, actions, strict=True):
                button.on_click(_reporting(action, said))

    def jog(
        self,
        joints: Sequence[tuple[str, float, float, float]],
        hold: Callable[[dict[str, float]], str],
        release: Callable[[], None],
    ) -> None:
        """A slider per joint (name, lower, upper, start) and a button that moves only while it is held
        down.
        """
        with self.gui.add_folder("joints"):
            sliders = {
                name: self.gui.add_slider(
                    name, min=lower, max=upper, step=(upper - lower) / 400.0, initial_value=start
                )
                for name, lower, upper, start in joints
            }
            said = _Words(self.gui)
            said.say("Set the sliders, then hold the button: the robot moves while it is held.")
            for name, slider in sliders.items():
                slider.on_update(_announcing(name, slider, said))
            button = self.gui.add_button("hold to move", color="orange")
            watch = _HoldWatch(release)

            @button.on_hold(callback_hz=HOLD_HZ)
            def _(_event: Any) -> None:
                target = {name: float(slider.value) for name, slider in sliders.items()}
                said.say_result(lambda: hold(target))
                watch.touch()

    def timeline(
        self, duration_s: float, balls: Sequence[tuple[str, float]], on_time: Callable[[float], None]
    ) -> Timeline:
        """Slider, play button, speed and a list of balls for a recording."""
        return Timeline(self.gui, duration_s, balls, on_time)


class _Words:
    """Text in the panel whose height never changes: it must not move a button away from under a hand.

    Args:
        gui: of the server.
        lines: room for so many; more can be scrolled.
    """

    def __init__(self, gui: Any, lines: int = 2) -> None:
        self._style = f"{_TEXT_STYLE}; height: {1.4 * lines:g}em; overflow-y: auto"
        self._box = gui.add_html("")
        self.say("")

    def say(self, text: str, *, failed: bool = False) -> None:
        """Replaces the text."""
        words = html.escape(text)
        content = f"<b>{words}</b>" if failed else words
        self._box.content = f'<div style="{self._style}">{content}</div>'

    def say_result(self, action: Callable[[], str]) -> None:
        """Says what an action returns, or why it failed."""
        try:
            self.say(action())
        except TTError as error:
            self.say(str(error), failed=True)


def _announcing(name: str, slider: Any, said: _Words) -> Callable[[Any], None]:
    """Says where a joint would go, once the slider's value has arrived here."""

    def announce(_event: Any) -> None:
        said.say(f"{name} to {slider.value:.3f} while the button is held")

    return announce


class Timeline:
    """Moves through a recording.

    Attributes:
        time_s: where it stands.
        playing: True while it runs.
    """

    def __init__(
        self,
        gui: Any,
        duration_s: float,
        balls: Sequence[tuple[str, float]],
        on_time: Callable[[float], None],
    ) -> None:
        self.playing = False
        self._duration_s = max(duration_s, 0.01)
        with gui.add_folder("recording"):
            self._slider = gui.add_slider(
                "time, s", min=0.0, max=round(self._duration_s, 2), step=0.01, initial_value=0.0
            )
            self._button = gui.add_button("play")
            self._speed = gui.add_dropdown("speed", SPEEDS, initial_value="1×")
            self._balls = [name for name, _ in balls]
            self._choice = gui.add_dropdown("ball", self._balls or ["none"], visible=bool(balls))
            starts = dict(balls)

            @self._choice.on_update
            def _(event: Any) -> None:
                if event.client is not None:  # chosen in a browser, not by `show_ball`
                    self.go(starts[self._choice.value])

        self._slider.on_update(lambda _: on_time(float(self._slider.value)))
        self._button.on_click(lambda _: self.play(not self.playing))

    @property
    def time_s(self) -> float:
        """Where it stands."""
        return float(self._slider.value)

    def go(self, time_s: float) -> None:
        """Jumps."""
        self._slider.value = float(np.clip(time_s, 0.0, self._duration_s))

    def show_ball(self, number: int) -> None:
        """Names the ball that is in play, the first is 1."""
        if self._choice.value != self._balls[number - 1]:
            self._choice.value = self._balls[number - 1]

    def play(self, on: bool) -> None:
        """Starts or stops."""
        self.playing = on
        self._button.label = "pause" if on else "play"

    def advance(self, wall_s: float) -> None:
        """Moves on by a span of wall time when it plays; begins again at the end."""
        if not self.playing:
            return
        time_s = self.time_s + wall_s * float(self._speed.value.rstrip("×"))
        self.go(0.0 if time_s >= self._duration_s else time_s)


class _HoldWatch:
    """Calls `release` when the button has not been held for three periods."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def touch(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(3.0 / HOLD_HZ, self._release)
            self._timer.daemon = True
            self._timer.start()


def chart_image(x: FloatArray, y: FloatArray, x_label: str, y_label: str) -> NDArray[np.uint8]:
    """A line chart, RGB; values that are not finite are left out."""
    import cv2

    width, height, left, bottom, top = 2 * PREVIEW_WIDTH, 300, 70, 44, 16
    image = np.full((height, width, 3), 28, np.uint8)
    grey, colour, font = (150, 150, 150), (242, 142, 43), cv2.FONT_HERSHEY_SIMPLEX
    good = np.isfinite(x) & np.isfinite(y)
    order = np.argsort(x[good])
    x, y = x[good][order], y[good][order]
    low_x, high_x = (float(x[0]), float(x[-1])) if len(x) else (0.0, 1.0)
    low_y, high_y = min(0.0, float(y.min(initial=0.0))), float(y.max(initial=1e-9))
    across = (x - low_x) / max(high_x - low_x, 1e-9)
    up = (y - low_y) / max(high_y - low_y, 1e-9)
    u = left + across * (width - left - 16)
    v = height - bottom - up * (height - bottom - top)
    points = np.round(np.column_stack((u, v))).astype(np.int32).reshape(-1, 1, 2)
    cv2.line(image, (left, height - bottom), (width - 16, height - bottom), grey, 1)
    cv2.line(image, (left, height - bottom), (left, top), grey, 1)
    cv2.polylines(image, [points], False, colour, 2, cv2.LINE_AA)
    for text, at in (
        (f"{high_y:.3g}", (8, top + 10)),
        (y_label, (8, height // 2)),
        (f"{low_y:.3g}", (8, height - bottom)),
        (f"{low_x:.4g}", (left, height - 14)),
        (x_label, (width // 2 - 50, height - 14)),
        (f"{high_x:.4g}", (width - 80, height - 14)),
    ):
        cv2.putText(image, text, at, font, 0.6, grey, 1, cv2.LINE_AA)
    return image


def preview_image(
    cameras: dict[str, CameraModel], outlines: dict[str, FloatArray], view: View, columns: int = 2
) -> NDArray[np.uint8]:
    """All cameras side by side: picture or dark ground, outline of the table, ring around each detection."""
    import cv2

    tiles: list[Any] = []
    for name, camera in cameras.items():
        tile: Any
        scale = PREVIEW_WIDTH / camera.width
        size = (PREVIEW_WIDTH, round(camera.height * scale))
        picture = view.pictures.get(name)
        if picture is None:
            tile = np.full((size[1], size[0], 3), 28, np.uint8)
        else:
            small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
            tile = cv2.cvtColor(small, cv2.COLOR_GRAY2RGB) if small.ndim == 2 else small
        points = np.round(outlines[name] * scale).astype(np.int32)
        cv2.polylines(tile, [points.reshape(-1, 1, 2)], True, (70, 120, 160), 1, cv2.LINE_AA)
        for u, v in np.asarray(view.uv.get(name, np.empty((0, 2)))):
            cv2.circle(
                tile, (round(float(u) * scale), round(float(v) * scale)), 5, (255, 150, 30), 1, cv2.LINE_AA
            )
        cv2.putText(tile, name, (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (220, 220, 220), 1, cv2.LINE_AA)
        tiles.append(tile)
    height = max(tile.shape[0] for tile in tiles)
    tiles = [cv2.copyMakeBorder(t, 0, height - t.shape[0], 0, 0, cv2.BORDER_CONSTANT) for t in tiles]
    while len(tiles) % columns:
        tiles.append(np.zeros_like(tiles[0]))
    rows = [np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)]
    return np.ascontiguousarray(np.vstack(rows))


def table_outline(camera: CameraModel) -> FloatArray:
    """The edge of the table in the picture, shape (n, 2); points behind the camera are left out."""
    x, y = TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2
    corners = np.array([(-x, -y), (x, -y), (x, y), (-x, y), (-x, -y)])
    share = np.linspace(0.0, 1.0, 12)[:, None]
    sides = [corners[i] + share * (corners[i + 1] - corners[i]) for i in range(4)]
    points = np.column_stack((np.vstack(sides), np.zeros(48)))
    uv = camera.project(points)
    return uv[np.isfinite(uv).all(axis=1)]


def _reporting(action: Callable[[], str], said: _Words) -> Callable[[Any], None]:
    def click(_event: Any) -> None:
        said.say("…")
        said.say_result(action)

    return click


def _lines(
    world: Any, name: str, segments: FloatArray, colour: tuple[int, int, int], thickness: float = 0.008
) -> Any:
    points = np.asarray(segments, np.float32)
    return world.add_line_segments(name, points=points, colors=colour, thickness=thickness)


def _put(handle: Any, pos: Any) -> None:
    if pos is None:
        handle.visible = False
    else:
        handle.position = tuple(float(value) for value in pos)
        handle.visible = True


def _rgb(colour: scene.Colour) -> tuple[int, int, int]:
    red, green, blue = (round(255 * value) for value in colour[:3])
    return red, green, blue


def _wxyz(rotation: FloatArray) -> tuple[float, float, float, float]:
    x, y, z, w = scene.quat_from_axes(rotation)
    return w, x, y, z
