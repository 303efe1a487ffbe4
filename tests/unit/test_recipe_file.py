"""Recipes of weights: as files, against models, and as choices under a number of bits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.components import COMPONENTS
from converter.quantize.choose import STEPS, choose, mean_bits, predicted
from converter.quantize.forms import FP16, Affine, Palette, WeightForm, parse_form
from converter.quantize.layers import layers_of, shapes_in, uniform
from converter.quantize.recipe_file import ComponentRecipe, WeightRecipe, check, read, write
from runtime_py.errors import PocketSDError

LAYER = "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj"
RECIPE = WeightRecipe(
    {"unet": ComponentRecipe(Palette(6), {LAYER: Palette(4, 16), "conv_in": FP16})},
    {"unet": {"mean_bits": 5.9}},
)


def test_a_file_says_the_same(tmp_path: Path) -> None:
    write(RECIPE, tmp_path / "r.json")
    assert read(tmp_path / "r.json") == RECIPE
    # The file as others may write it.
    assert json.loads((tmp_path / "r.json").read_text()) == {
        "format": "pocketsd-recipe",
        "version": 1,
        "components": {
            "unet": {"default": "palette6", "layers": {LAYER: "palette4-g16", "conv_in": "fp16"}}
        },
        "measured": {"unet": {"mean_bits": 5.9}},
    }


def test_layers_not_named_take_the_default() -> None:
    assert RECIPE.form_of("unet", LAYER) == Palette(4, 16)
    assert RECIPE.form_of("unet", "conv_out") == Palette(6)
    assert RECIPE.form_of("text_encoder", "encoder.layers.0.mlp.fc1") == FP16


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, tree: Callable[[Path], dict[str, bytes]]
) -> None:
    write(RECIPE, tmp_path / "r.json")
    before = tree(tmp_path)
    with pytest.raises(TypeError):
        write(WeightRecipe({}, {"unet": object()}), tmp_path / "r.json")
    assert tree(tmp_path) == before


GOOD: dict[str, Any] = {"format": "pocketsd-recipe", "version": 1, "components": {}}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a recipe"),
        (b"\xff\xfe{}", "not a recipe"),
        (b"[" * 100_000, "not a recipe"),
        ([], "not a recipe"),
        ({}, "not a recipe"),
        ({**GOOD, "format": "onnx"}, "not a recipe"),
        ({**GOOD, "version": 2}, "recipe version 2, this pocketsd reads 1"),
        ({**GOOD, "extra": 1}, "unknown field `extra`"),
        ({**GOOD, "components": {"unet": {"layer": {}}}}, "unknown field `layer`"),
        ({**GOOD, "components": {"unet": {"default": "palette5"}}}, "5 bits is none of"),
        ({**GOOD, "components": {"unet": {"layers": {"a": "palete4"}}}}, "'palete4'.*palette4"),
        ({**GOOD, "components": {"unet": {"layers": {"a": 4}}}}, "Expected `str`"),
    ],
)
def test_what_is_no_recipe_is_one_line(tmp_path: Path, content: Any, complaint: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(PocketSDError, match=complaint) as caught:
        read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(PocketSDError, match=r"nothing\.json: cannot be read"):
        read(tmp_path / "nothing.json")


def test_a_recipe_for_another_model_is_refused(tiny_checkpoint: Any) -> None:
    layers = {spec.name: shapes_in(tiny_checkpoint, spec) for spec in COMPONENTS}
    check(RECIPE, layers)
    typo = LAYER.replace("ff.net.0", "ff.net.1")
    with pytest.raises(PocketSDError, match=rf"'{typo}' in unet.*is it mid_block\..*ff\.net\."):
        check(WeightRecipe({"unet": ComponentRecipe(FP16, {typo: FP16})}), layers)
    with pytest.raises(PocketSDError, match="component 'vae'.*is it vae_"):
        check(WeightRecipe({"vae": ComponentRecipe()}), layers)


def test_layers_are_those_of_the_checkpoint(tiny_checkpoint: Any) -> None:
    """Every stored tensor of two or more dimensions is some layer's, and none is left out."""
    names = set()
    for spec in COMPONENTS:
        module = spec.module(tiny_checkpoint)
        shapes = shapes_in(tiny_checkpoint, spec)
        assert shapes == {k: tuple(w.shape) for k, w in layers_of(module).items()}
        assert all(f"{layer}.weight" in module.state_dict() for layer in shapes)
        names |= {(spec.part, f"{layer}.weight") for layer in shapes}
    stored = {
        (part, name)
        for part, tensors in tiny_checkpoint.weights.items()
        for name, tensor in tensors.items()
        if tensor.ndim > 1
    }
    assert names == stored


def test_one_form_for_all_spares_the_small_and_the_edges() -> None:
    shapes = {
        "conv_in": (320, 4, 3, 3),
        "down_blocks.0.resnets.0.conv1": (320, 320, 3, 3),
        "down_blocks.0.small": (63, 65),
        "down_blocks.0.enough": (64, 64),
    }
    recipe = uniform(Affine(8), shapes)
    forms = {layer: str(recipe.form_of(layer)) for layer in shapes}
    assert list(forms.values()) == ["fp16", "int8", "fp16", "int8"]
    assert uniform(FP16, shapes).layers == {}


# Choosing.

FORMS = [FP16, Palette(6), Palette(4), Affine(4, 32)]
problems = st.lists(
    st.tuples(
        st.sampled_from([(64, 64), (40, 320), (96, 32, 3, 3)]),
        st.lists(st.floats(0, 1), min_size=len(FORMS), max_size=len(FORMS)),
    ),
    min_size=1,
    max_size=4,
)
Problem = tuple[dict[str, dict[WeightForm, float]], dict[str, tuple[int, ...]]]


def problem(drawn: Any) -> Problem:
    noises = {f"layer{i}": dict(zip(FORMS, n, strict=True)) for i, (_, n) in enumerate(drawn)}
    return noises, {f"layer{i}": shape for i, (shape, _) in enumerate(drawn)}


@settings(max_examples=60)
@given(problems, st.floats(4.6, 16))
def test_the_choice_is_the_best_of_all(drawn: Any, bits: float) -> None:
    noises, shapes = problem(drawn)
    chosen = choose(noises, shapes, bits)
    assert mean_bits(chosen, shapes) <= bits
    every = [
        dict(zip(noises, forms, strict=True))
        for forms in itertools.product(FORMS, repeat=len(noises))
    ]
    # Bits are rounded up to whole steps, layer by layer.
    room = bits - (len(noises) + 1) / STEPS
    best = min(predicted(c, noises) for c in every if mean_bits(c, shapes) <= room)
    assert predicted(chosen, noises) <= best * (1 + 1e-9)


@settings(max_examples=60)
@given(problems, st.floats(4.6, 16), st.floats(4.6, 16))
def test_more_bits_never_choose_worse(drawn: Any, one: float, other: float) -> None:
    noises, shapes = problem(drawn)
    fewer, more = (choose(noises, shapes, bits) for bits in sorted((one, other)))
    assert predicted(more, noises) <= predicted(fewer, noises) * (1 + 1e-9)


@given(problems)
def test_bits_that_buy_nothing_are_not_spent(drawn: Any) -> None:
    noises, shapes = problem(drawn)
    flat = {layer: dict.fromkeys(found, 0.5) for layer, found in noises.items()}
    assert set(choose(flat, shapes, 16).values()) == {Palette(4)}


def test_bits_that_no_choice_has_are_refused() -> None:
    noises, shapes = {"a": {Palette(6): 0.1, FP16: 0.0}}, {"a": (64, 64)}
    # A table of 64 entries for 4096 weights: 6.25 bits.
    with pytest.raises(PocketSDError, match=r"6 bits a weight \(the least is 6\.25\)"):
        choose(noises, shapes, 6)
    assert choose(noises, shapes, 6.25) == {"a": parse_form("palette6")}
