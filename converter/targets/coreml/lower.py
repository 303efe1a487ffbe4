"""A part of a component's graph to one function of MIL: every fused op writes its Core ML form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coremltools.converters.mil import Builder as mb  # noqa: N813
from coremltools.converters.mil import mil
from torch.fx import Node

from converter.factors import take_factors
from converter.fold import fold_constants
from converter.graph import attribute, layer_name
from converter.ops import get_op
from converter.partition import Part
from converter.targets.coreml.builder import Builder, Var, type_name
from converter.targets.coreml.columns import Columns
from converter.targets.coreml.rows import Rows
from runtime_py.package import TensorSpec

NAME = "coreml"
TYPES = {"fp16": mil.types.fp16, "fp32": mil.types.fp32, "int32": mil.types.int32}
STORED = {"float32": "fp32", "int32": "int32"}


@dataclass(frozen=True)
class Tensor:
    """What passes from one part to the next."""

    shape: tuple[int, ...]
    type: str  # MIL's name of it


def lower(
    part: Part,
    builder: Builder,
    specs: Mapping[str, TensorSpec],
    crossing: dict[str, Tensor],
    *,
    release: bool = False,
) -> Any:
    """The MIL function. `crossing` holds what earlier parts made and gains what this one makes.

    `release` lets go of the part's weights once they are in the function: half the memory.
    """
    from coremltools import target

    take_factors(part.module.graph)
    fold_constants(part.module)
    inputs = {name: _placeholder(name, specs, crossing) for name in part.inputs}
    opset = getattr(target, f"iOS{builder.choices.ios}")
    with mil.Function(inputs, opset_version=opset) as function:
        known = _walk(part, builder, function, specs, release)
        outputs = []
        results: Any = part.module.graph.output_node().args[0]
        for name, result in zip(part.outputs, results, strict=True):
            y = known[result]
            if name in part.crossing:
                y.name = name
                crossing[name] = Tensor(tuple(y.shape), type_name(y))
            else:
                y = _leave(builder, y, specs[name])
            outputs.append(y)
        function.set_outputs(outputs)
    return function


def make_builder(choices: Any, weights: Any) -> Builder:
    return (Columns if choices.columns else Rows)(choices, weights)


def _walk(
    part: Part, builder: Any, function: Any, specs: Mapping[str, TensorSpec], release: bool
) -> dict[Node, Any]:
    names = iter(part.inputs)
    known: dict[Node, Any] = {}
    for node in part.module.graph.nodes:
        if node.op == "placeholder":
            name = next(names)
            builder.label = name
            x = function.inputs[name]
            known[node] = x if name in part.crossing else _enter(builder, x, specs[name])
        elif node.op == "get_attr":
            known[node] = attribute(part.module, str(node.target)).detach()
        elif node.op == "call_function":
            builder.label = layer_name(node)
            known[node] = _emit(builder, node, known)
            for used in node.all_input_nodes if release else ():
                if used.op == "get_attr" and list(used.users)[-1] is node:
                    del known[used]
                    owner, _, leaf = str(used.target).rpartition(".")
                    delattr(part.module.get_submodule(owner), leaf)
    return known


def _emit(builder: Any, node: Node, known: Mapping[Node, Any]) -> Var:
    arguments = [_known(a, known) for a in node.args]
    if not builder.choices.is_island(builder.label) or builder.wide:
        return _form(node)(builder, *arguments)
    with builder.island():
        wide = [builder.as_type(a, wide=True) if _is_var(a) else a for a in arguments]
        y = _form(node)(builder, *wide)
    return builder.as_type(y, builder.wide)


def _form(node: Node) -> Any:
    op = get_op(str(node.target))
    if op is not None:
        return op.lowerings[NAME]
    if str(node.target) == "aten.add.Tensor":
        return lambda builder, x, y: builder.add(x, y)
    raise NotImplementedError(f"no Core ML form of {node.target}")


def _known(argument: Any, known: Mapping[Node, Any]) -> Any:
    return known[argument] if isinstance(argument, Node) else argument


def _is_var(value: Any) -> bool:
    return isinstance(value, mil.Var)


def _placeholder(name: str, specs: Mapping[str, TensorSpec], crossing: Mapping[str, Tensor]) -> Any:
    if name in crossing:
        return mb.placeholder(shape=crossing[name].shape, dtype=TYPES[crossing[name].type])
    spec = specs[name]
    return mb.placeholder(shape=spec.shape, dtype=TYPES[STORED[spec.dtype]])


def _enter(builder: Any, x: Var, spec: TensorSpec) -> Var:
    if spec.layout not in ("NCHW", "NLC"):
        return x  # tokens and timesteps are read as they come
    x = builder.as_type(x, builder.wide)
    return builder.from_sequence(x) if spec.layout == "NLC" else x


def _leave(builder: Any, y: Var, spec: TensorSpec) -> Var:
    builder.label = spec.name
    y = builder.to_sequence(y) if spec.layout == "NLC" else y
    if type_name(y) != "fp32":
        return mb.cast(x=y, dtype="fp32", name=spec.name)
    y.name = spec.name
    return y
