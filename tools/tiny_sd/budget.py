"""Training by the clock: a stage gets minutes, not steps, and can be stopped and resumed.

The learning rate follows the share of the budget used up, so a stage always ends with a finished
decay whatever the machine. The price is that two runs agree in quality, not bit for bit.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click
import torch


class Budget:
    """The clock of one stage: counts seconds (over all its runs) and steps, and reports both."""

    def __init__(self, stage: str, minutes: float, checkpoint: Path, warmup: int = 100) -> None:
        self.stage, self.seconds, self.checkpoint = stage, minutes * 60, checkpoint
        self.warmup, self.step = warmup, 0
        self._before, self._start = 0.0, time.monotonic()
        self._shown = self._saved = self._start
        self._loss = 0.0

    @property
    def used(self) -> float:
        return self._before + time.monotonic() - self._start

    @property
    def progress(self) -> float:
        return min(1.0, self.used / self.seconds)

    @property
    def left(self) -> bool:
        return self.used < self.seconds

    def rate(self, peak: float, floor: float = 0.02) -> float:
        """Learning rate now: linear warm-up in steps, then a cosine over the minutes."""
        warm = min(1.0, (self.step + 1) / self.warmup)
        cosine = 0.5 + 0.5 * math.cos(math.pi * self.progress)
        return peak * warm * (floor + (1 - floor) * cosine)

    def tick(self, loss: torch.Tensor, every: float = 20.0) -> None:
        """Count a step; now and then say how it goes."""
        self.step += 1
        if time.monotonic() - self._shown < every:
            return
        self._shown = time.monotonic()
        minutes_left = max(0.0, self.seconds - self.used) / 60
        click.echo(
            f"{self.stage}: step {self.step}, loss {loss.item():.4f}, "
            f"{self.step / max(self.used, 1e-9):.2f} steps/s, {minutes_left:.1f} min left"
        )

    def save(self, every: float = 120.0, **state: Any) -> None:
        """Write a checkpoint if the last one is old; `every=0` writes it whatever its age.

        `state` maps names to anything with `state_dict`.
        """
        if time.monotonic() - self._saved < every:
            return
        self._saved = time.monotonic()
        payload = {name: part.state_dict() for name, part in state.items()}
        half_done = self.checkpoint.with_suffix(".part")
        torch.save({"used": self.used, "step": self.step, **payload}, half_done)
        half_done.replace(self.checkpoint)

    def resume(self, **state: Any) -> bool:
        """Take up the checkpoint if there is one; returns whether there was."""
        if not self.checkpoint.exists():
            return False
        payload = torch.load(self.checkpoint, weights_only=True)
        for name, part in state.items():
            part.load_state_dict(payload[name])
        self._before, self.step = payload["used"], payload["step"]
        click.echo(f"{self.stage}: resumed at step {self.step}, {self._before / 60:.1f} min used")
        return True


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


class Average:
    """Exponential moving average of a module's weights, with the usual short start."""

    def __init__(self, module: torch.nn.Module, decay: float) -> None:
        self.decay, self.count = decay, 0
        self.weights = {k: v.detach().clone() for k, v in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: torch.nn.Module) -> None:
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        mine = list(self.weights.values())
        torch._foreach_lerp_(mine, list(module.state_dict().values()), 1 - decay)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.weights = state["count"], state["weights"]
