"""What native libraries write to the process's own outputs, kept off the user's screen."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def captured(descriptor: int = 2) -> Iterator[Callable[[], str]]:
    """Redirect stdout (1) or stderr (2) to a file; yields a function that reads what came so far.

    Libraries that log past Python's `sys.stderr` can only be caught at the descriptor.
    """
    stream = {1: sys.stdout, 2: sys.stderr}[descriptor]
    stream.flush()
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)

        def read() -> str:
            stream.flush()
            size = os.fstat(file.fileno()).st_size
            return os.pread(file.fileno(), size, 0).decode(errors="replace")

        try:
            yield read
        finally:
            stream.flush()
            os.dup2(kept, descriptor)
            os.close(kept)


@contextmanager
def silenced() -> Iterator[Callable[[], str]]:
    """Both outputs at once: native libraries are not particular about which one they log to."""
    with captured(1) as out, captured(2) as err:
        yield lambda: out() + err()
