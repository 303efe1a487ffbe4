"""Cases of operations that move elements, and of those that resize pictures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch.nn.functional as F

from tests.support.coreml_cases import IMAGE, TRUTHS, Case, X, case, ints, some, t


def moving() -> Iterator[Case]:
    yield case("reshape", x=X, shape=[0, -1])
    yield case(
        "reshape",
        lambda x, shape: x.reshape(1, 1, 2, 12),
        x=some(2, 12),
        shape=[1, 0, -1, 0],
        label="zeros from the right",
    )
    yield case("reshape", x=X, shape=[0, 0, -1], opset="iOS16", label="iOS16")
    yield case(
        "reshape_like",
        lambda x, **_: x.reshape(4, 6),
        x=X,
        ref_tensors=[some(4, 2), some(9, 6)],
        begins=[0, 1],
        ends=[1, 0],
        end_masks=[False, True],
    )
    yield case("flatten2d", x=X, axis=2)
    yield case("transpose", x=X, perm=[-1, 0, 1])
    yield case("expand_dims", x=X, axes=[0, -1])
    yield case("squeeze", x=some(1, 3, 1, 2), axes=[0])
    yield case("squeeze", x=some(1, 3, 1, 2), label="all")
    yield case("concat", values=[X, some(2, 1, 4)], axis=-2)
    yield case(
        "concat",
        lambda values, **_: np.stack(values, 2).reshape(2, 6, 4),
        values=[X, X + 1],
        axis=1,
        interleave=True,
        label="interleaved",
    )
    yield case("stack", values=[X, X + 1], axis=1)
    yield case("split", lambda x, **_: np.split(x, 2, 2), x=X, num_splits=2, axis=2)
    yield case(
        "split", lambda x, **_: np.split(x, [1], 1), x=X, split_sizes=[1, 2], axis=1, label="sizes"
    )
    yield case(
        "slice_by_index",
        x=IMAGE,
        begin=[0, 1, -4, 7],
        end=[1, 4, -1, 0],
        stride=[1, 2, 1, -3],
        begin_mask=[True, False, False, False],
        end_mask=[True, False, False, True],
    )
    yield case(
        "slice_by_index",
        x=IMAGE,
        begin=[-1, 1, 0, 0],
        end=[0, 0, 9, 8],
        squeeze_mask=[True, True, False, False],
        label="squeezed",
    )
    yield case("slice_by_size", x=IMAGE, begin=[0, 1, -4, 0], size=[2, 2, 3, -1])
    yield case(
        "slice_update",
        x=IMAGE,
        update=some(2, 4, 3, 4),
        begin=[0, 0, 0, 0],
        end=[2, 4, 6, 8],
        stride=[1, 1, 2, 2],
        opset="iOS18",
    )
    yield case("gather", x=X, indices=ints(5, 2, below=3), axis=1)
    yield case("gather", x=X, indices=ints(5, below=2), validate_indices=True, label="checked")
    yield case("gather", x=X, indices=np.int32([-1, 0]), axis=-2, opset="iOS16", label="negative")
    yield case(
        "gather",
        lambda x, indices, **_: np.stack([x[i][:, indices[i]] for i in range(2)]),
        x=X,
        indices=ints(2, 5, below=4),
        axis=2,
        batch_dims=1,
        label="batch",
    )
    yield case("gather_along_axis", x=X, indices=ints(2, 3, 7, below=4), axis=2)
    yield case(
        "gather_nd",
        lambda x, indices: x[indices[:, 0], indices[:, 1]],
        x=X,
        indices=ints(5, 2, below=2),
    )
    yield case(
        "gather_nd",
        lambda x, indices, **_: np.stack([x[i][indices[i, :, 0]] for i in range(2)]),
        x=X,
        indices=ints(2, 5, 1, below=3),
        batch_dims=1,
        label="batch",
    )
    yield case("tile", x=X, reps=[1, 2, 3])
    yield case("reverse", x=X, axes=[0, -1])
    for mode in ("constant", "reflect", "replicate"):
        more = {"constant_val": 2.5} if mode == "constant" else {}
        yield case("pad", x=IMAGE, pad=[1, 0, 0, 2, 3, 1], mode=mode, **more, label=mode)
    yield case("fill", shape=[2, 3], value=1.5)
    yield case("fill_like", ref_tensor=X, value=np.int32(3))
    yield case("range_1d", start=np.int32(2), end=np.int32(11), step=np.int32(3))
    yield case("range_1d", start=0.5, end=2.0, step=0.25, label="float")
    yield case("shape", x=X)
    yield case(
        "one_hot",
        lambda indices, **_: np.where(np.arange(4) == indices[..., None], 2.0, -1.0).transpose(
            0, 2, 1
        ),
        indices=ints(2, 3, below=4),
        one_hot_vector_size=4,
        axis=1,
        on_value=2.0,
        off_value=-1.0,
    )
    yield case("band_part", x=IMAGE, lower=2, upper=-1)
    yield case("band_part", x=IMAGE, lower=0, upper=1, label="upper")
    yield case("non_zero", x=np.float32(TRUTHS))
    blocks = some(2, 8, 3, 5)
    yield case("pixel_shuffle", lambda x, **_: F.pixel_shuffle(t(x), 2), x=blocks, upscale_factor=2)
    yield case(
        "pixel_unshuffle",
        lambda x, **_: F.pixel_unshuffle(t(x), 2),
        x=IMAGE,
        downscale_factor=np.uint32(2),
    )
    yield case(
        "depth_to_space",
        lambda x, **_: (
            np.stack([x[:, 2 * i : 2 * i + 2] for i in range(4)], -1)
            .reshape(2, 2, 3, 5, 2, 2)
            .transpose(0, 1, 2, 4, 3, 5)
            .reshape(2, 2, 6, 10)
        ),
        x=blocks,
        block_size=2,
    )
    yield case(
        "space_to_depth",
        lambda x, **_: np.concatenate([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], 1),
        x=IMAGE,
        block_size=2,
    )
    yield case(
        "sliding_windows",
        lambda x, **_: np.lib.stride_tricks.sliding_window_view(x, 3, 2)[:, :, ::2].swapaxes(3, 4),
        x=IMAGE,
        axis=2,
        size=3,
        stride=2,
    )
    yield case("argsort", x=X, axis=1)
    yield case("topk", x=X, k=2, axis=-1, ascending=True)
    yield case(
        "topk",
        lambda x, **_: -np.sort(-x, -1)[..., :2],
        x=X,
        k=2,
        return_indices=False,
        label="values",
    )


def resizing() -> Iterator[Case]:
    yield case(
        "upsample_nearest_neighbor",
        lambda x, **_: x.repeat(2, 2).repeat(3, 3),
        x=IMAGE,
        scale_factor_height=2,
        scale_factor_width=3,
    )
    yield case(
        "resize_nearest_neighbor",
        lambda x, **_: F.interpolate(t(x), (9, 4)),
        x=IMAGE,
        target_size_height=9,
        target_size_width=4,
    )
    for corners in (False, True):
        yield case(
            "upsample_bilinear",
            lambda x, c=corners, **_: F.interpolate(
                t(x), scale_factor=2.0, mode="bilinear", align_corners=c
            ),
            x=IMAGE,
            scale_factor_height=2,
            scale_factor_width=2,
            align_corners=corners,
            label=f"corners {corners}",
        )
    # The documentation's own example: 2 elements to 5.
    for mode, points in (
        ("UNALIGN_CORNERS", [0.0, 0.1, 0.5, 0.9, 1.0]),
        ("STRICT_ALIGN_CORNERS", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("DEFAULT", [0.0, 0.4, 0.8, 1.0, 1.0]),
        ("OFFSET_CORNERS", [0.1, 0.3, 0.5, 0.7, 0.9]),
    ):
        ramp = np.float32([0, 1]).reshape(1, 1, 1, 2)
        expected = np.float32(points).reshape(1, 1, 1, 5)
        yield case(
            "resize_bilinear",
            lambda x, e=expected, **_: e,
            x=ramp,
            target_size_height=1,
            target_size_width=5,
            sampling_mode=mode,
            label=mode,
        )
        yield case(
            "resize",
            lambda x, e=expected, **_: e,
            x=ramp,
            shape=[0, 5],
            resized_dims=np.uint32(2),
            sampling_mode=mode,
            label=mode,
        )
