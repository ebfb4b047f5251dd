# SPDX-License-Identifier: Apache-2.0
"""Static analysis of generated C: MISRA C:2012 by cppcheck's add-on, counted by rule and by where the code comes from.

Folders that `mcugen compile` wrote are looked at as the CPU's compiler sees them (fast paths are conditions on its
macros), and as plain C. A deviation is a comment on the line before, which is what cppcheck reads, too:
`/* cppcheck-suppress misra-c2012-10.1 ; reason, and what guards it */`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from checked_functions import drop_checked_functions
from rich.console import Console
from rich.table import Table
from tool_cache import run_tool

from mcugen.deploy.evidence.sources import parse_deviations

ROOT = Path(__file__).resolve().parents[1]
EXPLAINED: Mapping[str, str] = {
    "2.3": "types of mcugen.h that a model has no use for, and those that only assert something at compile time",
    "2.4": "the same of enumerations of constants, which have no tag",
    "2.5": "macros of NAME.h and mcugen.h are for callers",
    "2.7": "parameters of functions in assembly, which reads registers, and of forms that share one signature",
    "5.9": "runtime functions in every file that calls them",
    "8.7": "functions that are offered to callers, who are not looked at",
    "8.9": "tables and parameters of one layer stand together at the head of the file, not within functions",
    "10.5": "a truth value is kept as a number",
    "11.4": "only the last bits of an address are looked at, for its alignment",
    "11.5": "the arena is void *, and aligned for what lies in it",
    "12.1": "the add-on asks for parentheses wherever two precedences meet; -Wparentheses where people err",
    "12.3": "several variables declared in one line, and loops that move several pointers on",
    "13.3": "`*to++ = *from++`",
    "15.5": "arguments are checked first, and each check returns",
    "17.8": "pointers and counts that a function was given move on",
    "18.4": "pointers move on by rows and pixels, as the layout of tensors has it",
    "20.1": "the intrinsics' header is included where their use is decided",
    "20.5": "names that `mcugen validate`'s second copy of the network has for itself",
    "20.10": "a label's name within assembly",
}
"""Why code breaks advisory rules, as far as it does."""

_NOT_BROKEN = "2.6 4.2 8.11 8.13 12.4 13.4 15.1 15.4 17.5 18.5 19.2 21.12"
ADVISORY = frozenset([*EXPLAINED, *_NOT_BROKEN.split()])
"""Rules of MISRA C:2012; all others are required or mandatory."""

_ARM = {"__GNUC__": 12, "__ELF__": 1, "__ARM_ARCH_PROFILE": 77, "__ARM_ARCH_ISA_THUMB": 2}
_ARMV7 = {**_ARM, "__ARM_FEATURE_DSP": 1, "__ARM_FP": 4, "__ARM_FEATURE_FMA": 1, "__ARM_FEATURE_UNALIGNED": 1}
_ATOMIC = {"MCUGEN_CORE_LOAD(p)": "(*(p))", "MCUGEN_CORE_STORE(p, v)": "(*(p) = (v))"}
"""What code for two cores asks a compiler for that has no atomics which it knows."""
CPUS: Mapping[str, Mapping[str, int | str]] = {
    "plain": {"MCUGEN_PLAIN_C": 1, **_ATOMIC},
    "m0": {**_ARM, "__ARM_ARCH_ISA_THUMB": 1},
    "m4": _ARMV7,
    "m55": {**_ARMV7, "__ARM_FEATURE_MVE": 3},
    "rv32": {"__GNUC__": 12, "__ELF__": 1, "__riscv": 1, "__riscv_mul": 1, "__riscv_xlen": 32},
}
"""What compilers define, as far as the code asks for it."""


@dataclass(frozen=True, order=True)
class Finding:
    """A line of C that violates a rule; `origin` is the enclosing function or file."""

    rule: str
    origin: str
    code: str

    @property
    def is_required(self) -> bool:
        """Return whether the rule is required or mandatory, or a rule of another checker."""
        return self.rule not in ADVISORY


_TABLE = re.compile(r"(?m)(\w+\[)(\d+)(\] = \{\n)((?: +[^\n;{}]*,\n){3})(?: +[^\n;{}]*,\n)+ +[^\n;{}]*\};$")


_LOOP_HEAD = re.compile(r"(?m)^ *for \([^{}]*?\) \{$")
"""Head of a loop, maybe in several lines: the add-on reports rule 14.2 there, but not for the same head in one line."""


def readable(folder: Path) -> dict[str, str]:
    """Return the code of a folder by file, with only the first lines of long tables of weights and samples.

    The lines of a table are alike, and would take cppcheck hours. Headers of weights declare the cut tables without a
    length, so that no index seems to exceed them.
    """
    texts = {p.name: p.read_text() for p in sorted(folder.iterdir()) if p.suffix in (".c", ".h")}
    files = {name: _LOOP_HEAD.sub(lambda head: re.sub(r"\n +", " ", head[0]), text) for name, text in texts.items()}
    lengths: dict[str, str] = {}

    def cut(table: re.Match[str]) -> str:
        begin, length, opened, lines = table.groups()
        count = str(lines.count(","))
        lengths[f"{begin}{length}]"] = f"{begin}{count}]"
        return f"{begin}{count}{opened}{lines.rstrip()[:-1]}}};"

    cut_files = {
        name: _TABLE.sub(cut, text) if name.endswith(("_weights.c", "_selftest.c")) else text
        for name, text in files.items()
    }
    for name, text in cut_files.items():
        if name.endswith("_weights.h"):
            cut_files[name] = re.sub(r"\w+\[\d+\]", lambda m: lengths.get(m[0], m[0]), text)
    return cut_files


def misra(folder: Path, cpu: str, seen: set[str] | None = None, kept: Path | None = None) -> set[Finding]:
    """Return cppcheck's findings without annotation, in functions that are not in `seen`.

    Args:
        folder: Folder of the C code.
        cpu: Name of the CPU in CPUS.
        seen: Digests of functions that were checked (see checked_functions.py).
        kept: Folder of the cache (see tool_cache.py).

    Raises:
        RuntimeError: cppcheck could not read the code.
    """
    files = drop_checked_functions(readable(folder), set() if seen is None else seen)
    command = _cppcheck(cpu, [name for name in files if name.endswith(".c")])
    _, told = run_tool([*command, *(_LIMIT if max(map(len, files.values())) > _LARGE else ())], files, kept)
    return set(_findings(folder, {name: text.splitlines() for name, text in files.items()}, told.splitlines()))


_LARGE, _LIMIT = 300_000, ("--performance-valueflow-max-time=20",)
"""Of a function of a thousand calls cppcheck would follow values for hours: seconds, and the bytes of such a file."""


def _cppcheck(cpu: str, names: Sequence[str]) -> list[str]:
    macros = [f"-D{name}={value}" for name, value in CPUS[cpu].items()]
    template = "--template={id}\t{file}\t{line}\t{column}\t{message}"
    # The add-on's Python: a bare one starts at once.
    command = ["cppcheck", "--addon=misra", f"--addon-python={sys.executable}", "--quiet", "--std=c99"]
    return [*command, "--platform=unix32", "--inline-suppr", "-I.", template, *macros, *names]


def _findings(folder: Path, files: Mapping[str, Sequence[str]], told: Sequence[str]) -> Iterator[Finding]:
    for line in told:
        parts = line.split("\t")
        if len(parts) != 5:
            continue
        rule, file, number, column, message = parts
        if rule in ("syntaxError", "preprocessorErrorDirective", "misra-config", "internalError"):
            raise RuntimeError(f"{folder / file}:{number}: {rule}: {message}")
        lines = files.get(file, [])
        if rule == "misra-c2012-10.3" and moves_pointer(lines, int(number), int(column)):
            continue
        if rule == "misra-c2012-5.7" and _code(lines, int(number)).endswith("struct {"):
            continue  # of files that are looked at together, the add-on takes types without a tag for one
        if rule == "misra-c2012-14.1" and goes_to_a_pointer(lines, int(number)):
            continue
        if any(f"cppcheck-suppress-file {rule} ;" in line for line in lines):  # not heard by rules of several files
            continue
        yield Finding(rule.removeprefix("misra-c2012-"), origin(lines, file, int(number)), _code(lines, int(number)))


def _code(lines: Sequence[str], number: int) -> str:
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def moves_pointer(lines: Sequence[str], number: int, column: int) -> bool:
    """Return whether the place has `pointer += integer`.

    The add-on compares the integer's type with the pointed-to type, but rule 10.3 is about numbers; the advisory rule
    18.4 is about pointer arithmetic.
    """
    changed = re.search(r"(\w+) $", lines[number - 1][: column - 1])
    if changed is None or not re.match(r"[+-]=", lines[number - 1][column - 1 :]):
        return False
    return _is_pointer(lines, number, changed[1])


def goes_to_a_pointer(lines: Sequence[str], number: int) -> bool:
    """Return whether the line has `while (pointer < end)`; the add-on takes a pointer to floats for a float."""
    counted = re.search(r"\bwhile \((\w+) < \w+\)", lines[number - 1])
    return counted is not None and _is_pointer(lines, number, counted[1])


def _is_pointer(lines: Sequence[str], number: int, name: str) -> bool:
    """Return whether the function of a line has a pointer of this name."""
    begin = next(at for at in range(number - 1, -1, -1) if at == 0 or _FUNCTION.match(lines[at]))
    declared = re.compile(rf"\*(?:const )?{name}\b")  # or read from: products have a space there
    return any(declared.search(line) for line in lines[begin:number])


_FUNCTION = re.compile(r"^[a-z][^;=#]*?\b(\w+)\(")


def origin(lines: Sequence[str], file: str, number: int) -> str:
    """Return the function whose body contains a line, or else the kind of file."""
    kind = (
        "mcugen.h" if file == "mcugen.h" else re.sub(r"^.*?((?:_kernels|_selftest|_weights|)\.[ch])$", r"NAME\1", file)
    )
    for at in range(min(number, len(lines)) - 1, -1, -1):
        if lines[at] == "}" and at < number - 1:
            break
        if match := _FUNCTION.match(lines[at]):
            return f"{kind}: {match[1]}" if kind in ("mcugen.h", "NAME_kernels.h") else kind
    return kind


def distinct(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders with a function that no earlier folder has."""
    seen = set[str]()
    for folder in folders:
        texts = {text for path in (*folder.glob("*_kernels.h"), *folder.glob("*.c")) for text in _functions(path)}
        if texts - seen:
            seen |= texts
            yield folder


def _functions(path: Path) -> list[str]:
    return re.split(r"(?m)^}$", path.read_text())


def lint(folders: Sequence[Path], cpu: str, jobs: int = 1) -> set[Finding]:
    """Return the findings in all folders for one CPU."""
    with ThreadPoolExecutor(jobs) as pool:
        return set().union(*pool.map(lambda folder: misra(folder, cpu), folders))


_ASSEMBLY = re.compile(r"^\{% filter asm %\}.*?^\{% endfilter %\}\n\)", re.M | re.S)
_VALUE = re.compile(r"\{\{.*?\}\}")
"""Of templates, what does not look like C yet."""


def deviation_table() -> str:
    """Return the table of deviations in templates and headers, in Markdown."""
    files = [*sorted((ROOT / "runtime_c").rglob("*.h")), *sorted((ROOT / "templates").rglob("*.j2"))]
    texts = {
        str(path.relative_to(ROOT)): _VALUE.sub("x", _ASSEMBLY.sub("    )", path.read_text()))
        for path in files
        if "harness" not in path.parts
    }
    places = dict[tuple[str, str], list[str]]()
    for found in parse_deviations(texts):
        places.setdefault((found.rule, found.reason), []).append(f"`{found.file}`")
    rows = [
        f"| {rule} | {', '.join(dict.fromkeys(at))} | {reason} |"
        for (rule, reason), at in sorted(places.items(), key=lambda item: (rule_key(item[0][0]), item[1]))
    ]
    return "\n".join(["| rule | place | reason, and what guards it |", "|---|---|---|", *rows])


def rule_key(rule: str) -> tuple[list[int], str]:
    """Return a key that sorts rules by their numbers."""
    return [int(n) for n in re.findall(r"\d+", rule)], rule


def main(
    folders: Annotated[list[Path], typer.Argument(help="Folders that mcugen compile wrote.", exists=True)],
    cpu: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(CPUS)}; all of them if none is given.")] = None,
    jobs: Annotated[int, typer.Option(help="How many cppchecks run at once.")] = 2,
    listed: Annotated[bool, typer.Option("--list", help="Each finding of a required rule.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Counts by rule.")] = False,
) -> None:
    """Count findings by rule and place; exit code 1 if a required or mandatory rule is violated without a reason."""
    found = set().union(*(lint(list(distinct(folders)), name, jobs) for name in cpu or CPUS))
    counts = Counter(f.rule for f in found)
    if as_json:
        print(json.dumps({rule: counts[rule] for rule in sorted(counts, key=rule_key)}, indent=1))
    else:
        table = Table("rule", "category", "lines", "places")
        for rule in sorted(counts, key=rule_key):
            places = sorted({f.origin for f in found if f.rule == rule})
            category = "advisory" if rule in ADVISORY else "required"
            table.add_row(rule, category, str(counts[rule]), ", ".join(places[:6]) + (" ..." if places[6:] else ""))
        Console(width=160).print(table)
    required = sorted(f for f in found if f.is_required)
    for finding in required if listed else ():
        print(f"{finding.rule}\t{finding.origin}\t{finding.code}")
    print(f"{len(required)} lines break required rules, {len(found) - len(required)} advisory ones", file=sys.stderr)
    raise typer.Exit(1 if required else 0)


if __name__ == "__main__":
    typer.run(main)
