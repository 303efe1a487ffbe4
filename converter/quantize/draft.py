"""A recipe for one component: measure its layers, choose their forms, measure the choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from converter.quantize.choose import Noises, choose, mean_bits, predicted
from converter.quantize.forms import FP16, WeightForm
from converter.quantize.layers import Shapes, shapes_of
from converter.quantize.recipe_file import ComponentRecipe
from converter.quantize.sensitivity import (
    Subject,
    compressed,
    decibels,
    extrapolated,
    sensitivities,
)

#: Of PSNR, in files and tables: what is equal to the bit has no noise.
MOST_DECIBELS = 999.0


@dataclass(frozen=True)
class Draft:
    recipe: ComponentRecipe
    mean_bits: float
    predicted: float  # PSNR, dB
    measured: float  # of all layers compressed together
    worst: float  # at the worst sample
    samples: int
    forms: Mapping[str, WeightForm]  # by layer
    coarsest: WeightForm
    noises: Noises

    def most_sensitive(self, count: int) -> list[tuple[str, float]]:
        """Layers and what PSNR would be with them alone in the coarsest form."""
        alone = {layer: psnr(found[self.coarsest]) for layer, found in self.noises.items()}
        return sorted(alone.items(), key=lambda item: item[1])[:count]

    def figures(self) -> dict[str, Any]:
        """For the recipe's file."""
        return {
            "mean_bits": round(self.mean_bits, 3),
            "predicted_psnr": self.predicted,
            "measured_psnr": self.measured,
            "worst_sample_psnr": self.worst,
            "samples": self.samples,
            "layers": {
                layer: {str(form): psnr(noise) for form, noise in found.items()}
                for layer, found in self.noises.items()
            },
        }


def draft(
    subject: Subject,
    forms: Iterable[WeightForm],
    bits: float,
    *,
    quick: bool = False,
    advance: Callable[[str], None] = lambda layer: None,
) -> Draft:
    """The best recipe of these forms, and fp16, under a mean number of bits.

    `quick` measures each layer in the coarsest form only, and reckons the others from that.
    """
    shapes = shapes_of(subject.module)
    candidates = sorted({*forms, FP16}, key=lambda form: (_bits(form, shapes), str(form)))
    coarsest = candidates[0]
    # What cannot be reached is said before hours are spent on measuring.
    choose({layer: dict.fromkeys(candidates, 0.0) for layer in shapes}, shapes, bits)
    if quick:
        noises = extrapolated(subject, candidates, coarsest, advance=advance)
    else:
        noises = sensitivities(subject, candidates, advance=advance)
    chosen = choose(noises, shapes, bits)
    with compressed(subject.module, chosen):
        measured = subject.noises()
    return Draft(
        recipe=_compact(chosen),
        mean_bits=mean_bits(chosen, shapes),
        predicted=psnr(predicted(chosen, noises)),
        measured=psnr(sum(measured) / len(measured)),
        worst=psnr(max(measured)),
        samples=len(measured),
        forms=chosen,
        coarsest=coarsest,
        noises=noises,
    )


def psnr(noise: float) -> float:
    return round(min(decibels(noise), MOST_DECIBELS), 2)


def _bits(form: WeightForm, shapes: Shapes) -> float:
    return mean_bits(dict.fromkeys(shapes, form), shapes)


def _compact(chosen: dict[str, WeightForm]) -> ComponentRecipe:
    """The commonest form as the default, by name where the others differ."""
    counts = Counter(chosen.values())
    default = max(counts, key=lambda form: (counts[form], str(form)))
    return ComponentRecipe(default, {k: form for k, form in chosen.items() if form != default})
