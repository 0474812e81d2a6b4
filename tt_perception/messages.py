"""Wire form of what perception publishes; the only pure module here that imports ROS message packages.

Detections travel as a PointCloud2 of float32 fields u, v, radius, score and height 1. The trigger counter of the
camera, when it has one, rides in the row padding: `row_step` is then 8 bytes longer than the points, and
those bytes hold the counter as a little-endian int64. Readers that do not know it see an ordinary cloud.

A ray (one camera's view) travels as a position whose covariance is long along the line of sight (`rays`).
"""

from __future__ import annotations

import array
import math
import struct
from collections.abc import Sequence

import numpy as np
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import PoseWithCovarianceStamped
from sensor_msgs.msg import CameraInfo, Image, PointCloud2, PointField

from tt_perception.camera import CameraModel
from tt_perception.cdr import CdrReader, CdrTemplate, MessageError, with_others
from tt_perception.types import BallPosition, CameraDetections

_POINT_STEP = 16
_COUNTER_BYTES = 8
_NS = 1_000_000_000
_STAMP_AND_LENGTH = struct.Struct("<iII")
_TWO = struct.Struct("<II")
_FIELDS = [
    PointField(name=name, offset=4 * index, datatype=PointField.FLOAT32, count=1)
    for index, name in enumerate(("u", "v", "radius", "score"))
]


def stamp_to_msg(stamp_ns: int) -> Time:
    """ROS time of integer nanoseconds."""
    sec, nanosec = divmod(int(stamp_ns), _NS)
    return Time(sec=sec, nanosec=nanosec)


def stamp_from_msg(stamp: Time | Duration) -> int:
    """Integer nanoseconds of a ROS time or duration."""
    return stamp.sec * _NS + stamp.nanosec


def detections_to_msg(detections: CameraDetections) -> PointCloud2:
    """Detections of one image as a point cloud in frame `<camera>_optical`."""
    count = len(detections.uv_px)
    points = np.empty((count, 4), dtype="<f4")
    points[:, :2] = detections.uv_px
    points[:, 2] = detections.radius_px
    points[:, 3] = detections.score
    message = PointCloud2()
    message.header.stamp = stamp_to_msg(detections.stamp_ns)
    message.header.frame_id = f"{detections.camera}_optical"
    message.height = 1
    message.width = count
    message.fields = _FIELDS
    message.is_bigendian = False
    message.point_step = _POINT_STEP
    message.is_dense = True
    data = points.tobytes()
    if detections.counter is not None:
        data += int(detections.counter).to_bytes(_COUNTER_BYTES, "little", signed=True)
    message.row_step = len(data)
    message.data = array.array("B", data)
    return message


def detections_to_raw(detections: CameraDetections) -> bytes:
    """The same message serialized, without building a ROS object."""
    frame = f"{detections.camera}_optical".encode() + b"\0"
    points = np.empty((len(detections.uv_px), 4), dtype="<f4")
    points[:, :2] = detections.uv_px
    points[:, 2] = detections.radius_px
    points[:, 3] = detections.score
    data = points.tobytes()
    if detections.counter is not None:
        data += int(detections.counter).to_bytes(_COUNTER_BYTES, "little", signed=True)
    sec, nanosec = divmod(detections.stamp_ns, _NS)
    return b"".join(
        (
            b"\0\1\0\0",
            _STAMP_AND_LENGTH.pack(sec, nanosec, len(frame)),
            frame + bytes(-len(frame) % 4),
            _TWO.pack(1, len(points)),
            _LAYOUT.pack(*_LAYOUT_VALUES),
            _TWO.pack(len(data), len(data)),
            data,
            b"\1",  # is_dense
        )
    )


def detections_from_msg(message: PointCloud2) -> CameraDetections:
    """Detections of a point cloud.

    Raises:
        MessageError: another frame name, layout or length than `detections_to_msg` writes.
    """
    frame = message.header.frame_id
    _check_optical(frame)
    _check_layout(frame, [field.name for field in message.fields], message.point_step, message.height)
    return _detections(
        frame, stamp_from_msg(message.header.stamp), message.width, message.row_step, message.data
    )


def detections_from_raw(raw: bytes) -> CameraDetections:
    """Detections of a serialized PointCloud2, some 20 times as fast as through a ROS object.

    Raises:
        MessageError: as `detections_from_msg`, or the bytes are no such message.
    """
    try:
        sec, nanosec, size = _STAMP_AND_LENGTH.unpack_from(raw, 4)
        at = 16 + -(-size // 4) * 4
        height, width = _TWO.unpack_from(raw, at)
        begin = at + 8 + _LAYOUT.size
        layout = raw[at + 8 : begin]
        known = (
            layout == _LAYOUT_BYTES or _LAYOUT.unpack(layout) == _LAYOUT_VALUES
        )  # padding may hold anything
        if height == 1 and raw[1] == 1 and known:
            frame = str(raw[16 : 15 + size], "utf-8")
            _check_optical(frame)
            row_step, length = _TWO.unpack_from(raw, begin)
            data = memoryview(raw)[begin + 8 : begin + 8 + length]
            return _detections(frame, sec * _NS + nanosec, width, row_step, data)
    except (struct.error, UnicodeDecodeError):
        pass  # the other reader tells what is wrong
    return _foreign_detections(raw)


def _foreign_detections(raw: bytes) -> CameraDetections:
    """A cloud whose fields are laid out otherwise."""
    reader = CdrReader(raw)
    stamp_ns, frame = reader.stamp_ns(), reader.string()
    _check_optical(frame)
    height, width = reader.uint32(), reader.uint32()
    names = []
    for _ in range(reader.uint32()):
        names.append(reader.string())
        reader.align(4)
        reader.skip(5)  # offset, datatype
        reader.uint32()
    reader.uint8()
    _check_layout(frame, names, reader.uint32(), height)
    row_step = reader.uint32()
    return _detections(frame, stamp_ns, width, row_step, reader.raw(reader.uint32()))


def _field_layout() -> tuple[struct.Struct, tuple[int | bytes, ...]]:
    """Form and values of what lies between width and row step of our clouds."""
    form = "<I"
    values: list[int | bytes] = [len(_FIELDS)]
    for field in _FIELDS:
        name = field.name.encode() + b"\0"
        form += f"I{len(name)}s{-len(name) % 4}xIB3xI"
        values += [len(name), name, field.offset, field.datatype, field.count]
    return struct.Struct(form + "B3xI"), (*values, 0, _POINT_STEP)


_LAYOUT, _LAYOUT_VALUES = _field_layout()
_LAYOUT_BYTES = _LAYOUT.pack(*_LAYOUT_VALUES)


def _check_optical(frame: str) -> None:
    if not frame.endswith("_optical"):
        raise MessageError(f"detections in frame {frame!r}; needs '<camera>_optical'")


def _check_layout(frame: str, names: list[str], step: int, height: int) -> None:
    if names[:4] != ["u", "v", "radius", "score"] or step != _POINT_STEP or height != 1:
        raise MessageError(
            f"detections of {frame!r} have fields {names}, step {step}, height {height}; needs float32 u, v, radius, "
            "score, step 16, height 1"
        )


def _detections(
    frame: str, stamp_ns: int, count: int, row_step: int, data: memoryview | array.array
) -> CameraDetections:
    size = count * _POINT_STEP
    if len(data) < size:
        raise MessageError(f"detections of {frame!r}: {len(data)} bytes for {count} points of 16 bytes")
    points = np.frombuffer(data, "<f4", 4 * count)
    if not math.isfinite(np.vdot(points, points)):  # half the time of np.isfinite(points).all()
        raise MessageError(f"detections of {frame!r} with NaN or infinity; the sender must not publish them")
    points = points.astype(np.float64).reshape(count, 4)
    counter = None
    if row_step == size + _COUNTER_BYTES and len(data) == row_step:
        counter = int.from_bytes(bytes(data[size:]), "little", signed=True)
    return CameraDetections(
        camera=frame[: -len("_optical")],
        stamp_ns=stamp_ns,
        uv_px=points[:, :2],
        radius_px=points[:, 2],
        score=points[:, 3],
        counter=counter,
    )


def ball_motion_from_raw(raw: bytes) -> tuple[int, np.ndarray, np.ndarray]:
    """Stamp (ns), position (3,) and velocity (3,) of a serialized ball state (nav_msgs/Odometry).

    Raises:
        MessageError: the bytes are no such message.
    """
    reader = CdrReader(raw)
    stamp_ns = reader.stamp_ns()
    reader.string()
    reader.string()
    values = reader.doubles(46)  # pose 7 and its covariance 36, linear velocity 3
    return stamp_ns, values[:3].copy(), values[43:].copy()


def ball_position_to_msg(position: BallPosition) -> PoseWithCovarianceStamped:
    """Position in frame `table`; the orientation is the identity and says nothing."""
    message = PoseWithCovarianceStamped()
    message.header.stamp = stamp_to_msg(position.stamp_ns)
    message.header.frame_id = "table"
    point = message.pose.pose.position
    point.x, point.y, point.z = (float(value) for value in position.pos_table)
    covariance = np.zeros((6, 6))
    covariance[:3, :3] = position.cov
    message.pose.covariance = covariance.ravel()
    return message


def ball_position_to_raw(position: BallPosition) -> bytes:
    """The same message serialized, without building a ROS object."""
    values = np.zeros(43)
    values[:3] = position.pos_table
    values[6] = 1.0
    values[7:].reshape(6, 6)[:3, :3] = position.cov
    return _POSITION.fill(position.stamp_ns, values)


_POSITION = CdrTemplate().time().string("table").doubles(43)  # pose 7 and its covariance 36


def ball_position_from_msg(message: PoseWithCovarianceStamped) -> BallPosition:
    """Position of a message; names of cameras and the ambiguity flag do not travel.

    Raises:
        MessageError: frame is not `table`, or numbers are not finite.
    """
    point = message.pose.pose.position
    pos = np.array([point.x, point.y, point.z])
    return _ball_position(
        stamp_from_msg(message.header.stamp),
        message.header.frame_id,
        pos,
        np.asarray(message.pose.covariance, dtype=np.float64),
    )


def ball_position_from_raw(raw: bytes) -> BallPosition:
    """The same of a serialized PoseWithCovarianceStamped.

    Raises:
        MessageError: as `ball_position_from_msg`, or the bytes are no such message.
    """
    reader = CdrReader(raw)
    stamp_ns, frame = reader.stamp_ns(), reader.string()
    values = reader.doubles(43)
    return _ball_position(stamp_ns, frame, values[:3].copy(), values[7:])


def ball_positions_from_raw(raws: Sequence[bytes]) -> list[BallPosition]:
    """`ball_position_from_raw` of many messages, several times as fast; those that cannot be read are left out."""
    fits, (stamps, values) = _POSITION.read(raws)
    covs = values[:, 7:].reshape(-1, 6, 6)[:, :3, :3].copy()
    good = np.isfinite(values[:, :3]).all(axis=1) & np.isfinite(covs).all(axis=(1, 2))
    rows = zip(stamps.tolist(), values[:, :3].copy(), covs, good.tolist(), strict=True)
    made = (BallPosition(stamp, pos, cov) if usable else None for stamp, pos, cov, usable in rows)
    return with_others(raws, fits, made, ball_position_from_raw)


def _ball_position(stamp_ns: int, frame: str, pos: np.ndarray, covariance: np.ndarray) -> BallPosition:
    """Checks and builds; `covariance` holds the 36 values of the message."""
    if frame != "table":
        raise MessageError(f"ball position in frame {frame!r}; needs 'table'")
    cov = covariance.reshape(6, 6)[:3, :3].copy()
    if not (np.isfinite(pos).all() and np.isfinite(cov).all()):
        raise MessageError("ball position with NaN or infinity; the sender must not publish it")
    return BallPosition(stamp_ns, pos, cov)


def camera_info_to_msg(camera: CameraModel, stamp_ns: int = 0) -> CameraInfo:
    """Calibration as `sensor_msgs/CameraInfo`, model plumb_bob."""
    message = CameraInfo()
    message.header.stamp = stamp_to_msg(stamp_ns)
    message.header.frame_id = f"{camera.name}_optical"
    message.width, message.height = camera.width, camera.height
    message.distortion_model = "plumb_bob"
    message.d = [float(value) for value in camera.distortion]
    message.k = camera.matrix.ravel()
    message.r = np.eye(3).ravel()
    projection = np.zeros((3, 4))
    projection[:, :3] = camera.matrix
    message.p = projection.ravel()
    return message


def image_to_msg(image: np.ndarray, camera: str, stamp_ns: int) -> Image:
    """A mono8 or bgr8 picture; the buffer is copied once."""
    message = Image()
    message.header.stamp = stamp_to_msg(stamp_ns)
    message.header.frame_id = f"{camera}_optical"
    message.height, message.width = image.shape[:2]
    message.encoding = "mono8" if image.ndim == 2 else "bgr8"
    message.step = message.width * (1 if image.ndim == 2 else 3)
    buffer = array.array("B")
    buffer.frombytes(np.ascontiguousarray(image).data.cast("B"))
    message._data = buffer  # the public setter copies a megabyte again
    return message


def image_from_msg(message: Image) -> np.ndarray:
    """Picture of a message as mono8 (h, w) or BGR (h, w, 3), without a copy where the layout allows it.

    Raises:
        MessageError: an encoding other than mono8, 8UC1, bgr8, rgb8, or a buffer of the wrong length.
    """
    channels = {"mono8": 1, "8UC1": 1, "bgr8": 3, "8UC3": 3, "rgb8": 3}.get(message.encoding)
    if channels is None:
        raise MessageError(
            f"image encoding {message.encoding!r}; needs mono8, bgr8 or rgb8. Set the camera driver to one "
            f"of them"
        )
    height, width, step = message.height, message.width, message.step
    if height == 0 or width == 0:
        raise MessageError(f"empty image of {width}×{height} px")
    if step < width * channels or len(message.data) < step * height:
        raise MessageError(
            f"image of {width}×{height} px {message.encoding} has step {step} and {len(message.data)} bytes"
        )
    rows = np.frombuffer(message.data, np.uint8, count=step * height).reshape(height, step)[
        :, : width * channels
    ]
    if channels == 1:
        return rows
    image = rows.reshape(height, width, 3)
    return image[:, :, ::-1] if message.encoding == "rgb8" else image
