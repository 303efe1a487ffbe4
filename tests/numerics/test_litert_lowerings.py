"""The LiteRT form of every op and graph, run in PyTorch before anything is exported."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from converter import ops
from converter.components import COMPONENTS, ComponentSpec, example, geometry
from converter.fold import fold_constants
from converter.graph import export
from converter.models import UNetConfig, build
from converter.ops import tflite
from converter.ops.attention import rows_at_once
from converter.ops.standardise import standardised
from converter.partition import Part, partition
from converter.targets.litert import absorb
from converter.targets.litert.lowered import Lowered, channels_first, channels_last
from runtime_py.engines.chain import Link, chain_of, last_uses
from runtime_py.errors import PocketSDError
from runtime_py.package import Component, TensorSpec
from runtime_py.quality import psnr

ACTIVATIONS = {
    "token_embedding": 0,
    "timestep_embedding": 0,
    "attention": 3,
    "join": 2,
}  # fmt: skip  how many leading arguments are activations; one unless named here
CASES = [
    pytest.param(op, case, id=f"{op.name}: {case.label}")
    for op in ops.all_ops()
    for case in op.cases
]


def lowered(op: ops.FusedOp, arguments: tuple[Any, ...]) -> Tensor:
    count = ACTIVATIONS.get(op.name, 1)
    inputs = [channels_last(a) for a in arguments[:count]]
    return op.lowerings["litert"](*inputs, *arguments[count:])


@pytest.mark.parametrize(("op", "case"), CASES)
def test_lowering_means_the_same(op: ops.FusedOp, case: ops.Case) -> None:
    arguments = case.arguments()
    expected = op.reference(*arguments)
    result = channels_first(lowered(op, arguments), expected.ndim)
    # fp32 in another order. The sinusoid's reference rounds angles of up to 1000 radians to fp32,
    # which is worth 6e-5; the lowering does not.
    assert psnr(expected, result) > (85 if op is ops.timestep_embedding else 115)


@pytest.mark.parametrize("timestep", [0.0, 0.5, 7.99, 8.0, 981.0, 999.0, 1023.0])
def test_sinusoid_in_fp16_keeps_its_phase(timestep: float) -> None:
    """Every step in fp16, as a GPU would: the plain form loses its angles, this one does not."""
    exact = ops.timestep_embedding.reference(torch.tensor([timestep]), 320, True, 0.0)
    half = torch.tensor([timestep]).half()

    class Half(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            kwargs = kwargs or {}
            args, kwargs = torch.utils._pytree.tree_map_only(
                Tensor, lambda t: t.half() if t.is_floating_point() else t, (args, kwargs)
            )
            return func(*args, **kwargs)

    with Half():
        result = ops.timestep_embedding.lowerings["litert"](half, 320, True, 0.0)
    frequency = torch.exp(-math.log(10000.0) * torch.arange(160) / 160).half()
    naive = torch.cat([(half * frequency).cos(), (half * frequency).sin()])
    # An angle below 8 is rounded to a 256th, which is 51 dB; fp16 sums add their own.
    ours = psnr(exact, channels_first(result, 2).float())
    assert ours > 45
    if timestep > 900:  # where an angle is rounded to half a radian
        assert psnr(exact[0], naive.float()) < ours - 15


@given(spread=st.floats(1e-3, 3e4), mean=st.floats(-1e4, 1e4), seed=st.integers(0, 99))
def test_standardised_never_leaves_fp16(spread: float, mean: float, seed: int) -> None:
    x = torch.randn(1, 64, 4, 8, generator=torch.Generator().manual_seed(seed)) * spread + mean
    x = x.clamp(-60000, 60000).half()  # what fp16 can hold at all
    centred = x - x.float().mean(dim=(1, 3), keepdim=True).half()
    if not torch.isfinite(centred).all():
        return
    result = standardised(x, [1, 3], 1e-5)
    assert torch.isfinite(result).all()
    assert result.abs().max() <= math.sqrt(64 * 8) * 1.01  # no standard score is larger


@given(size=st.integers(1, 9), kernel=st.sampled_from([1, 3]), stride=st.integers(1, 2))
def test_same_padding_keeps_the_size(size: int, kernel: int, stride: int) -> None:
    x = torch.randn(1, size, size + 1, 2)
    y = tflite.conv_2d(x, torch.randn(3, kernel, kernel, 2), torch.zeros(3), stride, True)
    assert y.shape == (1, -(-size // stride), -(-(size + 1) // stride), 3)


def run_parts(parts: list[Part], named: dict[str, Tensor]) -> dict[str, Tensor]:
    for part in parts:
        named = named | Lowered(part)(**{name: named[name] for name in part.inputs})
    return named


@pytest.mark.parametrize("spec", COMPONENTS, ids=lambda spec: spec.name)
def test_lowered_component(spec: ComponentSpec, tiny_checkpoint) -> None:  # type: ignore[no-untyped-def]
    sizes = geometry(tiny_checkpoint, 64, 128, 2, 1)
    inputs, module = example(spec.inputs(sizes)), spec.module(tiny_checkpoint)
    outputs = [s.name for s in spec.outputs(sizes)]
    (part,) = partition(export(module, inputs), outputs, None)
    named = dict(zip((s.name for s in spec.inputs(sizes)), inputs, strict=True))
    assert set(part.inputs) == set(named) and part.outputs == tuple(outputs)
    assert psnr(module(*inputs), run_parts([part], named)[outputs[0]]) > 100


NAMES = ("latent", "timestep", "embedding")
TINY_UNET = UNetConfig(
    widths=(32, 64), attention=(True, False), depth=1, heads=(2, 2), context=32, groups=8,
    sample_size=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def small_unet():  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    module = build("unet", TINY_UNET).eval().requires_grad_(False)
    for weight in module.parameters():
        spread = weight[0].numel() ** -0.5 if weight.ndim > 1 else 0.3
        torch.nn.init.normal_(weight, 0, spread)
    inputs = (torch.randn(1, 4, 8, 8), torch.tensor([981.0]), torch.randn(1, 7, 32))
    return module(*inputs), export(module, inputs), inputs


@settings(max_examples=6)
@given(limit=st.integers(600_000, 3_000_000))
def test_a_chain_equals_the_whole(small_unet, limit: int) -> None:  # type: ignore[no-untyped-def]
    expected, program, inputs = small_unet
    parts = partition(program, ["noise"], limit)
    named = dict(zip(NAMES, inputs, strict=True))
    assert psnr(expected, run_parts(parts, named)["noise"]) > 110
    for part in parts:
        used = {n.target for n in part.module.graph.nodes if n.op == "get_attr"}
        weights = dict(part.module.named_parameters()) | dict(part.module.named_buffers())
        assert sum(weights[name].nbytes for name in used) <= limit
    whole = sum(p.nbytes for p in small_unet[1].module().parameters())
    assert len(parts) >= whole / limit
    # The links fit together as the engine will check them.
    links = [
        {"file": f"{i}", "inputs": p.inputs, "outputs": p.outputs} for i, p in enumerate(parts)
    ]
    chain = chain_of(_component(links, tuple(named), ("noise",)))
    assert last_uses(chain, {"noise": None})[-1].isdisjoint({"noise"})


def _component(
    links: list[dict[str, Any]], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Component:
    def specs(names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, (1,), "float32", "N") for name in names)

    files = tuple(link["file"] for link in links)
    return Component("unet", files, specs(inputs), specs(outputs), {"chain": links})


def test_a_part_too_small_for_a_layer_is_refused(small_unet) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="a single layer has"):
        partition(small_unet[1], ["noise"], 1000)


@pytest.mark.parametrize(
    ("links", "complaint"),
    [
        ([{"file": "a", "inputs": ["x"], "outputs": ["z"]}], "no file of unet makes"),
        ([{"file": "a", "inputs": ["q"], "outputs": ["y"]}], "nothing before makes"),
        ([{"inputs": ["x"]}], "describes no chain"),
    ],
)
def test_a_chain_that_does_not_fit_is_refused(links: list[Any], complaint: str) -> None:
    component = Component(
        "unet",
        ("a",),
        (TensorSpec("x", (1,), "float32", "N"),),
        (TensorSpec("y", (1,), "float32", "N"),),
        {"chain": links},
    )
    with pytest.raises(PocketSDError, match=complaint):
        chain_of(component)
    stranger = Component("unet", ("b",), (), (), {"chain": [Link("a", (), ()).__dict__]})
    with pytest.raises(PocketSDError, match="none of its files"):
        chain_of(stranger)


def test_folding_leaves_only_what_inputs_reach(small_unet) -> None:  # type: ignore[no-untyped-def]
    expected, program, inputs = small_unet
    (part,) = partition(program, ["noise"], None)
    named = dict(zip(NAMES, inputs, strict=True))
    with torch.no_grad():
        again = torch.export.export(Lowered(part), (), kwargs=named, strict=False)
    folded = fold_constants(again.module(check_guards=False))
    assert psnr(expected, folded(**named)["noise"]) > 110
    for node in folded.graph.nodes:
        if node.op == "call_function":
            assert any(n.op != "get_attr" for n in node.all_input_nodes), node.format_node()


def test_long_queries_are_split_so_that_scores_stay_small() -> None:
    q = (2, 8, 4096, 40)
    rows = rows_at_once(q, 4096)
    assert 2 * 8 * rows * 4096 * 4 <= 64 * 2**20 and rows * 2 * 8 * 4096 * 4 * 2 > 64 * 2**20
    assert rows_at_once((1, 8, 256, 160), 256) == 256


@pytest.mark.parametrize(("component", "left"), [("unet", 0), ("text_encoder", 1)])
def test_projections_absorb_the_norms_before_them(  # type: ignore[no-untyped-def]
    component: str, left: int, tiny_checkpoint
) -> None:
    """A text encoder's last norm stays as it is: no projection follows."""
    spec = next(s for s in COMPONENTS if s.name == component)
    sizes = geometry(tiny_checkpoint, 64, 64, 1, 1)
    inputs, module = example(spec.inputs(sizes)), spec.module(tiny_checkpoint)
    (part,) = partition(export(module, inputs), [s.name for s in spec.outputs(sizes)], None)
    norms = [n for n in part.module.graph.nodes if str(n.target) == absorb.LAYER_NORM]
    absorb.absorb(part.module.graph)
    still = [n for n in part.module.graph.nodes if str(n.target) == absorb.LAYER_NORM]
    assert len(norms) > 2 and len(still) == left
