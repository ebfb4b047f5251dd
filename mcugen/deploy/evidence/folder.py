# SPDX-License-Identifier: Apache-2.0
"""The folder of safety evidence for one model and board."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcugen.api.compilation import Compilation
from mcugen.codegen.write import write_text
from mcugen.core.board import Board
from mcugen.core.errors import OutputError
from mcugen.deploy.evidence import text
from mcugen.deploy.evidence.coverage import Coverage, measure_coverage
from mcugen.deploy.evidence.requirements import REQUIREMENTS
from mcugen.deploy.evidence.sbom import bill_of_materials
from mcugen.deploy.evidence.sources import Deviation, parse_deviations
from mcugen.deploy.evidence.trace import TraceabilityMatrix, trace
from mcugen.evaluation.samples import as_stored
from mcugen.measurement.extremes import with_extremes
from mcugen.reporting.figures import Report
from mcugen.simulation.build import flags_of
from mcugen.simulation.machines import find_machine, tool_versions
from mcugen.simulation.toolchain import host_compiler

TOOL_DEPENDENT_FILES = ("sbom.json", "bounds.md", "bounds.json", "coverage.md", "coverage.json")
"""Files of the evidence that depend on the installed compilers and packages, not only on model, board and options."""


@dataclass(frozen=True)
class Evidence:
    """The safety evidence for one model and board.

    Attributes:
        report: The report of the compilation and of the simulated run.
        trace: The traceability between the model and the code.
        coverage: The coverage of the code by the samples.
        deviations: The annotated deviations from MISRA C:2012.
        files: The texts of the folder's files, by name.
    """

    report: Report
    trace: TraceabilityMatrix
    coverage: Coverage
    deviations: tuple[Deviation, ...]
    files: Mapping[str, str]


def gather_evidence(net: Compilation) -> Evidence:
    """Compile and measure a model, and return the evidence.

    Raises:
        McugenError: The model cannot be compiled, measured or covered (see `measure_coverage`).
    """
    samples = net.judging_samples()
    report, compiled, board = net.report(), net.compiled, net.target
    if report.instructions is not None:
        report = with_extremes(compiled, report, net.progress)
    bundle = compiled.bundle
    stored = samples.fed([as_stored(sample, compiled.program.inputs) for sample in samples.inputs])
    coverage = measure_coverage(bundle, stored, compiled.options.library)
    traced = trace(compiled.model, bundle, report.layers)
    code = {name: bundle.files[name] for name in (*bundle.sources, *bundle.headers)}
    deviating = tuple(parse_deviations(code))
    compiler, simulator = tool_versions(board)
    bounds = _bounds(report) | {"compiler": compiler, "flags": flags_of(board), "simulator": simulator}
    model = (net.source.file, net.source.sha256)
    shipped = {name: content.encode() for name, content in bundle.files.items() if not name.endswith(".json")}
    shipped |= bundle.blobs
    files = {
        "README.md": text.readme_text(
            bundle.name, board.name, model, report, compiled.options.check_weights or compiled.options.check_parameters
        ),
        "trace.md": text.trace_text(traced),
        "trace.json": _json(asdict(traced)),
        "requirements.md": text.requirements_text(REQUIREMENTS),
        "deviations.md": text.deviations_text(deviating),
        "bounds.md": text.bounds_text(bounds),
        "bounds.json": _json(bounds),
        "coverage.md": text.coverage_text(coverage, code),
        "coverage.json": _json(asdict(coverage)),
        "sbom.json": bill_of_materials(bundle.name, model, shipped, *_tools(board)),
    }
    return Evidence(report, traced, coverage, deviating, files)


def _tools(board: Board) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the programs in use, and the command that builds for the board with its flags."""
    host = Path(host_compiler()[0]).name
    if not board.qemu:
        return [host, "gcov"], (host,)
    tools = find_machine(board).toolchain
    return [host, "gcov", tools.gcc, tools.qemu], (tools.gcc, *tools.library, *board.cflags)


def _bounds(report: Report) -> dict[str, Any]:
    """Return the report's bounds of memory and time."""
    figures = report.to_json()
    keys = ("stack_bound", "ram", "flash", "instructions", "instruction_range", "cycles_estimate", "cycles_note")
    return {key: figures[key] for key in (*keys, "varies", "memories")}


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def write_evidence(evidence: Evidence, folder: Path) -> None:
    """Write the files of the evidence to a folder, one by one; other files in the folder are kept.

    Raises:
        OutputError: A file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: the output must be a folder", error.strerror or str(error)) from error
    for name, content in evidence.files.items():
        write_text(folder / name, content)
