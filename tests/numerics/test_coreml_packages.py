"""tiny-sd as Core ML packages: what is on disk, evaluated, against torch."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("coremltools")

from converter.components import COMPONENTS
from converter.ops import get_op
from converter.targets.torch.engine import module_of
from runtime_py.coreml.evaluator import Evaluator
from runtime_py.coreml.weights import decoded_weights
from runtime_py.engines import open_engine
from runtime_py.errors import PocketSDError
from runtime_py.package import Package, open_package
from runtime_py.pipeline import Request, draw, run_component
from runtime_py.quality import psnr
from runtime_py.recording import Recording, Sample, record
from tests.conftest import TINY_SD

pytestmark = pytest.mark.xdist_group("coreml")

NAMES = tuple(spec.name for spec in COMPONENTS)
TWO = ("text_encoder", "unet")
PROMPT, GUIDANCE = "a small blue square on the right", 2.0
TIMESTEPS = (1.0, 500.0, 981.0)
#: Layers with attention in the UNet, and attentions in each.
TRANSFORMERS, ATTENTIONS = 16, 2
HEADS = 2


@pytest.fixture(scope="session")
def samples(tiny_package: Package) -> Recording:
    """Recorded latents; the denoiser's at the beginning, middle and end of the schedule."""
    engine, table = open_engine(tiny_package), tiny_package.table("dpm++-2m", 20)
    assert table is not None
    kept = record(engine, tiny_package, table, [PROMPT], guidance=GUIDANCE, per_picture=3)
    unet = []
    for sample, t in zip(kept.of("unet"), TIMESTEPS, strict=True):
        inputs = {**sample.inputs, "timestep": np.full_like(sample.inputs["timestep"], t)}
        unet.append(Sample(inputs, engine.run("unet", inputs)))
    return Recording({**kept.samples, "unet": tuple(unet)})


def worst(package: Package, samples: Recording, component: str, **options: Any) -> float:
    engine = open_engine(package, **options)
    return min(
        psnr(next(iter(s.outputs.values())), run_component(engine, package, component, **s.inputs))
        for s in samples.of(component)
    )


#: fp32 differs by rounding alone. fp16: eleven bits of weights and of every tensor, sums in fp32.
@pytest.mark.parametrize(("precision", "least"), [("fp32", 100), ("fp16", 60)])
@pytest.mark.parametrize("name", NAMES)
def test_components_agree_with_torch(
    coreml_package: Any, samples: Recording, precision: str, least: float, name: str
) -> None:
    assert worst(coreml_package(precision), samples, name) >= least


@pytest.mark.parametrize(
    "settings",
    [
        {"ios": 17, "attention": "original"},
        {"ios": 16, "attention": "split-einsum"},
        {"ios": 16, "attention": "split-einsum-v2"},
        {"islands": r"mid_block,conv_out,\.attn2\."},
    ],
    ids=str,
)
def test_every_form_agrees_with_torch(
    coreml_package: Any, samples: Recording, settings: dict[str, Any]
) -> None:
    package = coreml_package(components=TWO, **settings)
    for name in TWO:
        assert worst(package, samples, name) >= 55


def test_norms_do_not_overflow_unless_asked_to(coreml_package: Any, samples: Recording) -> None:
    """The decoder's activations reach 700: their squares do not fit into fp16."""
    vae = ("vae_decoder",)
    plain = coreml_package(components=vae, norms="plain")
    engine = open_engine(plain)
    run_component(engine, plain, "vae_decoder", **samples.of("vae_decoder")[0].inputs)
    assert {seen.type for seen in engine.overflow["vae_decoder"].values()} == {"square"}
    measured = {"norms": "measured", "recording": samples}
    for settings in ({"norms": "fp32"}, measured):
        assert worst(coreml_package(components=vae, **settings), samples, "vae_decoder") >= 60
    # Only where it is needed: the casts to fp32 of an island, and back.
    casts = [
        histogram(coreml_package(components=vae, **s), "vae_decoder")["cast"]
        for s in ({"norms": "scaled"}, measured, {"norms": "fp32"})
    ]
    assert casts[0] == 2 < casts[1] < casts[2]


@pytest.mark.parametrize(
    ("precision", "ios", "name"),
    [
        ("int8", 16, "text_encoder"),
        ("int8", 18, "text_encoder"),
        ("palette6", 16, "unet"),
        ("palette6", 18, "text_encoder"),
        ("palette4-g16", 18, "text_encoder"),
        ("palette3", 18, "text_encoder"),
        ("int4", 18, "unet"),
    ],
)
def test_compressed_weights_are_what_they_decode_to(
    coreml_package: Any,
    tiny_package: Package,
    samples: Recording,
    precision: str,
    ios: int,
    name: str,
) -> None:
    package = coreml_package(precision, (name,), ios=ios)
    (link,) = package.manifest.component(name).config["chain"]
    path = package.file(link["file"])
    assert sum(Evaluator(path).compressions().values()) > 15
    module = module_of(tiny_package, name)
    assert _load(module, decoded_weights(path)) > 15
    sample = samples.of(name)[0]
    order = [s.name for s in tiny_package.manifest.component(name).inputs]
    with torch.no_grad():
        expected = module(*(torch.from_numpy(sample.inputs[n]) for n in order)).numpy()
    result = run_component(open_engine(package), package, name, **sample.inputs)
    assert psnr(expected, result) >= 55
    # The distance to what was not compressed: else this would compare fp16 with fp16.
    assert psnr(next(iter(sample.outputs.values())), expected) < 70


def _load(module: torch.nn.Module, decoded: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """Put shipped weights into a module; returns how many differ from fp16 of its own."""
    changed = 0
    for name, parameter in module.named_parameters():
        own = parameter.detach().half().float()
        shipped = decoded.get(re.sub(r"\W", "_", name))
        if shipped is not None:
            read = torch.from_numpy(shipped.astype(np.float32)).reshape(parameter.shape)
            changed += not torch.equal(read, own)
            own = read
        parameter.data = own
    return changed


def test_chunks_equal_the_whole(coreml_package: Any, samples: Recording) -> None:
    whole = coreml_package(components=TWO, ios=16, attention="split-einsum")
    parts = coreml_package(components=("unet",), ios=16, attention="split-einsum", unet__chunks=3)
    chain = parts.manifest.component("unet").config["chain"]
    assert [link["file"] for link in chain] == [f"unet-{i}.mlpackage" for i in range(3)]
    sizes = [
        parts.manifest.files[f"{link['file']}/Data/com.apple.CoreML/weights/weight.bin"].bytes
        for link in chain
    ]
    assert max(sizes) < 0.45 * sum(sizes)
    inputs = samples.of("unet")[1].inputs
    one, several = (run_component(open_engine(p), p, "unet", **inputs) for p in (whole, parts))
    np.testing.assert_array_equal(one, several)


def test_several_sizes_share_one_set_of_weights(coreml_package: Any, tiny_package: Package) -> None:
    single = coreml_package()
    package = coreml_package(sizes=((64, 128),))
    assert package.sizes == ("128x128", "128x64")
    blob = "unet.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    assert package.manifest.files[blob].bytes < 1.01 * single.manifest.files[blob].bytes
    table, engine, reference = (
        package.table("dpm++-2m", 20),
        *map(open_engine, (package, tiny_package)),
    )
    few = dataclasses.replace(table, rows=table.rows[:2], steps=2, starts=table.starts[:2])
    request = Request(PROMPT, seeds=(1,), guidance_scale=GUIDANCE, height=64, width=128)
    mine, theirs = (
        draw(e, p, few, request).latents for e, p in ((engine, package), (reference, tiny_package))
    )
    assert psnr(theirs, mine) >= 50
    with pytest.raises(PocketSDError, match="draws 128x128 and 128x64 pictures only"):
        draw(engine, package, few, dataclasses.replace(request, height=128, width=64))


def test_picture_agrees_with_torch(coreml_package: Any, tiny_package: Package) -> None:
    package = coreml_package()
    table = package.table("dpm++-2m", 20)
    request = Request(PROMPT, seeds=(3,), guidance_scale=GUIDANCE)
    mine = draw(open_engine(package), package, table, request).pictures
    theirs = draw(open_engine(tiny_package), tiny_package, table, request).pictures
    assert psnr(theirs, mine) >= 40


def histogram(package: Package, component: str) -> Counter[str]:
    return Evaluator(package.file(f"{component}.mlpackage")).histogram()


def test_one_op_for_each_attention_and_gelu(coreml_package: Any) -> None:
    found = histogram(coreml_package(), "unet")
    assert found["scaled_dot_product_attention"] == TRANSFORMERS * ATTENTIONS
    assert found["gelu"] == TRANSFORMERS and found["layer_norm"] == 3 * TRANSFORMERS
    assert not found["softmax"] and not found["matmul"] and not found["einsum"]
    text = histogram(coreml_package(), "text_encoder")
    assert text["scaled_dot_product_attention"] == text["gelu"] == 4


@pytest.mark.parametrize("attention", ["split-einsum", "split-einsum-v2"])
def test_the_neural_engines_form_transposes_only_keys(coreml_package: Any, attention: str) -> None:
    package = coreml_package(components=TWO, ios=16, attention=attention)
    found = histogram(package, "unet")
    attentions = TRANSFORMERS * ATTENTIONS
    assert found["einsum"] == attentions * HEADS * 2 and found["softmax"] == attentions * HEADS
    assert found["transpose"] == attentions + 1  # each one's keys, and the text as it comes in
    # Two around each GroupNorm, and two where a picture becomes tokens and back.
    norms = found["batch_norm"] - 3 * TRANSFORMERS
    assert found["reshape"] == 2 * norms + 2 * TRANSFORMERS
    assert found["gelu"] == TRANSFORMERS
    assert not found["matmul"] and not found["linear"] and not found["layer_norm"]


def test_conversions_repeat_to_the_byte(coreml_package: Any, tmp_path: Path) -> None:
    """In another process, where sets and dictionaries of strings have another order."""
    first = coreml_package()
    command = [sys.executable, "-c", "from runtime_py.cli import main; main()", "convert"]
    command += [TINY_SD, "--target", "coreml", "--components", "text_encoder,unet"]
    command += ["-o", tmp_path / "again"]
    subprocess.run(command, check=True, capture_output=True)
    again = open_package(tmp_path / "again").manifest.files
    assert {name: first.manifest.files[name] for name in again} == again


def test_coremltools_own_frontend_and_optimiser_are_not_used(
    tiny_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have faults: casts that numpy 2.4 refuses, aliases unknown, scales that corrupt."""
    import coremltools.converters.mil.frontend.torch.load as frontend
    import coremltools.optimize.coreml as optimiser

    from converter.convert import convert
    from converter.options import Options

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("not this way")

    monkeypatch.setattr(frontend, "load", refuse)
    for name in ("palettize_weights", "linear_quantize_weights", "linear_quantize_activations"):
        monkeypatch.setattr(optimiser, name, refuse)
    options = Options(target="coreml", precision="palette4", components=("text_encoder",))
    convert(tiny_checkpoint, tmp_path / "out", options)


def test_sinusoid_stays_in_fp32(coreml_package: Any) -> None:
    function = Evaluator(coreml_package().file("unet.mlpackage")).function
    waves = [op for op in function.operations if op.type in ("sin", "cos")]
    assert len(waves) == 2
    assert all(str(kind.dtype) == "float32" for op in waves for kind in op.outputs.values())


def test_integer_activations_are_what_they_say(
    coreml_package: Any, tiny_package: Package, samples: Recording
) -> None:
    """The UNet with shipped weights, and with what enters its layers rounded by PyTorch instead."""
    package = coreml_package("w8a8", ("unet",), recording=samples)
    evaluator = Evaluator(package.file("unet.mlpackage"), arithmetic="fp32")
    found = evaluator.function
    steps = {
        op.name.removesuffix("_quantize"): [
            float(found.constants[op.inputs[key][0]].value) for key in ("scale", "zero_point")
        ]
        for op in found.operations
        if op.type == "quantize"
    }
    assert len(steps) > 200
    module = module_of(tiny_package, "unet")
    assert _load(module, decoded_weights(package.file("unet.mlpackage"))) > 200
    names = {p.data_ptr(): re.sub(r"\W", "_", n) for n, p in module.named_parameters()}

    class Rounded(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            op = get_op(str(func))
            if op is not None and op.name in ("conv2d", "linear", "geglu"):
                layer = names[args[1].data_ptr()].removesuffix("_weight")
                if layer in steps:
                    scale, zero = steps.pop(layer)
                    fake = torch.fake_quantize_per_tensor_affine(
                        args[0], scale, int(zero), -128, 127
                    )
                    args = (fake, *args[1:])
            return func(*args, **(kwargs or {}))

    sample = samples.of("unet")[1]
    inputs = [torch.from_numpy(sample.inputs[n]) for n in ("latent", "timestep", "embedding")]
    with torch.no_grad(), Rounded():
        expected = module(*inputs).numpy()
    assert not steps  # every layer that says so was rounded
    (result,) = evaluator.run(dict(sample.inputs)).values()
    # Values that lie half-way between two integers fall to either side.
    assert psnr(expected, result) >= 50
    assert 30 <= psnr(sample.outputs["noise"], result) < 60
