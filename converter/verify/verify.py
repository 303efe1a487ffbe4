"""A package measured against its source: every component, then whole pictures."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converter.checkpoints import open_checkpoint
from converter.convert import convert
from converter.options import Options
from converter.verify.gates import COMPONENT, PICTURE, gate
from runtime_py.engines import Engine, open_engine
from runtime_py.errors import PocketSDError
from runtime_py.package import Package, is_package, open_package
from runtime_py.pipeline import Request, draw, run_component
from runtime_py.quality import psnr
from runtime_py.recording import Recording, Sample

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Figure:
    """One measurement; `gate` is what it must reach, if anything."""

    what: str
    where: str  # cpu, gpu or source
    value: float
    gate: float | None
    unit: str = "dB"

    @property
    def passed(self) -> bool:
        return self.gate is None or self.value >= self.gate

    def line(self) -> str:
        verdict = "" if self.gate is None else f"  (at least {self.gate:g}) "
        verdict += "" if self.gate is None else "ok" if self.passed else "FAILED"
        return f"{self.what:<22} {self.where:<6} {self.value:8.1f} {self.unit}{verdict}"


@dataclass
class Report:
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)  # where: the GPU's name

    @property
    def passed(self) -> bool:
        return not self.failures and all(figure.passed for figure in self.figures)

    def quality(self) -> dict[str, Any]:
        """For the manifest."""
        figures = {f"{f.what} on {f.where}": f"{f.value:.1f} {f.unit}" for f in self.figures}
        return {**figures, **self.adapters, "verified": self.passed}


@contextmanager
def reference(path: Path, package: Package, announce: Announce) -> Iterator[Package]:
    """The source as a package of the reference target: given as one, or made of a checkpoint."""
    if is_package(path):
        source = open_package(path)
        if source.manifest.target != "torch":
            raise PocketSDError(f"a package for {source.manifest.target} is no source", where=path)
        _same_source(source, package)
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="pocketsd-") as folder:
        announce("converting the source")
        source = convert(open_checkpoint(path), Path(folder) / "source", Options())
        _same_source(source, package)
        yield source


def _same_source(source: Package, package: Package) -> None:
    made_of = [{(i.role, i.sha256) for i in p.manifest.sources} for p in (source, package)]
    if made_of[0] != made_of[1]:
        raise PocketSDError(
            f"{package.path} was made of something else (other weights, or with a LoRA, VAE or"
            " embedding)",
            where=source.manifest.model,
            mend="give --source the same model converted with --target torch and the same options",
        )


def compare_components(
    package: Package, engine: Engine, where: str, recording: Recording, announce: Announce
) -> list[Figure]:
    """Each component on every recorded input; the worst sample counts."""
    figures = []
    wanted = gate(COMPONENT, package.manifest.precision, package.manifest.target, where)
    for component in package.manifest.components:
        announce(f"{component.name} on {where}")
        samples = recording.of(component.name)
        worst = min(_agreement(engine, package, component.name, s) for s in samples)
        engine.unload(component.name)
        figures.append(Figure(component.name, where, worst, wanted))
    return figures


def _agreement(engine: Engine, package: Package, component: str, sample: Sample) -> float:
    (expected,) = sample.outputs.values()
    result = run_component(engine, package, component, **sample.inputs)
    return min(psnr(expected, result), 999.0)  # equal to the bit is infinite; JSON has no such word


def compare_pictures(
    package: Package,
    source: Package,
    where: str,
    engines: tuple[Engine, Engine],
    prompts: Sequence[str],
    guidance: float,
    announce: Announce,
) -> Figure:
    """Whole pictures from the same seeds on both; the worst counts."""
    worst = math.inf
    name, _, steps = package.manifest.default_sampler.partition("/")
    table = package.table(name, int(steps))
    assert table is not None
    for index, prompt in enumerate(prompts):
        announce(f"picture {index + 1} of {len(prompts)} on {where}")
        request = Request(prompt, seeds=(index,), guidance_scale=guidance)
        mine = draw(engines[0], package, table, request).pictures[0]
        theirs = draw(engines[1], source, table, request).pictures[0]
        worst = min(worst, psnr(theirs, mine))
    wanted = gate(PICTURE, package.manifest.precision, package.manifest.target, where)
    return Figure("picture", where, min(worst, 999.0), wanted)


def open_reference(source: Package) -> Engine:
    return open_engine(source, "torch")
