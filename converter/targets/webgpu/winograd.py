"""Winograd's convolution: m x m outputs of a 3x3 kernel from (m + 2)^2 products instead of 9 m^2.

The matrices come from the product of two polynomials by their values at m + 2 points (one of them
infinity), turned around; exact, in fractions. What each tile size saves and costs is a table here,
and the error of each is measured by the tests, so that the choice can be argued about.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

KERNEL = 3
TILES = (2, 4, 6, 8)
#: Zero and these with both signs, by tile: of eleven fractions between 1/4 and 4 those with the
#: least error in f32 and f16 together. The textbook's (1, 2, 1/2, 4) is ten times worse at 8.
PAIRS = {
    2: (Fraction(1),),
    4: (Fraction(2, 3), Fraction(4, 3)),
    6: (Fraction(1, 2), Fraction(1), Fraction(2)),
    8: (Fraction(1, 3), Fraction(3, 4), Fraction(4, 3), Fraction(2)),
}

Matrix = list[list[Fraction]]


@dataclass(frozen=True)
class Winograd:
    """y = A [(G g G') * (B d B')] A' for a tile d and a kernel g."""

    tile: int
    a: NDArray[np.float64]  # [m, m + 2]
    g: NDArray[np.float64]  # [m + 2, 3]
    b: NDArray[np.float64]  # [m + 2, m + 2]

    @property
    def side(self) -> int:
        return self.tile + KERNEL - 1

    @property
    def saving(self) -> float:
        """Products of the plain convolution for each one of this."""
        return (self.tile * KERNEL / self.side) ** 2

    @property
    def memory(self) -> float:
        """Values of a transformed tensor for each of a plain one."""
        return (self.side / self.tile) ** 2

    @property
    def weights(self) -> float:
        """Values of a transformed kernel for each of a plain one."""
        return (self.side / KERNEL) ** 2


@cache
def winograd(tile: int) -> Winograd:
    n = tile + KERNEL - 1
    points = [Fraction(0), *(sign * p for p in PAIRS[tile] for sign in (1, -1))]
    a = _transposed(_values(tile, points))
    g = _values(KERNEL, points)
    b = _transposed(_inverse(_values(n, points)))
    # Rows of B and G brought to the size of one, by powers of two: no rounding, and what is stored
    # between kernels, the transformed tile and the transformed kernel, stays far from f16's ends.
    # A makes up for it; it is applied in f32.
    for i in range(n):
        size = _power(b[i]) / 2
        b[i], g[i] = [v / size for v in b[i]], [v * size for v in g[i]]
        size = _power(g[i])
        g[i] = [v / size for v in g[i]]
        for row in a:
            row[i] *= size
    return Winograd(tile, *(np.array(m, dtype=np.float64) for m in (a, g, b)))


def transformed(weight: NDArray[np.floating], tile: int) -> NDArray[np.floating]:
    """[out, in, 3, 3] to [(m + 2)^2, in, out], in the precision of the weight."""
    w = winograd(tile)
    taps = weight.transpose(2, 3, 1, 0).reshape(KERNEL**2, -1)  # [9, in * out]
    spread = np.kron(w.g, w.g).astype(weight.dtype) @ taps
    return spread.reshape(w.side**2, weight.shape[1], weight.shape[0])


def _values(size: int, points: list[Fraction]) -> Matrix:
    """A polynomial of `size` coefficients at these points and at infinity."""
    rows = [[point**k for k in range(size)] for point in points]
    return [*rows, [Fraction(int(k == size - 1)) for k in range(size)]]


def _power(row: list[Fraction]) -> Fraction:
    """The power of two next to the sum of a row."""
    return Fraction(2) ** round(math.log2(sum(abs(v) for v in row)))


def _transposed(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def _inverse(matrix: Matrix) -> Matrix:
    """Gauss and Jordan, exactly."""
    n = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = next(r for r in range(i, n) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for r in range(n):
            if r != i and rows[r][i]:
                factor = rows[r][i]
                rows[r] = [v - factor * w for v, w in zip(rows[r], rows[i], strict=True)]
    return [row[n:] for row in rows]
