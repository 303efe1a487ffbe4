"""Tables of few values for many weights, against optima found in other ways."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.cluster.vq import kmeans2

from converter.quantize.compress import compress
from converter.quantize.forms import Palette
from converter.quantize.palette import best_start, count, lloyd, palettes
from runtime_py.errors import PocketSDError

F16 = NDArray[np.float16]
# Repeated values, gaps, both signs and all exponents: whatever fp16 can hold.
halves = st.floats(-1000, 1000, width=16)
some_halves = st.lists(halves, min_size=1, max_size=40).map(lambda x: np.array(x, np.float16))


def squared_error(weights: F16, decoded: F16) -> float:
    return float(np.square(weights.astype(np.float64) - decoded.astype(np.float64)).sum())


def decoded(weights: F16, bits: int) -> F16:
    numbers, tables = palettes(weights[None], bits)
    return tables[0][numbers[0]]


def least_error(weights: F16, entries: int) -> float:
    """By trying every way to cut the sorted weights: no histogram, no prefix sums."""
    x = np.sort(weights.astype(np.float64))
    n = len(x)
    alone = np.array(
        [[np.square(x[i:j] - x[i:j].mean()).sum() if j > i else 0.0 for j in range(n + 1)]
         for i in range(n + 1)]
    )  # fmt: skip
    best = alone[0]
    for _ in range(entries - 1):
        best = np.array([min(best[i] + alone[i, j] for i in range(j + 1)) for j in range(n + 1)])
    return float(best[n])


@given(some_halves, st.sampled_from([1, 2, 3]))
def test_few_weights_get_the_best_table_there_is(weights: F16, bits: int) -> None:
    histogram = count(weights.view(np.uint16)[None])
    (centres,) = lloyd(histogram, best_start(histogram, 2**bits, 256))
    x = weights.astype(np.float64)
    found = np.square(x[:, None] - centres).min(axis=1).sum()
    # Both in float64; prefix sums cancel to about 1e-16 of the sum of squares.
    assert found == pytest.approx(least_error(weights, 2**bits), rel=1e-9, abs=1e-12 * (x @ x))


@given(some_halves, st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_each_weight_gets_the_nearest_entry(weights: F16, bits: int) -> None:
    numbers, tables = palettes(weights[None], bits)
    distance = np.abs(weights.astype(np.float64)[:, None] - tables[0].astype(np.float64))
    chosen = distance[np.arange(len(weights)), numbers[0]]
    assert np.array_equal(chosen, distance.min(axis=1))
    if len(np.unique(weights)) <= 2**bits:
        assert np.array_equal(tables[0][numbers[0]], weights)


@settings(max_examples=30)
@given(some_halves)
def test_more_bits_never_err_more(weights: F16) -> None:
    errors = [squared_error(weights, decoded(weights, bits)) for bits in (1, 2, 3, 4, 6, 8)]
    # Entries are rounded to fp16 in the end: half a unit in the last place for each weight.
    slack = float(np.square(np.spacing(np.abs(weights)).astype(np.float64)).sum())
    assert all(more <= fewer + slack for fewer, more in pairwise(errors))


def samples() -> dict[str, F16]:
    g = np.random.default_rng(0)
    unet = load_file(
        Path(__file__).parents[2] / "mobile_assets/tiny-sd/unet/diffusion_pytorch_model.safetensors"
    )
    return {
        "gauss": (0.02 * g.standard_normal(20_000)).astype(np.float16),
        "heavy tails": (0.01 * g.standard_t(3, 20_000)).astype(np.float16),
        "outliers": np.append(0.01 * g.standard_normal(10_000), [3, -2.5, 1]).astype(np.float16),
        "trained": unet["mid_block.resnets.0.conv1.weight"].ravel()[:20_000],
    }


@pytest.mark.parametrize("bits", [2, 6])
@pytest.mark.parametrize("name", list(samples()))
def test_never_worse_than_k_means_on_all_weights(name: str, bits: int) -> None:
    """SciPy's k-means++ sees every weight in float64, and keeps its centres in float64."""
    weights = samples()[name]
    x = weights.astype(np.float64)
    theirs = np.inf
    for seed in range(2):
        centres, of = kmeans2(x, 2**bits, iter=50, minit="++", seed=seed, missing="warn")
        theirs = min(theirs, float(np.square(x - centres[of]).sum()))
    # 0.2 %: entries are rounded to fp16.
    assert squared_error(weights, decoded(weights, bits)) <= 1.002 * theirs


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_a_gaussian_reaches_the_known_optimum(bits: int) -> None:
    """Max (1960), and for many levels Panter and Dite: pi * sqrt(3) / 2 over levels squared."""
    known = {2: 0.1175, 4: 0.009497, 6: 0.000641}.get(bits, np.pi * np.sqrt(3) / 2 / 4**bits)
    x = np.random.default_rng(1).standard_normal(400_000).astype(np.float16)
    error = squared_error(x, decoded(x, bits)) / len(x)
    # 2 %: 400,000 draws instead of all; at 8 bits fp16 itself has few values left in the tails.
    assert error == pytest.approx(known, rel=0.02 if bits < 8 else 0.05)


def test_groups_are_what_each_would_be_alone() -> None:
    g = np.random.default_rng(2)
    # 70: more than are worked on at once. Scales far apart: no group may leak into the next.
    scales = np.float64(10) ** g.uniform(-4, 3, (70, 1))
    weights = (scales * g.standard_normal((70, 300))).astype(np.float16)
    weights[3] = 0
    weights[4, :298] = weights[4, 299]
    numbers, tables = palettes(weights, 4)
    for group, row in enumerate(weights):
        alone_numbers, alone_table = palettes(row[None], 4)
        assert np.array_equal(tables[group], alone_table[0])
        assert np.array_equal(numbers[group], alone_numbers[0])


def test_idle_entries_are_put_to_work() -> None:
    weights = np.repeat(np.array([0, 1, 2, 3, 50], np.float16), [9, 9, 9, 9, 1])
    histogram = count(weights.view(np.uint16)[None])
    # From here Lloyd's iteration alone never moves the last three.
    (centres,) = lloyd(histogram, np.array([[1.0, 40.0, 900.0, 900.0, 900.0]]))
    assert sorted(centres) == [0, 1, 2, 3, 50]


def test_every_weight_is_counted() -> None:
    g = np.random.default_rng(3)
    weights = g.standard_normal((2, 1_200_000)).astype(np.float16)  # more than one slice
    histogram = count(weights.view(np.uint16))
    for group, row in enumerate(weights):
        values, counts = np.unique(row, return_counts=True)
        part = slice(*histogram.starts[group : group + 2])
        # -0.0 and 0.0 are two patterns of one value.
        mine, at = np.unique(histogram.values[part], return_inverse=True)
        assert np.array_equal(mine, values.astype(np.float64))
        found = np.bincount(at, np.diff(histogram.weight)[part])
        assert np.array_equal(found, counts)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 7e4])
def test_what_fp16_cannot_hold_is_refused(bad: float) -> None:
    with pytest.raises(PocketSDError, match="beyond fp16"):
        compress(np.array([[0.5, bad]]), Palette(2))


def test_a_few_small_values_beside_large_ones() -> None:
    """Sums run over all groups and are rounded there: a lone value is not quite its own mean."""
    g = np.random.default_rng(5)
    weights = (1000 * g.standard_normal((3, 100_000))).astype(np.float16)
    weights[1] = g.choice(np.array([0, 1e-7, 3e-5, 0.0123], np.float16), 100_000)
    numbers, tables = palettes(weights, 4)
    # Not exact, but within fp16's two smallest steps.
    assert np.abs(tables[1][numbers[1]].astype(np.float64) - weights[1]).max() < 2.0**-23
