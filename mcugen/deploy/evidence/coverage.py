# SPDX-License-Identifier: Apache-2.0
"""Coverage of the generated C code by the samples, measured by gcc on this computer.

The code runs as plain C: in place of the board's assembly and intrinsics, the equivalent C code is counted.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcugen.codegen.bundle import Bundle
from mcugen.core.errors import VerificationError
from mcugen.core.options import LibraryFiles
from mcugen.hir.types import Array
from mcugen.simulation.build import build_counted
from mcugen.simulation.execute import execute, host_program
from mcugen.simulation.simulation import SECONDS_PER_SAMPLE
from mcugen.simulation.toolchain import find_program, first_lines, program_version

MIN_CONDITION_COVERAGE_GCC = 14
"""First major version of gcc that measures condition coverage (MC/DC)."""
MCDC_MEASURED = "masking, as gcc counts it (-fcondition-coverage)"
"""Text of `Coverage.mcdc` if gcc measured MC/DC (modified condition/decision coverage)."""
MCDC_NOT_MEASURED = (
    f"not measured: gcc counts conditions from version {MIN_CONDITION_COVERAGE_GCC} on (-fcondition-coverage)"
)
"""Text of `Coverage.mcdc` if gcc is too old to measure MC/DC (modified condition/decision coverage)."""


@dataclass(frozen=True)
class FileCoverage:
    """The coverage of one C file.

    Attributes:
        file: Name of the file.
        lines: Number of lines with code.
        covered_lines: Number of these lines that ran.
        branches: Number of branches: two or more for each condition.
        covered_branches: Number of these branches that were taken.
        missed: Numbers of the lines that never ran.
        half: Numbers of the lines that ran, but have a branch that was never taken.
        conditions: Number of outcomes (true, false) of the terms of conditions; None if gcc does not count them.
        covered_conditions: Number of these outcomes that were shown to decide a condition independently (masking
            MC/DC); None if gcc does not count them.
        unshown: Numbers of the lines with outcomes that were not shown to decide a condition.
    """

    file: str
    lines: int
    covered_lines: int
    branches: int
    covered_branches: int
    missed: tuple[int, ...]
    half: tuple[int, ...]
    conditions: int | None = None
    covered_conditions: int | None = None
    unshown: tuple[int, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """The coverage of the generated C files by samples."""

    samples: int
    """Number of samples that ran."""
    compiler: str
    """Version of the compiler."""
    files: tuple[FileCoverage, ...]
    """The coverage of each C file."""
    mcdc: str
    """Whether MC/DC (modified condition/decision coverage) was measured, or why not, as text."""


def measure_coverage(
    bundle: Bundle, samples: Sequence[Mapping[str, Array]], library: LibraryFiles | None = None
) -> Coverage:
    """Build the code for this computer with gcc's counters, run the samples, and return the coverage.

    Args:
        bundle: The generated files.
        samples: Inputs by name, as the generated code takes them.
        library: The user's copy of a library that the code calls, if any.

    Raises:
        ToolMissingError: gcc or gcov is not installed.
        VerificationError: The code does not compile or run.
    """
    counts = gcc_version() >= MIN_CONDITION_COVERAGE_GCC
    counters = ("--coverage", *["-fcondition-coverage"] * counts)
    gcov_options = ("--json-format", "--stdout", "--branch-probabilities", *["--conditions"] * counts)
    with tempfile.TemporaryDirectory(prefix="mcugen-coverage-") as name:
        folder = Path(name)
        program = host_program(build_counted(bundle, folder, counters, library))
        execute(program, bundle, samples, folder / "run", timeout=SECONDS_PER_SAMPLE)
        notes = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gcno"))
        command = [find_program("gcov"), *gcov_options, *notes]
        completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise VerificationError("gcov must read what gcc counted", first_lines(completed.stderr))
    counted = [file for line in completed.stdout.splitlines() for file in json.loads(line)["files"]]
    own = {*bundle.sources, *bundle.headers}
    names = sorted({Path(file["file"]).name for file in counted} & own)
    parts = [(name, [f for f in counted if Path(f["file"]).name == name]) for name in names]
    files = tuple(file_coverage(name, part, conditions=counts) for name, part in parts)
    return Coverage(len(samples), program_version("gcc"), files, MCDC_MEASURED if counts else MCDC_NOT_MEASURED)


def gcc_version() -> int:
    """Return the major version of the installed gcc, such as 14.

    Raises:
        ToolMissingError: gcc is not installed.
    """
    command = [find_program("gcc"), "-dumpversion"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(".")[0])


def file_coverage(name: str, counted: Sequence[Mapping[str, Any]], *, conditions: bool) -> FileCoverage:
    """Return the coverage of a file from gcov's JSON.

    Args:
        name: Name of the file.
        counted: gcov's entries for the file; a header has one for each file that includes it, whose counts are added.
        conditions: Whether gcov counted conditions.
    """
    runs: dict[int, int] = {}
    branch_counts: dict[int, list[int]] = {}
    shown_conditions: dict[int, list[tuple[int, int]]] = {}
    for line in (line for file in counted for line in file["lines"]):
        at = int(line["line_number"])
        runs[at] = runs.get(at, 0) + int(line["count"])
        branch_counts.setdefault(at, []).extend(int(branch["count"]) for branch in line["branches"])
        terms = ((int(condition["covered"]), int(condition["count"])) for condition in line.get("conditions", ()))
        shown_conditions.setdefault(at, []).extend(terms)
    missed = tuple(at for at in sorted(runs) if not runs[at])
    half = tuple(at for at in sorted(runs) if runs[at] and not all(branch_counts[at]))
    branches = [count for counts in branch_counts.values() for count in counts]
    covered = sum(1 for count in branches if count)
    coverage = FileCoverage(name, len(runs), len(runs) - len(missed), len(branches), covered, missed, half)
    if not conditions:
        return coverage
    parts, wholes = (sum(term[i] for terms in shown_conditions.values() for term in terms) for i in (0, 1))
    unshown = tuple(at for at in sorted(shown_conditions) if any(part < whole for part, whole in shown_conditions[at]))
    return replace(coverage, conditions=wholes, covered_conditions=parts, unshown=unshown)
