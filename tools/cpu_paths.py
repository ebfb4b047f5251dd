# SPDX-License-Identifier: Apache-2.0
"""Quantizes and reports the digits example on this CPU, and on one without AVX (under QEMU): equal bytes and figures.

ONNX Runtime and numpy take other instructions there. Needs Debian's qemu-user; takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits"
CALIBRATION = ("--calibration", DIGITS / "calibration.npz")
REPORTS = {
    "quantized by ONNX Runtime": (DIGITS / "digits_int8.onnx",),
    "quantized by mcugen": (DIGITS / "digits_f32.onnx", *CALIBRATION, "--compare-layers"),
}
SLOWEST = "Nehalem"
"""The first x86 CPU that numpy runs on: SSE 4.2."""

NEAR = 1e-4
"""Relative: figures of float tensors differ in their last bits."""


def main() -> None:
    """Exits with 1 and what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", default=SLOWEST, help=f"of qemu-x86_64 (default: {SLOWEST})")
    slow = ("qemu-x86_64", "-cpu", parser.parse_args().cpu)
    with tempfile.TemporaryDirectory() as folder:
        fast, other = (_results(prefix, Path(folder)) for prefix in ((), slow))
    differences = list(different(fast, other))
    print(*differences, sep="\n")
    print(f"{'not ' if differences else ''}equal on this CPU and {' '.join(slow)}")
    sys.exit(bool(differences))


def _results(prefix: Sequence[str], folder: Path) -> dict[str, Any]:
    """The quantized model's bytes, and all reports."""
    quantized, report = folder / "quantized.onnx", folder / "report.json"
    _mcugen(prefix, "quantize", DIGITS / "digits_f32.onnx", *CALIBRATION, "-o", quantized)
    results: dict[str, Any] = {"model": quantized.read_bytes().hex()}
    for name, arguments in REPORTS.items():
        _mcugen(prefix, "report", *arguments, "-b", "host", "--data", DIGITS / "eval.npz", "--json", report)
        results[name] = json.loads(report.read_text())
    return results


def _mcugen(prefix: Sequence[str], *arguments: str | Path) -> None:
    subprocess.run([*prefix, sys.executable, Path(sys.executable).with_name("mcugen"), *arguments, "-q"], check=True)


def different(a: Any, b: Any, place: str = "") -> Iterator[str]:
    """What is not the same in two JSON documents: figures, if by more than `NEAR`."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from different(a[key], b[key], f"{place}/{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from different(one, other, f"{place}/{index}")
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=NEAR):
            yield f"{place}: {a} and {b}"
    elif a != b:
        yield f"{place}: {str(a)[:60]} and {str(b)[:60]}"


if __name__ == "__main__":
    main()
