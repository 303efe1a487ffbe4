"""A LayerNorm's scale and shift moved into the projections that read it: two passes less.

Written as ops on weights alone, which `fold` then computes. (Attention's scale reaches the weights
of the queries' projection without us: LiteRT's exporter moves it there.)
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from converter.ops.standardise import standardised

LAYER_NORM, LINEAR, GEGLU = (
    f"pocketsd.{name}.default" for name in ("layer_norm", "linear", "geglu")
)


def absorb(graph: Graph) -> None:
    """Rewrite the graph of fused ops; what it computes stays the same."""
    for node in list(graph.nodes):
        if str(node.target) == LAYER_NORM:
            _absorb_affine(graph, node)


def _absorb_affine(graph: Graph, norm: Node) -> None:
    # W (n s + t) + b = (W s) n + (W t + b)
    x, scale, shift, epsilon = norm.args
    if not all(str(u.target) in (LINEAR, GEGLU) and u.args[0] is norm for u in norm.users):
        return
    for user in list(norm.users):
        _, weight, bias, *rest = user.args
        with graph.inserting_before(user):
            moved = graph.call_function(torch.mv, (weight, shift))
            bias = moved if bias is None else graph.call_function(torch.add, (bias, moved))
            weight = graph.call_function(torch.mul, (weight, scale))
        user.args = (norm, weight, bias, *rest)
    norm.target, norm.args = standardised, (x, [-1], epsilon)
