"""Errors of motor control: broken contracts and hardware that cannot be used; motion events are results
instead.
"""

from tt_perception.errors import TTError


class BusError(TTError):
    """The motor bus cannot be opened or used; the text says how to fix it."""


class BusLost(BusError):
    """The adapter vanished or stopped working; it must be closed, opened again and the motors enabled
    anew.
    """


class ControlError(TTError):
    """A value of the control configuration that cannot work; the text names it and what is allowed."""
