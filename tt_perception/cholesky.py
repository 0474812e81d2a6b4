"""Cholesky solve of small symmetric positive definite systems, compiled: one for all kernels that need it."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def solve_spd(m: np.ndarray, n: int, b: np.ndarray, cols: int, smallest: float) -> bool:
    """Solve the leading n × n block of `m` (its lower triangle becomes the factor) for columns of `b`, in place.

    Args:
        m: shape (≥ n, ≥ n); only its lower triangle is read.
        n: unknowns.
        b: shape (≥ n, ≥ cols).
        cols: how many columns of `b` to solve for.
        smallest: pivots (squares of the factor's diagonal) up to this one count as singular.

    Returns:
        False, with `b` untouched, when the block is not positive definite.
    """
    for j in range(n):
        d = m[j, j]
        for k in range(j):
            d -= m[j, k] * m[j, k]
        if not d > smallest:
            return False
        d = math.sqrt(d)
        m[j, j] = d
        for i in range(j + 1, n):
            a = m[i, j]
            for k in range(j):
                a -= m[i, k] * m[j, k]
            m[i, j] = a / d
    for c in range(cols):
        for i in range(n):
            a = b[i, c]
            for k in range(i):
                a -= m[i, k] * b[k, c]
            b[i, c] = a / m[i, i]
        for i in range(n - 1, -1, -1):
            a = b[i, c]
            for k in range(i + 1, n):
                a -= m[k, i] * b[k, c]
            b[i, c] = a / m[i, i]
    return True
