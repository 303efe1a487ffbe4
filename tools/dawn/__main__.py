"""python -m tools.dawn FOLDER: fetch it there and print the variable to set."""

import sys
from pathlib import Path

from tools.dawn import prepare

if len(sys.argv) != 2:
    raise SystemExit("usage: python -m tools.dawn FOLDER")
for name, value in prepare(Path(sys.argv[1]).resolve(), Path(sys.executable)).items():
    print(f"export {name}={value!r}")
