"""Tensors in one arena: none overlaps another that lives at the same time."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from converter.targets.webgpu.arena import Life, arrange, lower_bound

LIVES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 8)), max_size=25
).map(
    lambda drawn: [
        Life(index, 256 * size, begin, begin + length)
        for index, (size, begin, length) in enumerate(drawn)
    ]
)


@given(lives=LIVES)
def test_what_lives_together_lies_apart(lives: list[Life]) -> None:
    arrangement = arrange(lives, tries=20)
    for one, other in combinations(lives, 2):
        if one.begin <= other.end and other.begin <= one.end:
            a, b = arrangement.offsets[one.storage], arrangement.offsets[other.storage]
            assert a + one.size <= b or b + other.size <= a
    ends = [arrangement.offsets[life.storage] + life.size for life in lives]
    assert arrangement.size == max(ends, default=0) >= arrangement.bound


@given(lives=LIVES)
def test_the_bound_is_the_busiest_moment(lives: list[Life]) -> None:
    moments = {life.begin for life in lives}
    busiest = max((sum(t.size for t in lives if t.begin <= m <= t.end) for m in moments), default=0)
    assert lower_bound(lives) == busiest


def test_the_same_tensors_lie_at_the_same_places() -> None:
    lives = [Life(i, 256 * (1 + i * 7 % 11), i // 2, i // 2 + i % 5) for i in range(60)]
    assert arrange(lives) == arrange(lives)


def test_a_chain_needs_two_tensors() -> None:
    lives = [Life(i, 1024, i, i + 1) for i in range(10)]
    assert arrange(lives).size == 2048 == lower_bound(lives)
