"""Kernels moved to where they let go of memory sooner; what they compute stays the same.

A shortcut around a block is traced at its end, and keeps the block's input alive until there. Where
it has fewer channels than that input, it is better done as soon as the block's first norm has read
it: in a decoder that is the difference between three large pictures at once and two.
"""

from __future__ import annotations

from torch import Tensor
from torch.fx import Graph, Node


def free_early(graph: Graph) -> None:
    """Move the last reader of a tensor up to the one before it, where what it makes is smaller."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        x = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(x, Node) or _size(node) >= _size(x):
            continue
        before = [user for user in x.users if user is not node]
        if not before or any(order[user] > order[node] for user in before):
            continue
        place = max(before, key=order.__getitem__)
        if any(order[n] > order[place] for n in node.all_input_nodes):
            continue
        place.append(node)
        order = {node: index for index, node in enumerate(graph.nodes)}
    graph.lint()


def _size(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) else 0
