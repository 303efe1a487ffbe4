"""Opening a package on the command line: all hashes checked, with a bar if that takes a while."""

from __future__ import annotations

from pathlib import Path

from runtime_py.cli.progress import bar
from runtime_py.package import Package, check_hashes, open_package

SLOW = 200_000_000  # bytes; a disk and SHA-256 need about a second for more


def open_checked(path: Path) -> Package:
    package = open_package(path, check=False)
    size = sum(entry.bytes for entry in package.manifest.files.values())
    if size < SLOW:
        check_hashes(package)
        return package
    with bar(f"Checking {path.name}", size) as advance:
        check_hashes(package, lambda read: advance(read, ""))
    return package
