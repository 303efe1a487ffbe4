"""What a .tflite file holds, read from its flatbuffer without running anything.

A flatbuffer is offsets all the way down, and Python's reader follows them wherever they point. So
every list is held against the size of the file, and every index against its list: bytes that make
no sense end in one error instead of a long walk through them.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from runtime_py.errors import PocketSDError

IDENTIFIER = b"TFL3"
SUFFIX = ".tflite"
NEEDED = "this needs ai-edge-litert, which is not installed (pip install 'pocketsd[litert]')"


@dataclass(frozen=True)
class Tensor:
    """A named input or output. A size of None may be anything."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ",".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name} {self.dtype}[{sizes}]"


@dataclass(frozen=True)
class TFLiteFile:
    """`weights` are the bytes of constants by type; the signature is "" where there is none."""

    bytes: int
    operations: Mapping[str, int]
    weights: Mapping[str, int]
    signature: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def operation_count(self) -> int:
        return sum(self.operations.values())


def is_tflite(path: Path) -> bool:
    """Whether it is one or calls itself one."""
    if not path.is_file():
        return False
    return path.suffix == SUFFIX or _identified(path)


def readable() -> bool:
    """Whether the library that knows the format is installed."""
    return find_spec("ai_edge_litert") is not None


def read(path: Path) -> TFLiteFile:
    if not readable():
        raise PocketSDError(NEEDED, where=path)
    if not _identified(path):
        raise PocketSDError("not a TFLite file", where=path)
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _Reader(content).summary()
    except _Damaged as error:
        raise PocketSDError(f"damaged TFLite file, {error}", where=path) from None
    except (ValueError, IndexError, TypeError, OverflowError, struct.error):
        raise PocketSDError("damaged TFLite file, it points outside itself", where=path) from None


def _identified(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8)[4:] == IDENTIFIER


class _Damaged(Exception):  # noqa: N818
    """Says what makes no sense."""


class _Reader:
    def __init__(self, content: mmap.mmap) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self._content = content
        # Each thing in a list takes at least the 4 bytes of its offset.
        self._allowance = len(content) // 4
        self._ops = _names(schema.BuiltinOperator)
        self._types = _names(schema.TensorType)
        self._model = schema.Model.GetRootAs(content, 0)

    def summary(self) -> TFLiteFile:
        model = self._model
        graphs = list(self._listed(model.Subgraphs, model.SubgraphsLength()))
        if not graphs:
            raise _Damaged("it has no graph")
        tensors = [list(self._listed(g.Tensors, g.TensorsLength())) for g in graphs]
        signature, inputs, outputs = self._signature(graphs, tensors)
        return TFLiteFile(
            bytes=len(self._content),
            operations=_by_size(self._operations(graphs)),
            weights=_by_size(self._weights(tensors)),
            signature=signature,
            inputs=inputs,
            outputs=outputs,
        )

    def _listed(self, item: Callable[[int], Any], length: int) -> Iterator[Any]:
        self._allowance -= length
        if self._allowance < 0:
            raise _Damaged(f"a list of {length} in {len(self._content)} bytes")
        return (item(index) for index in range(length))

    def _operations(self, graphs: list[Any]) -> Counter[str]:
        model = self._model
        codes = self._listed(model.OperatorCodes, model.OperatorCodesLength())
        names = [self._operation(code) for code in codes]
        counts: Counter[str] = Counter()
        for graph in graphs:
            for operator in self._listed(graph.Operators, graph.OperatorsLength()):
                counts[_at(names, operator.OpcodeIndex())] += 1
                _check_tensors(operator, graph.TensorsLength())
        return counts

    def _operation(self, code: Any) -> str:
        # Files from before there were more than 127 ops have the number in the older field.
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if number not in self._ops:
            raise _Damaged(f"op {number} is unknown")
        name = self._ops[number]
        return f"{name} {_text(code.CustomCode())}" if name == "CUSTOM" else name

    def _weights(self, tensors: list[list[Any]]) -> Counter[str]:
        model = self._model
        buffers = list(self._listed(model.Buffers, model.BuffersLength()))
        sizes = [self._size(buffer) for buffer in buffers]
        counted: set[int] = set()
        weights: Counter[str] = Counter()
        for tensor in (tensor for graph in tensors for tensor in graph):
            index = tensor.Buffer()
            if _at(sizes, index) and index not in counted:
                counted.add(index)
                weights[self._type(tensor)] += sizes[index]
        return weights

    def _size(self, buffer: Any) -> int:
        start, size = buffer.Offset(), buffer.Size()
        if size and start > 1:  # past the flatbuffer's own 2 GB
            if start + size > len(self._content):
                raise _Damaged("it ends before its weights do")
            return int(size)
        data = buffer.DataAsNumpy()  # raises where it ends too early
        return 0 if isinstance(data, int) else int(data.size)

    def _signature(
        self, graphs: list[Any], tensors: list[list[Any]]
    ) -> tuple[str, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The first signature with its ends, or those of the first graph."""
        if not self._model.SignatureDefsLength():
            inputs, outputs = self._ends(graphs[0])
            own = tensors[0]
            return (
                "",
                tuple(self._tensor(_at(own, index)) for index in inputs),
                tuple(self._tensor(_at(own, index)) for index in outputs),
            )
        signature = self._model.SignatureDefs(0)
        inputs, outputs = self._ends(signature)
        own = _at(tensors, signature.SubgraphIndex())
        return (
            _text(signature.SignatureKey()),
            tuple(self._tensor(_at(own, e.TensorIndex()), _text(e.Name())) for e in inputs),
            tuple(self._tensor(_at(own, e.TensorIndex()), _text(e.Name())) for e in outputs),
        )

    def _ends(self, holder: Any) -> tuple[Iterator[Any], Iterator[Any]]:
        return (
            self._listed(holder.Inputs, holder.InputsLength()),
            self._listed(holder.Outputs, holder.OutputsLength()),
        )

    def _tensor(self, tensor: Any, name: str | None = None) -> Tensor:
        known = tensor.ShapeAsNumpy() if tensor.ShapeLength() else ()
        free = tensor.ShapeSignatureAsNumpy() if tensor.ShapeSignatureLength() else known
        shape = tuple(None if n < 0 else int(n) for n in free)
        return Tensor(_text(tensor.Name()) if name is None else name, self._type(tensor), shape)

    def _type(self, tensor: Any) -> str:
        if tensor.Type() not in self._types:
            raise _Damaged(f"tensor type {tensor.Type()} is unknown")
        return self._types[tensor.Type()].lower()


def _names(enumeration: type) -> dict[int, str]:
    return {number: name for name, number in vars(enumeration).items() if name[0] != "_"}


def _by_size(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _check_tensors(operator: Any, count: int) -> None:
    """Readers in native code follow these unseen; -1 stands for an input left out."""
    for tensors in (operator.InputsAsNumpy(), operator.OutputsAsNumpy()):
        for index in tensors if isinstance(tensors, np.ndarray) else ():
            if not -1 <= index < count:
                raise _Damaged(f"an op refers to tensor {index} of {count}")


def _at(items: list[Any], index: int) -> Any:
    if not 0 <= index < len(items):
        raise _Damaged(f"it refers to number {index} of {len(items)}")
    return items[index]


def _text(value: bytes | None) -> str:
    """A name as it can be shown: whatever else is in it must not reach a terminal."""
    text = (value or b"").decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)
