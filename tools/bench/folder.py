"""Where a bench keeps its files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def working_folder(folder: Path | None) -> Iterator[Path]:
    """The one that was asked for, else one that is gone afterwards."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="pocketsd-bench-") as name:
            yield Path(name)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
