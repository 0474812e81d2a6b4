"""What travels on the wire comes back, and foreign messages are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from nav_msgs.msg import Odometry
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import PointCloud2

from tt_perception.camera import default_sim_cameras
from tt_perception.messages import (
    MessageError,
    ball_motion_from_raw,
    ball_position_from_msg,
    ball_position_to_msg,
    camera_info_to_msg,
    detections_from_msg,
    detections_from_raw,
    detections_to_msg,
    detections_to_raw,
    image_from_msg,
    image_to_msg,
    stamp_from_msg,
    stamp_to_msg,
)
from tt_perception.rays import ray_as_position
from tt_perception.types import BallPosition, BallRay, CameraDetections

STAMP = 1_796_163_207_313_756_807


def cloud(count=3, counter=None):
    rng = np.random.default_rng(0)
    return CameraDetections(
        "cam2",
        STAMP,
        rng.uniform(0, 800, (count, 2)),
        rng.uniform(2, 9, count),
        rng.uniform(0, 1, count),
        counter,
    )


@pytest.mark.parametrize("stamp", [0, 1, 999_999_999, STAMP])
def test_stamps_keep_every_nanosecond(stamp):
    assert stamp_from_msg(stamp_to_msg(stamp)) == stamp


@pytest.mark.parametrize("counter", [None, 0, 7, 2**40])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_detections_come_back(count, counter):
    sent = cloud(count, counter)
    message = detections_to_msg(sent)
    assert [field.name for field in message.fields] == ["u", "v", "radius", "score"]
    assert message.header.frame_id == "cam2_optical" and message.height == 1 and message.width == count
    back = detections_from_msg(message)
    assert (back.camera, back.stamp_ns, back.counter) == ("cam2", STAMP, counter)
    assert np.allclose(back.uv_px, sent.uv_px, atol=1e-4) and back.uv_px.shape == (count, 2)
    assert np.allclose(back.score, sent.score, atol=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bits", ["000080ff", "0100a07f", "0000c07f"])  # -inf, a signalling NaN, NaN
def test_detections_that_are_no_numbers_are_refused(bits):
    raw = detections_to_raw(cloud(2, None))
    at = raw.rindex(b"\1") - 16
    with pytest.raises(MessageError, match="NaN or infinity"):
        detections_from_raw(raw[:at] + bytes.fromhex(bits) + raw[at + 4 :])


@pytest.mark.parametrize("counter", [None, 7])
@pytest.mark.parametrize(("camera", "count"), [("c", 0), ("cam2", 1), ("left12", 3)])
def test_detections_are_serialized_as_ros_does(camera, count, counter):
    sent = replace(cloud(count, counter), camera=camera)
    raw = detections_to_raw(sent)
    assert deserialize_message(raw, PointCloud2) == detections_to_msg(sent)
    back = detections_from_raw(raw)
    assert (back.camera, back.stamp_ns, back.counter) == (camera, STAMP, counter)


def test_motion_of_a_serialized_ball_state():
    state = Odometry(child_frame_id="ball")
    state.header.stamp, state.header.frame_id = stamp_to_msg(STAMP), "table"
    point, speed = state.pose.pose.position, state.twist.twist.linear
    point.x, point.y, point.z, speed.x, speed.y, speed.z = 0.1, 0.2, 0.3, -1.0, -7.0, 2.0
    stamp_ns, pos, vel = ball_motion_from_raw(serialize_message(state))
    assert stamp_ns == STAMP
    assert pos.tolist() == [0.1, 0.2, 0.3] and vel.tolist() == [-1.0, -7.0, 2.0]
    with pytest.raises(MessageError, match="ends too early"):
        ball_motion_from_raw(serialize_message(state)[:200])


def test_foreign_clouds_are_refused():
    message = detections_to_msg(cloud())
    message.header.frame_id = "lidar"
    with pytest.raises(MessageError, match="'lidar'"):
        detections_from_msg(message)
    message = detections_to_msg(cloud())
    message.width = 50
    with pytest.raises(MessageError, match="48 bytes for 50 points"):
        detections_from_msg(message)
    message = detections_to_msg(cloud())
    message.point_step = 12
    with pytest.raises(MessageError, match="step 12"):
        detections_from_msg(message)


def test_positions_come_back():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 3))
    sent = BallPosition(STAMP, rng.normal(size=3), root @ root.T * 1e-6)
    back = ball_position_from_msg(ball_position_to_msg(sent))
    assert back.stamp_ns == STAMP
    assert np.array_equal(back.pos_table, sent.pos_table) and np.array_equal(back.cov, sent.cov)


def test_positions_that_are_none_are_refused():
    message = ball_position_to_msg(BallPosition(STAMP, np.array([np.nan, 0, 0]), np.eye(3)))
    with pytest.raises(MessageError, match="NaN"):
        ball_position_from_msg(message)
    message.header.frame_id = "map"
    with pytest.raises(MessageError, match="'map'"):
        ball_position_from_msg(message)


def test_a_ray_is_uncertain_along_the_line_of_sight_only():
    camera = default_sim_cameras()[0]
    point = np.array([0.2, -0.4, 0.3])
    ray = BallRay(
        STAMP, camera.name, camera.undistort(camera.project(point)), np.eye(2) * 0.09, camera.projection
    )
    back = ball_position_from_msg(ball_position_to_msg(ray_as_position(ray, camera)))
    values, vectors = np.linalg.eigh(back.cov)
    sight = (point - camera.centre_table) / np.linalg.norm(point - camera.centre_table)
    assert abs(vectors[:, 2] @ sight) > 0.999999
    assert np.sqrt(values[2]) > 1.0 and np.sqrt(values[1]) < 0.004
    off = back.pos_table - point
    assert np.linalg.norm(off - (off @ sight) * sight) < 1e-6


@pytest.mark.parametrize("shape", [(48, 64), (48, 64, 3)])
def test_images_come_back(shape):
    image = np.random.default_rng(2).integers(0, 255, shape).astype(np.uint8)
    message = image_to_msg(image, "cam0", STAMP)
    assert np.array_equal(image_from_msg(message), image)
    if len(shape) == 3:
        message.encoding = "rgb8"
        assert np.array_equal(image_from_msg(message), image[:, :, ::-1])


def test_images_of_padded_rows_and_wrong_kinds():
    message = image_to_msg(np.full((4, 6), 9, np.uint8), "cam0", STAMP)
    message.encoding = "bayer_rggb8"
    with pytest.raises(MessageError, match="bayer_rggb8.*needs mono8, bgr8 or rgb8"):
        image_from_msg(message)
    message.encoding = "mono8"
    message.height = 9
    with pytest.raises(MessageError, match="24 bytes"):
        image_from_msg(message)
    message.height = 0
    with pytest.raises(MessageError, match="empty image"):
        image_from_msg(message)


def test_camera_info_is_what_image_proc_expects():
    camera = default_sim_cameras()[1]
    message = camera_info_to_msg(camera, STAMP)
    assert (message.width, message.height, message.distortion_model) == (1280, 800, "plumb_bob")
    assert np.allclose(np.reshape(message.k, (3, 3)), camera.matrix) and len(message.d) == 5
    assert np.allclose(np.reshape(message.p, (3, 4))[:, :3], camera.matrix)
