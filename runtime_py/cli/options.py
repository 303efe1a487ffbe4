"""Option types and options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class WeightedFile(click.ParamType[tuple[Path, float]]):
    """FILE or FILE:WEIGHT, as in `--lora style.safetensors:0.8`."""

    name = "file[:weight]"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Path, float]:
        if isinstance(value, tuple):
            return value
        path, _, weight = str(value).rpartition(":")
        if not path or not _is_number(weight):
            return Path(str(value)), 1.0
        return Path(path), float(weight)


class NamedValue(click.ParamType[tuple[str, str]]):
    """NAME=VALUE, as in `--set ios=17`."""

    name = "name=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, given = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not like ios=17")
        return name, given


class Size(click.ParamType[tuple[int, int]]):
    """WIDTHxHEIGHT, given on as (height, width)."""

    name = "WIDTHxHEIGHT"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        width, _, height = str(value).partition("x")
        if not (width.isdecimal() and height.isdecimal() and len(width + height) <= 8):
            self.fail(f"{value!r} is not like 768x512")
        return int(height), int(width)


class Margins(click.ParamType[dict[str, int]]):
    """left=64,top=32 : pixels to add on each side."""

    name = "side=pixels,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        margins = {}
        for part in str(value).split(","):
            side, _, pixels = part.partition("=")
            if (
                side.strip() not in ("left", "right", "top", "bottom")
                or not pixels.strip().isdigit()
            ):
                self.fail(f"{part!r} is not like left=64 (sides: left, right, top, bottom)")
            margins[side.strip()] = int(pixels)
        return margins


def size_options(function: F) -> F:
    for name in ("width", "height"):
        function = click.option(f"--{name}", type=click.IntRange(8, 4096), help="Picture size.")(
            function
        )
    return function


def engine_options(function: F) -> F:
    function = click.option(
        "--threads", type=click.IntRange(1, 256), help="On the CPU. [all it has]"
    )(function)
    function = click.option(
        "--adapter", help="Part of a GPU's name, for webgpu. [the likeliest GPU]"
    )(function)
    function = click.option(
        "--compute-units",
        help="Of Core ML, on macOS: all, cpu-only, cpu-and-gpu or cpu-and-ne. [all]",
    )(function)
    return click.option("--accelerator", help="cpu or gpu, where the engine has both. [cpu]")(
        function
    )


overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the output if it exists."
)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
