# SPDX-License-Identifier: Apache-2.0
"""What the tests reach: lines and branches of mcugen/, and branches of the generated C by kernel.

A kernel is generated anew for each model, with other constants in it. So its branches are told apart by their place in
the text with all numbers left out, and one that any of the programs takes is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from markers import rewrite_passage

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "tests.md"
BUILD = ROOT / "build" / "coverage"
TEMPLATES = ROOT / "templates" / "kernels"

CONFIGURATION = """\
[run]
branch = true
source = mcugen
parallel = true
patch = subprocess
data_file = {folder}/python
"""
_NUMBER = re.compile(r"\b0x[0-9a-fA-F]+\b|\d+")

Branch = tuple[str, int]
"""A line without its numbers, and which of its branches."""


def run(tests: Sequence[str]) -> str:
    """Run the tests under both measurements; return pytest's output."""
    shutil.rmtree(BUILD, ignore_errors=True)
    (BUILD / "c").mkdir(parents=True)
    configuration = BUILD / "configuration"
    configuration.write_text(CONFIGURATION.format(folder=BUILD))
    environment = os.environ | {"MCUGEN_C_COVERAGE": str(BUILD / "c")}
    command = [*_COVERAGE, "run", f"--rcfile={configuration}", "-m", "pytest", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    for step in (["combine", "-q"], ["json", "-q", "-o", str(BUILD / "python.json")]):
        subprocess.run([*_COVERAGE, step[0], f"--rcfile={configuration}", *step[1:]], cwd=ROOT, check=True)
    _SAID.write_text(done.stdout)
    return done.stdout


_SAID = BUILD / "pytest.txt"
_COVERAGE = (sys.executable, "-m", "coverage")


def outcome(said: str) -> str:
    """Return the number of passed tests, from the last line of pytest's output."""
    return said.strip().splitlines()[-1].strip("= ")


def failed(said: str) -> list[str]:
    """Return the tests that failed or could not start, with the reason, from pytest's summary."""
    return [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]


# ------------------------------------------------------------------------------------------------------- Python


def python_table(report: Path) -> str:
    """Return a table with a row for each package of mcugen/ and one for all."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 4)
    for name, found in json.loads(report.read_text())["files"].items():
        path = Path(name).relative_to("mcugen")
        summary = found["summary"]
        figures = [summary[k] for k in ("covered_lines", "num_statements", "covered_branches", "num_branches")]
        for room in (f"{path.parts[0]}/" if len(path.parts) > 1 else "modules beside them", "all"):
            sums[room] = [a + b for a, b in zip(sums[room], figures, strict=True)]
    rows = [(room, *figures) for room, figures in sorted(sums.items(), key=lambda item: (item[0] == "all", item[0]))]
    lines = ["| mcugen/ | lines | run | branches | taken |", "|---|---|---|---|---|"]
    for room, ran, statements, taken, branches in rows:
        lines.append(
            f"| {room} | {statements:,} | {share(ran, statements)} | {branches:,} | {share(taken, branches)} |"
        )
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    """Return a share in percent."""
    return f"{100 * part / whole:.1f} %" if whole else "none"


# ------------------------------------------------------------------------------------------------ generated C


def kernel_branches(folder: Path) -> dict[str, dict[Branch, bool]]:
    """Return by kernel each branch, and whether a program took it."""
    kernels = sorted((path.name.split(".")[0] for path in TEMPLATES.glob("*.c.j2")), key=len, reverse=True)
    found: defaultdict[str, dict[Branch, bool]] = defaultdict(dict)
    for counts in sorted(folder.rglob("*.gcda")):
        if not counts.with_suffix(".gcno").exists():
            continue  # of the harness
        texts: dict[str, list[str]] = {}
        for file, line in gcov(counts):
            source = counts.parent / Path(file).name
            if not source.is_file():
                continue  # of a program that stands elsewhere
            text = texts.setdefault(file, source.read_text().splitlines())
            function = line.get("function_name", "")
            kernel = next((k for k in kernels if function == k or function.startswith(f"{k}_")), None)
            if kernel is None:
                continue
            place = _NUMBER.sub("0", text[line["line_number"] - 1].strip().replace(function, "fn"))
            for number, branch in enumerate(line["branches"]):
                key = (place, number)
                found[kernel][key] = found[kernel].get(key, False) or branch["count"] > 0
    return dict(found)


def gcov(counts: Path) -> Iterator[tuple[str, Mapping]]:
    """Yield the files that were compiled with these counts, each with its lines and branches."""
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", counts.name]
    done = subprocess.run(command, cwd=counts.parent, capture_output=True, text=True)
    for each in done.stdout.splitlines():
        for file in json.loads(each)["files"]:
            yield from ((file["file"], line) for line in file["lines"] if line["branches"])


def kernel_table(found: Mapping[str, Mapping[Branch, bool]], most: int = 15) -> str:
    """Return the table of all kernels together and of the kernels with the most branches never taken."""
    missed = {kernel: sum(not taken for taken in branches.values()) for kernel, branches in found.items()}
    whole = sum(map(len, found.values()))
    lines = ["| kernel | branches | taken |", "|---|---|---|"]
    for kernel in sorted((k for k in missed if missed[k]), key=lambda k: (-missed[k], k))[:most]:
        count = len(found[kernel])
        lines.append(f"| `{kernel}` | {count:,} | {share(count - missed[kernel], count)} |")
    taken = share(whole - sum(missed.values()), whole)
    return "\n".join([*lines, f"| all {len(found)} that were built | {whole:,} | {taken} |"])


def main() -> None:
    """Run the tests, print the tables, and rewrite docs/reference/figures/tests.md on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--kept", action="store_true", help="do not run: read what the last run left")
    options, tests = parser.parse_known_args()
    tests = tests or ["-n", "2", "-m", "not slow"]
    said = _SAID.read_text() if options.kept else run(tests)
    kernels = kernel_branches(BUILD / "c")
    measured = f"(`make coverage`: `pytest {shlex.join(tests)}`, {outcome(said)}.)"
    text = "\n\n".join([python_table(BUILD / "python.json"), kernel_table(kernels), measured])
    print("\n".join([text, *failed(said)]))
    if options.write_docs:
        rewrite_passage(DOCUMENT, "coverage", text)


if __name__ == "__main__":
    main()
