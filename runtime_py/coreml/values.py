"""MIL's types of values, and how their bytes become numpy arrays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorType:
    """An element type of MIL's ("float16", "uint6", "string" ...) and sizes; None may be any."""

    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype} [{','.join('?' if n is None else str(n) for n in self.shape)}]"

    @property
    def kind(self) -> str:
        """ "float", "int", "uint", "bool" or "string"."""
        return self.dtype.rstrip("0123456789")

    @property
    def bits(self) -> int:
        if self.dtype == "bool":
            return 8
        if not re.fullmatch(r"(u?int|float)\d+", self.dtype):
            raise ValueError(f"{self.dtype} values are not supported")
        return int(self.dtype.removeprefix(self.kind))

    def admits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape, shape, strict=True)
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of what is known beforehand."""
        if None in self.shape:
            raise ValueError("a constant has no fixed shape")
        return tuple(n for n in self.shape if n is not None)

    @property
    def count(self) -> int:
        return prod(self.sizes)

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type that holds one element: a whole byte for types of fewer bits."""
        bits = self.bits
        return np.dtype(f"{self.kind}8" if bits < 8 else self.dtype)

    @property
    def packed_bytes(self) -> int:
        return -(-self.count * self.bits // 8)


def unpack(raw: NDArray[np.uint8], kind: TensorType) -> Array:
    """An array from its bytes. Elements under 8 bits follow each other, lowest bit first."""
    if raw.nbytes != kind.packed_bytes:
        raise ValueError(f"{raw.nbytes} bytes are not {kind}")
    if kind.bits >= 8:
        return raw.view(kind.storage).reshape(kind.sizes)
    values = unpack_bits(raw, kind.bits)[: kind.count].reshape(kind.sizes)
    if kind.kind == "uint":
        return values
    half = 1 << (kind.bits - 1)  # the highest bit counts negative
    return (values ^ half).astype(np.int8) - np.int8(half)


def unpack_bits(raw: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """All numbers of so many bits, lowest bit first; the last may be padding."""
    groups = -(-raw.size // bits)
    padded = np.zeros(groups * bits + 1, np.uint8)  # one more to read over the end
    padded[: raw.size] = raw
    values = np.empty((groups, 8), np.uint8)  # every `bits` bytes hold 8 numbers
    for index in range(8):
        byte, shift = divmod(index * bits, 8)
        number = padded[byte : byte + groups * bits : bits] >> shift
        if shift + bits > 8:  # the rest is in the next byte
            number |= padded[byte + 1 :: bits][:groups] << (8 - shift)
        values[:, index] = number & ((1 << bits) - 1)
    return values.reshape(-1)
