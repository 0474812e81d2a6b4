"""The whole stack with simulated cameras, motors and ball."""

from tt_bringup.launching import describe


def generate_launch_description():
    """Called by ros2 launch."""
    return describe("sim")
