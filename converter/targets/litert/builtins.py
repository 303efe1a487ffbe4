"""How the ops of `converter.ops.tflite` are written into a file; imported for its effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from litert_converter.mlir import ir
from litert_converter.mlir.dialects import stablehlo
from litert_torch.backend.lowerings import registry, utils

from converter.ops import tflite  # noqa: F401  defines the ops below

OPS = torch.ops.pocketsd_tflite


def _op(context: Any, name: str, operands: Sequence[Any], **attributes: Any) -> Any:
    """A TFLite op, carried through the exporter's StableHLO stage as a call of that name."""
    return stablehlo.custom_call(
        result=utils.node_meta_to_ir_types(context.node),
        inputs=list(operands),
        call_target_name=ir.StringAttr.get(f"tfl.{name}"),
        has_side_effect=ir.BoolAttr.get(False),
        backend_config=ir.StringAttr.get(str(ir.DictAttr.get(attributes))),
    )


def _integers(values: Sequence[int]) -> Any:
    return utils.numpy_array_constant(np.array(values, np.int32))


def _int32(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)


@registry.lower(OPS.conv_2d.default)
def _conv_2d(context: Any, x: Any, weight: Any, bias: Any, stride: int, same: bool) -> Any:
    return _op(
        context,
        "conv_2d",
        (x, weight, bias),
        dilation_h_factor=_int32(1),
        dilation_w_factor=_int32(1),
        fused_activation_function=ir.StringAttr.get("NONE"),
        padding=ir.StringAttr.get("SAME" if same else "VALID"),
        stride_h=_int32(stride),
        stride_w=_int32(stride),
    )


@registry.lower(OPS.batch_matmul.default)
def _batch_matmul(context: Any, x: Any, y: Any, transpose_y: bool) -> Any:
    return _op(
        context,
        "batch_matmul",
        (x, y),
        adj_x=ir.BoolAttr.get(False),
        adj_y=ir.BoolAttr.get(transpose_y),
        asymmetric_quantize_inputs=ir.BoolAttr.get(False),
    )


@registry.lower(OPS.reduce_max.default)
def _reduce_max(context: Any, x: Any, dims: list[int]) -> Any:
    rank = len(x.type.shape)
    axes = _integers([d % rank for d in dims])
    return _op(context, "reduce_max", (x, axes), keep_dims=ir.BoolAttr.get(True))


@registry.lower(OPS.resize_nearest_neighbor.default)
def _resize_nearest_neighbor(context: Any, x: Any, scale: int) -> Any:
    _, h, w, _ = x.type.shape
    return _op(
        context,
        "resize_nearest_neighbor",
        (x, _integers([h * scale, w * scale])),
        align_corners=ir.BoolAttr.get(False),
        half_pixel_centers=ir.BoolAttr.get(False),
    )
