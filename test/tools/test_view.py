"""The browser viewer: real clicks in a headless browser, and what must not be possible without permission."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
from cdp import Browser, chromium

from tt_bringup.bag_view import BagView
from tt_bringup.bags import open_bag
from tt_bringup.cli import _guarded
from tt_bringup.rally import load_rally
from tt_bringup.viewer import Viewer
from tt_planning.robot import load_robot

needs_browser = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")


def _start(processes: Any, *words: str) -> str:
    process = processes.python("-m", "tt_bringup.cli", "view", *words, "--port", "0", "--json")
    return json.loads(process.stdout.readline())["url"]


@pytest.mark.slow
@needs_browser
def test_recording_plays_in_the_browser(processes: Any, tmp_path: Path) -> None:
    url = _start(processes, str(golden.BAG))
    with Browser(tmp_path) as browser:
        browser.open(url)
        browser.wait_for_text("recording")
        browser.wait_for_text("ball 1")  # it begins where the first ball does
        before = _time_shown(browser)
        browser.click("play")
        browser.wait_for_text("pause")
        browser._until(lambda: _time_shown(browser) > before + 0.1, "the timeline to move")
        browser.click("pause")
        browser.wait_for_text("play")
        still = _time_shown(browser)
        picture = browser.screenshot(tmp_path / "view.png")
        assert _time_shown(browser) == still
    import cv2

    image = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR)
    blue, green, red = (image[:, :850, i].astype(int) for i in range(3))
    table = (blue > red + 40) & (blue > green + 15)
    assert table.mean() > 0.01, "the table is not in the picture"


def _time_shown(browser: Browser) -> float:
    text = browser.evaluate("document.body.innerText")
    return next(
        float(line.split(" s")[0]) for line in text.splitlines() if " s · ball" in line or line.endswith(" s")
    )


FAKE_MOTORS = """
import rclpy, sys
from std_srvs.srv import Trigger
rclpy.init(args=[])
node = rclpy.create_node("fake_motors", namespace="tt")
def answer(name):
    def serve(request, response):
        print(name, flush=True)
        response.success, response.message = True, f"{name} done"
        return response
    return serve
kept = [node.create_service(Trigger, f"motors/{n}", answer(n)) for n in ("stop", "enable", "home", "disable")]
rclpy.spin(node)
"""


@pytest.mark.slow
@needs_browser
def test_buttons_reach_the_robot_and_motion_needs_permission(processes: Any, tmp_path: Path) -> None:
    motors = processes.python("-c", FAKE_MOTORS)
    careful, allowed = _start(processes), _start(processes, "--allow-motion")
    with Browser(tmp_path) as browser:
        browser.open(careful)
        browser.wait_for_text("E-STOP")
        assert not any(browser.has_button(label) for label in ("start", "home", "hold to move"))
        browser.click("E-STOP")
        browser.wait_for_text("stop done")
        assert motors.stdout.readline().strip() == "stop"
        browser.open(allowed)
        browser.wait_for_text("hold to move")
        browser.click("start")
        browser.wait_for_text("enable done")
        assert motors.stdout.readline().strip() == "enable"
        browser.click("clear fault")
        browser.wait_for_text("is not offered")


FAKE_ROBOT = """
import json, rclpy
import numpy as np
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory
from tt_planning.messages import joint_trajectory_from_msg
from tt_planning.robot import load_robot
from tt_planning.trajectory import sample
from tt_planning.warm_up import warm_up_generator
robot = load_robot("gantry4")
warm_up_generator(robot)  # loading the kernels in the first motion takes longer than the motion
rclpy.init(args=[])
node = rclpy.create_node("fake_robot", namespace="tt")
state = {"q": robot.ready, "motion": None}
out = node.create_publisher(JointState, "/joint_states", 5)
def now():
    return node.get_clock().now().nanoseconds
def tick():
    if state["motion"] is not None:
        state["q"] = sample(state["motion"], now())[0]
    out.publish(JointState(name=list(robot.joint_names), position=state["q"].tolist()))
def follow(message):
    motion = joint_trajectory_from_msg(message)
    state["motion"] = motion
    begin, _, _ = sample(motion, now())
    ends = now() > motion.capture_stamp_ns + motion.times_s[-1] * 1e9
    print(json.dumps({"at": begin.tolist(), "end": motion.pos[-1].tolist(),
                      "still": bool(np.all(motion.vel[-1] == 0.0)), "over": bool(ends)}), flush=True)
node.create_timer(0.02, tick)
node.create_subscription(JointTrajectory, "joint_trajectory", follow, 10)
rclpy.spin(node)
"""


@pytest.mark.slow
@needs_browser
def test_joints_move_only_while_the_button_is_held(processes: Any, tmp_path: Path) -> None:
    robot = processes.python("-c", FAKE_ROBOT)
    url = _start(processes, "--allow-motion")
    with Browser(tmp_path) as browser:
        browser.open(url)
        browser.wait_for_text("hold to move")
        browser.wait_for_text("running")  # joint states have arrived
        browser.click_slider(0, 0.95)  # x: far to the right, so that the way takes seconds
        browser.wait_for_text("x to 0.")  # the value has arrived
        browser.press("hold to move")
        browser.wait_for_text("moving")
        first = json.loads(robot.stdout.readline())
        browser.release()
        second = json.loads(robot.stdout.readline())
        browser.press("hold to move")
        third = json.loads(robot.stdout.readline())
        browser.release()
        fourth = json.loads(robot.stdout.readline())
    goal = first["end"][0]
    assert goal > 0.7 and first["still"]
    # Released: it ends where it is, long before the goal; held again it goes on from there.
    assert second["still"] and second["end"][0] < goal - 0.02
    assert abs(third["at"][0] - second["end"][0]) < 0.02 and third["end"][0] == pytest.approx(goal)
    assert fourth["still"] and fourth["end"][0] > third["at"][0] - 1e-6


def test_only_this_computer_can_connect(processes: Any) -> None:
    url = _start(processes, str(golden.BAG))
    port = int(url.rsplit(":", 1)[1])
    listening = Path("/proc/net/tcp").read_text()
    rows = [line.split() for line in listening.splitlines()[1:]]
    bound = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    assert bound == [f"0100007F:{port:04X}"]


@pytest.mark.slow
@needs_browser
def test_the_first_picture_is_timed(processes: Any, tmp_path: Path) -> None:
    words = ("-m", "tt_bringup.cli", "view", str(golden.BAG), "--port", "0", "--timing", "--json")
    process = processes.python(*words)
    with Browser(tmp_path) as browser:
        browser.open(json.loads(process.stdout.readline())["url"])
        assert json.loads(process.stdout.readline())["first_picture_s"] > 0.2


def test_port_in_use_is_one_line(capsys: pytest.CaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert _guarded(["view", str(golden.BAG), "--port", str(port)]) == 2
    err = capsys.readouterr().err.strip()
    assert f"port {port}" in err and "--port" in err and len(err.splitlines()) == 1


def test_the_list_of_balls_follows_the_time_and_does_not_lead_it() -> None:
    robot = load_robot("gantry4")
    viewer = Viewer(robot.urdf, (), (0.15, 0.01, 0.15), port=0)
    try:
        timeline = viewer.timeline(10.0, [("1: returned", 1.0), ("2: missed", 4.0)], lambda _: None)
        timeline.go(2.5)
        timeline.show_ball(2)
        assert timeline._choice.value == "2: missed"
        assert timeline.time_s == 2.5
    finally:
        viewer.close()


def test_view_of_a_moment_holds_only_what_had_arrived() -> None:
    rally = load_rally(open_bag(golden.BAG))
    views = BagView(rally)
    ball = rally.balls()[0]
    early, middle = views.at(ball.begin - 0.05), views.at(ball.begin + 0.5)
    assert early.ball is None and early.path is None and early.racket_pos is None
    assert middle.ball is not None and middle.racket_pos is not None and len(middle.uv) == 4
    newest = rally.states.arrived[rally.states.arrived <= middle.time_s]
    assert np.array_equal(middle.ball[0], rally.states.values[len(newest) - 1, :3])
    assert set(middle.joints or ()) == {"x", "z", "yaw", "pitch"}


def test_chart_shows_the_line_and_leaves_out_what_is_not_finite() -> None:
    from tt_bringup.viewer import chart_image

    rising = chart_image(np.array([0.0, 1.0, 2.0, np.nan]), np.array([0.0, 1.0, 2.0, 5.0]), "ms", "cm")
    rows, columns = np.nonzero((rising[:, :, 0] > 200) & (rising[:, :, 2] < 100))
    assert len(rows) > 50 and np.corrcoef(rows, columns)[0, 1] < -0.95
    assert chart_image(np.empty(0), np.empty(0), "ms", "cm").shape == rising.shape
