"""tiny-sd as plans of our own kernels, run through wgpu on whatever GPU is there."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.components import COMPONENTS, example, geometry
from converter.graph import export
from converter.targets.webgpu.lower import lower
from converter.targets.webgpu.tuning import BASELINE
from runtime_py.engines import open_engine
from runtime_py.errors import PocketSDError
from runtime_py.package import Package, open_package, seal
from runtime_py.pipeline import Request, draw, run_component
from runtime_py.quality import psnr
from runtime_py.recording import Recording, record
from runtime_py.webgpu import adapters
from runtime_py.webgpu.plan import read_plan, write_plan
from tests.support.webgpu import ADAPTER, has_f16, needs_webgpu

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]

NAMES = [spec.name for spec in COMPONENTS]
PROMPT, GUIDANCE = "a small blue square on the right", 2.0
#: dB at the worst sample. f32: rounding. f16: eleven bits of weights and of every stored tensor,
#: sums in f32. int8: eight bits of weights; the text encoder is the one with the fewest channels.
GATES = {"fp32": 100, "fp16": 60, "int8": 48}
#: Mesa keeps compiled kernels, and not apart by the width of its vectors.
NO_CACHE = {"MESA_SHADER_CACHE_DISABLE": "true"}
PICTURE_GATES = {"fp32": 60, "fp16": 45}


@pytest.fixture(scope="module")
def recording(tiny_package: Package) -> Recording:
    engine, table = open_engine(tiny_package), tiny_package.table("dpm++-2m", 20)
    assert table is not None
    return record(engine, tiny_package, table, [PROMPT], guidance=GUIDANCE, per_picture=3)


def opened(package: Package, precision: str = "fp32") -> Any:
    if precision != "fp32" and not has_f16():
        pytest.skip("this adapter has no f16")
    return open_engine(package, adapter=ADAPTER)


@pytest.mark.parametrize("precision", GATES)
def test_components_agree_with_torch(
    webgpu_package: Any, recording: Recording, precision: str
) -> None:
    package = webgpu_package(precision)
    engine = opened(package, precision)
    found = {
        name: min(
            psnr(next(iter(s.outputs.values())), run_component(engine, package, name, **s.inputs))
            for s in recording.of(name)
        )
        for name in NAMES
    }
    engine.close()
    print(precision, found)
    assert min(found.values()) >= GATES[precision], found


@pytest.mark.parametrize("precision", PICTURE_GATES)
def test_pictures_agree_with_torch(
    webgpu_package: Any, tiny_package: Package, precision: str
) -> None:
    package = webgpu_package(precision)
    engine, reference = opened(package, precision), open_engine(tiny_package)
    table = package.table("dpm++-2m", 20)
    ramp = np.linspace(0, 255, 128, dtype=np.uint8)
    image = np.stack([np.tile(ramp, (128, 1)), np.full((128, 128), 90, np.uint8)] * 2, -1)[..., :3]
    plain = Request(PROMPT, seeds=(3,), guidance_scale=GUIDANCE)
    for request in (plain, dataclasses.replace(plain, image=image, strength=0.6)):
        mine = draw(engine, package, table, request).pictures
        theirs = draw(reference, tiny_package, table, request).pictures
        assert psnr(theirs, mine) >= PICTURE_GATES[precision]
    engine.close()


@pytest.mark.parametrize("component", NAMES)
def test_the_arena_is_as_small_as_can_be(webgpu_package: Any, component: str) -> None:
    package = webgpu_package("fp16")
    plan = read_plan(package.file(package.manifest.component(component).files[0]))
    assert plan.live <= plan.arena <= 1.02 * plan.live


def test_fusion_saves_kernels(tiny_checkpoint: Any) -> None:
    spec = next(s for s in COMPONENTS if s.name == "unet")
    sizes = geometry(tiny_checkpoint, 64, 64, 1, 1)
    ins, outs = spec.inputs(sizes), spec.outputs(sizes)
    module, inputs = spec.module(tiny_checkpoint), example(ins)
    fused, _ = lower("unet", export(module, inputs), ins, outs, "f16")
    naive, _ = lower("unet", export(module, inputs), ins, outs, "f16", tuning=BASELINE)
    print(len(fused.dispatches), len(naive.dispatches))
    assert len(fused.dispatches) < 0.9 * len(naive.dispatches)


def test_every_kernel_is_timed(webgpu_package: Any, recording: Recording) -> None:
    package = webgpu_package("fp32")
    engine = opened(package)
    if "timestamp-query" not in engine.adapter.features:
        pytest.skip("this adapter keeps no time")
    (sample, *_) = recording.of("text_encoder")
    inputs = {"tokens": sample.inputs["tokens"][:1]}
    plain = engine.run("text_encoder", inputs)
    timed, timings = engine.profile("text_encoder", inputs)
    assert np.array_equal(plain["embedding"], timed["embedding"])
    assert len(timings) == len(engine.plan("text_encoder")[0].dispatches)
    assert all(t.end >= t.begin for t in timings) and sum(t.seconds for t in timings) > 0
    engine.close()


def with_plan(package: Package, folder: Path, component: str, **changes: Any) -> Package:
    """A copy of the package with one plan changed, sealed again."""
    shutil.copytree(package.path, folder / "copy")
    file = folder / "copy" / package.manifest.component(component).files[0]
    write_plan(dataclasses.replace(read_plan(file), **changes), file)
    (folder / "copy/manifest.json").unlink()
    seal(folder / "copy", dataclasses.replace(package.manifest, files={}))
    return open_package(folder / "copy")


def test_a_shader_that_does_not_compile_is_one_line(webgpu_package: Any, tmp_path: Path) -> None:
    package = webgpu_package("fp32")
    plan = read_plan(package.file("text_encoder.plan.json"))
    shaders = dict.fromkeys(plan.shaders, "fn main() { nonsense }")
    engine = opened(with_plan(package, tmp_path, "text_encoder", shaders=shaders))
    with pytest.raises(PocketSDError, match="the GPU refused text_encoder"):
        engine.load("text_encoder")


def test_weights_of_the_wrong_size_are_refused(webgpu_package: Any, tmp_path: Path) -> None:
    package = webgpu_package("fp32")
    plan = read_plan(package.file("text_encoder.plan.json"))
    name = next(name for name in plan.weights if name.endswith("table"))
    weights = {**plan.weights, name: plan.weights[name] + 256}
    engine = opened(with_plan(package, tmp_path, "text_encoder", weights=weights))
    with pytest.raises(PocketSDError, match="damaged weights"):
        engine.load("text_encoder")


class Lesser:
    """An adapter that can do less than the real one."""

    def __init__(self, gpu: Any, features: set[str], limits: dict[str, int]) -> None:
        self.info, self.features, self.limits = gpu.info, features, {**gpu.limits, **limits}


@pytest.mark.parametrize(
    ("precision", "features", "limits", "complaint"),
    [
        ("fp16", set(), {}, "needs shader-f16, which .* --precision fp32"),
        (
            "fp32",
            {"shader-f16"},
            {"max-storage-buffer-binding-size": 2**20},
            "vae_decoder needs 2 MiB in one binding.*allows 1 .max-storage.*smaller --height",
        ),
        ("fp32", set(), {"max-buffer-size": 2**20}, "needs 5 MiB in one buffer"),
    ],
)
def test_a_lesser_adapter_is_told_what_is_missing(
    webgpu_package: Any,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    features: set[str],
    limits: dict[str, int],
    complaint: str,
) -> None:
    real = adapters.choose(ADAPTER)
    lesser = dataclasses.replace(real, gpu=Lesser(real.gpu, features, limits))
    monkeypatch.setattr("runtime_py.engines.webgpu.choose", lambda wanted: lesser)
    engine = open_engine(webgpu_package(precision))
    with pytest.raises(PocketSDError, match=complaint):
        engine.load("vae_decoder")


def test_adapters_are_asked_for_by_name(webgpu_package: Any) -> None:
    there = adapters.adapters()
    assert adapters.choose(there[-1].name[:6].upper()).name == there[-1].name
    with pytest.raises(PocketSDError, match="no adapter like 'voodoo'.*there are: "):
        open_engine(webgpu_package("fp32"), adapter="voodoo")


def test_no_adapter_is_one_line(webgpu_package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "adapters", list)
    with pytest.raises(PocketSDError, match="no GPU that WebGPU can use"):
        open_engine(webgpu_package("fp32"))


def test_subgroups_of_four_do_not_share(webgpu_package: Any, recording: Recording) -> None:
    """Where neighbours are not in one subgroup the plain shaders run, and the result is right."""
    package = webgpu_package("fp32")
    (sample, *_) = recording.of("text_encoder")
    program = f"""
import sys
import numpy as np
from pathlib import Path
from runtime_py.engines import open_engine
from runtime_py.package import open_package
from runtime_py.webgpu.subgroups import shares_rows
engine = open_engine(open_package(Path({str(package.path)!r})), adapter={ADAPTER!r})
tokens = np.array({sample.inputs["tokens"][:1].tolist()}, np.int32)
result = engine.run("text_encoder", dict(tokens=tokens))["embedding"]
np.save(sys.stdout.buffer, result)
print(shares_rows(engine._device), engine.adapter.name, file=sys.stderr)
"""
    shared = {}
    for bits in ("128", "256"):  # lavapipe's subgroups are as wide as the vectors it is allowed
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            env={**os.environ, "LP_NATIVE_VECTOR_WIDTH": bits, **NO_CACHE},
        )
        assert done.returncode == 0, done.stderr
        shared[bits] = done.stderr.strip().splitlines()[-1].split()[0]
        result = np.load(io.BytesIO(done.stdout))
        assert psnr(sample.outputs["embedding"][:1], result) > GATES["fp32"]
    if "llvmpipe" in adapters.choose(ADAPTER).name:
        assert shared["128"] == b"False"
