"""GroupNorm with an optional SiLU: one kernel, not reshape, mean, variance, scale, sigmoid."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops.registry import Case, fused_op
from converter.ops.standardise import standardised

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Joined, Value
    from converter.targets.webgpu.kernels import Kernels


def group_norm_silu(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float, silu: bool
) -> Tensor:
    # x [b, c, h, w]; statistics over (c / groups, h, w)
    y = F.group_norm(x, groups, weight, bias, epsilon)
    return F.silu(y) if silu else y


def naive(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float, silu: bool
) -> Tensor:
    b, c, h, w = x.shape
    g = x.reshape(b, groups, -1)  # [b, groups, c / groups * h * w]
    centred = g - g.mean(dim=2, keepdim=True)
    variance = (centred * centred).mean(dim=2, keepdim=True)
    y = (centred / torch.sqrt(variance + epsilon)).reshape(b, c, h, w)
    y = y * weight.reshape(1, c, 1, 1) + bias.reshape(1, c, 1, 1)
    return y * torch.sigmoid(y) if silu else y


def litert(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float, silu: bool
) -> Tensor:
    # x [b, h, w, c]. No rank above four: so every op has a kernel on the delegate, and nothing
    # needs to be broadcast by an op of its own.
    b, h, w, c = x.shape
    g = x.reshape(b, h * w, groups, c // groups)
    weight, bias = (t.reshape(1, 1, groups, c // groups) for t in (weight, bias))
    y = (standardised(g, [1, 3], epsilon, weight) + bias).reshape(b, h, w, c)
    return F.silu(y) if silu else y


def webgpu(
    b: "Kernels",
    x: "Value | Joined",
    weight: Tensor,
    bias: Tensor,
    groups: int,
    epsilon: float,
    silu: bool,
) -> "Value":
    return b.group_norm(x, weight, bias, groups, epsilon, silu)


def coreml(
    b: "Builder",
    x: "Var",
    weight: Tensor,
    bias: Tensor,
    groups: int,
    epsilon: float,
    silu: bool,
) -> "Var":
    return b.group_norm(x, weight, bias, groups, epsilon, silu)


def _case(label: str, channels: int, size: int, silu: bool, groups: int = 32) -> Case:
    def make(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, int, float, bool]:
        # A mean far from zero and uneven channels: what sums of squares in fp16 stumble over.
        x = torch.randn(1, channels, size, size, generator=g) * 3 + 5
        weight, bias = torch.randn(channels, generator=g), torch.randn(channels, generator=g)
        return x, weight, bias, groups, 1e-5, silu

    return Case(label, make)


op = fused_op(
    group_norm_silu,
    naive=naive,
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[
        _case("UNet 320 at 64x64", 320, 64, True),
        _case("UNet skip 1920 at 16x16", 1920, 16, True),
        _case("transformer entry 640 at 32x32", 640, 32, False),
        _case("small groups", 32, 8, True, groups=8),
    ],
)
