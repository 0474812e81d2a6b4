"""ROS node around the motor loop: trajectories and services in, joint states, latency and diagnostics out.

Lifecycle: configure reads robot and parameters, activate opens the bus and starts the loop (and enables the
motors when `autostart` is set), deactivate brakes and closes the bus. The loop has a thread of its own; the
callbacks here only hand over.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import TransitionCallbackReturn

from tt_bringup.node_kit import TTLifecycleNode, param, run_node
from tt_control.bus import BusStates, Setpoints
from tt_control.clocks import PolledClock, WallClock
from tt_control.config import control_config
from tt_control.controller import Answer, Controller, State
from tt_control.loop import MotorLoop
from tt_control.moteus_bus import MoteusBus
from tt_control.moteus_devices import TRANSPORTS
from tt_control.realtime import RealTimeOptions
from tt_perception.errors import TTError
from tt_planning.messages import JointStateWriter, joint_trajectory_from_raw
from tt_planning.robot import load_robot

CALL_TIMEOUT_S = 0.5
# Simulation: pause between a trip and the next start.
ENABLE_AGAIN_S = 0.5
_BAD_STATES = (State.FAULT, State.DISCONNECTED, State.CONNECTED, State.STOPPED)


@dataclass(frozen=True)
class MotorParams:
    """Parameters of `motor_node`."""

    robot: str = param("gantry4", doc="Name of a shipped robot or path of its YAML file.")
    transport: str = param("fdcanusb", choices=TRANSPORTS, doc="How the boards are reached.")
    device: str = param(
        "",
        doc="fdcanusb, uart: serial path (several separated by commas, empty searches; uart may add @baud); "
        "socketcan: such as can0; python-can: interface:channel.",
    )
    rate_hz: float = param(250.0, unit="Hz", ge=50.0, le=500.0, doc="Rate of the motor loop.")
    joint_state_hz: float = param(250.0, unit="Hz", ge=1.0, le=500.0, doc="Rate of /joint_states.")
    autostart: bool = param(False, doc="Configure and activate at start.")
    enable_at_start: bool = param(
        False,
        doc="For simulation only: enable without a call, also again after a trip, until an operator stops or disables.",
    )
    dry_run: bool = param(False, doc="Do everything but enable: motors are queried, never driven.")
    watchdog_ms: float = param(
        22.0, unit="ms", ge=5.0, le=100.0, doc="Boards stop by themselves after this silence."
    )
    command_delay_ms: float = param(
        0.5,
        unit="ms",
        ge=0.0,
        le=10.0,
        doc="How much later than the tick the boards act; setpoints look that far ahead.",
    )
    keep_out: bool = param(True, doc="Refuse setpoints that would bring the racket into table or net.")
    estop_topic: str = param(
        "",
        doc="std_msgs/Bool topic of an emergency stop input: true is pressed, and so is silence; empty for none.",
    )
    estop_timeout_s: float = param(
        0.5, unit="s", ge=0.05, le=10.0, doc="Silence of the input that counts as pressed."
    )
    rt_priority: int = param(0, ge=0, le=98, doc="SCHED_FIFO priority of the motor thread; 0 for normal.")
    cpu: int = param(-1, ge=-1, le=1023, doc="Core of the motor thread; -1 for any.")
    lock_memory: bool = param(False, doc="Keep the memory of the process from being paged out.")


class MotorNode(TTLifecycleNode):
    """See the module."""

    def __init__(self) -> None:
        """Declares interfaces; motors are untouched until the node is activated."""
        self._loop: MotorLoop | None = None
        super().__init__("motor_node", MotorParams)
        self._controller: Controller | None = None
        self._said_trips = 0
        self._wants_enable = False
        self._enabled_s = 0.0
        self._told_estop: bool | None = None
        self._estop_s = 0.0
        self._estop_pressed = True
        self._joint_pub = self.advertise("/joint_states")
        self.listen("joint_trajectory", self._on_trajectory, raw=True)
        for name in ("enable", "disable", "stop", "home", "clear_fault"):
            self.serve(f"motors/{name}", self._service(name))

    # ------------------------------------------------------------------ lifecycle

    def on_configure(self, state: Any) -> TransitionCallbackReturn:
        """Reads the robot; TTError is the reason of a failure."""
        self._controller = self._make_controller()
        return TransitionCallbackReturn.SUCCESS

    def _make_controller(self) -> Controller:
        p = self.params
        robot = load_robot(p.robot)
        section = dict(robot.control)
        section["watchdog_s"] = p.watchdog_ms * 1e-3
        section["command_delay_s"] = p.command_delay_ms * 1e-3
        section["keep_out"] = p.keep_out
        return Controller(robot, control_config(robot, section), 1.0 / p.rate_hz)

    def on_activate(self, state: Any) -> TransitionCallbackReturn:
        """Opens the bus and starts the loop."""
        p = self.params
        assert self._controller is not None
        sim_time = bool(self.get_parameter("use_sim_time").value)
        ros_clock = self.get_clock()
        clock = PolledClock(lambda: int(ros_clock.now().nanoseconds)) if sim_time else WallClock()
        bus = MoteusBus(self._controller.robot.motors, p.transport, p.device)
        options = RealTimeOptions(p.rt_priority, p.cpu, p.lock_memory)
        self._loop = MotorLoop(bus, self._controller, clock, options, self._on_event)
        self._writer = JointStateWriter(self._controller.robot.joint_names)
        self._state_ticks = max(1, round(p.rate_hz / p.joint_state_hz))
        self._loop.on_tick = self._publish
        self._wants_enable = p.enable_at_start and not p.dry_run
        self._loop.start()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._loop_timers = [self.create_timer(0.05, self._look_after, clock=steady)]
        if p.estop_topic:
            self._listen_to_estop(p.estop_topic)
        return super().on_activate(state)

    def on_deactivate(self, state: Any) -> TransitionCallbackReturn:
        """Brakes and closes the bus."""
        self._stop_loop()
        return super().on_deactivate(state)

    def on_cleanup(self, state: Any) -> TransitionCallbackReturn:
        """Forgets the robot."""
        self._stop_loop()
        self._controller = None
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: Any) -> TransitionCallbackReturn:
        """Brakes and closes the bus."""
        self._stop_loop()
        return TransitionCallbackReturn.SUCCESS

    def cleanup(self) -> None:
        """However the node ends, the motors end first."""
        self._stop_loop()

    def _stop_loop(self) -> None:
        for timer in getattr(self, "_loop_timers", ()):
            self.destroy_timer(timer)
        self._loop_timers = []
        loop, self._loop = self._loop, None
        if loop is not None and not loop.stop():
            self.log.error("the motor thread did not end in time; the boards stop by their watchdog")

    # ------------------------------------------------------------------ in

    def _on_trajectory(self, raw: bytes) -> None:
        loop, controller = self._loop, self._controller
        if loop is None or controller is None:
            self.count("trajectories before activation")
            return
        try:
            trajectory = joint_trajectory_from_raw(raw)
        except TTError as error:
            self.count("malformed trajectories")
            self.log.warning(f"joint_trajectory refused: {error}", throttle_s=1.0)
            return
        future = loop.call(lambda now_ns: controller.offer(trajectory, now_ns))
        future.add_done_callback(self._report_refusal)

    def _report_refusal(self, future: Future[Answer]) -> None:
        answer = future.result()
        if not answer.ok:
            self.log.warning(answer.text, throttle_s=1.0)

    def _service(self, name: str) -> Any:
        def answer(request: Any, response: Any) -> Any:
            response.success, response.message = self._operate(name)
            (self.log.info if response.success else self.log.warning)(f"motors/{name}: {response.message}")
            return response

        return answer

    def _operate(self, name: str) -> tuple[bool, str]:
        loop, controller = self._loop, self._controller
        if loop is None or controller is None or not loop.is_alive:
            return False, "motor_node is not active; activate it first"
        if name == "enable" and self.params.dry_run:
            return False, "this is a dry run (parameter dry_run): motors are never enabled"
        if name != "enable":
            self._wants_enable = False
        try:
            result: Answer = loop.call(getattr(controller, name)).result(CALL_TIMEOUT_S)
        except FutureTimeout:
            return (
                False,
                f"the motor loop did not answer within {CALL_TIMEOUT_S} s ({controller.state.value})",
            )
        return result.ok, result.text

    def _listen_to_estop(self, topic: str) -> None:
        from std_msgs.msg import Bool

        def on_input(msg: Bool) -> None:
            self._estop_pressed, self._estop_s = bool(msg.data), time.monotonic()
            self._tell_estop()

        self._estop_sub = self.create_subscription(Bool, topic, on_input, 10)
        self._told_estop = None
        self._tell_estop()

    def _tell_estop(self) -> None:
        loop, controller = self._loop, self._controller
        if loop is None or controller is None:
            return
        silent = time.monotonic() - self._estop_s > self.params.estop_timeout_s
        pressed = self._estop_pressed or silent
        if pressed == self._told_estop:
            return  # a call brings the next tick forward
        self._told_estop = pressed
        text = f"emergency stop input {self.params.estop_topic} is " + ("silent" if silent else "pressed")
        loop.call(lambda now_ns: controller.estop_input(pressed, text, now_ns))

    # ------------------------------------------------------------------ out

    def _publish(self, now_ns: int, setpoints: Setpoints, states: BusStates) -> None:
        """What the last tick brought, in the loop's own thread.

        A second thread that wakes as often costs as much as the tick itself, and the interpreter lets the loop wait
        for it.
        """
        loop = self._loop
        if loop is None or loop.latest is None:
            return
        try:
            while loop.commanded:
                done = loop.commanded.popleft()
                self.stamp_latency("commanded", done.capture_stamp_ns, done.done_ns)
            # A joint that did not reply has no state; its age shows in the diagnostics.
            if loop.stats.ticks % self._state_ticks == 0 and states.replied.all():
                raw = self._writer.raw(loop.latest[0], states.pos, states.vel, states.torque)
                self._joint_pub.publish(raw)
        except Exception as error:  # the motors must not stop because nobody can be told about them
            self.count("states not published")
            self.log.error(f"joint states cannot be published: {error}", throttle_s=5.0)

    def _look_after(self) -> None:
        """What is not urgent: enable in simulation, log trips, health, silence of the emergency stop
        input.
        """
        loop, controller = self._loop, self._controller
        if loop is None or controller is None:
            return
        if self.params.estop_topic:
            self._tell_estop()
        if controller.stopped_by_operator:
            self._wants_enable = False
        if self._wants_enable and time.monotonic() - self._enabled_s > ENABLE_AGAIN_S:
            if controller.state in (State.READY, State.STOPPED):
                self._enabled_s = time.monotonic()
                loop.call(controller.enable)
            elif controller.state is State.FAULT:
                loop.call(controller.clear_fault)
        history = list(controller.history)
        total = sum(n for key, n in controller.counts.items() if key.startswith("trip "))
        for record in history[len(history) - min(len(history), total - self._said_trips) :]:
            self.log.error(f"{record.text}: {record.trip.reaction.value}")
        self._said_trips = total
        if not loop.is_alive:
            self.health("error", "the motor thread has ended", key="loop")
        if controller.state in _BAD_STATES:
            level = "warn" if controller.state is State.STOPPED else "error"
            self.health(level, f"motors {controller.state.value}: {controller.reason}", key="state")
        else:
            self.health("ok", key="state")

    def _on_event(self, level: str, text: str) -> None:
        getattr(self.log, level)(text)

    def diagnostic_values(self) -> dict[str, str | float]:
        """State, loop measures, per-joint values, limits that acted."""
        loop, controller = self._loop, self._controller
        if loop is None or controller is None:
            return {"state": "inactive"}
        out: dict[str, str | float] = {"state": controller.state.value, "reason": controller.reason}
        out.update(loop.stats.values())
        out.update(controller.counts)
        out.update({f"limited {k}": v for k, v in controller.limiter.counts.items() if v})
        watch = controller.watch
        out.update({f"limiter {k}": v for k, v in watch.limiters.items()})
        for j, name in enumerate(controller.robot.joint_names):
            out[f"{name} missed replies"] = float(watch.missed_total[j])
            out[f"{name} voltage_V"] = float(watch.last.voltage_v[j])
            out[f"{name} temperature_C"] = float(watch.last.temperature_c[j])
            if np.isfinite(watch.last.torque[j]):
                out[f"{name} effort"] = float(watch.last.torque[j])
        for k, record in enumerate(list(controller.history)[-3:]):
            out[f"trip {k + 1}"] = f"{record.text} (faults {record.faults}, {record.state.value})"
        return out


def main() -> None:
    """Runs the node."""
    run_node(MotorNode)


if __name__ == "__main__":
    main()
