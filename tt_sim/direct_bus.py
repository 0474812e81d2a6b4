"""The motor bus without a bus: setpoints reach the simulated boards as frames, in the same thread, at once.

For lock-step evaluation. The command frames are those the moteus library makes; replies are read from the
boards' registers directly, because decoding them would only cost time.
"""

from __future__ import annotations

import numpy as np

from tt_control.bus import BoardInfo, BusStates, Drive, JointMap, Setpoints
from tt_control.moteus_frames import CommandFrames
from tt_planning.robot import RobotModel
from tt_sim.boards import BoardSet

_SOURCE = 126


class DirectBus:
    """Setpoints to boards, registers to states.

    Args:
        robot: its motor map.
        boards: the boards, in robot order.
    """

    def __init__(self, robot: RobotModel, boards: BoardSet) -> None:
        self._boards = boards
        self._map = JointMap(robot.motors)
        self._frames = [CommandFrames(motor.id) for motor in robot.motors]

    def cycle(self, setpoints: Setpoints) -> BusStates:
        """Command every board, then read it; the pure counterpart of `MotorBus.cycle`."""
        m, s = self._map, setpoints
        pos, vel = m.rev_from_joint(s.pos), m.rev_s_from_joint(s.vel)
        torque, bound = m.torque_from_joint(s.torque), np.abs(m.torque_from_joint(s.max_torque))
        boards = self._boards
        with boards.lock:
            for k, frames in enumerate(self._frames):
                drive = Drive(int(s.drive[k]))
                if drive is Drive.QUERY:
                    continue
                if drive is Drive.POSITION:
                    data = frames.position(
                        float(pos[k]),
                        float(vel[k]),
                        float(torque[k]),
                        float(s.kp_scale[k]),
                        float(s.kd_scale[k]),
                        float(bound[k]),
                        s.watchdog_s,
                    )
                else:
                    data = frames.fixed(drive)
                boards.handle(_SOURCE << 8 | m.ids[k], data)
        return self.read()

    def inspect(self) -> list[BoardInfo]:
        """What the controller wants to know of the boards before it enables them: their protection limits."""
        names = ("servo.max_voltage", "servo.fault_temperature")
        return [
            BoardInfo(board.id, 1, config={name: float(board.config[name]) for name in names})
            for board in self._boards.boards
        ]

    def read(self) -> BusStates:
        """What the boards measure now."""
        m, boards = self._map, self._boards.boards
        n = len(boards)
        return BusStates(
            replied=np.ones(n, dtype=bool),
            pos=m.joint_from_rev(np.array([b.position for b in boards])),
            vel=m.joint_from_rev_s(np.array([b.velocity for b in boards])),
            torque=m.joint_from_torque(np.array([b.torque for b in boards])),
            mode=np.array([b.mode for b in boards], dtype=np.int64),
            fault=np.array([b.fault for b in boards], dtype=np.int64),
            voltage_v=np.array([b.voltage for b in boards]),
            temperature_c=np.array([b.temperature for b in boards]),
        )
