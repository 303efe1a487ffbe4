"""Sampler tables, read off diffusers' own schedulers.

A scheduler is probed, not re-implemented. It is driven as the pipelines of diffusers drive it, but
with unit vectors: sample k is the k-th unit vector s_k, the UNet's k-th answer is e_k, the k-th
noise it draws is n_k. What `step` returns is then the row itself, one coefficient per vector. The
finished rows are played against the scheduler on random numbers, large ones, so that a scheduler
which clips or otherwise is not linear is refused rather than approximated.

A new sampler is one line in `SCHEDULERS`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from runtime_py.errors import PocketSDError
from runtime_py.sampler import HISTORY, Row, SamplerTable, Start

MAX_STEPS = 1000


@dataclass(frozen=True)
class SchedulerRecipe:
    """A class of diffusers, and what is set on top of the checkpoint's own configuration."""

    scheduler: str  # module.Class within diffusers.schedulers
    extra: Mapping[str, Any] = field(default_factory=dict)


_PNDM = SchedulerRecipe("scheduling_pndm.PNDMScheduler", {"skip_prk_steps": True})
_MULTISTEP = "scheduling_dpmsolver_multistep.DPMSolverMultistepScheduler"
_SINGLESTEP = "scheduling_dpmsolver_singlestep.DPMSolverSinglestepScheduler"
_SDE = "sde-dpmsolver++"

SCHEDULERS: dict[str, SchedulerRecipe] = {
    "ddim": SchedulerRecipe("scheduling_ddim.DDIMScheduler"),
    "pndm": _PNDM,
    "plms": _PNDM,
    "euler": SchedulerRecipe("scheduling_euler_discrete.EulerDiscreteScheduler"),
    "euler-ancestral": SchedulerRecipe(
        "scheduling_euler_ancestral_discrete.EulerAncestralDiscreteScheduler"
    ),
    "heun": SchedulerRecipe("scheduling_heun_discrete.HeunDiscreteScheduler"),
    "lms": SchedulerRecipe("scheduling_lms_discrete.LMSDiscreteScheduler"),
    "dpm++-2m": SchedulerRecipe(_MULTISTEP),
    "dpm++-2m-karras": SchedulerRecipe(_MULTISTEP, {"use_karras_sigmas": True}),
    "dpm++-2m-sde": SchedulerRecipe(_MULTISTEP, {"algorithm_type": _SDE}),
    "dpm++-sde": SchedulerRecipe(_SINGLESTEP, {"algorithm_type": _SDE, "lower_order_final": True}),
    "unipc": SchedulerRecipe("scheduling_unipc_multistep.UniPCMultistepScheduler"),
    "lcm": SchedulerRecipe("scheduling_lcm.LCMScheduler"),
    "tcd": SchedulerRecipe("scheduling_tcd.TCDScheduler"),
}

# What the Stable Diffusion pipelines of diffusers impose on any scheduler they are given.
_IMPOSED = {"steps_offset": 1, "clip_sample": False}


def tables(
    names: Iterable[str], steps: Iterable[int], scheduler_config: Mapping[str, Any]
) -> tuple[SamplerTable, ...]:
    """Every named sampler at every number of steps."""
    counts = tuple(steps)
    return tuple(table(name, count, scheduler_config) for name in names for count in counts)


def table(name: str, steps: int, scheduler_config: Mapping[str, Any]) -> SamplerTable:
    """One sampler at one number of steps; `scheduler_config` is the checkpoint's own JSON."""
    if not 1 <= steps <= MAX_STEPS:
        raise PocketSDError(f"{steps} steps asked for, 1 to {MAX_STEPS} are possible")
    try:
        return probe(name, build(name, scheduler_config), steps)
    except PocketSDError:
        raise
    except Exception as error:  # diffusers raises anything, from IndexError to RuntimeError
        reason = f"{type(error).__name__}: {error}"
        raise PocketSDError(f"{name} cannot run {steps} steps: {reason}") from error


def recipe_of(name: str) -> SchedulerRecipe:
    if name not in SCHEDULERS:
        near = difflib.get_close_matches(name, SCHEDULERS, 1)
        raise PocketSDError(
            f"unknown scheduler {name!r}, known are {', '.join(SCHEDULERS)}",
            mend=f"did you mean {near[0]}?" if near else None,
        )
    return SCHEDULERS[name]


def build(name: str, scheduler_config: Mapping[str, Any]) -> Any:
    """The diffusers scheduler of that name, on the checkpoint's noise schedule."""
    recipe = recipe_of(name)
    module, _, class_name = recipe.scheduler.partition(".")
    cls = getattr(importlib.import_module(f"diffusers.schedulers.{module}"), class_name)
    known = inspect.signature(cls.__init__).parameters
    if scheduler_config.get("rescale_betas_zero_snr") and "rescale_betas_zero_snr" not in known:
        raise PocketSDError(
            f"{name} does not know the zero terminal SNR of this checkpoint",
            mend="use ddim, euler or dpm++-2m",
        )
    config = {**scheduler_config, **_IMPOSED, **recipe.extra}
    return cls.from_config({key: value for key, value in config.items() if key in known})


def probe(name: str, scheduler: Any, steps: int) -> SamplerTable:
    """The table of a scheduler, or an error if it is not linear."""
    rows = tuple(_rows(name, scheduler, steps, begin=0))
    _verify(name, scheduler, steps, 0, rows)
    starts = tuple(_start(name, scheduler, steps, skipped, rows) for skipped in range(steps))
    return SamplerTable(
        scheduler=name,
        steps=steps,
        prediction=str(scheduler.config.prediction_type),
        rows=rows,
        initial_noise=_rounded(scheduler.init_noise_sigma),
        starts=starts,
    )


def _start(name: str, scheduler: Any, steps: int, skipped: int, rows: tuple[Row, ...]) -> Start:
    """Begin at a later step, and keep only the rows that differ from the table's.

    Schedulers remember at most HISTORY evaluations, so once HISTORY rows running have been the
    table's own, the rest are.
    """
    begin = skipped * scheduler.order
    _rewind(scheduler, steps, begin)
    signal, noise = _noising(scheduler, scheduler.timesteps[begin : begin + 1])
    warm_up: list[Row] = []
    same = 0
    for row in _rows(name, scheduler, steps, begin):
        same = same + 1 if _alike(row, rows[begin + len(warm_up)]) else 0
        warm_up.append(row)
        if same == HISTORY:
            break
    if skipped:  # the rows from the very beginning have been verified already
        _verify(name, scheduler, steps, begin, warm_up)
    return Start(begin, signal, noise, tuple(warm_up[: len(warm_up) - same]))


def _rows(name: str, scheduler: Any, steps: int, begin: int) -> Iterator[Row]:
    """Probe with unit vectors. A vector is [1, 3, count]: s_k, e_k or n_k, for every k."""
    import torch

    timesteps = _rewind(scheduler, steps, begin)
    count = len(timesteps)

    def unit(kind: int, k: int) -> Any:
        vector = torch.zeros(1, 3, count, dtype=torch.float64)
        vector[0, kind, k] = 1
        return vector

    before = np.zeros((3, count))
    for k, timestep in enumerate(timesteps):
        sample = unit(0, k)
        scale = scheduler.scale_model_input(sample, timestep)[0, 0, k]
        with _drawing(scheduler, unit(2, k)):
            raw = scheduler.step(unit(1, k), timestep, sample, return_dict=False)[0][0].numpy()
        if not np.isfinite(raw).all():
            raise PocketSDError(f"{name} at {steps} steps has weights that are not finite")
        last = k == count - 1
        keep = (1.0, 0.0) if last else _noising(scheduler, timesteps[k + 1 : k + 2])
        weights, before = _shorten(name, raw, before, k), raw
        yield Row(
            timestep=_rounded(timestep),
            input_scale=_rounded(scale),
            latents=_newest_first(weights[0], k),
            outputs=_newest_first(weights[1], k),
            noise=_rounded(weights[2, k]),
            keep=keep,
        )


def _shorten(name: str, row: np.ndarray, before: np.ndarray, k: int) -> np.ndarray:
    """Rewrite a row so that it looks back on HISTORY evaluations at most.

    A predictor-corrector keeps its corrected latent, which remembers everything. The row before
    computed s_k from that same latent, so s_k - before is zero, and the right multiple of it takes
    the old terms away. (Inpainting alters s_k, but only where the picture is put back anyway; a
    mask with greys between would show a difference.)
    """
    old = slice(0, max(k + 1 - HISTORY, 0))
    slack = 1e-9 * np.abs(row).max()
    if np.abs(row[:2, old]).max(initial=0) > slack:
        tail = before[:2, old]
        share = np.vdot(tail, row[:2, old]) / (np.vdot(tail, tail) or 1)
        row = row - share * before
        row[0, k] += share
        slack = 1e-6 * np.abs(row).max()  # float32 sigmas went into both rows
    if np.abs(row[:2, old]).max(initial=0) > slack:
        raise PocketSDError(f"{name} looks back more than {HISTORY} evaluations")
    if np.abs(row[2, :k]).max(initial=0) > slack:
        raise PocketSDError(f"{name} uses noise drawn at an earlier step")
    return np.where(np.abs(row) > 1e-9 * np.abs(row).max(), row, 0.0)


def _newest_first(weights: np.ndarray, k: int) -> tuple[float, ...]:
    recent = weights[max(k + 1 - HISTORY, 0) : k + 1][::-1]
    return tuple(map(_rounded, np.trim_zeros(recent, "b")))


def _verify(name: str, scheduler: Any, steps: int, begin: int, rows: Iterable[Row]) -> None:
    """Run the scheduler on random outputs and noise, and each row on what the scheduler made."""
    import torch

    timesteps = _rewind(scheduler, steps, begin)
    random = torch.Generator().manual_seed(0)

    def draw() -> Any:  # far beyond any range a scheduler might clip to
        return 100 * torch.randn(1, 4, 4, generator=random, dtype=torch.float64)

    latents, outputs = [draw()], []
    for timestep, row in zip(timesteps, rows, strict=False):
        noise = draw()
        outputs.append(draw())
        scaled = scheduler.scale_model_input(latents[-1], timestep)
        with _drawing(scheduler, noise):
            found = scheduler.step(outputs[-1], timestep, latents[-1], return_dict=False)[0]
        terms = [w * x for w, x in zip(row.latents, latents[::-1], strict=False)]
        terms += [w * e for w, e in zip(row.outputs, outputs[::-1], strict=False)]
        terms.append(row.noise * noise)
        scaling = (scaled - row.input_scale * latents[-1]).abs().max()
        error = (found - sum(terms)).abs().max()
        if not scaling <= 1e-5 * scaled.abs().max() or not error <= 1e-5 * max(
            term.abs().max() for term in terms
        ):
            raise PocketSDError(f"{name} is not linear, so it cannot be written as a table")
        latents.append(found)


def _rewind(scheduler: Any, steps: int, begin: int) -> Any:
    """Ready to run, as the pipelines do it; the timesteps that remain."""
    scheduler.set_timesteps(steps)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(begin)
    return scheduler.timesteps[begin:]


def _noising(scheduler: Any, timestep: Any) -> tuple[float, float]:
    """What `add_noise` weighs picture and noise with. timestep: [1]."""
    import torch

    picture, noise = torch.eye(2, dtype=torch.float64)[:, None, None]
    mixed = scheduler.add_noise(picture, noise, timestep)  # [1, 1, 2]
    return _rounded(mixed[0, 0, 0]), _rounded(mixed[0, 0, 1])


@contextmanager
def _drawing(scheduler: Any, noise: Any) -> Iterator[None]:
    """Within, the scheduler draws `noise`, once; and integrates without scipy."""
    module = sys.modules[type(scheduler).__module__]
    drawn = 0

    def draw(*_: Any, **__: Any) -> Any:
        nonlocal drawn
        drawn += 1
        if drawn > 1:
            raise PocketSDError(f"{type(scheduler).__name__} draws noise twice in one step")
        return noise

    with ExitStack() as stack:
        if hasattr(module, "randn_tensor"):
            stack.enter_context(patch.object(module, "randn_tensor", draw))
        if hasattr(scheduler, "get_lms_coefficient"):
            quad = SimpleNamespace(quad=_quad)
            stack.enter_context(patch.object(module, "integrate", quad, create=True))
        yield


def _quad(function: Callable[[Any], Any], start: Any, end: Any, **_: Any) -> tuple[float, float]:
    """Gauss-Legendre in four nodes: exact for the cubics that linear multistep integrates."""
    import torch

    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(4))
    middle, half = (float(start) + float(end)) / 2, (float(end) - float(start)) / 2
    values = function(middle + half * nodes)  # 1.0 for the zeroth order, else [4]
    return half * float((weights * values).sum()), 0.0


def _alike(one: Row, other: Row) -> bool:
    """Equal but for the rounding of two probes."""
    if (len(one.latents), len(one.outputs)) != (len(other.latents), len(other.outputs)):
        return False
    a, b = (
        np.array([r.timestep, r.input_scale, *r.latents, *r.outputs, r.noise, *r.keep])
        for r in (one, other)
    )
    return bool(np.allclose(a, b, rtol=1e-6, atol=1e-7))


def _rounded(number: Any) -> float:
    """Nine digits name a float32 exactly, and the table stays short."""
    return float(f"{float(number):.9g}")
