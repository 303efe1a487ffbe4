"""Phones on a real adb: what is said of them, files there and back, packages through any mishap.

The phone is emulated and its adb is real. Bytes are counted on the phone's side.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime_py import deploy as deploying
from runtime_py.cli import main
from runtime_py.deploy import STORE, Deployed, deploy, deployed, prune, remove, verify
from runtime_py.devices.android import AndroidDevice
from runtime_py.devices.listing import Adb, adb
from runtime_py.devices.protocol import DeviceFullError, DeviceLostError
from runtime_py.errors import PocketSDError
from runtime_py.package import Package
from tests.support.adb_phone import AdbServer, EmulatedPhone
from tests.support.small_packages import small_package

pytest.importorskip("adbutils")

NASTY = "a b;touch $(touch /data/x) `touch /data/x` 'q\" & | > /data/x *"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdbServer]:
    started = AdbServer(tmp_path_factory.mktemp("adb-home"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started
        started.kill()


@pytest.fixture
def phone(server: AdbServer, tmp_path: Path) -> Iterator[EmulatedPhone]:
    plugged = EmulatedPhone(server, tmp_path / "phone").plug_in()
    yield plugged
    plugged.close()


@pytest.fixture
def seen(server: AdbServer) -> Adb:
    return adb()


@pytest.fixture
def device(seen: Adb, phone: EmulatedPhone) -> AndroidDevice:
    return seen.choose(phone.id)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return small_package(tmp_path_factory.mktemp("packages") / "tiny.litert")


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pocketsd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: its exit code and what it says."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pocketsd", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def assert_whole(phone: EmulatedPhone, done: Deployed) -> None:
    """By the phone's own files, read on this side."""
    for entry in done.record.files.values():
        content = phone.file(f"{STORE}/{entry.sha256}").read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry.sha256


def stored(phone: EmulatedPhone) -> list[str]:
    folder = phone.file(STORE)
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def test_a_phone_is_described_in_one_call(device: AndroidDevice, phone: EmulatedPhone) -> None:
    info = device.describe()
    assert (info.id, info.kind, info.model) == (phone.id, "emulated", "Emulated E1")
    assert (info.soc, info.gpu) == ("QTI SM8550", "Adreno (TM) 740")
    assert (info.abi, info.system) == ("arm64-v8a", "Android 14 (API 34)")
    assert info.memory == 11452340 * 1024 and info.browser == "Chrome 142.0.7444.102"
    health = info.health
    assert (health.temperature, health.thermal, health.throttled) == (29.4, 0, False)
    assert health.battery == 81 and health.free and health.free > 8e9
    assert [name for name, why in info.targets.items() if not why] == ["litert", "webgpu"]


def test_nodes_that_a_phone_lacks_are_left_open(
    device: AndroidDevice, phone: EmulatedPhone
) -> None:
    phone.file("/proc/meminfo").unlink()
    policy = phone.file("/sys/devices/system/cpu/cpufreq/policy3")
    (policy / "scaling_max_freq").write_text("1000000\n")
    info = device.describe()
    assert info.memory is None and info.health.throttled is True
    (policy / "scaling_max_freq").unlink()
    assert device.health().throttled is None


def test_files_there_and_back(device: AndroidDevice, tmp_path: Path) -> None:
    for size in (0, 1, 65536, 3_000_001):
        file, back, gone = tmp_path / "file", tmp_path / "back", []
        file.write_bytes(random.Random(size).randbytes(size))
        device.push(file, "/data/local/tmp/x", gone.append)
        device.pull("/data/local/tmp/x", back)
        assert back.read_bytes() == file.read_bytes() and sum(gone) == size
    with pytest.raises(PocketSDError, match="No such file"):
        device.pull("/data/local/tmp/none", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_streams_and_exit_code_are_kept_apart(device: AndroidDevice) -> None:
    ran = device.run("cat", "/proc/meminfo", "/none")
    assert ran.out.startswith("MemTotal") and "No such file" in ran.err and ran.code == 1
    assert device.run("frobnicate").code == 127


def test_words_stay_words(device: AndroidDevice, phone: EmulatedPhone) -> None:
    assert device.run("echo", NASTY).out == f"{NASTY}\n"
    assert not phone.file("/data/x").exists()


def test_a_second_deployment_moves_next_to_nothing(
    device: AndroidDevice, phone: EmulatedPhone, package: Package, tmp_path: Path
) -> None:
    gone: dict[str, int] = {}

    def progress(count: int, name: str) -> None:
        gone[name] = gone.get(name, 0) + count

    first = deploy(device, package, progress=progress)
    assert_whole(phone, first)
    assert gone == {name: entry.bytes for name, entry in first.record.files.items()}
    assert phone.pushed > first.bytes > 2e6
    phone.faults()
    second = deploy(device, package)
    assert second.moved == () and phone.pushed < 10_000
    # Another package that shares all but its manifest's name: nothing but the record.
    third = deploy(device, package, name="other")
    assert third.moved == ()
    assert [r.name for r in deployed(device)] == ["other", "tiny.litert"]
    assert deployed(device)[1] == first.record


@pytest.mark.parametrize("seed", range(10))
def test_a_cable_pulled_anywhere(
    device: AndroidDevice, phone: EmulatedPhone, package: Package, seed: int
) -> None:
    size = sum(entry.bytes for entry in package.manifest.files.values())
    phone.faults(unplug_after=random.Random(seed).randrange(size))
    with pytest.raises(DeviceLostError):
        deploy(device, package)
    # What has its final name is whole, and no package is claimed to be there.
    for name in stored(phone):
        if not name.endswith(".partial"):
            assert hashlib.sha256(phone.file(f"{STORE}/{name}").read_bytes()).hexdigest() == name
    assert not list(phone.file(deploying.RECORDS).glob("*.json"))
    before = sum(not name.endswith(".partial") for name in stored(phone))
    phone.faults()
    phone.plug_in()
    done = deploy(device, package)
    assert len(done.moved) == len(done.record.files) - before
    assert_whole(phone, done)
    assert verify(device, done.record) == ()
    assert not [name for name in stored(phone) if name.endswith(".partial")]


def test_a_patient_deployment_goes_on_by_itself(
    device: AndroidDevice, phone: EmulatedPhone, package: Package
) -> None:
    phone.faults(unplug_after=1_000_000)
    back = threading.Timer(0.5, phone.faults)
    back.start()
    assert_whole(phone, deploy(device, package, patience=20))
    back.join()


def test_a_phone_that_restarts_on_the_way(
    device: AndroidDevice, phone: EmulatedPhone, package: Package
) -> None:
    restarted: list[bool] = []

    def progress(count: int, name: str) -> None:
        if not restarted:
            restarted.append(True)
            phone.reboot()

    assert_whole(phone, deploy(device, package, progress=progress, patience=20))


def test_adbs_server_killed_on_the_way(
    device: AndroidDevice, phone: EmulatedPhone, package: Package, server: AdbServer
) -> None:
    killed: list[bool] = []

    def progress(count: int, name: str) -> None:
        if not killed:
            killed.append(True)
            server.kill()

    with pytest.raises(DeviceLostError):
        deploy(device, package, progress=progress)
    killed.clear()
    phone.plug_in()
    assert_whole(phone, deploy(device, package, progress=progress, patience=20))


def test_a_phone_says_why_it_cannot_be_used(
    seen: Adb, phone: EmulatedPhone, pocketsd: Command
) -> None:
    phone.faults(authorized=False)
    phone.plug_in("unauthorized")
    with pytest.raises(PocketSDError, match="unlock the phone and accept"):
        seen.choose(phone.id)
    assert "unlock the phone and accept" in pocketsd("devices")[1]
    phone.faults()
    phone_state = [found.state for found in seen.found() if found.id == phone.id]
    for _ in range(100):
        if phone_state == ["device"]:
            break
        phone_state = [found.state for found in seen.found() if found.id == phone.id]
    assert seen.choose(phone.id).describe().kind == "emulated"
    phone.faults(plugged=False)
    with pytest.raises(PocketSDError, match="does not answer|not connected|no device"):
        for _ in range(100):
            seen.choose(phone.id)


def test_no_room_is_said_before_anything_travels(
    device: AndroidDevice, phone: EmulatedPhone, package: Package
) -> None:
    phone.faults(capacity=66_000_000)
    with pytest.raises(DeviceFullError, match="2 MB have to travel and 0 MB are free"):
        deploy(device, package)
    assert phone.pushed == 0 and stored(phone) == []


@pytest.mark.parametrize("room", [0, 150_000, 1_000_000])
def test_a_disk_that_fills_up_on_the_way(
    device: AndroidDevice, phone: EmulatedPhone, package: Package, room: int
) -> None:
    phone.faults(full_after=room)
    with pytest.raises(DeviceFullError, match="no space left on the device"):
        deploy(device, package)
    assert stored(phone) == [] and deployed(device) == []
    phone.faults()
    assert_whole(phone, deploy(device, package))


def test_damage_on_the_phone_is_noticed_and_mended(
    device: AndroidDevice, phone: EmulatedPhone, package: Package
) -> None:
    record = deploy(device, package).record
    file = phone.file(f"{STORE}/{record.files['unet.bin'].sha256}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert verify(device, record) == ("unet.bin",)
    done = deploy(device, package)
    assert done.damaged == done.moved == ("unet.bin",)
    assert_whole(phone, done)


def test_what_no_package_uses_is_freed(
    device: AndroidDevice, phone: EmulatedPhone, package: Package, tmp_path: Path
) -> None:
    other = deploy(device, small_package(tmp_path / "other.litert", seed=1, size=400_000))
    kept = deploy(device, package)
    remove(device, "other.litert")
    assert prune(device) == other.record.bytes and prune(device) == 0
    assert_whole(phone, kept)
    assert deployed(device) == [kept.record]
    with pytest.raises(PocketSDError, match="no package 'other.litert'"):
        remove(device, "other.litert")


def test_records_that_make_no_sense_are_left_out(
    device: AndroidDevice, phone: EmulatedPhone, package: Package
) -> None:
    kept = deploy(device, package).record
    folder = phone.file(deploying.RECORDS)
    (folder / "text.json").write_text("no JSON")
    (folder / "other.json").write_text((folder / "tiny.litert.json").read_text())
    hostile = (folder / "tiny.litert.json").read_text().replace("tiny.litert", "hostile")
    for entry in kept.files.values():
        hostile = hostile.replace(entry.sha256, "../../../x; touch /data/x")
    (folder / "hostile.json").write_text(hostile)
    assert deployed(device) == [kept]
    assert prune(device) == 0 and not phone.file("/data/x").exists()


def test_metacharacters_in_names_stay_data(
    device: AndroidDevice, phone: EmulatedPhone, package: Package, seen: Adb
) -> None:
    name = NASTY.replace("/", "_")
    deploy(device, package, name=name)
    assert [record.name for record in deployed(device)] == [name]
    remove(device, name)
    assert deployed(device) == []
    for refused in ("../x", "a/b", "", ".", "-rf", "a\nb", "x" * 101):
        with pytest.raises(PocketSDError):
            deploy(device, package, name=refused or "\0")
    with pytest.raises(PocketSDError, match="no device"):
        seen.choose(NASTY)
    assert not list(phone.file("/data").glob("x*"))


def test_two_phones_of_one_model(
    server: AdbServer, phone: EmulatedPhone, seen: Adb, package: Package, tmp_path: Path
) -> None:
    second = EmulatedPhone(server, tmp_path / "second", serial="emu").plug_in()
    try:
        with pytest.raises(PocketSDError, match="--device ID says which") as caught:
            seen.choose(None)
        assert phone.id in str(caught.value) and second.id in str(caught.value)
        deploy(seen.choose(second.id), package)
        assert stored(second) and not stored(phone)
    finally:
        second.close()


def test_the_command_line(phone: EmulatedPhone, package: Package, pocketsd: Command) -> None:
    _, shown, _ = pocketsd("devices")
    assert "emulated  Emulated E1" in shown and "runs litert, webgpu" in shown
    code, said, error = pocketsd("deploy", package.path)
    assert code == 0 and "6 of 6 files travelled" in said, error
    _, said, _ = pocketsd("deploy", package.path, "--list")
    assert "0 of 6 files travelled, 0.0 of 2.4 MB" in said
    assert "tiny.litert  litert  2.4 MB" in said
    assert "2.4 MB freed" in pocketsd("deploy", "--remove", "tiny.litert", "--prune")[1]
    code, _, error = pocketsd("deploy", package.path, "--device", "nobody")
    assert code == 2 and error.startswith("pocketsd: no device 'nobody'")
    assert len(error.splitlines()) == 1
