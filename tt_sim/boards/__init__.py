"""Simulated moteus boards: register frames in, torque out; the unmodified moteus library talks to them.

Use inside a simulation (the world steps its own physics)::

    boards = BoardSet([BoardSpec(id=1, config={"servopos.position_min": -5.0, ...}), ...], plant)
    with BoardServer(boards, link="run/motors") as server:      # its thread answers on a pseudo-terminal
        while running:
            torques = boards.control(dt_s, now_s)                # {motor: N m at the output shaft}
            ...apply the torques for dt_s, step the physics...

* ``plant`` is any object with ``read(motor) -> (position_rev, velocity_rev_s)``: the state of the motor's
  output shaft in revolutions (joint = turns times the robot's ``turns_per_unit`` and sign; that is the
  caller's side). ``motor`` is ``BoardSpec.motor``, by default the board id.
* ``control`` costs about 5 µs a board and is meant to be called each physics step: 1 ms by default, 0.2 to 2
  ms work. It reads the plant, runs watchdogs, faults and the control law of every board, and returns torques
  at the output shaft; torque times 2π times turns per radian (or metre) is the joint torque (or force).
  Time is the caller's: watchdogs count the ``dt_s`` handed in, so a slowed-down simulation slows the boards
  too.
* Positions are revolutions, kp in N m/rev and kd in N m/(rev/s), as on real boards. A board whose
  ``servopos.position_min/max`` nobody configured refuses to leave ±0.01 revolutions: give them in ``config``.
  ``max_torque_nm`` scales the torque constant so that the current limit gives that torque.
* ``boards.board(id)`` returns a ``Board`` whose attributes are the registers (mode, position, fault,
  voltage…), for tests and displays. Hold ``boards.lock`` to read several of them consistently.
* ``boards.fail("t=2.0 dead 3")`` or ``boards.fail(Failure("unplug", duration_s=0.5))``: scripted failures,
  kinds in ``failures.KINDS``; ``t`` counts seconds of simulation since the first ``control``.

Use alone, in real time, with own motors (tests, ``tt sim bus``)::

    with BoardServer([BoardSpec(id=1), BoardSpec(id=2)], standalone=True,
                     motors={1: MotorSpec(inertia=1e-3, coulomb=0.02)}) as server:
        controller = moteus.Controller(id=1, transport=moteus.Fdcanusb(server.device))
        server.plant.read(1)

`server.device` is the path to open, always a link: it survives unplug and replug, and vanishes with the
server. The model is documented in `board.py` (modes, faults), `control_law.py` (law, limits), `supply.py`
(sag, regeneration) and `plant.py` (inertia, friction, elasticity, end stops).
"""

from tt_sim.boards.board import Board
from tt_sim.boards.boardset import BoardPlant, BoardSet
from tt_sim.boards.config import BoardSpec
from tt_sim.boards.control_law import Command
from tt_sim.boards.failures import Failure
from tt_sim.boards.plant import MotorSpec, StandalonePlant
from tt_sim.boards.registers import Fault, Mode
from tt_sim.boards.server import BoardServer
from tt_sim.boards.supply import SupplySpec

__all__ = [
    "Board",
    "BoardPlant",
    "BoardServer",
    "BoardSet",
    "BoardSpec",
    "Command",
    "Failure",
    "Fault",
    "Mode",
    "MotorSpec",
    "StandalonePlant",
    "SupplySpec",
]
