"""Wire form of what the simulation publishes: referee results as diagnostic_msgs/DiagnosticStatus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

if TYPE_CHECKING:  # a client that only reads results need not load the physics
    from tt_sim.referee import BallResult

_RETURNED = "returned"


def result_to_msg(result: BallResult) -> DiagnosticStatus:
    """One entry per value of `BallResult.as_json`, each value as JSON text."""
    status = DiagnosticStatus()
    status.level = DiagnosticStatus.OK if result.outcome.value == _RETURNED else DiagnosticStatus.WARN
    status.name = "sim/result"
    status.message = f"{result.outcome.value}: {result.cause.value}"
    status.hardware_id = "sim_node"
    status.values = [KeyValue(key=k, value=json.dumps(v)) for k, v in result.as_json().items()]
    return status


def result_from_msg(message: DiagnosticStatus) -> dict[str, Any]:
    """The values of `BallResult.as_json`."""
    return {item.key: json.loads(item.value) for item in message.values}
