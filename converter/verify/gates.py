"""How close a package has to come to its source, by what it stores. In dB, at the worst sample."""

from __future__ import annotations

#: (precision, accelerator); an accelerator of "*" stands for any.
COMPONENT: dict[tuple[str, str], float] = {
    ("fp32", "cpu"): 90,
    ("fp32", "gpu"): 80,
    ("fp16", "*"): 40,
    # Seen on the embedded model, at the worst of its samples: 40, 50 and 17 (its UNet; other
    # components at least 50). The prompt score falls by a point or two with each of them.
    ("int8", "*"): 37,
    ("int8-weights", "*"): 45,
    ("w8a8", "*"): 15,
}
#: Of the finished picture; twenty steps amplify what one evaluation got wrong.
PICTURE: dict[tuple[str, str], float] = {
    ("fp32", "*"): 45,
    ("fp16", "*"): 35,
}


def gate(table: dict[tuple[str, str], float], precision: str, accelerator: str) -> float | None:
    return table.get((precision, accelerator), table.get((precision, "*")))
