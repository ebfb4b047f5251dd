# SPDX-License-Identifier: Apache-2.0
"""What of the generated C the samples run, as gcc counts it on this computer.

Here the code is plain C: what is assembly or an intrinsic on the board is counted as its twin.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugen.codegen.bundle import Bundle
from mcugen.errors import VerificationError
from mcugen.hir.types import Array
from mcugen.options import LibraryFiles
from mcugen.simulate.build import build_counted
from mcugen.simulate.execute import execute, host_program
from mcugen.simulate.simulation import SECONDS_PER_SAMPLE
from mcugen.simulate.toolchain import find_program, first_lines, program_version

MCDC = "not measured: gcc counts conditions from version 14 on (-fcondition-coverage)"


@dataclass(frozen=True)
class FileCoverage:
    """Of one file: statements are lines with code, branches the ways out of conditions; `missed` are lines that never
    ran, `half` those of which a branch was never taken.
    """

    file: str
    lines: int
    covered_lines: int
    branches: int
    covered_branches: int
    missed: tuple[int, ...]
    half: tuple[int, ...]


@dataclass(frozen=True)
class Coverage:
    """By which samples and which compiler."""

    samples: int
    compiler: str
    files: tuple[FileCoverage, ...]
    mcdc: str = MCDC


def measure(bundle: Bundle, samples: Sequence[Mapping[str, Array]], library: LibraryFiles | None = None) -> Coverage:
    """Builds the code for this computer with gcc's counters, and runs the samples.

    ToolMissingError: gcc or gcov is not installed. VerificationError: the code does not compile or run.
    """
    with tempfile.TemporaryDirectory(prefix="mcugen-coverage-") as name:
        folder = Path(name)
        program = host_program(build_counted(bundle, folder, library))
        execute(program, bundle, samples, folder / "run", timeout=SECONDS_PER_SAMPLE)
        command = [find_program("gcov"), "--json-format", "--stdout", "--branch-probabilities"]
        notes = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gcno"))
        done = subprocess.run([*command, *notes], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VerificationError("gcov must read what gcc counted", first_lines(done.stderr))
    counted = [file for line in done.stdout.splitlines() for file in json.loads(line)["files"]]
    own = {*bundle.sources, *bundle.headers}
    names = sorted({Path(file["file"]).name for file in counted} & own)
    files = tuple(_of_file(name, [f for f in counted if Path(f["file"]).name == name]) for name in names)
    return Coverage(len(samples), program_version("gcc"), files)


def _of_file(name: str, counted: Sequence[Mapping[str, Any]]) -> FileCoverage:
    """A header's counts are of all files that include it."""
    runs: dict[int, int] = {}
    taken: dict[int, list[int]] = {}
    for line in (line for file in counted for line in file["lines"]):
        at = int(line["line_number"])
        runs[at] = runs.get(at, 0) + int(line["count"])
        taken.setdefault(at, []).extend(int(branch["count"]) for branch in line["branches"])
    missed = tuple(at for at in sorted(runs) if not runs[at])
    half = tuple(at for at in sorted(runs) if runs[at] and not all(taken[at]))
    branches = [count for counts in taken.values() for count in counts]
    covered = sum(1 for count in branches if count)
    return FileCoverage(name, len(runs), len(runs) - len(missed), len(branches), covered, missed, half)
