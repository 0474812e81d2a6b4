"""The golden rally: one ball as four cameras saw it, with faults to inject and what must come of each.

`python test/tools/golden.py` writes bag and expectations again; do that when a stage was improved on purpose,
and look at the differences that git shows.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.rosbag2 import CompressionMode, StoragePlugin, Writer
from rosbags.rosbag2.enums import CompressionFormat
from rosbags.typesys import Stores, get_typestore

from tt_bringup import replay
from tt_bringup.bags import Bag, open_bag
from tt_estimation.ball_models import NOMINAL
from tt_perception.camera import default_sim_cameras
from tt_perception.types import CameraDetections
from tt_planning.pipeline import Event, Joints, Pipeline

FOLDER = Path(__file__).parent / "data"
BAG = FOLDER / "golden_rally"
EXPECTED = FOLDER / "golden_expected.json"
START_NS = 1_800_000_000_000_000_000
FPS, DELAY_S, JOINT_HZ, PREDICTION_HZ, SIGMA_M = 120.0, 0.03, 20.0, 20.0, 0.003
BALL = np.array([0.15, 1.25, 0.28, -0.25, -5.6, 1.1, 45.0, 8.0, 12.0])  # a topspin drive of average speed
FLIGHT_S, PAUSE_S = 0.95, 0.15
NET_SHADOW_Y = 0.18  # a net with people behind it hides the ball here

Events = list[Event]


# The rally


def ball_path(times_s: np.ndarray) -> np.ndarray:
    """Position, velocity and spin (n, 9) at ascending times after the hit, by the stack's own flight and
    bounce.
    """
    from tt_sim.ball import Ball

    ball = Ball(NOMINAL)
    ball.reset(BALL)
    points, now = [], 0.0
    for time_s in times_s:
        while now < time_s - 1e-12:
            step = min(0.001, time_s - now)
            ball.advance(step)
            now += step
        points.append(ball.state.copy())
    return np.array(points)


def make_inputs() -> list[tuple[str, int, Any]]:
    """Topic, arrival time and message of everything the hardware said."""
    from nav_msgs.msg import Odometry
    from sensor_msgs.msg import JointState

    from tt_perception.messages import detections_to_msg, stamp_to_msg
    from tt_planning.robot import load_robot
    from tt_sim.cameras import CameraFaults, SimCameras, pixel_sigma_for

    robot, cameras = load_robot("gantry4"), default_sim_cameras()
    eyes = SimCameras(cameras, CameraFaults(pixel_sigma_for(cameras, SIGMA_M)), seed=7)
    messages: list[tuple[str, int, Any]] = []
    count = int((PAUSE_S + FLIGHT_S) * FPS)
    times = np.arange(count) / FPS
    flying = times >= PAUSE_S
    path = np.full((count, 9), np.nan)
    path[flying] = ball_path(times[flying] - PAUSE_S)
    for k, time_s in enumerate(times):
        stamp = START_NS + round(time_s * 1e9)
        for number, seen in enumerate(eyes.observe(stamp, path[k, :3] if flying[k] else None)):
            arrival = stamp + round((DELAY_S + 0.0002 * number) * 1e9)
            messages.append((f"/tt/{seen.camera}/detections", arrival, detections_to_msg(seen)))
        if flying[k]:
            truth = Odometry(child_frame_id="ball")
            truth.header.frame_id, truth.header.stamp = "table", stamp_to_msg(stamp)
            at, speed, spin = truth.pose.pose.position, truth.twist.twist.linear, truth.twist.twist.angular
            at.x, at.y, at.z, speed.x, speed.y, speed.z, spin.x, spin.y, spin.z = path[k].tolist()
            messages.append(("/tt/sim/ball_truth", stamp, truth))
    for time_s in np.arange(0.0, times[-1], 1.0 / JOINT_HZ):
        stamp = START_NS + round(time_s * 1e9)
        message = JointState(name=list(robot.joint_names), position=robot.ready.tolist())
        message.header.stamp = stamp_to_msg(stamp)
        messages.append(("/joint_states", stamp + 400_000, message))
    return sorted(messages, key=lambda item: item[1])


def write_bag(path: Path) -> None:
    """Writes inputs and the outputs they lead to, compressed."""
    from rclpy.serialization import serialize_message

    from tt_estimation.messages import ball_state_to_msg, prediction_to_msg
    from tt_perception.messages import ball_position_to_msg
    from tt_planning.messages import hit_plan_to_msg, joint_trajectory_to_msg

    kinds = {
        "/joint_states": "sensor_msgs/msg/JointState",
        "/tt/ball/position": "geometry_msgs/msg/PoseWithCovarianceStamped",
        "/tt/ball/state": "nav_msgs/msg/Odometry",
        "/tt/hit_plan": "trajectory_msgs/msg/MultiDOFJointTrajectory",
        "/tt/joint_trajectory": "trajectory_msgs/msg/JointTrajectory",
        "/tt/ball/prediction": "nav_msgs/msg/Path",
        "/tt/sim/ball_truth": "nav_msgs/msg/Odometry",
    }
    inputs = make_inputs()
    rows = [(topic, arrival, bytes(serialize_message(message))) for topic, arrival, message in inputs]
    shutil.rmtree(path, ignore_errors=True)
    _write(path, kinds, rows)
    bag = open_bag(path)
    settings = replay.settings_from_bag(bag)
    pipeline = new_pipeline(replace(settings, config=replace(settings.config, predictions=True)))
    predicted_ns = 0
    for event in replay.events(bag, settings):
        out = pipeline.step(event)
        if out.predictions and event.now_ns - predicted_ns >= 1e9 / PREDICTION_HZ:
            predicted_ns = event.now_ns
            way = prediction_to_msg(out.predictions[-1])
            rows.append(("/tt/ball/prediction", event.now_ns, bytes(serialize_message(way))))
        made = [("/tt/ball/position", ball_position_to_msg(x)) for x in out.positions]
        made += [("/tt/ball/state", ball_state_to_msg(x)) for x in out.states]
        made += [("/tt/hit_plan", hit_plan_to_msg(x)) for x in out.plans]
        made += [("/tt/joint_trajectory", joint_trajectory_to_msg(x)) for x in out.trajectories]
        rows += [(topic, event.now_ns, bytes(serialize_message(message))) for topic, message in made]
    shutil.rmtree(path)
    _write(path, kinds, sorted(rows, key=lambda row: row[1]))


def _write(path: Path, kinds: dict[str, str], rows: list[tuple[str, int, bytes]]) -> None:
    store = get_typestore(Stores.ROS2_JAZZY)
    writer = Writer(path, version=9, storage_plugin=StoragePlugin.MCAP)
    writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with writer:
        connections = {}
        for topic, stamp_ns, raw in rows:
            if topic not in connections:
                kind = kinds.get(topic, "sensor_msgs/msg/PointCloud2")
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], stamp_ns, raw)


def new_pipeline(settings: replay.ReplaySettings) -> Pipeline:
    """A fresh pipeline."""
    return Pipeline(settings.robot, settings.model, settings.cameras, settings.config)


# Faults: each takes the events of a healthy rally and spoils them


def _each_detection(
    events: Events, change: Callable[[CameraDetections, int], tuple[Any, int] | None]
) -> Events:
    out = []
    for event in events:
        if not isinstance(event.data, CameraDetections):
            out.append(event)
            continue
        changed = change(event.data, event.now_ns)
        if changed is not None:
            out.append(Event(changed[1], changed[0]))
    return sorted(out, key=lambda event: event.now_ns)


def _seconds(detections: CameraDetections) -> float:
    return (detections.stamp_ns - START_NS) * 1e-9 - PAUSE_S


def camera_dropped(events: Events) -> Events:
    """cam2 falls silent 0.3 s after the hit."""
    return _each_detection(
        events, lambda d, now: None if d.camera == "cam2" and _seconds(d) > 0.3 else (d, now)
    )


def one_late(events: Events) -> Events:
    """Pictures of cam1 arrive 15 ms later than the others."""
    return _each_detection(events, lambda d, now: (d, now + 15_000_000 if d.camera == "cam1" else now))


def stamp_jump(events: Events) -> Events:
    """The clock of cam3 is half a second ahead for 0.2 s."""

    def change(d: CameraDetections, now: int) -> tuple[Any, int]:
        wrong = d.camera == "cam3" and 0.2 < _seconds(d) < 0.4
        return (replace(d, stamp_ns=d.stamp_ns + 500_000_000) if wrong else d), now

    return _each_detection(events, change)


def phantom_ball(events: Events) -> Events:
    """A lamp looks like a ball to cam0 all the time."""

    def change(d: CameraDetections, now: int) -> tuple[Any, int]:
        if d.camera != "cam0":
            return d, now
        uv = np.vstack((d.uv_px, (640.0, 420.0)))
        return replace(d, uv_px=uv, radius_px=np.r_[d.radius_px, 6.0], score=np.r_[d.score, 0.9]), now

    return _each_detection(events, change)


def occlusion_at_net(events: Events) -> Events:
    """Nobody sees the ball while it passes the net."""
    times = np.arange(0.0, FLIGHT_S, 0.001)
    hidden = times[np.abs(ball_path(times)[:, 1]) < NET_SHADOW_Y]

    def change(d: CameraDetections, now: int) -> tuple[Any, int]:
        if hidden[0] <= _seconds(d) <= hidden[-1]:
            return replace(d, uv_px=np.empty((0, 2)), radius_px=np.empty(0), score=np.empty(0)), now
        return d, now

    return _each_detection(events, change)


def motor_timeout(events: Events) -> Events:
    """The motors never say where they are."""
    return [event for event in events if not isinstance(event.data, Joints)]


SCENARIOS: dict[str, Callable[[Events], Events]] = {
    "healthy": lambda events: events,
    "camera_dropped": camera_dropped,
    "one_late": one_late,
    "stamp_jump": stamp_jump,
    "phantom_ball": phantom_ball,
    "occlusion_at_net": occlusion_at_net,
    "motor_timeout": motor_timeout,
}


# What came of it


def play(bag: Bag, scenario: str) -> dict[str, Any]:
    """Figures of one scenario: counts, the last state before the hit plane, the last plan, health."""
    settings = replay.settings_from_bag(bag)
    pipeline = new_pipeline(settings)
    result = replay.ReplayResult()
    for event in SCENARIOS[scenario](list(replay.events(bag, settings))):
        replay.collect(pipeline.step(event), result)
    assert pipeline.triangulator is not None
    states, plans = result.outputs["ball/state"], result.outputs["hit_plan"]
    last = states[-1] if states else None
    plan = plans[-1] if plans else None
    health = pipeline.triangulator.health()
    flags = {name: n for name, n in health.items() if isinstance(n, int) and n}
    return {
        "positions": len(result.outputs["ball/position"]),
        "states": len(states),
        "plans": len(plans),
        "trajectories": len(result.outputs["joint_trajectory"]),
        "no_joints": result.decisions.get("no_joints", 0),
        "warning": str(health["warning"]),
        "health": flags,
        "last_state": None if last is None else last.vector.tolist(),
        "hit_s": None if plan is None else (plan.hit_stamp_ns - START_NS) * 1e-9,
        "racket_m": None if plan is None else plan.racket_pos_table.tolist(),
    }


def main() -> None:
    """Writes bag and expectations again."""
    FOLDER.mkdir(exist_ok=True)
    write_bag(BAG)
    bag = open_bag(BAG)
    expected = {name: play(bag, name) for name in SCENARIOS}
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")
    size = sum(file.stat().st_size for file in BAG.iterdir())
    print(f"wrote {BAG} ({size / 1e3:.0f} kB) and {EXPECTED.name}", file=sys.stderr)
    for name, row in expected.items():
        counts = f"{row['positions']:>5} positions{row['states']:>5} states{row['plans']:>5} plans"
        print(f"{name:<18}{counts}  {row['warning']}")


if __name__ == "__main__":
    main()
