"""How close a model comes to the end of fp16, layer by layer.

A GPU that computes in fp16 ends at 65504: beyond it everything is infinite, and the picture black.
The lowered graph is run in fp32 on recorded inputs, and the largest magnitude of whatever would
be stored is kept for each layer - of every step inside the layer, not of its result alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._python_dispatch import TorchDispatchMode

from converter.ops import get_op
from converter.targets.litert.lowered import NAME, channels_last

LARGEST = 65504.0
_SUMS = ("aten.mean",)


@dataclass(frozen=True)
class Range:
    """`largest` is of stored values; `largest_sum` of what reductions add up on the way."""

    layer: str
    op: str
    largest: float
    largest_sum: float

    @property
    def fits(self) -> bool:
        return self.largest <= LARGEST

    @property
    def sum_fits(self) -> bool:
        return self.largest_sum <= LARGEST


def measure(program: ExportedProgram, inputs: Iterable[Mapping[str, Tensor]]) -> list[Range]:
    """The ranges of all layers over all inputs, in the order of the graph."""
    graph_module: Any = program.module(check_guards=False)
    names = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
    watch = _Watch()
    with torch.no_grad():
        for tensors in inputs:
            interpreter = _Watched(graph_module, watch)
            interpreter.run(*(channels_last(tensors[name]) for name in names))
    return [
        Range(layer, op, *watch.seen[layer, op])
        for layer, op in watch.seen  # in the order they were met
    ]


class _Watch(TorchDispatchMode):
    """Sees every op that runs, and adds it to the layer that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = ("", "")
        self.seen: dict[tuple[str, str], tuple[float, float]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point() and result.numel():
            largest = _magnitude(result)
            total = 0.0
            if str(func).startswith(_SUMS):
                total = largest * args[0].numel() / result.numel()
            before = self.seen.get(self.layer, (0.0, 0.0))
            self.seen[self.layer] = (max(before[0], largest), max(before[1], total))
        return result


class _Watched(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, watch: _Watch) -> None:
        super().__init__(module)
        self._watch = watch

    def run_node(self, n: torch.fx.Node) -> Any:
        self._watch.layer = (_layer(n), n.name)
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        op = get_op(str(target))
        self._watch.layer = (self._watch.layer[0], op.name if op else str(target).split(".")[1])
        with self._watch:
            if op is None:
                return super().call_function(target, args, kwargs)
            return op.lowerings[NAME](*args, **kwargs)


def _layer(node: torch.fx.Node) -> str:
    """The module a node comes from, by its path in the checkpoint."""
    stack = node.meta.get("nn_module_stack", {})
    path = str(list(stack.values())[-1][0]) if stack else ""
    return path.removeprefix("L['self'].").removeprefix("self.") or node.name


def _magnitude(x: Tensor) -> float:
    largest = float(x.abs().max())
    return largest if math.isfinite(largest) else math.inf
