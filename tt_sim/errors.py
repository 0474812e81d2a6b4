"""Errors of the simulation, for bad input."""

from tt_perception.errors import TTError


class SimError(TTError):
    """The simulation was asked for something it cannot do."""


class BallFileError(SimError):
    """A ball file is missing or malformed."""
