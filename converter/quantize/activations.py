"""The ranges of what enters each layer, for arithmetic on integers.

The component is run on recorded inputs; whatever goes into a fused op that multiplies by weights is
watched. A first pass finds the ends, a second one counts the values in between, and the counts tell
where to clip so that eight bits err least: a value that is cut off costs its own error, one that is
kept makes the steps of all others longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from converter.ops import get_op
from converter.quantize.layers import layers_of
from converter.quantize.sensitivity import Subject

F64 = NDArray[np.float64]
See = Callable[[str, Tensor], None]

#: The fused ops whose product integers can compute; what enters is their first argument.
OPS = ("conv2d", "linear", "geglu")
BINS = 4096
#: Shares of either end at which to clip; all pairs are tried.
SHARES = (1.0, 0.975, 0.95, 0.925, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
LOWEST, HIGHEST = -128, 127


@dataclass(frozen=True)
class Range:
    """Zero is always inside, and always exact: padding depends on it."""

    low: float
    high: float

    @property
    def scale(self) -> float:
        """Of one step of int8."""
        return (self.high - self.low) / (HIGHEST - LOWEST) or 1.0

    @property
    def zero_point(self) -> int:
        """The integer that stands for zero."""
        return LOWEST - round(self.low / self.scale)

    def joined(self, values: Tensor) -> Range:
        low, high = (float(end) for end in values.aminmax())
        return Range(min(self.low, low), max(self.high, high))


@dataclass(frozen=True)
class Ranges:
    whole: Range
    clipped: Range  # with the least squared error in eight bits


def activation_ranges(
    subject: Subject, advance: Callable[[str], None] = lambda stage: None
) -> dict[str, Ranges]:
    """What enters each layer over all samples, by layer in the order they are met."""
    ends: dict[str, Range] = {}
    counts: dict[str, F64] = {}

    def widen(layer: str, values: Tensor) -> None:
        ends[layer] = ends.get(layer, Range(0.0, 0.0)).joined(values)

    def tally(layer: str, values: Tensor) -> None:
        low, high = ends[layer].low, ends[layer].high
        found = torch.histc(values.float(), BINS, low, high).double().numpy()
        counts[layer] = counts[layer] + found if layer in counts else found

    for what, see in (("ends", widen), ("values in between", tally)):
        for number, inputs in enumerate(subject.inputs):
            advance(f"{what}, sample {number + 1} of {len(subject.inputs)}")
            with torch.no_grad(), _Watch(subject, see):
                subject.module(*inputs)
    return {layer: Ranges(ends[layer], clipped(ends[layer], counts[layer])) for layer in ends}


def clipped(ends: Range, counts: F64) -> Range:
    """The part of a range, with counts of its equal bins, that eight bits cover with least error.

    Rounding is carried out, not estimated: after SiLU and GELU most values crowd close to zero,
    where the usual twelfth of a squared step is wrong by up to 2 dB.
    """
    if ends.low == ends.high:
        return ends
    width = (ends.high - ends.low) / len(counts)
    seen = np.flatnonzero(counts)
    middles = np.asarray(ends.low + width * (seen + 0.5), np.float64)
    lows, highs = (dict.fromkeys(share * end for share in SHARES) for end in (ends.low, ends.high))
    candidates = [Range(low, high) for low in lows for high in highs]  # the whole range first
    return min(candidates, key=lambda each: _error(each, middles, counts[seen]))


def _error(candidate: Range, values: F64, counts: F64) -> float:
    steps = values / candidate.scale
    np.rint(steps, out=steps)
    zero = candidate.zero_point
    np.clip(steps, LOWEST - zero, HIGHEST - zero, out=steps)
    steps *= candidate.scale
    steps -= values
    return float(np.dot(steps * steps, counts))


class _Watch(TorchDispatchMode):
    """Sees what enters the layers, known by where their weights are stored."""

    def __init__(self, subject: Subject, see: See) -> None:
        super().__init__()
        weights = layers_of(subject.module)
        self._layer = {weight.data_ptr(): layer for layer, weight in weights.items()}
        self._see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = get_op(str(func))
        if op is not None and op.name in OPS:
            self._see(self._layer[args[1].data_ptr()], args[0])
        return func(*args, **(kwargs or {}))
