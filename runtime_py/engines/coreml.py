"""Core ML packages: evaluated here operation by operation, or run by Core ML itself on a Mac."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from runtime_py.coreml.apple import AppleModel, Plan
from runtime_py.engines import Array, check_inputs
from runtime_py.engines.chain import Link, chain_of, run_chain
from runtime_py.errors import PocketSDError
from runtime_py.package import Package

if TYPE_CHECKING:
    from runtime_py.coreml.evaluator import Range

for _needed in ("coremltools", "torch"):  # imported when they are used, missed as soon as asked for
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)


class Runner(Protocol):
    """One file of a chain."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...


class CoreMLEngine:
    """On a Mac Core ML runs the package, unless `arithmetic` asks for the evaluator.

    `arithmetic` is the evaluator's, fp32 or fp16; by default that of the stored weights.
    """

    targets = ("coreml",)

    def __init__(
        self,
        package: Package,
        *,
        arithmetic: str | None = None,
        compute_units: str | None = None,
        threads: int | None = None,
    ) -> None:
        mac = sys.platform == "darwin"
        if compute_units is not None and not mac:
            raise PocketSDError(
                "Core ML itself runs on macOS only",
                mend="leave out the compute units, and the package is evaluated here",
            )
        if compute_units is not None and arithmetic is not None:
            raise PocketSDError(
                "Core ML chooses its own arithmetic", mend="either compute units or arithmetic"
            )
        stored = package.manifest.precision
        self.package, self.threads = package, threads
        self.arithmetic = arithmetic or ("fp32" if stored == "fp32" else "fp16")
        self.compute_units = compute_units or ("all" if mac and arithmetic is None else None)
        self._chains: dict[str, dict[Link, Runner]] = {}

    @property
    def overflow(self) -> dict[str, dict[str, Range]]:
        """By component, the operations that overflowed in the runs so far, by name."""
        return {
            component: found
            for component, ranges in self.ranges.items()
            if (found := {name: seen for name, seen in ranges.items() if seen.overflows})
        }

    @property
    def ranges(self) -> dict[str, dict[str, Range]]:
        """By component, what the results of each operation have reached, by name."""
        return {
            component: {
                name: seen
                for runner in chain.values()
                for name, seen in getattr(runner, "ranges", {}).items()
            }
            for component, chain in self._chains.items()
        }

    def load(self, component: str) -> None:
        if component not in self._chains:
            links = chain_of(self.package.manifest.component(component))
            self._chains[component] = {
                link: self._open(self.package.file(link.file)) for link in links
            }

    def run(self, component: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_inputs(self.package, component, inputs)
        self.load(component)
        chain = self._chains[component]
        specs = self.package.manifest.component(component).outputs
        outputs = run_chain(
            tuple(chain),
            inputs,
            [spec.name for spec in specs],
            lambda link, given: chain[link].run(given),
        )
        return {spec.name: outputs[spec.name].astype(np.dtype(spec.dtype)) for spec in specs}

    def plan(self, component: str) -> tuple[Plan, ...]:
        """Where Core ML would run each operation, file by file."""
        self.load(component)
        plans = []
        for runner in self._chains[component].values():
            if not isinstance(runner, AppleModel):
                raise PocketSDError("only Core ML itself plans, on macOS")
            plans.append(runner.plan())
        return tuple(plans)

    def unload(self, component: str) -> None:
        self._chains.pop(component, None)

    def close(self) -> None:
        self._chains.clear()

    def _open(self, path: Path) -> Runner:
        if self.compute_units is not None:
            return AppleModel(path, self.compute_units)
        import torch

        from runtime_py.coreml.evaluator import Evaluator

        if self.threads:
            torch.set_num_threads(self.threads)
        return Evaluator(path, arithmetic=self.arithmetic)
