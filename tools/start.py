#!/usr/bin/env python3
"""From a clone to a result, with nothing installed but Python 3.11.

    python3 tools/start.py demo     set up, convert the embedded model, draw demo.png
    python3 tools/start.py test     set up, check style and types, run the tests
    python3 tools/start.py setup    set up only

What it needs goes into .venv beside this project; a second start finds it there. More arguments
are passed on: to `pocketsd demo`, or to pytest (`test --slow` adds the full-size models).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EXTRAS = {"demo": "convert", "test": "dev", "setup": "dev"}
SIZES = {"convert": "about 1.2 GB", "dev": "about 2.3 GB"}
OLDEST = (3, 11)


def main() -> int:
    verb, *rest = sys.argv[1:] or ["--help"]
    if verb not in EXTRAS:
        print(__doc__)
        return 0 if verb in ("-h", "--help") else 2
    if sys.version_info < OLDEST:
        return fail(f"Python {sys.version.split()[0]} is too old, 3.11 or newer is needed")
    try:
        set_up(EXTRAS[verb])
        if verb == "demo":
            run(VENV / "bin" / "pocketsd", "demo", *rest)
        elif verb == "test":
            test(rest)
    except subprocess.CalledProcessError as error:
        return fail(
            f"{Path(error.cmd[0]).name} {' '.join(error.cmd[1:4])} failed", error.returncode
        )
    except KeyboardInterrupt:
        return fail("cancelled", 130)
    return 0


def test(arguments: list[str]) -> None:
    run(PYTHON, "-m", "ruff", "check")
    run(PYTHON, "-m", "ruff", "format", "--check")
    run(PYTHON, "-m", "mypy")
    if "--slow" in arguments:  # full-size models: one after the other, for the memory they take
        arguments.remove("--slow")
        run(PYTHON, "-m", "pytest", "-m", "slow", "--durations=5", *arguments, **stand_ins())
    else:
        # One thread per worker: two workers that each start two threads only get in their way.
        workers = ("-n", str(os.cpu_count() or 2), "--dist", "loadgroup")
        run(PYTHON, "-m", "pytest", *workers, *arguments, OMP_NUM_THREADS="1", **stand_ins())


def stand_ins() -> dict[str, str]:
    """What the tests run on for want of a phone: a Vulkan driver (the one that the environment
    names, else Mesa's), a second one without f16, and Chrome's shader compiler."""
    import dawn
    import software_gpu

    found: dict[str, str] = {}
    for what, prepare in {
        "software GPU": lambda: software_gpu.prepare(VENV / "software-gpu"),
        "SwiftShader": lambda: software_gpu.prepare_swiftshader(VENV / "software-gpu/swiftshader"),
        "Dawn": lambda: dawn.prepare(VENV / "dawn", PYTHON),
    }.items():
        try:
            found |= prepare()
        except (subprocess.CalledProcessError, OSError, SystemExit) as error:
            print(f"start: no {what}, its tests will be skipped ({error})", file=sys.stderr)
    return found


def set_up(extra: str) -> None:
    """Make .venv and install the pinned packages, unless that has been done already."""
    wanted = _fingerprint(extra)
    stamp = VENV / f"installed-{extra}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    _make_venv()
    pip = (PYTHON, "-m", "pip", "--disable-pip-version-check")
    constraints = ("--constraint", ROOT / "constraints.txt")
    _refuse_cuda(pip, constraints)
    print(f"Installing pocketsd[{extra}] into {VENV} ({SIZES[extra]})", flush=True)
    # A constraint reaches the build environment through the variable only.
    run(*pip, "install", *constraints, "--editable", f"{ROOT}[{extra}]",
        PIP_CONSTRAINT=str(ROOT / "constraints.txt"))  # fmt: skip
    stamp.write_text(wanted)


def _fingerprint(extra: str) -> str:
    digest = hashlib.sha256(f"{extra} {sys.version}".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _make_venv() -> None:
    if PYTHON.exists():
        return
    try:
        import ensurepip  # noqa: F401  Debian keeps it in a package of its own
        import venv  # noqa: F401
    except ImportError:
        _install_system_packages("python3-venv")
    print(f"Making {VENV}", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    run(sys.executable, "-m", "venv", VENV)


def _install_system_packages(*names: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(
            fail(f"missing: {' '.join(names)} (run: sudo apt-get install {' '.join(names)})")
        )
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", *names, DEBIAN_FRONTEND="noninteractive")


def _refuse_cuda(pip: tuple[object, ...], constraints: tuple[object, ...]) -> None:
    """PyTorch's default Linux build brings gigabytes of CUDA that nothing here uses."""
    if "linux" not in sysconfig.get_platform():
        return
    command = [*pip, "install", "--quiet", "--dry-run", "--report", "-", *constraints, "torch"]
    answer = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, check=True)
    planned = [item["metadata"]["name"] for item in json.loads(answer.stdout)["install"]]
    if cuda := [name for name in planned if name.startswith(("nvidia", "cuda", "triton"))]:
        raise SystemExit(
            fail(
                f"pip would install PyTorch's CUDA build ({len(cuda)} extra packages)"
                " (set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels and start again)"
            )
        )


def run(*command: object, **environment: str) -> None:
    subprocess.run(
        [str(part) for part in command], cwd=ROOT, check=True, env={**os.environ, **environment}
    )


def fail(line: str, code: int = 2) -> int:
    print(f"start: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
