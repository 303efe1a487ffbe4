"""Reading weights from files nobody vouches for: safetensors, and PyTorch archives without code.

What a file is gets decided by its first bytes, never by its suffix. Safetensors are mapped, not
read, so opening 4 GB costs nothing until a tensor is used. Pickles go through PyTorch's restricted
unpickler, which builds tensors and plain containers and refuses everything else.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from runtime_py.errors import PocketSDError

_HEADER_LIMIT = 100_000_000
_NESTING_LIMIT = 6
_WRAPPERS = ("state_dict", "model", "module")
_MEND_DOWNLOAD = "download it again"
_SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class WeightFile:
    """Tensors by name, and whatever plain values the file says about itself."""

    tensors: dict[str, torch.Tensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)


class _Inert:
    """Stands in for classes that training tools leave in a .ckpt; takes anything, does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


# Found in published SD 1.x checkpoints beside the weights. None of the named code is ever imported.
_INERT_NAMES = (
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    "pytorch_lightning.utilities.enums._FaultTolerantMode",
    "torch.nn.modules.container.ParameterDict",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.dtype",
)


def read_weights(path: Path) -> WeightFile:
    """All tensors of a .safetensors, .ckpt, .pt or .bin file, whatever its suffix."""
    if _format_of(path) == "safetensors":
        return _read_safetensors(path)
    return _unwrap(_unpickle(path), path)


def read_headers(path: Path) -> WeightFile:
    """As `read_weights`, but the tensors of a safetensors file have only shape and dtype."""
    if _format_of(path) == "safetensors":
        entries, metadata = _safetensors_header(path)
        meta = {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for name, (dtype, shape) in entries.items()
        }
        return WeightFile(meta, metadata)
    return read_weights(path)


def refuse_unusable(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Refuse weights that are not plain floating point, and the first that is NaN or infinite."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise PocketSDError(f"{name} is not a dense tensor", where=where)
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise PocketSDError(
                f"{name} is stored as {str(tensor.dtype).removeprefix('torch.')}",
                where=where,
                mend="use the float16 or float32 original of this model",
            )
        if tensor.numel() and not all(bound.isfinite().item() for bound in tensor.aminmax()):
            raise PocketSDError(f"{name} holds NaN or infinite values", where=where)


def _format_of(path: Path) -> str:
    """ "safetensors" or "pickle"; anything else is refused by the name of what it is."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(512)
    except OSError as error:
        raise PocketSDError(f"cannot be read: {error.strerror}", where=path.name) from None
    text = start.lstrip().lower()
    if size == 0:
        raise PocketSDError("is empty", where=path.name, mend=_MEND_DOWNLOAD)
    if text.startswith(b"version https://git-lfs"):
        raise PocketSDError(
            "is a Git LFS pointer, not the weights", where=path.name, mend="run git lfs pull"
        )
    if text.startswith((b"<!doctype", b"<html")):
        raise PocketSDError("is a web page, not weights", where=path.name, mend=_MEND_DOWNLOAD)
    if start.startswith(b"GGUF"):
        raise PocketSDError(
            "is a GGUF file", where=path.name, mend="use the .safetensors original of this model"
        )
    # Asked first: a pickle's protocol byte can also begin a safetensors length.
    if start[8:9] == b"{":
        return "safetensors"
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return "pickle"
    if path.suffix == ".safetensors":
        return "safetensors"
    raise PocketSDError("is neither safetensors nor a PyTorch file", where=path.name)


def _safetensors_header(
    path: Path,
) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], dict[str, Any]]:
    """Names, dtypes and shapes, after checking that each tensor lies inside the file."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= _HEADER_LIMIT:
            raise PocketSDError(
                f"is not a safetensors file: its header would be {length} bytes", where=path.name
            )
        if length > size - 8:
            raise PocketSDError(
                f"is cut off: header of {length} bytes, file of {size}",
                where=path.name,
                mend=_MEND_DOWNLOAD,
            )
        text = stream.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise PocketSDError("has a damaged safetensors header", where=path.name) from None
    if not isinstance(header, dict):
        raise PocketSDError("has a damaged safetensors header", where=path.name)
    metadata = header.pop("__metadata__", {})
    room = size - 8 - length
    entries = {name: _checked_entry(name, entry, room, path) for name, entry in header.items()}
    return entries, metadata if isinstance(metadata, dict) else {}


def _checked_entry(
    name: str, entry: Any, room: int, path: Path
) -> tuple[torch.dtype, tuple[int, ...]]:
    damaged = PocketSDError(f"has a damaged header entry for {name}", where=path.name)
    try:
        dtype_code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise damaged from None
    numbers = [begin, end, *shape] if isinstance(shape, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise damaged
    dtype = _SAFETENSORS_DTYPES.get(dtype_code) if isinstance(dtype_code, str) else None
    if dtype is None:
        raise PocketSDError(
            f"{name} has dtype {dtype_code!r}, which is not supported", where=path.name
        )
    if end > room:
        raise PocketSDError(
            f"is cut off: {name} ends {end - room} bytes after the end of the file",
            where=path.name,
            mend=_MEND_DOWNLOAD,
        )
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise damaged
    return dtype, tuple(shape)


def _read_safetensors(path: Path) -> WeightFile:
    names, metadata = _safetensors_header(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return WeightFile({name: file.get_tensor(name) for name in names}, metadata)
    except Exception as error:  # its own checks raise many kinds
        raise PocketSDError(f"is damaged: {_first_line(error)}", where=path.name) from None


def _unpickle(path: Path) -> Any:
    """The archive's object, built only from tensors, plain containers and inert stand-ins."""
    inert: list[Any] = [(_Inert, name) for name in _INERT_NAMES]
    try:
        with torch.serialization.safe_globals(inert):
            try:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                # Archives from before PyTorch 1.6 cannot be mapped.
                return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails in any way
        if "Weights only load failed" in str(error):
            code = re.search(r"GLOBAL ([\w.]+)", str(error))
            what = f"holds code ({code[1]})" if code else "holds more than weights"
            raise PocketSDError(
                f"{what}, which is never run",
                where=path.name,
                mend="get this model as .safetensors",
            ) from None
        raise PocketSDError(
            f"cannot be read as a PyTorch file: {_first_line(error)}",
            where=path.name,
            mend=_MEND_DOWNLOAD,
        ) from None


def _unwrap(value: Any, path: Path) -> WeightFile:
    """Tensors from however many dicts the training tool packed them into."""
    outer = value
    while isinstance(value, Mapping) and not any(map(torch.is_tensor, value.values())):
        inner = next((value[key] for key in _WRAPPERS if isinstance(value.get(key), Mapping)), None)
        if inner is None:
            break
        value = inner
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}
    _flatten(value, "", tensors, plain, _NESTING_LIMIT)
    if outer is not value and isinstance(outer, Mapping):
        _flatten({k: v for k, v in outer.items() if k not in _WRAPPERS}, "", {}, plain, 1)
    if not tensors:
        raise PocketSDError("holds no tensors", where=path.name)
    return WeightFile(tensors, plain)


def _flatten(
    value: Any,
    prefix: str,
    tensors: dict[str, torch.Tensor],
    plain: dict[str, Any],
    nesting: int,
) -> None:
    """Sort nested dicts into tensors and plain values, both under dotted names."""
    if isinstance(value, _Inert):
        value = vars(value).get("_parameters", {})
    if torch.is_tensor(value):
        tensors[prefix] = value.detach()
    elif isinstance(value, str | int | float | bool):
        plain[prefix] = value
    elif isinstance(value, Mapping) and nesting:
        for key, inner in value.items():
            if isinstance(key, str):
                name = f"{prefix}.{key}" if prefix else key
                _flatten(inner, name, tensors, plain, nesting - 1)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
