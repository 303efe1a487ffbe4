"""Everything we want to know of an Android phone, in one shell call; every part of it is optional.

Phones differ in what a shell may read. Whatever is missing or makes no sense stays unknown.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

from runtime_py.devices.protocol import THERMAL, DeviceInfo, Health, Kind

HOME = "/data/local/tmp"
CPUFREQ = "/sys/devices/system/cpu/cpufreq/policy*"

HEALTH = {
    "battery": "dumpsys battery",
    "thermal": "dumpsys thermalservice | grep -m1 'Thermal Status'",
    "clock": f"cat {CPUFREQ}/scaling_max_freq",
    "full clock": f"cat {CPUFREQ}/cpuinfo_max_freq",
    "disk": f"df -k {HOME}",
}
IDENTITY = {
    "properties": "getprop",
    "memory": "cat /proc/meminfo",
    "adreno": "cat /sys/class/kgsl/kgsl-3d0/gpu_model",
    "mali": "cat /sys/class/misc/mali0/device/gpuinfo",
    "gles": "dumpsys SurfaceFlinger | grep -m1 GLES:",
    "chrome": "dumpsys package com.android.chrome | grep -m1 versionName",
}
QEMU = ("ro.boot.qemu", "ro.kernel.qemu")

Answers = Mapping[str, str]


def script(parts: Mapping[str, str]) -> tuple[str, str]:
    """The parts as one script, and a mark that no phone can guess, to tell its answers apart."""
    mark = secrets.token_hex(8)
    lines = (f"echo {mark} {name}; {command} 2>/dev/null" for name, command in parts.items())
    return "; ".join(lines), mark


def answers(output: str, mark: str) -> Answers:
    pieces = output.split(f"{mark} ")[1:]
    named = (piece.partition("\n") for piece in pieces)
    return {name.strip(): answer for name, _, answer in named}


def health(said: Answers) -> Health:
    battery = _number(said, "battery", r"\btemperature: (-?\d+)")
    thermal = _number(said, "thermal", r"Thermal Status: (\d+)")
    return Health(
        temperature=None if battery is None else battery / 10,
        thermal=thermal if thermal is not None and thermal < len(THERMAL) else None,
        throttled=_throttled(said),
        battery=_number(said, "battery", r"\blevel: (\d+)"),
        free=_kilobytes(said, "disk", r"\s\d+\s+\d+\s+(\d+)\s+\d+%"),
    )


def identity(serial: str, said: Answers) -> DeviceInfo:
    properties = dict(re.findall(r"^\[([^\]]*)\]: \[(.*)\]", said.get("properties", ""), re.M))

    def known(*names: str) -> str:
        return printable(" ".join(filter(None, (properties.get(name, "") for name in names))))

    release, sdk = known("ro.build.version.release"), known("ro.build.version.sdk")
    abi = known("ro.product.cpu.abi")
    gles = re.search(r"GLES: [^,\n]*, ([^,\n]+)", said.get("gles", ""))
    nodes = (said.get("adreno", "").strip(), said.get("mali", "").strip())
    browser = re.search(r"versionName=([\w.]+)", said.get("chrome", ""))
    kind: Kind = "emulated" if any(properties.get(name) == "1" for name in QEMU) else "phone"
    return DeviceInfo(
        id=serial,
        kind=kind,
        model=known("ro.product.manufacturer", "ro.product.model"),
        soc=known("ro.soc.manufacturer", "ro.soc.model") or known("ro.board.platform"),
        gpu=printable(gles[1] if gles else next(filter(None, nodes), "")),
        abi=abi,
        system=f"Android {release} (API {sdk})" if release else "",
        memory=_kilobytes(said, "memory", r"MemTotal:\s*(\d+) kB"),
        browser=f"Chrome {browser[1]}" if browser else "",
        health=health(said),
        targets=targets(abi, _integer(sdk), browser[1] if browser else ""),
    )


def targets(abi: str, sdk: int | None, chrome: str) -> dict[str, str]:
    """Why a target cannot run on such a phone; empty: nothing speaks against it."""
    major = _integer(chrome.partition(".")[0])
    litert = webgpu = ""
    if abi != "arm64-v8a":
        litert = f"needs arm64-v8a, this is {abi or 'unknown'}"
    elif sdk is not None and sdk < 26:
        litert = f"needs Android 8 (API 26), this is API {sdk}"
    if sdk is not None and sdk < 31:
        webgpu = f"needs Android 12 (API 31), this is API {sdk}"
    elif major is None:
        webgpu = "needs Chrome, which is not installed"
    elif major < 121:
        webgpu = f"needs Chrome 121, this is {major}"
    return {
        "litert": litert,
        "webgpu": webgpu,
        "coreml": "runs on Apple's devices only",
        "torch": "runs on a host only",
    }


def printable(text: str) -> str:
    """A device's words for a terminal: no control characters, and not endless."""
    return "".join(c if c.isprintable() else " " for c in text)[:80].strip()


def _throttled(said: Answers) -> bool | None:
    """Whether any cluster is held below its own full clock."""
    now, full = (_numbers(said.get(name, "")) for name in ("clock", "full clock"))
    if not now or len(now) != len(full):
        return None
    return any(a < b for a, b in zip(now, full, strict=True))


def _numbers(text: str) -> Sequence[int]:
    return [n for n in map(_integer, text.split()) if n is not None]


def _number(said: Answers, part: str, pattern: str) -> int | None:
    found = re.search(pattern, said.get(part, ""))
    return _integer(found[1]) if found else None


def _kilobytes(said: Answers, part: str, pattern: str) -> int | None:
    count = _number(said, part, pattern)
    return None if count is None else count * 1024


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None
