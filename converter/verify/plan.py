"""What `pocketsd verify` does, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from converter.graph import export
from converter.targets.torch.engine import module_of
from converter.verify import ranges
from converter.verify.gates import SCORE, gate
from converter.verify.verify import (
    Figure,
    Report,
    compare_components,
    compare_pictures,
    open_reference,
    reference,
)
from runtime_py.engines import Array, Engine, open_engine
from runtime_py.errors import PocketSDError
from runtime_py.package import Package
from runtime_py.pipeline import Request, draw, in_slices
from runtime_py.prompt_score.prompts import held_out_prompts
from runtime_py.prompt_score.score import examine
from runtime_py.recording import Recording, record

#: What the packages of a target can run on.
ACCELERATORS: dict[str, tuple[str, ...]] = {"litert": ("cpu", "gpu"), "webgpu": ("gpu",)}
Announce = Callable[[str], None]


def stage_count(
    package: Package, accelerators: Sequence[str], pictures: int, score: int, **_: Any
) -> int:
    each = len(package.manifest.components) + pictures + score
    return (
        1
        + max(pictures, 1)
        + len(package.manifest.components)
        + score
        + each * len(_wanted(package, accelerators))
    )


def verify(
    package: Package,
    source_path: Path,
    prompts: Sequence[str],
    *,
    accelerators: Sequence[str],
    adapter: str | None,
    pictures: int,
    per_picture: int,
    guidance_scale: float,
    score: int,
    bisect: bool,
    announce: Announce,
) -> Report:
    report = Report()
    if bisect and package.manifest.target != "litert":
        raise PocketSDError("--bisect is for litert packages", where=package.path)
    for where in _wanted(package, accelerators):
        _open(package, where, adapter).close()  # what cannot be is said before the work begins
    with reference(source_path, package, announce) as source:
        original = open_reference(source)
        name, _, steps = package.manifest.default_sampler.partition("/")
        table = package.table(name, int(steps))
        assert table is not None
        shown = [prompts[i % len(prompts)] for i in range(max(pictures, 1))]
        recording = record(
            original,
            source,
            table,
            shown,
            guidance=guidance_scale,
            per_picture=per_picture,
            advance=lambda prompt: announce(f"drawing with the source: {prompt}"),
        )
        check_ranges(report, package, source, recording, announce)
        due = None
        if score:
            due = _exam(source, original, "source", table, score, guidance_scale, announce)
            report.figures.append(due)
        for where in _wanted(package, accelerators):
            engine = _open(package, where, adapter)
            report.figures += compare_components(package, engine, where or "", recording, announce)
            _report_adapter(report, engine, where or "")
            _report_delegation(report, engine)
            _report_overflow(report, engine)
            if bisect and where == "gpu":
                _bisect_failures(report, package, engine, recording, announce)
            try:
                if pictures:
                    engines = (engine, original)
                    figure = compare_pictures(
                        package, source, where or "", engines, shown, guidance_scale, announce
                    )
                    report.figures.append(figure)
                if due:
                    figure = _exam(
                        package, engine, where or "", table, score, guidance_scale, announce
                    )
                    report.figures.append(_judged(package, figure, due))
            except PocketSDError as error:  # numbers that are none: no picture to compare
                report.failures.append(f"{where}: {error}")
            engine.close()
        original.close()
    return report


def check_ranges(
    report: Report, package: Package, source: Package, recording: Recording, announce: Announce
) -> None:
    """What would not fit into fp16; a failure where the package computes in fp16."""
    halved = package.manifest.precision != "fp32"
    for component in package.manifest.components:
        announce(f"ranges of {component.name}")
        found = component_ranges(source, component.name, recording)
        widest = max(found, key=lambda r: r.largest)
        report.notes.append(
            f"{component.name}: the largest value is {widest.largest:.4g}, in {widest.layer}"
            f" ({widest.op}); fp16 ends at {ranges.LARGEST:.0f}"
        )
        for r in found:
            if not r.fits and halved:
                report.failures.append(
                    f"{component.name}: {r.layer} ({r.op}) reaches {r.largest:.4g}, beyond fp16"
                )
        sums = [r.layer for r in found if not r.sum_fits]
        if sums:
            report.notes.append(
                f"{component.name}: sums in {len(sums)} layers pass fp16's end ({sums[0]}, ...);"
                " LiteRT's delegate and our kernels add up in fp32, a runtime that does not"
                " would fail there"
            )


def component_ranges(source: Package, component: str, recording: Recording) -> list[ranges.Range]:
    samples = recording.of(component)
    inputs = [{k: torch.from_numpy(v) for k, v in s.inputs.items()} for s in samples]
    order = [spec.name for spec in source.manifest.component(component).inputs]
    module = module_of(source, component)
    program = export(module, tuple(inputs[0][name] for name in order))
    return ranges.measure(program, inputs)


def _wanted(package: Package, accelerators: Sequence[str]) -> Sequence[str | None]:
    if accelerators:
        return accelerators
    of_target = ACCELERATORS.get(package.manifest.target, (None,))
    runs_on = {str(c.config.get("runs_on", "")) for c in package.manifest.components}
    return tuple(w for w in of_target if w is None or all(not r or w.upper() in r for r in runs_on))


def _open(package: Package, where: str | None, adapter: str | None) -> Engine:
    target = package.manifest.target
    if where not in ACCELERATORS.get(target, (None,)):
        have = ", ".join(ACCELERATORS.get(target, ())) or "its engine only"
        raise PocketSDError(f"no accelerator {where!r} ({target} runs on {have})")
    if target == "webgpu":  # a GPU is all it has: which one is the question
        where = None
    return open_engine(package, accelerator=where, adapter=adapter)


def _report_adapter(report: Report, engine: Engine, where: str) -> None:
    if adapter := getattr(engine, "adapter", None):
        report.adapters[where] = str(adapter)
        report.notes.append(f"{where}: {adapter}")


def _report_delegation(report: Report, engine: Engine) -> None:
    for said in getattr(engine, "delegation", {}).values():
        report.notes.append(
            f"{said.file}: {said.delegated} of {said.operations} ops on the GPU in"
            f" {said.partitions} partition(s), {said.adapter}"
        )
        if not said.whole:
            report.failures.append(f"{said.file} is not whole on the GPU: {said.refused}")


def _report_overflow(report: Report, engine: Engine) -> None:
    """Operations of the shipped program that made infinities out of finite numbers."""
    for component, found in getattr(engine, "overflow", {}).items():
        for name, seen in found.items():
            report.failures.append(f"{component}: {name} ({seen.type}) overflows in fp16")


def _bisect_failures(
    report: Report, package: Package, engine: Engine, recording: Recording, announce: Announce
) -> None:
    from runtime_py.engines.litert_bisect import bisect_component

    for figure in report.figures:
        if figure.where != "gpu" or figure.passed:
            continue
        spec = package.manifest.component(figure.what)
        size = spec.inputs[0].shape[0]
        assert size is not None
        for sample in recording.of(figure.what)[:1]:
            inputs = next(in_slices(sample.inputs, size))
            arithmetic = getattr(engine, "arithmetic", "fp32")
            threshold = figure.gate or 40.0
            found = bisect_component(
                package, figure.what, inputs, arithmetic, threshold=threshold, advance=announce
            )
            report.notes.append(found or f"{figure.what}: no op alone parts GPU and CPU")


def _exam(
    package: Package,
    engine: Engine,
    where: str,
    table: Any,
    count: int,
    guidance: float,
    announce: Announce,
) -> Figure:
    def paint(text: str, seed: int) -> Array:
        announce(f"exam on {where}: {text}")
        request = Request(text, seeds=(seed,), guidance_scale=guidance)
        return draw(engine, package, table, request).pictures[0]

    found = examine(held_out_prompts(count), paint)
    return Figure("prompts obeyed", where, 100 * found["colour and shape"], None, "%")


def _judged(package: Package, figure: Figure, source: Figure) -> Figure:
    """The score with its gate: so many points below the source's."""
    manifest = package.manifest
    allowed = gate(SCORE, manifest.precision, manifest.target, figure.where)
    return replace(figure, gate=None if allowed is None else source.value - allowed)
