"""The camera node on real topics: from pictures of a foreign driver to detections."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, PointCloud2

from tt_perception.backends.base import CameraSetupError
from tt_perception.camera import CameraError, default_sim_cameras, save_cameras
from tt_perception.camera_node import CameraNode
from tt_perception.messages import detections_from_msg, image_to_msg
from tt_sim.render import CameraRenderer, MovingBall, RenderConfig

SIZE = (320, 200)
CAMERA = default_sim_cameras(*SIZE)[0]


@pytest.fixture
def ros():
    rclpy.init()
    yield
    rclpy.try_shutdown()


@pytest.fixture
def rig(tmp_path):
    path = tmp_path / "rig.yaml"
    save_cameras(path, default_sim_cameras(*SIZE))
    return str(path)


def make(**values):
    return CameraNode(parameter_overrides=[Parameter(name, value=value) for name, value in values.items()])


class Spinner:
    """Spins nodes in a thread."""

    def __init__(self, *nodes):
        self.nodes = nodes
        self.executor = SingleThreadedExecutor()
        for node in nodes:
            self.executor.add_node(node)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stop.is_set():
            self.executor.spin_once(timeout_sec=0.05)

    def end(self):
        self.stop.set()
        self.thread.join()
        for node in self.nodes:
            if hasattr(node, "cleanup"):
                node.cleanup()
            node.destroy_node()


def test_pictures_of_a_driver_become_detections(ros, rig, wait_for):
    node = make(camera="cam0", cameras=rig, backend="image", device="/driver/image", region=False)
    driver = rclpy.create_node("driver")
    seen = []
    driver.create_subscription(
        PointCloud2,
        "/tt/cam0/detections",
        lambda m: seen.append(detections_from_msg(m)),
        qos_profile_sensor_data,
    )
    publisher = driver.create_publisher(Image, "/driver/image", qos_profile_sensor_data)
    spinner = Spinner(node, driver)
    renderer = CameraRenderer(CAMERA, RenderConfig(samples=1, noise_frames=3))
    ball = MovingBall(np.array([0.1, -0.5, 0.4]), np.zeros(3))
    try:
        wait_for(
            lambda: (
                publisher.get_subscription_count() == 1
                and driver.count_publishers("/tt/cam0/detections") == 1
            )
        )
        wanted = []

        def found():
            stamp = time.time_ns()
            learning = node._detector.stats.images < 12
            publisher.publish(image_to_msg(renderer.render(0.1, [] if learning else [ball]), "cam0", stamp))
            wanted.append(stamp)
            time.sleep(0.02)
            return any(len(item.uv_px) for item in seen)

        wait_for(found, 30.0)
        hit = next(item for item in seen if len(item.uv_px))
        assert hit.stamp_ns in wanted
        assert np.linalg.norm(hit.uv_px[0] - CAMERA.project(ball.pos_table)) < 0.6

        # Wrong encodings are counted and said, and the node goes on.
        bad = image_to_msg(renderer.render(0.1), "cam0", time.time_ns())
        bad.encoding = "bayer_rggb8"
        before = len(seen)

        def refused():
            publisher.publish(bad)
            time.sleep(0.02)
            return node._counts.get("bad_image", 0) > 0

        wait_for(refused)
        wait_for(lambda: found() and len(seen) > before)

        # So are stamps that are no capture times: the arrival counts instead.
        old = image_to_msg(renderer.render(0.1, [ball]), "cam0", 5)

        def replaced():
            publisher.publish(old)
            time.sleep(0.02)
            return (
                node._counts.get("stamp_not_plausible", 0) > 0
                and abs(seen[-1].stamp_ns - time.time_ns()) < 10**9
            )

        wait_for(replaced)
    finally:
        spinner.end()


def test_images_of_another_size_end_in_a_clear_error(ros, rig, wait_for):
    node = make(camera="cam0", cameras=rig, backend="image", device="/driver/image")
    spinner = Spinner(node)
    try:
        node._on_image(image_to_msg(np.zeros((48, 64), np.uint8), "cam0", time.time_ns()))
        wait_for(lambda: "device" in node._health)
        level, text, _ = node._health["device"]
        assert level == "error"
        assert "64×48 px, but the calibration is for 320×200 px" in text
    finally:
        spinner.end()


def test_nodes_that_cannot_start_say_why(ros, rig, tmp_path):
    with pytest.raises(CameraError, match="no camera 'cam9'; it has cam0, cam1, cam2, cam3"):
        make(camera="cam9", cameras=rig)
    with pytest.raises(CameraError, match="no such file"):
        make(camera="cam0", cameras=str(tmp_path / "none.yaml"))
    with pytest.raises(CameraSetupError, match="topic to subscribe to"):
        make(camera="cam0", cameras=rig, backend="image")
    known = [replace(camera, serial=f"4{index}") for index, camera in enumerate(default_sim_cameras(*SIZE))]
    save_cameras(tmp_path / "known.yaml", known)
    with pytest.raises(CameraSetupError, match="calibration is that of device 40; are two cameras exchanged"):
        make(camera="cam0", cameras=str(tmp_path / "known.yaml"), backend="basler", device="41")
    with pytest.raises(CameraSetupError, match="does not fit"):
        make(camera="cam0", cameras=rig, fps=200.0, exposure=0.01)


def test_the_eval_command_prints_one_json_object(capsys):
    from tt_bringup.cli import run_verb

    code = run_verb(
        "eval perception",
        ["--balls", "1", "--size", "320x200", "--fps", "30", "--points", "100", "--plain", "--json"],
    )
    assert code == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"rendered", "outliers", "timing_us"}
    assert {"median_m", "p95_m", "max_m", "detected_share", "pixel_median", "covariance_within_95"} <= set(
        answer["rendered"]
    )
    assert {"cameras", "share", "error_m", "failures"} <= set(answer["outliers"][0])
    assert {"detect_full", "detect_roi", "triangulate"} <= set(answer["timing_us"])
    assert run_verb("eval perception", ["--size", "huge"]) == 2
