"""Figures, drawn without a display."""

from __future__ import annotations

import base64
import io
from typing import Any


def pyplot() -> Any:
    """The plotting module, imported by the first call, which takes a second."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def png_uri(figure: Any) -> str:
    """A figure of `pyplot` as the data URI of a PNG; the figure is closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    pyplot().close(figure)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
