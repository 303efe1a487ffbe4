"""Writes a component as one .mlpackage, or as a chain of them for phones with little memory."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch.export import ExportedProgram

from converter.components import Geometry, example
from converter.graph import export
from converter.partition import Part, heaviest, partition
from converter.targets import Job, Target, Wanted
from converter.targets.coreml.choices import SETTINGS, Choices, choices
from converter.targets.coreml.precisions import PRECISIONS, W8A8, precision, require_ios
from runtime_py.engines.chain import Link
from runtime_py.errors import PocketSDError
from runtime_py.native_output import silenced
from runtime_py.package import Component

NAME = "coreml"


class CoreMLTarget(Target):
    name = NAME
    precisions = PRECISIONS
    needs = ("coremltools",)
    fixed_shapes = True
    several_sizes = True
    calibrated = frozenset({W8A8})
    settings = SETTINGS

    def check(self, wanted: Wanted) -> None:
        chosen = choices(wanted.settings)
        stored = precision(wanted.precision, wanted.component)
        forms = {wanted.precision: stored.form}
        if wanted.recipe is not None and wanted.component in wanted.recipe.components:
            own = wanted.recipe.components[wanted.component]
            forms = {f"{wanted.component}'s {layer}": form for layer, form in own.layers.items()}
            forms[wanted.component] = own.default
        require_ios(forms, chosen.ios, stored.activations)
        if wanted.sizes > 1 and chosen.ios < 18:
            raise PocketSDError(
                f"several sizes need iOS 18, not {chosen.ios}", mend="convert once for each size"
            )

    def write(self, job: Job) -> Component:
        with silenced():  # coremltools tells of what it could not load
            from converter.targets.coreml.plan import weights_of

        chosen = choices(job.settings)
        geometries = _distinct(job)
        module = job.module()
        programs = [export(module, example(job.spec.inputs(g))) for g in geometries]
        weights = weights_of(job, chosen, module, programs[0])
        outputs = [spec.name for spec in job.spec.outputs(job.geometry)]
        sizes = [cut(program, outputs, chosen.chunks) for program in programs]
        # The parts keep what they need, and let go of it as they are written. Graphs refer to
        # themselves, so that leaving the names would not free them.
        del module, programs
        gc.collect()
        names = [function_name(g) for g in geometries] if len(geometries) > 1 else ["main"]
        links = _write_parts(job, chosen, weights, geometries, dict(zip(names, sizes, strict=True)))
        config: dict[str, Any] = {"chain": [asdict(link) for link in links], "ios": chosen.ios}
        config |= {"attention": chosen.attention}
        if len(geometries) > 1:
            config["functions"] = {
                f"{g.width}x{g.height}": name for g, name in zip(geometries, names, strict=True)
            }
        files = tuple(
            p.relative_to(job.folder).as_posix()
            for link in links
            for p in sorted((job.folder / link.file).rglob("*"))
            if p.is_file()
        )
        return job.described(files, config)


def _write_parts(
    job: Job,
    chosen: Choices,
    weights: Any,
    geometries: Sequence[Geometry],
    sizes: Mapping[str, list[Part]],
) -> list[Link]:
    from converter.targets.coreml.lower import Tensor, lower, make_builder
    from converter.targets.coreml.mlpackage import write_mlpackage

    crossing: dict[str, dict[str, Tensor]] = {name: {} for name in sizes}
    count = len(next(iter(sizes.values())))
    links = []
    for index in range(count):
        functions = {}
        for (name, parts), geometry in zip(sizes.items(), geometries, strict=True):
            specs = (*job.spec.inputs(geometry), *job.spec.outputs(geometry))
            functions[name] = lower(
                parts[index],
                make_builder(chosen, weights),
                {spec.name: spec for spec in specs},
                crossing[name],
                release=len(sizes) == 1,
            )
        file = f"{job.spec.name}{f'-{index}' * (count > 1)}.mlpackage"
        with silenced():  # it draws a bar for each of its passes
            write_mlpackage(functions, job.folder / file, chosen.ios)
        part = next(iter(sizes.values()))[index]
        links.append(Link(file, part.inputs, part.outputs))
    return links


def cut(program: ExportedProgram, outputs: Sequence[str], chunks: int) -> list[Part]:
    """At most `chunks` parts, of about equal weight."""
    if chunks == 1:
        return partition(program, outputs, None)
    largest, total = heaviest(program), sum(p.nbytes for p in program.state_dict.values())
    limit = max(largest, total // chunks)
    # Cuts go where little crosses, not where weights are halved: find the limit that suffices.
    while len(parts := partition(program, outputs, limit)) > chunks:
        limit += total // 50
    return parts


def function_name(geometry: Geometry) -> str:
    return f"size_{geometry.width}x{geometry.height}"


def _distinct(job: Job) -> list[Geometry]:
    """The sizes at which this component differs: the text encoder has one."""
    by_inputs = {job.spec.inputs(g): g for g in reversed((job.geometry, *job.others))}
    return list(by_inputs.values())[::-1]


TARGET = CoreMLTarget()
