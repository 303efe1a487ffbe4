"""The golden vectors that ports are held to are what Python answers now."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any

import pytest

from tools import canonical, golden


def differences(stored: Any, fresh: Any, path: str = "") -> list[str]:
    """Where two JSON values differ. Numbers may by 1e-5: the mathematics of libraries and of
    processors differ in the last digit, and diffusers computes its tables with them."""
    if isinstance(stored, dict) and isinstance(fresh, dict) and stored.keys() == fresh.keys():
        pairs = [(stored[key], fresh[key], f"{path}.{key}") for key in stored]
    elif isinstance(stored, list) and isinstance(fresh, list) and len(stored) == len(fresh):
        pairs = [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(stored, fresh, strict=True))]
    elif isinstance(stored, float) or isinstance(fresh, float):
        close = math.isclose(stored, fresh, rel_tol=1e-5, abs_tol=1e-6)
        return [] if close else [f"{path}: {stored} was {fresh}"]
    else:
        return [] if stored == fresh and type(stored) is type(fresh) else [path]
    return [line for pair in pairs for line in differences(*pair)]


@pytest.mark.parametrize("name", golden.FILES)
def test_stored_vectors_are_current(name: str) -> None:
    stored = json.loads((golden.FOLDER / f"{name}.json").read_text(encoding="ascii"))
    fresh = json.loads(json.dumps(golden.FILES[name]()))
    if name == "package":  # texts of tables and of manifests, which carry digests of these
        stored, fresh = without_texts(stored), without_texts(fresh)
    assert not differences(stored, fresh)


def without_texts(package: dict[str, Any]) -> dict[str, Any]:
    """The tables and manifests as values, less what depends on the last digit of a number."""

    def value(text: str) -> Any:
        content = json.loads(text)
        content.pop("sha256", None)
        content.pop("files", None)
        return content

    tables = {n: value(t) for n, t in package["files"].items() if n.startswith("samplers/")}
    manifests = {name: value(text) for name, text in package["manifests"].items()}
    return {**package, "files": {**package["files"], **tables}, "manifests": manifests}


def test_differences_are_found() -> None:
    """The comparison itself can fail."""
    assert not differences({"a": [1, 2.0, "x"]}, {"a": [1, 2.000001, "x"]})
    for other in ({"a": [1, 2.1, "x"]}, {"a": [1, 2.0]}, {"b": 1}, {"a": [2, 2.0, "x"]}, []):
        assert differences({"a": [1, 2.0, "x"]}, other)


def test_no_vector_is_missing_and_none_is_large() -> None:
    files = sorted(golden.FOLDER.glob("*.json"))
    assert [file.stem for file in files] == sorted(golden.FILES)
    assert sum(file.stat().st_size for file in files) < 400_000


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="the table is of Unicode 14")
def test_swifts_canonical_mappings_are_current() -> None:
    assert canonical.SWIFT.read_text(encoding="ascii") == canonical.swift()
