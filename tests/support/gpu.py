"""Whether a Vulkan driver is there, and the marks of tests that want the real LiteRT delegate."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest


def vulkan_driver() -> bool:
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    return bool(named) or any(Path("/usr/share/vulkan/icd.d").glob("*.json"))


#: Vulkan's description of a second software GPU, one without f16.
SWIFTSHADER = os.environ.get("POCKETSD_SWIFTSHADER", "")


def both_drivers() -> dict[str, str]:
    """The environment in which Vulkan shows SwiftShader beside the usual driver."""
    names = [name for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES") if os.environ.get(name)]
    if not SWIFTSHADER or not names:
        return {"VK_ADD_DRIVER_FILES": SWIFTSHADER} if SWIFTSHADER else {}
    return {name: f"{os.environ[name]}{os.pathsep}{SWIFTSHADER}" for name in names}


needs_litert = pytest.mark.skipif(
    find_spec("litert_torch") is None, reason="pip install 'pocketsd[convert-litert]'"
)
needs_gpu = pytest.mark.skipif(
    not vulkan_driver(), reason="no Vulkan driver; tools/software_gpu.py fetches one"
)
needs_swiftshader = pytest.mark.skipif(
    not (vulkan_driver() and SWIFTSHADER), reason="no SwiftShader; tools/software_gpu.py fetches it"
)
