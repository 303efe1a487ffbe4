"""A component of a checkpoint with inputs and PyTorch's own answer, to measure plans on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from converter.checkpoints import open_checkpoint
from converter.components import ComponentSpec, Geometry, example, geometry, get_component
from converter.graph import export
from converter.options import NAMES
from runtime_py.errors import PocketSDError

Subject = tuple[
    ComponentSpec, Geometry, Callable[[], ExportedProgram], dict[str, NDArray[Any]], NDArray[Any]
]


def of_checkpoint(
    path: Path, component: str, height: int | None, width: int | None, batch: int
) -> Subject:
    if component not in NAMES:
        raise PocketSDError(f"no component {component!r} (there are {', '.join(NAMES)})")
    checkpoint = open_checkpoint(path)
    natural = checkpoint.unet.sample_size * checkpoint.vae.shrink
    sizes = geometry(checkpoint, height or natural, width or natural, batch, 1)
    spec = get_component(component)
    module, inputs = spec.module(checkpoint), example(spec.inputs(sizes))
    with torch.no_grad():
        expected = module(*inputs).numpy()
    named = {
        tensor.name: value.numpy() for tensor, value in zip(spec.inputs(sizes), inputs, strict=True)
    }
    return spec, sizes, lambda: export(module, inputs), named, expected
