"""Core ML packages for tests: from MIL's builder, and from ordinary torch modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SPECIFICATIONS = {"iOS16": 7, "iOS17": 8, "iOS18": 9}


@cache
def coremltools() -> Any:
    """The module, imported without its page of warnings."""
    from runtime_py.native_output import silenced

    with silenced():
        import coremltools

        coremltools._logger.setLevel("ERROR")
    return coremltools


def program(
    build: Callable[..., Any], inputs: Mapping[str, np.ndarray | tuple[Any, ...]], opset: str
) -> Any:
    """A MIL program of one function; an input is an array like it, or its shape and type."""
    ct = coremltools()
    from coremltools.converters.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil.mil import Function, Program, types

    kinds = {"float32": types.fp32, "float16": types.fp16, "int32": types.int32}
    places = {}
    for name, like in inputs.items():
        shape, dtype = like if isinstance(like, tuple) else (like.shape, like.dtype.name)
        places[name] = mb.placeholder(shape=shape, dtype=kinds[dtype], name=name)
    made = Program()
    with Function(places, opset_version=getattr(ct.target, opset)) as function:
        outputs = build(mb, **function.inputs)
        function.set_outputs(list(outputs) if isinstance(outputs, tuple | list) else [outputs])
    made.add_function("main", function)
    return made


def save(program: Any, path: Path, opset: str = "iOS17") -> Path:
    """As it is: no pass of coremltools changes the program."""
    ct = coremltools()
    from coremltools.converters.mil.backend.mil.load import load

    weights = path.parent / f"{path.name}.weights"
    weights.mkdir(parents=True)
    spec = load(program, weights_dir=str(weights), specification_version=SPECIFICATIONS[opset])
    ct.models.utils.save_spec(spec, str(path), weights_dir=str(weights))
    return path


def built(
    path: Path,
    build: Callable[..., Any],
    inputs: Mapping[str, np.ndarray | tuple[Any, ...]],
    opset: str = "iOS17",
) -> Path:
    return save(program(build, inputs, opset), path, opset)


def converted(
    module: Any, inputs: Mapping[str, Any], target: str = "iOS17", precision: str = "fp32"
) -> Any:
    """What coremltools makes of a torch module: an MLModel."""
    import torch

    ct = coremltools()
    _mend_cast()
    kinds = {torch.int32: np.int32, torch.int64: np.int32}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sizes that a trace fixes, and names it changes
        return ct.convert(
            torch.jit.trace(module.eval(), tuple(inputs.values())),
            inputs=[
                ct.TensorType(name, tuple(value.shape), dtype=kinds.get(value.dtype, np.float32))
                for name, value in inputs.items()
            ],
            minimum_deployment_target=getattr(ct.target, target),
            compute_precision=getattr(ct.precision, precision.replace("fp", "FLOAT")),
            skip_model_load=True,
        )


@cache
def _mend_cast() -> None:
    """coremltools 9.0 calls int() on arrays of one element, which numpy 2.4 no longer allows."""
    from coremltools.converters.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil.frontend.torch import ops

    original = ops._cast

    def mended(context: Any, node: Any, dtype: type, dtype_name: str) -> None:
        x = context[node.inputs[0]]
        if not x.can_be_folded_to_const():
            return original(context, node, dtype, dtype_name)
        value = dtype(np.asarray(x.val).reshape(()).item())
        return context.add(mb.const(val=value, name=node.name), node.name)

    ops._cast = mended
