"""Packages on a device: files stored by their sha256, and a record for each package.

    store/<sha256>           a file's content; packages share what they have in common
    store/<sha256>.partial   a file on its way, or what a pulled cable left of it
    packages/<name>.json     a record: the package's files and their hashes

A file gets its final name after the device itself has read it back and found the right sha256, and
a package gets its record when all its files are there. So whatever fails, nothing is half there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from runtime_py.devices.android_facts import printable
from runtime_py.devices.protocol import (
    Device,
    DeviceFullError,
    DeviceLostError,
    Ran,
)
from runtime_py.errors import PocketSDError
from runtime_py.files import sha256_of
from runtime_py.package import MANIFEST, FileEntry, Package

HOME = "/data/local/tmp/pocketsd"
STORE, RECORDS = f"{HOME}/store", f"{HOME}/packages"
SPARE = 64 << 20  # bytes that stay free: a phone with a full disk misbehaves
HASHING = 1800.0  # seconds; slow flash reads 10 MB/s
ATTEMPTS = 5
BATCH = 200

T = TypeVar("T")
Progress = Callable[[int, str], None]  # bytes that have just gone by, and of which file


@dataclass(frozen=True)
class Record:
    name: str
    target: str
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True)
class Deployed:
    record: Record
    moved: tuple[str, ...]  # files that travelled
    bytes: int  # that they have
    damaged: tuple[str, ...]  # files that were on the device with other content


def deploy(
    device: Device,
    package: Package,
    *,
    name: str | None = None,
    progress: Progress | None = None,
    patience: float = 0,
) -> Deployed:
    """Bring a package to the device; only files that it lacks travel.

    A lost device is waited for `patience` seconds and the file under way is begun anew.
    """
    patient = _Patient(device, patience)
    called = _checked_name(name or package.path.resolve().name)
    record = Record(called, package.manifest.target, _files(package))
    missing, damaged = patient(lambda: _missing(device, record))
    size = sum(record.files[file].bytes for file in missing.values())
    _require_space(device, patient(device.health).free, size)
    try:
        for sha256, file in missing.items():
            patient(partial(_bring, device, package, sha256, file, progress))
        patient(lambda: _write_record(device, record))
    except DeviceFullError:
        # Where there is no room, what has come goes too: half a package helps nobody.
        _remove(device, (path for s in missing for path in (_stored(s), _arriving(s))))
        raise
    return Deployed(record, tuple(missing.values()), size, damaged)


def deployed(device: Device) -> list[Record]:
    """The packages on the device; records that make no sense are left out."""
    listing = device.run("ls", RECORDS)
    names = [line for line in listing.out.splitlines() if line.endswith(".json")]
    records = (_read_record(device, name) for name in names)
    return [record for record in records if record]


def verify(device: Device, record: Record) -> tuple[str, ...]:
    """Files of the package that are missing or damaged on the device."""
    return tuple(_missing(device, record)[0].values())


def remove(device: Device, name: str) -> None:
    """Take a package off the device. Its files go with the next `prune`."""
    if name not in [record.name for record in deployed(device)]:
        raise PocketSDError(f"no package {printable(name)!r} is on it", where=device.id)
    _remove(device, [_record_path(_checked_name(name))])


def prune(device: Device) -> int:
    """Remove stored files that no package uses; the bytes that this frees."""
    used = {entry.sha256 for record in deployed(device) for entry in record.files.values()}
    listing = device.run("sh", "-c", f"cd {STORE} && stat -c '%s %n' *")
    found = re.findall(r"^(\d{1,15}) ([0-9a-f]{64}(?:\.partial)?)$", listing.out, re.M)
    idle = {name: int(size) for size, name in found if name not in used}
    _remove(device, (f"{STORE}/{name}" for name in idle))
    return sum(idle.values())


class _Patient:
    """Calls again after the device has come back."""

    def __init__(self, device: Device, patience: float) -> None:
        self.device, self.patience = device, patience

    def __call__(self, act: Callable[[], T]) -> T:
        for _ in range(ATTEMPTS):
            try:
                return act()
            except DeviceLostError:
                if not self.patience:
                    raise
                self.device.await_return(self.patience)
        raise DeviceLostError("the connection keeps failing", where=self.device.id)


def _bring(
    device: Device, package: Package, sha256: str, name: str, progress: Progress | None
) -> None:
    arriving, gone = _arriving(sha256), 0

    def advance(count: int) -> None:
        nonlocal gone
        gone += count
        if progress:
            progress(count, name)

    try:
        device.push(package.path / name, arriving, advance)
        found = _hashes(device, [arriving]).get(arriving)
        if found != sha256:
            _remove(device, [arriving])
            raise PocketSDError(f"{name} arrived damaged", where=device.id, mend="try again")
        _succeed(device, device.run("mv", "-f", arriving, _stored(sha256)))
    except DeviceLostError:
        if progress:
            progress(-gone, name)  # it is begun anew
        raise


def _missing(device: Device, record: Record) -> tuple[dict[str, str], tuple[str, ...]]:
    """By hash, a file that has to travel; and the names of those whose stored content is wrong."""
    _succeed(device, device.run("mkdir", "-p", STORE, RECORDS))
    wanted = {entry.sha256: name for name, entry in record.files.items()}
    found = _hashes(device, map(_stored, wanted))
    missing = {s: name for s, name in wanted.items() if found.get(_stored(s)) != s}
    return missing, tuple(name for s, name in missing.items() if _stored(s) in found)


def _hashes(device: Device, paths: Iterable[str]) -> dict[str, str]:
    """What the device itself reads; paths that are not there are left out."""
    said = (device.run("sha256sum", *some, timeout=HASHING).out for some in _batches(paths))
    lines = "".join(said).splitlines()
    rows = (re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line) for line in lines)
    return {row[2]: row[1] for row in rows if row}


def _write_record(device: Device, record: Record) -> None:
    """Written beside its place and moved there, like every file."""
    path = _record_path(record.name)
    with tempfile.NamedTemporaryFile() as file:
        file.write(msgspec.json.encode(record))
        file.flush()
        device.push(Path(file.name), f"{path}.partial")
    _succeed(device, device.run("mv", "-f", f"{path}.partial", path))


def _read_record(device: Device, file: str) -> Record | None:
    """A device's record, believed only where it is one that we would have written."""
    said = device.run("cat", f"{RECORDS}/{file}")
    try:
        record = msgspec.json.decode(said.out, type=Record)
        safe = all(re.fullmatch("[0-9a-f]{64}", e.sha256) for e in record.files.values())
        return record if safe and f"{_checked_name(record.name)}.json" == file else None
    except (msgspec.DecodeError, PocketSDError):
        return None


def _files(package: Package) -> dict[str, FileEntry]:
    """What the manifest lists, and the manifest."""
    manifest = package.path / MANIFEST
    entry = FileEntry(sha256_of(manifest), manifest.stat().st_size)
    return {**package.manifest.files, MANIFEST: entry}


def _require_space(device: Device, free: int | None, needed: int) -> None:
    if needed and free is not None and free < needed + SPARE:
        room = max(0, free - SPARE)
        raise DeviceFullError(
            f"{needed / 1e6:.0f} MB have to travel and {room / 1e6:.0f} MB are free",
            where=device.id,
            mend="`pocketsd deploy --prune`",
        )


def _succeed(device: Device, ran: Ran) -> None:
    if ran.code:
        said = printable(ran.err or ran.out) or f"exit code {ran.code}"
        kind = DeviceFullError if "No space left" in said else PocketSDError
        raise kind(said, where=device.id)


def _remove(device: Device, paths: Iterable[str]) -> None:
    for some in _batches(paths):
        _succeed(device, device.run("rm", "-f", *some))


def _batches(paths: Iterable[str]) -> Iterator[list[str]]:
    """adb takes commands of up to 64 kB."""
    remaining = list(paths)
    for start in range(0, len(remaining), BATCH):
        yield remaining[start : start + BATCH]


def _checked_name(name: str) -> str:
    """A name may hold anything that a file name may; quoting is for the device."""
    if not name or name.startswith((".", "-")) or len(name.encode()) > 100:
        raise PocketSDError(f"{printable(name)!r} cannot be a package's name", mend="--name NAME")
    if "/" in name or not name.isprintable():
        raise PocketSDError(f"{printable(name)!r} cannot be a package's name", mend="--name NAME")
    return name


def _stored(sha256: str) -> str:
    return f"{STORE}/{sha256}"


def _arriving(sha256: str) -> str:
    return f"{STORE}/{sha256}.partial"


def _record_path(name: str) -> str:
    return f"{RECORDS}/{name}.json"
