"""Errors of robot descriptions; expected events of planning are results, not errors."""

from tt_perception.errors import TTError


class RobotError(TTError):
    """A robot YAML or URDF that cannot be used; the text names the file and the entry."""
