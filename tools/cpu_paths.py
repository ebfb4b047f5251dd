# SPDX-License-Identifier: Apache-2.0
"""Quantizes and reports the digits example on this CPU and on others (under QEMU): equal bytes and figures.

ONNX Runtime and numpy take other instructions there. Needs Debian's qemu-user; takes some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shlex
import signal
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
CPUS = ("Nehalem", "Haswell")
"""The first x86 CPU that numpy runs on (SSE 4.2), and one with AVX2 but no VNNI, where products of bytes saturate."""

OF_THE_HOST = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that choose instructions for this CPU; numpy would take them on the others, too."""

ALONE = "OPENBLAS_NUM_THREADS=1"
"""QEMU's user mode may hang for ever where a process of several threads starts another."""
HANGS, TRIES = 3600, 3
"""Seconds after which a file of tests hangs, which takes minutes; and how often it is tried."""

NEAR = 1e-4
"""Relative: figures of float tensors differ in their last bits."""


def main() -> None:
    """Compare the results; exit with 1 and the differences if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", nargs="+", default=CPUS, help=f"of qemu-x86_64 (default: {' '.join(CPUS)})")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, help="arguments of pytest, which is run there instead")
    arguments = parser.parse_args()
    differ = _test if arguments.tests else _compare
    sys.exit(max(differ(cpu, arguments.tests) for cpu in arguments.cpu))


def _test(cpu: str, arguments: Sequence[str]) -> bool:
    """Run each file of tests in a separate process; return whether all pass."""
    files = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments))
    pytest = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
    failed = [f for f in files if not _passes([*_emulated(cpu), *pytest, f, *arguments[len(files) :]])]
    print(f"on a {cpu} {' and '.join(failed) if failed else 'none'} of {len(files)} files failed", flush=True)
    return bool(failed)


def _passes(command: Sequence[str]) -> bool:
    """Return whether a program succeeds, in one of several tries if it hangs."""
    for _ in range(TRIES):
        with subprocess.Popen(command, start_new_session=True) as running:
            try:
                return running.wait(HANGS) == 0
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)  # and what it started
                print(f"hangs: {shlex.join(command)}", flush=True)
    return False


def _compare(cpu: str, _: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        here, there = (_results(prefix, Path(folder)) for prefix in ((), _emulated(cpu)))
    differences = list(different(here, there))
    print(*differences, sep="\n")
    print(f"{'not ' if differences else ''}equal on this CPU and a {cpu}", flush=True)
    return bool(differences)


def _emulated(cpu: str) -> tuple[str, ...]:
    """Return the command prefix that runs a program on another CPU, with that CPU's choice of instructions."""
    without = itertools.chain.from_iterable(("-U", name) for name in OF_THE_HOST)
    return ("qemu-x86_64", *without, "-E", ALONE, "-cpu", cpu)


def _results(prefix: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return the quantized model's bytes and all reports."""
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
    """Yield the differences of two JSON documents; figures differ by more than `NEAR`."""
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
