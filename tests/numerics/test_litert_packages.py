"""tiny-sd as LiteRT packages, on XNNPACK and on Google's own GPU delegate over Vulkan."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from converter.components import COMPONENTS
from converter.quantize import Form, Rule, get_recipe
from converter.targets.litert.edges import edge_layers
from converter.targets.litert.quantise import quantise, run_tflite
from converter.verify.plan import _wanted
from runtime_py.engines import open_engine
from runtime_py.errors import PocketSDError
from runtime_py.package import Package
from runtime_py.pipeline import Request, draw, in_slices, run_component
from runtime_py.quality import psnr
from runtime_py.recording import Recording, read, record, save
from runtime_py.tflite_file import read as read_tflite
from tests.support.gpu import needs_gpu, needs_litert

# One worker makes the packages once; a shader that one test compiled, the next one finds.
pytestmark = [needs_litert, pytest.mark.xdist_group("litert")]

NAMES = [spec.name for spec in COMPONENTS]
PROMPT, GUIDANCE = "a large green star on the left", 2.0
#: dB that a component must reach. fp32: rounding alone. fp16: the weights' and, on the GPU, the
#: arithmetic's eleven bits, through a network of a hundred layers.
GATES = {("fp32", "cpu"): 90, ("fp32", "gpu"): 80, ("fp16", "cpu"): 40, ("fp16", "gpu"): 40}
PICTURE_GATES = {"fp32": 45, "fp16": 35}
RUNS = [
    pytest.param(precision, where, marks=[needs_gpu] if where == "gpu" else [])
    for precision, where in GATES
]


@pytest.fixture(scope="session")
def recording(tiny_package: Package) -> Recording:
    """Three timesteps of one picture, as the reference engine saw them."""
    engine, table = open_engine(tiny_package), tiny_package.table("dpm++-2m", 20)
    assert table is not None
    return record(engine, tiny_package, table, [PROMPT], guidance=GUIDANCE, per_picture=3)


def agreement(engine: Any, package: Package, name: str, recording: Recording) -> float:
    return min(
        psnr(next(iter(s.outputs.values())), run_component(engine, package, name, **s.inputs))
        for s in recording.of(name)
    )


@pytest.mark.parametrize(("precision", "where"), RUNS)
def test_components_agree_with_torch(
    litert_package: Any, recording: Recording, precision: str, where: str
) -> None:
    package = litert_package(precision)
    engine = open_engine(package, accelerator=where)
    found = {name: agreement(engine, package, name, recording) for name in NAMES}
    print(precision, where, found)
    assert min(found.values()) >= GATES[precision, where], found
    if where == "gpu":
        for said in engine.delegation.values():  # type: ignore[attr-defined]
            # In the delegate's words: every op, in one piece.
            assert said.whole and said.refused == () and said.adapter, said
        assert len(engine.delegation) == len(NAMES)  # type: ignore[attr-defined]
    engine.close()


@pytest.mark.parametrize(
    ("recipe", "component", "least"),
    [("int8", "unet", 37), ("int8", "text_encoder", 45), ("int8-weights", "unet", 45)],
)
def test_recipes_spare_the_edges_and_agree(
    litert_package: Any, recording: Recording, tmp_path: Path, recipe: str, component: str,
    least: float,
) -> None:  # fmt: skip
    """8 bits of weights are worth about 50 dB; quantised activations cost ten of them."""
    rules = get_recipe("litert", recipe).of(component)
    package = litert_package("fp32")
    wide, file = package.file(f"{component}.tflite"), tmp_path / "quantised.tflite"
    quantise(wide, file, rules)
    assert file.stat().st_size < 0.4 * wide.stat().st_size
    types = read_tflite(file).weights
    assert types["int8"] > 0.5 * sum(types.values())
    assert ("float16" in types) == (component == "unet" or recipe == "int8")
    (file_of_edges, sample) = edge_layers(wide), recording.of(component)[0]
    assert file_of_edges.count("|") == (1 if component == "unet" else 0)
    batch = package.manifest.component(component).inputs[0].shape[0]
    assert batch is not None
    outputs = [run_tflite(file, part) for part in in_slices(sample.inputs, batch)]
    got = np.concatenate([next(iter(y.values())) for y in outputs])
    assert psnr(next(iter(sample.outputs.values())), got) > least


def test_what_is_made_for_the_cpu_stays_there(litert_package: Any) -> None:
    """The delegate refuses some integers and dies of others, so it is not asked."""
    package = litert_package("fp16")
    components = tuple(
        dataclasses.replace(c, config={**c.config, "runs_on": "CPU"})
        for c in package.manifest.components
    )
    for_cpu = dataclasses.replace(
        package, manifest=dataclasses.replace(package.manifest, components=components)
    )
    assert _wanted(package, ()) == ("cpu", "gpu") and _wanted(for_cpu, ()) == ("cpu",)
    engine = open_engine(for_cpu, accelerator="gpu")
    with pytest.raises(PocketSDError, match="unet in fp16 is for the CPU only.*--accelerator cpu"):
        engine.load("unet")


def test_layers_of_more_than_32_mib_are_quantised(tmp_path: Path) -> None:
    """SD 1.5's UNet has 59 MB ones, which the quantiser cannot take as they are."""
    import litert_torch

    torch.manual_seed(0)
    layer, x = torch.nn.Conv2d(1024, 1024, 3, padding=1).eval(), torch.randn(1, 1024, 8, 8)
    wide, file = tmp_path / "wide.tflite", tmp_path / "int8.tflite"
    litert_torch.convert(layer, (x,)).export(str(wide))
    quantise(wide, file, (Rule(Form.INT8_WEIGHTS, ("CONV_2D",)),))
    assert file.stat().st_size < 0.3 * wide.stat().st_size
    one, other = (next(iter(run_tflite(f, {"args_0": x.numpy()}).values())) for f in (wide, file))
    assert psnr(one, other) > 45


@needs_gpu
def test_the_gpu_really_ran(litert_package: Any, recording: Recording) -> None:
    """Kernels that add up in another order than XNNPACK do not agree to the last bit."""
    package = litert_package("fp32")
    (sample, *_) = recording.of("unet")
    results = []
    for where in ("cpu", "gpu"):
        engine = open_engine(package, accelerator=where)
        results.append(run_component(engine, package, "unet", **sample.inputs))
        engine.close()
    assert not np.array_equal(*results)
    assert psnr(*results) > 80


@pytest.fixture(scope="module")
def requests() -> dict[str, Request]:
    """The same picture drawn from nothing, from another picture, and in a part of it."""
    base = Request(PROMPT, seeds=(3,), guidance_scale=GUIDANCE)
    ramp = np.linspace(0, 255, 128, dtype=np.uint8)
    image = np.stack([np.tile(ramp, (128, 1)), np.full((128, 128), 90, np.uint8)] * 2, -1)[..., :3]
    mask = np.zeros((128, 128), np.uint8)
    mask[32:96, 32:96] = 255
    return {
        "txt2img": base,
        "img2img": dataclasses.replace(base, image=image, strength=0.6),
        "inpaint": dataclasses.replace(base, image=image, mask=mask, strength=1.0),
    }


@pytest.mark.parametrize(("precision", "where"), RUNS)
def test_pictures_agree_with_torch(
    litert_package: Any, tiny_package: Package, requests: Any, precision: str, where: str
) -> None:
    package = litert_package(precision)
    table = package.table("dpm++-2m", 20)
    engine, reference = open_engine(package, accelerator=where), open_engine(tiny_package)
    for name, request in requests.items():
        mine = draw(engine, package, table, request).pictures
        theirs = draw(reference, tiny_package, table, request).pictures
        assert psnr(theirs, mine) >= PICTURE_GATES[precision], name
    engine.close()


@needs_gpu
def test_what_the_delegate_refuses_is_named(tmp_path: Path, litert_package: Any) -> None:
    """GroupNorm as PyTorch has it, converted without help: the evidence for our own form."""
    import litert_torch

    plain = torch.nn.Sequential(torch.nn.Conv2d(4, 16, 3), torch.nn.GroupNorm(4, 16)).eval()
    package = copied(litert_package("fp32"), tmp_path)
    file = package.file("vae_encoder.tflite")
    litert_torch.convert(plain, (torch.randn(1, 4, 8, 8),)).export(str(file))
    engine = open_engine(package, accelerator="gpu")
    with pytest.raises(PocketSDError, match=r"takes \d+ of \d+ ops \(BROADCAST_TO"):
        engine.load("vae_encoder")
    engine.close()


@needs_gpu
def test_the_delegate_sums_in_fp32(tmp_path: Path) -> None:
    """The ground on which `verify` lets sums pass 65504: a mean over 40,960 values of about 5."""
    import litert_torch

    from runtime_py.engines.litert import run_bytes

    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim=[1, 3], keepdim=True)

    x = torch.randn(1, 4096, 4, 10, generator=torch.Generator().manual_seed(0)) * 3 + 5
    litert_torch.convert(Mean().eval(), (x,)).export(str(tmp_path / "mean.tflite"))
    content = (tmp_path / "mean.tflite").read_bytes()
    result = run_bytes(content, {"args_0": x.numpy()}, "gpu", "fp16")
    (mean,) = result.values()
    assert np.abs(mean / x.mean(dim=[1, 3], keepdim=True).numpy() - 1).max() < 2**-10


def test_ranges_name_the_layer_that_leaves_fp16(
    tiny_checkpoint: Any, tiny_package: Package, recording: Recording
) -> None:
    from converter.components import get_component
    from converter.graph import export
    from converter.verify.plan import component_ranges
    from converter.verify.ranges import measure

    assert all(r.fits for r in component_ranges(tiny_package, "unet", recording))
    module = get_component("unet").module(tiny_checkpoint)
    # Planted: the norm's input grows until its deviations pass 65504.
    with torch.no_grad():
        module.up_blocks[1].resnets[0].conv1.weight *= 1e5
    (sample, *_) = recording.of("unet")
    inputs = {name: torch.from_numpy(value) for name, value in sample.inputs.items()}
    names = ("latent", "timestep", "embedding")
    found = measure(export(module, tuple(inputs[n] for n in names)), [inputs])
    over = [r.layer for r in found if not r.fits]
    assert over[0] == "up_blocks.1.resnets.0.conv1"
    assert "up_blocks.1.resnets.0.norm2" in over
    # Only what the planted layer touches: the norm's result is back in range.
    assert not any(layer.startswith("up_blocks.1.resnets.0.conv2") for layer in over)


def test_bisecting_names_the_op_that_differs(litert_package: Any, recording: Recording) -> None:
    from runtime_py.engines.litert import run_bytes
    from runtime_py.engines.litert_bisect import Cutter, first_parting

    path = litert_package("fp32").file("vae_decoder.tflite")
    (sample, *_) = recording.of("vae_decoder")
    sound, damaged = Cutter(path), Cutter(path)
    convolutions = [i for i in range(len(sound)) if sound.describe(i)[0] == "CONV_2D"]
    victim = convolutions[len(convolutions) // 2]
    buffer = damaged.graph.tensors[damaged.graph.operators[victim].inputs[1]].buffer
    weights = damaged.model.buffers[buffer]
    values = np.asarray(weights.data).view(np.float32)
    # Not a plain factor: the norm that follows would take it out again.
    weights.data = np.where(np.arange(values.size) % 2, values, 1.5 * values).view(np.uint8)

    def runner(cutter: Cutter) -> Callable[[int], np.ndarray]:
        return lambda i: next(iter(run_bytes(cutter.cut(i), sample.inputs, "cpu").values()))

    parting = first_parting(sound, runner(sound), runner(damaged))
    assert parting is not None and parting.index == victim and parting.op == "CONV_2D"
    assert first_parting(sound, runner(sound), runner(sound)) is None


def test_recording_survives_a_file(tmp_path: Path, recording: Recording) -> None:
    save(recording, tmp_path / "r.npz")
    again = read(tmp_path / "r.npz")
    for name in NAMES:
        for one, other in zip(recording.of(name), again.of(name), strict=True):
            for mine, theirs in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
                assert mine.keys() == theirs.keys()
                assert all(np.array_equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x93NUMPY"])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.npz").write_bytes(content)
    with pytest.raises(PocketSDError, match=r"r\.npz"):
        read(tmp_path / "r.npz")


def test_a_damaged_file_is_one_line(litert_package: Any, tmp_path: Path) -> None:
    package = copied(litert_package("fp32"), tmp_path)
    file = package.file("text_encoder.tflite")
    content = file.read_bytes()
    for damage in (content[: len(content) // 2], b"\0" * 64 + content[64:], b""):
        file.write_bytes(damage)
        engine = open_engine(package)
        with pytest.raises(PocketSDError, match=r"text_encoder\.tflite"):
            engine.load("text_encoder")
        engine.close()


def copied(package: Package, folder: Path) -> Package:
    shutil.copytree(package.path, folder / "copy")
    return Package(folder / "copy", package.manifest)
