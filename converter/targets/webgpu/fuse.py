"""Additions and factors taken into the products before them, so that each is one kernel.

conv -> + time embedding    one kernel, `vector=`
conv -> + skip              one kernel, `residual=`
0.18 * conv                 a conv with smaller weights
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

LINEAR, CONV, OVER = (f"pocketsd.{name}.default" for name in ("linear", "conv2d", "over_picture"))
ADD, MUL = "aten.add.Tensor", "aten.mul.Tensor"


def fuse(graph: Graph) -> None:
    """Rewrite the graph of fused ops; call `fold_constants` afterwards."""
    for node in list(graph.nodes):
        if str(node.target) == "aten.type_as.default":  # every activation has the same type
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in list(graph.nodes):
        if str(node.target) == MUL and isinstance(node.args[1], (int, float)):
            _take_factor(graph, node)
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if str(node.target) == ADD:
            _take_sum(graph, node, order)
    graph.lint()


def _take_factor(graph: Graph, mul: Node) -> None:
    x, factor = mul.args
    assert isinstance(x, Node)
    if str(x.target) in (LINEAR, CONV) and len(x.users) == 1 and _is_linear(x):
        x.args = (x.args[0], *_scaled(graph, x, factor, with_bias=True), *x.args[3:])
    elif all(str(user.target) in (LINEAR, CONV) for user in mul.users):
        for user in list(mul.users):
            user.args = (user.args[0], *_scaled(graph, user, factor, False), *user.args[3:])
    else:
        return
    mul.replace_all_uses_with(x)
    graph.erase_node(mul)


def _scaled(graph: Graph, layer: Node, factor: Any, with_bias: bool) -> tuple[Any, Any]:
    weight, bias = layer.args[1], layer.args[2]
    with graph.inserting_before(layer):
        weight = graph.call_function(torch.mul, (weight, factor))
        if with_bias and bias is not None:
            bias = graph.call_function(torch.mul, (bias, factor))
    return weight, bias


def _take_sum(graph: Graph, add: Node, order: dict[Node, int]) -> None:
    """The later of the two terms, if it is a product that nothing else reads, adds the other."""
    x, y = add.args
    assert isinstance(x, Node) and isinstance(y, Node)
    for layer, other in sorted([(x, y), (y, x)], key=lambda pair: -order[pair[0]]):
        name = "vector" if str(other.target) == OVER else "residual"
        if (
            str(layer.target) not in (LINEAR, CONV)
            or len(layer.users) > 1
            or name in layer.kwargs
            or (name == "vector" and not _is_linear(layer))
        ):
            continue
        # At the place of the sum, where both terms are known.
        with graph.inserting_before(add):
            fused = graph.node_copy(layer)
        fused.kwargs = {**layer.kwargs, name: other}
        fused.meta = {**layer.meta, **{k: v for k, v in add.meta.items() if k == "val"}}
        order[fused] = order[add]
        add.replace_all_uses_with(fused)
        graph.erase_node(add)
        graph.erase_node(layer)
        return


def _is_linear(layer: Node) -> bool:
    """Whether no activation follows."""
    return str(layer.target) == CONV or layer.args[3] == ""
