"""The last words of a process that a native library ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, threading, time
from runtime_py.native_output import last_words
with last_words("it is over\\n", 3):
    os.write(2, b"a stack of thirty lines\\n")
    {how}
print("not reached")
"""


@pytest.mark.parametrize(
    "how", ["os.abort()", "threading.Thread(target=os.abort).start(); time.sleep(60)"]
)
def test_an_abort_says_one_line(how: str) -> None:
    """Of this thread, or of one that the library started."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(how=how)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "it is over\n")


def test_nothing_is_left_of_it() -> None:
    program = """
import os, sys
from runtime_py.native_output import last_words
with last_words("it is over"):
    pass
print("seen", file=sys.stderr)
os.abort()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode < 0 and done.stderr == "seen\n"
