"""Our own kernels on whatever GPU wgpu finds, as a component's plan lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runtime_py.engines import Array, check_inputs
from runtime_py.errors import PocketSDError
from runtime_py.package import Package
from runtime_py.sampler import Schedule
from runtime_py.webgpu import loop
from runtime_py.webgpu.adapters import check, choose, open_device
from runtime_py.webgpu.executor import Executor, Timing
from runtime_py.webgpu.plan import Plan, read_plan

FEATURES = {"shader-f16", "subgroup", "timestamp-query"}


class WebGPUEngine:
    """`adapter` is a part of a GPU's name, type or backend; by default the likeliest GPU."""

    targets = ("webgpu",)

    def __init__(self, package: Package, *, adapter: str | None = None) -> None:
        self.package = package
        self.adapter = choose(adapter)
        self._device: Any = None
        self._executors: dict[str, Executor] = {}

    def load(self, component: str) -> None:
        if component in self._executors:
            return
        plan, weights = self.plan(component)
        check(self.adapter, plan)
        if self._device is None:
            self._device = open_device(self.adapter, FEATURES)
        self._executors[component] = Executor(self._device, plan, self.package.file(weights))

    def play(
        self,
        schedule: Schedule,
        latent: Array,
        embedding: Array,
        scale: float,
        noise: Callable[[int], Array],
    ) -> Iterator[tuple[int, Array]] | None:
        """The denoising loop of one picture with its latents on the GPU; None if the package has no
        plan for that."""
        files = self.package.manifest.component("unet").files
        if len(files) < 4 or len(latent) != 1:
            return None
        self.load("unet")
        if "sampler" not in self._executors:
            plan = read_plan(self.package.file(files[2]))
            self._executors["sampler"] = Executor(self._device, plan, self.package.file(files[3]))
        both = self._executors["unet"], self._executors["sampler"]
        return loop.play(*both, schedule, latent, embedding, scale, noise)

    def run(self, component: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_inputs(self.package, component, inputs)
        self.load(component)
        return self._executors[component].run(inputs)

    def profile(
        self, component: str, inputs: Mapping[str, Array]
    ) -> tuple[dict[str, Array], list[Timing]]:
        """A run with the time that every dispatch took."""
        check_inputs(self.package, component, inputs)
        if "timestamp-query" not in self.adapter.features:
            raise PocketSDError(f"{self.adapter.name} cannot time its kernels")
        self.load(component)
        return self._executors[component].profile(inputs)

    def plan(self, component: str) -> tuple[Plan, str]:
        """The component's plan and the name of its weights' file."""
        described = self.package.manifest.component(component)
        if len(described.files) not in (2, 4):  # the UNet's may have the sampler's step with it
            raise PocketSDError(
                f"{component} has {len(described.files)} files, a plan and its weights are two",
                where=self.package.path,
            )
        plan, weights = described.files[:2]
        return read_plan(self.package.file(plan)), weights

    def unload(self, component: str) -> None:
        for name in (component, *(["sampler"] if component == "unet" else [])):
            if executor := self._executors.pop(name, None):
                executor.close()

    def close(self) -> None:
        for component in list(self._executors):
            self.unload(component)
        self._device = None
