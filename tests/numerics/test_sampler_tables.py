"""Tables against the schedulers they were read off, driven as diffusers' pipelines drive them.

The UNet is a fixed smooth function that answers roughly the noise in its input, so that a
trajectory behaves like a real one: it contracts towards a picture instead of amplifying rounding.
diffusers runs in float32, as in its pipelines, the table in float64. TOLERANCE is relative to the
largest value of the latent: float32 rounding moves these trajectories by up to 3e-6, a wrong
coefficient by 1e-2 and more.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.sampling import SCHEDULERS, build, probe, table, tables
from runtime_py.errors import PocketSDError
from runtime_py.noise import gaussian, row_stream
from runtime_py.sampler import HISTORY, SamplerTable, play

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

TOLERANCE = 1e-5
SHAPE = (1, 4, 4, 6)
NAMES = sorted(set(SCHEDULERS) - {"plms"})  # plms is pndm
PREDICTIONS = ["epsilon", "v_prediction"]

CONFIG = {
    "_class_name": "PNDMScheduler",
    "_diffusers_version": "0.6.0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
    "clip_sample": False,
}


def config(prediction: str, **more: Any) -> dict[str, Any]:
    return {**CONFIG, "prediction_type": prediction, **more}


@cache
def made(name: str, steps: int, prediction: str) -> SamplerTable:
    return table(name, steps, config(prediction))


def unet(latent: np.ndarray, timestep: float) -> np.ndarray:
    """Smooth, nonlinear, aware of time and of neighbours; of unit size for inputs of unit size."""
    neighbours = np.roll(latent, 1, axis=-1) - np.roll(latent, 1, axis=-2)
    return np.tanh(0.9 * latent + 0.1 * neighbours) + 0.2 * np.sin(timestep / 150 + latent)


def noise(k: int) -> np.ndarray:
    return gaussian(11, row_stream(k), SHAPE)


INITIAL = gaussian(11, 0, SHAPE)
PICTURE = np.sin(np.arange(INITIAL.size) / 3).reshape(SHAPE).astype(np.float32)
MASK = (np.arange(SHAPE[-1]) < 3).astype(np.float32)  # 1 where the picture is repainted


@contextmanager
def noise_of_row(scheduler: Any, k: int) -> Iterator[None]:
    """diffusers draws our noise. It wants scipy for lms: Simpson's rule stands in."""

    def quad(function: Callable[[float], Any], a: Any, b: Any, **_: Any) -> tuple[float]:
        a, b, third = float(a), float(b), 1 / 6
        return ((b - a) * third * float(function(a) + 4 * function((a + b) / 2) + function(b)),)

    module = sys.modules[type(scheduler).__module__]
    with ExitStack() as stack:
        if hasattr(module, "randn_tensor"):
            drawn = torch.from_numpy(noise(k))
            stack.enter_context(patch.object(module, "randn_tensor", lambda *_, **__: drawn))
        if type(scheduler).__name__.startswith("LMS"):
            integrate = SimpleNamespace(quad=quad)
            stack.enter_context(patch.object(module, "integrate", integrate, create=True))
        yield


def by_diffusers(
    scheduler: Any,
    steps: int,
    *,
    strength: float | None = None,
    mask: np.ndarray | None = None,
    model: Callable[[np.ndarray, float], np.ndarray] = unet,
) -> Iterator[np.ndarray]:
    """The denoising loops of the text2img, img2img and inpaint pipelines of diffusers."""
    scheduler.set_timesteps(steps)
    timesteps = scheduler.timesteps
    initial, picture = torch.from_numpy(INITIAL), torch.from_numpy(PICTURE)
    if strength is None:
        latents = initial * scheduler.init_noise_sigma
    else:
        played = min(int(steps * strength), steps)
        begin = max(steps - played, 0) * scheduler.order
        timesteps = timesteps[begin:]
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(begin)
        latents = scheduler.add_noise(picture, initial, timesteps[:1])
    for k, timestep in enumerate(timesteps):
        scaled = scheduler.scale_model_input(latents, timestep)
        output = torch.from_numpy(model(scaled.numpy(), float(timestep)))
        with noise_of_row(scheduler, k):
            latents = scheduler.step(output, timestep, latents, return_dict=False)[0]
        if mask is not None:
            known = picture
            if k < len(timesteps) - 1:
                known = scheduler.add_noise(known, initial, torch.tensor([timesteps[k + 1]]))
            hole = torch.from_numpy(mask)
            latents = (1 - hole) * known + hole * latents
        yield latents.numpy()


def by_table(
    made: SamplerTable,
    *,
    strength: float | None = None,
    mask: np.ndarray | None = None,
    model: Callable[[np.ndarray, float], np.ndarray] = unet,
) -> Iterator[np.ndarray]:
    initial, picture = INITIAL.astype(np.float64), PICTURE.astype(np.float64)
    schedule = made.from_noise() if strength is None else made.from_strength(strength)
    begun = schedule.begin(initial, None if strength is None else picture)
    for k, latent in play(schedule, begun, model, noise):
        if mask is not None:
            signal, fresh = schedule.rows[k].keep
            known = signal * picture + fresh * initial
            latent[...] = (1 - mask) * known + mask * latent
        yield latent


def error(found: Iterator[np.ndarray], wanted: Iterator[np.ndarray]) -> float:
    """The worst of all latents of a trajectory, relative to the largest value of each."""
    return max(
        float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("steps", [4, 8, 20, 50])
@pytest.mark.parametrize("name", NAMES)
def test_text_to_image(name: str, steps: int, prediction: str) -> None:
    scheduler = build(name, config(prediction))
    found = by_table(made(name, steps, prediction))
    assert error(found, by_diffusers(scheduler, steps)) < TOLERANCE


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    steps=st.integers(1, 100),
    prediction=st.sampled_from([*PREDICTIONS, "sample"]),
)
def test_any_number_of_steps(name: str, steps: int, prediction: str) -> None:
    """A table exists exactly where the scheduler runs, and plays the same."""
    scheduler = build(name, config(prediction))
    try:
        wanted = list(by_diffusers(scheduler, steps))
    except (ValueError, IndexError, NotImplementedError):
        with pytest.raises(PocketSDError, match=f"{re.escape(name)} cannot run {steps} steps"):
            table(name, steps, config(prediction))
        return
    assert error(by_table(made(name, steps, prediction)), iter(wanted)) < TOLERANCE


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_image_to_image_from_every_row(name: str, prediction: str) -> None:
    steps = 13
    scheduler = build(name, config(prediction))
    for played in range(1, steps + 1):
        strength = min((played + 0.5) / steps, 1.0)
        found = by_table(made(name, steps, prediction), strength=strength)
        assert error(found, by_diffusers(scheduler, steps, strength=strength)) < TOLERANCE


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    steps=st.sampled_from([4, 20, 50]),
    strength=st.one_of(st.floats(0.01, 1.0), st.integers(1, 100).map(lambda n: n / 100)),
)
def test_image_to_image_at_any_strength(name: str, steps: int, strength: float) -> None:
    if int(steps * strength) < 1:
        with pytest.raises(PocketSDError, match="leaves none"):
            made(name, steps, "epsilon").from_strength(strength)
        return
    found = by_table(made(name, steps, "epsilon"), strength=strength)
    wanted = by_diffusers(build(name, config("epsilon")), steps, strength=strength)
    assert error(found, wanted) < TOLERANCE


@pytest.mark.parametrize("strength", [0.6, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_inpainting(name: str, strength: float) -> None:
    """Blending a known picture in after every row.

    unipc goes on correcting a latent that was never blended, which its folded rows do not know.
    With a mask of zeros and ones that shows only where the picture is put back in any case.
    """
    scheduler = build(name, config("epsilon"))
    found = list(by_table(made(name, 20, "epsilon"), strength=strength, mask=MASK))
    wanted = list(by_diffusers(scheduler, 20, strength=strength, mask=MASK))
    known = np.abs((found[-1] - PICTURE) * (1 - MASK)).max()
    assert known == 0
    assert error(iter(found), iter(wanted)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_keep_is_add_noise_at_the_next_row(name: str) -> None:
    made_table = made(name, 8, "epsilon")
    scheduler = build(name, config("epsilon"))
    picture, fresh = torch.from_numpy(PICTURE), torch.from_numpy(INITIAL)
    for k, _ in enumerate(by_diffusers(scheduler, 8, strength=1.0)):
        row = made_table.rows[k]
        if k == len(made_table.rows) - 1:
            assert row.keep == (1.0, 0.0)
            break
        wanted = scheduler.add_noise(picture, fresh, scheduler.timesteps[k + 1 : k + 2])
        np.testing.assert_allclose(
            row.keep[0] * PICTURE + row.keep[1] * INITIAL, wanted, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    "name", ["ddim", "euler", "euler-ancestral", "dpm++-2m", "dpm++-2m-sde", "unipc", "lcm", "tcd"]
)
def test_zero_terminal_snr(name: str) -> None:
    zero = config("v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing")
    found = by_table(table(name, 10, zero))
    # Euler begins at a sigma of 4096, where the float32 of diffusers rounds its first step.
    tolerance = 1e-4 if name.startswith("euler") else TOLERANCE
    assert error(found, by_diffusers(build(name, zero), 10)) < tolerance


@pytest.mark.parametrize("name", ["pndm", "heun", "lms", "dpm++-sde"])
def test_zero_terminal_snr_is_not_silently_ignored(name: str) -> None:
    with pytest.raises(
        PocketSDError, match=f"{re.escape(name)} does not know the zero terminal SNR"
    ):
        table(name, 10, config("v_prediction", rescale_betas_zero_snr=True))


def test_a_signal_of_zero_cannot_be_divided_by() -> None:
    with pytest.raises(PocketSDError, match="not finite"):
        table(
            "ddim", 10, config("epsilon", rescale_betas_zero_snr=True, timestep_spacing="trailing")
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_short_and_exact(name: str) -> None:
    made_table = made(name, 20, "epsilon")
    text = json.dumps(made_table.to_json(), separators=(",", ":"), allow_nan=False)
    assert SamplerTable.from_json(json.loads(text)) == made_table
    assert len(text) < 12_000


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_as_many_as_evaluations(name: str) -> None:
    made_table = made(name, 8, "epsilon")
    extra = {"heun": 7, "pndm": 1}.get(name, 0)
    assert len(made_table.rows) == 8 + extra
    assert made_table.starts[0].warm_up == ()
    assert max(len(start.warm_up) for start in made_table.starts) <= HISTORY + 1


def test_only_the_stochastic_draw_noise() -> None:
    stochastic = {n for n in NAMES if any(row.noise for row in made(n, 8, "epsilon").rows)}
    assert stochastic == {"euler-ancestral", "dpm++-2m-sde", "dpm++-sde", "lcm", "tcd"}
    assert all(made(name, 8, "epsilon").rows[-1].noise == 0 for name in NAMES)


def test_an_exact_model_gives_back_its_picture() -> None:
    """If the UNet knows the noise exactly, samplers end on the picture (ddim, pndm and tcd
    end one training step short of it, where a noise of 0.03 is left)."""
    signal = np.sqrt(np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2))

    def oracle(latent: np.ndarray, timestep: float) -> np.ndarray:
        a = np.interp(timestep, np.arange(1000), signal)
        return (latent - a * PICTURE) / np.sqrt(1 - a * a)

    for name in NAMES:
        *_, last = by_table(made(name, 20, "epsilon"), model=oracle)
        left = 0.1 if name in ("ddim", "pndm", "tcd") else 1e-3
        assert np.abs(last - PICTURE).max() < left


class Brownian:
    """A stand-in for schedulers that mix in the noise of earlier steps."""

    order = 1
    init_noise_sigma = 1.0
    config = SimpleNamespace(prediction_type="epsilon")

    def set_timesteps(self, steps: int) -> None:
        self.timesteps = torch.arange(steps - 1, -1, -1)
        self.path = 0

    def scale_model_input(self, sample: Any, _: Any) -> Any:
        return sample

    def step(self, output: Any, _: Any, sample: Any, return_dict: bool) -> tuple[Any]:
        self.path = self.path + randn_tensor(output.shape)
        return (sample + output + self.path,)

    def add_noise(self, picture: Any, noise: Any, _: Any) -> Any:
        return picture + noise


class Twice(Brownian):
    def step(self, output: Any, _: Any, sample: Any, return_dict: bool) -> tuple[Any]:
        return (sample + randn_tensor(output.shape) + randn_tensor(output.shape),)


class Elephant(Brownian):
    """Forgets no output: answers with fading sums of all of them."""

    def __init__(self, *fading: float) -> None:
        self.fading = fading

    def set_timesteps(self, steps: int) -> None:
        super().set_timesteps(steps)
        self.sums = [0] * len(self.fading)

    def step(self, output: Any, _: Any, sample: Any, return_dict: bool) -> tuple[Any]:
        self.sums = [f * s + output for f, s in zip(self.fading, self.sums, strict=True)]
        return (sum(self.sums),)


def randn_tensor(shape: Any) -> Any:
    raise AssertionError("the probe provides the noise")


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [(Brownian(), "noise drawn at an earlier step"), (Twice(), "draws noise twice in one step")],
)
def test_noise_must_be_fresh(scheduler: Any, says: str) -> None:
    with pytest.raises(PocketSDError, match=says):
        probe("odd", scheduler, 6)


def test_a_long_memory_is_folded_or_refused() -> None:
    """One fading sum is the row before times a constant; two are not."""
    folded = probe("elephant", Elephant(0.5), 12)
    assert folded.rows[-1].latents == (0.5,)
    assert folded.rows[-1].outputs == (1.0,)
    with pytest.raises(PocketSDError, match="looks back more than 4"):
        probe("elephants", Elephant(0.5, 0.9), 12)


@pytest.mark.parametrize("name", ["ddim", "dpm++-2m", "unipc", "lcm"])
def test_nonlinear_schedulers_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(PocketSDError, match=f"{re.escape(name)} is not linear") as caught:
        table(name, 8, config("epsilon", thresholding=True))
    assert "\n" not in str(caught.value)


def test_clipping_is_nonlinear() -> None:
    scheduler = importlib.import_module("diffusers.schedulers.scheduling_ddim").DDIMScheduler(
        clip_sample=True
    )
    with pytest.raises(PocketSDError, match="not linear"):
        probe("ddim", scheduler, 8)


def test_pipelines_turn_clipping_off() -> None:
    """As diffusers' Stable Diffusion pipelines do with old configurations."""
    old = config("epsilon", clip_sample=True, steps_offset=0)
    assert table("ddim", 8, old) == made("ddim", 8, "epsilon")


def test_unknown_names() -> None:
    with pytest.raises(PocketSDError, match=r"unknown scheduler 'eular', known are ddim.*euler\?"):
        table("eular", 20, CONFIG)


@pytest.mark.parametrize("steps", [0, -3, 1001])
def test_steps_out_of_range(steps: int) -> None:
    with pytest.raises(PocketSDError, match="1 to 1000"):
        table("ddim", steps, CONFIG)


def test_steps_the_scheduler_refuses() -> None:
    with pytest.raises(PocketSDError, match="lcm cannot run 51 steps: ValueError") as caught:
        table("lcm", 51, CONFIG)
    assert "\n" not in str(caught.value)


def test_tables_and_the_alias() -> None:
    made_tables = tables(["plms", "pndm"], [4, 8], CONFIG)
    assert [(t.scheduler, t.steps) for t in made_tables] == [
        ("plms", 4), ("plms", 8), ("pndm", 4), ("pndm", 8),
    ]  # fmt: skip
    assert made_tables[0].rows == made_tables[2].rows


def test_names_are_listed_without_torch() -> None:
    check = "import sys, converter.sampling; assert not {'torch', 'diffusers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_integration_agrees_with_scipy() -> None:
    integrate = pytest.importorskip("scipy.integrate")
    from converter.sampling import _quad

    def cubic(x: Any) -> Any:
        return 3 * x**3 - x + 2

    assert _quad(cubic, 14.6, 9.1)[0] == pytest.approx(integrate.quad(cubic, 14.6, 9.1)[0])
