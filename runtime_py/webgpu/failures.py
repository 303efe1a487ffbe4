"""What goes wrong on a GPU, as one line that says what to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import wgpu

from runtime_py.errors import PocketSDError
from runtime_py.native_output import last_words
from runtime_py.webgpu.plan import Plan

#: Seconds in which wgpu's second thread, seeing that the GPU is lost, may end the process.
LINGER = 3.0
SMALLER = "convert at a smaller --height and --width, with --batch-cfg 1, or in fp16"


@contextmanager
def explained(plan: Plan) -> Iterator[None]:
    """What wgpu raises, and one line where it ends the process: it does when the driver loses the
    GPU."""
    with last_words(f"pocketsd: {lost(plan)}\n"):
        try:
            yield
        except (wgpu.GPUError, wgpu.GPUPipelineError, RuntimeError) as error:
            raise _failure(plan, error) from error


@contextmanager
def watched(plan: Plan) -> Iterator[None]:
    """Also what wgpu only logs: errors of no call in particular."""
    with explained(plan), _logged() as said:
        yield
        if said:
            raise RuntimeError(said[0])


def lost(plan: Plan) -> PocketSDError:
    return PocketSDError(
        f"the GPU was lost while it ran {plan.component}: its driver or its memory gave out",
        mend="run again, with --low-memory, in fp16 or int8, or on another --adapter",
    )


def no_memory(plan: Plan) -> PocketSDError:
    total = sum(plan.sizes.values()) / 2**20
    return PocketSDError(
        f"no memory left on the GPU for the {total:.0f} MiB of {plan.component}",
        mend="--low-memory, fp16 or int8, or a smaller picture",
    )


def _failure(plan: Plan, error: Exception) -> PocketSDError:
    said = " ".join(str(error).split())
    if isinstance(error, wgpu.GPUOutOfMemoryError) or "Not enough memory" in said:
        return no_memory(plan)
    if "is lost" in said or "was lost" in said or "not map buffer" in said:
        time.sleep(LINGER)
        return lost(plan)
    mend = SMALLER if "limit" in said or "maximum" in said else None
    return PocketSDError(f"the GPU refused {plan.component}: {said[:400]}", mend=mend)


@contextmanager
def _logged() -> Iterator[list[str]]:
    """The errors that wgpu logs."""
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("wgpu")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
