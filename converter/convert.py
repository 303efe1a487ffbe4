"""A checkpoint in, a package out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from converter import sampling
from converter.checkpoints import Checkpoint
from converter.components import COMPONENTS, Geometry, geometry, get_component
from converter.preview import fit_preview
from converter.targets import Job, Target, get_target
from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_folder
from runtime_py.package import Manifest, Package, Picture, TokenizerSpec, seal
from runtime_py.recording import Recording

Announce = Callable[[str], None]
NAMES = tuple(spec.name for spec in COMPONENTS)


@dataclass(frozen=True)
class Options:
    """What `pocketsd convert` can be asked for."""

    target: str = "torch"
    precision: str | None = None
    components: tuple[str, ...] = ()  # none: all
    height: int | None = None
    width: int | None = None
    batch_cfg: int = 2
    schedulers: tuple[str, ...] = ("dpm++-2m",)
    steps: tuple[int, ...] = (20,)
    recording: Recording | None = None  # what to calibrate on


def check(options: Options) -> None:
    """Refuse what cannot be meant, before a checkpoint is read."""
    target = get_target(options.target)
    precision = _precision(target, options.precision)
    if precision in target.calibrated and options.recording is None:
        raise PocketSDError(
            f"precision {precision} needs recorded inputs to calibrate on",
            mend="`pocketsd record` makes them, --calibration FILE gives them",
        )
    for name in options.components:
        if name not in NAMES:
            raise PocketSDError(f"no component {name!r} (there are {', '.join(NAMES)})")
    for name in options.schedulers:
        sampling.recipe_of(name)


def plan(checkpoint: Checkpoint, options: Options) -> Picture:
    """Refuse what this checkpoint cannot become; returns the size it would draw."""
    check(options)
    if checkpoint.tokenizer is None:
        raise PocketSDError(
            "this checkpoint carries no tokenizer",
            where=checkpoint.name,
            mend="--tokenizer FOLDER with vocab.json and merges.txt of CLIP ViT-L/14",
        )
    return _picture(checkpoint, options)


def stage_count(options: Options) -> int:
    """How often `convert` announces something."""
    return 3 + (len(options.components) or len(COMPONENTS))


def convert(
    checkpoint: Checkpoint,
    out: Path,
    options: Options,
    *,
    overwrite: bool = False,
    announce: Announce = lambda stage: None,
) -> Package:
    """Write the package whole or not at all; `announce` hears each stage as it begins."""
    picture = plan(checkpoint, options)
    target = get_target(options.target)
    precision = _precision(target, options.precision)
    sizes = _geometry(checkpoint, target, picture, options.batch_cfg)
    with atomic_folder(out, overwrite=overwrite) as folder:
        announce("sampler tables")
        samplers = _write_tables(checkpoint, options, folder)
        tokenizer = _write_tokenizer(checkpoint, folder)
        announce("preview")
        preview = fit_preview(get_component("vae_encoder").module(checkpoint), picture.shrink)
        components = []
        for spec in COMPONENTS:
            if options.components and spec.name not in options.components:
                continue
            announce(spec.name)
            module = partial(spec.module, checkpoint)
            job = Job(
                spec, spec.config(checkpoint), sizes, precision, folder, module, options.recording
            )
            components.append(target.write(job))
        announce("hashes")
        manifest = Manifest(
            model=checkpoint.name,
            target=target.name,
            precision=precision,
            picture=replace(picture, preview=preview),
            tokenizer=tokenizer,
            components=tuple(components),
            samplers=samplers,
            default_sampler=next(iter(samplers)),
            schedule=dict(checkpoint.scheduler),
            sources=checkpoint.ingredients,
            notes=checkpoint.notes,
        )
        sealed = seal(folder, manifest)
    return Package(out, sealed.manifest)


def _precision(target: Target, wanted: str | None) -> str:
    precision = wanted or target.precisions[0]
    if precision not in target.precisions:
        have = ", ".join(target.precisions)
        raise PocketSDError(f"target {target.name} has no precision {precision!r} (it has {have})")
    return precision


def _picture(checkpoint: Checkpoint, options: Options) -> Picture:
    shrink = checkpoint.vae.shrink
    natural = checkpoint.unet.sample_size * shrink
    # The UNet halves the latent once per level but the last, and its skips must meet again.
    unit = shrink * 2 ** (len(checkpoint.unet.widths) - 1)
    height, width = options.height or natural, options.width or natural
    for name, size in (("height", height), ("width", width)):
        if not 0 < size <= 4096 or size % unit:
            raise PocketSDError(f"{name} {size} is not a multiple of {unit} up to 4096")
    return Picture(height, width, shrink, unit, checkpoint.unet.in_channels, ())


def _geometry(checkpoint: Checkpoint, target: Target, picture: Picture, batch_cfg: int) -> Geometry:
    if target.fixed_shapes:
        return geometry(checkpoint, picture.height, picture.width, batch_cfg, 1)
    return geometry(checkpoint, None, None)


def _write_tables(checkpoint: Checkpoint, options: Options, folder: Path) -> dict[str, str]:
    (folder / "samplers").mkdir()
    names: dict[str, str] = {}
    for scheduler, steps in product(options.schedulers, options.steps):
        table = sampling.table(scheduler, steps, checkpoint.scheduler)
        file = f"samplers/{scheduler}-{steps}.json"
        (folder / file).write_bytes(msgspec.json.encode(table.to_json()))
        names[f"{scheduler}/{steps}"] = file
    return names


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> TokenizerSpec:
    files = checkpoint.tokenizer
    assert files is not None
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/vocab.json").write_bytes(files.vocab)
    (folder / "tokenizer/merges.txt").write_bytes(files.merges)
    return TokenizerSpec(
        vocab="tokenizer/vocab.json",
        merges="tokenizer/merges.txt",
        length=checkpoint.text_encoder.positions,
        added=_words(files.added),
    )


def _words(added: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """A prompt word and its ids: `cat`, `cat_1`, `cat_2` are the vectors of one word `cat`."""
    words: dict[str, tuple[int, ...]] = {}
    for token, id_ in sorted(added.items(), key=lambda item: item[1]):
        base, _, number = token.rpartition("_")
        word = base if number.isdigit() and base in added else token
        words[word] = (*words.get(word, ()), id_)
    return words
