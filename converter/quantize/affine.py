"""Integers times a scale, symmetric about zero: for each block the scale with the least error.

A scale that reaches the largest weight is safe, but at four bits one that cuts the largest few off
serves all others better: 1.2 dB on average over the embedded model's layers, with the eighth
negative value in use. At eight bits no smaller scale was ever better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import PocketSDError

F32 = NDArray[np.float32]

#: Shares of the largest weight that the largest integer may stand for; all are tried.
SHARES = {4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6), 8: (1.0,)}
#: Of int8 the range is symmetric, as runtimes with int8 arithmetic want it.
LOWEST, HIGHEST = {4: -8, 8: -127}, {4: 7, 8: 127}
_SMALLEST = np.float16(2.0**-24)
_AT_ONCE = 2**20  # weights


def scaled(weights: NDArray[np.float16], bits: int) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Integers [blocks, n] and scales [blocks] for weights [blocks, n]."""
    values = np.empty(weights.shape, np.int8)
    scales = np.empty(len(weights), np.float16)
    step = max(1, _AT_ONCE // weights.shape[1])
    for first in range(0, len(weights), step):
        part = slice(first, first + step)
        values[part], scales[part] = _best(weights[part].astype(np.float32), bits)
    return values, scales


def _best(weights: F32, bits: int) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    largest = np.abs(weights).max(axis=1)
    if not np.isfinite(largest).all():
        raise PocketSDError("weights that are NaN, infinite or beyond fp16 have no scale")
    candidates = [_scale(share * largest, bits) for share in SHARES[bits]]
    errors = [_error(weights, scale, bits) for scale in candidates] if len(candidates) > 1 else []
    best = np.argmin(errors, axis=0) if errors else np.zeros(len(weights), np.intp)
    scales = np.stack(candidates)[best, np.arange(len(weights))]
    return _rounded(weights, scales, bits).astype(np.int8), scales


def _scale(reach: F32, bits: int) -> NDArray[np.float16]:
    return np.maximum((reach / HIGHEST[bits]).astype(np.float16), _SMALLEST)


def _rounded(weights: F32, scales: NDArray[np.float16], bits: int) -> F32:
    steps: F32 = weights / scales.astype(np.float32)[:, None]
    np.rint(steps, out=steps)
    return np.clip(steps, LOWEST[bits], HIGHEST[bits], out=steps)


def _error(weights: F32, scales: NDArray[np.float16], bits: int) -> F32:
    """Squared, by block [blocks]."""
    decoded = _rounded(weights, scales, bits)
    decoded *= scales.astype(np.float32)[:, None]
    decoded -= weights
    error: F32 = np.einsum("bn,bn->b", decoded, decoded)
    return error
