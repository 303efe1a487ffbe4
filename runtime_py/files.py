"""Files that are either whole or not there: atomic writes, hashes, paths that stay inside."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from runtime_py.errors import PocketSDError

_SAFE_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]*(/[A-Za-z0-9_+][A-Za-z0-9_.+-]*)*")


def sha256_of(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Hash a file in slices; `advance` is told the bytes read so far, slice by slice."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            if advance:
                advance(len(chunk))
    return digest.hexdigest()


def inside(folder: Path, name: str) -> Path:
    """The path of `name` in `folder`, for names that come from a file we did not write."""
    if len(name) > 255 or not _SAFE_NAME.fullmatch(name):
        raise PocketSDError(f"unsafe file name {name[:80]!r}", where=folder)
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise PocketSDError(f"file name {name!r} leads out of the folder", where=folder)
    return path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write to the yielded path; it takes the place of `path` only if the block succeeds."""
    _require_parent(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        with _terminate_as_exit():
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Fill the yielded folder; it takes the place of `path` only if the block succeeds."""
    require_free(path, overwrite=overwrite)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        with _terminate_as_exit():
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            if path.exists():
                # A rename cannot replace a folder that is not empty: step aside first.
                aside = temporary.with_suffix(".old")
                path.rename(aside)
                temporary.rename(path)
                shutil.rmtree(aside)
            else:
                temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def require_free(path: Path, *, overwrite: bool) -> None:
    """Refuse an output place that is taken, before any work is done for it."""
    _require_parent(path)
    if path.exists() and not overwrite:
        raise PocketSDError("already exists", where=path, mend="--overwrite replaces it")


def _require_parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise PocketSDError("the folder to write into does not exist", where=path.parent)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _terminate_as_exit() -> Iterator[None]:
    """Let a polite kill clean up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
