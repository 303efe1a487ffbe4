"""Core ML itself, on a Mac, by way of coremltools: running a package, and where it would run.

Everything that Core ML knows comes through the `coremltools` module that is handed in, so that the
logic here can be held against a stand-in where there is no Core ML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from runtime_py.coreml.program import Program, function_for, read_program
from runtime_py.coreml.values import Array
from runtime_py.errors import PocketSDError
from runtime_py.native_output import silenced

COMPUTE_UNITS = {
    "all": "ALL",
    "cpu-only": "CPU_ONLY",
    "cpu-and-gpu": "CPU_AND_GPU",
    "cpu-and-ne": "CPU_AND_NE",
}
DEVICES = {
    "MLCPUComputeDevice": "CPU",
    "MLGPUComputeDevice": "GPU",
    "MLNeuralEngineComputeDevice": "Neural Engine",
}


@dataclass(frozen=True)
class PlannedOperation:
    """`device` is where Core ML would run it and `supported` where it could; "" is not said."""

    name: str
    type: str
    device: str
    supported: tuple[str, ...]
    cost: float | None  # its part of the whole, from 0 to 1


@dataclass(frozen=True)
class Plan:
    """What MLComputePlan says about one file's function."""

    file: str
    function: str
    operations: tuple[PlannedOperation, ...]

    def operations_on(self, device: str) -> int:
        return sum(one.device == device for one in self.operations)

    def cost_on(self, device: str) -> float:
        return sum(one.cost or 0.0 for one in self.operations if one.device == device)


class AppleModel:
    """A package loaded by Core ML; a function of several is loaded when its shapes first come."""

    def __init__(self, path: Path, compute_units: str, coremltools: Any = None) -> None:
        if compute_units not in COMPUTE_UNITS:
            have = ", ".join(COMPUTE_UNITS)
            raise PocketSDError(f"no compute units {compute_units!r} (there are {have})")
        self.path = path
        self.program: Program = read_program(path)
        self._coremltools = coremltools or _coremltools()
        self._units = getattr(self._coremltools.ComputeUnit, COMPUTE_UNITS[compute_units])
        self._models: dict[str, Any] = {}  # by function

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        function = function_for(self.program, inputs)
        model = self._loaded(function)
        try:
            outputs = model.predict(dict(inputs))  # which may change what it is given
        except Exception as error:  # whatever Core ML has to say
            raise PocketSDError(f"Core ML cannot run it, {error}", where=self.path) from None
        return {
            name: np.asarray(outputs[name]) for name in self.program.functions[function].outputs
        }

    def plan(self, function: str | None = None) -> Plan:
        name = function or self.program.default
        model = self._loaded(name)
        # The compiled files live as long as the model does.
        computed = self._coremltools.models.compute_plan.MLComputePlan.load_from_path(
            path=model.get_compiled_model_path(), compute_units=self._units
        )
        program = computed.model_structure.program
        if program is None or name not in program.functions:
            raise PocketSDError(f"Core ML gives no plan for function {name!r}", where=self.path)
        operations = tuple(
            _planned(computed, operation)
            for operation in program.functions[name].block.operations
            if _type(operation) != "const"
        )
        return Plan(self.path.name, name, operations)

    def _loaded(self, function: str) -> Any:
        if function not in self._models:
            several = len(self.program.functions) > 1
            try:
                model = self._coremltools.models.MLModel(
                    str(self.path),
                    compute_units=self._units,
                    function_name=function if several else None,
                )
                # A package that Core ML refuses still becomes an MLModel, after a warning.
                model.get_compiled_model_path()
            except Exception as error:  # whatever Core ML has to say
                raise PocketSDError(f"Core ML cannot load it, {error}", where=self.path) from None
            self._models[function] = model
        return self._models[function]


def _planned(computed: Any, operation: Any) -> PlannedOperation:
    usage = computed.get_compute_device_usage_for_mlprogram_operation(operation)
    cost = computed.get_estimated_cost_for_mlprogram_operation(operation)
    return PlannedOperation(
        name=operation.outputs[0].name if operation.outputs else "",
        type=_type(operation),
        device=_device(usage.preferred_compute_device) if usage else "",
        supported=tuple(map(_device, usage.supported_compute_devices)) if usage else (),
        cost=cost.weight if cost else None,
    )


def _type(operation: Any) -> str:
    """Core ML says "ios18.conv" where MIL says "conv"."""
    return str(operation.operator_name).rpartition(".")[2]


def _device(device: Any) -> str:
    kind = type(device).__name__
    return DEVICES.get(kind, kind)


def _coremltools() -> Any:
    with silenced():  # its import reports on versions of packages that nothing here uses
        coremltools = import_module("coremltools")
        import_module("coremltools.models.compute_plan")
    return coremltools
