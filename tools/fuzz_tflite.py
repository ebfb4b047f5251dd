# SPDX-License-Identifier: Apache-2.0
"""Reads damaged .tflite files and FlexBuffers, by seed: each must be read or refused, by an error, in little time.

    python tools/fuzz_tflite.py --count 100000

A case that fails is written to build/fuzz. Run with PYTHONPATH=tests:tools (`make fuzz-tflite`).
"""

from __future__ import annotations

import random
import resource
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from tflite_cases import CASES
from tflite_models import flexbuffer

from mcugen.core.errors import McugenError
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import prepare_model
from mcugen.frontend.tflite.convert import convert_tflite
from mcugen.frontend.tflite.flexbuffer import FlexBufferError, read_flexbuffer

KEPT = Path("build/fuzz")
"""Folder of the files that fail."""
MAX_SECONDS = 10.0
"""Longest CPU time of one case in seconds."""
MAX_BYTES = 4 << 30
"""Limit of the address space of the process in bytes."""
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 127, 128, 255, 256, 32767, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
"""Values that are written in the place of others, as 32 bits."""
_FLEXBUFFER_SHARE = 0.3
"""Share of the cases that are FlexBuffers without a model."""
_FLEXBUFFERS = (
    flexbuffer({"fft_length": 512, "T": 7}),
    flexbuffer({"scale": 0.5, "prefill": True, "frame_size": 3}),
    bytes.fromhex("0361626300040e0107240c2401"),
    bytes.fromhex("000102000300040005000204060801020301040c2804240c2801"),
)
"""FlexBuffers of maps, texts and vectors, from which damaged ones are made."""
_IMPORTED_SHARE = 0.1
"""Share of the cases that are also imported as ONNX, which takes ten times as long."""


@cache
def seeds() -> list[bytes]:
    """Return valid files, from which damaged ones are made."""
    return [make().data for make in CASES.values()]


def damaged(choose: random.Random, valid: Sequence[bytes]) -> bytes:
    """Return a damaged file: with other bytes, numbers, or parts of another file, cut or lengthened.

    Args:
        choose: The source of random numbers.
        valid: The files that damaged ones are made from.
    """
    data = bytearray(choose.choice(valid))
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        if len(data) < 8:
            break
        place, kind = choose.randrange(len(data) - 4), choose.randrange(8)
        if kind < 2:
            data[place] = choose.randrange(256)
        elif kind < 4:
            aligned = place & ~3
            data[aligned : aligned + 4] = struct.pack("<I", choose.choice(_NUMBERS))
        elif kind == 4:
            data[place] ^= 1 << choose.randrange(8)
        elif kind == 5:
            aligned, offset = place & ~3, choose.randrange(len(data))
            data[aligned : aligned + 4] = struct.pack("<I", offset)
        elif kind == 6:
            del data[place : place + choose.choice((1, 4, 64, len(data)))]
        else:
            other = choose.choice(valid)
            size = choose.choice((4, 16, 64))
            data[place : place + size] = other[place : place + size]
    return bytes(data)


def fault_of(data: bytes, is_imported: bool) -> str:
    """Return what is wrong with how a file is read; "" if nothing is.

    Args:
        data: The file.
        is_imported: Whether a converted model is also imported.
    """
    start = time.process_time()
    try:
        model = convert_tflite(data, "model.tflite")
        if is_imported:
            import_model(prepare_model(model, "model.tflite"), "model")
    except McugenError:
        pass
    except Exception:
        return traceback.format_exc(limit=-4)
    seconds = time.process_time() - start
    return f"{seconds:.1f} s" if seconds > MAX_SECONDS else ""


def fault_of_flexbuffer(data: bytes) -> str:
    """Return what is wrong with how a FlexBuffer is read; "" if nothing is."""
    start = time.process_time()
    try:
        read_flexbuffer(data)
    except FlexBufferError:
        pass
    except Exception:
        return traceback.format_exc(limit=-4)
    return "slow" if time.process_time() - start > MAX_SECONDS else ""


def run(seed: int, is_imported: bool | None = None) -> tuple[bytes, str]:
    """Return the file of a seed, and what is wrong with how it is read.

    Args:
        seed: The seed.
        is_imported: Whether the model is imported; None to let the seed decide.
    """
    choose = random.Random(seed)
    if choose.random() < _FLEXBUFFER_SHARE:
        data = damaged(choose, _FLEXBUFFERS)
        return data, fault_of_flexbuffer(data)
    data = damaged(choose, seeds())
    return data, fault_of(data, choose.random() < _IMPORTED_SHARE if is_imported is None else is_imported)


def main(
    count: Annotated[int, typer.Option(help="number of cases")] = 100_000,
    first: Annotated[int, typer.Option(help="first seed")] = 0,
) -> None:
    """Print the seeds that fail; exit code 1 if there are any."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    start, faults = time.monotonic(), 0
    for seed in range(first, first + count):
        data, fault = run(seed)
        if fault:
            faults += 1
            KEPT.mkdir(parents=True, exist_ok=True)
            (KEPT / f"tflite_{seed}.tflite").write_bytes(data)
            print(f"seed {seed}: {fault}", file=sys.stderr, flush=True)
    print(f"{count:,} cases, {faults} wrong, {time.monotonic() - start:.0f} s")
    raise typer.Exit(int(faults > 0))


if __name__ == "__main__":
    typer.run(main)
