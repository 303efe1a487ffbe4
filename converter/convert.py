"""A checkpoint in, a package out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from converter import sampling
from converter.checkpoints import Checkpoint
from converter.components import COMPONENTS, Geometry, geometry, get_component
from converter.options import Options, check, precision_of
from converter.preview import fit_preview
from converter.quantize.layers import shapes_in
from converter.quantize.recipe_file import check as check_recipe
from converter.targets import Job, Target, get_target, settings_of
from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_folder
from runtime_py.package import Manifest, Package, Picture, TokenizerSpec, seal

Announce = Callable[..., None]  # a stage, and how much of it is done (0 to 1)


def plan(checkpoint: Checkpoint, options: Options) -> Picture:
    """Refuse what this checkpoint cannot become; returns the size it would draw."""
    check(options)
    if checkpoint.tokenizer is None:
        raise PocketSDError(
            "this checkpoint carries no tokenizer",
            where=checkpoint.name,
            mend="--tokenizer FOLDER with vocab.json and merges.txt of CLIP ViT-L/14",
        )
    if options.recipe is not None:
        check_recipe(options.recipe, {s.name: shapes_in(checkpoint, s) for s in COMPONENTS})
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
    announce: Announce = lambda stage, done=0.0: None,
) -> Package:
    """Write the package whole or not at all; `announce` hears each stage as it begins."""
    picture = plan(checkpoint, options)
    target = get_target(options.target)
    precision = precision_of(options)
    sizes = _geometries(checkpoint, target, picture, options)
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
            job = Job(
                spec=spec,
                config=spec.config(checkpoint),
                geometry=sizes[0],
                precision=precision,
                folder=folder,
                module=partial(spec.module, checkpoint),
                recording=options.recording,
                settings=settings_of(target, options.settings, spec.name),
                recipe=options.recipe,
                others=sizes[1:],
                progress=partial(announce, spec.name),
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


def _picture(checkpoint: Checkpoint, options: Options) -> Picture:
    shrink = checkpoint.vae.shrink
    natural = checkpoint.unet.sample_size * shrink
    # The UNet halves the latent once per level but the last, and its skips must meet again.
    unit = shrink * 2 ** (len(checkpoint.unet.widths) - 1)
    height, width = options.height or natural, options.width or natural
    for sides in ((height, width), *options.sizes):
        for name, size in zip(("height", "width"), sides, strict=True):
            if not 0 < size <= 4096 or size % unit:
                raise PocketSDError(f"{name} {size} is not a multiple of {unit} up to 4096")
    return Picture(height, width, shrink, unit, checkpoint.unet.in_channels, ())


def _geometries(
    checkpoint: Checkpoint, target: Target, picture: Picture, options: Options
) -> tuple[Geometry, ...]:
    """The default size and the others."""
    if not target.fixed_shapes:
        return (geometry(checkpoint, None, None),)
    sizes = dict.fromkeys([(picture.height, picture.width), *options.sizes])
    return tuple(geometry(checkpoint, h, w, options.batch_cfg, 1) for h, w in sizes)


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
