"""Compressed weights in Core ML packages: decoded as coremltools does, and computed with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("coremltools")

from runtime_py.coreml.evaluator import Evaluator
from runtime_py.coreml.program import read_program
from runtime_py.coreml.weights import BlobFiles, Weights, decoded_weights
from runtime_py.quality import psnr
from tests.support.coreml import built, converted, coremltools

RNG = np.random.default_rng(5)


def some(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _optimised(model: Any, how: str) -> Any:
    """Stock compressions of coremltools that need neither a Mac nor scikit-learn."""
    import coremltools.optimize.coreml as cto

    def config(op: Any) -> Any:
        return cto.OptimizationConfig(global_config=op)

    small = {"weight_threshold": 64}
    if how.startswith("palette"):
        _, bits, *group = how.split("-")
        more = {"granularity": "per_grouped_channel", "group_size": 4} if group else {}
        palette = cto.OpPalettizerConfig(mode="uniform", nbits=int(bits), **more, **small)
        return cto.palettize_weights(model, config(palette))
    if how.startswith("pruned"):
        pruner = cto.OpMagnitudePrunerConfig(target_sparsity=0.6, **small)
        model = cto.prune_weights(model, config(pruner))
        if how == "pruned":
            return model
        joint = cto.OpLinearQuantizerConfig(mode="linear_symmetric", **small)
        return cto.linear_quantize_weights(model, config(joint), joint_compression=True)
    dtype, mode, *block = how.split("-")
    more = {"granularity": "per_block", "block_size": int(block[0])} if block else {}
    quantiser = cto.OpLinearQuantizerConfig(mode=f"linear{mode}", dtype=dtype, **more, **small)
    return cto.linear_quantize_weights(model, config(quantiser))


COMPRESSED = {
    "iOS16": ("palette-4", "palette-6", "int8-_symmetric", "uint8-", "pruned"),
    "iOS18": (
        *("palette-3", "palette-4-grouped", "int4-_symmetric-8", "uint4--8"),
        *("int8-_symmetric-8", "pruned", "pruned-int8"),
    ),
}


@pytest.fixture(scope="module")
def layers() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 1)).eval()


@pytest.fixture(scope="module")
def uncompressed(layers: nn.Module) -> Callable[[str], Any]:
    x = {"x": torch.from_numpy(some(1, 8, 6, 6))}
    made = {target: converted(layers, x, target, "fp16") for target in ("iOS16", "iOS18")}
    return lambda target: made[target]


@pytest.mark.parametrize(
    ("target", "how"), [(target, how) for target, hows in COMPRESSED.items() for how in hows]
)
def test_stock_compression(
    layers: nn.Module, uncompressed: Any, target: str, how: str, tmp_path: Path
) -> None:
    """Equal to torch with the weights as they are decoded, and these equal to coremltools'."""
    path = tmp_path / "small.mlpackage"
    model = _optimised(uncompressed(target), how)
    model.save(str(path))
    evaluator = Evaluator(path, arithmetic="fp32")
    assert sum(evaluator.compressions().values()) >= 2
    recipes = [
        op.inputs["weight"][0]
        for op in read_program(path).functions["main"].operations
        if op.type == "conv"
    ]
    decoded = decoded_weights(path)
    weights = [decoded[name] for name in recipes]
    reference = coremltools().optimize.coreml.decompress_weights(model)
    plain = tmp_path / "plain.mlpackage"
    reference.save(str(plain))
    dense = [v for v in decoded_weights(plain).values() if v.shape in {w.shape for w in weights}]
    for ours, theirs in zip(weights, dense, strict=True):
        np.testing.assert_array_equal(ours, theirs)

    x = torch.from_numpy(some(1, 8, 6, 6))
    biases = [v.bias.detach().half().float() for v in (layers[0], layers[2])]
    first, second = (torch.from_numpy(w.astype(np.float32)) for w in weights)
    hidden = F.conv2d(x, first, biases[0]).relu()
    (found,) = evaluator.run({"x": x.numpy()}).values()
    assert psnr(F.conv2d(hidden, second, biases[1]), found) > 100


def _constexprs(mb: Any) -> dict[str, Any]:
    """Forms that the stock compressions do not reach here, by what they are."""
    from coremltools.converters.mil.mil import types

    def nbits(name: str, *shape: int) -> np.ndarray:
        kind = types.string_to_builtin(name)
        low, high = (-8, 8) if name == "int4" else (0, 1 << int(name.removeprefix("uint")))
        values = RNG.integers(low, high, shape)
        return values.astype(types.nptype_from_builtin(kind))

    def half(*shape: int) -> np.ndarray:
        return some(*shape).astype(np.float16)

    mask = nbits("uint1", 4, 6)
    ones = int(mask.sum())
    sparse_mask, sparse = mb.constexpr_lut_to_sparse(
        indices_mask=mask,
        indices_nonzero_data=nbits("uint2", ones),
        lut=half(2, 1, 4, 1),
    )
    kept_mask, kept = mb.constexpr_sparse_blockwise_shift_scale(
        data_mask=mask,
        nonzero_data=nbits("int4", ones),
        scale=half(1, 3),
        offset=nbits("int4", 1, 3),
    )
    return {
        "vectors": mb.constexpr_lut_to_dense(
            indices=nbits("uint3", 4, 3, 2), lut=half(2, 1, 2, 8, 3), vector_axis=1
        ),
        "vectors behind": mb.constexpr_lut_to_dense(
            indices=nbits("uint1", 4, 6), lut=half(1, 3, 2, 2), vector_axis=-1
        ),
        "six bits": mb.constexpr_lut_to_dense(indices=nbits("uint6", 5, 7), lut=half(1, 1, 64, 1)),
        "blocks": mb.constexpr_blockwise_shift_scale(
            data=nbits("int4", 6, 8), scale=half(3, 4), offset=nbits("int4", 3, 4)
        ),
        "sparse palette": mb.constexpr_sparse_to_dense(nonzero_data=sparse, mask=sparse_mask),
        "sparse blocks": mb.constexpr_sparse_to_dense(nonzero_data=kept, mask=kept_mask),
        "cast": mb.constexpr_cast(source_val=half(3, 5), output_dtype="fp32"),
    }


def test_rare_decompressions(tmp_path: Path) -> None:
    expected: dict[str, np.ndarray] = {}

    def build(mb: Any) -> list[Any]:
        made = _constexprs(mb)
        for var in made.values():
            expected[var.name] = var.op.materialized_val_inference()
        return [mb.add(x=var, y=var) for var in made.values()]

    path = built(tmp_path / "rare.mlpackage", build, {}, "iOS18")
    decoded = decoded_weights(path)
    assert len(expected) == 7
    for name, value in expected.items():
        np.testing.assert_array_equal(decoded[name], value)
    doubled = Evaluator(path).run({}).values()
    for found, value in zip(doubled, expected.values(), strict=True):
        np.testing.assert_allclose(found, value + value, rtol=1e-3)


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    """A program's weights must not take memory twice."""
    x, weight = some(2, 64), some(32, 64)
    path = built(
        tmp_path / "w.mlpackage", lambda mb, x: mb.linear(x=x, weight=weight, name="y"), {"x": x}
    )
    program = read_program(path)
    (linear,) = program.functions["main"].operations
    files = BlobFiles(program.folder)
    value = Weights(program.functions["main"], files).value(linear.inputs["weight"][0])
    assert isinstance(value, np.ndarray)
    assert np.shares_memory(value, files["weights/weight.bin"].bytes)
    np.testing.assert_array_equal(value, weight)
