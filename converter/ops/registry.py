"""How a fused op is declared: a reference, a naive form, a form per target, a list of cases.

A fused op is a `torch.library` custom op, so `torch.export` keeps it as a single node that every
target lowers in its own way. The reference is plain PyTorch and defines the meaning; shapes and
gradients are derived from it, so that a new op is one function and cannot disagree with itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "pocketsd"


@dataclass(frozen=True)
class Case:
    """One use of an op at a shape that SD 1.x has: a test case and a benchmark case in one."""

    label: str
    make: Callable[[torch.Generator], tuple[Any, ...]]

    def arguments(self, seed: int = 0) -> tuple[Any, ...]:
        return self.make(torch.Generator().manual_seed(seed))


@dataclass(frozen=True, eq=False)
class FusedOp:
    name: str
    reference: Callable[..., Tensor]
    naive: Callable[..., Tensor]
    cases: Sequence[Case]
    lowerings: Mapping[str, Callable[..., Any]]
    _operator: Callable[..., Tensor]

    def __call__(self, *args: Any) -> Tensor:
        return self._operator(*args)

    @property
    def qualified_name(self) -> str:
        """As it appears in an exported graph."""
        return f"{NAMESPACE}.{self.name}.default"


_OPS: dict[str, FusedOp] = {}


def fused_op(
    reference: Callable[..., Tensor],
    *,
    naive: Callable[..., Tensor],
    cases: Sequence[Case],
    lowerings: Mapping[str, Callable[..., Any]] | None = None,
) -> FusedOp:
    """Declare `reference` (whose name and annotations become the op's schema) as a fused op.

    `naive` computes the same from unfused pieces: the baseline of every ablation. `lowerings`
    holds, by target, the PyTorch that this target's exporter is shown instead of the reference.
    """
    name = reference.__name__
    operator = torch.library.custom_op(f"{NAMESPACE}::{name}", reference, mutates_args=())
    operator.register_fake(reference)
    operator.register_autograd(_gradient_of(reference), setup_context=_keep_arguments)
    op = FusedOp(name, reference, naive, tuple(cases), dict(lowerings or {}), operator)
    _OPS[name] = op
    return op


def get_op(qualified_name: str) -> FusedOp | None:
    """The fused op behind a node's target, if it is one of ours."""
    namespace, _, rest = qualified_name.partition(".")
    return _OPS.get(rest.split(".")[0]) if namespace == NAMESPACE else None


def all_ops() -> Iterator[FusedOp]:
    yield from _OPS.values()


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.is_tensor = [isinstance(value, Tensor) for value in inputs]
    ctx.constants = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))


def _gradient_of(reference: Callable[..., Tensor]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Backward by running the reference again: nothing but the inputs is kept alive."""

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        arguments = [
            next(saved).detach() if is_tensor else constant
            for is_tensor, constant in zip(ctx.is_tensor, ctx.constants, strict=True)
        ]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
        for i in wanted:
            arguments[i].requires_grad_()
        with torch.enable_grad():
            output = reference(*arguments)
        gradients: list[Tensor | None] = [None] * len(arguments)
        for i, value in zip(
            wanted,
            torch.autograd.grad(output, [arguments[i] for i in wanted], grad, allow_unused=True),
            strict=True,
        ):
            gradients[i] = value
        return tuple(gradients)

    return backward
