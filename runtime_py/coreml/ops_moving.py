"""Operations that move elements about, or make them from sizes alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime_py.coreml.ops import moving_op


@moving_op
def reshape(x: Tensor, shape: list[int]) -> Tensor:
    """A 0 stands for the size of x counted from the right, as -1 for what is left over."""
    have = list(x.shape)
    sizes = [
        n if n != 0 else (have[len(have) - right] if right <= len(have) else 1)
        for n, right in zip(shape, range(len(shape), 0, -1), strict=True)
    ]
    return x.reshape(sizes)


@moving_op
def reshape_like(
    x: Tensor,
    ref_tensors: list[Tensor],
    begins: list[Tensor],
    ends: list[Tensor],
    end_masks: list[Tensor],
) -> Tensor:
    sizes: list[int] = []
    for ref, begin, end, to_end in zip(ref_tensors, begins, ends, end_masks, strict=True):
        sizes += ref.shape[int(begin) : None if bool(to_end) else int(end)]
    return x.reshape(sizes)


@moving_op
def flatten2d(x: Tensor, axis: int = 1) -> Tensor:
    before = x.shape[:axis].numel()
    return x.reshape(before, x.numel() // before)


@moving_op
def transpose(x: Tensor, perm: list[int]) -> Tensor:
    return x.permute(perm)


@moving_op
def expand_dims(x: Tensor, axes: list[int]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@moving_op
def squeeze(x: Tensor, axes: list[int] | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@moving_op
def concat(values: list[Tensor], axis: int, interleave: bool = False) -> Tensor:
    if interleave:
        axis %= values[0].ndim
        return torch.stack(values, axis + 1).flatten(axis, axis + 1)
    return torch.cat([value.reshape(-1) if value.ndim == 0 else value for value in values], axis)


@moving_op
def stack(values: list[Tensor], axis: int) -> Tensor:
    return torch.stack(values, axis)


@moving_op
def split(
    x: Tensor, axis: int, num_splits: int | None = None, split_sizes: list[int] | None = None
) -> tuple[Tensor, ...]:
    if split_sizes is not None:
        return torch.split(x, split_sizes, axis)
    if not num_splits or x.shape[axis] % num_splits:
        raise ValueError(f"{x.shape[axis]} does not split into {num_splits}")
    return torch.split(x, x.shape[axis] // num_splits, axis)


@moving_op
def slice_by_index(
    x: Tensor,
    begin: list[int],
    end: list[int],
    stride: list[int] | None = None,
    begin_mask: list[bool] | None = None,
    end_mask: list[bool] | None = None,
    squeeze_mask: list[bool] | None = None,
) -> Tensor:
    """numpy's slices; a masked begin or end is left open, a squeezed axis is indexed at begin."""
    for axis in reversed(range(x.ndim)):
        if squeeze_mask and squeeze_mask[axis]:
            x = x.select(axis, begin[axis])
            continue
        cut = slice(
            None if begin_mask and begin_mask[axis] else begin[axis],
            None if end_mask and end_mask[axis] else end[axis],
            stride[axis] if stride else 1,
        )
        start, stop, step = cut.indices(x.shape[axis])
        if step > 0:
            x = x.narrow(axis, start, max(stop - start, 0)) if step == 1 else _every(x, axis, cut)
        else:
            x = x.index_select(axis, torch.arange(start, stop, step))
    return x


def _every(x: Tensor, axis: int, cut: slice) -> Tensor:
    return x[(slice(None),) * axis + (cut,)]


@moving_op
def slice_by_size(x: Tensor, begin: list[int], size: list[int]) -> Tensor:
    for axis, (start, length) in enumerate(zip(begin, size, strict=True)):
        start = start % x.shape[axis] if start < 0 else start
        x = x.narrow(axis, start, x.shape[axis] - start if length == -1 else length)
    return x


@moving_op
def slice_update(
    x: Tensor,
    update: Tensor,
    begin: list[int],
    end: list[int],
    stride: list[int] | None = None,
    begin_mask: list[bool] | None = None,
    end_mask: list[bool] | None = None,
    squeeze_mask: list[bool] | None = None,
) -> Tensor:
    places = torch.arange(x.numel()).reshape(x.shape)
    chosen = slice_by_index(
        places, begin, end, stride, begin_mask, end_mask, squeeze_mask
    )  # which elements of x are replaced
    return x.flatten().scatter(0, chosen.flatten(), update.flatten()).reshape(x.shape)


@moving_op
def gather(
    x: Tensor, indices: Tensor, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Tensor:
    axis %= x.ndim
    at = _within(indices, x.shape[axis], validate_indices)
    if batch_dims == 0:
        chosen = x.index_select(axis, at.reshape(-1))
        return chosen.reshape(x.shape[:axis] + at.shape + x.shape[axis + 1 :])
    batch = x.shape[:batch_dims]
    rows = [
        gather(one, row, axis - batch_dims)
        for one, row in zip(
            x.reshape(-1, *x.shape[batch_dims:]),
            at.reshape(-1, *at.shape[batch_dims:]),
            strict=True,
        )
    ]
    return torch.stack(rows).reshape(batch + rows[0].shape)


@moving_op
def gather_along_axis(
    x: Tensor, indices: Tensor, axis: int = 0, validate_indices: bool = False
) -> Tensor:
    return x.gather(axis, _within(indices, x.shape[axis], validate_indices))


@moving_op
def gather_nd(
    x: Tensor, indices: Tensor, batch_dims: int = 0, validate_indices: bool = False
) -> Tensor:
    if batch_dims:
        pairs = zip(x, indices, strict=True)
        return torch.stack([gather_nd(one, at, batch_dims - 1) for one, at in pairs])
    columns = [
        _within(column, n, validate_indices)
        for column, n in zip(indices.unbind(-1), x.shape, strict=False)
    ]
    return x[tuple(columns)]


def _within(indices: Tensor, size: int, strict: bool) -> Tensor:
    """Up to iOS 16 negative indices count from the end; what lies outside means nothing."""
    at = indices.to(torch.int64)
    least = 0 if strict else -size
    if bool(((at < least) | (at >= size)).any()):
        raise IndexError(f"indices outside [{least}, {size})")
    return torch.where(at < 0, at + size, at)


@moving_op
def tile(x: Tensor, reps: list[int]) -> Tensor:
    return x.repeat(reps)


@moving_op
def reverse(x: Tensor, axes: list[int] | None = None) -> Tensor:
    return x.flip(list(range(x.ndim)) if axes is None else axes)


@moving_op
def pad(x: Tensor, pad: list[int], mode: str = "constant", constant_val: float = 0.0) -> Tensor:
    """Pairs of (before, after) for the last axes."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=constant_val)
    for axis, (before, after) in enumerate(pairs, x.ndim - len(pairs)):
        n = x.shape[axis]
        at = torch.arange(-before, n + after)
        if mode == "reflect":
            at = (n - 1) - ((n - 1) - at.abs()).abs()
        x = x.index_select(axis, at.clamp(0, n - 1) if mode == "replicate" else at)
    return x


@moving_op
def fill(shape: list[int], value: float = 0.0) -> Tensor:
    return torch.full(shape, value)


@moving_op
def fill_like(ref_tensor: Tensor, value: float = 0.0) -> Tensor:
    return torch.full(ref_tensor.shape, value)


@moving_op
def range_1d(start: float, end: float, step: float) -> Tensor:
    return torch.arange(start, end, step)


@moving_op
def shape(x: Tensor) -> Tensor:
    return torch.tensor(x.shape, dtype=torch.int64)


@moving_op
def one_hot(
    indices: Tensor,
    one_hot_vector_size: int,
    axis: int = -1,
    on_value: float = 1,
    off_value: float = 0,
) -> Tensor:
    hot = indices.unsqueeze(-1) == torch.arange(one_hot_vector_size)
    return torch.where(hot, on_value, off_value).movedim(-1, axis)


@moving_op
def band_part(x: Tensor, lower: int = -1, upper: int = -1) -> Tensor:
    below = torch.arange(x.shape[-2])[:, None] - torch.arange(x.shape[-1])  # rows minus columns
    band = ((below <= lower) | (lower < 0)) & ((-below <= upper) | (upper < 0))
    return torch.where(band, x, torch.zeros((), dtype=x.dtype))


@moving_op
def non_zero(x: Tensor) -> Tensor:
    return x.nonzero()


@moving_op
def depth_to_space(x: Tensor, block_size: int) -> Tensor:
    b, c, h, w = x.shape
    n = block_size
    blocks = x.reshape(b, n, n, c // (n * n), h, w)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(b, c // (n * n), h * n, w * n)


@moving_op
def space_to_depth(x: Tensor, block_size: int) -> Tensor:
    b, c, h, w = x.shape
    n = block_size
    blocks = x.reshape(b, c, h // n, n, w // n, n)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(b, c * n * n, h // n, w // n)


@moving_op
def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    return F.pixel_shuffle(x, upscale_factor)


@moving_op
def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    return F.pixel_unshuffle(x, downscale_factor)


@moving_op
def sliding_windows(x: Tensor, axis: int, size: int, stride: int = 1) -> Tensor:
    axis %= x.ndim
    return x.unfold(axis, size, stride).movedim(-1, axis + 1)


@moving_op
def argsort(x: Tensor, axis: int = -1, ascending: bool = False) -> Tensor:
    return x.argsort(dim=axis, descending=not ascending, stable=True)


@moving_op
def topk(
    x: Tensor,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> Tensor | tuple[Tensor, Tensor]:
    order = argsort(x, axis, ascending).narrow(axis, 0, x.shape[axis] if k == -1 else k)
    values = x.gather(axis, order)
    return (values, order) if return_indices else values
