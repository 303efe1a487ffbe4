"""GEGLU with its projection: value * gelu(gate), both halves of one matrix product."""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops.linear import litert as linear
from converter.ops.registry import Case, fused_op

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Value
    from converter.targets.webgpu.kernels import Kernels


def geglu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    # x [b, n, c], weight [2 * inner, c] -> [b, n, inner]; the first half holds the values
    value, gate = F.linear(x, weight, bias).chunk(2, dim=-1)
    return value * F.gelu(gate)


def litert(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    # Two projections instead of one and a split: the halves are never stored together.
    inner = weight.shape[0] // 2
    value = linear(x, weight[:inner], bias[:inner], "")
    return value * linear(x, weight[inner:], bias[inner:], "gelu")


def webgpu(b: "Kernels", x: "Value", weight: Tensor, bias: Tensor) -> "Value":
    if b.tuning.fused_gelu:
        return b.matmul(x, weight, bias, "geglu")
    inner, label = len(weight) // 2, b.label
    value = b.matmul(x, weight[:inner], bias[:inner])
    b.label = f"{label}.gate"
    gate = b.matmul(x, weight[inner:], bias[inner:])
    return b.elementwise("mul", value, b.elementwise("gelu", gate))


def coreml(b: "Builder", x: "Var", weight: Tensor, bias: Tensor) -> "Var":
    return b.geglu(x, weight, bias)


def naive(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    projected = x @ weight.transpose(0, 1) + bias
    inner = projected.shape[-1] // 2
    value, gate = projected[..., :inner], projected[..., inner:]
    return value * (0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))))


def _case(label: str, tokens: int, width: int) -> Case:
    def make(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.randn(8 * width, width, generator=g) / math.sqrt(width)
        return (
            torch.randn(1, tokens, width, generator=g),
            weight,
            torch.randn(8 * width, generator=g),
        )

    return Case(label, make)


op = fused_op(
    geglu,
    naive=naive,
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[_case("UNet 4096x320", 4096, 320), _case("UNet 256x1280", 256, 1280)],
)
