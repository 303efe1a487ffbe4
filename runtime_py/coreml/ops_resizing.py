"""Operations that give pictures another size. Only the last two axes change, but for `resize`."""

from __future__ import annotations

from math import floor

import torch
from torch import Tensor

from runtime_py.coreml.ops import op


@op
def upsample_nearest_neighbor(
    x: Tensor, scale_factor_height: float = 1, scale_factor_width: float = 1
) -> Tensor:
    h, w = (
        floor(n * s)
        for n, s in zip(x.shape[-2:], (scale_factor_height, scale_factor_width), strict=True)
    )
    return _nearest(_nearest(x, -2, h), -1, w)


@op
def resize_nearest_neighbor(x: Tensor, target_size_height: int, target_size_width: int) -> Tensor:
    return _nearest(_nearest(x, -2, target_size_height), -1, target_size_width)


@op
def upsample_bilinear(
    x: Tensor,
    scale_factor_height: float = 1,
    scale_factor_width: float = 1,
    align_corners: bool = True,
    half_pixel_centers: bool | None = None,
) -> Tensor:
    if half_pixel_centers is None:
        half_pixel_centers = not align_corners
    mode = "STRICT_ALIGN_CORNERS" if align_corners else "UNALIGN_CORNERS"
    if not align_corners and not half_pixel_centers:
        mode = "DEFAULT"
    h, w = floor(x.shape[-2] * scale_factor_height), floor(x.shape[-1] * scale_factor_width)
    return _linear(_linear(x, -2, h, mode), -1, w, mode)


@op
def resize_bilinear(
    x: Tensor,
    target_size_height: int = 1,
    target_size_width: int = 1,
    sampling_mode: str = "DEFAULT",
) -> Tensor:
    y = _linear(x, -2, target_size_height, sampling_mode)
    return _linear(y, -1, target_size_width, sampling_mode)


@op
def resize(
    x: Tensor,
    shape: list[int],
    resized_dims: int,
    interpolation_mode: str = "LINEAR",
    sampling_mode: str = "DEFAULT",
) -> Tensor:
    """The last sizes of `shape` for the last axes; 0 keeps an axis as it is."""
    for axis in range(-resized_dims, 0):
        size = shape[axis] or x.shape[axis]
        if size == x.shape[axis]:
            continue
        if interpolation_mode == "LINEAR":
            x = _linear(x, axis, size, sampling_mode)
        elif interpolation_mode == "NEAREST_NEIGHBOR" and sampling_mode == "DEFAULT":
            x = _nearest(x, axis, size)
        else:
            raise ValueError(f"{interpolation_mode} with {sampling_mode} is not supported")
    return x


def _nearest(x: Tensor, axis: int, size: int) -> Tensor:
    n = x.shape[axis]
    return x.index_select(axis, torch.arange(size) * n // size)


def _linear(x: Tensor, axis: int, size: int, mode: str) -> Tensor:
    n = x.shape[axis]
    at = _points(n, size, mode).clamp(0, n - 1)  # [size], between elements of x
    left = at.floor().to(torch.int64)
    wide = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
    share = (at - left).to(x.dtype).reshape(wide)
    right = (left + 1).clamp(max=n - 1)
    return torch.lerp(x.index_select(axis, left), x.index_select(axis, right), share)


def _points(n: int, size: int, mode: str) -> Tensor:
    """Where the new elements lie among the old ones."""
    i = torch.arange(size, dtype=torch.float64)
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if size == 1:
            return i if mode == "STRICT_ALIGN_CORNERS" else i + (n - 1) / 2
        return i * (n - 1) / (size - 1)
    if mode == "DEFAULT":
        return i * n / size
    if mode == "OFFSET_CORNERS":
        delta = max(1, n - 1) / size
        return (i + 0.5) * delta
    if mode == "UNALIGN_CORNERS":
        return (i + 0.5) * n / size - 0.5
    raise ValueError(f"sampling mode {mode!r}")
