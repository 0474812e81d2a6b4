"""Wire form of what perception publishes; the only pure module here that imports ROS message packages.

Detections travel as a PointCloud2 of float32 fields u, v, radius, score and height 1. The trigger counter of
the
camera, when it has one, rides in the row padding: `row_step` is then 8 bytes longer than the points, and
those bytes hold the counter as a little-endian int64. Readers that do not know it see an ordinary cloud.

A ray (one camera's view) travels as a position whose covariance is long along the line of sight (`rays`).
"""

from __future__ import annotations

import array

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseWithCovarianceStamped
from sensor_msgs.msg import CameraInfo, Image, PointCloud2, PointField

from tt_perception.camera import CameraModel
from tt_perception.errors import TTError
from tt_perception.types import BallPosition, CameraDetections

_POINT_STEP = 16
_COUNTER_BYTES = 8
_NS = 1_000_000_000
_FIELDS = [
    PointField(name=name, offset=4 * index, datatype=PointField.FLOAT32, count=1)
    for index, name in enumerate(("u", "v", "radius", "score"))
]


class MessageError(TTError):
    """A message of the right type whose content does not follow the contract."""


def stamp_to_msg(stamp_ns: int) -> Time:
    """ROS time of integer nanoseconds."""
    sec, nanosec = divmod(int(stamp_ns), _NS)
    return Time(sec=sec, nanosec=nanosec)


def stamp_from_msg(stamp: Time) -> int:
    """Integer nanoseconds of a ROS time."""
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


def detections_from_msg(message: PointCloud2) -> CameraDetections:
    """Detections of a point cloud.

    Raises:
        MessageError: another frame name, layout or length than `detections_to_msg` writes.
    """
    frame = message.header.frame_id
    if not frame.endswith("_optical"):
        raise MessageError(f"detections in frame {frame!r}; needs '<camera>_optical'")
    names = [field.name for field in message.fields]
    if names[:4] != ["u", "v", "radius", "score"] or message.point_step != _POINT_STEP or message.height != 1:
        raise MessageError(
            f"detections of {frame!r} have fields {names}, step {message.point_step}, height "
            f"{message.height}; "
            "needs float32 u, v, radius, score, step 16, height 1"
        )
    count = message.width
    size = count * _POINT_STEP
    if len(message.data) < size:
        raise MessageError(
            f"detections of {frame!r}: {len(message.data)} bytes for {count} points of 16 bytes"
        )
    points = np.frombuffer(message.data, dtype="<f4", count=4 * count).reshape(count, 4).astype(np.float64)
    counter = None
    if message.row_step == size + _COUNTER_BYTES and len(message.data) == message.row_step:
        counter = int.from_bytes(bytes(message.data[size:]), "little", signed=True)
    return CameraDetections(
        camera=frame[: -len("_optical")],
        stamp_ns=stamp_from_msg(message.header.stamp),
        uv_px=points[:, :2],
        radius_px=points[:, 2],
        score=points[:, 3],
        counter=counter,
    )


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


def ball_position_from_msg(message: PoseWithCovarianceStamped) -> BallPosition:
    """Position of a message; names of cameras and the ambiguity flag do not travel.

    Raises:
        MessageError: frame is not `table`, or numbers are not finite.
    """
    if message.header.frame_id != "table":
        raise MessageError(f"ball position in frame {message.header.frame_id!r}; needs 'table'")
    point = message.pose.pose.position
    pos = np.array([point.x, point.y, point.z])
    cov = np.array(message.pose.covariance, dtype=np.float64).reshape(6, 6)[:3, :3].copy()
    if not (np.isfinite(pos).all() and np.isfinite(cov).all()):
        raise MessageError("ball position with NaN or infinity; the sender must not publish it")
    return BallPosition(stamp_from_msg(message.header.stamp), pos, cov)


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
