"""The computing stages and displays, fed from a bag."""

from tt_bringup.launching import describe


def generate_launch_description():
    """Called by ros2 launch."""
    return describe("replay")
