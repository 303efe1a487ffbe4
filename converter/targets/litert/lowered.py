"""The graph as LiteRT's exporter is shown it: every fused op in its LiteRT form, channels last.

All activations have rank four, channels last, as the delegate's kernels want them: pictures are
[b, h, w, c], tokens [b, 1, n, c], vectors [b, 1, 1, c]. Only where a component begins and ends are
tensors in PyTorch's order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from converter.ops import get_op
from converter.partition import Part
from converter.targets.litert.absorb import absorb

NAME = "litert"


class Lowered(nn.Module):
    """A part's graph, interpreted with the lowerings in the ops' places; tensors go by name."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        absorb(part.module.graph)
        self.graph_module = part.module
        self.training = False  # exported modules refuse eval()
        self._part = part

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        part = self._part
        inputs = [
            tensors[name] if name in part.crossing else channels_last(tensors[name])
            for name in part.inputs
        ]
        results = _Lowering(self.graph_module).run(*inputs)
        return {
            name: y if name in part.crossing else channels_first(y, len(part.shapes[name]))
            for name, y in zip(part.outputs, results, strict=True)
        }

    def example(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        """Inputs to export with: the component's own, and noise where another part's result is."""
        generator = torch.Generator().manual_seed(0)
        return {
            name: channels_last(torch.randn(self._part.shapes[name], generator=generator))
            if name in self._part.crossing
            else named[name]
            for name in self._part.inputs
        }


class _Lowering(torch.fx.Interpreter):
    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        op = get_op(str(target))
        if op is None:
            return super().call_function(target, args, kwargs)
        return op.lowerings[NAME](*args, **kwargs)


def channels_last(x: Tensor) -> Tensor:
    """To rank four; what is no activation (token numbers, timesteps) stays as it is."""
    if not x.is_floating_point() or x.ndim == 1:
        return x
    if x.ndim == 2:
        return x[:, None, None]  # [b, 1, 1, c]
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 2, 3, 1)


def channels_first(x: Tensor, rank: int) -> Tensor:
    """Back to PyTorch's order, at the rank the tensor had."""
    if rank == 2:
        return x[:, 0, 0]
    return x.squeeze(1) if rank == 3 else x.permute(0, 3, 1, 2)
