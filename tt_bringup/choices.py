"""What the shell offers as values of options; other values, such as paths of files, stay allowed.

The names stand here again, because the modules that own them take long to import.
"""

from __future__ import annotations

from collections.abc import Callable


def one_of(*values: str) -> Callable[[str], list[str]]:
    """For the `autocompletion` of an option with these values."""

    def offered(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return offered


def robots(incomplete: str) -> list[str]:
    """For the `autocompletion` of an option that takes a robot: the shipped ones."""
    from tt_planning.robot import available_robots

    return one_of(*available_robots())(incomplete)


beginnings = one_of("images", "detections", "ball/position", "ball/state")
boards = one_of("charuco", "chessboard", "apriltag")
laws = one_of("auto", "linear", "saturating")
planners = one_of("ours", "nominal", "plane")
transports = one_of("fdcanusb", "uart", "socketcan", "python-can", "pi3hat")
worlds = one_of("nominal", "deepmind", "match")
