"""Where in one buffer every tensor lies: those that live at the same time must not overlap.

Heuristics are tried, and then changes of the best one's order, in which a tensor that reaches the
top gets its place earlier; the best is kept. No arrangement can be smaller than what lives at the
busiest moment, so that is where the search ends.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TRIES = 2000  # a UNet has about 700 tensors: some seconds


@dataclass(frozen=True)
class Life:
    """A tensor from the first kernel that touches it to the last one."""

    storage: int
    size: int
    begin: int
    end: int

    def meets(self, other: Life) -> bool:
        return self.begin <= other.end and other.begin <= self.end


@dataclass(frozen=True)
class Arrangement:
    size: int
    offsets: Mapping[int, int]
    bound: int  # what lives at once at the busiest moment
    how: str


def arrange(lives: Sequence[Life], tries: int = TRIES) -> Arrangement:
    bound = lower_bound(lives)
    orders = {
        "by size": sorted(lives, key=lambda t: (-t.size, t.begin)),
        "by crowd": by_crowd(lives),
        "by time": sorted(lives, key=lambda t: (t.begin, -t.size)),
    }
    near = neighbours(lives)
    placed = {how: place(order, near) for how, order in orders.items()}
    how = min(placed, key=lambda name: placed[name][0])
    best, (size, offsets) = orders[how], placed[how]
    generator = random.Random(0)  # the same plan every time
    for _ in range(tries if lives else 0):
        if size <= bound:
            break
        order = list(best)
        tops = [i for i, t in enumerate(order) if offsets[t.storage] + t.size == size]
        _earlier(order, generator.choice(tops), generator)
        if generator.random() < 0.5:  # so as not to go round in circles
            _earlier(order, generator.randrange(len(order)), generator)
        tried, where = place(order, near, limit=size)
        if tried <= size:
            how = how if tried == size else "by trial"
            best, size, offsets = order, tried, where
    return Arrangement(size, offsets, bound, how)


def _earlier(order: list[Life], index: int, generator: random.Random) -> None:
    moved = order.pop(index)
    order.insert(generator.randrange(index) if index else 0, moved)


def lower_bound(lives: Sequence[Life]) -> int:
    changes: dict[int, int] = {}
    for life in lives:
        changes[life.begin] = changes.get(life.begin, 0) + life.size
        changes[life.end + 1] = changes.get(life.end + 1, 0) - life.size
    live = most = 0
    for moment in sorted(changes):
        live += changes[moment]
        most = max(most, live)
    return most


def by_crowd(lives: Sequence[Life]) -> list[Life]:
    """Those that live at the most crowded moments first, the largest of them before the others."""
    load: dict[int, int] = {}
    for life in lives:
        for moment in range(life.begin, life.end + 1):
            load[moment] = load.get(moment, 0) + life.size
    crowd = {t.storage: max(load[m] for m in range(t.begin, t.end + 1)) for t in lives}
    return sorted(lives, key=lambda t: (-crowd[t.storage], -t.size, t.begin))


def place(
    order: Sequence[Life], near: Mapping[int, Sequence[Life]], limit: int | None = None
) -> tuple[int, dict[int, int]]:
    """Each in turn into the smallest gap that takes it, or else where the gaps end.

    Gives up, with a size above `limit`, as soon as it passes it.
    """
    offsets: dict[int, int] = {}
    total = 0
    for life in order:
        taken = sorted(
            (offsets[other.storage], other.size)
            for other in near[life.storage]
            if other.storage in offsets
        )
        at, gap, cursor = None, None, 0
        for offset, size in taken:
            room = offset - cursor
            if room >= life.size and (gap is None or room < gap):
                at, gap = cursor, room
            cursor = max(cursor, offset + size)
        at = cursor if at is None else at
        offsets[life.storage] = at
        total = max(total, at + life.size)
        if limit is not None and total > limit:
            break
    return total, offsets


def neighbours(lives: Sequence[Life]) -> dict[int, list[Life]]:
    """Those that live at the same time, of each."""
    return {t.storage: [o for o in lives if o is not t and o.meets(t)] for t in lives}
