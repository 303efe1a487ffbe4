"""What is read off an Android phone: nothing is believed that makes no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_py.devices.android_facts import (
    HEALTH,
    IDENTITY,
    answers,
    health,
    identity,
    script,
    targets,
)
from runtime_py.devices.protocol import Health

PARTS = {**IDENTITY, **HEALTH}


@given(st.dictionaries(st.sampled_from(sorted(PARTS)), st.text()))
def test_any_answer_gives_facts_that_fit_on_a_line(said: dict[str, str]) -> None:
    info = identity("serial", said)
    for fact in (info.model, info.soc, info.gpu, info.abi, info.system, info.browser):
        assert fact == "" or fact.isprintable()


def test_a_phone_that_says_nothing_is_described_as_unknown() -> None:
    info = identity("serial", {})
    assert (info.model, info.memory, info.health) == ("", None, Health())
    assert info.targets["litert"] == "needs arm64-v8a, this is unknown"


def test_an_answer_cannot_pretend_to_be_another_part() -> None:
    _, mark = script(PARTS)
    said = answers(f"{mark} properties\n[a]: [battery]\n{mark} battery\n  level: 50\n", mark)
    assert said == {"properties": "[a]: [battery]\n", "battery": "  level: 50\n"}
    assert script(PARTS)[1] != mark


@pytest.mark.parametrize(
    ("now", "full", "throttled"),
    [
        ("1\n2\n", "1\n2\n", False),
        ("1\n1\n", "1\n2\n", True),
        ("1\n", "1\n2\n", None),  # a node that the shell may not read
        ("", "", None),
    ],
)
def test_throttling_is_a_cap_below_the_full_clock(
    now: str, full: str, throttled: bool | None
) -> None:
    assert health({"clock": now, "full clock": full}).throttled is throttled


@pytest.mark.parametrize(
    ("abi", "sdk", "chrome", "refused"),
    [
        ("arm64-v8a", 34, "142.0.1", {}),
        ("x86_64", 34, "142.0.1", {"litert": "needs arm64-v8a, this is x86_64"}),
        ("arm64-v8a", 30, "142", {"webgpu": "needs Android 12 (API 31), this is API 30"}),
        ("arm64-v8a", 34, "99.1", {"webgpu": "needs Chrome 121, this is 99"}),
        ("arm64-v8a", 34, "", {"webgpu": "needs Chrome, which is not installed"}),
    ],
)
def test_targets_that_a_phone_cannot_run_say_why(
    abi: str, sdk: int, chrome: str, refused: dict[str, str]
) -> None:
    found = targets(abi, sdk, chrome)
    assert {name: found[name] for name in ("litert", "webgpu") if found[name]} == refused
    assert found["coreml"] and found["torch"]
