"""LayerNorm over the last axis of a token sequence."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops.registry import Case, fused_op
from converter.ops.standardise import standardised

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Value
    from converter.targets.webgpu.kernels import Kernels


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, epsilon)  # x [b, n, c]


def naive(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + epsilon) * weight + bias


def litert(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return standardised(x, [-1], epsilon) * weight + bias


def webgpu(b: "Kernels", x: "Value", weight: Tensor, bias: Tensor, epsilon: float) -> "Value":
    y = b.new(*x.shape)
    b.emit(
        "layer_norm",
        [x, b.vector(f"{b.label}.weight", weight), b.vector(f"{b.label}.bias", bias), y],
        b.spread(x.rows),
        options={"threads": 64},
        constants={"C": x.channels, "C4": x.vec4s, "EPSILON": epsilon, "ROWS": x.rows},
        flops=8 * x.rows * x.channels,
    )
    return y


def coreml(b: "Builder", x: "Var", weight: Tensor, bias: Tensor, epsilon: float) -> "Var":
    return b.layer_norm(x, weight, bias, epsilon)


def _case(label: str, tokens: int, width: int) -> Case:
    def make(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, float]:
        x = torch.randn(1, tokens, width, generator=g) * 2 - 1
        return x, torch.randn(width, generator=g), torch.randn(width, generator=g), 1e-5

    return Case(label, make)


op = fused_op(
    layer_norm,
    naive=naive,
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[_case("UNet 4096x320", 4096, 320), _case("text encoder 77x768", 77, 768)],
)
