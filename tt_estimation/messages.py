"""Wire form of what estimation publishes; the only pure module here that imports ROS message packages."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Odometry, Path

from tt_estimation.ekf import complete_position_spin, complete_position_spins
from tt_estimation.types import BallPrediction, BallState, PredictedPath
from tt_perception.cdr import CdrReader, CdrTemplate, MessageError, with_others
from tt_perception.messages import stamp_from_msg, stamp_to_msg


def ball_state_to_msg(state: BallState) -> Odometry:
    """State as odometry: pose.covariance is that of (position, velocity), twist.covariance that of (velocity,
    spin).
    """
    message = Odometry()
    message.header.stamp = stamp_to_msg(state.stamp_ns)
    message.header.frame_id = "table"
    message.child_frame_id = "ball"
    position = message.pose.pose.position
    position.x, position.y, position.z = (float(v) for v in state.pos_table)
    message.pose.pose.orientation.w = 1.0
    linear, angular = message.twist.twist.linear, message.twist.twist.angular
    linear.x, linear.y, linear.z = (float(v) for v in state.vel_table)
    angular.x, angular.y, angular.z = (float(v) for v in state.spin_table)
    message.pose.covariance = np.ascontiguousarray(state.cov[:6, :6]).ravel()
    message.twist.covariance = np.ascontiguousarray(state.cov[3:, 3:]).ravel()
    return message


def ball_state_to_raw(state: BallState) -> bytes:
    """The same message serialized, without building a ROS object."""
    values = np.zeros(85)
    values[:3] = state.pos_table
    values[6] = 1.0
    values[7:43].reshape(6, 6)[:] = state.cov[:6, :6]
    values[43:46], values[46:49] = state.vel_table, state.spin_table
    values[49:].reshape(6, 6)[:] = state.cov[3:, 3:]
    return _STATE.fill(state.stamp_ns, values)


# Pose 7 and its covariance 36, twist 6 and its covariance 36.
_STATE = CdrTemplate().time().string("table").string("ball").doubles(85)


def ball_state_from_msg(message: Odometry) -> BallState:
    """State of an odometry message; the position-spin covariance is completed as `BallState` says.

    Raises:
        MessageError: another frame than `table`, numbers that are not finite, or a singular velocity
            covariance.
    """
    p, v, w = message.pose.pose.position, message.twist.twist.linear, message.twist.twist.angular
    return _ball_state(
        stamp_from_msg(message.header.stamp),
        message.header.frame_id,
        np.array([p.x, p.y, p.z, v.x, v.y, v.z, w.x, w.y, w.z]),
        np.asarray(message.pose.covariance),
        np.asarray(message.twist.covariance),
    )


def ball_state_from_raw(raw: bytes) -> BallState:
    """The same of a serialized Odometry, without building a ROS object.

    Raises:
        MessageError: as `ball_state_from_msg`, or the bytes are no such message.
    """
    reader = CdrReader(raw)
    stamp_ns, frame = reader.stamp_ns(), reader.string()
    reader.string()
    values = reader.doubles(85)  # as in _STATE
    numbers = np.concatenate((values[:3], values[43:49]))
    return _ball_state(stamp_ns, frame, numbers, values[7:43], values[49:])


def ball_states_from_raw(raws: Sequence[bytes]) -> list[BallState]:
    """`ball_state_from_raw` of many messages, several times as fast; those that cannot be read are left out."""
    fits, (stamps, values) = _STATE.read(raws)
    covs = np.full((len(values), 9, 9), np.nan)
    covs[:, :6, :6] = values[:, 7:43].reshape(-1, 6, 6)
    covs[:, 3:, 3:] = values[:, 49:].reshape(-1, 6, 6)
    complete_position_spins(covs)
    good = np.isfinite(np.delete(values, slice(3, 7), axis=1)).all(axis=1) & np.isfinite(covs[:, 0, 6])
    numbers = np.concatenate((values[:, :3], values[:, 43:49]), axis=1)
    rows = zip(stamps.tolist(), numbers, covs, good.tolist(), strict=True)
    made = (BallState(stamp, x[:3], x[3:6], x[6:], cov) if usable else None for stamp, x, cov, usable in rows)
    return with_others(raws, fits, made, ball_state_from_raw)


def _ball_state(
    stamp_ns: int, frame: str, numbers: np.ndarray, pose_cov: np.ndarray, twist_cov: np.ndarray
) -> BallState:
    """Checks and builds; the covariances are the 36 values of the message each."""
    if frame != "table":
        raise MessageError(f"ball state in frame {frame!r}; needs 'table'")
    if not (np.isfinite(numbers).all() and np.isfinite(pose_cov).all() and np.isfinite(twist_cov).all()):
        raise MessageError("ball state with NaN or infinity; the sender must not publish it")
    cov = np.full((9, 9), np.nan)
    cov[:6, :6] = pose_cov.reshape(6, 6)
    cov[3:, 3:] = twist_cov.reshape(6, 6)
    complete_position_spin(cov)
    if not np.isfinite(cov[0, 6]):
        raise MessageError("ball state whose velocity covariance is singular; send a positive definite one")
    return BallState(stamp_ns, numbers[:3], numbers[3:6], numbers[6:], cov)


def prediction_to_msg(prediction: BallPrediction) -> Path:
    """Predicted path, a stamp per pose; the header holds the capture stamp it derives from."""
    message = Path()
    message.header.stamp = stamp_to_msg(prediction.stamp_ns)
    message.header.frame_id = "table"
    poses = []
    for time_s, state in zip(prediction.times_s, prediction.states):
        pose = PoseStamped()
        pose.header.stamp = stamp_to_msg(prediction.stamp_ns + round(time_s * 1e9))
        pose.header.frame_id = "table"
        pose.pose.position.x = float(state[0])
        pose.pose.position.y = float(state[1])
        pose.pose.position.z = float(state[2])
        pose.pose.orientation.w = 1.0
        poses.append(pose)
    message.poses = poses
    return message


def prediction_to_raw(prediction: BallPrediction) -> bytes:
    """The same message serialized, without building ROS objects."""
    values: list[int | np.ndarray] = [prediction.stamp_ns]
    poses = np.zeros((len(prediction.times_s), 7))
    poses[:, :3] = prediction.states[:, :3]
    poses[:, 6] = 1.0
    for time_s, pose in zip(prediction.times_s.tolist(), poses):
        values += [prediction.stamp_ns + round(time_s * 1e9), pose]
    return _path_template(len(poses)).fill(*values)


@functools.lru_cache(maxsize=512)
def _path_template(count: int) -> CdrTemplate:
    template = CdrTemplate().time().string("table").count(count)
    for _ in range(count):
        template.time().string("table").doubles(7)
    return template


def prediction_from_msg(message: Path) -> PredictedPath:
    """Times and positions of a predicted path; velocities, spin and covariance do not travel.

    Raises:
        MessageError: another frame than `table`, or numbers that are not finite.
    """
    if message.header.frame_id != "table":
        raise MessageError(f"ball prediction in frame {message.header.frame_id!r}; needs 'table'")
    stamp = stamp_from_msg(message.header.stamp)
    times = np.array([(stamp_from_msg(p.header.stamp) - stamp) * 1e-9 for p in message.poses])
    points = np.array([[p.pose.position.x, p.pose.position.y, p.pose.position.z] for p in message.poses])
    if not np.isfinite(points).all():
        raise MessageError("ball prediction with NaN or infinity; the sender must not publish it")
    return PredictedPath(stamp, times, points.reshape(-1, 3))
