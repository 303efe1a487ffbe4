"""Core ML's protobuf classes, without the rest of coremltools.

Importing coremltools itself takes seconds, imports torch's exporters and prints a page of warnings
away from a Mac. The generated classes need none of that, so they are loaded as a package of their
own; the real import, before or after, gives the same classes.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

ALIAS = "_coreml_protobuf"


@cache
def model_class() -> Any:
    """The message that `model.mlmodel` holds."""
    return _module("Model_pb2").Model


@cache
def dtype_names() -> dict[int, str]:
    """MIL's element types by number: {10: "float16", 23: "int32", 38: "uint6", 2: "string", ...}"""
    values = _module("MIL_pb2").DataType.DESCRIPTOR.values
    return {value.number: value.name.lower() for value in values}


def decode_error() -> type[Exception]:
    """What the classes raise for bytes that are no message."""
    error: type[Exception] = import_module("google.protobuf.message").DecodeError
    return error


def _module(name: str) -> ModuleType:
    if ALIAS not in sys.modules:
        found = find_spec("coremltools")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("No module named 'coremltools'", name="coremltools")
        package = ModuleType(ALIAS)
        package.__path__ = [str(Path(found.origin).parent / "proto")]
        sys.modules[ALIAS] = package
    return import_module(f"{ALIAS}.{name}")
