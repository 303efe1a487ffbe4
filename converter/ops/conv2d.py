"""Convolution with what SD 1.x does around it: bias, stride, uneven padding, nearest upsampling."""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops import tflite
from converter.ops.registry import Case, fused_op

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Joined, Value
    from converter.targets.webgpu.kernels import Kernels


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: list[int], upsample: int
) -> Tensor:
    # x [b, c, h, w], weight [out, c, k, k], padding (left, right, top, bottom);
    # every pixel is repeated `upsample` times along both sides before the convolution.
    if upsample > 1:
        x = F.interpolate(x, scale_factor=float(upsample), mode="nearest")
    left, right, top, bottom = padding
    if left == right and top == bottom:
        return F.conv2d(x, weight, bias, stride, (top, left))
    return F.conv2d(F.pad(x, padding), weight, bias, stride)


def litert(
    x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: list[int], upsample: int
) -> Tensor:
    # x [b, h, w, c]
    if upsample > 1:
        x = tflite.resize_nearest_neighbor(x, upsample)
    same_padding = [
        tflite.same_padding(n, weight.shape[2], stride) for n in (x.shape[2], x.shape[1])
    ]
    is_same = padding == [n for pair in same_padding for n in pair]
    if not is_same and any(padding):
        x = F.pad(x, [0, 0, *padding])
    return tflite.conv_2d(x, weight.permute(0, 2, 3, 1), bias, stride, is_same)


def webgpu(
    b: "Kernels",
    x: "Value | Joined",
    weight: Tensor,
    bias: Tensor,
    stride: int,
    padding: list[int],
    upsample: int,
    *,
    residual: "Value | None" = None,
    vector: "Value | None" = None,
) -> "Value":
    if weight.shape[2] == stride == upsample == 1 and not any(padding):
        return b.matmul(x, weight[:, :, 0, 0], bias, residual=residual, vector=vector)
    return b.convolve(
        b.materialise(x), weight, bias, stride, padding, upsample,
        residual=residual, vector=vector,
    )  # fmt: skip


def coreml(
    b: "Builder",
    x: "Var",
    weight: Tensor,
    bias: Tensor,
    stride: int,
    padding: list[int],
    upsample: int,
) -> "Var":
    return b.conv(x, weight, bias, stride, padding, upsample)


def naive(
    x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: list[int], upsample: int
) -> Tensor:
    x = x.repeat_interleave(upsample, dim=2).repeat_interleave(upsample, dim=3)
    x = F.pad(x, padding)
    out, _, k, _ = weight.shape
    columns = F.unfold(x, k, stride=stride)  # [b, c * k * k, positions]
    rows = (x.shape[2] - k) // stride + 1
    y = weight.reshape(out, -1) @ columns + bias.reshape(1, out, 1)
    return y.reshape(x.shape[0], out, rows, -1)


def same(kernel: int) -> list[int]:
    """The padding that keeps the size at stride 1."""
    return [kernel // 2] * 4


def _case(
    label: str,
    channels: tuple[int, int],
    size: int,
    kernel: int = 3,
    stride: int = 1,
    padding: list[int] | None = None,
    upsample: int = 1,
) -> Case:
    into, out = channels

    def make(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, int, list[int], int]:
        weight = torch.randn(out, into, kernel, kernel, generator=g) / math.sqrt(into * kernel**2)
        x, bias = torch.randn(1, into, size, size, generator=g), torch.randn(out, generator=g)
        return x, weight, bias, stride, padding or same(kernel), upsample

    return Case(label, make)


op = fused_op(
    conv2d,
    naive=naive,
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[
        _case("3x3 320 at 32x32", (320, 320), 32),
        _case("1x1 640 to 320", (640, 320), 32, kernel=1),
        _case("downsample, UNet", (320, 320), 32, stride=2),
        _case("downsample, VAE", (128, 128), 32, stride=2, padding=[0, 1, 0, 1]),
        _case("upsample", (640, 640), 8, upsample=2),
    ],
)
