"""Weights in a compressed form: plain arrays that a target writes into its files as they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

F16 = NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class Plain:
    values: F16

    def decoded(self) -> F16:
        return self.values

    @property
    def bytes(self) -> int:
        return self.values.nbytes


@dataclass(frozen=True, eq=False)
class Indexed:
    """Each weight is an entry of its group's table; groups are consecutive output channels."""

    indices: NDArray[np.uint8]  # [out, in, ...]
    tables: F16  # [groups, 2**bits]

    def decoded(self) -> F16:
        groups = len(self.tables)
        rows = self.indices.reshape(groups, -1)
        weights = np.empty(rows.shape, np.float16)
        for group in range(groups):
            np.take(self.tables[group], rows[group], out=weights[group])
        return weights.reshape(self.indices.shape)

    @property
    def bits(self) -> int:
        return int(self.tables.shape[1]).bit_length() - 1

    @property
    def bytes(self) -> int:
        return -(-self.indices.size * self.bits // 8) + self.tables.nbytes


@dataclass(frozen=True, eq=False)
class Scaled:
    """Each weight is an integer times its block's scale; blocks are consecutive input channels."""

    values: NDArray[np.int8]  # [out, in, ...]
    scales: F16  # [out, blocks]
    bits: int

    def decoded(self) -> F16:
        out, blocks = self.scales.shape
        rows = self.values.reshape(out, blocks, -1)  # a block of inputs is contiguous
        weights = rows.astype(np.float16)
        weights *= self.scales[..., None]
        return weights.reshape(self.values.shape)

    @property
    def bytes(self) -> int:
        return -(-prod(self.values.shape) * self.bits // 8) + self.scales.nbytes


Compressed = Plain | Indexed | Scaled
