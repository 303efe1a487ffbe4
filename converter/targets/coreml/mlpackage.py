"""A MIL program to a saved .mlpackage, byte for byte the same each time."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import coremltools
from coremltools import ComputeUnit, PassPipeline, precision
from coremltools.converters.mil import mil
from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

MODEL = "com.apple.CoreML/model.mlmodel"


def write_mlpackage(functions: dict[str, Any], path: Path, ios: int) -> None:
    """One function is the model; several share their weights (iOS 18), the first is the default."""
    program = mil.Program()
    for name, function in functions.items():
        program.add_function(name, function)
    program.default_function_name = next(iter(functions))
    program.export_as_multifunction = len(functions) > 1
    if len(functions) > 1:  # equal weights are written once
        PASS_REGISTRY["common::const_deduplication"]._deduplicate_const_across_functions(program)
    model = coremltools.convert(
        program,
        source="milinternal",
        convert_to="mlprogram",
        minimum_deployment_target=getattr(coremltools.target, f"iOS{ios}"),
        compute_units=ComputeUnit.ALL,
        compute_precision=precision.FLOAT32,  # casts are in the program already
        pass_pipeline=PassPipeline.EMPTY,  # and so is every op in the form we want
        skip_model_load=True,
    )
    shutil.rmtree(path, ignore_errors=True)
    model.save(str(path))
    normalise(path)


def normalise(path: Path) -> None:
    """Undo what differs from run to run: random identifiers, and maps in any order."""
    model = path / "Data" / MODEL
    spec = coremltools.proto.Model_pb2.Model()
    spec.ParseFromString(model.read_bytes())
    model.write_bytes(spec.SerializeToString(deterministic=True))
    manifest = json.loads((path / "Manifest.json").read_text())
    named = {}
    for old, item in manifest["itemInfoEntries"].items():
        new = str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])).upper()
        named[new] = item
        if manifest["rootModelIdentifier"] == old:
            manifest["rootModelIdentifier"] = new
    manifest["itemInfoEntries"] = dict(sorted(named.items()))
    # As coremltools itself writes it when it opens a package: or opening would break our hashes.
    (path / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")
