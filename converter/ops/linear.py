"""A linear layer with the activation that follows it, if any."""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops import tflite
from converter.ops.registry import Case, fused_op

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Value
    from converter.targets.webgpu.kernels import Kernels

ACTIVATIONS = ("", "silu", "gelu", "quick_gelu")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return activate(F.linear(x, weight, bias), activation)  # x [..., c], weight [out, c]


def activate(y: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return F.silu(y)
    if activation == "gelu":
        return F.gelu(y)
    if activation == "quick_gelu":  # CLIP's own approximation; not GELU to fp32 accuracy
        return y * torch.sigmoid(1.702 * y)
    assert activation == "", activation
    return y


def litert(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    # x [b, 1, n, c]. A 1x1 convolution keeps the rank, and batch and tokens apart; a fully
    # connected layer would be handed [b * n, c], which the delegate takes for a batch of b * n.
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return activate(tflite.conv_2d(x, weight[:, None, None], bias, 1, False), activation)


def webgpu(
    b: "Kernels",
    x: "Value",
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    *,
    residual: "Value | None" = None,
    vector: "Value | None" = None,
) -> "Value":
    return b.matmul(x, weight, bias, activation, residual=residual, vector=vector)


def coreml(b: "Builder", x: "Var", weight: Tensor, bias: Tensor | None, activation: str) -> "Var":
    return b.linear(x, weight, bias, activation)


def naive(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    y = x @ weight.transpose(0, 1)
    y = y if bias is None else y + bias
    if activation == "silu":
        return y / (1 + torch.exp(-y))
    if activation == "gelu":
        return 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))
    if activation == "quick_gelu":
        return y / (1 + torch.exp(-1.702 * y))
    return y


def _case(
    label: str, tokens: int, width: int, out: int, activation: str, bias: bool = True
) -> Case:
    def make(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor | None, str]:
        weight = torch.randn(out, width, generator=g) / math.sqrt(width)
        b = torch.randn(out, generator=g) if bias else None
        return torch.randn(1, tokens, width, generator=g), weight, b, activation

    return Case(label, make)


op = fused_op(
    linear,
    naive=naive,
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[
        _case("attention projection, no bias", 1024, 640, 640, "", bias=False),
        _case("time embedding", 1, 320, 1280, "silu"),
        _case("text encoder MLP", 77, 768, 3072, "quick_gelu"),
        _case("GELU", 77, 64, 256, "gelu"),
    ],
)
