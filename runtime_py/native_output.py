"""What native libraries write to the process's own outputs, kept off the user's screen."""

from __future__ import annotations

import ctypes
import os
import signal
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


@contextmanager
def last_words(line: str, code: int = 2) -> Iterator[None]:
    """Where a native library ends the process, say `line` instead of its stack; exit with `code`.

    An abort cannot be survived, and Python's own signal handlers never get to run then.
    """
    if os.name != "posix":
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)

    def speak(_: int) -> None:
        os.write(kept, line.encode())
        os._exit(code)

    speaker = ctypes.CFUNCTYPE(None, ctypes.c_int)(speak)  # named, so that it lives on
    handlers = ctypes.CDLL(None).signal
    handlers.restype, handlers.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    before = handlers(signal.SIGABRT, ctypes.cast(speaker, ctypes.c_void_p))
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        handlers(signal.SIGABRT, before)
