"""The whole path once: trajectory in, moteus library, boards, joints at the goal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from test.control.conftest import wait_for
from tt_control.clocks import WallClock
from tt_control.config import control_config
from tt_control.controller import Controller, State
from tt_control.loop import MotorLoop
from tt_control.moteus_bus import MoteusBus
from tt_planning.trajectory import TrajectoryGenerator


def test_enable_move_disable(boards, gantry):
    generator = TrajectoryGenerator(gantry)
    still = np.zeros(gantry.joint_count)
    generator.set_reference(gantry.home, still, still, 0)
    generator.ready(0)  # compiles now, so that the path below is not old when it is offered
    config = replace(control_config(gantry), watchdog_s=0.5, silent_ticks=100, missed_replies=50)
    controller = Controller(gantry, config, 0.004)
    loop = MotorLoop(MoteusBus(gantry.motors, "fdcanusb", boards.device), controller, WallClock())
    loop.start()
    try:
        assert wait_for(lambda: controller.state is State.READY), controller.reason
        assert loop.call(controller.enable).result(1.0).ok
        assert wait_for(lambda: controller.state is State.ACTIVE), controller.reason
        now = loop.clock.now_ns()
        generator.set_reference(controller.watch.last.pos, still, still, now)
        path = generator.ready(now).trajectory
        assert loop.call(lambda now_ns: controller.offer(path, now_ns)).result(1.0).ok
        assert wait_for(lambda: np.abs(loop.latest[1].pos - gantry.ready).max() < 0.01), controller.reason
        assert loop.commanded and loop.commanded[0].capture_stamp_ns == path.capture_stamp_ns
    finally:
        assert loop.stop()
    modes = [boards.boards.board(motor.id).mode for motor in gantry.motors]
    assert modes == [0, 12, 0, 0], "z stays damped, the others are off"
