"""Which op of a .tflite file is the first that a GPU computes otherwise than the CPU.

The file is cut after an op, so that this op's result becomes the output, and run on both; halving
the range finds the first op from which on they disagree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from runtime_py.engines import Array
from runtime_py.engines.chain import chain_of
from runtime_py.engines.litert import run_bytes
from runtime_py.package import Package
from runtime_py.quality import psnr

RunUpTo = Callable[[int], Array]
FLOAT32 = 0


@dataclass(frozen=True)
class Parting:
    """The first op on which two runs disagree."""

    index: int
    operations: int
    op: str
    tensor: str
    psnr: float


class Cutter:
    """A file that can be cut after any of its ops."""

    def __init__(self, path: Path) -> None:
        self.model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
        self.graph = self.model.subgraphs[0]
        self.names = {v: k for k, v in vars(schema.BuiltinOperator).items() if k.isupper()}

    def __len__(self) -> int:
        return len(self.graph.operators)

    def describe(self, index: int) -> tuple[str, str]:
        operator = self.graph.operators[index]
        code = self.model.operatorCodes[operator.opcodeIndex]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        return self.names.get(number, str(number)), self.graph.tensors[
            operator.outputs[0]
        ].name.decode()

    def is_float(self, index: int) -> bool:
        tensor = self.graph.tensors[self.graph.operators[index].outputs[0]]
        return bool(tensor.type == FLOAT32)

    def cut(self, index: int) -> bytes:
        """The file's first ops up to `index`, whose result is the only output."""
        model = copy.copy(self.model)
        graph = copy.copy(self.graph)
        output = self.graph.operators[index].outputs[0]
        graph.operators = _needed(self.graph.operators[: index + 1], output)
        graph.outputs = np.array([output], np.int32)
        model.subgraphs = [graph]
        signature = copy.copy(self.model.signatureDefs[0])
        result = schema.TensorMapT()
        result.name, result.tensorIndex = b"result", output
        signature.outputs = [result]
        model.signatureDefs = [signature]
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _needed(operators: list[Any], output: int) -> list[Any]:
    """Without the ops that do not contribute: an unused result would become a second output."""
    wanted, kept = {output}, []
    for operator in reversed(operators):
        if wanted & set(operator.outputs):
            wanted |= set(operator.inputs)
            kept.append(operator)
    return kept[::-1]


def first_parting(
    cutter: Cutter,
    left: RunUpTo,
    right: RunUpTo,
    *,
    threshold: float = 60.0,
    advance: Callable[[str], None] = lambda what: None,
) -> Parting | None:
    """The first op after which two runs are less than `threshold` dB alike, if there is one.

    `left(i)` and `right(i)` are the results of op i. Halving needs disagreement to last once it
    is there, which rounding errors and overflows do.
    """
    floats = [i for i in range(len(cutter)) if cutter.is_float(i)]

    def agreement(position: int) -> float:
        index = floats[position]
        advance(f"op {index + 1} of {len(cutter)}, {cutter.describe(index)[0]}")
        return psnr(left(index), right(index))

    low, high = 0, len(floats) - 1
    worst = agreement(high)
    if worst >= threshold:
        return None
    while low < high:
        middle = (low + high) // 2
        value = agreement(middle)
        if value < threshold:
            high, worst = middle, value
        else:
            low = middle + 1
    op, tensor = cutter.describe(floats[high])
    return Parting(floats[high], len(cutter), op, tensor, worst)


def _result(
    cutter: Cutter, inputs: Mapping[str, Array], where: str, arithmetic: str, index: int
) -> Array:
    return run_bytes(cutter.cut(index), inputs, where, arithmetic)["result"]


def bisect_component(
    package: Package,
    component: str,
    inputs: Mapping[str, Array],
    arithmetic: str,
    *,
    threshold: float = 60.0,
    advance: Callable[[str], None] = lambda what: None,
) -> str | None:
    """In words, where a component's GPU run leaves its CPU run; None if it does not.

    The links of a chain all get the CPU's tensors, so that each is judged for itself.
    """
    known = dict(inputs)
    for link in chain_of(package.manifest.component(component)):
        cutter = Cutter(package.file(link.file))

        cpu, gpu = (
            partial(_result, cutter, dict(known), where, arithmetic) for where in ("cpu", "gpu")
        )
        parting = first_parting(cutter, cpu, gpu, threshold=threshold, advance=advance)
        if parting is not None:
            return (
                f"{link.file}: from op {parting.index + 1} of {parting.operations} on,"
                f" {parting.op} ({parting.tensor}), GPU and CPU agree to {parting.psnr:.1f} dB only"
            )
        content = package.file(link.file).read_bytes()
        known |= run_bytes(content, known, "cpu")
    return None
