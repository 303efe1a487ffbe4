"""`pocketsd recipe`: a file that names real layers, and failures in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converter.components import get_component
from converter.quantize.forms import Palette
from converter.quantize.layers import shapes_in
from converter.quantize.recipe_file import check, read
from runtime_py.engines import open_engine
from runtime_py.package import Package
from runtime_py.recording import Recording, record, save
from tests.e2e.test_cli import pocketsd

Tree = Callable[[Path], dict[str, bytes]]


@pytest.fixture(scope="module")
def recording(tiny_package: Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text encoder's part of two pictures."""
    engine, table = open_engine(tiny_package), tiny_package.table("dpm++-2m", 4)
    assert table is not None
    prompts = ["a red circle", "a large green star on the left"]
    made = record(engine, tiny_package, table, prompts, guidance=2.0, per_picture=1)
    path = tmp_path_factory.mktemp("recordings") / "text.npz"
    save(Recording({"text_encoder": made.of("text_encoder")}), path)
    return path


def test_a_recipe_of_the_text_encoder(
    tiny_sd: Path, tiny_checkpoint: Any, recording: Path, tmp_path: Path
) -> None:
    done = pocketsd(
        "recipe", tiny_sd, "--calibration", recording, "--component", "text_encoder",
        "--bits", 4, "--form", "palette6", "--form", "palette2", "--quick", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, layers, heading, *ten, last = done.stdout.splitlines()
    assert first.startswith("text_encoder: ") and "at the worst" in first
    assert "in palette6" in layers and "alone in palette2" in heading
    assert len(ten) == 10 and ten[0].startswith("embeddings.token_embedding")
    assert last == "recipe.json: text_encoder"
    recipe = read(tmp_path / "recipe.json")
    shapes = shapes_in(tiny_checkpoint, get_component("text_encoder"))
    check(recipe, {"text_encoder": shapes})
    assert recipe.form_of("text_encoder", "embeddings.token_embedding") == Palette(6)
    figures = json.loads((tmp_path / "recipe.json").read_text())["measured"]["text_encoder"]
    assert figures["mean_bits"] <= 4 and figures["samples"] == 2
    assert set(figures["layers"]) == set(shapes)
    # Said and measured: in this model they agree to 2 dB, in quick mode to 4.
    assert abs(figures["predicted_psnr"] - figures["measured_psnr"]) < 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--form", "palete6"), "no form 'palete6' of weights (palette6)"),
        (("--component", "unet"), "the recording has no unet (it has text_encoder)"),
        (("--calibration", "nothing.npz"), "nothing.npz: cannot read it"),
        (("--bits", 17), "17"),
        (("-o", "no/where.json"), "the folder to write into does not exist"),
        (("--bits", 1.5), "no choice of these forms has 1.5 bits a weight (the least is 2.01)"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    options: tuple[Any, ...],
    complaint: str,
    tiny_sd: Path,
    recording: Path,
    tmp_path: Path,
    tree: Tree,
) -> None:
    usual = ("--calibration", recording, "--bits", 4)
    component = () if "--component" in options else ("--component", "text_encoder")
    done = pocketsd("recipe", tiny_sd, *usual, *component, *options, cwd=tmp_path)
    assert done.returncode == 2 and complaint in done.stderr, done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("pocketsd:")]) == 1
    assert "Traceback" not in done.stderr and tree(tmp_path) == {}


def test_a_recipe_is_not_overwritten_unasked(
    tiny_sd: Path, recording: Path, tmp_path: Path
) -> None:
    (tmp_path / "recipe.json").write_text("mine")
    done = pocketsd("recipe", tiny_sd, "--calibration", recording, "--bits", 4, cwd=tmp_path)
    assert done.returncode == 2 and "--overwrite" in done.stderr
    assert (tmp_path / "recipe.json").read_text() == "mine"
