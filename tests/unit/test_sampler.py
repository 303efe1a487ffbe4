"""The loop, the starts and the file form of a sampler table, on tables written by hand."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_py.errors import PocketSDError
from runtime_py.sampler import HISTORY, Row, SamplerTable, Schedule, Start, guided, play

ROWS = (
    Row(9.0, 0.5, (1.0,), (-2.0,), 0.0, (0.25, 0.75)),
    Row(5.5, 1.0, (1.0, 0.5), (-1.0, 0.25), 0.0, (0.5, 0.5)),
    Row(1.0, 1.0, (2.0, 0.0, -1.0), (0.5, 0.0, 3.0), 0.125, (1.0, 0.0)),
)
TABLE = SamplerTable(
    scheduler="by-hand",
    steps=3,
    prediction="epsilon",
    rows=ROWS,
    initial_noise=14.5,
    starts=(
        Start(0, 0.1, 0.9),
        Start(1, 0.2, 0.8, (Row(5.5, 1.0, (1.0,), (-1.0,), 0.0, (0.5, 0.5)),
                            Row(1.0, 1.0, (2.0,), (0.5, 0.25), 0.125, (1.0, 0.0)))),
        Start(2, 0.3, 0.7, (Row(1.0, 1.0, (2.0,), (0.5,), 0.125, (1.0, 0.0)),)),
    ),
)  # fmt: skip


def test_play_is_the_recurrence_of_the_docstring() -> None:
    seen: list[tuple[np.ndarray, float]] = []
    asked: list[int] = []

    def evaluate(latent: np.ndarray, timestep: float) -> np.ndarray:
        seen.append((latent, timestep))
        return np.sin(latent) + np.float32(timestep)

    def noise(k: int) -> np.ndarray:
        asked.append(k)
        return np.full(2, 3, np.float32)

    x0 = np.array([1, 2], np.float32)
    played = list(play(TABLE.from_noise(), x0, evaluate, noise))
    e0, e1 = np.sin(x0 / 2) + 9, None
    x1 = x0 - 2 * e0
    e1 = np.sin(x1) + 5.5
    x2 = x1 + 0.5 * x0 - e1 + 0.25 * e0
    e2 = np.sin(x2) + 1
    x3 = 2 * x2 - x0 + 0.5 * e2 + 3 * e0 + 0.125 * 3
    assert [k for k, _ in played] == [0, 1, 2]
    for found, wanted in zip((x for _, x in played), (x1, x2, x3), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert [t for _, t in seen] == [9.0, 5.5, 1.0]
    assert asked == [2]  # rows without noise draw none


def test_an_edit_in_place_is_what_the_next_row_reads() -> None:
    schedule = Schedule(ROWS[:2], 0.0, 1.0)
    inputs = []

    def evaluate(latent: np.ndarray, _: float) -> np.ndarray:
        inputs.append(latent.copy())
        return latent * 0

    for _, latent in play(schedule, np.ones(2, np.float32), evaluate, lambda k: np.zeros(2)):
        latent[0] = 7
    assert inputs[1].tolist() == [7, 1]


def test_play_is_lazy() -> None:
    """A cancelled generation evaluates nothing more."""
    calls = []
    steps = play(TABLE.from_noise(), np.ones(1), lambda x, t: calls.append(t) or x, lambda k: 0)
    next(steps)
    steps.close()
    assert calls == [9.0]


def test_guided() -> None:
    conditional, unconditional = np.array([3.0]), np.array([1.0])
    assert guided(conditional, unconditional, 7.5) == 1 + 7.5 * 2
    assert guided(conditional, unconditional, 1) == conditional


def test_begin() -> None:
    noise, picture = np.full(2, 2, np.float32), np.full(2, 10, np.float32)
    assert TABLE.from_noise().begin(noise).tolist() == [29, 29]
    np.testing.assert_allclose(TABLE.from_strength(1).begin(noise, picture), 10 * 0.1 + 2 * 0.9)


@pytest.mark.parametrize(
    ("strength", "rows", "signal"),
    [(1.0, 3, 0.1), (0.99, 2, 0.2), (2 / 3, 2, 0.2), (0.5, 1, 0.3), (0.34, 1, 0.3)],
)
def test_strength(strength: float, rows: int, signal: float) -> None:
    schedule = TABLE.from_strength(strength)
    assert (len(schedule.rows), schedule.signal) == (rows, signal)
    assert schedule.rows[-1].keep == (1.0, 0.0)


def test_warm_up_replaces_the_rows_it_stands_for() -> None:
    assert TABLE.from_strength(0.7).rows == TABLE.starts[1].warm_up
    assert TABLE.from_strength(1.0).rows == ROWS
    assert TABLE.from_noise().rows == ROWS


@pytest.mark.parametrize("strength", [0.0, -1, 1.01, float("nan")])
def test_strength_out_of_range(strength: float) -> None:
    with pytest.raises(PocketSDError, match="above 0 and at most 1"):
        TABLE.from_strength(strength)


def test_strength_too_small() -> None:
    with pytest.raises(PocketSDError, match=r"none of 3 steps .*at least 0\.333"):
        TABLE.from_strength(0.2)


def test_json_round_trip() -> None:
    text = json.dumps(TABLE.to_json())
    assert SamplerTable.from_json(json.loads(text)) == TABLE
    assert json.loads(text)["rows"][0] == [9, 0.5, [1], [-2], 0, [0.25, 0.75]]


numbers = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def some_tables(draw: st.DrawFn) -> SamplerTable:
    steps = draw(st.integers(1, 7))

    def row(k: int) -> Row:
        depth = st.integers(1, min(k + 1, HISTORY))
        weights = [tuple(draw(st.lists(numbers, min_size=1, max_size=draw(depth)))) for _ in "ab"]
        keep = (draw(numbers), draw(numbers))
        return Row(draw(numbers), draw(numbers), *weights, draw(numbers), keep)

    starts = tuple(
        Start(begin, draw(numbers), draw(numbers), tuple(row(k) for k in range(steps - begin)))
        for begin in range(steps)
    )
    rows = tuple(row(k) for k in range(steps))
    return SamplerTable("any", steps, "v_prediction", rows, draw(numbers), starts)


@given(some_tables())
def test_json_round_trip_of_any_table(table: SamplerTable) -> None:
    text = json.dumps(table.to_json(), allow_nan=False)
    assert SamplerTable.from_json(json.loads(text)) == table


def damaged(path: list[str | int], value: object) -> object:
    data = copy.deepcopy(TABLE.to_json())
    at = data
    for key in path[:-1]:
        at = at[key]  # type: ignore[index]
    at[path[-1]] = value  # type: ignore[index]
    return data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "not a sampler table"),
        (None, "not a sampler table"),
        ({}, "no 'scheduler'"),
        (damaged(["rows"], 3), "not a sampler table"),
        (damaged(["rows"], []), "0 rows"),
        (damaged(["rows", 0], [1, 2, 3]), "not a sampler table"),
        (damaged(["rows", 0, 0], "951"), "'951' is not a number"),
        (damaged(["rows", 0, 0], True), "True is not a number"),
        (damaged(["rows", 0, 0], 10**400), "too large"),
        (damaged(["rows", 1, 2], [1.0, float("nan")]), "not finite"),
        (damaged(["rows", 0, 2], [1, 1]), "row 0 of a schedule looks back 2 evaluations"),
        (damaged(["rows", 2, 3], [1, 1, 1, 1]), "row 2 of a schedule looks back 4 evaluations"),
        (damaged(["rows", 2, 5], [1]), "not a sampler table"),
        (damaged(["rows", 0, 4], float("inf")), "not finite"),
        (damaged(["initial_noise"], float("inf")), "initial noise"),
        (damaged(["steps"], 4), "do not make 4 steps"),
        (damaged(["steps"], 0), "do not make 0 steps"),
        (damaged(["steps"], "3"), "not of type int"),
        (damaged(["starts", 1, 0], 3), "lies outside the 3 rows"),
        (damaged(["starts", 1, 0], -1), "lies outside the 3 rows"),
        (damaged(["starts", 2, 3], TABLE.to_json()["rows"]), "lies outside the 3 rows"),
        (damaged(["starts", 1, 3], []), "row 0 of a schedule looks back 2 evaluations"),
        (damaged(["starts", 1, 1], float("nan")), "start at row 1 is not finite"),
    ],
)
def test_damaged_tables_are_refused_in_one_line(data: object, says: str) -> None:
    with pytest.raises(PocketSDError, match=says) as caught:
        SamplerTable.from_json(data)
    assert "\n" not in str(caught.value)


def test_depth_is_limited() -> None:
    row = replace(ROWS[0], outputs=(1.0,) * (HISTORY + 1))
    rows = (*(ROWS[0],) * HISTORY, row)
    with pytest.raises(PocketSDError, match=f"looks back {HISTORY + 1}"):
        SamplerTable("deep", 1, "epsilon", rows, 1.0, (Start(0, 0.0, 1.0),))
