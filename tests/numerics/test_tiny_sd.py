"""The embedded model obeys its prompts, drawn by our own pipeline and read by the checker."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from runtime_py.engines import Engine, open_engine
from runtime_py.package import Package
from runtime_py.pipeline import Request, draw
from runtime_py.prompt_score.prompts import held_out_prompts, pair_prompts
from runtime_py.prompt_score.score import examine

GUIDANCE = 2.0  # what its model card recommends


def paint(engine: Engine, package: Package, text: str, seed: int) -> np.ndarray:
    table = package.table("dpm++-2m", 20)
    assert table is not None
    request = Request(text, seeds=(seed,), guidance_scale=GUIDANCE)
    return draw(engine, package, table, request).pictures[0]


def test_size_in_the_repository(tiny_sd: Path) -> None:
    assert sum(path.stat().st_size for path in tiny_sd.rglob("*")) <= 25e6


def test_a_sample_of_held_out_prompts(tiny_package: Package) -> None:
    """20 of the 200: a model at 90 % falls below 14 in one run of 400."""
    engine = open_engine(tiny_package)
    score = examine(held_out_prompts()[:20], partial(paint, engine, tiny_package))
    assert score["colour and shape"] >= 0.7, score


@pytest.mark.slow
def test_all_held_out_prompts(tiny_package: Package) -> None:
    """Colours and shapes together as training never showed them."""
    engine = open_engine(tiny_package)
    single = examine(held_out_prompts(), partial(paint, engine, tiny_package))
    pairs = examine(pair_prompts(), partial(paint, engine, tiny_package))
    print(f"one thing: {single}\ntwo things: {pairs}")
    assert single["prompts"] == 200
    assert single["colour and shape"] >= 0.9, single


def test_what_a_prompt_leaves_open_differs_by_seed(tiny_package: Package) -> None:
    engine = open_engine(tiny_package)
    first, second = (paint(engine, tiny_package, "a red circle", seed) for seed in (1, 2))
    assert np.abs(first.astype(int) - second).mean() > 5
