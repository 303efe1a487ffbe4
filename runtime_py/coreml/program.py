"""What a saved .mlpackage holds: its MIL program, read from the folder's bytes.

Nothing is run and no weights are copied here. Every value has a name: literals inside an operation
are given one, so that operations read names only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime_py.coreml.schema import decode_error, dtype_names, model_class
from runtime_py.coreml.values import Array, TensorType, unpack
from runtime_py.errors import PocketSDError
from runtime_py.files import inside

MODEL_PATH = "@model_path/"
CONSTEXPR = "constexpr_"  # operations that make weights out of compressed ones


@dataclass(frozen=True)
class Blob:
    """Where in the package a constant's bytes are described."""

    file: str
    offset: int


@dataclass(frozen=True)
class Constant:
    """A value known beforehand: an array or text in the program, or a blob beside it."""

    type: TensorType
    value: Array | str | Blob


@dataclass(frozen=True)
class Operation:
    """`inputs` has for each parameter the names it reads: several for a list of tensors."""

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, TensorType]

    @property
    def name(self) -> str:
        return next(iter(self.outputs), "")

    @property
    def reads(self) -> Iterator[str]:
        return (name for names in self.inputs.values() for name in names)


@dataclass(frozen=True)
class Function:
    name: str
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    operations: tuple[Operation, ...]  # in an order in which they can run


@dataclass(frozen=True)
class Program:
    path: Path
    specification: int  # 7: iOS 16, 8: iOS 17, 9: iOS 18
    default: str
    functions: Mapping[str, Function]
    folder: Path  # of the model's file; blob files are named from there


def refusal(wanted: Mapping[str, TensorType], given: Mapping[str, Array]) -> str:
    """Why these arrays are not what a function takes; "" if they are."""
    if set(wanted) != set(given):
        return f"takes {sorted(wanted)}, got {sorted(given)}"
    for name, kind in wanted.items():
        array = given[name]
        # Floating point of any width will do: between files of a chain it stays what it was.
        typed = array.dtype.kind == "f" if kind.kind == "float" else array.dtype == kind.storage
        if not typed or not kind.admits(array.shape):
            return f"takes {name} as {kind}, got {array.dtype} {list(array.shape)}"
    return ""


def function_for(
    program: Program, inputs: Mapping[str, Array], names: Iterable[str] | None = None
) -> str:
    """The function that takes these inputs; where several do, the package's default."""
    order = sorted(names or program.functions, key=lambda name: (name != program.default, name))
    refusals = []
    for name in order:
        if not (reason := refusal(program.functions[name].inputs, inputs)):
            return name
        refusals.append(f"{name} {reason}" if len(order) > 1 else reason)
    raise PocketSDError("; ".join(refusals), where=program.path)


def read_program(path: Path) -> Program:
    """The program of a package, or one line about what is wrong with it."""
    file = _model_file(path)
    model = model_class()()
    with _damage(path, file.name):
        model.ParseFromString(file.read_bytes())
        kind = model.WhichOneof("Type")
    if kind != "mlProgram":
        raise PocketSDError(f"holds {kind or 'nothing'}, not an ML program", where=path)
    with _damage(path, file.name):
        functions = {
            name: _Reader(name).function(spec)
            for name, spec in sorted(model.mlProgram.functions.items())
        }
    default = model.description.defaultFunctionName or "main"
    if default not in functions:
        raise PocketSDError(f"has no function {default!r}, only {sorted(functions)}", where=path)
    return Program(path, model.specificationVersion, default, functions, file.parent)


def _model_file(path: Path) -> Path:
    """Where the package's own table of contents says that the model is."""
    if not path.is_dir():
        raise PocketSDError("not a Core ML package (a folder)", where=path)
    contents = path / "Manifest.json"
    if not contents.is_file():
        raise PocketSDError("incomplete Core ML package, Manifest.json is missing", where=path)
    with _damage(path, "Manifest.json"):
        manifest = json.loads(contents.read_bytes())
        root = str(manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"])
        model = inside(path / "Data", root)
    if not model.is_file():
        raise PocketSDError(f"incomplete Core ML package, {root} is missing", where=path)
    return model


@contextmanager
def _damage(path: Path, part: str) -> Iterator[None]:
    """Bytes that make no sense surface as any of these, wherever the sense is missed."""
    surfaced = (decode_error(), ValueError, LookupError, TypeError, AttributeError, RecursionError)
    try:
        yield
    except PocketSDError as error:
        raise PocketSDError(error.what, where=path) from None
    except surfaced as error:
        raise PocketSDError(f"damaged, {part} cannot be read ({error!r})", where=path) from None


class _Reader:
    """One function's messages as dataclasses; what is read must have been made before."""

    def __init__(self, function: str) -> None:
        self.name = function
        self.known: dict[str, TensorType] = {}
        self.constants: dict[str, Constant] = {}

    def function(self, spec: Any) -> Function:
        inputs = {item.name: _tensor_type(item.type) for item in spec.inputs}
        self.known |= inputs
        if spec.opset not in spec.block_specializations:
            raise ValueError(f"{self.name} has no body for {spec.opset or 'its opset'}")
        block = spec.block_specializations[spec.opset]
        operations = tuple(
            operation for item in block.operations if (operation := self.operation(item))
        )
        if missing := sorted(set(block.outputs) - set(self.known)):
            raise ValueError(f"nothing makes the output {missing[0]}")
        outputs = {name: self.known[name] for name in block.outputs}
        return Function(self.name, inputs, outputs, self.constants, operations)

    def operation(self, item: Any) -> Operation | None:
        """None for a constant, which goes among the function's constants."""
        outputs = {value.name: _tensor_type(value.type) for value in item.outputs}
        if not outputs or len(outputs) != len(item.outputs):
            raise ValueError(f"an operation {item.type!r} has no outputs or two of one name")
        name = next(iter(outputs))
        if item.blocks:
            raise PocketSDError(f"{name} is {item.type}, control flow is not supported")
        if twice := sorted(set(outputs) & set(self.known)):
            raise ValueError(f"{twice[0]} is made twice")
        if item.type == "const":
            if (held := self.literal(name, item.attributes["val"])) != outputs[name]:
                raise ValueError(f"{name} is {held} where {outputs[name]} is declared")
            return None
        inputs = {
            parameter: self.names(name, parameter, argument.arguments)
            for parameter, argument in item.inputs.items()
        }
        # Up to iOS 17, operations that decompress weights keep them among their attributes.
        for parameter, value in item.attributes.items():
            if item.type.startswith(CONSTEXPR) and parameter != "name":
                inputs[parameter] = (f"{name}.{parameter}",)
                self.literal(f"{name}.{parameter}", value)
        self.known |= outputs
        return Operation(item.type, inputs, outputs)

    def names(self, operation: str, parameter: str, bindings: Iterable[Any]) -> tuple[str, ...]:
        found = []
        for index, binding in enumerate(bindings):
            if binding.WhichOneof("binding") == "value":
                found.append(f"{operation}.{parameter}.{index}")
                self.literal(found[-1], binding.value)
            elif binding.name in self.known:
                found.append(binding.name)
            else:
                raise ValueError(f"{operation} reads {binding.name!r}, which nothing before makes")
        return tuple(found)

    def literal(self, name: str, value: Any) -> TensorType:
        self.constants[name] = constant = _constant(value)
        self.known[name] = constant.type
        return constant.type


def _tensor_type(value: Any) -> TensorType:
    if value.WhichOneof("type") != "tensorType":
        kind = (value.WhichOneof("type") or "untyped").removesuffix("Type")
        raise PocketSDError(f"{kind} values are not supported")
    tensor = value.tensorType
    sizes = tuple(
        int(size.constant.size) if size.WhichOneof("dimension") == "constant" else None
        for size in tensor.dimensions
    )
    if tensor.rank != len(sizes) or any(n is not None and n < 0 for n in sizes):
        raise ValueError(f"a tensor of rank {tensor.rank} has sizes {list(sizes)}")
    return TensorType(dtype_names()[tensor.dataType], sizes)


def _constant(value: Any) -> Constant:
    kind = _tensor_type(value.type)
    if None in kind.shape:
        raise ValueError("a constant has no fixed shape")
    if value.WhichOneof("value") == "blobFileValue":
        blob = value.blobFileValue
        return Constant(kind, Blob(blob.fileName.removeprefix(MODEL_PATH), int(blob.offset)))
    tensor = value.immediateValue.tensor
    field = tensor.WhichOneof("value")
    if field is None or (field == "strings") != (kind.dtype == "string"):
        raise ValueError(f"a constant {kind} has {field or 'no value'}")
    values = getattr(tensor, field).values
    if field == "strings":
        return Constant(kind, str(values[0]))
    if field == "bytes":
        return Constant(kind, unpack(np.frombuffer(values, np.uint8), kind).copy())
    array = np.array(values).astype(kind.storage)
    if array.size != kind.count:
        raise ValueError(f"{array.size} values are not {kind}")
    return Constant(kind, array.reshape(kind.sizes))
