"""The noise is Philox4x32-10 to the bit, and Gaussian to the eye of a statistician."""

import numpy as np
import pytest

from runtime_py.errors import PocketSDError
from runtime_py.noise import gaussian, philox, row_stream

# The known-answer vectors published with Random123: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: str, key: str, result: str) -> None:
    low, high = words(key)
    block = np.array(words(counter), np.uint64)[:, None]  # [4, 1]
    assert philox(block, (low, high))[:, 0].tolist() == words(result)


def scalar(seed: int, stream: int, i: int) -> float:
    """The definition at the top of noise.py once more, one element at a time."""
    mask = 0xFFFFFFFF
    k0, k1 = seed & mask, seed >> 32
    c = [(i // 4) & mask, (i // 4) >> 32, stream & mask, stream >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    pair = i % 4 // 2 * 2
    u0, u1 = ((c[pair + j] + 0.5) / 2**32 for j in range(2))
    turn = np.sin if i % 2 else np.cos
    return float(np.float32(np.sqrt(-2 * np.log(u0)) * turn(2 * np.pi * u1)))


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 7, 2**64 - 1])
@pytest.mark.parametrize("stream", [0, 3, 2**40])
def test_every_element_is_a_function_of_its_index(seed: int, stream: int) -> None:
    drawn = gaussian(seed, stream, (2, 7)).ravel()
    np.testing.assert_allclose(drawn, [scalar(seed, stream, i) for i in range(14)], rtol=1e-6)


def test_pinned() -> None:
    """What ports to other languages are held to."""
    first = [-0.97018981, 0.19401896, -1.23562074, 1.92392671, -0.07318151, 0.139137492]
    np.testing.assert_allclose(gaussian(42, 0, (6,)), first, rtol=1e-6)
    first = [-0.922035635, 0.0335010514, -0.0791915432, 1.55481637]
    np.testing.assert_allclose(gaussian(2**64 - 1, row_stream(0), (4,)), first, rtol=1e-6)


def test_shape_dtype_and_prefix() -> None:
    small, large = gaussian(7, 0, (1, 4, 5, 3)), gaussian(7, 0, (1, 4, 64, 64))
    assert small.shape == (1, 4, 5, 3)
    assert small.dtype == large.dtype == np.float32
    assert np.array_equal(small.ravel(), large.ravel()[: small.size])
    assert gaussian(7, 0, (0,)).size == 0


def test_distribution() -> None:
    drawn = gaussian(1234, 0, (1_000_000,)).astype(np.float64)
    assert abs(drawn.mean()) < 4e-3  # four standard errors each
    assert abs(drawn.var() - 1) < 6e-3
    assert abs((drawn**3).mean()) < 1.6e-2
    assert abs((drawn**4).mean() - 3) < 4e-2
    assert abs((np.abs(drawn) > 3).mean() - 0.0026998) < 2.1e-4
    for lag in (1, 2, 3, 4, 5, 64, 4096):
        assert abs((drawn[lag:] * drawn[:-lag]).mean()) < 5e-3


def test_seeds_and_streams_are_unrelated() -> None:
    draws = [
        gaussian(seed, stream, (40_000,))
        for seed in (0, 1, 2, 1 << 32, 1 << 63)
        for stream in (0, row_stream(0), row_stream(1), 1 << 32)
    ]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 0.025  # five standard errors


@pytest.mark.parametrize(("seed", "stream"), [(-1, 0), (1 << 64, 0), (0, -1)])
def test_out_of_range(seed: int, stream: int) -> None:
    with pytest.raises(PocketSDError, match="2\\^64"):
        gaussian(seed, stream, (4,))
