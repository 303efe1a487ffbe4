"""The whole loop against diffusers' pipelines: same model, same noise, same picture.

At least 50 dB on 8-bit pictures: rounding to 8 bits alone allows 59 dB, twenty steps of fp32 in
another order of operations leave the rest.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from runtime_py.engines import open_engine
from runtime_py.noise import INITIAL, gaussian, row_stream
from runtime_py.package import Package
from runtime_py.pipeline import Done, Request, Stage, Step, draw, generate
from runtime_py.quality import psnr

BOUND = 50.0
PROMPT, NEGATIVE = "a red circle on a white background", "blue"


@pytest.fixture(scope="module")
def engine(tiny_package: Package):  # type: ignore[no-untyped-def]
    opened = open_engine(tiny_package)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def theirs(tiny_sd):  # type: ignore[no-untyped-def]
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(tiny_sd, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def scheduler_of(pipeline: Any, name: str) -> Any:
    from converter import sampling

    return sampling.build(name, pipeline.scheduler.config)


def as_kind(theirs: Any, kind: str, name: str) -> Any:
    """Another diffusers pipeline around the same model."""
    import diffusers

    made = getattr(diffusers, kind)(
        **{**theirs.components, "scheduler": scheduler_of(theirs, name)}
    )
    made.set_progress_bar_config(disable=True)
    return made


def our_noise(stack: ExitStack, seed: int) -> None:
    """Feed diffusers our noise: first draw the initial latent, then one row after the other."""
    drawn = iter([INITIAL, *(row_stream(k) for k in range(1000))])

    def randn(shape: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.from_numpy(gaussian(seed, next(drawn), tuple(shape)[1:]))[None]

    for place in (
        "pipelines.stable_diffusion.pipeline_stable_diffusion",
        "pipelines.stable_diffusion.pipeline_stable_diffusion_img2img",
        "pipelines.stable_diffusion.pipeline_stable_diffusion_inpaint",
        "schedulers.scheduling_euler_ancestral_discrete",
    ):
        stack.enter_context(patch(f"diffusers.{place}.randn_tensor", randn))
    # Encoding is by the mean of the distribution here, see converter.models.vae.
    stack.enter_context(
        patch(
            "diffusers.models.autoencoders.vae.DiagonalGaussianDistribution.sample",
            lambda self, generator=None: self.mean,
        )
    )


@pytest.mark.parametrize("scheduler", ["dpm++-2m", "pndm", "ddim", "euler-ancestral"])
def test_text_to_image(tiny_package: Package, engine: Any, theirs: Any, scheduler: str) -> None:
    pipeline = as_kind(theirs, "StableDiffusionPipeline", scheduler)
    pipeline.safety_checker = None
    with ExitStack() as stack:
        our_noise(stack, seed=5)
        wanted = pipeline(
            PROMPT,
            negative_prompt=NEGATIVE,
            num_inference_steps=20,
            guidance_scale=6.0,
            output_type="np",
        ).images[0]
    table = tiny_package.table(scheduler, 20)
    assert table is not None
    request = Request(PROMPT, NEGATIVE, seeds=(5,), guidance_scale=6.0)
    got = draw(engine, tiny_package, table, request).pictures[0]
    assert psnr(wanted * 255, got) >= BOUND


def test_without_guidance_asks_once(tiny_package: Package, engine: Any, theirs: Any) -> None:
    pipeline = as_kind(theirs, "StableDiffusionPipeline", "ddim")
    with ExitStack() as stack:
        our_noise(stack, seed=1)
        wanted = pipeline(
            PROMPT, num_inference_steps=4, guidance_scale=1.0, output_type="np"
        ).images[0]
    table = tiny_package.table("ddim", 4)
    assert table is not None
    with patch.object(engine, "run", wraps=engine.run) as run:
        request = Request(PROMPT, seeds=(1,), guidance_scale=1.0)
        got = draw(engine, tiny_package, table, request).pictures[0]
    assert psnr(wanted * 255, got) >= BOUND
    batches = [len(c.args[1]["latent"]) for c in run.call_args_list if c.args[0] == "unet"]
    assert batches == [1] * 4


def test_noise_prediction(tiny_package: Package, engine: Any, theirs: Any) -> None:
    """SD 1.x predicts noise, the embedded model velocity: read its answers as noise in both loops.

    No picture comes of it, so the latents are compared.
    """
    from converter import sampling

    config = {**tiny_package.manifest.schedule, "prediction_type": "epsilon"}
    pipeline = as_kind(theirs, "StableDiffusionPipeline", "ddim")
    pipeline.scheduler = sampling.build("ddim", config)
    with ExitStack() as stack:
        our_noise(stack, seed=2)
        wanted = pipeline(PROMPT, num_inference_steps=8, output_type="latent").images[0]
    table = sampling.table("ddim", 8, config)
    assert table.prediction == "epsilon"
    got = draw(engine, tiny_package, table, Request(PROMPT, seeds=(2,))).latents[0]
    assert psnr(wanted.numpy(), got) >= 80  # fp32 both; nothing is rounded to 8 bits here


def picture(size: int = 128) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A green square on a white ground."""
    pixels = np.full((size, size, 3), 255, np.uint8)
    pixels[32:96, 32:96] = (30, 160, 60)
    return pixels


@pytest.mark.parametrize("scheduler", ["dpm++-2m", "euler-ancestral"])
def test_image_to_image(tiny_package: Package, engine: Any, theirs: Any, scheduler: str) -> None:
    from PIL import Image

    pipeline = as_kind(theirs, "StableDiffusionImg2ImgPipeline", scheduler)
    with ExitStack() as stack:
        our_noise(stack, seed=3)
        wanted = pipeline(
            PROMPT, image=Image.fromarray(picture()), strength=0.6, num_inference_steps=20,
            guidance_scale=5.0, output_type="np",
        ).images[0]  # fmt: skip
    table = tiny_package.table(scheduler, 20)
    assert table is not None
    request = Request(PROMPT, seeds=(3,), guidance_scale=5.0, image=picture(), strength=0.6)
    assert psnr(wanted * 255, draw(engine, tiny_package, table, request).pictures[0]) >= BOUND


@pytest.mark.parametrize("strength", [1.0, 0.7])
def test_inpainting(tiny_package: Package, engine: Any, theirs: Any, strength: float) -> None:
    from PIL import Image

    mask = np.zeros((128, 128), np.uint8)
    mask[:, 64:] = 255
    pipeline = as_kind(theirs, "StableDiffusionInpaintPipeline", "ddim")
    with ExitStack() as stack:
        our_noise(stack, seed=3)
        wanted = pipeline(
            PROMPT, image=Image.fromarray(picture()), mask_image=Image.fromarray(mask),
            height=128, width=128, strength=strength, num_inference_steps=20,
            guidance_scale=5.0, output_type="np",
        ).images[0]  # fmt: skip
    table = tiny_package.table("ddim", 20)
    assert table is not None
    request = Request(
        PROMPT, seeds=(3,), guidance_scale=5.0, image=picture(), mask=mask, strength=strength
    )
    got = draw(engine, tiny_package, table, request).pictures[0]
    assert psnr(wanted[:, 64:] * 255, got[:, 64:]) >= BOUND
    assert np.array_equal(got[:, :64], picture()[:, :64])  # the known half, to the last bit


def test_a_batch_of_seeds_is_each_seed_alone(tiny_package: Package, engine: Any) -> None:
    table = tiny_package.table("ddim", 4)
    assert table is not None
    both = draw(engine, tiny_package, table, Request(PROMPT, seeds=(7, 8)))
    for index, seed in enumerate((7, 8)):
        alone = draw(engine, tiny_package, table, Request(PROMPT, seeds=(seed,)))
        # Another batch may be summed in another order: equal up to rounding, not bit for bit.
        assert psnr(alone.latents[0], both.latents[index]) >= 90
    assert psnr(both.latents[0], both.latents[1]) < 20


def test_events_and_cancelling(tiny_package: Package, engine: Any) -> None:
    table = tiny_package.table("ddim", 4)
    assert table is not None
    events = list(generate(engine, tiny_package, table, Request(PROMPT)))
    assert [type(e) for e in events] == [Stage, *[Step] * 4, Stage, Done]
    assert [e.index for e in events if isinstance(e, Step)] == [0, 1, 2, 3]
    with patch.object(engine, "run", wraps=engine.run) as run:
        running = generate(engine, tiny_package, table, Request(PROMPT))
        for event in running:
            if isinstance(event, Step):
                break
        running.close()  # what a user's cancel does
        assert [c.args[0] for c in run.call_args_list] == ["text_encoder", "unet"]


def test_low_memory_holds_one_component_at_a_time(tiny_package: Package) -> None:
    engine = open_engine(tiny_package)
    table = tiny_package.table("ddim", 4)
    assert table is not None
    request = Request(PROMPT, image=picture(), strength=0.5, low_memory=True)
    held = [
        set(engine._modules)  # type: ignore[attr-defined]
        for _ in generate(engine, tiny_package, table, request)
    ]
    assert max(map(len, held)) == 1
