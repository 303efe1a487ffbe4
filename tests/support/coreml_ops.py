"""Single ops as Core ML packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from converter import ops
from converter.graph import export
from converter.partition import partition
from converter.targets.coreml.choices import Choices
from converter.targets.coreml.lower import lower, make_builder
from converter.targets.coreml.mlpackage import write_mlpackage
from converter.targets.coreml.weights import Weights
from runtime_py.coreml.evaluator import Evaluator
from runtime_py.native_output import silenced
from runtime_py.package import TensorSpec

#: How many leading arguments of an op are activations; one unless named here.
ACTIVATIONS = {"attention": 3, "join": 2}
LAYOUTS = {1: "N", 2: "NC", 3: "NLC", 4: "NCHW"}


class OneOp(nn.Module):
    """An op with everything but its activations built in."""

    def __init__(self, op: ops.FusedOp, constants: tuple[Any, ...]) -> None:
        super().__init__()
        self.op = op
        self.names: list[str | None] = []
        self.values = constants
        for index, value in enumerate(constants):
            named = isinstance(value, Tensor)
            self.names.append(f"layer{index}.weight" if named else None)
            if named:
                holder = nn.Module()
                holder.weight = nn.Parameter(value, requires_grad=False)
                self.add_module(f"layer{index}", holder)

    def forward(self, *activations: Tensor) -> Tensor:
        constants = (
            value if name is None else self.get_parameter(name)
            for name, value in zip(self.names, self.values, strict=True)
        )
        return self.op(*activations, *constants)


def spec(name: str, tensor: Tensor) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = "NL" if dtype == "int32" else LAYOUTS[tensor.ndim]
    return TensorSpec(name, tuple(tensor.shape), dtype, layout)


def package_of(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    path: Path,
    choices: Choices,
    weights: Weights | None = None,
) -> Path:
    """A module of fused ops as a package with inputs x0, x1, ... and the output y."""
    with torch.no_grad():
        expected = module(*inputs)
    (part,) = partition(export(module, inputs), ["y"], None)
    specs = {name: spec(name, x) for name, x in zip(part.inputs, inputs, strict=True)}
    specs["y"] = spec("y", expected)
    builder = make_builder(choices, weights or Weights(choices.ios))
    function = lower(part, builder, specs, {})
    with silenced():
        write_mlpackage({"main": function}, path, choices.ios)
    return path


def evaluated(path: Path, inputs: tuple[Tensor, ...], arithmetic: str) -> Tensor:
    evaluator = Evaluator(path, arithmetic=arithmetic)
    named = dict(zip(evaluator.inputs, (x.numpy() for x in inputs), strict=True))
    return torch.from_numpy(evaluator.run(named)["y"])
