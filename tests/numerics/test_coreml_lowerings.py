"""The Core ML form of every op, written to disk, read back and evaluated, against PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("coremltools")

from converter import ops
from converter.targets.coreml.choices import Choices
from converter.targets.coreml.weights import Weights
from runtime_py.quality import psnr
from tests.support.coreml_ops import ACTIVATIONS, OneOp, evaluated, package_of

FORMS = {
    "sdpa": Choices(18, "sdpa"),
    "original": Choices(17, "original"),
    "split-einsum": Choices(16, "split-einsum"),
    "split-einsum-v2": Choices(16, "split-einsum-v2"),
}
#: Pictures lie alike in all forms, and attention alone differs in each.
DIFFER = {"conv2d": 1, "group_norm_silu": 1, "join": 1, "attention": 4}
#: Layout ops have no shape of their own to enter or leave by in every form.
LAYOUT = ("to_tokens", "to_picture", "over_picture")
CASES = [
    pytest.param(op, case, form, id=f"{op.name}: {case.label}, {form}")
    for op in ops.all_ops()
    for case in op.cases
    for form in ("sdpa", "split-einsum", "original", "split-einsum-v2")[: DIFFER.get(op.name, 2)]
    if op.name not in LAYOUT and "4096" not in case.label
]


@pytest.mark.parametrize(("op", "case", "form"), CASES)
def test_form_means_the_same(op: ops.FusedOp, case: ops.Case, form: str, tmp_path: Path) -> None:
    arguments = case.arguments()
    count = ACTIVATIONS.get(op.name, 1)
    inputs, constants = arguments[:count], arguments[count:]
    expected = op.reference(*arguments)
    for wide, least in ((True, 90), (False, 50)):
        path = package_of(
            OneOp(op, constants), inputs, tmp_path / "op.mlpackage", FORMS[form],
            Weights(FORMS[form].ios, wide=wide),
        )  # fmt: skip
        result = evaluated(path, inputs, "fp32" if wide else "fp16").reshape(expected.shape)
        assert psnr(expected, result) > least
