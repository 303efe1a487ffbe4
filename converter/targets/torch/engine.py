"""The reference engine. Always computes in fp32, whatever the package stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from converter.components import get_component, with_weights
from converter.models.config import from_json
from runtime_py.engines import Array, check_inputs
from runtime_py.package import Package


class TorchEngine:
    targets = ("torch",)

    def __init__(self, package: Package, *, threads: int | None = None) -> None:
        self.package = package
        self._modules: dict[str, nn.Module] = {}
        if threads:
            torch.set_num_threads(threads)

    def load(self, component: str) -> None:
        if component in self._modules:
            return
        self._modules[component] = module_of(self.package, component)

    def run(self, component: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_inputs(self.package, component, inputs)
        self.load(component)
        spec = self.package.manifest.component(component)
        arguments: list[Any] = [torch.from_numpy(inputs[t.name]) for t in spec.inputs]
        with torch.inference_mode():
            output = self._modules[component](*arguments)
        return {spec.outputs[0].name: output.numpy()}

    def unload(self, component: str) -> None:
        self._modules.pop(component, None)

    def close(self) -> None:
        self._modules.clear()


def module_of(package: Package, component: str) -> nn.Module:
    """A component of a reference package as the module it was."""
    spec = package.manifest.component(component)
    config = from_json(get_component(component).part, spec.config)
    with safe_open(package.file(spec.files[0]), "pt") as file:
        return with_weights(component, config, file.get_tensor)
