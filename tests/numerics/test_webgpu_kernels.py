"""Every WGSL kernel on a GPU, against PyTorch in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from converter import ops
from converter.ops.linear import ACTIVATIONS
from converter.targets.webgpu.tuning import BASELINE, Tuning
from converter.targets.webgpu.winograd import TILES
from tests.support.webgpu import has_f16, needs_webgpu, normalised_error, run_op

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]

#: Normalised mean square error. f32: rounding of sums of some thousand terms. f16: inputs,
#: weights and results rounded to eleven bits, sums in f32.
LIMIT = {"f32": 1e-10, "f16": 1e-5}
CASES = [
    pytest.param(op, case, arithmetic, id=f"{op.name}: {case.label} {arithmetic}")
    for op in ops.all_ops()
    for case in op.cases
    for arithmetic in LIMIT
    if not (op.name in ("to_tokens", "to_picture") and arithmetic == "f16")
]


def exact(op: ops.FusedOp, arguments: tuple[Any, ...]) -> Tensor:
    return op.reference(
        *(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments)
    )


def check(
    op: ops.FusedOp, arguments: tuple[Any, ...], arithmetic: str, folder: Path, **options: Any
) -> None:
    if arithmetic == "f16" and not has_f16():
        pytest.skip("this adapter has no f16")
    limit = LIMIT[arithmetic]
    result = run_op(op, arguments, arithmetic, folder, **options)
    assert normalised_error(exact(op, arguments), result) <= limit


@pytest.mark.parametrize("subgroups", [True, False], ids=["subgroups", "plain"])
@pytest.mark.parametrize(("op", "case", "arithmetic"), CASES)
def test_kernels_at_the_sizes_of_sd(
    op: ops.FusedOp, case: ops.Case, arithmetic: str, subgroups: bool, tmp_path: Path
) -> None:
    if subgroups or op.name in ("attention", "conv2d", "geglu", "linear"):
        check(op, case.arguments(), arithmetic, tmp_path, subgroups=subgroups)


FORMS = {
    "naive": BASELINE,
    "partial": Tuning(flash=False),
    "flash": Tuning(flash_queries=1, flash_keys=1, flash_head=512),
}


@pytest.mark.parametrize("arithmetic", LIMIT)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "m"), [(64, 64), (64, 77), (33, 5), (1, 1)])
def test_forms_of_attention_agree(
    form: str, arithmetic: str, n: int, m: int, tmp_path: Path
) -> None:
    g = torch.Generator().manual_seed(n * m)
    q, k, v = (torch.randn(2, tokens, 3 * 40, generator=g) for tokens in (n, m, m))
    check(ops.attention, (q * 3, k, v, 3, False), arithmetic, tmp_path, tuning=FORMS[form])


@pytest.mark.parametrize("form", ["naive", "partial"])
def test_later_tokens_are_not_seen(form: str, tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, 77, 64, generator=g) for _ in range(3))
    check(ops.attention, (q * 3, k, v, 4, True), "f32", tmp_path, tuning=FORMS[form])


def test_heads_in_turn_equal_heads_at_once(tmp_path: Path) -> None:
    """Where the scores of all heads together would be too large."""
    g = torch.Generator().manual_seed(8)
    arguments = (*(torch.randn(2, 32, 64, generator=g) for _ in range(3)), 4, False)
    for heads in (1, 3):
        tuning = Tuning(flash=False, score_bytes=heads * 32 * 32 * 4)
        check(ops.attention, arguments, "f32", tmp_path, tuning=tuning)


@settings(max_examples=12)
@given(data=st.data())
def test_convolutions_of_any_size(tmp_path_factory: Any, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 3, 5]))
    b, into, out = (data.draw(st.integers(1, n)) for n in (2, 13, 21))
    h, w = (data.draw(st.integers(1, 19)) for _ in range(2))
    stride, up = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    padding = [data.draw(st.integers(0, size // 2)) for _ in range(4)]
    left, right, top, bottom = padding
    if h * up + top + bottom < size or w * up + left + right < size:
        return
    g = torch.Generator().manual_seed(h * w)
    x = torch.randn(b, into, h, w, generator=g)
    weight = torch.randn(out, into, size, size, generator=g) / math.sqrt(into * size**2)
    arguments = (x, weight, torch.randn(out, generator=g), stride, padding, up)
    check(ops.conv2d, arguments, "f32", tmp_path_factory.mktemp("conv"))


#: Error by tile: what larger tiles save costs digits. 6 and 8 are kept for the comparison only.
WINOGRAD = {
    "f32": {2: 1e-10, 4: 1e-10, 6: 1e-10, 8: 1e-8},
    "f16": {2: 1e-5, 4: 1e-5, 6: 2e-4, 8: 1e-2},
}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("size", "up"), [((16, 16), 1), ((13, 7), 1), ((8, 5), 2)])
def test_winograd_is_a_convolution(
    tile: int, size: tuple[int, int], up: int, tmp_path: Path
) -> None:
    g = torch.Generator().manual_seed(tile)
    x = torch.randn(2, 64, *size, generator=g)
    weight = torch.randn(72, 64, 3, 3, generator=g) / 24
    arguments = (x, weight, torch.randn(72, generator=g), 1, [1, 1, 1, 1], up)
    tuning = Tuning(winograd_tiles=(tile,), winograd_price=-1e9, winograd_bytes=2**16)
    for arithmetic, limits in WINOGRAD.items():
        if arithmetic == "f16" and not has_f16():
            continue
        result = run_op(ops.conv2d, arguments, arithmetic, tmp_path, tuning=tuning)
        found = normalised_error(exact(ops.conv2d, arguments), result)
        print(f"F({tile}) {size} {arithmetic}: {found:.1e}")
        assert found < limits[tile]


@settings(max_examples=12)
@given(
    rows=st.integers(1, 70),
    into=st.integers(1, 50),
    out=st.integers(1, 50),
    kind=st.sampled_from(ACTIVATIONS),
    bias=st.booleans(),
)
def test_linear_layers_of_any_size(
    tmp_path_factory: Any, rows: int, into: int, out: int, kind: str, bias: bool
) -> None:
    g = torch.Generator().manual_seed(rows)
    weight = torch.randn(out, into, generator=g) / math.sqrt(into)
    b = torch.randn(out, generator=g) if bias else None
    arguments = (torch.randn(2, rows, into, generator=g), weight, b, kind)
    check(ops.linear, arguments, "f32", tmp_path_factory.mktemp("linear"))


@settings(max_examples=12)
@given(
    groups=st.integers(1, 5),
    size=st.integers(1, 9),
    h=st.integers(1, 9),
    w=st.integers(1, 9),
    silu=st.booleans(),
)
def test_group_norms_of_any_size(
    tmp_path_factory: Any, groups: int, size: int, h: int, w: int, silu: bool
) -> None:
    g = torch.Generator().manual_seed(groups * size)
    c = groups * size
    x = torch.randn(2, c, h, w, generator=g) * 3 + 5
    if size * h * w == 1:  # nothing but rounding is left of one value less itself
        return
    arguments = (x, torch.randn(c, generator=g), torch.randn(c, generator=g), groups, 1e-3, silu)
    check(ops.group_norm_silu, arguments, "f32", tmp_path_factory.mktemp("norm"))


@pytest.mark.parametrize("arithmetic", LIMIT)
def test_the_baseline_means_the_same(arithmetic: str, tmp_path: Path) -> None:
    for op in (ops.group_norm_silu, ops.geglu):
        for case in op.cases[-2:]:
            check(op, case.arguments(), arithmetic, tmp_path, tuning=BASELINE)


@settings(max_examples=8)
@given(rows=st.integers(1, 9), c=st.integers(2, 300))
def test_layer_norms_of_any_size(tmp_path_factory: Any, rows: int, c: int) -> None:
    g = torch.Generator().manual_seed(c)
    x = torch.randn(2, rows, c, generator=g) * 2 - 1
    arguments = (x, torch.randn(c, generator=g), torch.randn(c, generator=g), 1e-3)
    check(ops.layer_norm, arguments, "f32", tmp_path_factory.mktemp("norm"))


@pytest.mark.parametrize("arithmetic", LIMIT)
def test_norms_of_extreme_activations(arithmetic: str, tmp_path: Path) -> None:
    """Around 300, where squares pass f16's range, on top of a mean that hides them."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(1, 64, 16, 16, generator=g) * 3 + 300 * torch.randn(1, 64, 1, 1, generator=g)
    x = x.half().float()  # what f16 cannot tell apart is not the kernel's fault
    one, zero = torch.ones(64), torch.zeros(64)
    check(ops.group_norm_silu, (x, one, zero, 32, 1e-5, False), arithmetic, tmp_path)
    tokens = x.flatten(2).transpose(1, 2).contiguous()
    check(ops.layer_norm, (tokens, one, zero, 1e-5), arithmetic, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_scores_at_the_end_of_f16(form: str, tmp_path: Path) -> None:
    """Rows that reach 60,000 either way: one key takes all, and nothing becomes NaN."""
    if not has_f16():
        pytest.skip("this adapter has no f16")
    q = torch.zeros(1, 32, 40)
    k = torch.zeros(1, 32, 40)
    q[..., 0], k[0, :, 0] = 1900.0, torch.linspace(-200, 200, 32).half().float()
    v = torch.randn(1, 32, 40, generator=torch.Generator().manual_seed(1))
    assert (q[0] @ k[0].T).abs().max() / math.sqrt(40) > 6e4
    check(ops.attention, (q, k, v, 1, False), "f16", tmp_path, tuning=FORMS[form])


@pytest.mark.parametrize("op", [ops.linear, ops.conv2d, ops.geglu], ids=lambda op: op.name)
def test_int8_weights_are_what_they_decode_to(op: ops.FusedOp, tmp_path: Path) -> None:
    """Against PyTorch with weights rounded to the same 8 bits by channel: no other error."""
    arguments = list(op.cases[1 if op is ops.linear else 0].arguments())
    weight = arguments[1]
    scale = weight.abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.ndim - 1)) / 127
    arguments[1] = torch.round(weight / scale) * scale
    expected = exact(op, tuple(arguments))
    result = run_op(op, (arguments[0], weight, *arguments[2:]), "f32", tmp_path, int8=True)
    assert normalised_error(expected, result) <= 1e-10
