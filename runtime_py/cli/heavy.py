"""The only door from the harness to the converter: torch comes in when a verb really needs it."""

from __future__ import annotations

import importlib
from typing import Any

from runtime_py.errors import PocketSDError


def converter_module(name: str) -> Any:
    try:
        return importlib.import_module(f"converter.{name}")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0] == "converter":
            raise
        raise PocketSDError(
            f"this needs {missing}, which is not installed", mend="pip install 'pocketsd[convert]'"
        ) from None
