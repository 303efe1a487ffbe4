"""The weights of a program: blobs beside it, and the operations that decompress them.

Blobs are views of the mapped file, so a program's weights take memory only where they are used.
A blob file has a header, then for each blob 64 bytes of metadata and, elsewhere, its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runtime_py.coreml.program import CONSTEXPR, Blob, Function, Operation, read_program
from runtime_py.coreml.values import Array, TensorType, unpack, unpack_bits
from runtime_py.errors import PocketSDError
from runtime_py.files import inside

ALIGNMENT = 64
HEADER = struct.Struct("<II")  # blobs, version
METADATA = struct.Struct("<IIQQ")  # sentinel, element type, bytes, offset of the bytes
SENTINEL, VERSION = 0xDEADBEEF, 2
BLOB_DTYPES = (
    *("", "float16", "float32", "uint8", "int8", "bfloat16", "int16", "uint16"),
    *("int4", "uint1", "uint2", "uint4", "uint3", "uint6", "int32", "uint32"),
)


class BlobFile:
    """One mapped file; every offset and size is held against its length before it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise PocketSDError("incomplete Core ML package, weights are missing", where=path)
        if path.stat().st_size < ALIGNMENT:
            raise PocketSDError("damaged, too short for a file of weights", where=path)
        # Copy on write: torch wants arrays that it may write to, and never does.
        self.bytes: Array = np.memmap(path, np.uint8, mode="c").view(np.ndarray)
        _, version = HEADER.unpack_from(self.bytes.data)
        if version != VERSION:
            raise PocketSDError(f"file of weights in version {version}, not {VERSION}", where=path)

    def array(self, offset: int, kind: TensorType) -> Array:
        """The blob described at this offset, as what the program says it is."""
        return unpack(self.raw(offset, kind), kind)

    def raw(self, offset: int, kind: TensorType) -> Array:
        if offset % ALIGNMENT or offset + ALIGNMENT > self.bytes.size:
            raise self._damage(offset, "there is no blob")
        sentinel, number, size, start = METADATA.unpack_from(self.bytes.data, offset)
        if sentinel != SENTINEL:
            raise self._damage(offset, "there is no blob")
        if start % ALIGNMENT or start + size > self.bytes.size:
            raise self._damage(offset, f"{size} bytes at {start} are not in the file")
        if number >= len(BLOB_DTYPES) or BLOB_DTYPES[number] != kind.dtype:
            raise self._damage(offset, f"the elements are not {kind.dtype}")
        if size != kind.packed_bytes:
            raise self._damage(offset, f"{size} bytes are not {kind}")
        return self.bytes[start : start + size]

    def _damage(self, offset: int, what: str) -> PocketSDError:
        return PocketSDError(f"damaged, blob at {offset}: {what}", where=self.path)


class BlobFiles:
    """The blob files of a package, opened when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, BlobFile] = {}

    def __getitem__(self, name: str) -> BlobFile:
        if name not in self._files:
            self._files[name] = BlobFile(inside(self.folder, name))
        return self._files[name]


class Weights:
    """What a function knows before it runs, by name; decompressed when first asked for."""

    def __init__(self, function: Function, files: BlobFiles) -> None:
        self.function, self.files = function, files
        self.recipes = {
            name: operation
            for operation in function.operations
            if operation.type.startswith(CONSTEXPR)
            for name in operation.outputs
        }
        self._decoded: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.function.constants or name in self.recipes

    def value(self, name: str) -> Array | str:
        if name in self._decoded:
            return self._decoded[name]
        if name in self.recipes:
            self._decoded |= self._decode(self.recipes[name])
            return self._decoded[name]
        constant = self.function.constants[name]
        if isinstance(constant.value, Blob):
            return self.files[constant.value.file].array(constant.value.offset, constant.type)
        return constant.value

    def check(self) -> None:
        """Every blob is where the program says, and every recipe is known."""
        for constant in self.function.constants.values():
            if isinstance(blob := constant.value, Blob):
                self.files[blob.file].raw(blob.offset, constant.type)
        for operation in self.recipes.values():
            if operation.type not in DECODERS:
                raise PocketSDError(f"{operation.name} is {operation.type}, an unknown operation")

    def _decode(self, operation: Operation) -> dict[str, Array]:
        inputs = {key: self.value(names[0]) for key, names in operation.inputs.items()}
        try:
            made = DECODERS[operation.type](**inputs)
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            what = f"{operation.name} ({operation.type}) cannot be decoded, {error}"
            raise PocketSDError(what, where=self.files.folder) from None
        made = made if isinstance(made, tuple) else (made,)
        for array, (name, kind) in zip(made, operation.outputs.items(), strict=True):
            if array.shape != kind.shape or array.dtype != kind.storage:
                have = TensorType(str(array.dtype), array.shape)
                what = f"{name} ({operation.type}) is {have} where MIL says {kind}"
                raise PocketSDError(what, where=self.files.folder)
        return dict(zip(operation.outputs, made, strict=True))


def decoded_weights(path: Path, function: str | None = None) -> dict[str, Array]:
    """Every array that a package's program is given, decompressed, by the name it has there."""
    program = read_program(path)
    if function is not None and function not in program.functions:
        raise PocketSDError(f"has no function {function!r}", where=path)
    chosen = program.functions[function or program.default]
    weights = Weights(chosen, BlobFiles(program.folder))
    values = {name: weights.value(name) for name in (*chosen.constants, *weights.recipes)}
    return {name: value for name, value in values.items() if not isinstance(value, str)}


# The decoders take the operation's parameters by name. Arithmetic is in fp32, rounded once.


def _affine(quantized_data: Array, zero_point: Array, scale: Array, axis: Array) -> Array:
    wide = [1] * quantized_data.ndim
    if scale.ndim or zero_point.ndim:
        wide[int(axis)] = -1
    values = quantized_data.astype(np.float32) - zero_point.astype(np.float32).reshape(wide)
    return (values * scale.astype(np.float32).reshape(wide)).astype(scale.dtype)


def _shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """Each scale and offset serves a block of data."""
    blocks = [
        size for n, m in zip(data.shape, scale.shape, strict=True) for size in (m, n // m)
    ]  # [scales, block, scales, block ...]
    one_each = [size for m in scale.shape for size in (m, 1)]
    values = data.astype(np.float32).reshape(blocks)
    if offset is not None:
        values -= offset.astype(np.float32).reshape(one_each)
    values *= scale.astype(np.float32).reshape(one_each)
    return values.reshape(data.shape).astype(scale.dtype)


def _look_up(
    indices: Array, lut: Array, shape: Array | None = None, vector_axis: Array | None = None
) -> Array:
    """One table up to iOS 17 (indices packed), from iOS 18 on a table of vectors for each block."""
    if shape is not None:
        bits = int(lut.size).bit_length() - 1
        sizes = tuple(int(n) for n in shape)
        return np.take(lut, unpack_bits(indices, bits)[: int(np.prod(sizes))]).reshape(sizes)
    tables, entries, length = lut.shape[:-2], lut.shape[-2], lut.shape[-1]
    rows, stride = indices, entries * int(np.prod(tables))
    for axis, (n, m) in enumerate(zip(indices.shape, tables, strict=True)):
        stride //= m
        if m > 1:  # each block of the axis has a table of its own
            first = np.arange(n, dtype=np.int32) // (n // m) * stride
            rows = rows + first.reshape([-1 if i == axis else 1 for i in range(indices.ndim)])
    if length == 1:
        return np.take(lut.reshape(-1), rows)
    values = np.take(lut.reshape(-1, length), rows, axis=0)  # [..., length]
    assert vector_axis is not None
    axis = int(vector_axis) % indices.ndim
    sizes = tuple(n * length if i == axis else n for i, n in enumerate(indices.shape))
    return np.moveaxis(values, -1, axis + 1).reshape(sizes)


def _dense(nonzero_data: Array, mask: Array, shape: Array | None = None) -> Array:
    if shape is not None:
        sizes = tuple(int(n) for n in shape)
        mask = unpack_bits(mask, 1)[: int(np.prod(sizes))].reshape(sizes)
    values = np.zeros(mask.shape, nonzero_data.dtype)
    values[mask != 0] = nonzero_data
    return values


def _sparse_look_up(
    indices_mask: Array,
    indices_nonzero_data: Array,
    lut: Array,
    vector_axis: Array | None = None,
) -> tuple[Array, Array]:
    values = _look_up(_dense(indices_nonzero_data, indices_mask), lut, None, vector_axis)
    mask = indices_mask
    if vector_axis is not None:
        mask = np.repeat(mask, lut.shape[-1], axis=int(vector_axis))
    return mask, values[mask != 0]


def _sparse_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> tuple[Array, Array]:
    values = _shift_scale(_dense(nonzero_data, data_mask), scale, offset)
    return data_mask, values[data_mask != 0]


def _cast(source_val: Array, output_dtype: str) -> Array:
    return source_val.astype({"fp16": np.float16, "fp32": np.float32}[output_dtype])


DECODERS: Mapping[str, Callable[..., Any]] = {
    f"{CONSTEXPR}affine_dequantize": _affine,
    f"{CONSTEXPR}blockwise_shift_scale": _shift_scale,
    f"{CONSTEXPR}cast": _cast,
    f"{CONSTEXPR}lut_to_dense": _look_up,
    f"{CONSTEXPR}lut_to_sparse": _sparse_look_up,
    f"{CONSTEXPR}sparse_blockwise_shift_scale": _sparse_shift_scale,
    f"{CONSTEXPR}sparse_to_dense": _dense,
}
