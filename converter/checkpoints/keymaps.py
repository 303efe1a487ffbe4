"""The original Stable Diffusion layout, computed from a config: canonical module name to original.

Going from canonical to original makes each map a plain function of one name. The other direction is
the inverse of that function over a model's names, so the two can never disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from converter.models.config import ComponentConfig, UNetConfig, VaeConfig

ORIGINAL_PREFIX = {
    "text_encoder": "cond_stage_model.transformer.",
    "unet": "model.diffusion_model.",
    "vae": "first_stage_model.",
}
EMA_PREFIX = "model_ema."

_UNET_ENDS = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_UNET_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_VAE_ATTENTION = {
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
}
_VAE_ATTENTION_BEFORE_2023 = {
    "query": "to_q",
    "key": "to_k",
    "value": "to_v",
    "proj_attn": "to_out.0",
}


def original_module(module: str, config: ComponentConfig) -> str:
    """Where the original layout keeps a module (a name without its .weight or .bias)."""
    if isinstance(config, UNetConfig):
        return _original_unet(module, config)
    if isinstance(config, VaeConfig):
        return _original_vae(module, config)
    return f"text_model.{module}"


def original_names(names: Iterable[str], config: ComponentConfig) -> dict[str, str]:
    """Original name to canonical name, for all canonical `names` of one component."""
    table = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        table[f"{original_module(module, config)}.{leaf}"] = name
    return table


def canonical_text_encoder_name(name: str) -> str:
    """transformers wraps the text tower in `text_model.` or not, depending on its version."""
    return name.removeprefix("text_model.")


def canonical_vae_name(name: str) -> str:
    """diffusers renamed the autoencoder's attention layers in 2023."""
    head, found, rest = name.partition(".attentions.0.")
    module, _, leaf = rest.rpartition(".")
    return (
        f"{head}{found}{_VAE_ATTENTION_BEFORE_2023.get(module, module)}.{leaf}" if found else name
    )


def original_name_of_ema(name: str) -> str:
    """Undo the naming of EMA copies, which lost every dot.

    Digits would be ambiguous but for two facts: a block's second index is a single digit, and the
    rest of a name is one of few.
    """
    flat = name.removeprefix(EMA_PREFIX).removeprefix("diffusion_model")
    block = re.fullmatch(r"(input_blocks|output_blocks)(\d+)(\d)([a-z].*)", flat)
    if block:
        return f"{block[1]}.{block[2]}.{block[3]}.{_dotted_ema_leaf(block[4])}"
    middle = re.fullmatch(r"middle_block(\d)([a-z].*)", flat)
    if middle:
        return f"middle_block.{middle[1]}.{_dotted_ema_leaf(middle[2])}"
    return _dotted_ema_leaf(flat)


def _original_unet(module: str, config: UNetConfig) -> str:
    if module in _UNET_ENDS:
        return _UNET_ENDS[module]
    stride = config.depth + 1
    match module.split("."):
        case ["down_blocks", level, "downsamplers", "0", "conv"]:
            return f"input_blocks.{(int(level) + 1) * stride}.0.op"
        case ["down_blocks", level, kind, index, *rest]:
            return f"input_blocks.{1 + int(level) * stride + int(index)}.{_inside_unet(kind, rest)}"
        case ["mid_block", "resnets", index, *rest]:
            return f"middle_block.{2 * int(index)}.{_UNET_RESNET['.'.join(rest)]}"
        case ["mid_block", "attentions", "0", *rest]:
            return f"middle_block.1.{'.'.join(rest)}"
        case ["up_blocks", level, "upsamplers", "0", "conv"]:
            # The upsampler follows the last block's attention, where there is one.
            position = 1 + config.attention[len(config.attention) - 1 - int(level)]
            return f"output_blocks.{int(level) * stride + config.depth}.{position}.conv"
        case ["up_blocks", level, kind, index, *rest]:
            return f"output_blocks.{int(level) * stride + int(index)}.{_inside_unet(kind, rest)}"
    return module


def _inside_unet(kind: str, rest: list[str]) -> str:
    leaf = ".".join(rest)
    return f"0.{_UNET_RESNET.get(leaf, leaf)}" if kind == "resnets" else f"1.{leaf}"


def _original_vae(module: str, config: VaeConfig) -> str:
    match module.split("."):
        case [side, "conv_norm_out"]:
            return f"{side}.norm_out"
        case [side, "mid_block", "resnets", index, *rest]:
            return f"{side}.mid.block_{int(index) + 1}.{_inside_vae(rest)}"
        case [side, "mid_block", "attentions", "0", *rest]:
            return f"{side}.mid.attn_1.{_VAE_ATTENTION['.'.join(rest)]}"
        case [side, "down_blocks" | "up_blocks" as way, level, kind, index, *rest]:
            # The original counts levels from the outside in on both sides.
            outer = int(level) if way == "down_blocks" else len(config.widths) - 1 - int(level)
            block = f"{side}.{way.removesuffix('_blocks')}.{outer}"
            if kind == "resnets":
                return f"{block}.block.{index}.{_inside_vae(rest)}"
            return f"{block}.{kind.removesuffix('rs')}.conv"
    return module


def _inside_vae(rest: list[str]) -> str:
    return ".".join(rest).replace("conv_shortcut", "nin_shortcut")


_TRANSFORMER_LEAVES = tuple(
    f"transformer_blocks.0.{leaf}"
    for leaf in (
        *(f"{attn}.to_{part}" for attn in ("attn1", "attn2") for part in ("q", "k", "v", "out.0")),
        "ff.net.0.proj",
        "ff.net.2",
        "norm1",
        "norm2",
        "norm3",
    )
)
_EMA_LEAVES = {
    f"{module}.{leaf}".replace(".", ""): f"{module}.{leaf}"
    for module in (
        *_UNET_RESNET.values(),
        *_TRANSFORMER_LEAVES,
        *("norm", "proj_in", "proj_out", "op", "conv"),
        *("time_embed.0", "time_embed.2", "out.0", "out.2"),
    )
    for leaf in ("weight", "bias")
}


def _dotted_ema_leaf(flat: str) -> str:
    return _EMA_LEAVES.get(flat, flat)
