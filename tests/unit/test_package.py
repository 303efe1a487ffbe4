"""The package: round trip, and refusal of anything that is not whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_file, atomic_folder, inside
from runtime_py.package import (
    Component,
    Ingredient,
    Manifest,
    Package,
    Picture,
    TensorSpec,
    TokenizerSpec,
    open_package,
    seal,
)

Tree = Callable[[Path], dict[str, bytes]]


def small_package(folder: Path) -> Package:
    """A package of a few bytes that names everything a manifest can hold."""
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "samplers").mkdir()
    for name in (
        "unet.bin",
        "tokenizer/vocab.json",
        "tokenizer/merges.txt",
        "samplers/ddim-4.json",
    ):
        (folder / name).write_bytes(f"content of {name}".encode())
    latent = TensorSpec("latent", (None, 4, 8, 8), "float32", "NCHW")
    manifest = Manifest(
        model="test",
        target="torch",
        precision="fp32",
        picture=Picture(64, 64, 8, 64, 4, ((0.5,) * 5,) * 3),
        tokenizer=TokenizerSpec(
            "tokenizer/vocab.json", "tokenizer/merges.txt", 77, {"<x>": (3, 4)}
        ),
        components=(Component("unet", ("unet.bin",), (latent,), (latent,), {"widths": [32, 64]}),),
        samplers={"ddim/4": "samplers/ddim-4.json"},
        default_sampler="ddim/4",
        schedule={"beta_start": 0.00085},
        sources=(Ingredient("checkpoint", "x", "00"), Ingredient("lora", "y", "11", 0.8)),
    )
    return seal(folder, manifest)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return small_package(tmp_path / "package")


def test_round_trip(package: Package) -> None:
    assert open_package(package.path) == package
    assert set(package.manifest.files) == {
        "unet.bin", "tokenizer/vocab.json", "tokenizer/merges.txt", "samplers/ddim-4.json",
    }  # fmt: skip


def test_sealing_is_repeatable(package: Package, tmp_path: Path) -> None:
    other = small_package(tmp_path / "other")
    read = (package.path / "manifest.json").read_bytes()
    assert read == (other.path / "manifest.json").read_bytes()


@given(st.data())
def test_any_flipped_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    package = small_package(tmp_path_factory.mktemp("flip") / "package")
    names = [*package.manifest.files, "manifest.json"]
    file = package.path / data.draw(st.sampled_from(names))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    with pytest.raises(PocketSDError) as caught:
        open_package(package.path)
    assert "\n" not in str(caught.value)


def test_missing_file(package: Package) -> None:
    (package.path / "unet.bin").unlink()
    with pytest.raises(PocketSDError, match="incomplete package, unet.bin is missing"):
        open_package(package.path)


def test_truncated_file(package: Package) -> None:
    (package.path / "unet.bin").write_bytes(b"short")
    with pytest.raises(PocketSDError, match="has 5 bytes instead of"):
        open_package(package.path, check=False)


def test_newer_version_says_upgrade(package: Package) -> None:
    seal(package.path, replace(package.manifest, version=99))
    with pytest.raises(PocketSDError, match="version 99 is newer.*upgrade"):
        open_package(package.path)


def test_not_a_package(tmp_path: Path) -> None:
    with pytest.raises(PocketSDError, match="not a package"):
        open_package(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(PocketSDError, match="not a PocketSD manifest"):
        open_package(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a\\..\\b", "a\n"]
)
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(PocketSDError, match="unsafe file name"):
        inside(tmp_path, name)


def test_links_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link").symlink_to(tmp_path / "secret")
    with pytest.raises(PocketSDError, match="leads out"):
        inside(tmp_path / "folder", "link")


def test_a_component_must_list_its_files(package: Package) -> None:
    ghost = replace(package.manifest.components[0], files=("ghost.bin",))
    seal(package.path, replace(package.manifest, components=(ghost,)))
    with pytest.raises(PocketSDError, match="ghost.bin is not listed"):
        open_package(package.path)


def test_failed_writing_leaves_nothing(tmp_path: Path, tree: Tree) -> None:
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "out") as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "file") as file:
        file.write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_overwriting_keeps_the_old_until_the_new_is_whole(tmp_path: Path, tree: Tree) -> None:
    out = tmp_path / "out"
    with atomic_folder(out) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(PocketSDError, match="--overwrite"), atomic_folder(out):
        pass
    with pytest.raises(RuntimeError), atomic_folder(out, overwrite=True) as folder:
        raise RuntimeError
    assert tree(tmp_path) == {"out/a": b"old"}
    with atomic_folder(out, overwrite=True) as folder:
        (folder / "b").write_text("new")
    assert tree(tmp_path) == {"out/b": b"new"}
    shutil.rmtree(out)
