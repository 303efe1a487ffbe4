"""Samplers as tables: one loop plays every scheduler.

The schedulers of Stable Diffusion 1.x are linear. Write x_k for the latent before evaluation k of
the UNet, e_k for what the UNet (after guidance) answered, n_k for fresh Gaussian noise. Then every
one of them, multistep, single-step or stochastic, is a list of rows, and row k says

    e_k     = unet(input_scale * x_k, timestep)
    x_{k+1} = latents[0] x_k + latents[1] x_{k-1} + ...        at most HISTORY terms
            + outputs[0] e_k + outputs[1] e_{k-1} + ...        at most HISTORY terms
            + noise n_k

A port to another language is the loop of `play` and the two starts of `Schedule.begin`. How the
UNet's answer is to be understood (noise, velocity, picture) is already inside the weights.

img2img begins at a later row, with less behind it than the table's rows expect: each `Start` holds
the few rows to play instead until the history has filled. Inpainting re-noises a known picture
with `keep` after every row, so that it sits beside x_{k+1}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import PocketSDError

Array = NDArray[np.floating[Any]]
_T = TypeVar("_T")

HISTORY = 4  # how many latents and outputs a row may look back on, its own included


@dataclass(frozen=True)
class Row:
    """One evaluation of the UNet and the step that follows it."""

    timestep: float  # what the UNet is told
    input_scale: float  # the UNet sees latent * input_scale
    latents: tuple[float, ...]  # weights of x_k, x_{k-1}, ...
    outputs: tuple[float, ...]  # weights of e_k, e_{k-1}, ...
    noise: float  # weight of fresh noise; 0 draws none
    keep: tuple[float, float]  # (signal, noise) that put a known picture beside x_{k+1}


@dataclass(frozen=True)
class Start:
    """Where img2img may enter the table."""

    row: int
    signal: float
    noise: float
    warm_up: tuple[Row, ...] = ()  # played instead of rows[row : row + len(warm_up)]


@dataclass(frozen=True)
class Schedule:
    """The rows to play, and how their first latent is made."""

    rows: tuple[Row, ...]
    signal: float
    noise: float

    def begin(self, noise: Array, picture: Array | None = None) -> Array:
        """x_0 from unit noise and, for img2img, the encoded picture."""
        drawn = noise * self.noise
        return drawn if picture is None else picture * self.signal + drawn


@dataclass(frozen=True)
class SamplerTable:
    """One scheduler at one number of steps."""

    scheduler: str
    steps: int
    prediction: str  # what the UNet predicts: epsilon, v_prediction or sample
    rows: tuple[Row, ...]
    initial_noise: float  # x_0 = initial_noise * unit noise
    starts: tuple[Start, ...]  # starts[i] skips the first i of `steps` steps

    def __post_init__(self) -> None:
        _check(self)

    def from_noise(self) -> Schedule:
        """Text to image."""
        return Schedule(self.rows, 0.0, self.initial_noise)

    def from_strength(self, strength: float) -> Schedule:
        """Image to image: plays the last `strength` of the steps, rounded down."""
        if not 0 < strength <= 1:
            raise PocketSDError(f"strength is {strength}, must be above 0 and at most 1")
        played = int(self.steps * strength)
        if played < 1:
            raise PocketSDError(
                f"strength {strength} leaves none of {self.steps} steps to play",
                mend=f"use at least {1 / self.steps:.3g}",
            )
        start = self.starts[self.steps - played]
        rows = start.warm_up + self.rows[start.row + len(start.warm_up) :]
        return Schedule(rows, start.signal, start.noise)

    def to_json(self) -> dict[str, Any]:
        """Plain data. A row is [timestep, input_scale, latents, outputs, noise, keep]."""
        return {
            "scheduler": self.scheduler,
            "steps": self.steps,
            "prediction": self.prediction,
            "initial_noise": _short(self.initial_noise),
            "rows": [_row_out(row) for row in self.rows],
            "starts": [
                [s.row, _short(s.signal), _short(s.noise), [_row_out(row) for row in s.warm_up]]
                for s in self.starts
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> SamplerTable:
        try:
            return cls(
                scheduler=_typed(data["scheduler"], str),
                steps=_typed(data["steps"], int),
                prediction=_typed(data["prediction"], str),
                rows=tuple(map(_row_in, data["rows"])),
                initial_noise=_number(data["initial_noise"]),
                starts=tuple(map(_start_in, data["starts"])),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise PocketSDError(f"not a sampler table: {reason}") from None


def play(
    schedule: Schedule,
    latent: Array,
    evaluate: Callable[[Array, float], Array],
    noise: Callable[[int], Array],
) -> Iterator[tuple[int, Array]]:
    """Yield (k, x_{k+1}) for every row.

    `evaluate(scaled latent, timestep)` is the UNet with guidance done, `noise(k)` unit noise of the
    latent's shape, asked for only where a row uses it. The array that is yielded is the one the
    next row reads: inpainting blends the known picture into it in place.
    """
    latents = deque([latent], HISTORY)  # newest first
    outputs: deque[Array] = deque(maxlen=HISTORY)
    for k, row in enumerate(schedule.rows):
        outputs.appendleft(evaluate(latents[0] * row.input_scale, row.timestep))
        terms = [weight * x for weight, x in zip(row.latents, latents, strict=False)]
        terms += [weight * e for weight, e in zip(row.outputs, outputs, strict=False)]
        if row.noise:
            terms.append(row.noise * noise(k))
        latents.appendleft(np.add.reduce(terms))
        yield k, latents[0]


def guided(conditional: Array, unconditional: Array, scale: float) -> Array:
    """Classifier-free guidance; scale 1 is the conditional output alone."""
    return unconditional + scale * (conditional - unconditional)


def _check(table: SamplerTable) -> None:
    """Refuse what `play` would misread. Depth matters: a row must not reach before its start."""

    def refuse(what: str) -> None:
        raise PocketSDError(f"sampler table {table.scheduler} x {table.steps}: {what}")

    if not table.rows or table.steps < 1 or len(table.starts) != table.steps:
        refuse(
            f"{len(table.rows)} rows and {len(table.starts)} starts do not make {table.steps} steps"
        )
    if not isfinite(table.initial_noise):
        refuse("the initial noise is not finite")
    for k, row in enumerate(table.rows):
        _check_row(row, k, refuse)
    for start in table.starts:
        left = len(table.rows) - start.row
        if not 0 < left <= len(table.rows) or len(start.warm_up) > left:
            refuse(f"a start at row {start.row} lies outside the {len(table.rows)} rows")
        if not isfinite(start.signal) or not isfinite(start.noise):
            refuse(f"the start at row {start.row} is not finite")
        for k, row in enumerate(start.warm_up):
            _check_row(row, k, refuse)
        filled = range(len(start.warm_up), min(left, HISTORY))
        for k in filled:  # the table's own rows, played while the history is still short
            _check_row(table.rows[start.row + k], k, refuse)


def _check_row(row: Row, k: int, refuse: Callable[[str], None]) -> None:
    numbers = chain((row.timestep, row.input_scale, row.noise), row.latents, row.outputs, row.keep)
    if not all(map(isfinite, numbers)):
        refuse(f"row {k} of a schedule holds a number that is not finite")
    depth = max(len(row.latents), len(row.outputs))
    if depth > min(k + 1, HISTORY):
        refuse(f"row {k} of a schedule looks back {depth} evaluations")
    if not depth or len(row.keep) != 2:
        refuse(f"row {k} of a schedule is incomplete")


def _short(number: float) -> float | int:
    """951.0 as 951."""
    return int(number) if number.is_integer() else number


def _row_out(row: Row) -> list[Any]:
    return [
        _short(row.timestep),
        _short(row.input_scale),
        [_short(weight) for weight in row.latents],
        [_short(weight) for weight in row.outputs],
        _short(row.noise),
        [_short(weight) for weight in row.keep],
    ]


def _row_in(data: Any) -> Row:
    timestep, input_scale, latents, outputs, noise, (signal, fresh) = data
    return Row(
        timestep=_number(timestep),
        input_scale=_number(input_scale),
        latents=tuple(map(_number, latents)),
        outputs=tuple(map(_number, outputs)),
        noise=_number(noise),
        keep=(_number(signal), _number(fresh)),
    )


def _start_in(data: Any) -> Start:
    row, signal, noise, warm_up = data
    return Start(_typed(row, int), _number(signal), _number(noise), tuple(map(_row_in, warm_up)))


def _typed(value: Any, kind: type[_T]) -> _T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
