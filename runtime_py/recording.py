"""What went into and came out of each component while pictures were drawn.

Recordings are what quantisation is calibrated on and what packages are compared with: real
latents from all over the schedule, not noise.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from runtime_py import pictures
from runtime_py.engines import Array, Engine
from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_file
from runtime_py.package import Package
from runtime_py.pipeline import Request, draw
from runtime_py.sampler import SamplerTable


@dataclass(frozen=True)
class Sample:
    """One call of a component."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


@dataclass(frozen=True)
class Recording:
    samples: Mapping[str, tuple[Sample, ...]]  # by component

    def of(self, component: str) -> tuple[Sample, ...]:
        found = self.samples.get(component, ())
        if not found:
            have = ", ".join(self.samples) or "nothing"
            raise PocketSDError(f"the recording has no {component} (it has {have})")
        return found


@dataclass
class Recorder:
    """An engine that keeps a copy of each call that `keep(component, call number)` wants."""

    engine: Engine
    keep: Callable[[str, int], bool]
    calls: dict[str, int] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()

    def load(self, component: str) -> None:
        self.engine.load(component)

    def run(self, component: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = self.engine.run(component, inputs)
        number = self.calls.get(component, 0)
        self.calls[component] = number + 1
        if self.keep(component, number):
            copies = ({k: v.copy() for k, v in tensors.items()} for tensors in (inputs, outputs))
            self.samples.setdefault(component, []).append(Sample(*copies))
        return outputs

    def unload(self, component: str) -> None:
        self.engine.unload(component)

    def close(self) -> None:
        self.engine.close()

    @property
    def recording(self) -> Recording:
        return Recording({name: tuple(kept) for name, kept in self.samples.items()})


def record(
    engine: Engine,
    package: Package,
    table: SamplerTable,
    prompts: Sequence[str],
    *,
    guidance: float,
    per_picture: int,
    seed: int = 0,
    advance: Callable[[str], None] = lambda prompt: None,
) -> Recording:
    """Draw every prompt; keep `per_picture` calls of the denoiser, spread over the schedule.

    Each picture drawn is encoded again, for the component that only img2img needs.
    """
    steps = len(table.rows)
    wanted = {round(i * (steps - 1) / max(per_picture - 1, 1)) for i in range(per_picture)}
    recorder = Recorder(engine, lambda name, call: name != "unet" or call % steps in wanted)
    encodes = any(c.name == "vae_encoder" for c in package.manifest.components)
    for index, prompt in enumerate(prompts):
        advance(prompt)
        request = Request(prompt, seeds=(seed + index,), guidance_scale=guidance)
        done = draw(recorder, package, table, request)
        if encodes:
            recorder.run("vae_encoder", {"picture": pictures.to_network(done.pictures[0])[None]})
    return recorder.recording


def save(recording: Recording, path: Path) -> None:
    arrays = {
        f"{component}/{number}/{side}/{name}": array
        for component, samples in recording.samples.items()
        for number, sample in enumerate(samples)
        for side, tensors in (("in", sample.inputs), ("out", sample.outputs))
        for name, array in tensors.items()
    }
    with atomic_file(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read(path: Path) -> Recording:
    tables: dict[str, dict[int, dict[str, dict[str, Array]]]] = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for key in arrays.files:
                component, number, side, name = key.split("/")
                sample = tables.setdefault(component, {}).setdefault(
                    int(number), {"in": {}, "out": {}}
                )
                sample[side][name] = arrays[key]
    except OSError as error:
        raise PocketSDError(
            f"cannot read it, {error.strerror or 'not an .npz file'}", where=path
        ) from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise PocketSDError(
            "not a recording", where=path, mend="`pocketsd record` makes one"
        ) from None
    return Recording(
        {
            component: tuple(Sample(s["in"], s["out"]) for _, s in sorted(samples.items()))
            for component, samples in tables.items()
        }
    )
