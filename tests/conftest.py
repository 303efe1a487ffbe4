"""What many tests start from: the embedded model, a package made of it, and quiet libraries."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing may ask a hub
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

ROOT = Path(__file__).resolve().parent.parent
TINY_SD = ROOT / "mobile_assets" / "tiny-sd"

# Machines differ in speed; no property here is about time.
settings.register_profile(
    "pocketsd", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("pocketsd")


@pytest.fixture(scope="session")
def tiny_sd() -> Path:
    return TINY_SD


@pytest.fixture(scope="session")
def tiny_checkpoint():  # type: ignore[no-untyped-def]
    from converter.checkpoints import open_checkpoint

    return open_checkpoint(TINY_SD)


@pytest.fixture(scope="session")
def tiny_package(tiny_checkpoint, tmp_path_factory):  # type: ignore[no-untyped-def]
    """tiny-sd for the reference engine, with the tables that tests play."""
    from converter.convert import convert
    from converter.options import Options

    out = tmp_path_factory.mktemp("packages") / "tiny-sd.torch"
    options = Options(schedulers=("dpm++-2m", "ddim", "pndm", "euler-ancestral"), steps=(4, 20))
    return convert(tiny_checkpoint, out, options)


@pytest.fixture(scope="session")
def litert_package(tiny_checkpoint, tmp_path_factory):  # type: ignore[no-untyped-def]
    """tiny-sd for LiteRT, by precision; made once, so its tests share one worker."""
    return _packages("litert", tiny_checkpoint, tmp_path_factory.mktemp("litert"))


@pytest.fixture(scope="session")
def webgpu_package(tiny_checkpoint, tmp_path_factory):  # type: ignore[no-untyped-def]
    """tiny-sd as plans of our own kernels, by precision."""
    return _packages("webgpu", tiny_checkpoint, tmp_path_factory.mktemp("webgpu"))


@pytest.fixture(scope="session")
def coreml_package(tiny_checkpoint, tmp_path_factory):  # type: ignore[no-untyped-def]
    """tiny-sd for Core ML, by precision and options; made once, so its tests share one worker."""
    from converter import graph
    from converter.convert import convert
    from converter.options import Options
    from converter.targets.coreml import writer

    folder = tmp_path_factory.mktemp("coreml")
    graphs = {}

    def export(module, inputs):  # type: ignore[no-untyped-def]
        """Tracing takes most of a small conversion; the graph is the same in every form."""
        key = type(module), *(tuple(x.shape) for x in inputs)
        graphs[key] = graphs.get(key) or graph.export(module, inputs)
        return graphs[key]

    made = {}

    def package(precision="fp16", components=(), sizes=(), recording=None, recipe=None, **settings):  # type: ignore[no-untyped-def]
        """`unet__chunks=2` is the setting unet.chunks."""
        named = {name.replace("__", "."): str(value) for name, value in settings.items()}
        options = Options(
            target="coreml",
            precision=None if recipe else precision,
            components=components,
            sizes=sizes,
            recording=recording,
            recipe=recipe,
            settings=named,
        )
        if str(options) not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(writer, "export", export)
                made[str(options)] = convert(tiny_checkpoint, folder / str(len(made)), options)
        return made[str(options)]

    return package


def _packages(target: str, checkpoint, folder: Path):  # type: ignore[no-untyped-def]
    from converter.convert import convert
    from converter.options import Options

    @cache
    def package(precision: str):  # type: ignore[no-untyped-def]
        options = Options(target=target, precision=precision)
        return convert(checkpoint, folder / precision, options)

    return package


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Everything below a folder, to show that a failure left nothing behind."""

    def read(folder: Path) -> dict[str, bytes]:
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    return read
