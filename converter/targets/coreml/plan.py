"""What becomes of each layer's weights and input: precision, recipe and recording put together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from converter.quantize.activations import activation_ranges
from converter.quantize.forms import FP16, WeightForm
from converter.quantize.layers import layers_of, spared
from converter.quantize.sensitivity import Subject
from converter.targets import Job
from converter.targets.coreml.choices import MEASURED, Choices
from converter.targets.coreml.deviations import overflowing
from converter.targets.coreml.precisions import precision
from converter.targets.coreml.weights import Weights
from runtime_py.errors import PocketSDError


def weights_of(job: Job, chosen: Choices, module: nn.Module, program: ExportedProgram) -> Weights:
    """The weights, ready to be written; what has to be measured on a recording is measured."""
    wanted = precision(job.precision, job.spec.name)

    def form_of(layer: str, weight: Tensor) -> WeightForm:
        if job.recipe is not None:
            return job.recipe.form_of(job.spec.name, layer)
        return FP16 if spared(layer, tuple(weight.shape)) else wanted.form

    return Weights(
        ios=chosen.ios,
        wide=wanted.wide,
        shared=bool(job.others),
        form_of=form_of,
        activations=_activations(job, module) if wanted.activations else {},
        overflowing=_overflowing(job, program) if chosen.norms == MEASURED else frozenset(),
        advance=_shares(job, module),
    )


def _activations(job: Job, module: nn.Module) -> dict[str, tuple[float, int]]:
    """Scale and zero point of what enters each layer whose weights are in int8 as well."""
    inputs = _inputs(job)
    found = activation_ranges(Subject(job.spec.name, module, inputs, outputs=[]))
    shapes = {layer: tuple(weight.shape) for layer, weight in layers_of(module).items()}
    return {
        layer: (ranges.clipped.scale, ranges.clipped.zero_point)
        for layer, ranges in found.items()
        if not spared(layer, shapes[layer])
    }


def _overflowing(job: Job, program: ExportedProgram) -> frozenset[str]:
    if job.recording is None:
        raise PocketSDError(
            "norms=measured needs recorded inputs",
            mend="`pocketsd record` makes them, --calibration FILE gives them",
        )
    return overflowing(program, _inputs(job))


def _inputs(job: Job) -> list[tuple[Tensor, ...]]:
    """Of every recorded call, in the order of the component's arguments."""
    order = [spec.name for spec in job.spec.inputs(job.geometry)]
    return [tuple(torch.from_numpy(sample[name]) for name in order) for sample in job.samples()]


def _shares(job: Job, module: nn.Module) -> Callable[[int], None]:
    """Turns bytes written into the share that is done."""
    total = sum(p.nbytes for p in module.parameters()) * (1 + len(job.others))
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        job.progress(min(done / total, 1.0))

    return advance
