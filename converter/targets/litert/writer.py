"""Writes a component as one .tflite file, or as a chain of them where one would be too large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from converter.components import example
from converter.graph import export
from converter.partition import Part, partition
from converter.quantize import RECIPES, Recipe, Rule, get_recipe
from converter.targets import Job, Target
from runtime_py.engines import Array
from runtime_py.engines.chain import Link
from runtime_py.package import Component

NAME = "litert"
#: Of one file. LiteRT.js in a browser fails on 900 MB, some phones' GPUs allocate no more than
#: 512 MB at once, and a flatbuffer ends at 2 GB.
LARGEST = 450_000_000
#: Of one in fp32 that is to be quantised: of much larger ones LiteRT's exporter puts the weights
#: past the end of the flatbuffer, out of its quantiser's sight.
WIDEST = 900_000_000


class LiteRTTarget(Target):
    name = NAME
    precisions = tuple(RECIPES[NAME])
    needs = ("litert_torch", "ai_edge_quantizer")
    fixed_shapes = True
    calibrated = frozenset(name for name in RECIPES[NAME] if RECIPES[NAME][name].needs_calibration)

    def write(self, job: Job) -> Component:
        recipe = get_recipe(NAME, job.precision)
        inputs = example(job.spec.inputs(job.geometry))
        names = [spec.name for spec in job.spec.inputs(job.geometry)]
        outputs = [spec.name for spec in job.spec.outputs(job.geometry)]
        parts = partition(export(job.module(), inputs), outputs, _limit(job, recipe))
        links = []
        samples = job.samples() if recipe.calibrates(job.spec.name) else []
        for index, part in enumerate(parts):
            stem = job.spec.name if len(parts) == 1 else f"{job.spec.name}-{index}"
            file = job.folder / f"{stem}.tflite"
            write_part(
                recipe.of(job.spec.name), part, dict(zip(names, inputs, strict=True)), file, samples
            )
            links.append(Link(file.name, part.inputs, part.outputs))
        config = {"chain": [asdict(link) for link in links], "runs_on": recipe.runs_on}
        return job.described(tuple(link.file for link in links), config)


def _limit(job: Job, recipe: Recipe) -> int:
    """Bytes of fp32 weights that make a file of LARGEST bytes."""
    if not recipe.of(job.spec.name):
        return LARGEST
    return min(int(LARGEST * 4 / recipe.weight_bytes), WIDEST)


def write_part(
    rules: Sequence[Rule],
    part: Part,
    inputs: Mapping[str, Tensor],
    file: Path,
    samples: Sequence[dict[str, Array]] = (),
) -> None:
    """Write a part; `samples` gain what it computes, for the parts that come after it."""
    from converter.targets.litert.flatbuffer import write_tflite

    if not rules:
        write_tflite(part, dict(inputs), file)
        return
    from converter.targets.litert.quantise import quantise, run_tflite

    wide = file.with_suffix(".fp32")
    write_tflite(part, dict(inputs), wide)
    own = [{name: sample[name] for name in part.inputs} for sample in samples]
    quantise(wide, file, rules, own, threads=torch.get_num_threads())
    if part.crossing & set(part.outputs):
        for sample, inputs_of_part in zip(samples, own, strict=True):
            sample |= run_tflite(wide, inputs_of_part)
    wide.unlink()


TARGET = LiteRTTarget()
