"""Base classes of all nodes: parameters, topics by name, latency stamps, health and diagnostics."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions

from tt_bringup.node_kit.hand_over import hand_over
from tt_bringup.node_kit.inbox import Inbox
from tt_bringup.node_kit.log import ThrottledLog
from tt_bringup.node_kit.ros_params import ParameterBinding
from tt_bringup.topics import NAMESPACE, Qos, topic
from tt_perception.cdr import CdrTemplate
from tt_perception.errors import TTError

# What one computing stage makes for the next one, always as serialized bytes; composed stages get it without a
# trip through DDS.
HANDED_OVER = ("ball/position", "ball/state", "hit_plan", "joint_trajectory")
URGENT = ("joint_trajectory",)  # the motors wait for it
LATENCY_STAGES = ("arrived", "detected", "triangulated", "estimated", "planned", "trajectory", "commanded")
DIAGNOSTIC_PERIOD_S = 1.0
_LEVELS = {
    "ok": DiagnosticStatus.OK,
    "warn": DiagnosticStatus.WARN,
    "error": DiagnosticStatus.ERROR,
    "stale": DiagnosticStatus.STALE,
}

# Nodes whose constructor began, also those whose constructor failed half way: run_nodes cleans them all up.
started_nodes: list[_NodeKit] = []


def qos_profile(qos: Qos) -> QoSProfile:
    """The ROS profile of a row of the topic table."""
    reliable, latched, depth = qos.value
    return QoSProfile(
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


class _NodeKit:
    """What ordinary and lifecycle nodes share; mixed in before the rclpy class.

    Attributes:
        params: the parameter dataclass of the node; replaced when a live parameter changes.
        log: throttled logger.
        end_process: ends this process in order, from any callback or thread. What is due in the same turn still
            runs, and would fail without communication: `rclpy.shutdown` is none of a node's business.
    """

    params: Any
    log: ThrottledLog
    end_process: Callable[[], None]

    def _start_kit(self, params_class: type | None) -> None:
        started_nodes.append(self)
        self.log = ThrottledLog(self.get_logger())  # type: ignore[attr-defined]
        self._counts: dict[str, float] = {}
        self._health: dict[str, tuple[str, str, float]] = {}
        self._binding = ParameterBinding(self, params_class, self._on_live_params)
        self.params = self._binding.params
        self._inboxes: list[Inbox] = []
        self._used_s = (time.process_time(), time.monotonic())
        self._latency_pub = self.advertise("latency")
        self._stamps = {
            stage: CdrTemplate().time().string(self.get_name()).time().string(stage)  # type: ignore[attr-defined]
            for stage in LATENCY_STAGES
        }
        self._diagnostics_pub = self.advertise("/diagnostics")
        # A steady clock: diagnostics must also tell of a simulated clock that stands still.
        self.create_timer(  # type: ignore[attr-defined]
            DIAGNOSTIC_PERIOD_S, self.publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def advertise(self, name: str, **words: str) -> Any:
        """Makes the publisher of a topic, e.g. `advertise("{camera}/detections", camera="cam0")`.

        It takes messages as objects or serialized; topics of `HANDED_OVER` serialized only.
        """
        row = topic(name)
        assert row.qos is not None, f"{name} is a service"
        publisher = self.create_publisher(  # type: ignore[attr-defined]
            row.ros_type(),
            row.resolve(**words),
            qos_profile(row.qos),
            qos_overriding_options=_qos_overrides(),
        )
        if name not in HANDED_OVER:
            return publisher
        if name in URGENT:
            hand_over.urgent.add(publisher.topic_name)
        return hand_over.publisher(publisher)

    def listen(self, name: str, callback: Callable[[Any], None], raw: bool = False, **words: str) -> Any:
        """Subscribes to a topic of the table; with `raw` the callback gets the serialized bytes."""
        row = topic(name)
        assert row.qos is not None, f"{name} is a service"
        assert raw or not hand_over.enabled or name not in HANDED_OVER, f"{name} is handed over serialized"
        callback = hand_over.listener(callback)
        subscription = self.create_subscription(  # type: ignore[attr-defined]
            row.ros_type(),
            row.resolve(**words),
            callback,
            qos_profile(row.qos),
            raw=raw,
            qos_overriding_options=_qos_overrides(),
        )
        hand_over.connect(subscription.topic_name, callback)
        return subscription

    def inbox(self, name: str, depth: int = 1) -> Inbox:
        """The messages of a topic, kept until somebody looks; at most the newest `depth`."""
        row = topic(name)
        assert row.qos is not None, f"{name} is a service"
        profile = qos_profile(row.qos)
        profile.depth = depth
        # Who looks now and then can do without what got lost; every acknowledgement would wake both processes.
        profile.reliability = ReliabilityPolicy.BEST_EFFORT
        found = Inbox(self, row.ros_type(), row.resolve(), profile)  # type: ignore[arg-type]
        self._inboxes.append(found)
        return found

    def close_inbox(self, inbox: Inbox) -> None:
        """Ends an inbox before the node ends."""
        self._inboxes.remove(inbox)
        inbox.close()

    def serve(self, name: str, callback: Callable[[Any, Any], Any]) -> Any:
        """Offers a service of the table; the callback gets request and response and returns the response."""
        row = topic(name)
        return self.create_service(row.ros_type(), row.resolve(), callback)  # type: ignore[attr-defined]

    def client(self, name: str) -> Any:
        """Makes a client of a service of the table."""
        row = topic(name)
        return self.create_client(row.ros_type(), row.resolve())  # type: ignore[attr-defined]

    def now_ns(self) -> int:
        """Time of the node clock (simulated when `use_sim_time`), integer nanoseconds."""
        return int(self.get_clock().now().nanoseconds)  # type: ignore[attr-defined]

    def stamp_latency(self, stage: str, capture_stamp_ns: int, done_ns: int | None = None) -> None:
        """Tells when a stage finished its work on one capture.

        Args:
            stage: one of `LATENCY_STAGES`.
            capture_stamp_ns: mid-exposure time of the image the result derives from.
            done_ns: when it finished: before its result was published, or the stage behind could seem to end
                sooner; now when left out.
        """
        assert stage in LATENCY_STAGES, stage
        raw = self._stamps[stage].fill(capture_stamp_ns, self.now_ns() if done_ns is None else done_ns)
        hand_over.later(lambda: self._latency_pub.publish(raw))

    def later(self, action: Callable[[], None]) -> None:
        """Runs `action` when the composed stages that wait for the running one have ended; else at once."""
        hand_over.later(action)

    def count(self, name: str, step: float = 1) -> None:
        """Adds to a counter that the diagnostics show."""
        self._counts[name] = self._counts.get(name, 0) + step

    def health(self, level: str, text: str = "", *, key: str = "", hold_s: float = 0.0) -> None:
        """Reports the condition of the node, shown in the diagnostics until it is reported again.

        Args:
            level: `ok`, `warn`, `error` or `stale`; `ok` ends an earlier report with the same key.
            text: one sentence.
            key: which condition; the worst of all keys is the level of the node.
            hold_s: forget the condition after this time; 0 keeps it until the next report.
        """
        assert level in _LEVELS, level
        if level == "ok" and not text:
            self._health.pop(key, None)
        else:
            until = time.monotonic() + hold_s if hold_s > 0.0 else float("inf")
            self._health[key] = (level, text, until)

    def diagnostic_values(self) -> dict[str, str | float]:
        """Values to add to the diagnostics; nodes override it."""
        return {}

    def on_params(self, old: Any, new: Any) -> None:
        """Called when live parameters change, before `params` is replaced; raise TTError to refuse."""

    def begin(self) -> None:
        """Called once before the first callback. A signal no longer interrupts: what begins here, `cleanup` ends."""

    def cleanup(self) -> None:
        """Puts hardware into a safe state. Runs however the node ends, also after a failed start."""

    def destroy_node(self) -> None:
        """Ends the inboxes too."""
        for inbox in self._inboxes:
            inbox.close()
        self._inboxes.clear()
        super().destroy_node()  # type: ignore[misc]

    def publish_diagnostics(self) -> None:
        """Publishes level, worst condition, counters and values; called once a second."""
        now = time.monotonic()
        self._health = {key: entry for key, entry in self._health.items() if entry[2] > now}
        worst = sorted(self._health.values(), key=lambda entry: _LEVELS[entry[0]], reverse=True)
        status = DiagnosticStatus()
        status.level = _LEVELS[worst[0][0]] if worst else DiagnosticStatus.OK
        status.name = self.get_fully_qualified_name()  # type: ignore[attr-defined]
        status.message = "; ".join(text for _, text, _ in worst if text) or "ok"
        status.hardware_id = self.get_name()  # type: ignore[attr-defined]
        values = {**self._counts, **self.diagnostic_values()}
        if next(iter(started_nodes), None) is self:  # composed nodes share one process
            values["cpu_share"] = self._cpu_share()
        status.values = [KeyValue(key=key, value=_text(value)) for key, value in values.items()]
        array = DiagnosticArray()
        array.header.stamp = self.get_clock().now().to_msg()  # type: ignore[attr-defined]
        array.status = [status]
        self._diagnostics_pub.publish(array)

    def _cpu_share(self) -> float:
        """Processor time of this process since the last call, in shares of one core."""
        before, self._used_s = self._used_s, (time.process_time(), time.monotonic())
        return (self._used_s[0] - before[0]) / max(self._used_s[1] - before[1], 1e-9)

    def _on_live_params(self, old: Any, new: Any) -> None:
        self.on_params(old, new)
        self.params = new


class TTNode(_NodeKit, Node):
    """An ordinary node in namespace `tt`."""

    def __init__(self, name: str, params_class: type | None = None, **kwargs: Any) -> None:
        """Declares the parameters, and starts diagnostics.

        Raises:
            ParameterError: the user gave an unknown parameter or a value that is not allowed.
        """
        kwargs.setdefault("namespace", NAMESPACE)
        Node.__init__(self, name, **kwargs)
        self._start_kit(params_class)


class TTLifecycleNode(_NodeKit, LifecycleNode):
    """A node with the states unconfigured, inactive and active; on_configure etc. are those of rclpy.

    rclpy swallows what the callbacks raise. Here a TTError is logged as one line and means FAILURE, any other
    exception is logged and means ERROR.

    Attributes:
        transition_error: text of the last failed transition, empty when none failed.
    """

    def __init__(self, name: str, params_class: type | None = None, **kwargs: Any) -> None:
        """Declares the parameters, and starts diagnostics; see `TTNode`."""
        kwargs.setdefault("namespace", NAMESPACE)
        self.transition_error = ""
        LifecycleNode.__init__(self, name, **kwargs)
        self._start_kit(params_class)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Makes failures of the transition callbacks visible."""
        super().__init_subclass__(**kwargs)
        for name in ("on_configure", "on_activate", "on_deactivate", "on_cleanup", "on_shutdown", "on_error"):
            if name in cls.__dict__:
                setattr(cls, name, _reporting(cls.__dict__[name]))

    def autostart(self) -> None:
        """Configures and activates the node.

        Raises:
            TTError: a transition failed, with the reason.
        """
        for verb, trigger in (("configured", self.trigger_configure), ("activated", self.trigger_activate)):
            if trigger() != TransitionCallbackReturn.SUCCESS:
                reason = self.transition_error or "its transition callback refused"
                raise TTError(f"{self.get_name()} could not be {verb}: {reason}")


def _reporting(callback: Callable[[Any, Any], TransitionCallbackReturn]) -> Callable[[Any, Any], Any]:
    @functools.wraps(callback)
    def wrapper(self: TTLifecycleNode, state: Any) -> TransitionCallbackReturn:
        try:
            return callback(self, state)
        except TTError as error:
            self.transition_error = str(error)
            self.log.error(str(error))
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            self.transition_error = f"{type(error).__name__}: {error}"
            self.log.error(f"{callback.__name__} failed: {self.transition_error}")
            return TransitionCallbackReturn.ERROR

    return wrapper


def _qos_overrides() -> QoSOverridingOptions:
    return QoSOverridingOptions.with_default_policies()


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
