"""Which GPU to use, and a device on it that can run a given plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import wgpu

from runtime_py.errors import PocketSDError
from runtime_py.native_output import silenced
from runtime_py.webgpu.failures import SMALLER
from runtime_py.webgpu.plan import Plan

#: Not OpenGL: its limits are below what a UNet needs.
BACKENDS = ("Vulkan", "Metal", "D3D12")
#: Best first, when nobody asks for one.
KINDS = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "CPU", "Unknown")
NO_ADAPTER = PocketSDError(
    "no GPU that WebGPU can use",
    mend="install a Vulkan driver; Mesa's lavapipe (mesa-vulkan-drivers) is one in software",
)


@dataclass(frozen=True)
class Adapter:
    """A GPU as wgpu lists it."""

    name: str
    kind: str
    backend: str
    driver: str
    gpu: Any

    @property
    def features(self) -> set[str]:
        return {str(feature) for feature in self.gpu.features}

    def limit(self, name: str) -> int:
        return int(self.gpu.limits[name])

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.backend}, {self.driver})"


def adapters() -> list[Adapter]:
    """Every usable GPU, the likeliest first; of one kind, those that can run every package."""
    with silenced():
        found = [_described(gpu) for gpu in wgpu.gpu.enumerate_adapters_sync()]
    usable = [adapter for adapter in found if adapter.backend in BACKENDS]
    return sorted(usable, key=_rank)


def _rank(adapter: Adapter) -> tuple[int, bool]:
    kind = KINDS.index(adapter.kind) if adapter.kind in KINDS else len(KINDS)
    return kind, "shader-f16" not in adapter.features


def choose(wanted: str | None = None) -> Adapter:
    """The first adapter whose description has `wanted` in it: a name, a type or a backend."""
    there = adapters()
    if not there:
        raise NO_ADAPTER
    for adapter in there:
        if wanted is None or wanted.lower() in str(adapter).lower():
            return adapter
    have = "; ".join(str(adapter) for adapter in there)
    raise PocketSDError(f"no adapter like {wanted!r} (there are: {have})")


def check(adapter: Adapter, plan: Plan) -> None:
    """Refuse a plan that this adapter cannot run, and say what would."""
    for feature in plan.features:
        if feature not in adapter.features:
            mend = "convert with --precision fp32" if feature == "shader-f16" else None
            raise PocketSDError(
                f"{plan.component} needs {feature}, which {adapter.name} does not have", mend=mend
            )
    needs: Sequence[tuple[str, int, str]] = (
        ("max-storage-buffer-binding-size", plan.largest_binding, "one binding"),
        ("max-buffer-size", max(plan.sizes.values()), "one buffer"),
    )
    for limit, needed, what in needs:
        if needed > adapter.limit(limit):
            raise PocketSDError(
                f"{plan.component} needs {needed / 2**20:.0f} MiB in {what}, {adapter.name} allows"
                f" {adapter.limit(limit) / 2**20:.0f} ({limit})",
                mend=SMALLER,
            )


def open_device(adapter: Adapter, features: set[str]) -> Any:
    """A device with all the memory the adapter offers and those features it has."""
    limits = ("max-storage-buffer-binding-size", "max-buffer-size")
    try:
        with silenced():
            return adapter.gpu.request_device_sync(
                required_features=sorted(features & adapter.features),
                required_limits={name: adapter.limit(name) for name in limits},
            )
    except (wgpu.GPUError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise PocketSDError(
            f"{adapter.name} cannot be opened: {said[:400]}",
            mend="close what else uses the GPU, or take another --adapter",
        ) from error


def _described(gpu: Any) -> Adapter:
    info = gpu.info
    return Adapter(
        info["device"], info["adapter_type"], info["backend_type"], info["description"], gpu
    )
