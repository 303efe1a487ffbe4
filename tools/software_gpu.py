#!/usr/bin/env python3
"""GPUs made of software, for machines that have none: Mesa's lavapipe, and SwiftShader for tests.

    python3 tools/software_gpu.py FOLDER     unpack them there and print the variables to set

The packages come from the distribution's own archive, are checked by apt, and are unpacked into
FOLDER: nothing is installed, no root is needed. Debian 12 keeps a recent enough Mesa in its
backports; its own release lacks what WebGPU asks of a driver. With VK_DRIVER_FILES or
VK_ICD_FILENAMES set already, that driver is taken and lavapipe is not fetched.

SwiftShader, a GPU without f16, is in Debian's package of what Chromium's builds share (32 MB to
fetch, 5 MB to keep). Vulkan is not told of it, whose loader would list it first: the variable
POCKETSD_SWIFTSHADER names its description to the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("mesa-vulkan-drivers", "libvulkan1")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BACKPORTS = "deb [signed-by={keyring}] {archive} bookworm-backports main\n"
DRIVER = "lvp_icd"
CHROMIUM = Path("/usr/lib/chromium")
SWIFTSHADER = ("vk_swiftshader_icd.json", "libvk_swiftshader.so")


def environment(folder: Path) -> dict[str, str]:
    """What a process must have in its environment to see lavapipe; empty where there is none."""
    driver = next(folder.glob(f"root/**/{DRIVER}.*json"), None)
    if driver is None:
        return {}
    libraries = {str(path.parent) for path in folder.glob("root/usr/lib/**/*.so*")}
    search = [*sorted(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "VK_DRIVER_FILES": str(driver),
        "VK_ICD_FILENAMES": str(driver),  # the name older loaders know
        "LD_LIBRARY_PATH": ":".join(filter(None, search)),
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", "/tmp"),
    }


def prepare(folder: Path) -> dict[str, str]:
    """Unpack lavapipe into `folder` unless it is there; the environment that shows it."""
    if os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES"):
        return {}
    if not environment(folder) and _has_apt():
        unpacked = _emptied(folder.with_name(f"{folder.name}.part"))
        _fetch(unpacked)
        _point_at_library(unpacked, folder)
        shutil.rmtree(folder, ignore_errors=True)
        unpacked.rename(folder)
    return environment(folder)


def prepare_swiftshader(folder: Path) -> dict[str, str]:
    """SwiftShader of the Chromium that is installed, else unpacked into `folder`."""
    if "POCKETSD_SWIFTSHADER" in os.environ:
        return {}
    there = [home for home in (CHROMIUM, folder) if all((home / n).exists() for n in SWIFTSHADER)]
    if not there and _has_apt():
        unpacked = _emptied(folder.with_name(f"{folder.name}.part"))
        _run(*_apt(unpacked), "download", "chromium-common", folder=unpacked)
        _unpack(unpacked, unpacked)
        folder.mkdir(parents=True, exist_ok=True)
        for name in SWIFTSHADER:
            shutil.move(unpacked / "root" / CHROMIUM.relative_to("/") / name, folder / name)
        shutil.rmtree(unpacked)
        there = [folder]
    return {"POCKETSD_SWIFTSHADER": str(there[0] / SWIFTSHADER[0])} if there else {}


def _has_apt() -> bool:
    return sys.platform == "linux" and shutil.which("apt-get") is not None


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _apt(folder: Path) -> list[str]:
    """apt with lists and archives of its own in `folder`, up to date."""
    for part in ("state/lists/partial", "cache/archives/partial", "lists.d", "root"):
        (folder / part).mkdir(parents=True)
    apt = ["apt-get", "-qq", *_apt_options(folder)]
    _run(*apt, "update")
    return apt


def _fetch(folder: Path) -> None:
    apt = _apt(folder)
    suite = "/bookworm-backports" if _needs_backports() else ""
    wanted = [f"{PACKAGES[0]}{suite}", *PACKAGES[1:]]
    # With the system's own list of installed packages, apt names exactly what is missing here.
    # `--reinstall`: also what the system has, since this folder must do without its Vulkan.
    _run(*apt, "install", "--reinstall", "--download-only", "--no-install-recommends", "-y",
         *wanted)  # fmt: skip
    _unpack(folder / "cache/archives", folder)
    shutil.rmtree(folder / "cache")
    shutil.rmtree(folder / "state")


def _unpack(archives: Path, folder: Path) -> None:
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg-deb", "--extract", str(archive), str(folder / "root"))


def _apt_options(folder: Path) -> list[str]:
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",  # the folder need not be readable for the user _apt
        "Debug::NoLocking": "true",
    }
    if _needs_backports():
        parts = folder / "lists.d"
        for source in Path("/etc/apt/sources.list.d").glob("debian*"):
            shutil.copy(source, parts)
        backports = BACKPORTS.format(keyring=KEYRING, archive=_archive("bookworm"))
        (parts / "backports.list").write_text(backports)
        settings["Dir::Etc::sourceparts"] = parts
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _archive(release: str) -> str:
    """The archive that this machine gets the release from."""
    command = ("apt-get", "indextargets", "--format", "$(REPO_URI)", f"Release: {release}")
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    if not lines:
        raise SystemExit(f"software_gpu: apt knows no source of {release}")
    return lines[0]


def _needs_backports() -> bool:
    release = Path("/etc/os-release")
    return release.exists() and "VERSION_CODENAME=bookworm" in release.read_text()


def _point_at_library(folder: Path, home: Path) -> None:
    """The driver's description names its library by the system's path: name our copy instead."""
    for description in folder.glob(f"root/**/{DRIVER}.*json"):
        content = json.loads(description.read_text())
        name = Path(content["ICD"]["library_path"]).name
        library = next(folder.glob(f"root/**/{name}"))
        content["ICD"]["library_path"] = str(home.resolve() / library.relative_to(folder))
        description.write_text(json.dumps(content))


def _run(*command: str, folder: Path | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, cwd=folder)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    home = Path(sys.argv[1]).absolute()
    for name, value in (prepare(home) | prepare_swiftshader(home / "swiftshader")).items():
        print(f"export {name}='{value}'")
