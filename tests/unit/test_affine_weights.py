"""Forms of weights by name and size, and integers with scales."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from converter.quantize.compress import compress
from converter.quantize.compressed import Indexed, Plain, Scaled
from converter.quantize.forms import (
    AFFINE_BITS,
    FP16,
    NAMES,
    PALETTE_BITS,
    Affine,
    Palette,
    WeightForm,
    bits_per_weight,
    fitted,
    parse_form,
)
from runtime_py.errors import PocketSDError

sizes = st.none() | st.integers(1, 200)
forms: st.SearchStrategy[WeightForm] = st.one_of(
    st.just(FP16),
    st.builds(Palette, st.sampled_from(PALETTE_BITS), sizes),
    st.builds(Affine, st.sampled_from(AFFINE_BITS), sizes),
)
shapes = st.tuples(st.integers(1, 40), st.integers(1, 70)) | st.tuples(
    st.integers(1, 20), st.integers(1, 20), st.just(3), st.just(3)
)


@given(forms)
def test_names_survive(form: WeightForm) -> None:
    assert parse_form(str(form)) == form


def test_usual_names() -> None:
    assert parse_form("int4") == Affine(4, 32) and parse_form("int4-b32") == Affine(4, 32)
    assert parse_form("int4-channel") == Affine(4) and parse_form("int8") == Affine(8)
    assert parse_form("int8-b64") == Affine(8, 64) and parse_form("int8-channel") == Affine(8)
    assert parse_form("palette6") == Palette(6) and parse_form("palette4-g16") == Palette(4, 16)
    assert all(str(parse_form(name)) == name for name in NAMES)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("pallete4", "no form 'pallete4'.*palette4"),
        ("palette5", "5 bits is none of 1, 2, 3, 4, 6, 8"),
        ("int2", "2 bits is none of 4, 8"),
        ("palette4-g0", "at least 1"),
        ("int4-b0", "at least 1"),
        ("bf16", "no form 'bf16'.*fp16"),
        ("", "no form ''.*there are fp16"),
        ("palette6\n", "no form"),
    ],
)
def test_unknown_names_are_refused(name: str, complaint: str) -> None:
    with pytest.raises(PocketSDError, match=complaint):
        parse_form(name)


@pytest.mark.parametrize(
    ("wanted", "shape", "got"),
    [
        (Affine(4, 32), (8, 64), Affine(4, 32)),
        (Affine(4, 32), (8, 48, 3, 3), Affine(4, 24)),  # the next divisor
        (Affine(4, 32), (8, 77), Affine(4)),  # 11 is less than half of 32
        (Affine(4, 32), (8, 32), Affine(4)),  # one block is the whole channel
        (Affine(4, 32), (8, 4, 3, 3), Affine(4)),
        (Palette(4, 16), (96, 5), Palette(4, 16)),
        (Palette(4, 16), (100, 5), Palette(4, 10)),
        (Palette(4, 16), (37, 5), Palette(4)),
        (Palette(4, 16), (4, 5), Palette(4)),
    ],
)
def test_groups_and_blocks_have_to_divide(wanted: Any, shape: Any, got: Any) -> None:
    assert fitted(wanted, shape) == got


@given(forms, shapes, st.integers(0, 2**32 - 1))
def test_what_is_said_of_a_form_is_so(form: WeightForm, shape: Any, seed: int) -> None:
    weight = np.random.default_rng(seed).standard_normal(shape)
    done = compress(weight, form)
    bits = bits_per_weight(form, shape) * prod(shape)
    assert done.bytes == -(-round(bits) // 8) or abs(8 * done.bytes - bits) < 8
    assert done.decoded().shape == shape and done.decoded().dtype == np.float16
    if isinstance(done, Indexed):
        assert done.indices.max() < done.tables.shape[1] == 2**done.bits
        assert shape[0] % len(done.tables) == 0
    if isinstance(done, Scaled):
        assert shape[0] == done.scales.shape[0] and shape[1] % done.scales.shape[1] == 0
        assert (done.scales > 0).all()
        low, high = {4: (-8, 7), 8: (-127, 127)}[done.bits]
        assert low <= done.values.min() and done.values.max() <= high
    if isinstance(done, Plain):
        assert np.array_equal(done.values, weight.astype(np.float16))


@pytest.mark.parametrize("form", ["fp16", "int8", "int4", "palette4", "palette4-g16"])
def test_tensors_and_arrays_are_one(form: str) -> None:
    weight = torch.randn(32, 64, 3, 3, generator=torch.Generator().manual_seed(0))
    one = compress(weight, parse_form(form)).decoded()
    assert np.array_equal(one, compress(weight.numpy(), parse_form(form)).decoded())
    # A transposed view is stored in another order, but is the same weights.
    turned = weight.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)
    assert np.array_equal(one, compress(turned, parse_form(form)).decoded())


@pytest.mark.parametrize("form", [Affine(8), Affine(8, 32), Affine(4, 32), Affine(4)])
def test_integers_are_decoded_as_torch_would(form: Affine) -> None:
    weight = torch.randn(48, 64, 3, 3, generator=torch.Generator().manual_seed(1)) / 24
    done = compress(weight, form)
    assert isinstance(done, Scaled)
    block = 64 // done.scales.shape[1]
    scales = torch.from_numpy(done.scales).repeat_interleave(block, dim=1)[..., None, None]
    oracle = torch.from_numpy(done.values).half() * scales
    assert np.array_equal(done.decoded(), oracle.numpy())
    # No weight that is not cut off is more than half a step away; fp16 rounds before and after.
    error = (torch.from_numpy(done.decoded()).float() - weight).abs()
    inside = torch.from_numpy(done.values).abs() < (7 if form.bits == 4 else 127)
    assert (error <= 0.501 * scales.float() + 2**-10 * weight.abs())[inside].all()


def plain_error(weight: Any, bits: int, share: float = 1.0) -> float:
    """One scale per channel that makes the largest weight, or a share of it, the last integer."""
    last = 2 ** (bits - 1) - 1
    scale = share * np.abs(weight).max(axis=1, keepdims=True) / last
    return float(np.square(np.clip(np.rint(weight / scale), -last, last) * scale - weight).sum())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tails", [False, True])
def test_the_scale_is_the_best_one(bits: int, tails: bool) -> None:
    g = np.random.default_rng(4)
    weight = g.standard_t(4, (64, 512)) if tails else g.standard_normal((64, 512))
    weight = weight.astype(np.float16).astype(np.float64)
    decoded = compress(weight, Affine(bits)).decoded().astype(np.float64)
    error = float(np.square(decoded - weight).sum())
    # 0.5 %: scales are rounded to fp16, and so is what is decoded.
    assert error <= 1.005 * min(plain_error(weight, bits, share) for share in (1, 0.9, 0.8, 0.7))
    if bits == 4:
        assert error < 0.8 * plain_error(weight, bits)


def test_rows_of_nothing_and_of_next_to_nothing() -> None:
    weight = np.zeros((3, 64))
    weight[1] = np.linspace(-2e-6, 2e-6, 64)
    weight[2] = np.linspace(-60000, 60000, 64)
    for form in (Affine(8), Affine(4, 32), Affine(4)):
        decoded = compress(weight, form).decoded()
        assert np.isfinite(decoded).all() and not decoded[0].any()
        assert np.abs(decoded[1] - weight[1]).max() < 1e-6  # a few of the smallest steps of fp16
        assert np.abs(decoded[2] - weight[2]).max() < 60000 / 7


@pytest.mark.parametrize("bad", [np.nan, np.inf, 7e4])
def test_no_scale_for_what_fp16_cannot_hold(bad: float) -> None:
    with pytest.raises(PocketSDError, match="beyond fp16"):
        compress(np.array([[0.5, bad]]), Affine(8))
