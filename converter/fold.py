"""Constants folded: what no input reaches is computed now, not in every run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from converter.graph import attribute


def fold_constants(module: GraphModule) -> GraphModule:
    """The same module, with every op on constants alone replaced by its result."""
    graph = module.graph
    known: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            known[node] = attribute(module, node.target)
        elif node.op == "call_function" and all(n in known for n in node.all_input_nodes):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            with torch.no_grad():
                known[node] = node.target(*args, **kwargs)
    for node, value in known.items():
        if node.op == "call_function" and any(user not in known for user in node.users):
            _replace(module, node, value)
    graph.eliminate_dead_code()
    _drop_unused(module)
    module.recompile()
    return module


def _replace(module: GraphModule, node: Node, value: Tensor) -> None:
    name = f"folded_{node.name}"
    module.register_buffer(name, value.contiguous())
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)


def _drop_unused(module: GraphModule) -> None:
    used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    for name in names:
        if name not in used:
            owner, _, leaf = name.rpartition(".")
            delattr(module.get_submodule(owner), leaf)
