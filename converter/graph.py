"""The one graph that every target lowers: `torch.export` with the fused ops as single nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

from converter.ops.registry import NAMESPACE


def export(module: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """Capture a component at fixed shapes."""
    with torch.no_grad():
        return torch.export.export(module, inputs, strict=False)


def layer_name(node: Node) -> str:
    """The layer's name in the checkpoint where a node reads weights, else the graph's."""
    for argument in node.args[1:]:
        if isinstance(argument, Node) and argument.op == "get_attr":
            name = str(argument.target).removeprefix("folded_")
            if name.endswith((".weight", "_weight")):
                return name[: -len(".weight")]
    return node.name


def attribute(module: nn.Module, path: str) -> Any:
    """What a get_attr node names."""
    for part in path.split("."):
        module = getattr(module, part)
    return module


def op_counts(program: ExportedProgram) -> Counter[str]:
    """How often each op occurs, by qualified name (`pocketsd.attention.default`, ...)."""
    return Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function")


def fused_counts(program: ExportedProgram) -> dict[str, int]:
    """The fused ops among them, by short name."""
    prefix = f"{NAMESPACE}."
    return {
        name.removeprefix(prefix).removesuffix(".default"): count
        for name, count in sorted(op_counts(program).items())
        if name.startswith(prefix)
    }
