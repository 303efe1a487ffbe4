"""The best table of few values for many weights: k-means, exact in the weights.

Weights are shipped in fp16, so however many there are, they have at most 63,488 values: k-means on
an exact histogram of those sees every weight and costs next to nothing. On a line a cluster is an
interval, and its error follows from prefix sums at its two ends. Lloyd's iteration alone depends on
where it starts (from quantiles it ends 2 dB short at 6 bits, 8 dB at 8 bits, on the embedded
model's layers), so the start is an optimum itself: dynamic programming over intervals that end at
some hundred places chosen by density. What it finds is within 0.01 dB of the finest grid tried.

All groups of a tensor are worked on together: their histograms lie behind each other in one array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from runtime_py.errors import PocketSDError

F64 = NDArray[np.float64]
Ints = NDArray[np.intp]

#: Places where an interval may end, for each entry of the table; and at least.
PLACES_PER_ENTRY, FEWEST_PLACES = 16, 256
#: No interval is longer than this many times its share of the places.
LONGEST = 4
#: Apart enough that no value of one group can pass for one of the next; at 64 groups at a time
#: sums with it are still exact.
GROUP_STRIDE, MOST_GROUPS = 2.0**18, 64
_MOST_MOVES = 10_000  # some dozens are usual
_ROOM = 2**21  # numbers in the largest array of the search
_SLICE = 2**20  # weights counted, or looked up, at once


def _values_in_order() -> tuple[F64, Ints]:
    """All finite values of fp16, and the bit patterns that they have."""
    patterns = np.arange(2**16, dtype=np.uint16)
    values = patterns.view(np.float16).astype(np.float64)
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    return values[order], order


_VALUES, _PATTERNS = _values_in_order()


def palettes(
    weights: NDArray[np.float16], bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Numbers [groups, n] and tables [groups, 2**bits] for weights [groups, n]."""
    entries = 2**bits
    patterns = weights.view(np.uint16)
    numbers = np.empty(weights.shape, np.uint8)
    tables = np.empty((len(weights), entries), np.float16)
    places = max(PLACES_PER_ENTRY * entries, FEWEST_PLACES)
    together = min(MOST_GROUPS, max(1, _ROOM * entries // (LONGEST * places**2)))
    for first in range(0, len(weights), together):
        part = slice(first, first + together)
        histogram = count(patterns[part])
        centres = lloyd(histogram, best_start(histogram, entries, places))
        tables[part] = np.sort(centres.astype(np.float16), axis=1)
        for group in range(*part.indices(len(weights))):
            _look_up(patterns[group], tables[group], out=numbers[group])
    return numbers, tables


@dataclass(frozen=True, eq=False)
class Histogram:
    """The distinct values of several groups in rising order, with prefix sums over all of them."""

    values: F64  # [n], group after group
    starts: Ints  # [groups + 1], where each group's values begin
    weight: F64  # [n + 1], sums of counts
    sum: F64  # [n + 1], of count * value
    square: F64  # [n + 1], of count * value**2

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def keys(self) -> F64:
        """The values, each group shifted so that one search serves all."""
        group = np.repeat(np.arange(len(self)), np.diff(self.starts))
        return self.values + GROUP_STRIDE * group

    def means(self, ends: Ints, otherwise: F64) -> F64:
        """Of intervals between neighbouring ends [groups, k + 1]; [groups, k]."""
        weight, total = (np.diff(sums[ends], axis=1) for sums in (self.weight, self.sum))
        return np.divide(total, weight, out=otherwise.copy(), where=weight > 0)


def count(patterns: NDArray[np.uint16]) -> Histogram:
    """The exact histogram of fp16 bit patterns [groups, n]."""
    counts = np.zeros((len(patterns), 2**16), np.intp)
    for row, tally in zip(patterns, counts, strict=True):
        for first in range(0, len(row), _SLICE):
            tally += np.bincount(row[first : first + _SLICE], minlength=2**16)
    ordered = np.take(counts, _PATTERNS, axis=1)  # C order, which indexing would not give
    if ordered.sum() != patterns.size:
        raise PocketSDError("weights that are NaN, infinite or beyond fp16 have no palette")
    seen = np.flatnonzero(ordered)
    values, weight = _VALUES[seen % len(_VALUES)], ordered.ravel()[seen].astype(np.float64)
    starts = np.searchsorted(seen, len(_VALUES) * np.arange(len(patterns) + 1))
    sums = (np.concatenate([[0.0], np.cumsum(weight * values**power)]) for power in range(3))
    return Histogram(values, starts, *sums)


def best_start(histogram: Histogram, entries: int, places: int) -> F64:
    """Centres [groups, entries] of the best intervals that end at one of `places` per group."""
    longest = LONGEST * places // entries
    places = min(places, int(np.diff(histogram.starts).max()))  # no more than there are values
    longest = min(longest, places)
    ends, final = _places(histogram, places)
    error = _interval_errors(histogram, ends, longest)
    # best[g, j]: least error of all values before ends[g, j], with as many intervals as steps
    best = np.full(ends.shape, np.inf)
    best[:, 0] = 0
    steps = []
    for _ in range(entries):
        candidates = _before(best, longest, np.inf) + error
        steps.append(candidates.argmin(axis=2))
        best = np.take_along_axis(candidates, steps[-1][..., None], axis=2)[..., 0]
    rows = np.arange(len(histogram))
    chosen = [final]
    for step in reversed(steps):
        chosen.append(chosen[-1] - longest + step[rows, chosen[-1]])
    bounds = ends[rows[:, None], np.stack(chosen[::-1], axis=1)]
    at = np.clip(bounds[:, 1:] - 1, histogram.starts[:-1, None], None)
    return histogram.means(bounds, otherwise=histogram.values[at])


def lloyd(histogram: Histogram, centres: F64) -> F64:
    """Move sorted centres [groups, k] to the means of what is nearest to them, until they rest."""
    keys = histogram.keys
    shift = GROUP_STRIDE * np.arange(len(histogram))[:, None]
    first, last = histogram.starts[:-1, None], histogram.starts[1:, None]
    before = None
    for _ in range(_MOST_MOVES):
        between = np.searchsorted(keys, (centres[:, 1:] + centres[:, :-1]) / 2 + shift)
        ends = np.concatenate([first, between, last], axis=1)
        if before is None or not np.array_equal(ends, before):
            centres, before = histogram.means(ends, otherwise=centres), ends
            continue
        idle = np.flatnonzero((np.diff(ends, axis=1) == 0).any(axis=1)).tolist()
        moved = [_employ(histogram, group, centres[group], ends[group]) for group in idle]
        if not any(moved):
            break
    return centres


def _employ(histogram: Histogram, group: int, centres: F64, ends: Ints) -> bool:
    """Move one centre that nothing is near to where the error is largest, if there is any."""
    part = slice(ends[0], ends[-1])
    number = np.diff(ends)
    owner = np.repeat(np.arange(len(centres)), number)
    error = np.diff(histogram.weight)[part] * (histogram.values[part] - centres[owner]) ** 2
    error[number[owner] == 1] = 0  # a value by itself is off by the rounding of sums, no more
    worst = int(error.argmax())
    if error[worst] == 0:
        return False
    centres[np.flatnonzero(number == 0)[0]] = histogram.values[part][worst]
    centres.sort()
    return True


def _places(histogram: Histogram, places: int) -> tuple[Ints, Ints]:
    """Where intervals may end: indices [groups, places + 1], and which of them is the last value's.

    In the best table of many entries their density follows the cube root of that of the weights.
    Groups of few values get a place after each.
    """
    values, starts = histogram.values, histogram.starts
    number = np.diff(starts)
    group = np.repeat(np.arange(len(histogram)), number)
    middle = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2, values[-1:]])
    left, right = middle[:-1].copy(), middle[1:].copy()
    left[starts[:-1]], right[starts[1:] - 1] = values[starts[:-1]], values[starts[1:] - 1]
    share = np.cbrt(np.diff(histogram.weight) * (right - left) ** 2)
    so_far = np.concatenate([[0.0], np.cumsum(share)])
    at_start = so_far[starts]
    total = np.maximum(np.diff(at_start), np.finfo(np.float64).tiny)
    rising = (so_far[1:] - at_start[group]) / total[group] + 2.0 * group
    levels = np.linspace(0, 1, places + 1) + 2.0 * np.arange(len(histogram))[:, None]
    ends = np.searchsorted(rising, levels)
    ends[:, 0], ends[:, -1] = starts[:-1], starts[1:]
    each = starts[:-1, None] + np.minimum(np.arange(places + 1), number[:, None])
    ends = np.where(number[:, None] <= places, each, ends)
    # A gap has many places at one index: they go to the end, or intervals would be spent on them.
    ends[:, 1:][ends[:, 1:] == ends[:, :-1]] = np.iinfo(ends.dtype).max
    ends = np.minimum(np.sort(ends, axis=1), starts[1:, None])
    return ends, (ends < starts[1:, None]).sum(axis=1)


def _interval_errors(histogram: Histogram, ends: Ints, longest: int) -> F64:
    """Squared error of one centre for what lies between two places.

    [groups, places + 1, longest + 1]; the last axis counts from `longest` places before to none.
    """
    weight, total, square = (
        sums[ends][..., None] - _before(sums[ends], longest, np.nan)
        for sums in (histogram.weight, histogram.sum, histogram.square)
    )
    total **= 2
    error = square - np.divide(total, weight, out=np.zeros_like(total), where=weight != 0)
    error[np.isnan(error)] = np.inf
    return error


def _before(x: F64, longest: int, filler: float) -> F64:
    """Of each place, the values from `longest` places before to its own."""
    padded = np.pad(x, ((0, 0), (longest, 0)), constant_values=filler)
    return sliding_window_view(padded, longest + 1, axis=1)


def _look_up(
    patterns: NDArray[np.uint16], table: NDArray[np.float16], out: NDArray[np.uint8]
) -> None:
    """The number of the nearest entry for each bit pattern."""
    entries = table.astype(np.float64)
    between = np.searchsorted(_VALUES, (entries[1:] + entries[:-1]) / 2)
    number = np.zeros(2**16, np.uint8)
    number[_PATTERNS] = np.repeat(
        np.arange(len(table)), np.diff(between, prepend=0, append=len(_VALUES))
    )
    for first in range(0, len(patterns), _SLICE):
        part = slice(first, first + _SLICE)
        np.take(number, patterns[part], out=out[part], mode="clip")
