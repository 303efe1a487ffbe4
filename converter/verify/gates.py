"""How close a package has to come to its source, by what it stores and where it runs.

Keys are (precision, place); the place is a target, an accelerator, or "*" for any, in this order.
"""

from __future__ import annotations

#: dB, at the worst sample.
COMPONENT: dict[tuple[str, str], float] = {
    ("fp32", "webgpu"): 90,
    ("fp32", "cpu"): 90,
    ("fp32", "gpu"): 80,
    ("fp16", "*"): 40,
    # Seen on the embedded model, at the worst of its samples: 40, 50 and 17 (its UNet; other
    # components at least 50). The prompt score falls by a point or two with each of them.
    ("int8", "*"): 37,
    ("int8-weights", "*"): 45,
    ("w8a8", "*"): 15,
    # Of Core ML's forms, what is wanted of any model: eight bits should be hard to tell from fp16.
    **{(stored, "coreml"): 50 for stored in ("int8", "palette8", "w8a8")},
    **{(stored, "coreml"): 35 for stored in ("palette6", "palette4", "palette4-g16", "int4")},
    ("recipe", "coreml"): 35,
}
#: dB of the finished picture; twenty steps amplify what one evaluation got wrong.
PICTURE: dict[tuple[str, str], float] = {
    ("fp32", "*"): 45,
    ("fp16", "*"): 35,
    ("fp16", "coreml"): 40,
}
#: Points that the prompt score may be below the source's, on the same prompts and seeds.
SCORE: dict[tuple[str, str], float] = {
    ("fp32", "*"): 1,
    ("fp16", "*"): 1,
    ("int8", "webgpu"): 1,
}


def gate(table: dict[tuple[str, str], float], precision: str, *places: str) -> float | None:
    found = (table.get((precision, place)) for place in (*places, "*"))
    return next((value for value in found if value is not None), None)
