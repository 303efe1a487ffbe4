"""Two cores, two workers, one set of weights.

Each worker is a process with a single thread that draws its own batches and updates the weights
in shared memory without waiting for the other ("Hogwild"). On a small CPU that others use too
this beats splitting every operation over the cores: there are hundreds of tiny operations a step,
and at each of them a split run waits for whichever core is busy elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import multiprocessing


def _worker(number: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    work(number, *arguments)


def share_and_run(work: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run `work(number, *arguments)` in `count` processes; modules and tensors are shared.

    `work` must be a module-level function. Returns when all workers have returned.
    """
    for argument in arguments:
        if isinstance(argument, torch.nn.Module):
            argument.share_memory()
        elif isinstance(argument, torch.Tensor):
            argument.share_memory_()
    multiprocessing.spawn(_worker, (work, arguments), nprocs=count)
