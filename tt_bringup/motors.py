"""What bring-up commands that move motors themselves have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tt_bringup.terminal import Progress, say
from tt_control.config import ControlConfig
from tt_control.errors import ControlError
from tt_control.moteus_bus import MoteusBus
from tt_control.session import MotorSession
from tt_perception.errors import TTError
from tt_planning.robot import RobotModel


@contextlib.contextmanager
def active_motors(
    model: RobotModel, transport: str, device: str, config: ControlConfig | None = None, gentle: bool = False
) -> Iterator[MotorSession]:
    """Session whose motors are enabled; why they cannot be is said once, one line per reason.

    Args:
        model: the robot. transport, device: see `moteus_devices.open_devices`.
        config: controller configuration; that of the robot file when None.
        gentle: use the soft gains of identification.

    Raises:
        TTError: the motors cannot be enabled.
    """
    reasons: list[str] = []
    has_begun = False

    def on_event(level: str, text: str) -> None:
        if level == "error" and not has_begun:
            reasons.append(text)
        else:
            say(f"{level}: {text}")

    session = MotorSession(model, MoteusBus(model.motors, transport, device), config, on_event=on_event)
    if gentle:
        from tt_control.identification import soft_gains

        session.controller.gain = soft_gains(model)
    with session:
        try:
            with Progress("checking, homing and enabling the motors") as bar:
                session.on_wait = bar.update
                session.enable()
        except ControlError:
            if len(reasons) < 2:
                raise
            for text in reasons:
                say(text)
            raise TTError(f"the motors cannot be enabled, for {len(reasons)} reasons above") from None
        has_begun = True
        yield session
