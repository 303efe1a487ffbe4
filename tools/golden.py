#!/usr/bin/env python3
"""Golden vectors: what the Python implementations answer, for ports to be held to.

    python3 -m tools.golden     write mobile_assets/golden/*.json anew

Each file is one object whose `about` says how to read it. 64-bit numbers are decimal strings, as
JavaScript would round them; float32 values are written with the nine digits that give them back.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from converter.sampling import table
from runtime_py import pictures
from runtime_py.noise import gaussian, philox, row_stream
from runtime_py.package import Manifest, Package, Picture, TokenizerSpec, seal
from runtime_py.pipeline import Request, draw
from runtime_py.sampler import SamplerTable, guided, play
from tools.fake_engine import LENGTH, SHRINK, FakeEngine, components
from tools.golden_text import TINY_TOKENIZER, tokenizer

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "mobile_assets" / "golden"

STABLE_DIFFUSION = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "steps_offset": 1,
}
SCHEDULERS = ("dpm++-2m", "euler-ancestral", "lcm", "pndm", "heun", "dpm++-sde", "unipc", "ddim")
BATCHES: dict[str, int | None] = {"any": None, "1": 1, "2": 2}


def noise() -> dict[str, Any]:
    counters = [(0, 0, 0, 0), (2**32 - 1,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    keys = [(0, 0), (2**32 - 1,) * 2, (0xA4093822, 0x299F31D0)]
    draws = [
        (seed, stream, count)
        for seed in (0, 42, 2**32 + 7, 2**53 + 1, 2**64 - 1)
        for stream, count in ((0, 64), (row_stream(0), 5), (row_stream(19), 7), (2**40, 4))
    ]
    return {
        "about": "Philox4x32-10: counter and key in, four words out. Gaussian: values 0 .. count-1"
        " of a stream, to 1e-6.",
        "philox": [
            {
                "counter": list(counter),
                "key": list(key),
                "words": philox(np.array(counter, np.uint64)[:, None], key)[:, 0].tolist(),
            }
            for counter, key in zip(counters, keys, strict=True)
        ],
        "gaussian": [
            {
                "seed": str(seed),
                "stream": str(stream),
                "values": _floats(gaussian(seed, stream, (count,))),
            }
            for seed, stream, count in draws
        ],
    }


def sampler() -> dict[str, Any]:
    tables = [table(name, 4, STABLE_DIFFUSION) for name in SCHEDULERS]
    return {
        "about": "A case plays a table from `strength` (null: from noise) on latents of 6 values,"
        " with the model e = (0.5 x + 0.25) / (1 + |x|) - timestep / 2048. Unit noise is Gaussian"
        " of seed 7: stream 0 at first, stream k + 1 for row k; the encoded picture is Gaussian of"
        " seed 8, stream 0. `latents` is x after every row, to 1e-5. The model was called with"
        " `timesteps`.",
        "tables": [each.to_json() for each in tables],
        "cases": [
            {"table": index, "strength": strength, **_played(each, strength)}
            for index, each in enumerate(tables)
            for strength in (None, 1.0, 0.8, 0.5, 0.25)
        ],
        "guided": {
            "conditional": [1.5, -2.25, 0.1],
            "unconditional": [0.5, 1.0, 0.3],
            "scale": 7.5,
            "answer": _floats(
                guided(
                    np.array([1.5, -2.25, 0.1], np.float32),
                    np.array([0.5, 1.0, 0.3], np.float32),
                    7.5,
                )
            ),
        },
    }


def _played(chosen: SamplerTable, strength: float | None) -> dict[str, Any]:
    timesteps: list[float] = []

    def model(x: Any, timestep: float) -> Any:
        timesteps.append(timestep)
        answer = (np.float32(0.5) * x + np.float32(0.25)) / (1 + np.abs(x))
        return answer - np.float32(timestep) / np.float32(2048)

    schedule = chosen.from_noise() if strength is None else chosen.from_strength(strength)
    known = None if strength is None else gaussian(8, 0, (6,))
    first = schedule.begin(gaussian(7, 0, (6,)), known).astype(np.float32)
    rows = play(schedule, first, model, lambda k: gaussian(7, row_stream(k), (6,)))
    return {"latents": [_floats(x) for _, x in rows], "timesteps": timesteps}


def picture_vectors() -> dict[str, Any]:
    pixels = np.arange(0, 252, 14, np.uint8).reshape(2, 3, 3)
    edges = [-3.0, -1.0, -0.999, -0.5, -1 / 255, 0.0, 1 / 255, 1 / 127.5, 0.25, 0.5, 1.0, 9.0]
    decoded = np.array(edges, np.float32).reshape(1, 3, 2, 2)
    latents = gaussian(3, 0, (2, 4, 2, 3)) * np.float32(2)
    matrix = _PREVIEW
    return {
        "about": "to_network: [2, 3, 3] bytes to [3, 2, 3]. from_network: [1, 3, 2, 2] to"
        " [1, 2, 2, 3] bytes. preview: latents [2, 4, 2, 3] by the matrix to [2, 2, 3, 3] bytes,"
        " where one more or less is right too, as sums may be taken in any order.",
        "to_network": {
            "pixels": pixels.ravel().tolist(),
            "values": _floats(pictures.to_network(pixels)),
        },
        "from_network": {
            "values": _floats(decoded),
            "pixels": pictures.from_network(decoded).ravel().tolist(),
        },
        "preview": {
            "latents": _floats(latents),
            "matrix": [list(row) for row in matrix],
            "pixels": pictures.preview(latents, matrix).ravel().tolist(),
        },
    }


def package() -> dict[str, Any]:
    """The files of a whole package for the fake engine, and its manifest for three batch sizes."""
    with tempfile.TemporaryDirectory() as folder:
        made = {name: _package(Path(folder) / name, batch) for name, batch in BATCHES.items()}
        files = {
            name: made["any"].file(name).read_text(encoding="utf-8")
            for name in made["any"].manifest.files
        }
        manifests = {
            name: (each.path / "manifest.json").read_text(encoding="utf-8")
            for name, each in made.items()
        }
    return {
        "about": "Files by name, and manifest.json for a UNet whose batch is any, 1 or 2.",
        "files": files,
        "manifests": manifests,
    }


def generation() -> dict[str, Any]:
    """Whole pictures by the fake engine."""
    image = np.random.default_rng(5).integers(0, 256, (16, 24, 3), np.uint8)
    draws: list[tuple[str, str, dict[str, Any]]] = [
        ("any", "dpm++-2m", {}),
        ("1", "euler-ancestral", {"seeds": (1, 2**64 - 1), "negative_prompt": "blurry"}),
        ("2", "lcm", {"seeds": (5,), "guidance_scale": 1.0}),
        ("2", "dpm++-2m", {"seeds": (3, 4, 5), "guidance_scale": 4.0, "low_memory": True}),
        ("any", "euler-ancestral", {"seeds": (9,), "image": image, "strength": 0.8}),
        ("1", "dpm++-2m", {"seeds": (9,), "image": image, "strength": 0.5, "low_memory": True}),
    ]
    prompt = "a red circle, on a white background " + "and more " * 40
    with tempfile.TemporaryDirectory() as folder:
        packages = {name: _package(Path(folder) / name, batch) for name, batch in BATCHES.items()}
        cases = [
            _drawn(packages[name], name, chosen, prompt, **options)
            for name, chosen, options in draws
        ]
    return {
        "about": "Requests to packages of package.json, drawn by the engine of"
        " tools/fake_engine.py. `image` and `pictures` are base64 of [16, 24, 3] bytes. `latents`"
        " are right to 1e-5, pictures to one step of each byte; `calls` is what the engine"
        " was asked.",
        "prompt": prompt,
        "image": base64.b64encode(image.tobytes()).decode(),
        "cases": cases,
    }


def _drawn(made: Package, name: str, chosen: str, prompt: str, **options: Any) -> dict[str, Any]:
    engine = FakeEngine(made)
    stored = made.table(chosen, 4)
    assert stored is not None
    done = draw(engine, made, stored, Request(prompt, **options))
    usual = {"negative_prompt": "", "guidance_scale": 7.5, "strength": 0.75, "low_memory": False}
    return {
        "package": name,
        "sampler": chosen,
        "steps": 4,
        "seeds": [str(seed) for seed in options.get("seeds", (0,))],
        "from_image": "image" in options,
        **{name: options.get(name, value) for name, value in usual.items()},
        "calls": engine.calls,
        "cut": done.cut,
        "latents": _floats(done.latents),
        "pictures": [base64.b64encode(each.tobytes()).decode() for each in done.pictures],
    }


_PREVIEW = (
    (0.25, -0.125, 0.5, 0.0625, 0.1),
    (0.1, 0.3, -0.2, 0.05, -0.05),
    (-0.3, 0.2, 0.15, 0.4, 0.0),
)


def _package(folder: Path, batch: int | None) -> Package:
    """A package of the fake engine; some of its words test how a manifest is spelt."""
    (folder / "samplers").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    samplers = {}
    for name in ("dpm++-2m", "euler-ancestral", "lcm"):
        file = f"samplers/{name}-4.json"
        (folder / file).write_bytes(msgspec.json.encode(table(name, 4, STABLE_DIFFUSION).to_json()))
        samplers[f"{name}/4"] = file
    for file in ("vocab.json", "merges.txt"):
        (folder / "tokenizer" / file).write_bytes((TINY_TOKENIZER / file).read_bytes())
    parts = components(batch)
    for part in parts:
        (folder / part.files[0]).write_text(f"{part.name} needs no weights\n", encoding="utf-8")
    spelling = {
        "empty": {},
        "none": [],
        "small": 1e-6,
        "large": 1e22,
        "signs": [-0.0, -5],
        "no": None,
    }
    return seal(
        folder,
        Manifest(
            model='fake "model" \\ é 日本 🐈 \x00\x1f\x7f\u2028/\n\t',
            target="fake",
            precision="fp32",
            picture=Picture(16, 24, SHRINK, SHRINK, 4, _PREVIEW),
            tokenizer=TokenizerSpec(
                "tokenizer/vocab.json", "tokenizer/merges.txt", LENGTH, {"<cat>": (900, 901)}
            ),
            components=parts,
            samplers=samplers,
            default_sampler="dpm++-2m/4",
            schedule={**STABLE_DIFFUSION, "spelling": spelling},
            sources=(),
            created_by="tools/golden.py",
        ),
    )


def _floats(values: Any) -> list[float]:
    return [float(f"{value:.9g}") for value in np.asarray(values, np.float32).ravel()]


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "tokenizer": tokenizer,
    "noise": noise,
    "sampler": sampler,
    "pictures": picture_vectors,
    "package": package,
    "generation": generation,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, vectors in FILES.items():
        path = FOLDER / f"{name}.json"
        text = json.dumps(vectors(), ensure_ascii=True, separators=(",", ":"))
        path.write_text(text + "\n", encoding="ascii")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
