# SPDX-License-Identifier: Apache-2.0
"""The evidence as Markdown. Names of nodes are untrusted: they are escaped and formatted as code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mcugen.core.errors import printable, shortened
from mcugen.core.version import __version__
from mcugen.deploy.evidence.coverage import Coverage
from mcugen.deploy.evidence.requirements import Requirement
from mcugen.deploy.evidence.sources import Deviation
from mcugen.deploy.evidence.trace import TraceabilityMatrix, find_untraced
from mcugen.reporting.figures import Report

_LICENSE = "<!-- SPDX-License-Identifier: 0BSD -->\n"
EVIDENCE_LIMITS = (
    "Whether the network's outputs are right, or safe, is not shown by any of this: that is for validation with data.",
    "Coverage is of the code as plain C on the computer that counted it. Assembly and intrinsics of the board are not "
    "counted, their twins are.",
    "MC/DC is told where gcc counts it (from version 14 on); else coverage.md says that it is missing.",
    "The bound of stack and the bytes of flash hold for the compiler and the flags in bounds.md.",
    "Time is bounded in instructions, where bounds.md has a bound, for the premises of "
    "docs/explanation/safety.md: not in cycles, which are estimated, not measured on the board.",
    "Digests of compilers are of the programs that run, and of the archives that may be linked; their own shared "
    "libraries, headers and the computer's system are not listed.",
    "Requirements are shown by tests of mcugen's suite, on models of its own: the suite is run by the project, not by "
    "the command that wrote this.",
    "Deviations are those that are annotated. Lines that break rules of MISRA C:2012 without annotation are counted by "
    "tools/lint_c.py.",
    "A node that is absorbed is traced to the layers that are nearest along the graph: what it computes is part of "
    "them, or of their constants.",
    "mcugen is not certified, and neither are the compilers.",
)
"""Sentences for the folder's README.md that say what the evidence does not show."""


def format_code(text: str) -> str:
    """Return untrusted text as Markdown code, escaped so that it can stand in a cell of a table."""
    return f"`{' '.join(printable(shortened(text, 200)).split()).replace('`', chr(39)).replace('|', '/')}`"


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; the texts of cells are not escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def readme_text(name: str, board: str, model: tuple[str, str], report: Report, checks: bool) -> str:
    """Return the text of README.md: facts on the model and the code, the contents of the folder, and known limits.

    Args:
        name: Name of the generated code.
        board: Name of the board.
        model: File name and SHA-256 of the model.
        report: Report of the compilation.
        checks: Whether the code can check its weights against checksums.
    """
    facts = [
        ("model", f"{format_code(model[0])}, SHA-256 `{model[1]}`"),
        ("code", f"{format_code(name)}, by mcugen {__version__} for {format_code(board)}"),
        ("options", format_code(report.basis.options or "none") if report.basis else "none"),
        ("layers", len(report.layers)),
        ("weights are checked", "yes" if checks else "no: `--check-weights` was not given"),
    ]
    contents = [
        ("[trace.md](trace.md), [trace.json](trace.json)", "from ONNX nodes to functions, lines, constants, and back"),
        ("[requirements.md](requirements.md)", "what generated code must do, and the tests that show it"),
        ("[coverage.md](coverage.md), [coverage.json](coverage.json)", "what of the code the samples run *"),
        ("[deviations.md](deviations.md)", "from MISRA C:2012, with reasons"),
        ("[bounds.md](bounds.md), [bounds.json](bounds.json)", "of stack, RAM, flash and time; compiler and flags *"),
        ("[sbom.json](sbom.json)", "bill of materials, CycloneDX 1.6, with hashes *"),
    ]
    limits = "".join(f"- {limit}\n" for limit in EVIDENCE_LIMITS)
    files_table = format_table(("file", "what it tells"), contents)
    return (
        f"{_LICENSE}# Evidence for {format_code(name)}\n\n{format_table(('', ''), facts)}\n{files_table}\n"
        f"\\* depends on the tools that are installed; the other files depend on model, board and options alone.\n\n"
        f"## Known limits\n\n{limits}"
    )


def trace_text(traced: TraceabilityMatrix) -> str:
    """Return the text of trace.md: tables of traceability from the model to the code and back."""
    layers = [
        (
            layer.number,
            format_code(layer.title),
            f"{layer.operator}, {layer.kernel}",
            ", ".join(layer.lines),
            "<br>".join(layer.functions),
            "<br>".join(layer.constants),
        )
        for layer in traced.layers
    ]
    nodes = [(format_code(n.name), format_code(n.operator), n.how, ", ".join(map(str, n.layers))) for n in traced.nodes]
    used = [f for f in traced.functions if f.layers]
    functions = [(f.name, f.lines, ", ".join(map(str, f.layers))) for f in used]
    constants = [(c.name, f"{c.ctype}[{c.elements}]", c.line, ", ".join(map(str, c.layers))) for c in traced.constants]
    missing = [
        f"- {kind}: {', '.join(map(format_code, names))}\n" for kind, names in find_untraced(traced).items() if names
    ]
    return (
        f"{_LICENSE}# Traceability\n\n## From the model to the code\n\n"
        f"{format_table(('ONNX node', 'operator', 'how', 'layers'), nodes)}\n"
        f"{format_table(('layer', 'ONNX', 'operator, kernel', 'called at', 'functions', 'constants'), layers)}\n"
        f"## From the code to the model\n\n{format_table(('function', 'lines', 'layers'), functions)}\n"
        f"Functions that no layer reaches are of the interface, or not used by this model: trace.json has them.\n\n"
        f"{format_table(('constant', 'type', 'place', 'layers'), constants)}\n"
        f"## Without a counterpart\n\n{''.join(missing) or 'Nothing.' + chr(10)}"
    )


def requirements_text(all_: Sequence[Requirement]) -> str:
    """Return the text of requirements.md: a table of requirements with the tests that verify them."""
    rows = [(r.id, r.text, "<br>".join(f"`tests/{test}`" for test in r.tests)) for r in all_]
    return f"{_LICENSE}# Requirements of generated code\n\n{format_table(('', 'requirement', 'shown by'), rows)}"


def deviations_text(declared: Sequence[Deviation]) -> str:
    """Return the text of deviations.md: a table of deviations from MISRA C:2012 with their lines and reasons."""
    places = dict[tuple[str, str], list[str]]()
    for d in declared:
        places.setdefault((d.rule, d.reason), []).append(f"{d.file}:{d.line}{f' `{d.name}`' * bool(d.name)}")
    rows = [(rule, ", ".join(at), reason) for (rule, reason), at in places.items()]
    places_table = (
        format_table(("rule", "place", "reason, and what guards it"), rows) if rows else "None is annotated.\n"
    )
    return f"{_LICENSE}# Deviations from MISRA C:2012\n\n{places_table}"


def bounds_text(figures: Mapping[str, Any]) -> str:
    """Return the text of bounds.md: bounds and measurements of stack, memory and time.

    Args:
        figures: The contents of bounds.json.
    """
    stack = figures["stack_bound"] or {"bytes": None, "path": [], "note": "no cross compiler"}
    ram, flash = figures["ram"], figures["flash"]
    rows = [
        ("stack, bound", _count(stack["bytes"]), " > ".join(stack["path"]) or stack["note"]),
        ("stack, peak of the samples", _count(ram["stack"]), ""),
        ("arena", _count(ram["arena"]), ""),
        ("state", _count(ram["state"]), ""),
        ("static RAM besides", _count(ram["static"]), ""),
        ("flash, code", _count(flash["code"]), "with what it needs of libraries"),
        ("flash, weights", _count(flash["weights"]), ""),
        ("instructions", _count(figures["instructions"]), "of the first sample"),
        *_time(figures["instruction_range"]),
        ("cycles, estimate", _count(figures["cycles_estimate"]), figures["cycles_note"]),
    ]
    varies = "".join(f"- {printable(line)}\n" for line in figures["varies"]) or "None.\n"
    return (
        f"{_LICENSE}# Bounds\n\n{format_table(('', 'bytes, or count', ''), rows)}\n"
        f"Compiler: {figures['compiler']}, `{figures['flags']}`. Simulator: {figures['simulator'] or 'none'}.\n\n"
        f"## Layers whose instructions depend on data\n\n{varies}"
    )


def _time(known: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str]]:
    """Yield the best and the worst case, if there is a simulator."""
    if known is not None:
        span = f"{known['best']:,} to {known['worst']:,}"
        ran = "of any input" if known["is_bound"] else f"of {known['inputs']} inputs that ran, extreme ones among them"
        yield "instructions, best and worst", span, ran
        why = (
            "which no input exceeds: the longest path through what was linked" if known["bound"] else known["unbounded"]
        )
        yield "instructions, bound", _count(known["bound"]), why


def _count(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def coverage_text(coverage: Coverage, sources: Mapping[str, str]) -> str:
    """Return the text of coverage.md: a table of coverage by file, and the source lines that no sample runs.

    Args:
        coverage: The coverage.
        sources: Texts of the C files, by name.
    """
    rows = [
        (
            f.file,
            _share(f.covered_lines, f.lines),
            _share(f.covered_branches, f.branches),
            *([_share(f.covered_conditions, f.conditions)] if f.conditions is not None else []),
        )
        for f in coverage.files
    ]
    columns = ("file", "statements", "branches", "conditions (MC/DC)")[: max(map(len, rows), default=3)]
    missed = _list_lines({f.file: f.missed for f in coverage.files}, sources)
    unshown = _list_lines({f.file: f.unshown for f in coverage.files}, sources)
    return (
        f"{_LICENSE}# Coverage\n\n"
        f"{coverage.samples} samples, {coverage.compiler}, -O0, as plain C on this computer.\n\n"
        f"{format_table(columns, rows)}\nMC/DC: {coverage.mcdc}.\n\n"
        f"## Lines that no sample runs\n\n{missed or 'None.' + chr(10)}"
        + f"## Lines with terms of conditions that were not shown to decide by themselves\n\n{unshown}"
        * bool(unshown)
    )


def _list_lines(lines: Mapping[str, Sequence[int]], sources: Mapping[str, str]) -> str:
    """Return the text of lines by file."""
    return "".join(
        f"### {file}\n\n```c\n"
        + "".join(f"{at:5} {sources[file].splitlines()[at - 1].strip()}\n" for at in numbers)
        + "```\n\n"
        for file, numbers in lines.items()
        if numbers
    )


def _share(part: int | None, whole: int | None) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if part is not None and whole else "none"
