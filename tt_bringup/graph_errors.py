"""Errors of the process graph."""

from tt_perception.errors import TTError


class GraphError(TTError):
    """A setting, hardware file or parameter file of the graph is wrong."""


class NodeDiedError(TTError):
    """A required process ended while it should have run; the text says which, how, and its last words."""
