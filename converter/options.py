"""What `pocketsd convert` can be asked for, and what of it makes no sense together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from converter import sampling
from converter.components import COMPONENTS
from converter.quantize.recipe_file import WeightRecipe
from converter.targets import Wanted, get_target, settings_of
from runtime_py.errors import PocketSDError
from runtime_py.recording import Recording

NAMES = tuple(spec.name for spec in COMPONENTS)
#: The precision that a recipe file spells out.
RECIPE = "recipe"


@dataclass(frozen=True)
class Options:
    """What `pocketsd convert` can be asked for."""

    target: str = "torch"
    precision: str | None = None
    components: tuple[str, ...] = ()  # none: all
    height: int | None = None
    width: int | None = None
    batch_cfg: int = 2
    schedulers: tuple[str, ...] = ("dpm++-2m",)
    steps: tuple[int, ...] = (20,)
    recording: Recording | None = None  # what to calibrate on
    settings: Mapping[str, str] = field(default_factory=dict)  # `attention` or `unet.attention`
    recipe: WeightRecipe | None = None  # a form for each layer
    sizes: tuple[tuple[int, int], ...] = ()  # further ones (height, width), sharing the weights


def check(options: Options) -> None:
    """Refuse what cannot be meant, before a checkpoint is read."""
    target, precision = get_target(options.target), precision_of(options)
    if missing := [module for module in target.needs if find_spec(module) is None]:
        raise PocketSDError(
            f"target {target.name} needs {', '.join(missing)}, which is not installed",
            mend=f"pip install 'pocketsd[convert-{target.name}]'",
        )
    if precision in target.calibrated and options.recording is None:
        raise PocketSDError(
            f"precision {precision} needs recorded inputs to calibrate on",
            mend="`pocketsd record` makes them, --calibration FILE gives them",
        )
    for name in options.components:
        if name not in NAMES:
            raise PocketSDError(f"no component {name!r} (there are {', '.join(NAMES)})")
    for name in options.schedulers:
        sampling.recipe_of(name)
    for key in options.settings:
        component = key.rpartition(".")[0]
        if component and component not in NAMES:
            raise PocketSDError(f"no component {component!r} (there are {', '.join(NAMES)})")
    if options.sizes and not target.several_sizes:
        raise PocketSDError(
            f"target {target.name} holds one size a package", mend="convert once for each size"
        )
    for name in NAMES:
        settings = settings_of(target, options.settings, name)
        sizes = 1 + len(options.sizes)
        target.check(Wanted(name, precision, settings, options.recipe, sizes))


def precision_of(options: Options) -> str:
    """The one asked for, or the target's first; a recipe file is a precision of its own."""
    target = get_target(options.target)
    precision = options.precision or (RECIPE if options.recipe else target.precisions[0])
    if precision not in target.precisions:
        have = ", ".join(target.precisions)
        raise PocketSDError(f"target {target.name} has no precision {precision!r} (it has {have})")
    if (precision == RECIPE) != (options.recipe is not None):
        raise PocketSDError(
            f"precision {precision} and {'a' if options.recipe else 'no'} recipe file",
            mend="give --recipe FILE, without --precision",
        )
    return precision
