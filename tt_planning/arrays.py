"""Arrays as compiled kernels want them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def owned(array: FloatArray) -> FloatArray:
    """A writable contiguous copy: a kernel is compiled again, for seconds, for arrays that are not."""
    return np.array(array, dtype=np.float64, order="C")
