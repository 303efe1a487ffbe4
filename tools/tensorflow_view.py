#!/usr/bin/env python3
"""TensorFlow in an environment of its own, for a second opinion on .tflite files.

    python3 tools/tensorflow_view.py              set it up (about 1.3 GB)
    python3 tools/tensorflow_view.py FILE...      and show what it makes of these files, as JSON

It goes into .venv-tensorflow beside this project, where `pocketsd inspect` finds it. For each file
it runs tf.lite.Interpreter on seeded inputs and asks the Analyzer about GPU compatibility. This
TensorFlow is an old one on purpose: tools/tensorflow-constraints.txt says why.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-tensorflow"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
CONSTRAINTS = ROOT / "tools" / "tensorflow-constraints.txt"
WORKER = ROOT / "runtime_py" / "tensorflow_worker.py"
VERSIONS = ((3, 11), (3, 12))  # of Python, for which this TensorFlow has wheels


def main() -> int:
    files = sys.argv[1:]
    if files and files[0].startswith("-"):
        print(__doc__)
        return 0 if files[0] in ("-h", "--help") else 2
    if missing := [file for file in files if not Path(file).is_file()]:
        return fail(f"{missing[0]}: no such file")
    try:
        set_up()
    except subprocess.CalledProcessError as error:
        return fail(f"{' '.join(str(part) for part in error.cmd[:4])} failed")
    except KeyboardInterrupt:
        return fail("cancelled", 130)
    if not files:
        return 0
    done = subprocess.run([PYTHON, "-P", WORKER, "view", *files], stderr=subprocess.PIPE, text=True)
    if done.returncode < 0:
        return fail(f"TensorFlow died of signal {-done.returncode}, so a file is damaged")
    return fail(done.stderr.strip().splitlines()[-1]) if done.returncode else 0


def set_up() -> None:
    """Make .venv-tensorflow, unless these very versions are in it already."""
    stamp = VENV / "installed"
    if stamp.exists() and stamp.read_bytes() == CONSTRAINTS.read_bytes():
        return
    print(f"Installing TensorFlow into {VENV} (about 1.3 GB)", file=sys.stderr, flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    run(fitting_python(), "-m", "venv", VENV)
    run(
        *(PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"),
        *("--only-binary", ":all:", "--constraint", CONSTRAINTS, distribution()),
    )
    run(PYTHON, "-m", "pip", "--disable-pip-version-check", "check")
    stamp.write_bytes(CONSTRAINTS.read_bytes())


def distribution() -> str:
    """The build without CUDA: on PCs that is a package of its own, elsewhere the only one."""
    on_pc = platform.machine().lower() in ("x86_64", "amd64") and sys.platform != "darwin"
    return "tensorflow-cpu" if on_pc else "tensorflow"


def fitting_python() -> str:
    if sys.version_info[:2] in VERSIONS:
        return sys.executable
    names = [f"python{major}.{minor}" for major, minor in VERSIONS]
    for name in names:
        if found := shutil.which(name):
            return found
    raise SystemExit(fail(f"this TensorFlow needs {' or '.join(names)}, and neither is here"))


def run(*command: object) -> None:
    # What pip and venv print is no part of the JSON.
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


def fail(line: str, code: int = 2) -> int:
    print(f"tensorflow_view: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
