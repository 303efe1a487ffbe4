"""Factors taken into weights: 0.18 * conv is a conv with smaller weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

LINEAR, CONV = "pocketsd.linear.default", "pocketsd.conv2d.default"
MUL, TYPE_AS = "aten.mul.Tensor", "aten.type_as.default"


def take_factors(graph: Graph) -> None:
    """Rewrite the graph of fused ops; call `fold_constants` afterwards."""
    for node in list(graph.nodes):
        if str(node.target) == TYPE_AS:  # every activation has the same type
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in list(graph.nodes):
        if str(node.target) == MUL and isinstance(node.args[1], (int, float)):
            _take_factor(graph, node)


def _take_factor(graph: Graph, mul: Node) -> None:
    x, factor = mul.args
    assert isinstance(x, Node)
    if str(x.target) in (LINEAR, CONV) and len(x.users) == 1 and has_no_activation(x):
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


def has_no_activation(layer: Node) -> bool:
    return str(layer.target) == CONV or layer.args[3] == ""
