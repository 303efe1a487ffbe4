"""What the emulated phone says of itself: a Snapdragon 8 Gen 2, which owns up to being emulated."""

from __future__ import annotations

from pathlib import Path

from tests.support.adb_shell import Phone

CAPACITY = 8 << 30
NODES = {
    "/proc/meminfo": "MemTotal:       11452340 kB\nMemFree:          412332 kB\n"
    "MemAvailable:    5734412 kB\n",
    "/sys/class/kgsl/kgsl-3d0/gpu_model": "Adreno740v2\n",
    "/sys/class/kgsl/kgsl-3d0/gpuclk": "220000000\n",
    "/sys/class/kgsl/kgsl-3d0/max_gpuclk": "680000000\n",
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "2016000\n",
    "/sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "2016000\n",
    "/sys/devices/system/cpu/cpufreq/policy3/scaling_max_freq": "2803200\n",
    "/sys/devices/system/cpu/cpufreq/policy3/cpuinfo_max_freq": "2803200\n",
    "/sys/devices/system/cpu/cpufreq/policy7/scaling_max_freq": "3187200\n",
    "/sys/devices/system/cpu/cpufreq/policy7/cpuinfo_max_freq": "3187200\n",
}
DUMPS = {
    "battery": "Current Battery Service state:\n  AC powered: false\n  USB powered: true\n"
    "  status: 2\n  health: 2\n  present: true\n  level: 81\n  scale: 100\n  voltage: 4216\n"
    "  temperature: 294\n  technology: Li-ion\n",
    "thermalservice": "IsStatusOverride: false\nThermal Status: 0\nCached temperatures:\n"
    "\tTemperature{mValue=36.1, mType=3, mName=skin, mStatus=0}\n",
    "SurfaceFlinger": "Build configuration: [sf]\nGLES: Qualcomm, Adreno (TM) 740, "
    "OpenGL ES 3.2 V@0676.35 (GIT@0123456)\n",
    "package com.android.chrome": "Packages:\n  Package [com.android.chrome] (3fa1)\n"
    "    versionName=142.0.7444.102\n",
}


def phone_like(folder: Path, serial: str, model: str) -> Phone:
    """A phone whose files are in `folder`; those that are there already are kept."""
    for name, content in NODES.items():
        file = folder / name[1:]
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
    for name in ("data/local/tmp", "sdcard"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    properties = {
        "ro.serialno": serial,
        "ro.product.manufacturer": "Emulated",
        "ro.product.model": model,
        "ro.product.name": "emulated",
        "ro.product.device": "emulated",
        "ro.build.version.release": "14",
        "ro.build.version.sdk": "34",
        "ro.soc.manufacturer": "QTI",
        "ro.soc.model": "SM8550",
        "ro.board.platform": "kalama",
        "ro.product.cpu.abi": "arm64-v8a",
        "ro.product.cpu.abilist": "arm64-v8a,armeabi-v7a,armeabi",
        "ro.hardware.egl": "adreno",
        "ro.hardware.vulkan": "adreno",
        "ro.boot.qemu": "1",
    }
    packages = ("android", "com.android.chrome", "com.android.settings")
    return Phone(folder, properties, dict(DUMPS), packages, CAPACITY)
