# SPDX-License-Identifier: Apache-2.0
"""Files of measured layers: what boards took for which kernels (docs/validate.md has the format)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcugen.calibration.files import FORMAT, VERSION
from mcugen.codegen.write import write_text
from mcugen.errors import UsageError
from mcugen.limits import BOARD_BYTES, read_bounded
from mcugen.validate.figures import ValidationReport


def add_run(path: Path, report: ValidationReport) -> None:
    """Adds a run to the file, which need not exist. UsageError for a file of something else."""
    runs = _runs(path) if path.exists() else []
    write_text(path, json.dumps({"format": FORMAT, "version": VERSION, "runs": [*runs, _run(report)]}, indent=2) + "\n")


def _runs(path: Path) -> list[Any]:
    rule = f"{path}: --runs must be a file of runs, or a new one"
    try:
        data = json.loads(read_bounded(path, 64 * BOARD_BYTES))
    except ValueError as error:
        raise UsageError(rule, str(error)) from error
    known = isinstance(data, dict) and (data.get("format"), data.get("version")) == (FORMAT, VERSION)
    if not known or not isinstance(data.get("runs"), list):
        raise UsageError(rule, "something else")
    return list(data["runs"])


def _run(report: ValidationReport) -> dict[str, Any]:
    cycles, firmware = report.cycles, report.firmware
    return {
        "board": report.board,
        "cpu": report.cpu,
        "clock_hz": None if cycles is None else cycles.clock_hz,
        "counter": firmware.counter,
        "compiler": firmware.compiler,
        "flags": firmware.flags,
        "model": report.model.name,
        "sha256": report.model.sha256,
        "options": firmware.options,
        "mcugen": firmware.version,
        "cycles": None if cycles is None else cycles.first,
        "layers": [
            {"name": r.name, "op": r.op, "kernel": r.kernel, "macs": r.macs, "cycles": r.cycles} for r in report.layers
        ],
    }
