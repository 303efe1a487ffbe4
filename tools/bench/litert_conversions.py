"""One SD 1.x UNet as .tflite in several ways: by this converter, LiteRT's own example, diffusers.

All are made from one file of random weights at the same sizes. Nothing heavy is imported before
it is used: these functions run in children whose memory is measured.
"""

from __future__ import annotations

import importlib.util
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

WIDTHS = {"tiny": (64, 128, 256, 256), "full": (320, 640, 1280, 1280)}
TOKENS, CONTEXT, TIMESTEP = 77, 768, 981.0
PREFIX = "model.diffusion_model."  # of the original checkpoint layout


@dataclass(frozen=True)
class Setting:
    """What all conversions have in common."""

    folder: Path
    widths: tuple[int, ...]
    batch: int
    latent: int
    threads: int
    largest: int | None = None  # bytes of weights in one of our files
    gain: float = 1.0  # of the first convolution

    @property
    def weights(self) -> Path:
        return self.folder / "unet.safetensors"

    @property
    def arrays(self) -> Path:
        return self.folder / "arrays.npz"


@dataclass(frozen=True)
class Link:
    """One file of a conversion; what its inputs and outputs are called in `Setting.arrays`."""

    file: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def prepare(setting: Setting) -> dict[str, Any]:
    """Random weights in a single file of the original layout, inputs, and torch's own answer."""
    import torch
    from safetensors.torch import save_file

    from converter.checkpoints.keymaps import original_names
    from converter.models import build

    generator = torch.Generator().manual_seed(0)
    config = _config(setting)
    with torch.device("meta"):
        state = build("unet", config).state_dict()
    weights = {}
    for original, name in original_names(state, config).items():
        tensor = random_weight(name, state[name].shape, generator)
        if name.startswith("conv_in."):
            tensor *= setting.gain
        weights[f"{PREFIX}{original}"] = tensor.half()
    save_file(weights, setting.weights)
    parameters = sum(tensor.numel() for tensor in weights.values())
    del weights
    size = setting.latent
    latent = torch.randn(setting.batch, config.in_channels, size, size, generator=generator)
    embedding = torch.randn(setting.batch, TOKENS, CONTEXT, generator=generator)
    timestep = torch.full((setting.batch,), TIMESTEP)
    with torch.inference_mode():
        noise = _diffusers(setting)(latent, timestep, embedding)
    angles = TIMESTEP * 10000.0 ** -(torch.arange(config.widths[0] // 2) / (config.widths[0] // 2))
    sinusoid = torch.cat([angles.cos(), angles.sin()])[None]  # the example has it computed outside
    named = {
        "latent": latent,
        "timestep": timestep,
        "embedding": embedding,
        "sinusoid": sinusoid,
        "noise": noise,
    }
    np.savez(setting.arrays, **{name: tensor.numpy() for name, tensor in named.items()})
    return {"parameters": parameters}


def random_weight(name: str, shape: Any, generator: Any) -> Any:
    """Scaled so that activations keep their size; norms away from 1 and 0."""
    import torch

    scale = shape[1:].numel() ** -0.5 if len(shape) > 1 else 0.1
    tensor = torch.randn(shape, generator=generator) * scale
    return tensor + float("norm" in name and name.endswith("weight"))


def _config(setting: Setting) -> Any:
    from converter.models import UNetConfig

    return UNetConfig(widths=setting.widths, context=CONTEXT, sample_size=setting.latent)


def _canonical(setting: Setting) -> Callable[[str], Any]:
    """A weight by its name in diffusers and in this converter."""
    import torch
    from safetensors import safe_open

    from converter.checkpoints.keymaps import original_names
    from converter.models import build

    with torch.device("meta"):
        names = build("unet", _config(setting)).state_dict()
    table = {name: original for original, name in original_names(names, _config(setting)).items()}
    file = safe_open(setting.weights, "pt")
    return lambda name: file.get_tensor(f"{PREFIX}{table[name]}").float()


def _diffusers(setting: Setting) -> Any:
    import torch
    from diffusers import UNet2DConditionModel
    from torch import nn

    with torch.device("meta"):
        unet = UNet2DConditionModel(
            sample_size=setting.latent,
            block_out_channels=setting.widths,
            cross_attention_dim=CONTEXT,
        )
    weight = _canonical(setting)
    unet.load_state_dict({name: weight(name) for name in unet.state_dict()}, assign=True)

    class Plain(nn.Module):
        """Only what the exporter asks for: tensors in, a tensor out."""

        def __init__(self) -> None:
            super().__init__()
            self.unet = unet

        def forward(self, latent: Any, timestep: Any, embedding: Any) -> Any:
            return self.unet(latent, timestep, embedding, return_dict=False)[0]

    return Plain().eval().requires_grad_(False)


def _tensors(setting: Setting, *names: str) -> tuple[Any, ...]:
    import torch

    with np.load(setting.arrays) as arrays:
        return tuple(torch.from_numpy(arrays[name]) for name in names)


def convert_ours(setting: Setting, key: str) -> list[Link]:
    from converter.components import with_weights
    from converter.graph import export
    from converter.partition import partition
    from converter.targets.litert.flatbuffer import write_tflite

    names = ("latent", "timestep", "embedding")
    inputs = _tensors(setting, *names)
    module = with_weights("unet", _config(setting), _canonical(setting))
    links = []
    for index, part in enumerate(partition(export(module, inputs), ["noise"], setting.largest)):
        file = setting.folder / f"{key}-{index}.tflite"
        write_tflite(part, dict(zip(names, inputs, strict=True)), file)
        links.append(Link(file.name, {n: n for n in part.inputs}, {n: n for n in part.outputs}))
    return links


def convert_example(setting: Setting, key: str, composites: bool = True) -> list[Link]:
    """As the example's own convert_to_tflite.py does it; its composites are switched by device."""

    diffusion = _example()
    import litert_torch
    import torch
    from litert_torch.generative.utilities import stable_diffusion_loader as loader

    device = "gpu" if composites else "cpu"
    config = replace(
        diffusion.get_model_config(batch_size=setting.batch, device_type=device),
        block_out_channels=list(setting.widths),
        transformer_cross_attention_dim=CONTEXT,
        time_embedding_dim=setting.widths[0],
        time_embedding_blocks_dim=4 * setting.widths[0],
    )
    model = diffusion.Diffusion(config)
    checkpoint = loader.DiffusionModelLoader(str(setting.weights), diffusion.TENSOR_NAMES)
    checkpoint.load(model, strict=False)
    model.eval()
    inputs = _tensors(setting, "latent", "embedding", "sinusoid")
    file = setting.folder / f"{key}.tflite"
    with torch.inference_mode():
        litert_torch.signature("diffusion", model, inputs).convert().export(str(file))
    return [_positional(file, "latent", "embedding", "sinusoid")]


def _example() -> Any:
    """The example's module. It imports TensorFlow for the file format's schema, which LiteRT has
    too: where TensorFlow is missing, that stands in while the import runs, and no longer."""
    import litert_torch  # noqa: F401  imports what would stumble over a stand-in
    from ai_edge_litert import schema_py_generated

    names = ("tensorflow", "tensorflow.lite", "tensorflow.lite.python")
    missing = importlib.util.find_spec(names[0]) is None
    if missing:
        modules = {name: ModuleType(name) for name in names}
        vars(modules[names[-1]])["schema_py_generated"] = schema_py_generated
        sys.modules |= modules
    try:
        from litert_torch.generative.examples.stable_diffusion import diffusion
    finally:
        for name in names if missing else ():
            del sys.modules[name]
    return diffusion


def convert_example_without_composites(setting: Setting, key: str) -> list[Link]:
    return convert_example(setting, key, composites=False)


def convert_diffusers(setting: Setting, key: str) -> list[Link]:
    import litert_torch

    file = setting.folder / f"{key}.tflite"
    inputs = _tensors(setting, "latent", "timestep", "embedding")
    litert_torch.convert(_diffusers(setting), inputs).export(str(file))
    return [_positional(file, "latent", "timestep", "embedding")]


def _positional(file: Path, *names: str) -> Link:
    inputs = {f"args_{i}": name for i, name in enumerate(names)}
    return Link(file.name, inputs, {"output_0": "noise"})


OURS = "ours"
CONVERSIONS: dict[str, tuple[str, Callable[[Setting, str], list[Link]]]] = {
    OURS: ("this converter", convert_ours),
    "example": ("litert-torch's SD example", convert_example),
    "example-plain": (
        "litert-torch's SD example, composites off",
        convert_example_without_composites,
    ),
    "diffusers": ("diffusers, converted as it is", convert_diffusers),
}


def convert(setting: Setting, key: str) -> dict[str, Any]:
    import torch

    torch.set_num_threads(setting.threads)
    links = CONVERSIONS[key][1](setting, key)
    files = [setting.folder / link.file for link in links]
    counts = [operations(file) for file in files]
    return {
        "links": [asdict(link) for link in links],
        "bytes": sum(file.stat().st_size for file in files),
        "operations": sum(sum(main.values()) for main, _ in counts),
        "unpacked": sum(unpacked for _, unpacked in counts),
        "kinds": dict(sum((main for main, _ in counts), Counter()).most_common()),
    }


def operations(path: Path) -> tuple[Counter[str], int]:
    """The main graph's ops by name; and how many they are with composites taken apart."""
    from ai_edge_litert import schema_py_generated as schema

    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        model = schema.Model.GetRootAsModel(buffer, 0)
        codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
        kinds = [names[max(c.BuiltinCode(), c.DeprecatedBuiltinCode())] for c in codes]

        def unpacked(index: int) -> int:
            graph = model.Subgraphs(index)
            return sum(_size(graph.Operators(i)) for i in range(graph.OperatorsLength()))

        def _size(operator: Any) -> int:
            if kinds[operator.OpcodeIndex()] != "STABLEHLO_COMPOSITE":
                return 1
            table = operator.BuiltinOptions2()
            options = schema.StableHLOCompositeOptions()
            options.Init(table.Bytes, table.Pos)
            return unpacked(options.DecompositionSubgraphIndex())

        graph = model.Subgraphs(0)
        main = [graph.Operators(i) for i in range(graph.OperatorsLength())]
        return Counter(kinds[operator.OpcodeIndex()] for operator in main), unpacked(0)
