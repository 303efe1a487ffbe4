"""Cases of MIL's operations: what one is given, and what it is held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

RNG = np.random.default_rng(7)


def some(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*shape: int, below: int = 9) -> np.ndarray:
    return RNG.integers(0, below, shape).astype(np.int32)


@dataclass(frozen=True)
class Case:
    """One operation. Without an oracle coremltools' own inference over constants is asked."""

    op: str
    given: dict[str, Any]
    oracle: Callable[..., Any] | None = None
    opset: str = "iOS17"
    label: str = ""

    def __str__(self) -> str:
        return f"{self.op}{'-' if self.label else ''}{self.label}"


def case(
    op: str,
    oracle: Callable[..., Any] | None = None,
    /,
    *,
    opset: str = "iOS17",
    label: str = "",
    **given: Any,
) -> Case:
    return Case(op, given, oracle, opset, label)


def t(value: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(value))


X, POSITIVE, UNIT = some(2, 3, 4), np.abs(some(2, 3, 4)) + 0.1, np.tanh(some(2, 3, 4))
IMAGE, CUBE = some(2, 4, 6, 8), some(1, 2, 4, 5, 6)
TRUTHS = RNG.random((2, 3, 4)) > 0.5
