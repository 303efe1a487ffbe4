"""Every operation of the Core ML evaluator against torch, numpy or coremltools' own inference."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools")

from runtime_py.coreml.evaluator import Evaluator
from runtime_py.coreml.ops import operations
from tests.support.coreml import SPECIFICATIONS, built, coremltools, program
from tests.support.coreml_cases import Case
from tests.support.coreml_computing import convolutions, elementwise, mixing
from tests.support.coreml_moving import moving, resizing

CASES = [*elementwise(), *mixing(), *convolutions(), *moving(), *resizing()]


def _tensors(given: dict[str, Any]) -> dict[str, np.ndarray]:
    """What becomes an input of the program: arrays of a type that Core ML takes there."""
    arrays = {}
    for name, value in given.items():
        items = value if isinstance(value, list) else [value]
        for index, item in enumerate(items):
            if (
                isinstance(item, np.ndarray)
                and item.ndim
                and item.dtype.name in ("float32", "int32")
            ):
                arrays[f"{name}_{index}"] = item
    return arrays


def _called(mb: Any, one: Case, places: dict[str, Any]) -> Any:
    arguments = {
        name: [places.get(f"{name}_{i}", item) for i, item in enumerate(value)]
        if isinstance(value, list)
        else places.get(f"{name}_0", value)
        for name, value in one.given.items()
    }
    made = getattr(mb, one.op)(**arguments)
    return list(made) if isinstance(made, tuple | list) else [made]


def _type(var: Any) -> str:
    from coremltools.converters.mil.mil import types

    return str(types.builtin_to_string(var.dtype))


WEIGHTS = {"weight", "bias", "gamma", "beta", "mean", "variance", "alpha", "scale", "zero_point"}


@pytest.mark.parametrize("one", CASES, ids=str)
def test_operation(one: Case, tmp_path: Path) -> None:
    """fp32 on both sides: 1e-5 of the largest value is what adding in another order costs."""
    arrays = {
        name: array
        for name, array in _tensors(one.given).items()
        if name.rpartition("_")[0] not in WEIGHTS
    }

    def build(mb: Any, **places: Any) -> list[Any]:
        out = _called(mb, one, places)
        # Core ML has no outputs of other types than these.
        return [v if _type(v) in ("fp32", "int32") else mb.cast(x=v, dtype="int32") for v in out]

    evaluator = Evaluator(built(tmp_path / "one.mlpackage", build, arrays, one.opset))
    found = list(evaluator.run(arrays).values())
    if one.oracle is not None:
        expected = one.oracle(**one.given)
        expected = expected if isinstance(expected, tuple | list) else [expected]
    else:
        values: list[Any] = []
        program(lambda mb: values.extend(_called(mb, one, {})) or values, {}, one.opset)
        assert all(value.val is not None for value in values), "coremltools infers no value"
        expected = [value.val for value in values]
    assert len(found) == len(expected)
    for have, want in zip(found, expected, strict=True):
        want = np.asarray(want)
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5 * max(1, np.abs(want).max()))
    assert one.op in evaluator.histogram()


def test_every_operation_has_a_case() -> None:
    assert set(operations()) == {one.op for one in CASES}


@pytest.mark.parametrize("opset", SPECIFICATIONS)
def test_parameters_are_those_of_mil(opset: str) -> None:
    """Their names, which of them may be missing, and what they are then."""
    ct = coremltools()
    from coremltools.converters.mil.mil import types
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    tensor = SimpleNamespace(rank=4, shape=(1, 2, 3, 4), dtype=types.fp32)
    for name, op in operations().items():
        kind = SSAOpRegistry.core_ops[name].get(getattr(ct.target, opset))
        if kind is None:
            continue  # of a later opset
        ours = inspect.signature(op.function).parameters
        theirs = kind.input_spec.input_types
        assert set(theirs) <= set(ours), name
        for parameter, wanted in theirs.items():
            optional = ours[parameter].default is not inspect.Parameter.empty
            assert optional >= wanted.optional, f"{name} {parameter}"
        instance = SimpleNamespace(x=tensor, weight=tensor, return_indices=None)
        try:
            defaults = dict(kind.default_inputs(instance).items())
        except TypeError:  # bound to a class of operations: nothing is optional
            continue
        for parameter, value in defaults.items():
            if isinstance(value, bool | int | float | str | np.floating):
                assert ours[parameter].default == pytest.approx(value), f"{name} {parameter}"
