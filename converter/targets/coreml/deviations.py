"""Which norms would overflow if they squared in fp16, as a recording shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from converter.graph import layer_name

LARGEST = 65504.0
#: Other prompts go further than the recorded ones.
MARGIN = 4.0
NORMS = {"pocketsd.group_norm_silu.default", "pocketsd.layer_norm.default"}


def overflowing(program: ExportedProgram, inputs: Iterable[Sequence[Tensor]]) -> frozenset[str]:
    """The layers where the square of a deviation comes within MARGIN of fp16's end."""
    module: Any = program.module(check_guards=False)
    watch = _Watch(module)
    with torch.no_grad():
        for tensors in inputs:
            watch.run(*tensors)
    return frozenset(n for n, largest in watch.seen.items() if largest**2 * MARGIN > LARGEST)


class _Watch(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[str, float] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        if str(n.target) in NORMS:
            x = self.env[n.all_input_nodes[0]]
            groups = n.args[3] if "group" in str(n.target) else None
            rows = x.reshape(len(x), groups, -1) if groups else x
            largest = float((rows - rows.mean(dim=-1, keepdim=True)).abs().max())
            self.seen[layer_name(n)] = max(self.seen.get(layer_name(n), 0.0), largest)
        return super().run_node(n)
