"""Base class of every error this project raises on purpose."""


class TTError(Exception):
    """A broken contract or bad input, with a text a user can act on.

    The text says what was wrong (value and unit), what is allowed, and what to do next.
    Expected events, such as a ball that cannot be returned, are results with a reason, not errors.
    """
