"""Gaussian noise that is the same on every device: Philox4x32-10 and Box-Muller.

A seed must give one picture in Python, JavaScript, Swift, C++ and WGSL alike, so nothing here has
state: element i of a stream is a pure function of (seed, stream, i).

    key      k0, k1      = low, high word of the 64-bit seed
    counter  c0..c3      = low, high word of i // 4, low, high word of the stream
    ten times            c0, c1, c2, c3 = hi(M1 c2) ^ c1 ^ k0,  lo(M1 c2),
                                          hi(M0 c0) ^ c3 ^ k1,  lo(M0 c0)
                         k0, k1 = k0 + W0, k1 + W1            all modulo 2^32; hi, lo are the
                                                              halves of the 64-bit product
    uniform  u_w         = (c_w + 0.5) / 2^32                 in float64, never 0 or 1
    normal   z_0, z_1    = r cos a, r sin a                   r = sqrt(-2 ln u_0), a = 2 pi u_1
             z_2, z_3    likewise from u_2, u_3
    element  i           = z_(i mod 4), rounded to float32    i counts in row-major order

Stream 0 is the initial latent (and the noise that img2img and inpainting mix in); stream k + 1 is
the fresh noise of row k of the schedule that is played. More images of one prompt take more seeds.
"""

from __future__ import annotations

from math import prod, tau

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import PocketSDError

INITIAL = 0  # the stream of the initial latent

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_WORDS = 1 << 64


def gaussian(seed: int, stream: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Unit normal noise. A larger shape begins with the same numbers."""
    if not 0 <= seed < _WORDS or not 0 <= stream < _WORDS:
        raise PocketSDError(f"seed {seed} (stream {stream}) is not within 0 .. 2^64 - 1")
    count = prod(shape)
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    streams = np.full_like(blocks, stream)
    counter = np.stack([blocks & _LOW, blocks >> _32, streams & _LOW, streams >> _32])
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))  # [4, blocks]
    uniform = (words.astype(np.float64) + 0.5) / 2**32
    radius, angle = np.sqrt(-2 * np.log(uniform[0::2])), tau * uniform[1::2]  # [2, blocks]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)  # [2, 2, blocks]
    return normal.reshape(4, -1).T.ravel()[:count].reshape(shape).astype(np.float32)


def row_stream(k: int) -> int:
    """The stream of row k's fresh noise."""
    return k + 1


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10 (Salmon et al., SC 2011). counter [4, n]: 32-bit words held in 64 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2  # 32 x 32 bits fit in 64
        c0, c1, c2, c3 = (
            (p1 >> _32) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _32) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])
