"""What weights are, from their names and shapes alone: the kind of file, and its architecture.

Everything here reads names and shapes only, so it works on tensors that have no data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from converter.checkpoints.checkpoint import Tensors
from converter.checkpoints.keymaps import EMA_PREFIX, ORIGINAL_PREFIX
from converter.models.config import ComponentConfig, TextEncoderConfig, UNetConfig, VaeConfig
from runtime_py.errors import PocketSDError

CLIP_HEAD_WIDTH = 64

# Left behind by training; nothing of it is needed to draw a picture.
_HARMLESS = re.compile(
    r"(^|\.)position_ids$|(^|\.)logit_scale$|(^|\.)text_projection(\.weight)?$"
    r"|^(betas|alphas_cumprod|alphas_cumprod_prev|lvlb_weights|logvar|v_pred|ztsnr|scale_factor)$"
    r"|^(sqrt|log|posterior)_[a-z0-9_]+$"
    r"|^(safety_checker|cond_stage_model\.vision_model|embedding_manager|denoiser|sigmas)(\.|$)"
    r"|^(first_stage_model\.)?(loss|model_ema)\."
)


@dataclass(frozen=True)
class Kind:
    """`name` is checkpoint, lora, embedding, unet, vae, text encoder, unsupported or unknown."""

    name: str
    what: str


# First match wins, so the more particular signs stand above the more general ones.
_SIGNS: tuple[tuple[str, str, str], ...] = (
    ("unsupported", "a DoRA", r"\.dora_scale$|lora_magnitude_vector"),
    ("unsupported", "a LoHa (Hadamard product) adapter", r"\.hada_w"),
    ("unsupported", "a LoKr (Kronecker product) adapter", r"\.lokr_w"),
    ("unsupported", "an OFT adapter", r"\.oft_(blocks|diag)"),
    ("unsupported", "an IA3 adapter", r"\.on_input$|\.ia3_l"),
    ("unsupported", "an SDXL LoRA", r"^lora_te2_|^text_encoder_2\..*lora|lora_unet_.*label_emb"),
    ("unsupported", "a Flux LoRA", r"(double|single)_blocks?_.*lora_|single_transformer_.*lora_"),
    ("lora", "a LoRA", r"[._]lora(_linear_layer)?[._](down|up|A|B)\."),
    ("unsupported", "a full-difference adapter", r"^lora_.*\.diff(_b)?$"),
    ("unsupported", "an SDXL textual-inversion embedding", r"^clip_g$"),
    ("embedding", "a textual-inversion embedding", r"^string_to_param\.|^emb_params$"),
    ("unsupported", "an IP-Adapter", r"^ip_adapter\.|^image_proj"),
    ("unsupported", "an AnimateDiff motion module", r"motion_modules\."),
    (
        "unsupported",
        "a ControlNet",
        r"^control_model\.|input_hint_block|controlnet_(cond_embedding|down_blocks)|zero_convs\.",
    ),
    ("unsupported", "a Stable Diffusion 3 model", r"joint_blocks\.|\bcontext_embedder\."),
    ("unsupported", "a Flux model", r"double_blocks\.|single_transformer_blocks\."),
    ("unsupported", "a Stable Video Diffusion model", r"\.time_(stack|mixer)\."),
    (
        "unsupported",
        "an SDXL model",
        r"^conditioner\.|label_emb\.|add_embedding\.|^text_encoder_2\.",
    ),
    (
        "unsupported",
        "a Stable Diffusion 2.x model (OpenCLIP text encoder)",
        r"^cond_stage_model\.model\.",
    ),
    ("unsupported", "a UNet distilled with a guidance embedding", r"time_embedding\.cond_proj\."),
    ("unsupported", "a UNet distilled with a guidance embedding", r"time_embed\.cond_proj\."),
    ("checkpoint", "a checkpoint", r"^(model\.diffusion_model|model_ema\.diffusion_model)"),
    ("vae", "a VAE", r"^(first_stage_model\.)?decoder\.(up\.|up_blocks\.)"),
    ("unet", "a UNet alone", r"^(down_blocks|input_blocks|diffusion_model\.input_blocks)\."),
    ("text encoder", "a CLIP text encoder alone", r"embeddings\.token_embedding\.weight$"),
    ("unsupported", "an upscaler", r"^(RRDB|body\.\d|model\.\d+\.)"),
)
_CONTEXT_OF_OTHERS = {
    1024: "a Stable Diffusion 2.x model",
    1280: "an SDXL refiner",
    2048: "an SDXL model",
}
_INPUTS_OF_OTHERS = {
    5: "a depth-guided model",
    7: "an upscaling model",
    8: "an instruct-pix2pix model",
    9: "an inpainting model",
}


def kind_of(tensors: Tensors) -> Kind:
    """What a file with these tensors is; for the unknown, what was found in it."""
    lines = "\n".join(tensors)
    for name, what, pattern in _SIGNS:
        if re.search(pattern, lines, re.MULTILINE):
            return Kind(name, what)
    vectors = list(tensors.values())
    if len(vectors) == 1 and vectors[0].ndim in (1, 2):
        return Kind("embedding", "a textual-inversion embedding")
    names = sorted(tensors)
    return Kind("unknown", f"{len(names)} tensors of unknown layout, such as {names[0]}")


def refuse_other_families(config: UNetConfig, where: str) -> None:
    """Refuse UNets that share SD 1.x's layout but not its inputs."""
    if config.context in _CONTEXT_OF_OTHERS:
        raise PocketSDError(
            f"is {_CONTEXT_OF_OTHERS[config.context]} (its text context is "
            f"{config.context} wide), not SD 1.x",
            where=where,
        )
    if config.in_channels in _INPUTS_OF_OTHERS:
        raise PocketSDError(
            f"the UNet has {config.in_channels} input channels, so this is "
            f"{_INPUTS_OF_OTHERS[config.in_channels]}, which is not supported",
            where=where,
        )


def detect(component: str, tensors: Tensors) -> ComponentConfig:
    """A component's architecture from its weights, in any naming with prefixes removed."""
    if component == "unet":
        return detect_unet(tensors)
    return detect_vae(tensors) if component == "vae" else detect_text_encoder(tensors)


def detect_text_encoder(tensors: Tensors) -> TextEncoderConfig:
    """CLIP's sizes from canonical names; its head count is SD 1.x's width per head."""
    table = "embeddings.token_embedding.weight"
    vocabulary, width = (_size(tensors, "text_encoder", table, axis) for axis in (0, 1))
    if width < 1 or width % CLIP_HEAD_WIDTH:
        raise _needs_config(f"text_encoder: width {width} is no multiple of {CLIP_HEAD_WIDTH}")
    return TextEncoderConfig(
        vocabulary=vocabulary,
        width=width,
        layers=_count(tensors, r"encoder\.layers\.(\d+)\."),
        heads=width // CLIP_HEAD_WIDTH,
        inner=_size(tensors, "text_encoder", "encoder.layers.0.mlp.fc1.weight", 0),
        positions=_size(tensors, "text_encoder", "embeddings.position_embedding.weight", 0),
    )


def detect_unet(tensors: Tensors) -> UNetConfig:
    """The UNet's architecture from names in the original layout or in diffusers'."""
    if "conv_in.weight" in tensors:
        levels = _count(tensors, r"down_blocks\.(\d+)\.")
        depth = _count(tensors, r"down_blocks\.0\.resnets\.(\d+)\.")
        ends = ("conv_in.weight", "conv_out.weight")
        mid = any(name.startswith("mid_block.") for name in tensors)

        def resnet(level: int) -> str:
            return f"down_blocks.{level}.resnets.0.conv1.weight"

        def transformer(level: int) -> str:
            return f"down_blocks.{level}.attentions.0.proj_in.weight"
    else:
        levels = 1 + _count(tensors, r"input_blocks\.(\d+)\.0\.op\.")
        blocks = _count(tensors, r"input_blocks\.(\d+)\.")
        if blocks % levels or blocks < 2 * levels:
            raise PocketSDError(
                f"unet: {blocks} input blocks over {levels} levels is not SD 1.x's layout"
            )
        stride = blocks // levels
        depth = stride - 1
        ends = ("input_blocks.0.0.weight", "out.2.weight")
        mid = any(name.startswith("middle_block.") for name in tensors)

        def resnet(level: int) -> str:
            return f"input_blocks.{1 + level * stride}.0.in_layers.2.weight"

        def transformer(level: int) -> str:
            return f"input_blocks.{1 + level * stride}.1.proj_in.weight"

    context = [name for name in tensors if name.endswith("attn2.to_k.weight")]
    if not context:
        raise PocketSDError("unet: no cross-attention, so this is not a text-to-image model")
    widths = tuple(_size(tensors, "unet", resnet(level), 0) for level in range(levels))
    config = UNetConfig(
        widths=widths,
        attention=tuple(transformer(level) in tensors for level in range(levels)),
        depth=depth,
        mid=mid,
        heads=(UNetConfig.heads[0],) * levels,
        context=_size(tensors, "unet", context[0], 1),
        in_channels=_size(tensors, "unet", ends[0], 1),
        out_channels=_size(tensors, "unet", ends[1], 0),
    )
    _refuse_odd_widths("unet", widths, config.groups)
    return config


def detect_vae(tensors: Tensors) -> VaeConfig:
    """The autoencoder's architecture from names in the original layout or in diffusers'."""
    original = any(name.startswith("encoder.down.") for name in tensors)
    resnet: Callable[[int], str] = (
        "encoder.down.{}.block.0.conv1.weight".format
        if original
        else "encoder.down_blocks.{}.resnets.0.conv1.weight".format
    )
    level, block = ("down", "block") if original else ("down_blocks", "resnets")
    widths = tuple(
        _size(tensors, "vae", resnet(index), 0)
        for index in range(_count(tensors, rf"encoder\.{level}\.(\d+)\."))
    )
    config = VaeConfig(
        widths=widths,
        depth=_count(tensors, rf"encoder\.{level}\.0\.{block}\.(\d+)\."),
        latent_channels=_size(tensors, "vae", "decoder.conv_in.weight", 1),
        in_channels=_size(tensors, "vae", "encoder.conv_in.weight", 1),
    )
    if "quant_conv.weight" not in tensors:
        raise PocketSDError(
            f"vae: {config.latent_channels} latent channels and no quant_conv, so not SD 1.x's"
        )
    _refuse_odd_widths("vae", widths, config.groups)
    return config


def is_harmless(name: str) -> bool:
    """Whether a tensor is a known leftover that no picture needs."""
    return _HARMLESS.search(name) is not None


def component_of(name: str) -> str | None:
    """Which component a name of a single-file checkpoint belongs to."""
    if name.startswith(EMA_PREFIX):
        return "unet"
    return next((c for c, prefix in ORIGINAL_PREFIX.items() if name.startswith(prefix)), None)


def _size(tensors: Tensors, component: str, name: str, axis: int) -> int:
    if name not in tensors:
        raise PocketSDError(f"{component}: weights are incomplete, {name} is missing")
    shape = tensors[name].shape
    if axis >= len(shape):
        raise PocketSDError(f"{component}: {name} has only {len(shape)} dimensions")
    return shape[axis]


def _count(names: Iterable[str], pattern: str) -> int:
    """How many different numbers a pattern's group takes."""
    found = (re.match(pattern, name) for name in names)
    return len({match[1] for match in found if match})


def _refuse_odd_widths(component: str, widths: tuple[int, ...], groups: int) -> None:
    if not widths or any(width < 1 or width % groups for width in widths):
        raise _needs_config(f"{component}: widths {widths} are no multiples of {groups} groups")


def _needs_config(what: str) -> PocketSDError:
    return PocketSDError(what, mend="give the diffusers folder of this model as config")
