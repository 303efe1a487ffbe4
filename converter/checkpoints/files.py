"""Plain file work: hashes, JSON, and names from inside a file that must stay inside its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runtime_py.errors import PocketSDError
from runtime_py.files import sha256_of

_JSON_LIMIT = 64 * 1024 * 1024


def sha256_of_files(root: Path, files: Iterable[Path]) -> str:
    """One hash for the files read below `root`: over sorted (relative name, file hash) lines."""
    named = {file.relative_to(root).as_posix(): file for file in files}
    lines = [f"{name}\0{sha256_of(file)}\n" for name, file in sorted(named.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one line saying why not."""
    try:
        if path.stat().st_size > _JSON_LIMIT:
            raise PocketSDError("is too large for a JSON file of a checkpoint", where=path.name)
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise PocketSDError(f"cannot be read: {error.strerror}", where=path.name) from None
    except (ValueError, RecursionError):
        raise PocketSDError("is not valid JSON", where=path.name) from None
    if not isinstance(value, dict):
        raise PocketSDError("is JSON but not an object", where=path.name)
    return value


def sibling(folder: Path, name: object, *, named_by: str) -> Path:
    """The file `name` of `folder`; a name that came from a file may not lead anywhere else."""
    if not isinstance(name, str) or not name or name in (".", "..") or set(name) & set("/\\:\0"):
        raise PocketSDError(f"names a file outside its folder: {name!r}", where=named_by)
    path = folder / name
    if not path.is_file():
        raise PocketSDError(f"names {name}, which is not there", where=named_by)
    return path
