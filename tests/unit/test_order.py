"""Kernels moved to where they free memory sooner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from converter.targets.webgpu.order import free_early


def test_a_shortcut_lets_go_of_its_block_early() -> None:
    """Traced at the end of its block, it is done right after the norm, if it makes less."""

    class Block(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> tuple[Tensor]:
            inside = torch.relu(torch.relu(x)[:, :2] * 2)
            return (inside + torch.mm(x, w),)

    arguments = torch.ones(8, 8), torch.ones(8, 2)
    module: Any = torch.export.export(Block(), arguments).module(check_guards=False)
    before = module(*arguments)
    free_early(module.graph)
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert names.index("aten.mm.default") == names.index("aten.relu.default") + 1
    module.recompile()
    assert torch.equal(before[0], module(*arguments)[0])
