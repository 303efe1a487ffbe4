"""A saved Core ML package evaluated operation by operation with torch: numbers without a Mac.

What Core ML computes in fp16 is computed here in fp32 from the fp16 inputs, and each result rounded
to fp16. That is one fp16 machine among many: Apple's differ from it, and from each other, in how
they add up inside an operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime_py.coreml.ops import Op, Takes, operations
from runtime_py.coreml.program import CONSTEXPR, Function, Operation, function_for, read_program
from runtime_py.coreml.values import Array, TensorType
from runtime_py.coreml.weights import BlobFiles, Weights
from runtime_py.errors import PocketSDError

ARITHMETICS = ("fp16", "fp32")
FP16_LIMIT = 65520.0  # from here on fp16 rounds to infinity

Hook = Callable[[Operation, Mapping[str, Any], tuple[Tensor, ...]], None]


@dataclass
class Range:
    """What an operation's results reached; `overflows` counts runs whose inputs were finite."""

    type: str
    largest: float = 0.0
    overflows: int = 0


@dataclass(frozen=True)
class _Step:
    operation: Operation
    op: Op
    values: Mapping[str, Any]  # parameters known beforehand, as Python values
    dead: tuple[str, ...]  # tensors that nobody reads after this


class Evaluator:
    """One package. `hook` sees every operation with its inputs and outputs, as they are kept.

    `arithmetic` "fp32" rounds nothing: what differs from it in "fp16" is due to fp16 alone.
    Without a `function`, one of several is chosen by the shapes of what `run` is given.
    """

    def __init__(
        self,
        path: Path,
        *,
        arithmetic: str = "fp16",
        function: str | None = None,
        hook: Hook | None = None,
    ) -> None:
        if arithmetic not in ARITHMETICS:
            raise PocketSDError(f"no arithmetic {arithmetic!r} (there are fp16 and fp32)")
        self.path, self.arithmetic, self.hook = path, arithmetic, hook
        self.program = read_program(path)
        self.ranges: dict[str, Range] = {}  # of every operation that computes, by name
        self._files = BlobFiles(self.program.folder)
        names = [function] if function else sorted(self.program.functions)
        if function is not None and function not in self.program.functions:
            have = ", ".join(sorted(self.program.functions))
            raise PocketSDError(f"has no function {function!r} (there are {have})", where=path)
        self._plans = {
            name: _Plan(self.program.functions[name], self._files, path) for name in names
        }

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(sorted(self.program.functions))

    @property
    def function(self) -> Function:
        """The one to run; of several that are open, the package's default."""
        default = self.program.default
        return self._plans[default if default in self._plans else next(iter(self._plans))].function

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        return self.function.inputs

    @property
    def outputs(self) -> Mapping[str, TensorType]:
        return self.function.outputs

    @property
    def overflow(self) -> dict[str, Range]:
        """The operations that made something that is not finite out of finite inputs."""
        return {name: seen for name, seen in self.ranges.items() if seen.overflows}

    def histogram(self) -> Counter[str]:
        """How many operations of each type run, not counting constants and decompression."""
        return self._counted(False)

    def compressions(self) -> Counter[str]:
        """How many operations of each type decompress weights."""
        return self._counted(True)

    def _counted(self, constexpr: bool) -> Counter[str]:
        types = (operation.type for operation in self.function.operations)
        return Counter(type for type in types if type.startswith(CONSTEXPR) is constexpr)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, in MIL's types; under "fp32" what MIL keeps in fp16 stays fp32."""
        plan = self._plans[function_for(self.program, inputs, self._plans)]
        tensors = {
            name: self._kept(torch.from_numpy(np.array(inputs[name])), kind)
            for name, kind in plan.function.inputs.items()
        }
        with torch.inference_mode():
            for step in plan.steps:
                self._run_step(plan, step, tensors)
            return {
                name: _to_numpy(plan.tensor(name, tensors), kind)
                for name, kind in plan.function.outputs.items()
            }

    def _run_step(self, plan: _Plan, step: _Step, tensors: dict[str, Tensor]) -> None:
        operation = step.operation
        given: dict[str, Any] = {}
        for parameter, names in operation.inputs.items():
            if parameter not in step.values:
                found = [plan.tensor(name, tensors) for name in names]
                several = step.op.parameters[parameter] is Takes.TENSORS
                given[parameter] = found if several else found[0]
        try:
            made = step.op.function(**self._arguments(step, given))
        except PocketSDError:
            raise
        except Exception as error:  # the program is data: it can ask for anything
            raise self._error(operation, f"cannot be computed, {error}") from None
        results = tuple(made) if isinstance(made, tuple | list) else (made,)
        if len(results) != len(operation.outputs):
            raise self._error(operation, f"gives {len(results)} tensors")
        if not step.op.moves:
            self._note_range(operation, given, results)
        kept = []
        for result, (name, kind) in zip(results, operation.outputs.items(), strict=True):
            if not _fits(kind, result):
                have = f"{str(result.dtype).removeprefix('torch.')} {list(result.shape)}"
                raise self._error(operation, f"gives {have} where MIL says {kind}")
            tensors[name] = self._kept(result, kind)
            kept.append(tensors[name])
        if self.hook:
            self.hook(operation, given, tuple(kept))
        for name in step.dead:
            tensors.pop(name, None)

    def _arguments(self, step: _Step, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = dict(step.values)
        for parameter, value in given.items():
            takes = step.op.parameters[parameter]
            if takes is Takes.VALUE:
                arguments[parameter] = value.tolist()
            elif step.op.moves:
                arguments[parameter] = value
            elif takes is Takes.TENSORS:
                arguments[parameter] = [_widened(one) for one in value]
            else:
                arguments[parameter] = _widened(value)
        return arguments

    def _kept(self, tensor: Tensor, kind: TensorType) -> Tensor:
        """In the type that MIL gives it."""
        if kind.dtype == "float16" and self.arithmetic == "fp32":
            return tensor.to(torch.float32)
        return tensor.to(_TORCH[kind.dtype])

    def _note_range(
        self, operation: Operation, given: Mapping[str, Any], results: tuple[Tensor, ...]
    ) -> None:
        largest, over = 0.0, False
        for result, kind in zip(results, operation.outputs.values(), strict=True):
            if result.is_floating_point() and result.numel():
                low, high = torch.aminmax(result)  # one pass; NaN if there is one
                reached = max(abs(float(low)), abs(float(high)))
                rounds = self.arithmetic == "fp16" and kind.dtype == "float16"
                over |= not reached < (FP16_LIMIT if rounds else inf)
                largest = max(largest, reached if isfinite(reached) else inf)
        seen = self.ranges.setdefault(operation.name, Range(operation.type))
        seen.largest = max(seen.largest, largest)
        seen.overflows += over and all(_finite(value) for value in given.values())

    def _error(self, operation: Operation, what: str) -> PocketSDError:
        return PocketSDError(f"{operation.name} ({operation.type}) {what}", where=self.path)


class _Plan:
    """A function ready to run: what each step needs, and what is dead after it."""

    def __init__(self, function: Function, files: BlobFiles, path: Path) -> None:
        self.function = function
        self.weights = Weights(function, files)
        self.weights.check()
        self._constants: dict[str, Tensor] = {}
        running = [one for one in function.operations if not one.type.startswith(CONSTEXPR)]
        for made in (function.inputs, *(one.outputs for one in running)):
            for name, kind in made.items():
                if kind.dtype not in _TORCH:
                    what = f"{name} is {kind.dtype}, which is not evaluated here"
                    raise PocketSDError(what, where=path)
        last = {name: step for step, one in enumerate(running) for name in one.reads}
        unread = [
            {name for name in one.outputs if name not in last} for one in running
        ]  # results that nobody reads at all
        for name, step in last.items():
            unread[step].add(name)
        self.steps = tuple(
            self._step(operation, dead - set(function.outputs), path)
            for operation, dead in zip(running, unread, strict=True)
        )

    def _step(self, operation: Operation, dead: set[str], path: Path) -> _Step:
        if operation.type not in operations():
            what = f"{operation.name} is {operation.type}, an operation unknown here"
            raise PocketSDError(what, where=path)
        op, values = operations()[operation.type], {}
        for parameter, names in operation.inputs.items():
            if parameter not in op.parameters:
                what = f"{operation.name} ({operation.type}) has a parameter {parameter!r}"
                raise PocketSDError(f"{what}, unknown here", where=path)
            if len(names) != 1 and op.parameters[parameter] is not Takes.TENSORS:
                what = f"{operation.name} ({operation.type}) has {len(names)} of {parameter!r}"
                raise PocketSDError(f"damaged, {what}", where=path)
            if op.parameters[parameter] is Takes.VALUE and names[0] in self.weights:
                value = self.weights.value(names[0])
                values[parameter] = value if isinstance(value, str) else value.tolist()
        return _Step(operation, op, values, tuple(dead))

    def tensor(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        if name in tensors:
            return tensors[name]
        if name not in self._constants:
            value = self.weights.value(name)
            if isinstance(value, str):
                raise PocketSDError(f"{name} is a text where a tensor is wanted")
            if value.dtype in (np.uint16, np.uint32):
                value = value.astype(np.int64)
            self._constants[name] = torch.from_numpy(value)
        return self._constants[name]


# torch hardly computes in unsigned types of two bytes and more; a wider one holds them exactly.
_TORCH = {
    "bool": torch.bool,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.int32,
    "uint32": torch.int64,
}


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.dtype == torch.float16 else tensor


def _to_numpy(tensor: Tensor, kind: TensorType) -> Array:
    array: Array = tensor.numpy().copy()
    return array if kind.kind == "float" else array.astype(kind.storage)


def _fits(kind: TensorType, tensor: Tensor) -> bool:
    """Sizes as MIL says, and of the right sort: the width is given afterwards."""
    if tensor.is_floating_point():
        sort = kind.kind == "float"
    else:
        sort = kind.kind == "bool" if tensor.dtype == torch.bool else kind.kind in ("int", "uint")
    return sort and kind.admits(tuple(tensor.shape))


def _finite(value: Tensor | list[Tensor]) -> bool:
    if isinstance(value, list):
        return all(_finite(one) for one in value)
    return not value.is_floating_point() or bool(torch.isfinite(value).all())
