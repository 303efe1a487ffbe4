"""Engines run a package's components: arrays in by name, arrays out by name.

An engine is one class with the methods of `Engine`, announced as an entry point in the group
`pocketsd.engines`; nothing else has to know it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import PocketSDError
from runtime_py.package import Package

Array = NDArray[Any]


class Engine(Protocol):
    """Made from a package by calling the class; `targets` are the package targets it runs."""

    targets: tuple[str, ...]

    def __init__(self, package: Package, **options: Any) -> None: ...

    def load(self, component: str) -> None:
        """Make a component ready; loading twice does nothing."""

    def run(self, component: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a component, loading it first if need be."""

    def unload(self, component: str) -> None:
        """Free what a component holds."""

    def close(self) -> None:
        """Free everything."""


def open_engine(package: Package, name: str | None = None, **options: Any) -> Engine:
    """The named engine; by default the one named after the package's target.

    Options that are None are left to the engine.
    """
    target = package.manifest.target
    name = name or target
    points = {point.name: point for point in entry_points(group="pocketsd.engines")}
    if name not in points:
        raise PocketSDError(f"no engine {name!r} (there are {', '.join(sorted(points))})")
    try:
        kind: type[Engine] = points[name].load()
    except ImportError as error:
        raise PocketSDError(
            f"engine {name!r} needs {error.name or error}, which is not installed",
            mend=f"pip install 'pocketsd[{name}]'",
        ) from None
    if target not in kind.targets:
        raise PocketSDError(f"engine {name!r} does not run target {target!r}", where=package.path)
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := set(given) - set(signature(kind).parameters):
        raise PocketSDError(f"engine {name!r} has no option {', '.join(sorted(unknown))}")
    return kind(package, **given)


def check_inputs(package: Package, component: str, inputs: Mapping[str, Array]) -> None:
    """Refuse inputs that the component did not declare, before they reach native code."""
    spec = {t.name: t for t in package.manifest.component(component).inputs}
    if set(spec) != set(inputs):
        raise PocketSDError(f"{component} takes {sorted(spec)}, got {sorted(inputs)}")
    for name, array in inputs.items():
        shape, dtype = spec[name].shape, spec[name].dtype
        fits = len(shape) == array.ndim and all(
            want in (None, have) for want, have in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype != np.dtype(dtype):
            want = f"{dtype} {['any' if n is None else n for n in shape]}"
            raise PocketSDError(
                f"{component} takes {name} as {want}, got {array.dtype} {list(array.shape)}"
            )
