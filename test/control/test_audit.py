"""The check before enabling: each difference is one line with the value and the command that fixes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from test.control.conftest import board_specs
from test.control.lockstep import Bench
from tt_control.audit import CONFIG_NAMES, audit
from tt_control.bus import BoardInfo
from tt_control.config import HomingMethod, JointHoming, StopPolicy, control_config
from tt_control.controller import State
from tt_control.errors import ControlError


def infos(gantry):
    return Bench(gantry).bus.inspect(CONFIG_NAMES)


def changed(gantry, joint=0, **changes):
    found = infos(gantry)
    config = dict(found[joint].config)
    config.update(changes.pop("config", {}))
    found[joint] = replace(found[joint], config=config, **changes)
    return audit(found, gantry, control_config(gantry))


def test_boards_as_promised_pass(gantry):
    assert audit(infos(gantry), gantry, control_config(gantry)) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0}, ["x: no board answers to id 1", "moteus_tool -t 1 --info"]),
        ({"count": 2}, ["2 boards answer to id 1", "conf set id.id 5"]),
        ({"firmware": None}, ["does not tell its firmware", "--flash"]),
        ({"register_map": 2}, ["firmware 1.1.0", "register map 2", "--flash"]),
        ({"register_map": 7}, ["register map 7", "unknown", "newest known one is 6"]),
        ({"fault": 35}, ["encoder fault (35)", "motors/clear_fault"]),
        ({"encoder_validity": 1}, ["encoder", "magnet"]),
        ({"voltage_v": 7.5}, ["7.5 V at board 1", "10 V"]),
        ({"temperature_c": 66.0}, ["66 °C", "cool"]),
        ({"home_state": 1}, ["does not know where the joint is", "--zero-offset"]),
        (
            {"config": {"servo.pid_position.kp": 4.0}},
            ["kp is 4", "77.8", "conf set servo.pid_position.kp 77.8"],
        ),
        ({"config": {"servo.pid_position.ki": 1.0}}, ["ki is 1", "says 0"]),
        (
            {"config": {"servopos.position_max": 0.01}},
            ["0.01 rev", "8 rev", "conf set servopos.position_max 8"],
        ),
        ({"config": {"servo.max_velocity": 10.0}}, ["10 rev/s", "needs 24"]),
        ({"config": {"servo.default_timeout_s": float("nan")}}, ["default_timeout_s", "0.5 s"]),
    ],
)
def test_each_difference_has_a_line_with_its_fix(gantry, changes, words):
    problems = changed(gantry, **changes)
    assert len(problems) == 1, problems
    assert all(word in problems[0] for word in words), problems[0]
    assert problems[0].startswith("x: ") and "\n" not in problems[0]


def test_a_loaded_axis_must_not_be_dropped_by_its_watchdog(gantry):
    problems = changed(gantry, joint=1, config={"servo.timeout_mode": 0.0})
    assert len(problems) == 1 and "would drop it" in problems[0]
    assert changed(gantry, joint=0, config={"servo.timeout_mode": 0.0}) == ()


def test_unlimited_position_bounds_pass(gantry):
    free = {"servopos.position_min": float("nan"), "servopos.position_max": float("nan")}
    assert changed(gantry, config=free) == ()


def test_a_board_without_configuration_stream_is_told(gantry):
    found = infos(gantry)
    found[2] = replace(found[2], config={})
    problems = audit(found, gantry, control_config(gantry))
    assert len(problems) == 1 and "does not answer for servo.pid_position.kp" in problems[0]


def test_problems_forbid_enabling(gantry):
    bench = Bench(gantry, servo__max_velocity=1.0)
    bench.loop.connect()
    assert bench.controller.state is State.CONNECTED
    answer = bench.call(bench.controller.enable)
    assert not answer.ok and "max_velocity is 1 rev/s" in answer.text


def test_a_new_board_is_refused_with_all_its_differences(gantry):
    """Factory settings: gains, bounds of ±0.01 rev; nothing may move."""
    specs = [replace(s, config={}) for s in board_specs(gantry)]
    bench = Bench(gantry, specs=specs)
    bench.loop.connect()
    problems = bench.controller.reason
    for word in (
        "x: servo.pid_position.kp",
        "x: servopos.position_min is -0.01",
        "pitch: servo.pid_position.ki",
    ):
        assert word in problems


def test_unknown_board_information_is_no_crash(gantry):
    problems = audit([BoardInfo(m.id, 1) for m in gantry.motors], gantry, control_config(gantry))
    assert len(problems) >= 4


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"watchdog": 0.02}, "did you mean 'watchdog_s'"),
        ({"watchdog_s": -1}, "0 or more"),
        ({"watchdog_s": "fast"}, "must be a number"),
        ({"keep_out": 1}, "true or false"),
        ({"stop_policy": {"zz": "hold"}}, "unknown entry 'zz'"),
        ({"stop_policy": {"z": "drop"}}, "allowed are hold, brake, limp"),
        ({"homing": {"x": {"method": "end_stop", "direction": 2}}}, "allowed are -1 and 1"),
        ({"homing": {"x": {"speed": 0}}}, "more than 0"),
        ({"homing": {"x": {"sped": 1}}}, "did you mean 'speed'"),
        ({"viscous": [1, 2]}, "table by joint name"),
        ({"viscous": {"x": float("nan")}}, "must be a number"),
        ({"brake_acc": 0}, "control.brake_acc is 0; allowed is 0.05 to 1"),
        ({"brake_acc": 5}, "control.brake_acc is 5; allowed is 0.05 to 1"),
        ({"watchdog_s": 10}, "control.watchdog_s is 10; allowed is 0.005 to 0.1"),
        ({"missed_replies": 0}, "allowed is 1 to 50"),
        ({"gain": 10.0}, "allowed is 0.01 to 1"),
        ({"over_speed": 0.5}, "allowed is 1 to 3"),
        ({"warm_c": 80}, "must be below control.hot_c"),
    ],
)
def test_a_wrong_control_section_is_refused(gantry, section, words):
    with pytest.raises(ControlError) as caught:
        control_config(gantry, section)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_defaults_hold_what_gravity_loads(gantry):
    config = control_config(gantry)
    assert config.stop_policy == (StopPolicy.LIMP, StopPolicy.HOLD, StopPolicy.LIMP, StopPolicy.LIMP)
    section = {"stop_policy": {"x": "brake"}, "homing": {"x": {"method": "end_stop", "stop_position": -1.02}}}
    config = control_config(gantry, section)
    assert config.stop_policy[0] is StopPolicy.BRAKE
    assert config.homing[0] == JointHoming(HomingMethod.END_STOP, stop_position=-1.02)
