"""The form of each layer that costs least, under a mean number of bits.

Every layer takes exactly one form; noises add up, and so do bits. That is a knapsack, solved
exactly: the least noise for every number of bits, layer after layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from converter.quantize.forms import WeightForm, bits_per_weight
from converter.quantize.layers import Shapes
from runtime_py.errors import PocketSDError

#: Steps to a mean bit. A layer's bits are rounded up to whole steps: of 300 layers, 0.01 bits go
#: to waste. The step does not depend on the target, so that more bits never choose worse.
STEPS = 2**14

Noises = Mapping[str, Mapping[WeightForm, float]]


def choose(noises: Noises, shapes: Shapes, bits: float) -> dict[str, WeightForm]:
    """The forms by layer with the least noise in total, at no more than `bits` a weight."""
    total = sum(math.prod(shapes[layer]) for layer in noises)
    options = {layer: _options(found, shapes[layer], total) for layer, found in noises.items()}
    room = math.floor(bits * STEPS)
    least = sum(forms[0][1] for forms in options.values())
    if least > room:
        raise PocketSDError(
            f"no choice of these forms has {bits:g} bits a weight (the least is"
            f" {math.ceil(100 * least / STEPS) / 100:g})"
        )
    best, chosen = np.zeros(room + 1), []
    for forms in options.values():
        best, which = _with_layer(best, forms)
        chosen.append(which)
    left = int(np.argmax(best == best[-1]))  # the fewest bits that do as well
    result: dict[str, WeightForm] = {}
    for (layer, forms), which in reversed(list(zip(options.items(), chosen, strict=True))):
        form, steps, _ = forms[which[left]]
        result[layer] = form
        left -= steps
    return {layer: result[layer] for layer in noises}


def mean_bits(forms: Mapping[str, WeightForm], shapes: Shapes) -> float:
    counts = {layer: math.prod(shapes[layer]) for layer in forms}
    bits = sum(counts[layer] * bits_per_weight(f, shapes[layer]) for layer, f in forms.items())
    return bits / sum(counts.values())


def predicted(forms: Mapping[str, WeightForm], noises: Noises) -> float:
    """The noise of all layers together."""
    return sum(noises[layer][form] for layer, form in forms.items())


Option = tuple[WeightForm, int, float]  # form, steps, noise


def _options(found: Mapping[WeightForm, float], shape: tuple[int, ...], total: int) -> list[Option]:
    """Fewest bits first; only those that buy something with their bits."""
    count = math.prod(shape)
    every = sorted(
        (math.ceil(bits_per_weight(form, shape) * count * STEPS / total), noise, str(form), form)
        for form, noise in found.items()
    )
    kept: list[Option] = []
    for steps, noise, _, form in every:
        if not kept or noise < kept[-1][2]:
            kept.append((form, steps, noise))
    return kept


def _with_layer(
    best: NDArray[np.float64], forms: list[Option]
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """The least noise by steps once this layer is among them, and the form that it then has."""
    least = np.full_like(best, np.inf)
    which = np.zeros(len(best), np.uint8)
    for number, (_, steps, noise) in enumerate(forms):
        if steps >= len(best):
            break
        candidate = best[: len(best) - steps] + noise
        better = candidate < least[steps:]
        which[steps:][better] = number
        np.minimum(least[steps:], candidate, out=least[steps:])
    return least, which
