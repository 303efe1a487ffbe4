"""The package: a folder with everything one model needs on one target, and a manifest that says so.

    manifest.json             what this module reads and writes
    unet.*, vae_decoder.* ... component files, in the form their target wants
    tokenizer/                vocab.json and merges.txt in CLIP's format
    samplers/                 sampler tables (see runtime_py.sampler)

Every file is listed with its size and sha256, and the manifest carries its own digest, so that a
flipped byte anywhere is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from runtime_py import __version__
from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_file, inside, sha256_of
from runtime_py.sampler import SamplerTable

FORMAT = "pocketsd-package"
VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TensorSpec:
    """One named input or output. A size of None may be anything."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    layout: str


@dataclass(frozen=True)
class Component:
    """One network: its files, what goes in and out, and whatever its engine has to know."""

    name: str
    files: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ingredient:
    """Provenance: one file or folder that went into the package."""

    role: str
    name: str
    sha256: str
    weight: float | None = None


@dataclass(frozen=True)
class Picture:
    """How latents and pictures relate. `preview` maps a latent's channels and 1 to RGB."""

    height: int
    width: int
    shrink: int  # picture pixels per latent cell, along a side
    unit: int  # what height and width must be multiples of
    latent_channels: int
    preview: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class TokenizerSpec:
    """`added` gives a prompt word (a textual inversion) its token ids."""

    vocab: str
    merges: str
    length: int
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FileEntry:
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    model: str
    target: str
    precision: str
    picture: Picture
    tokenizer: TokenizerSpec
    components: tuple[Component, ...]
    samplers: Mapping[str, str]  # "euler/20" -> file
    default_sampler: str
    schedule: Mapping[str, Any]  # the checkpoint's noise schedule, for tables made later
    sources: tuple[Ingredient, ...]
    quality: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    created_by: str = f"pocketsd {__version__}"
    format: str = FORMAT
    version: int = VERSION

    def component(self, name: str) -> Component:
        for component in self.components:
            if component.name == name:
                return component
        have = ", ".join(c.name for c in self.components)
        raise PocketSDError(f"the package has no {name} (it has {have})")


@dataclass(frozen=True)
class Package:
    path: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        return inside(self.path, name)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The picture sizes built into it, as WIDTHxHEIGHT; none: any."""
        unet = self.manifest.component("unet")
        if functions := unet.config.get("functions"):
            return tuple(functions)
        picture = self.manifest.picture
        return () if unet.inputs[0].shape[2] is None else (f"{picture.width}x{picture.height}",)

    def table(self, sampler: str, steps: int) -> SamplerTable | None:
        """The sampler table stored for this scheduler and step count, if there is one."""
        name = self.manifest.samplers.get(f"{sampler}/{steps}")
        return None if name is None else read_table(self.file(name))


def read_table(path: Path) -> SamplerTable:
    try:
        return SamplerTable.from_json(msgspec.json.decode(path.read_bytes()))
    except msgspec.DecodeError as error:
        raise PocketSDError(f"damaged sampler table, {error}", where=path) from None


def seal(folder: Path, manifest: Manifest) -> Package:
    """List every file in `folder` with its hash and write the manifest: the last step."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
    files = {
        p.relative_to(folder).as_posix(): FileEntry(sha256_of(p), p.stat().st_size) for p in paths
    }
    sealed = replace(manifest, files=files)
    (folder / MANIFEST).write_bytes(_encode(sealed))
    return Package(folder, sealed)


def with_quality(package: Package, quality: Mapping[str, Any]) -> Package:
    """The package with these measurements added to its manifest."""
    manifest = replace(package.manifest, quality={**package.manifest.quality, **quality})
    with atomic_file(package.path / MANIFEST) as file:
        file.write_bytes(_encode(manifest))
    return Package(package.path, manifest)


def open_package(path: Path, *, check: bool = True) -> Package:
    """Read a package, refusing what is not whole. `check=False` leaves the hashes for later."""
    manifest = _read_manifest(path)
    package = Package(path, manifest)
    for name, entry in manifest.files.items():
        file = package.file(name)
        if not file.is_file():
            raise PocketSDError(f"incomplete package, {name} is missing", where=path)
        if file.stat().st_size != entry.bytes:
            found = file.stat().st_size
            raise PocketSDError(
                f"damaged package, {name} has {found} bytes instead of {entry.bytes}", where=path
            )
    for name in _referenced(manifest):
        if name not in manifest.files:
            raise PocketSDError(f"incomplete package, {name} is not listed in it", where=path)
    if check:
        check_hashes(package)
    return package


def check_hashes(package: Package, advance: Callable[[int], None] | None = None) -> None:
    """Read every file once; `advance` is told the bytes as they go by."""
    for name, entry in package.manifest.files.items():
        if sha256_of(package.file(name), advance) != entry.sha256:
            raise PocketSDError(
                f"damaged package, {name} does not match its sha256", where=package.path
            )


def is_package(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _referenced(manifest: Manifest) -> list[str]:
    names = [manifest.tokenizer.vocab, manifest.tokenizer.merges, *manifest.samplers.values()]
    return names + [name for component in manifest.components for name in component.files]


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    if not file.is_file():
        raise PocketSDError(
            f"not a package, it has no {MANIFEST}", where=path, mend="`pocketsd convert` makes one"
        )
    content = file.read_bytes()
    try:
        head = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PocketSDError(f"damaged manifest, {error}", where=file) from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise PocketSDError("not a PocketSD manifest", where=file)
    if isinstance(version := head.get("version"), int) and version > VERSION:
        raise PocketSDError(
            f"package version {version} is newer than this PocketSD, which reads {VERSION}",
            where=path,
            mend="upgrade pocketsd",
        )
    try:
        manifest = msgspec.convert({k: v for k, v in head.items() if k != "sha256"}, Manifest)
    except msgspec.ValidationError as error:
        raise PocketSDError(f"damaged manifest, {error}", where=file) from None
    # Comparing bytes, not values: even a flipped blank is noticed.
    if _encode(manifest) != content:
        raise PocketSDError("damaged manifest, it does not match its own sha256", where=file)
    return manifest


def _encode(manifest: Manifest) -> bytes:
    values = msgspec.to_builtins(manifest)
    digest = hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()
    values["sha256"] = digest
    return msgspec.json.format(msgspec.json.encode(values, order="sorted"), indent=1) + b"\n"
