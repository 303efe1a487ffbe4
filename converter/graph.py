"""The one graph that every target lowers: `torch.export` with the fused ops as single nodes."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from converter.ops.registry import NAMESPACE


def export(module: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """Capture a component at fixed shapes."""
    with torch.no_grad():
        return torch.export.export(module, inputs, strict=False)


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
