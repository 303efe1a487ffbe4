"""What runs under the Python of whichever environment has the library, in a process of its own.

    analyze LIBRARY OUT FILE...   what LIBRARY's Analyzer says, a line of JSON for each file
    run FILE IN OUT               arrays in and out, as .npz
    view FILE...                  both, on seeded inputs, as JSON to read

Nothing of PocketSD may be imported here: the other environment does not have it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SEED = 7


def main(verb: str, *arguments: str) -> None:
    if verb == "analyze":
        library, out, *files = arguments
        analyze = analyzer(library)
        with Path(out).open("w") as lines:
            for file in files:
                # Flushed, so that whoever waits can tell which file ended the process.
                print(json.dumps(analyze(file, True, True)), file=lines, flush=True)
    elif verb == "run":
        file, given, out = arguments
        with np.load(given) as arrays:
            np.savez(out, **run(Path(file), dict(arrays)))  # type: ignore[arg-type]
    else:
        views = [view(Path(file)) for file in arguments]
        print(json.dumps(views, indent=1))


def run(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The first signature, in tf.lite.Interpreter."""
    return dict(_signature(path)(**inputs))


def view(path: Path) -> dict[str, object]:
    inputs = seeded(_signature(path).get_input_details())
    return {
        "file": str(path),
        "outputs": {name: _summary(values) for name, values in run(path, inputs).items()},
        "analyzer": _analysis(path),
    }


def seeded(details: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """Inputs that every network here takes: normal values, and small numbers for tokens."""
    random = np.random.default_rng(SEED)
    inputs: dict[str, Array] = {}
    for name, detail in sorted(details.items()):
        if np.issubdtype(detail["dtype"], np.floating):
            values = random.standard_normal(detail["shape"])
        else:
            values = random.integers(0, 16, detail["shape"])
        inputs[name] = values.astype(detail["dtype"])
    return inputs


def analyzer(library: str) -> Callable[[str, bool, bool], str]:
    """What is behind tf.lite.experimental.Analyzer.

    By itself it is there at once, where all of TensorFlow takes seconds. But it must stay alone:
    loaded again with TensorFlow it brings the process down in the end.
    """
    found = find_spec(library)
    folder = Path(found.origin).parent if found and found.origin else Path()
    for place in (folder, folder / "lite" / "python" / "analyzer_wrapper"):
        finder = FileFinder(str(place), (ExtensionFileLoader, EXTENSION_SUFFIXES))
        spec = finder.find_spec("_pywrap_analyzer_wrapper")
        if spec and spec.loader:
            module: Any = module_from_spec(spec)
            spec.loader.exec_module(module)
            analyze: Callable[[str, bool, bool], str] = module.ModelAnalyzer
            return analyze
    raise ImportError(f"{library} has no Analyzer here")


def _signature(path: Path) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # the CPU is what is asked for
    import tensorflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this interpreter will be gone one day
        interpreter = tensorflow.lite.Interpreter(model_path=str(path))
    names = list(interpreter.get_signature_list())
    if not names:
        raise ValueError("it has no signature")
    return interpreter.get_signature_runner(names[0])


def _analysis(path: Path) -> str:
    import tensorflow

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        tensorflow.lite.experimental.Analyzer.analyze(model_path=str(path), gpu_compatibility=True)
    return said.getvalue()


def _summary(values: Array) -> dict[str, object]:
    return {
        "shape": values.shape,
        "dtype": str(values.dtype),
        "sha256": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest(),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "least": float(values.min()),
        "most": float(values.max()),
    }


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
