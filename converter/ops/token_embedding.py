"""Tokens to vectors: a row of the table for each token, a row for each position added."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops.registry import Case, fused_op

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Value
    from converter.targets.webgpu.kernels import Kernels
    from runtime_py.webgpu.plan import Port


def token_embedding(tokens: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    # tokens [b, n], table [vocabulary, c], positions [at least n, c] -> [b, n, c]
    return F.embedding(tokens, table) + positions[: tokens.shape[1]]


def litert(tokens: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    return token_embedding(tokens, table, positions).unsqueeze(1)  # [b, 1, n, c]


def naive(tokens: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    b, n = tokens.shape
    rows = table.index_select(0, tokens.reshape(-1).long()).reshape(b, n, -1)
    return rows + positions[:n].reshape(1, n, -1)


def webgpu(b: "Kernels", tokens: "Port", table: Tensor, positions: Tensor) -> "Value":
    y = b.new(*tokens.shape, table.shape[1])
    count = y.rows * y.vec4s
    b.emit(
        "token_embedding",
        [tokens, b.table(f"{b.label}.table", table), b.table(f"{b.label}.positions", positions), y],
        (-(-count // 64),),
        constants={
            "COUNT": count, "LENGTH": tokens.shape[1], "C4": y.vec4s, "VOCABULARY": len(table),
        },
    )  # fmt: skip
    return y


def coreml(b: "Builder", tokens: "Var", table: Tensor, positions: Tensor) -> "Var":
    return b.embedded(tokens, table, positions)


def _case(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, 1000, (2, 77), generator=g, dtype=torch.int32)
    return tokens, torch.randn(1000, 64, generator=g), torch.randn(77, 64, generator=g)


op = fused_op(
    token_embedding,
    naive=naive,
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[Case("77 tokens", _case)],
)
