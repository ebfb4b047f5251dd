# SPDX-License-Identifier: Apache-2.0
"""Static analysis of the C of every shared and zoo model, as given and quantized, for a board of each CPU, and of what
tests/lint_variants.py wrote: small models of each kernel and each option.

Rules of MISRA C:2012 by cppcheck's add-on, in functions that no model before had (kernels repeat; --every looks at each
model's own files, too); then what compilers' analyzers say. What was found is kept in build/lint by content, and so
are quantized models by name: what was broken off goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer
from analyzers import CHECKS, WARNINGS, complaints
from lint_c import ADVISORY, EXPLAINED, Finding, misra, readable, rule_key, unseen
from markers import replace_between_markers
from zoo import BOUND, FOLDERS, SIZES, is_quantized, roomy, spread_samples

from mcugen.board import load_board
from mcugen.compilation import Compilation
from mcugen.options import CompileOptions
from mcugen.tasks import Quantizing

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "lint"
VIEWS = {"m0": "rp2040", "m4": "nrf52840", "m55": "corstone300", "rv32": "rv32imc"}
"""Boards by CPU; the C of each is looked at as plain C, too."""
PLAIN = "plain"
HOST = "host"
"""Whose code is plain C from the beginning."""
VARIANT, KERNEL = "variant.", "kernel."
"""What names of folders begin with that tests/lint_variants.py wrote: code of some form, models of a kernel."""


def compiled(path: Path, precision: str) -> None:
    """Writes a model's folders, one a board."""
    options = CompileOptions(dims=SIZES.get(path.stem, {}), bound=BOUND.get(path.stem, {}))  # type: ignore[arg-type]
    model: Path | onnx.ModelProto = path
    if precision == "int8":
        model = PLACE / f"{path.stem}_int8.onnx"
        if not model.exists():
            quantizing = Quantizing(calibration=spread_samples(path))
            PLACE.mkdir(parents=True, exist_ok=True)
            onnx.save(Compilation(path, roomy(load_board("rp2040")), options, quantizing).quantized.proto, model)
        options = replace(options, dims={}, bound={})
    for cpu, board in VIEWS.items():
        Compilation(model, roomy(load_board(board)), options).compiled.write(PLACE / cpu / f"{path.stem}.{precision}")


def wanted(names: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Models and precisions."""
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.onnx")):
        if any(name in path.stem for name in names):
            yield from ((path, kind) for kind in (("given",) if is_quantized(path) else ("given", "int8")))


def looked_at(cpu: str, every: bool) -> Iterator[tuple[Path, list[Finding]]]:
    """What MISRA's rules say of variants, and of models whose kernels have something new. What is small comes first, so
    that each function is looked at where little stands beside it.
    """
    seen, kernels = set[str](), set[str]()
    folders = [folder for view in (VIEWS if cpu == PLAIN else ()) for folder in (PLACE / view).iterdir()]
    folders += (PLACE / cpu).iterdir() if (PLACE / cpu).exists() else ()
    for folder in sorted(
        folders, key=lambda folder: (not folder.name.startswith((VARIANT, KERNEL)), folder.name, folder)
    ):
        before = len(kernels)
        files = {name: text for name, text in readable(folder).items() if name.endswith("_kernels.h")}
        unseen({"net.c": "", **files}, kernels)
        if len(kernels) > before or every or folder.name.startswith(VARIANT):
            yield folder, _kept(folder, cpu, seen)


def _kept(folder: Path, cpu: str, seen: set[str]) -> list[Finding]:
    """By the content of what is looked at."""
    known = set(seen)
    content = unseen(readable(folder), seen)
    fields = _remembered([cpu, content], lambda: [astuple(finding) for finding in sorted(misra(folder, cpu, known))])
    return [Finding(*finding) for finding in fields]


def _remembered(content: object, find: Callable[[], list[tuple[Any, ...]]]) -> list[list[Any]]:
    """What was found before in the same content, or is found now."""
    file = PLACE / "found" / hashlib.sha256(json.dumps(content).encode()).hexdigest()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(find())
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").replace(file)
    return json.loads(file.read_text())  # type: ignore[no-any-return]


def table(found: dict[str, set[Finding]]) -> str:
    """Lines by rule and CPU, in Markdown."""
    counts = {cpu: Counter(finding.rule for finding in findings) for cpu, findings in found.items()}
    rows = [f"| rule | | {' | '.join(counts)} | why |", f"|---|---|{'--:|' * len(counts)}---|"]
    for rule in sorted(set[str]().union(*counts.values()), key=rule_key):
        category = "advisory" if rule in ADVISORY else "required"
        numbers = " | ".join(str(count[rule]) for count in counts.values())
        rows.append(f"| {rule} | {category} | {numbers} | {EXPLAINED.get(rule, '')} |")
    required = [sum(count[rule] for rule in count if rule not in ADVISORY) for count in counts.values()]
    return "\n".join([*rows, f"| all | required | {' | '.join(map(str, required))} | |"])


def main(
    models: Annotated[str, typer.Option(help="Parts of model names, by commas; all if empty.")] = "",
    cpus: Annotated[str, typer.Option(help="By commas.")] = ",".join((*VIEWS, PLAIN)),
    skip_compiling: Annotated[bool, typer.Option(help="Takes what lies in build/lint.")] = False,
    every: Annotated[bool, typer.Option(help="Each model's own files, too, by MISRA's rules.")] = False,
    compilers: Annotated[bool, typer.Option(help="Whether compilers' analyzers run.")] = True,
    write_docs: Annotated[bool, typer.Option("--write-docs", help="The counts, in docs/misra.md.")] = False,
) -> None:
    """Exit code 1 where a rule is broken without a reason, advisory ones included, or an analyzer complains."""
    for path, precision in () if skip_compiling else wanted(models.split(",")):
        print(f"compiling {path.stem} ({precision})", file=sys.stderr, flush=True)
        compiled(path, precision)
    found = defaultdict[str, set[Finding]](set)
    told = 0
    for cpu in cpus.split(","):
        for folder, findings in looked_at(cpu, every):
            new = [f for f in set(findings) - found[cpu] if f.rule not in EXPLAINED]
            for finding in sorted(new):
                print(f"{cpu}\t{folder.name}\tMISRA {finding.rule}\t{finding.origin}\t{finding.code}", flush=True)
            found[cpu] |= set(findings)
            told += len(new)
            if compilers and folder.parent.name == cpu:  # plain C of a CPU's folder is what its compiler saw
                told += _complained(cpu, folder)
    print(table(found))
    if write_docs:
        document = ROOT / "docs" / "misra.md"
        document.write_text(replace_between_markers(document.read_text(), "counts", table(found)))
    raise typer.Exit(1 if told else 0)


def _complained(cpu: str, folder: Path) -> int:
    board = load_board(VIEWS.get(cpu, HOST))
    asked = [CHECKS, WARNINGS, board.cflags, {p.name: p.read_text() for p in sorted(folder.glob("*.[ch]"))}]
    heard = _remembered(asked, lambda: [astuple(complaint) for complaint in complaints(folder, board)])
    for tool, file, line, text in heard:
        print(f"{cpu}\t{folder.name}\t{tool}\t{file}:{line}\t{text}", flush=True)
    return len(heard)


if __name__ == "__main__":
    typer.run(main)
