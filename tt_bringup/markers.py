"""The scene as visualization_msgs markers, thirty times a second at the cost of a few percent of a core.

ROS message objects would cost three times as much as everything else, so markers are small records that this
module serializes itself; `layout_is_known` checks that against the installed visualization_msgs.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tt_bringup import scene
from tt_bringup.frustum import frustum_lines
from tt_bringup.urdf_scene import UrdfScene
from tt_perception.camera import CameraModel
from tt_perception.cdr import CdrWriter
from tt_perception.table import BALL_RADIUS_M

FRAME = "table"
ARROW, CUBE, SPHERE, CYLINDER, LINE_STRIP, LINE_LIST, TEXT = 0, 1, 2, 3, 4, 5, 9  # visualization_msgs/Marker
ADD, DELETE = 0, 2
_SHAPES = {"box": CUBE, "cylinder": CYLINDER, "sphere": SPHERE}
_FRAME = FRAME.encode() + b"\0"
_TWO_I32, _U32 = struct.Struct("<2i"), struct.Struct("<I")
_NO_POINTS = np.empty((0, 3))


@dataclass
class MarkerRecord:
    """What is used of one visualization_msgs/Marker."""

    space: str
    number: int
    kind: int
    colour: tuple[float, float, float, float]
    scale: tuple[float, float, float]
    pose: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    points: NDArray[np.float64] = field(default_factory=lambda: _NO_POINTS)
    text: str = ""
    action: int = ADD


class Markers:
    """All markers of a scene by name; `changed` gives those to publish.

    rviz lists their namespaces: table, cameras, robot, ball, covariance, spin, path, bounce, racket, aim,
    landing, state.
    """

    def __init__(self) -> None:
        self._all: dict[str, MarkerRecord] = {}
        self._changed: dict[str, MarkerRecord] = {}
        self._number: dict[str, int] = {}
        self._robot_poses: dict[str, NDArray[np.float64]] = {}

    def _marker(
        self, name: str, space: str, kind: int, colour: scene.Colour, size: Iterable[float]
    ) -> MarkerRecord:
        x, y, z = size
        marker = self._all.get(name)
        if marker is None:
            number = self._number.get(space, 0)
            self._number[space] = number + 1
            marker = self._all[name] = MarkerRecord(space, number, kind, colour, (x, y, z))
        marker.action = ADD
        self._changed[name] = marker
        return marker

    def hide(self, *names: str) -> None:
        """Takes markers away until they are drawn again."""
        for name in names:
            marker = self._all.get(name)
            if marker is not None and marker.action != DELETE:
                marker.action = DELETE
                self._changed[name] = marker

    def changed(self, every: bool = False) -> list[MarkerRecord]:
        """What changed since the last call; with `every` all of them."""
        found = list((self._all if every else self._changed).values())
        self._changed = {}
        return found

    def table(self) -> None:
        """Table and net."""
        for box in scene.table_boxes():
            _place(self._marker(f"table/{box.name}", "table", CUBE, box.colour, box.size), box.centre)

    def cameras(self, cameras: Iterable[CameraModel]) -> None:
        """The view of each camera as a wire pyramid, and its name."""
        for camera in cameras:
            name = f"camera/{camera.name}"
            marker = self._marker(name, "cameras", LINE_LIST, (0.6, 0.6, 0.65, 1.0), (0.008, 0.0, 0.0))
            marker.points = frustum_lines(camera)
            label = self._marker(f"{name}/label", "cameras", TEXT, (0.9, 0.9, 0.9, 1.0), (0.0, 0.0, 0.09))
            label.text = camera.name
            _place(label, np.asarray(camera.centre_table) + (0.0, 0.0, 0.15))

    def ball(self, pos: ArrayLike, cov: ArrayLike, spin: ArrayLike) -> None:
        """The ball, the ellipsoid of its position (3 standard deviations), the arrow of its spin."""
        size = (2 * BALL_RADIUS_M,) * 3
        _place(self._marker("ball", "ball", SPHERE, scene.BALL_COLOUR, size), pos)
        axes, rotation = scene.ellipsoid(cov)
        marker = self._marker("covariance", "covariance", SPHERE, scene.COVARIANCE_COLOUR, axes)
        marker.scale = (axes[0], axes[1], axes[2])
        _place(marker, pos, scene.quat_from_axes(rotation))
        start, end = scene.spin_arrow(pos, spin)
        arrow = self._marker("spin", "spin", ARROW, scene.SPIN_COLOUR, (0.012, 0.028, 0.04))
        arrow.points = np.array((start, end))

    def path(self, points: NDArray[np.float64]) -> None:
        """The predicted path, shape (n, 3), and where it bounces."""
        line = self._marker("path", "path", LINE_STRIP, scene.PATH_COLOUR, (0.012, 0.0, 0.0))
        line.points = points
        bounce = scene.first_bounce(points)
        if bounce is None:
            self.hide("bounce")
        else:
            disc = (bounce[0], bounce[1], 0.002)
            _place(
                self._marker("bounce", "bounce", CYLINDER, scene.BOUNCE_COLOUR, (0.08, 0.08, 0.002)),
                disc,
            )

    def planned_hit(
        self, pos: ArrayLike, quat_xyzw: ArrayLike, vel: ArrayLike, size: ArrayLike, aim: ArrayLike
    ) -> None:
        """The racket (width, thickness, height) at the hit time, its velocity, and the aim on the table."""
        _place(self._marker("racket", "racket", CUBE, scene.RACKET_COLOUR, size), pos, quat_xyzw)  # type: ignore[arg-type]
        arrow = self._marker("racket/velocity", "racket", ARROW, scene.RACKET_COLOUR, (0.01, 0.025, 0.03))
        arrow.points = np.array((pos, np.asarray(pos, float) + 0.08 * np.asarray(vel, float)))
        if np.all(np.isfinite(np.asarray(aim, float))):
            _place(self._marker("aim", "aim", CYLINDER, scene.AIM_COLOUR, (0.16, 0.16, 0.003)), aim)
        else:
            self.hide("aim")

    def landing(self, xy: ArrayLike, good: bool) -> None:
        """Where the returned ball came down."""
        x, y = np.asarray(xy, float)[:2]
        marker = self._marker("landing", "landing", CYLINDER, scene.LANDING_COLOUR, (0.07, 0.07, 0.004))
        red, _, blue, opacity = scene.LANDING_COLOUR
        marker.colour = (red, 0.85 if good else 0.25, blue, opacity)
        _place(marker, (x, y, 0.002))

    def text(self, text: str) -> None:
        """One line over the net."""
        marker = self._marker("state", "state", TEXT, (0.95, 0.95, 0.95, 1.0), (0.0, 0.0, 0.12))
        marker.text = text
        _place(marker, (0.0, 0.0, 0.9))

    def robot(self, robot: UrdfScene, positions: Mapping[str, float]) -> None:
        """The robot at its measured joint positions."""
        poses = robot.link_poses(positions)
        for number, visual in enumerate(robot.visuals):
            link_pose = poses.get(visual.link)
            name = f"robot/{number}"
            before = self._robot_poses.get(name)
            if before is not None and link_pose is not None and np.array_equal(before, link_pose):
                continue  # the frame of the robot stands still
            pose = visual.link_from_visual if link_pose is None else link_pose @ visual.link_from_visual
            x, y, z = visual.size
            scale = {"box": (x, y, z), "cylinder": (2 * x, 2 * y, z), "sphere": (2 * x, 2 * y, 2 * z)}[
                visual.kind
            ]
            marker = self._marker(name, "robot", _SHAPES[visual.kind], visual.colour, scale)
            _place(marker, pose[:3, 3].tolist(), scene.quat_from_axes(pose[:3, :3]))
            if link_pose is not None:
                self._robot_poses[name] = link_pose


def serialize(markers: Iterable[MarkerRecord]) -> bytes:
    """A visualization_msgs/MarkerArray (Jazzy and later), ready to publish."""
    found = list(markers)
    data = bytearray(_U32.pack(len(found)))
    for marker in found:
        space = marker.space.encode() + b"\0"
        data += _head(len(space), len(data) % 8).pack(
            0, 0, len(_FRAME), _FRAME, len(space), space, marker.number, marker.kind, marker.action,
            *marker.pose, *marker.scale, *marker.colour, 0, 0, 0, len(marker.points),
        )  # fmt: skip
        if len(marker.points):
            data += bytes(-len(data) % 8)
            data += np.ascontiguousarray(marker.points, "<f8").tobytes()
        text = marker.text.encode() + b"\0"
        data += _BEFORE_TEXT + _U32.pack(len(text)) + text
        data += bytes(-len(data) % 4) + _BEHIND_TEXT
    return b"\x00\x01\x00\x00" + bytes(data)


@functools.lru_cache(maxsize=256)
def _head(space_size: int, offset: int) -> struct.Struct:
    """A marker from its beginning, `offset` bytes behind a multiple of 8, to the number of its points."""
    form, at = "<", offset
    for code, count, size in (
        ("i", 2, 4),  # header.stamp
        ("I", 1, 4),
        (f"{len(_FRAME)}s", len(_FRAME), 1),
        ("I", 1, 4),
        (f"{space_size}s", space_size, 1),
        ("i", 3, 4),  # id, type, action
        ("d", 10, 8),  # pose, scale
        ("f", 4, 4),  # color
        ("i", 2, 4),  # lifetime: until deleted
        ("B", 1, 1),  # frame_locked
        ("I", 1, 4),
    ):
        pad = -at % size
        form += f"{pad}x" if pad else ""
        form += code if size == 1 else f"{count}{code}"
        at += pad + size * count
    return struct.Struct(form)


def _fixed_parts() -> tuple[bytes, bytes]:
    """What lies between points and text, and behind the text; both begin at a multiple of 4."""
    before, behind = CdrWriter(), CdrWriter()
    before.pack(_U32, 0)  # colors
    before.string("")  # texture_resource
    before.pack(_TWO_I32, 0, 0)  # texture.header
    before.string("")
    before.string("")  # texture.format
    before.pack(_U32, 0)  # texture.data
    before.pack(_U32, 0)  # uv_coordinates
    behind.string("")  # mesh_resource
    behind.string("")  # mesh_file
    behind.pack(_U32, 0)
    behind.raw(b"\x00")  # mesh_use_embedded_materials
    size = len(CdrWriter())
    return before.message()[size:], behind.message()[size:]


_BEFORE_TEXT, _BEHIND_TEXT = _fixed_parts()


def to_message(markers: Iterable[MarkerRecord]) -> Any:
    """The same as a message object."""
    from geometry_msgs.msg import Point
    from visualization_msgs.msg import Marker, MarkerArray

    array = MarkerArray()
    for record in markers:
        marker = Marker(
            ns=record.space, id=record.number, type=record.kind, action=record.action, text=record.text
        )
        marker.header.frame_id = FRAME
        at, turn, scale, colour = marker.pose.position, marker.pose.orientation, marker.scale, marker.color
        at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w = (float(value) for value in record.pose)
        scale.x, scale.y, scale.z = (float(value) for value in record.scale)
        colour.r, colour.g, colour.b, colour.a = (float(value) for value in record.colour)
        marker.points = [Point(x=float(x), y=float(y), z=float(z)) for x, y, z in record.points]
        array.markers.append(marker)
    return array


def layout_is_known() -> bool:
    """True when `serialize` writes what the installed visualization_msgs reads."""
    from rclpy.serialization import deserialize_message, serialize_message
    from visualization_msgs.msg import MarkerArray

    trial = Markers()
    trial.ball((0.1, 0.2, 0.3), np.eye(3) * 1e-4, (10.0, 20.0, 30.0))
    trial.text("ball 1")
    records = trial.changed()
    expected = deserialize_message(serialize_message(to_message(records)), MarkerArray)
    try:
        return bool(deserialize_message(serialize(records), MarkerArray) == expected)
    except Exception:  # rclpy raises whatever the middleware says
        return False


def _place(marker: MarkerRecord, pos: Any, quat_xyzw: Any = (0.0, 0.0, 0.0, 1.0)) -> None:
    marker.pose = (*pos, *quat_xyzw)
