"""The kernels of mobile_assets/kernels as finished WGSL: every choice of structure made here.

What remains open are numbers (sizes, strides). The kernels declare them as overrides, which would
want a pipeline for every set of them; a phone compiles a UNet's 30 shaders in the time that it
would take for a part of 150 such pipelines, so they are rewritten here as members of a uniform.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader


@dataclass(frozen=True)
class Shader:
    name: str
    source: str
    numbers: tuple[tuple[str, str], ...]  # name and type, in the order of the uniform

    def packed(self, values: Mapping[str, float]) -> bytes:
        """The uniform's bytes."""
        if set(values) != {name for name, _ in self.numbers}:
            raise ValueError(f"{self.name} wants {self.numbers}, got {sorted(values)}")
        form = "<" + "".join("f" if kind == "f32" else "I" for _, kind in self.numbers)
        packed = struct.pack(form, *(values[name] for name, _ in self.numbers))
        return packed.ljust(-(-len(packed) // 16) * 16, b"\0")


OVERRIDE = re.compile(r"override (\w+): (u32|f32);[ ]*")


def render(kernel: str, options: Mapping[str, Any]) -> Shader:
    """The variant of a kernel that these options ask for."""
    source = _environment().get_template(f"{kernel}.wgsl").render(options).strip() + "\n"
    numbers = tuple(OVERRIDE.findall(source))
    source = OVERRIDE.sub("", source)
    if numbers:
        names = "|".join(name for name, _ in numbers)
        source = re.sub(rf"\b({names})\b", r"number.\1", source)
        members = ", ".join(f"{name}: {kind}" for name, kind in numbers)
        binding = source.count("@binding(")
        source += f"struct Numbers {{ {members} }}\n"
        source += f"@group(0) @binding({binding}) var<uniform> number: Numbers;\n"
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    return Shader(f"{kernel}-{digest}", source, numbers)


def kernels() -> list[str]:
    folder = files("mobile_assets") / "kernels"
    names = [entry.name.removesuffix(".wgsl") for entry in folder.iterdir()]
    return sorted(name for name in names if not name.startswith("_"))


@cache
def _environment() -> Environment:
    folder = files("mobile_assets") / "kernels"
    # An option nobody gave is off.
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text()),
        trim_blocks=False,
        autoescape=False,
    )
    environment.globals["sum"] = weighted_sum
    return environment


def weighted_sum(factors: Sequence[float], name: str) -> str:
    """`2.0 * d0 - d3`: what is left of a row of a matrix times a column of variables."""
    terms = [(f, f"{name}{i}") for i, f in enumerate(factors) if f]
    text = " + ".join(v if f == 1 else f"-{v}" if f == -1 else f"{f!r} * {v}" for f, v in terms)
    return text or "F()"
