"""Node: ball positions in, ball state per fused measurement and predicted path out."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tt_bringup.node_kit import TTNode, param, run_node
from tt_estimation.messages import ball_state_to_raw, prediction_to_raw
from tt_estimation.model_file import load_model
from tt_estimation.silence import Silence
from tt_estimation.spin_prior import load_spin_prior
from tt_estimation.track import FilterConfig
from tt_estimation.tracker import BallTracker, TrackerConfig
from tt_estimation.warm_up import warm_up
from tt_perception.messages import MessageError, ball_position_from_raw

_EXPIRE_PERIOD_S = 0.05
_SILENCE_S = 10.0


@dataclass(frozen=True)
class BallStateParams:
    """Parameters of the ball state node."""

    model: str = param(
        "nominal", doc="Ball model: nominal, deepmind, match, or the YAML written by tt identify."
    )
    spin_prior: str = param(
        "", doc="Spin prior YAML written by tt identify --spin-prior; empty for the shipped one."
    )
    gate: float = param(0.999, gt=0.5, lt=1.0, doc="Share of correct observations that pass the gate.")
    acceleration_noise: float = param(
        0.003, unit="m/s²/√Hz", ge=0.0, le=10.0, doc="Unmodelled acceleration (moving air)."
    )
    drag_sigma: float = param(0.003, gt=0.0, le=0.5, doc="Standard deviation of the drag coefficient.")
    lift_sigma: float = param(0.01, gt=0.0, le=1.0, doc="Standard deviation of the lift coefficient.")
    restitution_sigma: float = param(
        0.003, gt=0.0, le=0.3, doc="Standard deviation of the table restitution."
    )
    friction_sigma: float = param(0.008, gt=0.0, le=0.3, doc="Standard deviation of the table friction.")
    max_future: float = param(0.05, unit="s", ge=0.0, le=1.0, doc="Stamps may be this far ahead of now.")
    late: float = param(0.25, unit="s", ge=0.0, le=1.0, doc="Older observations than this are refused.")
    lost: float = param(0.2, unit="s", gt=0.0, le=1.0, doc="A track ends when it is not seen for this long.")
    prediction_rate: float = param(
        30.0, unit="Hz", gt=0.0, le=30.0, live=True, doc="Most predicted paths per second."
    )


class BallStateNode(TTNode):
    """Feeds the tracker and publishes `ball/state` and `ball/prediction`."""

    def __init__(self) -> None:
        super().__init__("ball_state_node", BallStateParams)
        p = self.params
        config = TrackerConfig(
            filter=FilterConfig(
                gate=p.gate,
                acceleration_noise=p.acceleration_noise,
                drag_sigma=p.drag_sigma,
                lift_sigma=p.lift_sigma,
                restitution_sigma=p.restitution_sigma,
                friction_sigma=p.friction_sigma,
                spin_prior=load_spin_prior(p.spin_prior),
            ),
            max_future_s=p.max_future,
            late_s=p.late,
            lost_s=p.lost,
        )
        model = load_model(p.model)
        warm_up(model)  # compiling takes seconds: before the first ball, not during it
        self._tracker = BallTracker(model, config)
        self._state_pub = self.advertise("ball/state")
        self._prediction_pub = self.advertise("ball/prediction")
        self._predicted_s = 0.0
        self._silence = Silence()
        self._last_message_s = time.monotonic()
        self.listen("ball/position", self._on_position, raw=True)
        self.create_timer(_EXPIRE_PERIOD_S, self._on_timer)
        self.log.info(f"ball model {model.name}")

    def diagnostic_values(self) -> dict[str, str | float]:
        """Counters of the tracker; a warning after ten silent seconds."""
        silent = time.monotonic() - self._last_message_s
        if silent > _SILENCE_S:
            self.health("warn", f"no ball position for {silent:.0f} s", key="silence")
        else:
            self.health("ok", key="silence")
        return {**self._tracker.health(), "silence_s": silent}

    def _on_position(self, raw: bytes) -> None:
        self._last_message_s = time.monotonic()
        try:
            position = ball_position_from_raw(raw)
        except MessageError as error:
            self.count("bad_message")
            self.log.warning(str(error), throttle_s=1.0)
            return
        now_ns = self.now_ns()
        self._silence.note(position.stamp_ns, now_ns)
        state = self._tracker.add(position, now_ns)
        for event in self._tracker.events():
            self.log.debug(f"track {event.track}: {event.event.value}")
        if state is None:
            return
        done_ns = self.now_ns()
        self._state_pub.publish(ball_state_to_raw(state))
        self.stamp_latency("estimated", state.stamp_ns, done_ns)
        if not 0.0 <= now_ns * 1e-9 - self._predicted_s < 1.0 / self.params.prediction_rate:
            self.later(lambda: self._publish_prediction(now_ns * 1e-9))

    def _publish_prediction(self, now_s: float) -> None:
        prediction = self._tracker.predict()
        if prediction is not None:
            self._predicted_s = now_s
            self._prediction_pub.publish(prediction_to_raw(prediction))

    def _on_timer(self) -> None:
        # Stamps end tracks as long as positions come. In silence the clock does, counted from the last arrival and
        # with patience: delay and a stalled machine are no occlusion.
        expiry_ns = self._silence.expiry_ns(self.now_ns())
        if expiry_ns is not None:
            self._tracker.expire(expiry_ns)


def main() -> None:
    """Runs the node."""
    run_node(BallStateNode)


if __name__ == "__main__":
    main()
