"""Where a tensor changes its meaning: a picture read as tokens and back, two pictures as one.

Targets hold pictures in different orders in memory, so these are ops of their own: a target that
keeps channels last lowers the first three to nothing.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from converter.ops.registry import Case, fused_op

if TYPE_CHECKING:
    from converter.targets.webgpu.builder import Joined, Value
    from converter.targets.webgpu.kernels import Kernels


def to_tokens(x: Tensor) -> Tensor:
    # [b, c, h, w] -> [b, h * w, c]
    return x.flatten(2).transpose(1, 2).clone(memory_format=torch.contiguous_format)


def to_picture(tokens: Tensor, height: int, width: int) -> Tensor:
    # [b, h * w, c] -> [b, c, h, w]
    b, _, c = tokens.shape
    picture = tokens.transpose(1, 2).reshape(b, c, height, width)
    return picture.clone(memory_format=torch.contiguous_format)


def over_picture(vector: Tensor) -> Tensor:
    # [b, c] -> [b, c, 1, 1], to be added to every pixel
    return vector[:, :, None, None].clone()


def join(first: Tensor, second: Tensor) -> Tensor:
    # [b, c, h, w] and [b, d, h, w] -> [b, c + d, h, w]
    return torch.cat([first, second], dim=1)


def _naive_tokens(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).reshape(b, h * w, c).clone()


def _naive_picture(tokens: Tensor, height: int, width: int) -> Tensor:
    b, _, c = tokens.shape
    return tokens.reshape(b, height, width, c).permute(0, 3, 1, 2).clone()


def _naive_over(vector: Tensor) -> Tensor:
    return vector.reshape(*vector.shape, 1, 1).clone()


def _naive_join(first: Tensor, second: Tensor) -> Tensor:
    b, c, h, w = first.shape
    joined = first.new_empty(b, c + second.shape[1], h, w)
    joined[:, :c], joined[:, c:] = first, second
    return joined


def _webgpu_tokens(b: "Kernels", x: "Value") -> "Value":
    n, h, w, c = x.shape
    return x.viewed(n, h * w, c)


def _webgpu_picture(b: "Kernels", x: "Value", height: int, width: int) -> "Value":
    return x.viewed(x.shape[0], height, width, x.channels)


def _webgpu_join(b: "Kernels", first: "Value", second: "Value") -> "Joined | Value":
    return b.joined(first, second)


def _picture_case(channels: int, height: int, width: int) -> Case:
    shape = (2, channels, height, width)
    return Case(f"{channels} at {height}x{width}", lambda g: (torch.randn(shape, generator=g),))


tokens_op = fused_op(
    to_tokens,
    naive=_naive_tokens,
    lowerings={
        "litert": lambda x: x.flatten(1, 2).unsqueeze(1),  # [b, h, w, c] -> [b, 1, hw, c]
        "webgpu": _webgpu_tokens,
        "coreml": lambda b, x: b.to_tokens(x),
    },
    cases=[_picture_case(320, 8, 16)],
)
picture_op = fused_op(
    to_picture,
    naive=_naive_picture,
    lowerings={
        "litert": lambda tokens, h, w: tokens.reshape(tokens.shape[0], h, w, -1),
        "webgpu": _webgpu_picture,
        "coreml": lambda b, tokens, h, w: b.to_picture(tokens, h, w),
    },
    cases=[Case("8x16", lambda g: (torch.randn(2, 128, 320, generator=g), 8, 16))],
)
over_op = fused_op(
    over_picture,
    naive=_naive_over,
    lowerings={
        "litert": lambda vector: vector,  # [b, 1, 1, c]
        "webgpu": lambda b, vector: vector,
        "coreml": lambda b, vector: b.over_picture(vector),
    },
    cases=[Case("320", lambda g: (torch.randn(2, 320, generator=g),))],
)
join_op = fused_op(
    join,
    naive=_naive_join,
    lowerings={
        "litert": lambda first, second: torch.cat([first, second], dim=-1),
        "webgpu": _webgpu_join,
        "coreml": lambda b, first, second: b.join(first, second),
    },
    cases=[
        Case(
            "640 + 320",
            lambda g: (
                torch.randn(1, 640, 16, 8, generator=g),
                torch.randn(1, 320, 16, 8, generator=g),
            ),
        )
    ],
)
