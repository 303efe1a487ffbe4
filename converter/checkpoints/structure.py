"""What a component must hold, by name and shape, and the check that it holds just that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

import torch

from converter.checkpoints.files import read_json
from converter.models.config import CONFIGS, ComponentConfig
from runtime_py.errors import PocketSDError

Shape = tuple[int, ...]


def shapes_of(component: str, config: ComponentConfig) -> Mapping[str, Shape]:
    """Canonical names and shapes of a component's weights, from the model itself."""
    try:
        return _shapes_of(component, config)
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError):
        raise PocketSDError(
            f"{component}: a model of this architecture cannot be built: {config}"
        ) from None


@cache
def _shapes_of(component: str, config: ComponentConfig) -> Mapping[str, Shape]:
    from converter.models import build  # slow to import, and inspection does without

    with torch.device("meta"):
        model = build(component, config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def read_config(component: str, path: Path) -> ComponentConfig:
    """A component's architecture from the JSON that diffusers keeps beside its weights."""
    try:
        config = CONFIGS[component].from_diffusers(read_json(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise PocketSDError(f"{component}: config.json is incomplete or odd: {error}") from None
    for field in fields(config):
        value = getattr(config, field.name)
        if not _is_like(value, field.default):
            raise PocketSDError(f"{component}: config.json gives {field.name} as {value!r:.60}")
    return config


def fitted(
    component: str, config: ComponentConfig, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors in the model's order and shapes; refuses what is missing, misshapen or extra."""
    expected = shapes_of(component, config)
    _refuse(component, "missing", [name for name in expected if name not in tensors])
    _refuse(component, "not part of the model", [name for name in tensors if name not in expected])
    result = {name: _as_shape(tensors[name], shape) for name, shape in expected.items()}
    wrong = [name for name, shape in expected.items() if tuple(result[name].shape) != shape]
    if wrong:
        first = wrong[0]
        raise PocketSDError(
            f"{component}: {_count(len(wrong))} of another shape, first {first} "
            f"is {_dims(tensors[first].shape)} instead of {_dims(expected[first])}"
        )
    return result


def _is_like(value: object, example: object) -> bool:
    """Whether a value read from JSON is of the kind that a config's default is of."""
    if isinstance(example, tuple):
        return isinstance(value, tuple) and all(_is_like(item, example[0]) for item in value)
    if isinstance(example, bool) or isinstance(value, bool):
        return isinstance(value, type(example))
    if isinstance(example, float):
        return isinstance(value, int | float) and abs(value) < 1e30
    return isinstance(value, type(example)) and (not isinstance(value, int) or 0 < value < 2**20)


def _as_shape(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A linear layer may be stored as a 1x1 convolution and the other way round."""
    same = _without_trailing_ones(tensor.shape) == _without_trailing_ones(shape)
    return tensor.reshape(shape) if same and tuple(tensor.shape) != shape else tensor


def _without_trailing_ones(shape: Iterable[int]) -> Shape:
    sizes = tuple(shape)
    while sizes[-1:] == (1,):
        sizes = sizes[:-1]
    return sizes


def _refuse(component: str, what: str, names: list[str]) -> None:
    if names:
        raise PocketSDError(f"{component}: {_count(len(names))} {what}, first {names[0]}")


def _count(number: int) -> str:
    return f"{number} weight{'' if number == 1 else 's'}"


def _dims(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "a single number"
