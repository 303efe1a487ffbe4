"""The 20-step loop: a prompt in, events out, a picture at the end.

`generate` is a generator. Whoever iterates over it decides what a step means: a progress bar, a
preview, a stopwatch; to cancel is to stop iterating. It knows engines and packages only by their
named inputs, so the same loop serves every target and device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime_py import pictures
from runtime_py.engines import Array, Engine
from runtime_py.errors import PocketSDError
from runtime_py.noise import INITIAL, gaussian, row_stream
from runtime_py.package import Package
from runtime_py.sampler import SamplerTable, Schedule, guided, play
from runtime_py.tokenizer import Tokenizer

Floats = NDArray[np.float32]
NoiseSource = Callable[[int], Floats]


@dataclass(frozen=True)
class Request:
    """What to draw. `image` (RGB, 8 bit) makes it img2img; a `mask` as well, inpainting."""

    prompt: str
    negative_prompt: str = ""
    seeds: tuple[int, ...] = (0,)
    guidance_scale: float = 7.5
    height: int | None = None
    width: int | None = None
    image: NDArray[np.uint8] | None = None  # [h, w, 3]
    mask: NDArray[np.uint8] | None = None  # [h, w], 255 where to draw anew
    strength: float = 0.75
    low_memory: bool = False  # hold one component at a time


@dataclass(frozen=True)
class Stage:
    """A component other than the denoiser has run."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Step:
    """One row of the sampler table has been played."""

    index: int
    total: int
    timestep: float
    latents: Floats = field(repr=False)  # [seeds, 4, h, w], live: copy before keeping
    seconds: float


@dataclass(frozen=True)
class Done:
    """The pictures, one per seed."""

    pictures: NDArray[np.uint8]  # [seeds, h, w, 3]
    latents: Floats
    cut: str  # the end of the prompt, if it was too long for the text encoder


Event = Stage | Step | Done


def generate(
    engine: Engine,
    package: Package,
    table: SamplerTable,
    request: Request,
    noise: NoiseSource | None = None,
) -> Iterator[Event]:
    """Draw `request`. `noise(stream)` replaces the seeded noise, for comparisons with others."""
    height, width = _size(package, request)
    manifest = package.manifest
    cells = (
        manifest.picture.latent_channels,
        *(n // manifest.picture.shrink for n in (height, width)),
    )
    draw = noise or partial(_seeded, request.seeds, cells)
    schedule = _schedule(table, request)
    known = mask = None

    started = time.perf_counter()
    prompts = [request.negative_prompt, request.prompt][_skip_unconditional(request) :]
    tokens = [tokenizer_of(package)(prompt) for prompt in prompts]
    embedding = _answer(engine, package, "text_encoder", tokens=np.stack([t.ids for t in tokens]))
    yield from _finish(engine, request, "text_encoder", started)

    if request.image is not None:
        started = time.perf_counter()
        picture = pictures.to_network(pictures.fit(request.image, height, width))[None]
        known = _answer(engine, package, "vae_encoder", picture=picture)
        yield from _finish(engine, request, "vae_encoder", started)
        if request.mask is not None:
            mask = pictures.to_latent_mask(request.mask, height, width, manifest.picture.shrink)

    latents = schedule.begin(draw(INITIAL), known if schedule.signal else None).astype(np.float32)
    started = time.perf_counter()
    scale, fresh_noise = request.guidance_scale, lambda k: draw(row_stream(k))
    own = getattr(engine, "play", None) if mask is None else None  # a mask is blended in here
    steps = own and own(schedule, latents, embedding, scale, fresh_noise)
    evaluate = partial(_denoise, engine, package, embedding, scale)
    for index, x in steps or play(schedule, latents, evaluate, fresh_noise):
        latents = _finite("unet", x)
        row = schedule.rows[index]
        if mask is not None and known is not None:
            signal, fresh = row.keep
            x[:] = mask * x + (1 - mask) * (signal * known + fresh * draw(INITIAL))
        seconds, started = _lap(started)
        yield Step(index, len(schedule.rows), row.timestep, x, seconds)
    if request.low_memory:
        engine.unload("unet")

    started = time.perf_counter()
    decoded = pictures.from_network(_answer(engine, package, "vae_decoder", latent=latents))
    if request.image is not None and request.mask is not None:
        decoded = pictures.paste_outside(decoded, request.image, request.mask)
    yield from _finish(engine, request, "vae_decoder", started)
    yield Done(decoded, latents, tokens[-1].cut)


def draw(
    engine: Engine, package: Package, table: SamplerTable, request: Request, **options: Any
) -> Done:
    """`generate` for callers who only want the result."""
    for event in generate(engine, package, table, request, **options):
        if isinstance(event, Done):
            return event
    raise AssertionError("generate always ends with Done")


def tokenizer_of(package: Package) -> Tokenizer:
    spec = package.manifest.tokenizer
    return Tokenizer.from_files(
        package.file(spec.vocab), package.file(spec.merges), spec.length, spec.added
    )


def _schedule(table: SamplerTable, request: Request) -> Schedule:
    # A mask at full strength keeps nothing of what it hides, so it starts from noise alone.
    if request.image is None or (request.mask is not None and request.strength == 1):
        return table.from_noise()
    return table.from_strength(request.strength)


def _skip_unconditional(request: Request) -> bool:
    """At scale 1 guidance returns the conditional answer, so the other one need not be asked."""
    return request.guidance_scale == 1


def _denoise(
    engine: Engine,
    package: Package,
    embedding: Floats,
    scale: float,
    latents: Array,
    timestep: float,
) -> Array:
    """The UNet's answer for all seeds, guidance done. latents [seeds, 4, h, w]"""
    seeds, prompts = len(latents), len(embedding)
    answer = _answer(
        engine,
        package,
        "unet",
        latent=np.concatenate([latents] * prompts).astype(np.float32),
        timestep=np.full(seeds * prompts, timestep, np.float32),
        embedding=np.repeat(embedding, seeds, axis=0),
    )
    if prompts == 1:
        return answer
    unconditional, conditional = np.split(answer, 2)
    return guided(conditional, unconditional, scale)


def _answer(engine: Engine, package: Package, component: str, **inputs: Array) -> Floats:
    """`run_component`, checked."""
    return _finite(component, run_component(engine, package, component, **inputs))


def _finite(component: str, values: Floats) -> Floats:
    """No picture is made of what no longer are numbers."""
    if not np.isfinite(values).all():
        raise PocketSDError(
            f"{component} gave values that are no numbers (NaN or infinite)",
            mend="convert with --precision fp32; if it is that already, the GPU or driver fails",
        )
    return values


def run_component(engine: Engine, package: Package, component: str, **inputs: Array) -> Floats:
    """Run a component that has one output, in slices of the batch that it was built for."""
    spec = package.manifest.component(component)
    size = spec.inputs[0].shape[0]
    rows = len(next(iter(inputs.values())))
    output = spec.outputs[0].name
    if size is None or size == rows:
        return engine.run(component, inputs)[output].astype(np.float32, copy=False)
    slices = [engine.run(component, part)[output] for part in in_slices(inputs, size)]
    return np.concatenate(slices)[:rows].astype(np.float32, copy=False)


def in_slices(inputs: Mapping[str, Array], size: int) -> Iterator[dict[str, Array]]:
    """The inputs in batches of `size`; a last one that is not full repeats its end."""
    rows = len(next(iter(inputs.values())))
    for begin in range(0, rows, size):
        index = np.minimum(np.arange(begin, begin + size), rows - 1)
        yield {name: array[index] for name, array in inputs.items()}


def _finish(engine: Engine, request: Request, name: str, started: float) -> Iterator[Stage]:
    if request.low_memory:
        engine.unload(name)
    yield Stage(name, time.perf_counter() - started)


def _lap(started: float) -> tuple[float, float]:
    now = time.perf_counter()
    return now - started, now


def _seeded(seeds: tuple[int, ...], cells: tuple[int, ...], stream: int) -> Floats:
    return np.stack([gaussian(seed, stream, cells) for seed in seeds])


def _size(package: Package, request: Request) -> tuple[int, int]:
    """The picture's height and width, checked against what the package can draw."""
    picture = package.manifest.picture
    height, width = request.height or picture.height, request.width or picture.width
    sizes = package.sizes
    if sizes and f"{width}x{height}" not in sizes:
        raise PocketSDError(
            f"this package draws {' and '.join(sizes)} pictures only",
            where=package.path,
            mend="convert it again with --height and --width",
        )
    for name, size in (("height", height), ("width", width)):
        if not 0 < size <= 4096 or size % picture.unit:
            raise PocketSDError(f"{name} {size} is not a multiple of {picture.unit} up to 4096")
    if not request.seeds:
        raise PocketSDError("no seed given")
    if request.mask is not None and request.image is None:
        raise PocketSDError("a mask needs an image", mend="--image FILE")
    return height, width
