"""Additions taken into the products before them, so that each is one kernel.

conv -> + time embedding    one kernel, `vector=`
conv -> + skip              one kernel, `residual=`
"""

from __future__ import annotations

from torch.fx import Graph, Node

from converter.factors import CONV, LINEAR, has_no_activation, take_factors

OVER, ADD = "pocketsd.over_picture.default", "aten.add.Tensor"


def fuse(graph: Graph) -> None:
    """Rewrite the graph of fused ops; call `fold_constants` afterwards."""
    take_factors(graph)
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if str(node.target) == ADD:
            _take_sum(graph, node, order)
    graph.lint()


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
            or (name == "vector" and not has_no_activation(layer))
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
