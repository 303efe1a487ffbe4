"""A component's graph to a plan: every fused op writes the kernels of its WebGPU form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from converter.fold import fold_constants
from converter.graph import attribute, layer_name
from converter.ops import get_op
from converter.targets.webgpu.builder import Joined, Value
from converter.targets.webgpu.fuse import fuse
from converter.targets.webgpu.kernels import Kernels
from converter.targets.webgpu.order import free_early
from converter.targets.webgpu.tuning import Tuning
from runtime_py.package import TensorSpec
from runtime_py.webgpu.plan import Plan, Port

NAME = "webgpu"


def lower(
    component: str,
    program: ExportedProgram,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    arithmetic: str,
    *,
    int8: bool = False,
    tuning: Tuning | None = None,
) -> tuple[Plan, dict[str, NDArray[Any]]]:
    """The plan, and the weights it refers to."""
    module: Any = program.module(check_guards=False)
    free_early(module.graph)
    fuse(module.graph)
    module = fold_constants(module)
    builder = Kernels(component, arithmetic, tuning or Tuning(), int8)
    ins = {spec.name: _port("input", spec) for spec in inputs}
    outs = {spec.name: _port("output", spec) for spec in outputs}
    _walk(module, builder, list(inputs), ins, list(outputs), outs)
    plan = builder.plan(ins, outs)
    return plan, {name: builder.arrays[name] for name in plan.weights}


def _walk(
    module: GraphModule,
    builder: Kernels,
    inputs: list[TensorSpec],
    ins: Mapping[str, Port],
    outputs: list[TensorSpec],
    outs: Mapping[str, Port],
) -> None:
    known: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            spec = inputs.pop(0)
            builder.label = spec.name
            known[node] = pack(builder, spec, ins[spec.name])
        elif node.op == "get_attr":
            known[node] = attribute(module, node.target).detach()
        elif node.op == "output":
            for result, spec in zip(node.args[0], outputs, strict=True):
                builder.label = spec.name
                unpack(builder, known[result], spec, outs[spec.name])
        else:
            builder.label = layer_name(node)
            args, kwargs = _known((node.args, node.kwargs), known)
            known[node] = _form(node)(builder, *args, **kwargs)


def _form(node: Node) -> Callable[..., Any]:
    op = get_op(str(node.target))
    if op is not None:
        return op.lowerings[NAME]
    if str(node.target) == "aten.add.Tensor":
        return _add
    raise NotImplementedError(f"no kernel for {node.target}")


def _add(builder: Kernels, x: Value, y: Value) -> Value:
    if x.rows < y.rows:
        x, y = y, x
    return builder.elementwise("add", builder.materialise(x), builder.materialise(y))


def _known(arguments: Any, known: Mapping[Node, Any]) -> Any:
    if isinstance(arguments, Node):
        return known[arguments]
    if isinstance(arguments, Mapping):
        return {key: _known(value, known) for key, value in arguments.items()}
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_known(value, known) for value in arguments)
    return arguments


def _port(kind: str, spec: TensorSpec) -> Port:
    shape = tuple(n for n in spec.shape if n is not None)
    assert len(shape) == len(spec.shape), "plans have fixed sizes"
    return Port(f"{kind}:{spec.name}", shape, spec.dtype)


def pack(builder: Kernels, spec: TensorSpec, port: Port) -> Value | Port:
    if spec.layout not in ("NCHW", "NLC"):
        return port  # tokens and timesteps are read as they come
    shape = _channels_last(spec.layout, port.shape)
    y = builder.new(*shape)
    _rearrange(builder, spec.layout, port, y, y, unpack=False)
    return y


def unpack(builder: Kernels, x: Value | Joined, spec: TensorSpec, port: Port) -> None:
    x = builder.materialise(x)
    _rearrange(builder, spec.layout, x, port, x, unpack=True)


def _rearrange(
    builder: Kernels, layout: str, source: Any, target: Any, value: Value, unpack: bool
) -> None:
    pixels = value.rows // value.shape[0] if layout == "NCHW" else 1
    builder.emit(
        "pack",
        [source, target],
        builder.spread(-(-value.rows * value.vec4s // 64)),
        options={"unpack": unpack},
        constants={
            "ROWS": value.rows, "C": value.channels, "C4": value.vec4s, "PIXELS": pixels,
        },
    )  # fmt: skip


def _channels_last(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if layout == "NCHW":
        b, c, h, w = shape
        return b, h, w, c
    return shape
