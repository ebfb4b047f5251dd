# SPDX-License-Identifier: Apache-2.0
"""Decompression of weights: by the codec of Vela, an optional package, or from the fast format of Ethos-U85."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mcugen.core.packages import optional_package

Weights16 = npt.NDArray[np.int16]
"""Decompressed weights in the order of the stream; they have up to 9 bits."""
FAST_HEADER_BITS = 256
"""Size of the header of the fast format: two flags, the offset of raw values, and a palette."""
FAST_OFFSET_BIT = 104
"""Position of the offset of raw values in the header; 8 bits."""
FAST_PALETTE_BIT = 112
"""Position of the palette in the header: 16 entries of 9 bits, magnitude above sign."""
PALETTE_BITS = 9
"""Width of an entry of the palette."""


def decompress(data: bytes) -> Weights16:
    """Return the weights of a compressed stream, in the order of the stream.

    The codec of Vela ends the whole process if the stream is cut off, so the bytes must come from Vela.

    Raises:
        ToolMissingError: Vela is not installed.
    """
    with optional_package("ethos-u", "the interpreter of Ethos-U command streams"):
        from ethosu import mlw_codec  # type: ignore[import-untyped, unused-ignore]
    return np.array(mlw_codec.decode(bytearray(data)), dtype=np.int16)


def decode_fast(data: bytes) -> Weights16:
    """Return the weights of a stream in the fast format, in the order of the stream.

    The weights are bytes (raw), or indices of 4 or 2 bits into a palette.

    Raises:
        ValueError: The stream is shorter than its header.
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits.size < FAST_HEADER_BITS:
        raise ValueError(f"{len(data)} bytes of weights in the fast format")
    is_raw, has_small_palette = bits[:2]
    body = bits[FAST_HEADER_BITS:]
    if is_raw:
        offset = numbers(bits[FAST_OFFSET_BIT:FAST_PALETTE_BIT], 8).astype(np.int8)
        return (numbers(body, 8).astype(np.int8).astype(np.int16) - offset).astype(np.int16)
    folded = numbers(bits[FAST_PALETTE_BIT:FAST_HEADER_BITS], PALETTE_BITS)
    palette = np.where(folded & 1, -(folded >> 1), folded >> 1)
    return palette[numbers(body, 2 if has_small_palette else 4)].astype(np.int16)


def numbers(bits: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.int64]:
    """Return unsigned numbers of `width` bits, the lowest bit first."""
    whole = bits[: bits.size // width * width].reshape(-1, width)
    return np.asarray(np.sum(whole.astype(np.int64) << np.arange(width), axis=1))
