"""Whether a Vulkan driver is there, and the marks of tests that want the real LiteRT delegate."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest


def vulkan_driver() -> bool:
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    return bool(named) or any(Path("/usr/share/vulkan/icd.d").glob("*.json"))


needs_litert = pytest.mark.skipif(
    find_spec("litert_torch") is None, reason="pip install 'pocketsd[convert-litert]'"
)
needs_gpu = pytest.mark.skipif(
    not vulkan_driver(), reason="no Vulkan driver; tools/software_gpu.py fetches one"
)
