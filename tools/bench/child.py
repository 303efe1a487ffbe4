"""A function called in a process of its own: its result, its peak memory, or how it died."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from runtime_py.native_output import captured

LAST_WORDS = 4000  # characters of what a failed child wrote


@dataclass(frozen=True)
class Outcome:
    """`died` says in words why there is no value; empty when there is one."""

    value: Any = None
    peak_bytes: int = 0
    died: str = ""
    log: str = ""


def in_child(function: Callable[..., Any], *args: Any, timeout: float) -> Outcome:
    """Call it in a fresh interpreter; a crash, an exception or too long a wait is an outcome."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, function, args), daemon=True)
    process.start()
    theirs.close()
    outcome = None
    try:
        if ours.poll(timeout):
            outcome = ours.recv()
        else:
            outcome = Outcome(died=f"no answer in {timeout:.0f} s")
    except EOFError:
        pass  # it ended without a word
    finally:
        if outcome is None or not outcome.died.startswith("no answer"):
            process.join(60)
        if process.is_alive():
            process.kill()
            process.join()
    return outcome or Outcome(died=_ending(process.exitcode))


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"dies (signal {-code}, {signal.strsignal(-code)})"
    return f"ends with exit code {code}"


def _serve(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """What runs in the child: native libraries' chatter is kept, and told only on failure."""
    with captured(1) as said, captured(2) as complained:
        try:
            outcome = Outcome(function(*args), peak_bytes())
        except Exception as error:
            log = f"{said()}{complained()}{traceback.format_exc()}"
            words = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            outcome = Outcome(died=words, log=log[-LAST_WORDS:], peak_bytes=peak_bytes())
    connection.send(outcome)
    connection.close()
    for descriptor in (1, 2):  # without the libraries' farewells
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def peak_bytes() -> int:
    """The most memory this process ever held.

    `ru_maxrss` would count what the parent held when it forked, so the kernel's own mark is read
    where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists() and (mark := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(mark[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
