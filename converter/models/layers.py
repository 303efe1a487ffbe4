"""Layers shared by the models: parameters under diffusers' names, arithmetic by the fused ops."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from converter import ops


class Linear(nn.Module):
    """A linear layer with an optional activation fused in."""

    def __init__(self, into: int, out: int, *, bias: bool = True, activation: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, into))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias, self.activation)


class Conv2d(nn.Module):
    """A convolution of any stride, with uneven padding or nearest upsampling where SD has them."""

    def __init__(
        self,
        into: int,
        out: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        padding: list[int] | None = None,
        upsample: int = 1,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, into, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(out))
        self.stride, self.upsample = stride, upsample
        self.padding = ops.same(kernel) if padding is None else padding

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.upsample)


class GroupNorm(nn.Module):
    def __init__(self, groups: int, channels: int, epsilon: float, *, silu: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.groups, self.epsilon, self.silu = groups, epsilon, silu

    def forward(self, x: Tensor) -> Tensor:
        return ops.group_norm_silu(x, self.weight, self.bias, self.groups, self.epsilon, self.silu)


class LayerNorm(nn.Module):
    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.epsilon)


class ResBlock(nn.Module):
    """Two convolutions with a shortcut; the UNet's take the time embedding in between."""

    def __init__(
        self, into: int, out: int, *, groups: int, epsilon: float, time: int | None = None
    ) -> None:
        super().__init__()
        self.norm1 = GroupNorm(groups, into, epsilon, silu=True)
        self.conv1 = Conv2d(into, out)
        self.time_emb_proj = None if time is None else Linear(time, out)
        self.norm2 = GroupNorm(groups, out, epsilon, silu=True)
        self.conv2 = Conv2d(out, out)
        self.conv_shortcut = None if into == out else Conv2d(into, out, 1)

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        h = self.conv1(self.norm1(x))
        if self.time_emb_proj is not None:
            assert time is not None
            h = h + ops.over_picture(self.time_emb_proj(time))
        h = self.conv2(self.norm2(h))
        return h + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Resample(nn.Module):
    """Halves or doubles the picture; a module of its own because checkpoints name it `conv`."""

    def __init__(self, channels: int, **form: object) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, **form)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)
