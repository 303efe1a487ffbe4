"""Sinusoidal embedding of the timestep. Always computed in fp32: its angles reach 1000 radians."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from converter.ops.registry import Case, fused_op

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Value
    from converter.targets.webgpu.kernels import Kernels
    from runtime_py.webgpu.plan import Port

LAST, COARSE = 1024, 8  # timesteps lie below the first; the second divides them into rows


def timestep_embedding(timestep: Tensor, width: int, cosine_first: bool, shift: float) -> Tensor:
    # timestep [b] -> [b, width], fp32
    half = width // 2
    exponent = torch.arange(half, dtype=torch.float32, device=timestep.device) / (half - shift)
    angle = timestep.float()[:, None] * torch.exp(-math.log(10000.0) * exponent)[None]
    parts = (angle.cos(), angle.sin()) if cosine_first else (angle.sin(), angle.cos())
    return torch.cat(parts, dim=-1)


def litert(timestep: Tensor, width: int, cosine_first: bool, shift: float) -> Tensor:
    # Where a GPU computes in fp16, an angle of 981 is rounded to half a radian. So the timestep is
    # split into a multiple of COARSE, whose sine and cosine are looked up, and a rest, whose
    # angles are small; the sums of angles are then taken apart by the addition theorems. The
    # lookup is a product with a hat function, which has a kernel everywhere.
    half = width // 2
    multiples = np.arange(math.ceil(LAST / COARSE))
    frequencies = np.exp(-math.log(10000.0) * np.arange(half) / (half - shift))
    angles = COARSE * multiples[:, None] * frequencies  # [rows, half], radians
    rows, frequency = _constant(multiples), _constant(frequencies)
    multiple = torch.floor(timestep * (1 / COARSE))[:, None]  # [b, 1]
    rest = timestep[:, None] - COARSE * multiple
    hat = torch.relu(1 - (multiple - rows).abs())  # [b, rows], one at its row, else zero
    sine, cosine = hat @ _constant(np.sin(angles)), hat @ _constant(np.cos(angles))
    small = rest * frequency
    sines = sine * small.cos() + cosine * small.sin()
    cosines = cosine * small.cos() - sine * small.sin()
    y = torch.cat((cosines, sines) if cosine_first else (sines, cosines), dim=-1)
    return y[:, None, None]  # [b, 1, 1, width]


def webgpu(b: "Kernels", timestep: "Port", width: int, cosine_first: bool, shift: float) -> "Value":
    half = width // 2
    frequencies = np.exp(-math.log(10000.0) * np.arange(half) / (half - shift))
    y = b.new(timestep.shape[0], width)
    count = y.rows * y.vec4s * 4
    b.emit(
        "timestep_embedding",
        [timestep, b.weight(f"{b.label}.frequency", frequencies.astype(np.float32)), y],
        (-(-count // 64),),
        options={"cosine_first": cosine_first},
        constants={"COUNT": count, "HALF": half, "WIDTH": y.vec4s * 4},
    )
    return y


def coreml(b: "Builder", timestep: "Var", width: int, cosine_first: bool, shift: float) -> "Var":
    return b.vector(b.sinusoid(timestep, width, cosine_first, shift))


def _constant(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def naive(timestep: Tensor, width: int, cosine_first: bool, shift: float) -> Tensor:
    half = width // 2
    frequency = torch.tensor([10000.0 ** (-i / (half - shift)) for i in range(half)])
    angle = timestep.float().reshape(-1, 1) * frequency.reshape(1, -1).to(timestep.device)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    return torch.cat([cosine, sine] if cosine_first else [sine, cosine], dim=1)


op = fused_op(
    timestep_embedding,
    naive=naive,
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[
        Case("early", lambda g: (torch.tensor([981.0]), 320, True, 0.0)),
        Case("late, between two steps", lambda g: (torch.tensor([1.5, 0.0]), 320, True, 0.0)),
    ],
)
