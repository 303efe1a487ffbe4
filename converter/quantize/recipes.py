"""The recipes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LAYERS = ("CONV_2D", "FULLY_CONNECTED", "EMBEDDING_LOOKUP")  # whatever has trained weights


class Form(Enum):
    """What becomes of a layer."""

    FP16 = "weights in fp16"
    INT8_WEIGHTS = "weights in int8 by channel, arithmetic in float"
    INT8_DYNAMIC = "weights in int8 by channel, activations quantised as they come"
    INT8_STATIC = "weights and activations in int8, ranges fixed by calibration"


@dataclass(frozen=True)
class Rule:
    """Later rules win over earlier ones."""

    form: Form
    ops: tuple[str, ...] = LAYERS
    edges: bool = False  # only where a latent or a picture enters or leaves


@dataclass(frozen=True)
class Recipe:
    """`rules` by component; the components not named there take those under "*"."""

    runs_on: str
    rules: dict[str, tuple[Rule, ...]]
    weight_bytes: float = 4  # of most weights: what a file is expected to take

    def of(self, component: str) -> tuple[Rule, ...]:
        return self.rules.get(component, self.rules.get("*", ()))

    @property
    def needs_calibration(self) -> bool:
        return any(self.calibrates(component) for component in self.rules)

    def calibrates(self, component: str) -> bool:
        return any(rule.form is Form.INT8_STATIC for rule in self.of(component))


MATRICES = ("CONV_2D", "FULLY_CONNECTED")
#: Not the token table: the delegate takes its lookup in fp32 only.
_FP16 = (Rule(Form.FP16, MATRICES),)
#: A few thousand bytes that are worth 3 to 4 dB in the UNet and 6 to 13 in the VAE.
_EDGES = Rule(Form.FP16, MATRICES, edges=True)
#: In int8 the decoder falls from 115 to 53 dB, the encoder from 85 to 54, and a package of SD 1.5
#: shrinks by 8 %: they stay in fp16.
_VAE = {"vae_decoder": _FP16, "vae_encoder": _FP16}
#: TFLite 2.17, which shipped apps carry, computes a lookup of int8 rows wrongly.
_TABLE = Rule(Form.FP16, ("EMBEDDING_LOOKUP",))

RECIPES: dict[str, dict[str, Recipe]] = {
    "litert": {
        "fp16": Recipe("GPU (arithmetic in fp16) and CPU", {"*": _FP16}, 2),
        "fp32": Recipe("GPU (arithmetic in fp32) and CPU", {}, 4),
        "int8": Recipe(
            "CPU", {"*": (Rule(Form.INT8_DYNAMIC, MATRICES), _EDGES, _TABLE), **_VAE}, 1
        ),
        "int8-weights": Recipe("CPU", {"*": (Rule(Form.INT8_WEIGHTS), _EDGES), **_VAE}, 1),
        "w8a8": Recipe("CPU", {"unet": (Rule(Form.INT8_STATIC, MATRICES), _EDGES), "*": _FP16}, 1),
    }
}


def get_recipe(target: str, name: str) -> Recipe:
    return RECIPES[target][name]
