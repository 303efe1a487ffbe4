"""Core ML packages on the command line: what goes wrong is one line, what is wrong is exit 1."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("coremltools")

from converter.quantize.forms import parse_form
from converter.quantize.recipe_file import ComponentRecipe, WeightRecipe, write
from converter.targets.coreml.writer import TARGET
from runtime_py.cli import main
from runtime_py.coreml.evaluator import Evaluator
from runtime_py.package import Package, open_package, seal
from tests.e2e.test_cli import pocketsd

pytestmark = pytest.mark.xdist_group("coreml")

Tree = Callable[[Path], dict[str, bytes]]


def recipe(path: Path, component: str = "unet", **layers: str) -> Path:
    named = {layer.replace("__", "."): parse_form(form) for layer, form in layers.items()}
    write(WeightRecipe({component: ComponentRecipe(parse_form("palette6"), named)}), path)
    return path


def one_line(done: Any, complaint: str) -> None:
    lines = [line for line in done.stderr.splitlines() if line.startswith("pocketsd:")]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert complaint in lines[0] and "Traceback" not in done.stderr


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any) -> Callable[..., Any]:
    """The command in this process: most of a refusal's time would be the import of torch."""

    def run(*arguments: Any) -> Any:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["pocketsd", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return SimpleNamespace(returncode=left.value.code, stderr=capfd.readouterr().err)

    return run


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--precision", "int4", "--set", "ios=16"), "int4 needs iOS 18, not 16"),
        (("--precision", "palette4-g16", "--set", "ios=17"), "needs iOS 18, not 17"),
        (("--set", "attention=sdpa", "--set", "ios=17"), "sdpa needs iOS 18, not 17"),
        (("--precision", "int5"), "no precision 'int5'"),
        (("--precision", "w8a8"), "needs recorded inputs"),
        (("--set", "norms=measured"), "needs recorded inputs"),
        (("--set", "ios=12"), "ios is '12', must be one of 18, 17, 16"),
        (("--set", "speed=high"), "no setting 'speed'"),
        (("--set", "refiner.ios=17"), "no component 'refiner'"),
        (("--set", "ios"), "not like ios=17"),
        (("--set", "chunks=many"), "chunks is 'many', must be 1 to 16"),
        (("--set", "islands=("), "no regular expression"),
        (("--also", "100x64"), "width 100 is not a multiple of 64"),
        (("--also", "wide"), "not like 768x512"),
        (("--also", "64x64", "--set", "ios=17"), "several sizes need iOS 18, not 17"),
        (("--recipe", "nothing.json"), "nothing.json"),
    ],
)
def test_what_cannot_be_converted(
    options: tuple[Any, ...], complaint: str, tiny_sd: Path, tmp_path: Path, tree: Tree, here: Any
) -> None:
    one_line(here("convert", tiny_sd, "--target", "coreml", *options), complaint)
    assert tree(tmp_path) == {}


def test_a_target_without_its_libraries(
    tiny_sd: Path, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TARGET, "needs", ("coremltools", "a_library_nobody_has"))
    one_line(here("convert", tiny_sd, "--target", "coreml"), "needs a_library_nobody_has, which")


@pytest.mark.parametrize(
    ("component", "layers", "options", "complaint"),
    [
        ("unet", {"conv_inn": "int8"}, (), "has a layer 'conv_inn' in unet"),
        ("unett", {}, (), "has a component 'unett'"),
        ("unet", {"conv_in": "int4"}, ("--set", "ios=16"), "unet's conv_in: int4 needs iOS 18"),
        ("unet", {}, ("--precision", "fp16"), "precision fp16 and a recipe file"),
        ("unet", {}, ("--target", "litert"), "no precision 'recipe'"),
    ],
)
def test_recipes_that_do_not_fit(
    component: str,
    layers: dict[str, str],
    options: tuple[Any, ...],
    complaint: str,
    tiny_sd: Path,
    tmp_path: Path,
    here: Any,
) -> None:
    file = recipe(tmp_path / "recipe.json", component, **layers)
    target = () if "--target" in options else ("--target", "coreml")
    one_line(here("convert", tiny_sd, *target, *options, "--recipe", file), complaint)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]


def test_recipe_is_carried_out(tiny_sd: Path, tmp_path: Path) -> None:
    layers = {"mid_block__resnets__0__conv1": "int8", "mid_block__resnets__0__conv2": "fp16"}
    file = recipe(tmp_path / "recipe.json", **layers)
    done = pocketsd(
        "convert", tiny_sd, "--target", "coreml", "--components", "unet", "--recipe", file,
        "-o", tmp_path / "mixed",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    package = open_package(tmp_path / "mixed")
    assert package.manifest.precision == "recipe"
    found = Evaluator(package.file("unet.mlpackage")).compressions()
    assert found["constexpr_blockwise_shift_scale"] == 1
    assert found["constexpr_lut_to_dense"] > 200


@pytest.mark.skipif(sys.platform == "darwin", reason="there is Core ML here")
def test_core_ml_itself_needs_macos(coreml_package: Any, here: Any) -> None:
    done = here("run", coreml_package().path, "-p", "x", "--compute-units", "all", "-o", "x.png")
    one_line(done, "Core ML itself runs on macOS only")


@pytest.mark.parametrize("file", ["model.mlmodel", "weights/weight.bin"])
def test_a_package_cut_short(coreml_package: Any, file: str, tmp_path: Path, here: Any) -> None:
    """Noticed by its hash; and by its reader, where the hash has been made to fit."""
    shutil.copytree(coreml_package().path, tmp_path / "cut.pkg")
    path = tmp_path / "cut.pkg/text_encoder.mlpackage/Data/com.apple.CoreML" / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    command = ("run", tmp_path / "cut.pkg", "-p", "x", "-o", tmp_path / "x.png")
    one_line(here(*command), "damaged package")
    manifest = open_package(coreml_package().path).manifest
    (tmp_path / "cut.pkg/manifest.json").unlink()
    seal(tmp_path / "cut.pkg", manifest)
    one_line(here(*command), "text_encoder.mlpackage")
    assert not (tmp_path / "x.png").exists()


def test_verify_gates_and_names_what_overflows(
    coreml_package: Any, tiny_package: Package, tmp_path: Path
) -> None:
    quick = ("--source", tiny_package.path, "--per-picture", 1, "--pictures", 0, "--json")
    shutil.copytree(coreml_package().path, tmp_path / "good.pkg")
    done = pocketsd("verify", tmp_path / "good.pkg", *quick)
    assert done.returncode == 0, done.stderr
    assert {f["what"] for f in json.loads(done.stdout)["figures"] if f["gate"] == 40} == {
        component.name for component in coreml_package().manifest.components
    }
    plain = coreml_package(components=("vae_decoder",), norms="plain")
    manifest = dataclasses.replace(open_package(tmp_path / "good.pkg").manifest)
    for path in (tmp_path / "good.pkg/vae_decoder.mlpackage", tmp_path / "good.pkg/manifest.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(
        plain.file("vae_decoder.mlpackage"), tmp_path / "good.pkg/vae_decoder.mlpackage"
    )
    seal(tmp_path / "good.pkg", manifest)
    done = pocketsd("verify", tmp_path / "good.pkg", *quick)
    assert done.returncode == 1
    assert "(square) overflows in fp16" in done.stderr
    assert open_package(tmp_path / "good.pkg").manifest.quality["verified"] is False
