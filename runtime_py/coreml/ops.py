"""MIL's operations in torch, by name: what each file of operations adds itself to.

An operation is a function whose parameters are MIL's, with MIL's defaults. Their annotations say
what it is handed: a `Tensor`, a `list[Tensor]`, or else the plain Python value of a small tensor.
Floating tensors come in fp32 and the caller rounds what is returned, except for operations that
only move elements: those get tensors in the type they are kept in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Takes(Enum):
    TENSOR = "Tensor"
    TENSORS = "list[Tensor]"
    VALUE = ""


@dataclass(frozen=True)
class Op:
    function: Callable[..., Any]
    parameters: Mapping[str, Takes]
    moves: bool  # elements are moved, not computed


_OPS: dict[str, Op] = {}


@cache
def operations() -> Mapping[str, Op]:
    """The whole table, by MIL's names."""
    for family in ("elementwise", "layers", "moving", "resizing"):
        import_module(f"runtime_py.coreml.ops_{family}")
    return _OPS


def op(function: F) -> F:
    """Register a function under its own name, less the underscore that Python made necessary."""
    return _register(function.__name__.rstrip("_"), function, moves=False)


def moving_op(function: F) -> F:
    return _register(function.__name__.rstrip("_"), function, moves=True)


def register(name: str, function: Callable[..., Any]) -> None:
    _register(name, function, moves=False)


def _register(name: str, function: F, *, moves: bool) -> F:
    parameters = {
        parameter.name: _takes(str(parameter.annotation))
        for parameter in inspect.signature(function).parameters.values()
    }
    _OPS[name] = Op(function, parameters, moves)
    return function


def _takes(annotation: str) -> Takes:
    if annotation == "list[Tensor]":
        return Takes.TENSORS
    return Takes.TENSOR if annotation.split(" ")[0] == "Tensor" else Takes.VALUE
