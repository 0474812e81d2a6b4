"""The whole stack on the real robot."""

from tt_bringup.launching import describe


def generate_launch_description():
    """Called by ros2 launch."""
    return describe("robot")
