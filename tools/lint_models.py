# SPDX-License-Identifier: Apache-2.0
"""Static analysis of the C of all shared and zoo models and of tests/lint_variants.py.

Models are analyzed as given and quantized, for a board of each CPU; tests/lint_variants.py writes small models of each
kernel and option. Tools are cppcheck's add-on for MISRA C:2012 and the analyzers of compilers; each function is checked
once, with all that it mentions. The output of tools is cached in build/lint-kept, and quantized models in build/lint,
so that an interrupted run continues.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import onnx
import typer
from analyzers import complaints
from benchmark.subjects import roomy
from checked_functions import drop_checked_functions
from lint_c import ADVISORY, EXPLAINED, Finding, misra, readable, rule_key
from markers import rewrite_passage
from zoo import BOUND, FOLDERS, SIZES, is_quantized, spread_samples

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.core.cache import code_digest
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Quantizing

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "lint"
KEPT = ROOT / "build" / "lint-kept"
VIEWS = {"m0": "rp2040", "m4": "nrf52840", "m55": "corstone300", "rv32": "rv32imc"}
"""Boards by CPU; the C of each is looked at as plain C, too."""
PLAIN = "plain"
HOST = "host"
"""Whose code is plain C from the beginning."""
VARIANT, KERNEL = "variant.", "kernel."
"""What names of folders begin with that tests/lint_variants.py wrote: code of some form, models of a kernel."""
WHOLE = ("ds_cnn_kws_int8_qdq.given", "pt_yolo_head_dynamo.given", f"{VARIANT}lesson_float32")
"""Folders that are looked at as a whole, for what rules may say of functions beside each other: whole files of integer
and real kernels, and one that learns."""


def compiled(path: Path, precision: str) -> None:
    """Write a model's folders, one a board, unless the same mcugen has written them."""
    made = PLACE / "made" / f"{path.stem}.{precision}"
    digest = f"{code_digest()} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    if made.exists() and made.read_text() == digest:
        return
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
    made.parent.mkdir(exist_ok=True)
    made.write_text(digest)


def wanted(names: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield the models to check, with their precisions."""
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.onnx")):
        if any(name in path.stem for name in names):
            yield from ((path, kind) for kind in (("given",) if is_quantized(path) else ("given", "int8")))


def looked_at(cpu: str) -> Iterator[tuple[Path, set[Finding]]]:
    """Yield the MISRA findings of each folder, smallest folders first.

    Code for a CPU is also checked as plain C if its headers have functions that were not checked yet; all else is equal
    on all CPUs. In small folders, a function is checked with little code around it.
    """
    seen, kernels = set[str](), set[str]()
    views = (*VIEWS, PLAIN) if cpu == PLAIN else (cpu,)
    folders = [folder for view in views if (PLACE / view).exists() for folder in (PLACE / view).iterdir()]
    for folder in sorted(folders, key=lambda path: (not path.name.startswith((VARIANT, KERNEL)), path.name, path)):
        if folder.parent.name == cpu or folder.name.startswith(VARIANT) or _has_more(folder, kernels):
            yield folder, misra(folder, cpu, set() if folder.name in WHOLE else seen, KEPT)


def _has_more(folder: Path, seen: set[str]) -> bool:
    """Return whether the folder's headers have functions that are not in `seen`, and add them."""
    before = len(seen)
    drop_checked_functions({name: text if name.endswith(".h") else "" for name, text in readable(folder).items()}, seen)
    return len(seen) > before


def table(found: dict[str, set[Finding]]) -> str:
    """Return the numbers of findings by rule and CPU, in Markdown."""
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
    compilers: Annotated[bool, typer.Option(help="Whether compilers' analyzers run.")] = True,
    write_docs: Annotated[bool, typer.Option("--write-docs", help="The counts, in docs/reference/misra.md.")] = False,
) -> None:
    """Analyze the models; exit code 1 if any rule is violated without a reason, or an analyzer has a message."""
    for path, precision in () if skip_compiling else wanted(models.split(",")):
        print(f"compiling {path.stem} ({precision})", file=sys.stderr, flush=True)
        compiled(path, precision)
    found = defaultdict[str, set[Finding]](set)
    told = 0
    for cpu in cpus.split(","):
        analyzed = set[str]()
        for folder, findings in looked_at(cpu):
            new = sorted(f for f in findings - found[cpu] if f.rule not in EXPLAINED)
            for finding in new:
                print(f"{cpu}\t{folder.name}\tMISRA {finding.rule}\t{finding.origin}\t{finding.code}", flush=True)
            found[cpu] |= findings
            told += len(new)
            if compilers and folder.parent.name == cpu:  # plain C of a CPU's folder is what its compiler saw
                told += _complained(cpu, folder, analyzed)
    print(table(found))
    if write_docs:
        document = ROOT / "docs" / "reference" / "misra.md"
        rewrite_passage(document, "counts", table(found))
    raise typer.Exit(1 if told else 0)


def _complained(cpu: str, folder: Path, analyzed: set[str]) -> int:
    heard = complaints(folder, load_board(VIEWS.get(cpu, HOST)), analyzed, KEPT)
    for complaint in heard:
        print(
            f"{cpu}\t{folder.name}\t{complaint.tool}\t{complaint.file}:{complaint.line}\t{complaint.text}", flush=True
        )
    return len(heard)


if __name__ == "__main__":
    typer.run(main)
