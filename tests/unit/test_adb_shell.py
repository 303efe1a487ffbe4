"""The emulated phone's shell must be as easy to inject into as a real one, or it proves nothing."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.adb_facts import phone_like
from tests.support.adb_shell import Phone

SH = shutil.which("sh")


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Phone:
    return phone_like(tmp_path_factory.mktemp("phone"), "serial", "model")


@pytest.mark.skipif(SH is None, reason="no shell to compare with")
@pytest.mark.parametrize(
    "script",
    [
        "echo a b; echo c",
        "echo 'a;b' \"c d\" e\\ f",
        "echo $(echo in) `echo back` '$(echo not)' \"$(echo in quotes)\"",
        'echo "\\$(echo not)" "a\\zb" \\\\x',
        "false && echo no || echo yes",
        "true && echo yes || echo no",
        "echo one | cat; echo two | grep two",
        "echo lost > /dev/null; echo kept",
        "false; true\nfalse",
        "echo a; false",
        "echo ${nothing}x$nothing.",
    ],
)
def test_it_reads_as_sh_does(phone: Phone, script: str) -> None:
    real = subprocess.run([SH or "sh", "-c", script], capture_output=True)
    ours = phone.run(script)
    assert (ours.out, ours.code) == (real.stdout, real.returncode)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_quoted_word_stays_a_word(phone: Phone, word: str) -> None:
    assert phone.run(f"echo x{shlex.quote(word)}").out.decode() == f"x{word}\n"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/../../etc/passwd", "/data/../../etc/passwd"]
)
def test_no_path_leads_out(phone: Phone, name: str) -> None:
    assert phone.path(name).is_relative_to(phone.root)
    (phone.root / "data" / "link").unlink(missing_ok=True)
    (phone.root / "data" / "link").symlink_to(Path("/etc"))
    with pytest.raises(PermissionError):
        phone.path("/data/link/passwd")
