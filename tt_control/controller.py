"""The motor controller: one state machine and one safety layer between trajectories and boards.

Pure: time and replies come in, setpoints go out; no thread, no device, no clock. One `step` is one tick:

    replies of the last cycle → watch → state machine → path → keep-out → limiter → feedforward → setpoints

Only an operator's call leaves a stop. What may happen and what follows is the table in `trips.py`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tt_control import codes
from tt_control.brake import Brake
from tt_control.bus import BoardInfo, BusStates, Drive, JointMap, Setpoints
from tt_control.codes import Mode
from tt_control.config import ControlConfig, HomingMethod, StopPolicy
from tt_control.dynamics import Friction, RigidBody
from tt_control.follower import PathFollower
from tt_control.homing import JointHomer, Phase
from tt_control.intake import Refused, accept
from tt_control.limits import SetpointLimiter
from tt_control.trips import Reaction, Trip
from tt_control.watch import Finding, Watch
from tt_planning.keep_out import KeepOut
from tt_planning.robot import RobotModel
from tt_planning.trajectory import sample
from tt_planning.types import JointTrajectory

FloatArray = NDArray[np.float64]
NS_PER_S = 1_000_000_000
HISTORY = 50
# No point of an arm's racket is farther than this from the axis of a joint.
ARM_REACH_M = 1.5
# After clear_fault the boards get so many ticks to leave their fault.
CLEAR_TICKS = 5
# Slower than this for so long counts as standing, m/s and rad/s; after the second time it counts in any case.
REST_SPEED_LINEAR, REST_SPEED_ANGULAR, REST_S, REST_TIMEOUT_S = 0.02, 0.2, 0.03, 0.4


class State(Enum):
    """Where the controller stands; the values are the words of diagnostics and refusals."""

    DISCONNECTED = "disconnected"  # no adapter
    CONNECTED = "connected"  # adapter open, boards not yet checked or not as the robot file says
    AUDITED = "audited"  # boards checked, some joint does not know where it is
    HOMING = "homing"
    HOMED = "homed"  # every joint knows where it is, something else forbids enabling
    READY = "ready"  # may be enabled
    ENABLING = "enabling"
    ACTIVE = "active"  # follows trajectories
    STOPPING = "stopping"  # controlled stop
    STOPPED = "stopped"  # stands under power after a stop
    FAULT = "fault"  # latched: clear_fault leaves it


POWERED = (State.ENABLING, State.ACTIVE, State.STOPPING, State.STOPPED, State.HOMING)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to an operator's call or an offered trajectory: done or not, and why."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class TripRecord:
    """One trip as the history keeps it.

    Attributes:
        stamp_ns: when.
        trip: what.
        text: one sentence with joint and numbers.
        state: state in which it happened.
        faults: fault register of every board at that moment, before any stop erased it.
        voltages: supply of every board at that moment, V.
    """

    stamp_ns: int
    trip: Trip
    text: str
    state: State
    faults: tuple[int, ...]
    voltages: tuple[float, ...]


class Controller:
    """Controller of one robot.

    Args:
        robot: limits, motors, home pose.
        config: numbers of the safety layer.
        period_s: time between ticks.
        body: rigid-body model for the feedforward; made from the robot when None.

    Attributes:
        state: see `State`.
        history: the latest trips, newest last.
        reason: one sentence on why the controller is where it is.
        started_ns: capture stamp of the trajectory that began to be followed in the last step, else None.
        wants_audit: the boards should be checked again.
        gain: share of the boards' gains that is used, per joint; may be changed before the motors are enabled.
    """

    def __init__(
        self, robot: RobotModel, config: ControlConfig, period_s: float, body: RigidBody | None = None
    ) -> None:
        """Starts disconnected."""
        n = robot.joint_count
        # While the boards' own watchdog allows a longer silence of all, it is the one that decides.
        silent_ticks = max(config.silent_ticks, math.ceil(config.watchdog_s / period_s))
        config = replace(config, silent_ticks=silent_ticks)
        self.robot, self.config, self.period_s = robot, config, period_s
        friction = Friction(_array(config.viscous, n), _array(config.coulomb, n))
        self._body = body or RigidBody.from_robot(robot, _array(config.motor_inertia, n), friction)
        self.map = JointMap(robot.motors)
        self.is_linear = self._body.is_linear
        splice = np.where(self.is_linear, config.splice_linear, config.splice_angular)
        self._follower = PathFollower(robot.max_acc, splice)
        self.limiter = SetpointLimiter(
            robot.lower, robot.upper, robot.max_vel, robot.max_acc, config.limit_margin
        )
        self.watch = Watch(robot, config, self.is_linear)
        self._stop_way = 1.0 / (2.0 * config.brake_acc * robot.max_acc)
        self._reach = np.where(self.is_linear, 1.0, _rotary_reach_m(robot))
        self._clear_q, self._clear_m = np.zeros(n), -math.inf
        self._keep_out = KeepOut(robot, margin_m=config.keep_out_margin_m) if config.keep_out else None
        motor_effort = np.abs(self.map.joint_from_torque(np.array([m.max_torque for m in robot.motors])))
        self._max_effort = np.minimum(robot.max_effort, motor_effort)
        self._holds = np.array([p is StopPolicy.HOLD for p in config.stop_policy])
        self._policy_drive = np.array([_POLICY_DRIVE[p] for p in config.stop_policy])

        self.gain = np.full(n, config.gain)
        self.state = State.DISCONNECTED
        self.reason = "the motor adapter is not open"
        self.history: deque[TripRecord] = deque(maxlen=HISTORY)
        self.started_ns: int | None = None
        self.counts: dict[str, int] = {}
        self._latched: Trip | None = None
        self._latched_text = ""
        self._estop_input = False
        self._needs_homing = np.array([h.method is not HomingMethod.ABSOLUTE for h in config.homing])
        self.homer: JointHomer | None = None
        self._to_home: list[int] = []
        self._home_q: FloatArray | None = None
        self._audit_problems: tuple[str, ...] = ("the boards have not been checked yet",)
        self._max_gap_s = max(config.max_tick_gap_s, config.watchdog_s)
        self._states: BusStates | None = None
        self._last_ns: int | None = None
        self._sent_q: FloatArray | None = None
        self._rest_q: FloatArray | None = None
        self._brake: Brake | None = None
        self._after_brake = Reaction.HOLD
        self._disabling = False
        self._standing_s = self._slow_s = 0.0
        self._state_ns = 0
        self._active_ns = 0
        self._gain = 1.0
        self._clear_ticks = 0
        self.wants_audit = False

    def warm_up(self) -> None:
        """Runs every compiled function once: the first call would take longer than a tick."""
        n, q = self.robot.joint_count, np.asarray(self.robot.home, dtype=float)
        rows = np.zeros((2, n))
        path = JointTrajectory(0, self.robot.joint_names, np.array([0.0, 1.0]), np.array([q, q]), rows, rows)
        sample(path, NS_PER_S // 2)
        self._body.inverse(q, rows[0], rows[0])
        self._keep_out_text(q, rows[0])

    # ------------------------------------------------------------------ connection and audit

    def connected(self, now_ns: int) -> None:
        """The adapter is open; the audit comes next."""
        self._states, self._last_ns, self._sent_q = None, None, None
        self.watch.missed[:] = 0
        self._to(State.CONNECTED, now_ns, "the boards have not been checked yet")

    def audited(self, infos: list[BoardInfo], problems: tuple[str, ...], now_ns: int) -> None:
        """Result of the audit; problems forbid enabling."""
        self._audit_problems = problems
        self.wants_audit = False
        for j, info in enumerate(infos):
            known = info.home_state or 0
            method = self.config.homing[j].method
            self._needs_homing[j] = known < _REFERENCED[method] and method is not HomingMethod.ABSOLUTE
            if math.isfinite(info.config.get("servo.max_voltage", math.nan)):
                self.watch.over_voltage_v[j] = (
                    info.config["servo.max_voltage"] - self.config.over_voltage_margin_v
                )
            if math.isfinite(info.config.get("servo.fault_temperature", math.nan)):
                self.watch.hot_c[j] = info.config["servo.fault_temperature"] - self.config.hot_margin_c
        self._settle(now_ns)

    def lost(self, text: str, now_ns: int) -> None:
        """The adapter is gone; the boards stop by their own watchdog."""
        if self.state in POWERED:
            self._trip(Finding(Trip.ADAPTER_LOST, -1, text), now_ns)
        self._audit_problems = ("the boards have not been checked since the adapter was lost",)
        self._to(State.DISCONNECTED, now_ns, text)

    def clock_jumped(self, now_ns: int) -> None:
        """The clock was set: trajectory stamps do not fit any more."""
        self._last_ns = None
        if self.state in POWERED and self.state is not State.ENABLING:
            self._trip(
                Finding(Trip.CLOCK_JUMP, -1, "the clock was set while the motors were running"), now_ns
            )

    def leaving(self) -> Setpoints:
        """The last command before the bus is closed: loaded joints damped by their board, the others by
        policy.
        """
        out = Setpoints.idle(self.robot.joint_count)
        mode = self.watch.last.mode
        running = ~np.isin(mode, (Mode.STOPPED, Mode.FAULT, -1))
        drive = np.where(self._holds, int(Drive.DAMP), self._policy_drive)
        out.drive[running] = drive[running]
        return out

    def _settle(self, now_ns: int) -> None:
        """Finds the resting state that fits what is known."""
        if self._latched is not None:
            self._to(State.FAULT, now_ns, self._latched_text)
        elif self._audit_problems:
            self._to(State.CONNECTED, now_ns, "; ".join(self._audit_problems))
        elif self._needs_homing.any():
            names = [n for n, need in zip(self.robot.joint_names, self._needs_homing) if need]
            self._to(State.AUDITED, now_ns, f"{', '.join(names)} must be homed: call motors/home")
        elif self._estop_input:
            self._to(State.HOMED, now_ns, "the emergency stop input is pressed: release it")
        else:
            self._to(State.READY, now_ns, "call motors/enable to start")

    def _to(self, state: State, now_ns: int, reason: str) -> None:
        self.state, self.reason, self._state_ns = state, reason, now_ns

    # ------------------------------------------------------------------ operator calls

    def enable(self, now_ns: int) -> Answer:
        """Starts the motors where they are."""
        if self.state is State.ACTIVE:
            return Answer(True, "already active")
        if self.state is State.STOPPED:
            self._start_active(now_ns, self._rest())
            return Answer(True, "active again")
        if self.state is not State.READY:
            return Answer(False, f"cannot enable while {self.state.value}: {self.reason}")
        refusal = self._why_not_enable()
        if refusal:
            return Answer(False, f"cannot enable: {refusal}")
        self._to(State.ENABLING, now_ns, "waiting for the boards to reach position mode")
        return Answer(True, "enabling")

    def _why_not_enable(self) -> str:
        last, robot = self.watch.last, self.robot
        for j, name in enumerate(robot.joint_names):
            if not last.replied[j] or self.watch.missed[j] >= self.config.missed_replies:
                return f"{name} does not reply"
            if last.voltage_v[j] < self.config.under_voltage_v:
                return f"{name} has {last.voltage_v[j]:.1f} V; at least {self.config.under_voltage_v:g} V are needed"
            limit = self.config.outside_linear if self.is_linear[j] else self.config.outside_angular
            if not robot.lower[j] - limit <= last.pos[j] <= robot.upper[j] + limit:
                return (
                    f"{name} stands at {last.pos[j]:.4g}, outside its limits {robot.lower[j]:.4g} to "
                    f"{robot.upper[j]:.4g}; {self._way_inside(j)}"
                )
        return ""

    def _way_inside(self, j: int) -> str:
        """What to do with a joint that seems to be outside: whole turns too many are a wrong count, not a place."""
        turn = 1.0 / float(self.map.turns[j])
        lower, upper, pos = (
            float(self.robot.lower[j]),
            float(self.robot.upper[j]),
            float(self.watch.last.pos[j]),
        )
        turns = round((0.5 * (lower + upper) - pos) / turn)
        if not turns or not lower <= pos + turns * turn <= upper:
            return "move it inside by hand, or check zero and ratio in the robot file"
        place, wrong = f"at {pos + turns * turn:.4g}", f"{-turns:+d} turns"
        if upper - lower >= abs(turn):
            place, wrong = "inside", "whole turns"
        return (
            f"if it really is {place}, its board counts {wrong} wrong: home it, or move it to 0 by hand and run "
            f"moteus_tool -t {self.map.ids[j]} --zero-offset; else move it inside by hand"
        )

    def disable(self, now_ns: int) -> Answer:
        """Stops the motion, then leaves each motor as its stop policy says."""
        held = [n for n, h in zip(self.robot.joint_names, self._holds) if h]
        note = f"; {', '.join(held)} stays under power because gravity loads it" if held else ""
        if self.state in (State.ACTIVE, State.STOPPED, State.STOPPING, State.HOMING):
            if self.state is not State.STOPPING:
                self._begin_brake(self._motion(), self.config.brake_acc, Reaction.HOLD, now_ns)
            self._disabling = True
            return Answer(True, "stopping, then off" + note)
        if self.state is State.ENABLING:
            self._rest_q = self._measured_or(self._rest())
            self._settle(now_ns)
        return Answer(True, f"off ({self.state.value})" + note)

    def stop(self, now_ns: int) -> Answer:
        """Software emergency stop: brakes at once and latches."""
        self._trip(Finding(Trip.ESTOP, -1, "emergency stop by motors/stop"), now_ns)
        return Answer(True, "emergency stop latched; motors/clear_fault leaves it")

    @property
    def stopped_by_operator(self) -> bool:
        """True while an emergency stop is latched, from the software or from the input."""
        return self._latched in (Trip.ESTOP, Trip.ESTOP_INPUT)

    def estop_input(self, pressed: bool, text: str, now_ns: int) -> None:
        """State of the hardware emergency stop input."""
        changed, self._estop_input = pressed != self._estop_input, pressed
        if pressed and changed and self.state in POWERED:
            self._trip(Finding(Trip.ESTOP_INPUT, -1, text), now_ns)
        elif changed and self.state in (State.READY, State.HOMED):
            self._settle(now_ns)

    def clear_fault(self, now_ns: int) -> Answer:
        """Leaves a latched fault or emergency stop; the motors stay off."""
        if self.state is State.STOPPING:
            return Answer(False, "the robot is still braking; call again when it stands")
        if self._latched is None:
            self.wants_audit = bool(self._audit_problems) and self.state is State.CONNECTED
            return Answer(True, "there is no fault")
        if self._estop_input:
            return Answer(False, "the emergency stop input is pressed: release it first")
        if self.state is State.DISCONNECTED:
            return Answer(False, f"the motor adapter is not open: {self.reason}")
        self._latched = None
        self._clear_ticks = CLEAR_TICKS
        self.wants_audit = bool(self._audit_problems)
        self._settle(now_ns)
        return Answer(True, f"cleared; {self.state.value}: {self.reason}")

    def home(self, now_ns: int) -> Answer:
        """Moves to the home pose; before that, joints that do not know where they are find their
        reference.
        """
        if self.state is State.ACTIVE:
            return self._go_home(now_ns)
        searching = [j for j, h in enumerate(self.config.homing) if h.method is not HomingMethod.ABSOLUTE]
        if self.state not in (State.AUDITED, State.HOMED, State.READY) or not searching:
            return Answer(False, f"cannot move home while {self.state.value}: {self.reason}")
        if self._estop_input:
            return Answer(False, "the emergency stop input is pressed: release it first")
        if not self.watch.last.replied.all() or self.watch.missed.any():
            return Answer(False, "cannot home: some board does not reply")
        self._to_home, self.homer = searching, None
        names = ", ".join(self.robot.joint_names[j] for j in searching)
        self._to(State.HOMING, now_ns, f"homing {names}")
        return Answer(True, f"homing {names}; the state in /diagnostics tells when it is done")

    def _go_home(self, now_ns: int) -> Answer:
        q, robot = self._rest(), self.robot
        if np.abs(self.limiter.qd).max() > 1e-3:
            return Answer(False, "the robot moves; wait until it stands")
        # The peak velocity of a rest-to-rest quintic is 1.875 times its mean, the peak acceleration 5.78
        # d/T².
        way = np.abs(robot.home - q)
        share = self.config.home_speed
        need = np.maximum(
            1.875 * way / (share * robot.max_vel), np.sqrt(5.78 * way / (share * robot.max_acc))
        )
        duration = max(0.1, float(need.max()))
        zero = np.zeros((2, robot.joint_count))
        times = np.array([0.0, duration]) + 2.0 * self.period_s
        path = JointTrajectory(now_ns, robot.joint_names, times, np.array([q, robot.home]), zero, zero)
        answer = self.offer(path, now_ns)
        return Answer(True, f"moving home in {duration:.1f} s") if answer.ok else answer

    def offer(self, trajectory: JointTrajectory, now_ns: int) -> Answer:
        """Takes a trajectory, or says why not."""
        if self.state is not State.ACTIVE:
            return self._refuse("inactive", f"motors are {self.state.value}: {self.reason}")
        try:
            self._follower.offer(accept(trajectory, self.robot, self.config, now_ns, self.limiter.q))
        except Refused as refused:
            return self._refuse("trajectory refused", str(refused))
        self._count("trajectories")
        return Answer(True, "accepted")

    def _refuse(self, key: str, text: str) -> Answer:
        self._count(key)
        return Answer(False, f"joint_trajectory refused: {text}")

    def _count(self, key: str) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1

    # ------------------------------------------------------------------ one tick

    def next_start_ns(self) -> int | None:
        """Time of the tick that can begin the next waiting trajectory; None when none waits or none is followed."""
        start_ns = self._follower.next_start_ns
        if start_ns is None or self.state is not State.ACTIVE:
            return None
        return start_ns - round(self.config.command_delay_s * NS_PER_S)

    def step(self, now_ns: int, states: BusStates | None) -> Setpoints:
        """Setpoints of the tick at `now_ns` (nominal time), given the replies of the cycle before."""
        dt = self.period_s if self._last_ns is None else (now_ns - self._last_ns) / NS_PER_S
        self._last_ns = now_ns
        self.started_ns = None
        if states is not None:
            self._states = states
            self.watch.take(states)
        self._watch_boards(now_ns)
        if self.state in POWERED and not 0.0 < dt <= self._max_gap_s:
            self._trip(Finding(Trip.LATE_TICK, -1, f"the loop paused for {dt * 1e3:.1f} ms"), now_ns)
        dt = min(max(dt, 0.25 * self.period_s), self._max_gap_s)
        return self._setpoints(now_ns, dt)

    def _watch_boards(self, now_ns: int) -> None:
        if self._states is None or self.state is State.DISCONNECTED or self._latched is not None:
            return
        if self._clear_ticks > 0:
            self._clear_ticks -= 1  # the replies still tell of the fault that is being cleared
            return
        finding = None
        if self.state in POWERED:
            finding = self.watch.check_boards() or self.watch.check_power()
            if finding is None and self.state in (State.ACTIVE, State.STOPPING, State.STOPPED):
                if self._sent_q is not None:
                    finding = self.watch.check_motion(self._sent_q, self._states)
        elif self.state in (State.READY, State.HOMED, State.AUDITED):
            finding = self.watch.check_boards()
        if finding is not None:
            self._trip(finding, now_ns)

    def _setpoints(self, now_ns: int, dt: float) -> Setpoints:
        if self.state is State.ENABLING:
            return self._enabling(now_ns)
        if self.state is State.HOMING:
            setpoints = self._home_joints(now_ns, dt)
            if setpoints is not None:
                return setpoints
        if self.state is State.ACTIVE:
            motion = self._follow(now_ns, dt)
            if motion is not None:
                return self._drive(*motion)
        if self.state is State.STOPPING:
            assert self._brake is not None
            motion = self._brake.step(dt)
            if self._brake.is_standing and self._has_come_to_rest(dt):
                self._stand(now_ns)
            return self._drive(*motion)
        if self.state is State.STOPPED:
            zero = np.zeros(self.robot.joint_count)
            return self._drive(self._rest(), zero, zero)
        return self._resting()

    def _home_joints(self, now_ns: int, dt: float) -> Setpoints | None:
        """One joint after the other; None when it ended in this tick."""
        last, n = self.watch.last, self.robot.joint_count
        if not (last.mode == Mode.POSITION).all() and self.homer is None:
            self.limiter.reset(last.pos)
            return self._enabling(now_ns)
        if self._home_q is None or self.homer is None:
            self._home_q = np.array(self._rest())
        if self.homer is None or self.homer.phase is Phase.DONE:
            if self.homer is not None:
                self._needs_homing[self._to_home.pop(0)] = False
            if not self._to_home:
                self.homer, self._rest_q, self._home_q = None, self._home_q, None
                self._settle(now_ns)
                return None
            j = self._to_home[0]
            self.homer = JointHomer(self.robot.joint_names[j], self.config.homing[j], float(last.pos[j]))
        j, vel = self._to_home[0], np.zeros(n)
        expected = self._body.inverse(self._home_q, vel, vel)[j]
        motion = self.homer.step(float(last.pos[j]), float(last.vel[j]), float(last.torque[j] - expected), dt)
        if self.homer.phase is Phase.FAILED:
            self._trip(Finding(Trip.HOMING, j, self.homer.failure), now_ns)
            return None
        self._home_q[j], vel[j] = motion.q, motion.qd
        self.limiter.reset(self._home_q, vel)
        out = self._drive(self._home_q.copy(), vel, np.zeros(n))
        out.max_torque[j] = min(abs(expected) + motion.effort, out.max_torque[j])
        return out

    def _enabling(self, now_ns: int) -> Setpoints:
        last = self.watch.last
        in_position = last.mode == Mode.POSITION
        # A joint that is not yet driven may still be moved by gravity or by hand: start where it is.
        held = in_position & np.isfinite(self._rest())
        q = np.where(held, self._rest(), last.pos)
        self._rest_q = q
        if in_position.all() and self.state is State.ENABLING:
            self._start_active(now_ns, q)
        elif (now_ns - self._state_ns) / NS_PER_S > self.config.enable_timeout_s:
            late = [n for n, ok in zip(self.robot.joint_names, in_position) if not ok]
            modes = [codes.MODES.get(int(m), "?") for m, ok in zip(last.mode, in_position) if not ok]
            text = f"{', '.join(late)}: no position mode after enable (board says: {', '.join(modes)})"
            self._trip(Finding(Trip.ENABLE_TIMEOUT, -1, text), now_ns)
            return self._resting()
        zero = np.zeros(len(q))
        out = self._drive(q, zero, zero)
        # From zero velocity a board goes on without a stop, which would drop a loaded axis for a moment.
        startable = np.isin(last.mode, (Mode.STOPPED, Mode.ENABLING, Mode.POSITION, Mode.ZERO_VELOCITY))
        out.drive[~startable] = Drive.STOP
        return out

    def _start_active(self, now_ns: int, q: FloatArray) -> None:
        self._follower.hold(q)
        self.limiter.reset(q)
        self.watch.reset_tracking()
        if self.state is not State.STOPPED:
            self._active_ns = now_ns
        self._to(State.ACTIVE, now_ns, "following trajectories")

    def _follow(self, now_ns: int, dt: float) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Motion of this tick, None after a trip."""
        at_ns = now_ns + round(self.config.command_delay_s * NS_PER_S)
        reference = self._follower.reference(at_ns)
        wanted = (reference.q, reference.qd, reference.qdd)
        if not math.isfinite(sum(sum(a.tolist()) for a in wanted)):
            self._trip(
                Finding(Trip.NOT_FINITE, -1, "the trajectory gave a setpoint that is not finite"), now_ns
            )
            return None
        if reference.stale_s > self.config.setpoint_age_s:
            text = f"the trajectory ended in motion {reference.stale_s * 1e3:.0f} ms ago and no other came"
            self._trip(Finding(Trip.SETPOINT_AGE, -1, text), now_ns)
            return None
        before = (self.limiter.q, self.limiter.qd)
        q, qd, qdd, changed = self.limiter.apply(*wanted, dt)
        obstacle = self._keep_out_text(q, qd)
        if obstacle:
            self.limiter.reset(*before)
            self._trip(Finding(Trip.KEEP_OUT, -1, obstacle), now_ns)
            return None
        self.started_ns = reference.started_ns
        middle = self._follower.peek(at_ns + round(0.5 * self.period_s * NS_PER_S))
        # The boards go on with this velocity and torque until the next tick: what holds half a period later
        # is the mean, and no lag of kd · acceleration · period / 2 remains.
        return q, np.where(changed, qd, middle[1]), np.where(changed, qdd, middle[2])

    def _keep_out_text(self, q: FloatArray, qd: FloatArray) -> str:
        """Why this setpoint may not be sent: braking after it would touch table or net. Empty when it may."""
        if self._keep_out is None:
            return ""
        way = qd * np.abs(qd) * self._stop_way
        if self._clear_by_distance(q, way):
            return ""
        stop = np.clip(q + way, self.robot.lower, self.robot.upper)
        margin = self.config.keep_out_margin_m
        for pose in (0.5 * (q + stop), stop):
            gap = self._keep_out.clearance(pose)
            # Leaving a forbidden place is allowed.
            if gap < margin and gap < self._keep_out.clearance(q) - 1e-6:
                return f"the racket would come within {max(gap, 0.0) * 1e3:.0f} mm of table or net"
            if gap < margin and not qd.any():
                return f"the racket would be {max(gap, 0.0) * 1e3:.0f} mm from table or net"
        self._clear_q, self._clear_m = stop, gap
        return ""

    def _clear_by_distance(self, q: FloatArray, way: FloatArray) -> bool:
        """Whether the racket cannot have come near anything since its clearance was computed last.

        No point of it moves farther than Σ reach · |Δq|, for the farther one of setpoint and stop.
        """
        moved = np.abs(q - self._clear_q) + np.abs(way)
        return float(self._reach @ moved) < self._clear_m - self.config.keep_out_margin_m

    def _drive(self, q: FloatArray, qd: FloatArray, qdd: FloatArray) -> Setpoints:
        """Position commands with feedforward; silent boards get what their stop policy says."""
        n = self.robot.joint_count
        age_s = ((self._last_ns or 0) - self._active_ns) / NS_PER_S
        soft = 1.0 if self.state is State.HOMING else self.config.soft_start_gain
        if self.state not in (State.ENABLING, State.HOMING):
            soft = min(1.0, soft + (1.0 - soft) * max(age_s, 0.0) / max(self.config.soft_start_s, 1e-9))
        bound = self._max_effort * self.watch.torque_share
        scaled = qdd if self.config.inertia_feedforward else np.zeros(n)
        effort = np.minimum(np.maximum(self._body.inverse(q, qd, scaled), -bound), bound)
        drive = np.full(n, int(Drive.POSITION), dtype=np.int64)
        dead = self.watch.is_dead
        if dead.any():
            drive[dead] = np.where(self._holds[dead], int(Drive.DAMP), int(Drive.STOP))
        self._sent_q = q
        gain = soft * self.gain
        return Setpoints(drive, q, qd, effort, gain, gain, bound, self.config.watchdog_s)

    def _resting(self) -> Setpoints:
        """Motors off, loaded joints held where they are."""
        n = self.robot.joint_count
        if self.state in (State.DISCONNECTED, State.CONNECTED) or self._states is None:
            return Setpoints.idle(n)
        mode = self.watch.last.mode
        rest = self._rest()
        hold = self._holds & (mode == Mode.POSITION) & np.isfinite(rest)
        zero = np.zeros(n)
        out = self._drive(np.where(hold, rest, np.nan_to_num(self.watch.last.pos)), zero, zero)
        self._sent_q = None
        out.drive[~hold] = Drive.QUERY
        running = ~np.isin(mode, (Mode.STOPPED, Mode.FAULT, Mode.TIMEOUT, -1))
        release = running & ~hold & ~self._holds
        out.drive[release] = self._policy_drive[release]
        if self._clear_ticks > 0:
            out.drive[np.isin(mode, (Mode.FAULT, Mode.TIMEOUT))] = Drive.STOP
        return out

    # ------------------------------------------------------------------ stopping

    def _trip(self, finding: Finding, now_ns: int) -> None:
        """Records a trip and begins its reaction; a latched one is never replaced by a milder one."""
        last = self.watch.last
        faults, volts = tuple(int(f) for f in last.fault), tuple(float(v) for v in last.voltage_v)
        self.history.append(TripRecord(now_ns, finding.trip, finding.text, self.state, faults, volts))
        self._count(f"trip {finding.trip.name.lower()}")
        reaction = finding.trip.reaction
        if reaction is not Reaction.HOLD:
            self._latched, self._latched_text = finding.trip, finding.text
        if self.state in (State.ACTIVE, State.STOPPING, State.STOPPED, State.HOMING):
            share = self.config.brake_acc
            motion = self._motion()
            if reaction is Reaction.FAULT_HERE:
                motion = self._measured_motion(motion)
            if reaction is Reaction.FAULT_GENTLE:
                share = self.config.gentle_brake_acc
            if self.state is State.STOPPING and self._after_brake is not Reaction.HOLD:
                reaction = self._after_brake
            self._begin_brake(motion, share, reaction, now_ns)
        elif self._latched is not None:
            if self.state is State.ENABLING:
                self._rest_q = self._measured_or(self._rest())
            if self.state is not State.DISCONNECTED:
                self._to(State.FAULT, now_ns, finding.text)
        self.reason = finding.text

    def _begin_brake(
        self, motion: tuple[FloatArray, FloatArray], share: float, after: Reaction, now_ns: int
    ) -> None:
        self.homer, self._home_q = None, None
        self._brake = Brake(*motion, share * self.robot.max_acc)
        self._after_brake = after
        self._disabling, self._standing_s, self._slow_s = False, 0.0, 0.0
        self._to(State.STOPPING, now_ns, self.reason)

    def _has_come_to_rest(self, dt: float) -> bool:
        """The joints lag behind the command: they must stand before a motor may be switched off."""
        assert self._brake is not None
        self._standing_s += dt
        slow = np.where(self.is_linear, REST_SPEED_LINEAR, REST_SPEED_ANGULAR)
        moving = (np.abs(self.watch.last.vel) > slow) & (self.watch.missed == 0)
        self._slow_s = 0.0 if moving.any() else self._slow_s + dt
        return self._slow_s > REST_S or self._standing_s > REST_TIMEOUT_S

    def _stand(self, now_ns: int) -> None:
        """The brake has done its work."""
        assert self._brake is not None
        self._rest_q = self._brake.q.copy()
        if self._latched is not None:
            self._to(State.FAULT, now_ns, self._latched_text)
        elif self._disabling:
            self._settle(now_ns)
        else:
            self._to(State.STOPPED, now_ns, self.reason)

    def _motion(self) -> tuple[FloatArray, FloatArray]:
        """Commanded position and velocity now."""
        if self.state is State.STOPPING and self._brake is not None:
            return self._brake.q, self._brake.qd
        if self.state is State.STOPPED:
            return self._rest(), np.zeros(self.robot.joint_count)
        return self.limiter.q, self.limiter.qd

    def _measured_motion(self, commanded: tuple[FloatArray, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """What the joints really do, where they still tell."""
        last, known = self.watch.last, self.watch.missed == 0
        vel = np.clip(last.vel, -self.robot.max_vel, self.robot.max_vel)
        return np.where(known, last.pos, commanded[0]), np.where(known, vel, 0.0)

    def _measured_or(self, fallback: FloatArray) -> FloatArray:
        return np.where(np.isfinite(self.watch.last.pos), self.watch.last.pos, fallback)

    def _rest(self) -> FloatArray:
        """Where the robot stands by command; measured when nothing was commanded."""
        if self.state is State.ACTIVE:
            return self.limiter.q
        return self.watch.last.pos if self._rest_q is None else self._rest_q


# Home state from which a joint counts as referenced.
_REFERENCED = {HomingMethod.ABSOLUTE: 2, HomingMethod.END_STOP: 2, HomingMethod.INDEX: 1}
_POLICY_DRIVE = {
    StopPolicy.HOLD: int(Drive.POSITION),
    StopPolicy.BRAKE: int(Drive.BRAKE),
    StopPolicy.LIMP: int(Drive.STOP),
}


def _rotary_reach_m(robot: RobotModel) -> float:
    """No point of the racket is farther than this from the axis of a rotary joint."""
    racket = robot.racket
    if robot.kinematics != "gantry":
        return ARM_REACH_M
    return racket.length + 0.5 * math.hypot(racket.width, racket.height, racket.thickness)


def _array(values: tuple[float, ...], n: int) -> FloatArray:
    return np.asarray(values, dtype=float) if values else np.zeros(n)
