"""What `torch.export` sees: the fused ops whole, and nothing that they were fused from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from converter.checkpoints import Checkpoint
from converter.components import COMPONENTS, ComponentSpec, Geometry, example, geometry
from converter.graph import export, fused_counts, op_counts
from converter.models import TextEncoderConfig, UNetConfig, VaeConfig, build
from runtime_py.quality import psnr

FULL = {"text_encoder": TextEncoderConfig(), "unet": UNetConfig(), "vae": VaeConfig()}
SD15 = Geometry(512, 512, 8, 4, 77, 768, prompts=1, samples=2, pictures=1)

# Counted off the architecture: 22 residual blocks and 16 transformers make the UNet, and so on.
EXPECTED = {
    "text_encoder": {
        "attention": 12, "layer_norm": 25, "linear": 12 * 6,
        "token_embedding": 1,
    },
    "unet": {
        "attention": 16 * 2,
        "conv2d": 22 * 2 + 14 + 16 * 2 + 3 + 3 + 2,  # blocks, shortcuts, transformers, sizes, ends
        "geglu": 16,
        "group_norm_silu": 22 * 2 + 16 + 1,
        "layer_norm": 16 * 3,
        "linear": 22 + 16 * (2 * 4 + 1) + 2,
        "timestep_embedding": 1,
        "join": 3 * 4,  # one a residual block on the way out
        "over_picture": 22,
        "to_picture": 16,
        "to_tokens": 16,
    },
    "vae_decoder": {
        "attention": 1, "conv2d": 14 * 2 + 2 + 3 + 3, "group_norm_silu": 14 * 2 + 2, "linear": 4,
        "to_picture": 1, "to_tokens": 1,
    },
    "vae_encoder": {
        "attention": 1, "conv2d": 10 * 2 + 2 + 3 + 3, "group_norm_silu": 10 * 2 + 2, "linear": 4,
        "to_picture": 1, "to_tokens": 1,
    },
}  # fmt: skip

# What may stand between fused ops: adding, scaling, and taking half of a weight.
PLUMBING = {"aten.add.Tensor", "aten.mul.Tensor", "aten.slice.Tensor", "aten.type_as.default"}


@pytest.mark.parametrize("spec", COMPONENTS, ids=lambda spec: spec.name)
def test_full_size_graphs(spec: ComponentSpec) -> None:
    """On the meta device: shapes and structure of SD 1.5, no arithmetic."""
    with torch.device("meta"):
        module = build(spec.name, FULL[spec.part]).eval()
    inputs = tuple(tensor.to("meta") for tensor in example(spec.inputs(SD15)))
    program = export(module, inputs)
    assert fused_counts(program) == EXPECTED[spec.name]
    strangers = Counter(
        {k: v for k, v in op_counts(program).items() if not k.startswith("pocketsd.")}
    )
    assert set(strangers) <= PLUMBING, strangers
    shape = next(iter(program.graph.find_nodes(op="output"))).args[0][0].meta["val"].shape
    assert tuple(shape) == spec.outputs(SD15)[0].shape


@pytest.mark.parametrize("spec", COMPONENTS, ids=lambda spec: spec.name)
def test_exported_tiny_sd_computes_the_same(
    spec: ComponentSpec, tiny_checkpoint: Checkpoint
) -> None:
    size = tiny_checkpoint.unet.sample_size * tiny_checkpoint.vae.shrink
    inputs = example(spec.inputs(geometry(tiny_checkpoint, size, size, samples=2, fixed=1)))
    module = spec.module(tiny_checkpoint)
    with torch.inference_mode():
        wanted = module(*inputs)
        assert psnr(wanted, export(module, inputs).module()(*inputs)) >= 120


@pytest.mark.slow
def test_full_size_checkpoint_becomes_a_package_and_draws(tmp_path: Path) -> None:
    """SD 1.5's real widths with random weights, through the real command, at 512x512."""
    import resource

    from PIL import Image

    from tests.e2e.test_cli import pocketsd
    from tests.support.full_size import write_full_size

    folder = write_full_size(tmp_path / "sd15")
    out = tmp_path / "sd15.pkg"
    done = pocketsd("convert", folder, "-o", out, "--precision", "fp16", "--steps", 2)
    assert done.returncode == 0, done.stderr
    picture = tmp_path / "picture.png"
    done = pocketsd("run", out, "-p", "a red circle", "--low-memory", "-o", picture)
    assert done.returncode == 0, done.stderr
    assert Image.open(picture).size == (512, 512)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"peak memory of the larger command: {peak:.1f} GB")
    assert peak < 12
