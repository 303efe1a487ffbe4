"""Every fused op: its naive form agrees, its gradient is right, and export keeps it whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from converter import ops
from converter.graph import export, op_counts

CASES = [
    pytest.param(op, case, id=f"{op.name}: {case.label}")
    for op in ops.all_ops()
    for case in op.cases
]


@pytest.mark.parametrize(("op", "case"), CASES)
def test_naive_form_agrees_with_reference(op: ops.FusedOp, case: ops.Case) -> None:
    arguments = case.arguments()
    reference, naive = op.reference(*arguments), op.naive(*arguments)
    # fp32 sums of up to 6,000 terms in another order; the sinusoid's angles reach 1000 radians,
    # where one fp32 rounding of the frequency is worth 6e-5.
    tolerance = 1e-4 if op is ops.timestep_embedding else 5e-6
    assert (reference - naive).abs().max() <= tolerance * reference.abs().max()


@pytest.mark.parametrize(("op", "case"), CASES)
def test_op_equals_its_reference(op: ops.FusedOp, case: ops.Case) -> None:
    arguments = case.arguments()
    assert torch.equal(op(*arguments), op.reference(*arguments))


@pytest.mark.parametrize("op", list(ops.all_ops()), ids=lambda op: op.name)
def test_op_is_well_formed(op: ops.FusedOp) -> None:
    """PyTorch's own checks: schema, fake kernel, autograd registration."""
    # The last case of each op is its smallest.
    torch.library.opcheck(
        getattr(torch.ops.pocketsd, op.name),
        op.cases[-1].arguments(),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


def test_gradient_is_that_of_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 8, 4, 4, generator=generator, requires_grad=True)
    weight = torch.randn(8, generator=generator, requires_grad=True)
    bias = torch.randn(8, generator=generator)  # needs none, gets none
    wanted = torch.autograd.grad(
        ops.group_norm_silu.reference(x, weight, bias, 4, 1e-5, True).sin().sum(), (x, weight)
    )
    got = torch.autograd.grad(
        ops.group_norm_silu(x, weight, bias, 4, 1e-5, True).sin().sum(), (x, weight)
    )
    for one, other in zip(wanted, got, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", list(ops.all_ops()), ids=lambda op: op.name)
def test_export_keeps_the_op_as_one_node(op: ops.FusedOp) -> None:
    arguments = op.cases[-1].arguments()
    tensors = tuple(a for a in arguments if isinstance(a, torch.Tensor))

    class Uses(nn.Module):
        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            left = iter(given)
            return op(*(next(left) if isinstance(a, torch.Tensor) else a for a in arguments))

    assert dict(op_counts(export(Uses(), tensors))) == {op.qualified_name: 1}
