"""A graph cut into a chain of parts, each with no more weights than one file may hold.

Cuts go where few bytes cross: SD's blocks end there. A part is an ordinary graph of fused ops
whose inputs are named after what it needs and whose outputs after what later parts want.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from converter.graph import attribute

#: How far back from a full part to look for a better place to cut, as a share of its weights.
SLACK = 0.3


@dataclass(frozen=True)
class Part:
    """`crossing` are the tensors that pass from part to part; the others are the component's."""

    module: GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    crossing: frozenset[str]
    shapes: dict[str, tuple[int, ...]]  # of inputs and outputs, in PyTorch's order


def partition(program: ExportedProgram, outputs: Sequence[str], limit: int | None) -> list[Part]:
    """Parts of at most `limit` bytes of weights in fp32; a single one without a limit.

    `outputs` names what the component returns.
    """
    module: Any = program.module(check_guards=False)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    (results,) = module.graph.output_node().args
    names = dict(zip(results, outputs, strict=True))
    ends = _ends(module, nodes, set(results), limit)
    parts = []
    for begin, end in zip([0, *ends], [*ends, len(nodes)], strict=True):
        parts.append(_extract(module, nodes[begin:end], names))
    return parts


def heaviest(program: ExportedProgram) -> int:
    """Bytes of weights of the largest layer."""
    module: Any = program.module(check_guards=False)
    return max(_weight_bytes(module, [n for n in module.graph.nodes if n.op == "call_function"]))


def _ends(
    module: GraphModule, nodes: list[Node], results: set[Node], limit: int | None
) -> list[int]:
    """The indices where a new part begins."""
    if limit is None:
        return []
    sizes = _weight_bytes(module, nodes)
    if max(sizes) > limit:
        raise ValueError(f"a single layer has {max(sizes)} bytes of weights, the limit is {limit}")
    crossing = [_crossing_bytes(nodes, i, results) for i in range(len(nodes) + 1)]
    ends: list[int] = []
    begin = 0
    while sum(sizes[begin:]) > limit:
        total, last = 0, begin
        while total + sizes[last] <= limit:
            total, last = total + sizes[last], last + 1
        earliest = last
        while earliest > begin + 1 and sum(sizes[begin : earliest - 1]) > (1 - SLACK) * limit:
            earliest -= 1
        # Of equally good places the latest, for fewer parts.
        begin = min(range(earliest, last + 1), key=lambda i: (crossing[i], -i))
        ends.append(begin)
    return ends


def _weight_bytes(module: GraphModule, nodes: list[Node]) -> list[int]:
    """Bytes of the weights each node is the first to read."""
    seen: set[Node] = set()
    sizes = []
    for node in nodes:
        weights = {n for n in node.all_input_nodes if n.op == "get_attr"} - seen
        seen |= weights
        sizes.append(sum(attribute(module, str(n.target)).nbytes for n in weights))
    return sizes


def _crossing_bytes(nodes: list[Node], index: int, results: set[Node]) -> int:
    before, after = set(nodes[:index]), set(nodes[index:])
    live = [n for n in before if any(user in after for user in n.users) or n in results]
    return sum(n.meta["val"].nbytes for n in live)


def _extract(module: GraphModule, nodes: list[Node], names: dict[Node, str]) -> Part:
    """The nodes as a graph of their own."""
    own = set(nodes)
    graph = Graph()
    copies: dict[Node, Node] = {}
    inputs: dict[str, Node] = {}
    outputs: dict[str, Node] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source in copies:
                continue
            if source.op == "get_attr":
                copies[source] = graph.get_attr(str(source.target))
            else:
                inputs[source.name] = source
                copies[source] = graph.placeholder(source.name)
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        if node in names or any(user not in own for user in node.users if user.op != "output"):
            outputs[names.get(node, node.name)] = node
    graph.output(tuple(copies[node] for node in outputs.values()))
    ends = {**inputs, **outputs}
    crossing = {
        name
        for name, node in ends.items()
        if node.op != "placeholder" and not (name in outputs and node in names)
    }
    return Part(
        GraphModule(module, graph),
        tuple(inputs),
        tuple(outputs),
        frozenset(crossing),
        {name: tuple(node.meta["val"].shape) for name, node in ends.items()},
    )
