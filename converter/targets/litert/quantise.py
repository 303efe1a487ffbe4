"""A recipe applied to a .tflite file, by LiteRT's own quantiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converter.quantize import Form, Rule
from converter.targets.litert.edges import edge_layers
from runtime_py.native_output import captured

SIGNATURE = "serving_default"
LARGE_LAYER = 24 * 2**20  # bytes
Samples = Sequence[dict[str, NDArray[Any]]]


def quantise(
    source: Path, out: Path, rules: Sequence[Rule], samples: Samples = (), threads: int = 2
) -> None:
    """Write `source` with its layers in the rules' forms; `samples` are inputs to calibrate on."""
    with captured(1), captured(2):
        from ai_edge_quantizer.quantizer import Quantizer

        quantizer = Quantizer(str(source))
        for rule in rules:
            layers = edge_layers(source) if rule.edges else ".*"
            for op in rule.ops:
                _add(quantizer, rule.form, op, layers)
        calibration = None
        if quantizer.need_calibration:
            batches = [{k: np.ascontiguousarray(v) for k, v in s.items()} for s in samples]
            calibration = quantizer.calibrate({SIGNATURE: batches}, num_threads=threads)
        with _large_layers():
            result = quantizer.quantize(calibration, enable_progress_report=False)
    out.write_bytes(result.quantized_model)


@contextmanager
def _large_layers() -> Iterator[None]:
    """Lets ai-edge-quantizer 0.10 quantise layers of more than 32 MiB by channel.

    It takes such a layer in slices but flattens it to two dimensions first, where scales along the
    first of four no longer fit. Given slices that are small enough, it flattens nothing.
    """
    from ai_edge_quantizer.algorithms.uniform_quantize import uniform_quantize_tensor as module

    whole = module.uniform_quantize

    def in_slices(data: NDArray[Any], params: Any, *rest: Any, **named: Any) -> NDArray[Any]:
        count = -(-data.nbytes // LARGE_LAYER)
        scales = np.asarray(params.scale).reshape(-1)
        if count == 1 or params.quantized_dimension != 0 or len(scales) != len(data):
            return whole(data, params, *rest, **named)
        zeros = np.asarray(params.zero_point).reshape(-1)
        parts = zip(*(np.array_split(a, count) for a in (data, scales, zeros)), strict=True)
        return np.concatenate(
            [
                whole(part, replace(params, scale=scale, zero_point=zero), *rest, **named)
                for part, scale, zero in parts
            ]
        )

    module.uniform_quantize = in_slices
    try:
        yield
    finally:
        module.uniform_quantize = whole


def run_tflite(file: Path, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """One run on the CPU."""
    with captured(2):
        from ai_edge_litert.interpreter import Interpreter

        runner = Interpreter(str(file)).get_signature_runner(SIGNATURE)
        return dict(runner(**inputs))


def _add(quantizer: Any, form: Form, op: str, layers: str) -> None:
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import (
        ComputePrecision,
        OpQuantizationConfig,
        QuantGranularity,
        TensorDataType,
        TensorQuantizationConfig,
        TFLOperationName,
    )

    operation = TFLOperationName(op)
    if form is Form.FP16:
        weights = TensorQuantizationConfig(num_bits=16, dtype=TensorDataType.FLOAT)
        config = OpQuantizationConfig(weight_tensor_config=weights, explicit_dequantize=True)
        quantizer.update_quantization_recipe(layers, operation, config, AlgorithmName.FLOAT_CASTING)
        return
    weights = TensorQuantizationConfig(
        num_bits=8, symmetric=True, granularity=QuantGranularity.CHANNELWISE
    )
    config = OpQuantizationConfig(
        activation_tensor_config=TensorQuantizationConfig(num_bits=8, symmetric=False)
        if form is Form.INT8_STATIC
        else None,
        weight_tensor_config=weights,
        compute_precision=ComputePrecision.FLOAT
        if form is Form.INT8_WEIGHTS
        else ComputePrecision.INTEGER,
        explicit_dequantize=form is Form.INT8_WEIGHTS,
    )
    quantizer.update_quantization_recipe(layers, operation, config)
