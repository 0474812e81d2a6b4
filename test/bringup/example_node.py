"""A node for the tests of the node kit; environment variables tell it where to fail."""

from __future__ import annotations

import os
from dataclasses import dataclass

import rclpy
from geometry_msgs.msg import PoseWithCovarianceStamped
from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor
from rclpy.lifecycle import TransitionCallbackReturn
from std_srvs.srv import Trigger

from tt_bringup.node_kit import TTLifecycleNode, TTNode, param, run_node, run_nodes
from tt_perception.errors import TTError

RANGE = FloatingPointRange(from_value=0.0, to_value=1e300)


@dataclass(frozen=True)
class ExampleParams:
    """One parameter of every type."""

    model: str = param("nominal", choices=("nominal", "match"), doc="Which laws.")
    gate: float = param(0.5, ge=0.0, le=1.0, live=True, doc="A share.")
    count: int = param(3, ge=1, le=9, unit="balls", doc="How many.")
    loud: bool = param(False, doc="Speak up.")
    cameras: tuple[str, ...] = param((), doc="Names.")
    offsets: tuple[float, ...] = param((0.0, 1.0), unit="m", doc="Offsets.")


class ExampleNode(TTNode):
    """Publishes on call, tells that its clean-up ran."""

    def __init__(self) -> None:
        super().__init__("example_node", ExampleParams)
        fails = os.environ.get("EXAMPLE_FAILS")
        if fails == "start":
            raise TTError("the device is on fire; use another one")
        if fails == "name":
            self.create_publisher(PoseWithCovarianceStamped, "//ball", 1)
        if fails == "parameter":
            self.declare_parameter("late", float("inf"), ParameterDescriptor(floating_point_range=[RANGE]))
        if fails == "value":
            float("wide")
        if fails == "file":
            open("n" * 300).close()
        if fails in ("end", "shutdown"):  # and something that needs the communication is due in the same turn
            for _ in range(2):
                self.create_timer(0.1, self._end)
        self._publisher = self.advertise("ball/state")
        self.listen("ball/position", self._on_position, raw=True)
        self.health("warn", "one thing is odd")
        self.count("starts")
        print(f"params {self.params}", flush=True)

    def _end(self) -> None:
        self.end_process() if os.environ["EXAMPLE_FAILS"] == "end" else rclpy.try_shutdown()
        self.create_client(Trigger, "late")

    def _on_position(self, _message: object) -> None:
        self.stamp_latency("estimated", 123)
        if os.environ.get("EXAMPLE_FAILS") == "callback":
            raise RuntimeError("a bug")

    def on_params(self, old: ExampleParams, new: ExampleParams) -> None:
        if new.gate == 0.13:
            raise TTError("0.13 brings bad luck; take another one")

    def cleanup(self) -> None:
        print(f"cleaned up {self.get_name()}", flush=True)
        if os.environ.get("EXAMPLE_FAILS") == "cleanup":
            raise RuntimeError("clean-up has a bug")
        if os.environ.get("EXAMPLE_FAILS") == "late":
            raise TTError("the last word was not written")


@dataclass(frozen=True)
class MotorParams:
    """Parameters of the lifecycle node."""

    autostart: bool = param(True, doc="Configure and activate at the start.")


class ExampleLifecycleNode(TTLifecycleNode):
    """Fails to configure when told so."""

    def __init__(self) -> None:
        super().__init__("motor_node", MotorParams)

    def on_configure(self, state: object) -> TransitionCallbackReturn:
        if os.environ.get("EXAMPLE_FAILS") == "configure":
            raise TTError("no motor answers on the bus; switch the power on")
        print("configured", flush=True)
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: object) -> TransitionCallbackReturn:
        print("activated", flush=True)
        return TransitionCallbackReturn.SUCCESS

    def cleanup(self) -> None:
        print(f"cleaned up {self.get_name()}", flush=True)


if __name__ == "__main__":
    kind = os.environ.get("EXAMPLE_KIND", "node")
    if kind == "lifecycle":
        run_node(ExampleLifecycleNode)
    elif kind == "both":
        run_nodes([ExampleNode, ExampleLifecycleNode])
    else:
        run_node(ExampleNode)
