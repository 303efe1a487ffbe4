"""How close two results are."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def psnr(reference: ArrayLike, candidate: ArrayLike) -> float:
    """Peak signal-to-noise ratio in dB; the peak is the reference's largest magnitude.

    Infinite for equal values; minus infinity where the candidate is not finite.
    """
    a, b = np.asarray(reference, np.float64), np.asarray(candidate, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {a.shape} and {b.shape}")
    error = float(np.mean((a - b) ** 2))
    if not math.isfinite(error):
        return -math.inf
    if error == 0:
        return math.inf
    peak = float(np.abs(a).max()) or 1.0
    return 20 * math.log10(peak) - 10 * math.log10(error)
