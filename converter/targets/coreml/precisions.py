"""The precisions of Core ML packages: what becomes of weights, and which iOS can read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from converter.quantize.forms import FP16, Affine, Palette, WeightForm, parse_form
from runtime_py.errors import PocketSDError

W8A8, RECIPE = "w8a8", "recipe"
FORMS = ("int8", "int4", *(f"palette{bits}" for bits in (8, 6, 4, 3, 2, 1)), "palette4-g16")
PRECISIONS = ("fp16", "fp32", *FORMS, W8A8, RECIPE)
#: The VAE is 8 % of SD 1.x's weights, and what it loses is seen in every picture: a recipe may
#: compress it, nothing else does.
COMPRESSED = ("text_encoder", "unet")


@dataclass(frozen=True)
class Precision:
    wide: bool = False
    form: WeightForm = FP16
    activations: bool = False  # of the UNet, in int8 too


def precision(name: str, component: str) -> Precision:
    if name == "fp32":
        return Precision(wide=True)
    if component not in COMPRESSED or name in ("fp16", RECIPE):
        return Precision()
    if name == W8A8:
        return Precision(form=Affine(8), activations=component == "unet")
    return Precision(form=parse_form(name))


def oldest_ios(form: WeightForm) -> int:
    """The first that can decode weights in this form."""
    if isinstance(form, Palette):
        return 18 if form.group or form.bits == 3 else 16
    if isinstance(form, Affine):
        return 18 if form.block or form.bits < 8 else 16
    return 16


def require_ios(what: Mapping[str, WeightForm], ios: int, activations: bool = False) -> None:
    """Refuse forms that the oldest iOS cannot decode; `what` names whose they are."""
    for owner, form in what.items():
        if oldest_ios(form) > ios:
            raise PocketSDError(
                f"{owner}: {form} needs iOS {oldest_ios(form)}, not {ios}",
                mend="--set ios=18, or another form",
            )
    if activations and ios < 17:
        raise PocketSDError("w8a8 needs iOS 17, not 16", mend="--set ios=17")
