# SPDX-License-Identifier: Apache-2.0
"""Proofs that plain C has no access out of bounds and no overflow, for any weights and inputs.

Frama-C's Eva follows the generated code of a small layer with intervals in place of numbers. All int8, uint8 and float
constants and all inputs may have any value, including NaN. Biases lie within ±2^30, and all else is as generated. If
Eva raises no alarm, no such error can happen.

    python tests/proofs.py 60 --write-docs   # the table of docs/reference/figures/proofs.md; seconds of CPU for each

Results are kept in build/proofs.txt by a digest of the code. A run that was interrupted continues, and a run with more
seconds repeats what did not end in time. Rows of docs/reference/figures/proofs.md stay if no result is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markers import between_markers, replace_between_markers

from mcugen.codegen.bundle import Bundle
from mcugen.driver.compiled import CompiledModel
from mcugen.lir.kernel import CHECKED
from mcugen.lir.program import STAGE_WEIGHTS
from mcugen.reporting.kernels import declared_kernels

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "proofs.md"
"""Path of the document with the table of results."""
KEPT = ROOT / "build" / "proofs.txt"
"""Path of the file that keeps results between runs."""
FRAMA_C = shutil.which("frama-c")
"""Path of Frama-C's program; None if it is not installed."""
MARKERS = frozenset({"stream", "case", "end", "move", STAGE_WEIGHTS})
"""Names of instructions that are rendered in place instead of as a function call."""
ANY = ("int8_t", "uint8_t", "float", "double")
"""C types of constants that hold weights and nothing else, so that they may have any value."""
_MAIN = jinja2.Template("""#include <stddef.h>
#include <stdint.h>
#include "__fc_builtin.h"
#include "{{ name }}.h"
#include "{{ name }}_weights.h"
/*@ assigns ((char *)p)[0 .. n - 1] \\from n; */
void any(void *p, size_t n);
int main(void)
{
    void *arena = {{ name }}_default_arena();
    int i;
{% for port in inputs %}
    any({{ port.accessor }}(arena), {{ port.nbytes }});
{% endfor %}
{% for array in numbers %}
    any({{ array }}, sizeof {{ array }});
{% endfor %}
{% for array in biases %}
    for (i = 0; i < (int)(sizeof {{ array }} / 4); ++i) {
        {{ array }}[i] = Frama_C_interval(-1073741824, 1073741824);
    }
{% endfor %}
    return {{ name }}_run(arena);
}
""")
BY_PLACE = frozenset({"resize_linear_s8", "resize_linear_s16", "resize_linear_f32"})
"""Kernels whose interpolation is analysed for each place of the table apart."""
PLACE = re.compile(r"^( *)(?=const \w+ \*(?:row|v) = .*\b([ab]_low\[[ij]\]))", re.M)
"""Pattern of the lines in which an interpolation kernel sets a pointer to a place that a table gives."""
KNOWN = {
    r"\bmax - (?:a|\(int32_t\)a)\[[^\]]*\]": r"proof_natural(\g<0>)",
    r"(static inline float mcugen_expf.*?\n    \}\n)": r"\1    //@ assert \\is_finite(x) && -87 <= x <= 89;\n",
    r"(v = v > h \? h : v;\n)": r"\1    //@ assert \\is_finite(v) && l <= v <= h;\n",
    r"(( *)if \(row > -1\.0f && row < [^{]*\{\n)": r"\1\2    //@ assert \\is_finite(row) && \\is_finite(column);\n",
    r"(at = at > -3\.0f \? [^\n]*\n)": r"\1//@ assert \\is_finite(at);\n",
    r"(    if \(v > \((?:float|double)\)low\) \{\n)": r"\1        //@ assert !\\is_NaN(v);\n",
}
"""Facts that hold in the code but that intervals do not show, by pattern: assertions that Eva takes for granted.

No element is above the row's largest one. A float that passed `>`, `>=` or `<=` is a number (Eva lets NaN pass).
"""
_NATURAL = """static int proof_natural(int v)
{
    //@ assert v >= 0;
    return v;
}
"""
PRECISE = ("-eva-slevel", "20000", "-eva-auto-loop-unroll", "2000")
"""Options of Eva to follow every iteration of a loop, and every branch, separately."""
JOINED = ("-eva-slevel", "0", "-eva-min-loop-unroll", "50")
"""Options of Eva to follow iterations separately, but to join the states after a branch."""
MEETS = frozenset({"ngrams"})
"""Kernels with more branches than can be followed separately, which need JOINED."""


@dataclass(frozen=True)
class Proof:
    """The result of an analysis.

    Attributes:
        kernels: The kernels that the code uses.
        alarms: Alarms as (function, text); None if the analysis did not end in time.
        seconds: CPU time of the analysis.
    """

    kernels: frozenset[str]
    alarms: tuple[tuple[str, str], ...] | None
    seconds: float
    functions: frozenset[str] = frozenset()
    """Names of the functions that the analysis followed to their ends."""

    @property
    def proven(self) -> frozenset[str]:
        """Return the kernels that were followed without an alarm in them or in a function that several kernels call."""
        if self.alarms is None:
            return frozenset()
        followed = (k for k in self.kernels if any(f.startswith(k) for f in self.functions))
        alarmed = [function for function, _ in self.alarms]
        return frozenset(k for k in followed if all(f.startswith(tuple(self.kernels - {k})) for f in alarmed))


def prove(compiled: CompiledModel, seconds: int) -> Proof:
    """Analyse the run function of a model within a CPU time.

    Args:
        compiled: The model.
        seconds: The CPU time in seconds.

    Raises:
        ValueError: Frama-C cannot read the code.
    """
    kernels, begin = _kernels(compiled), _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="mcugen-proof-") as name:
        text = _analysis(compiled, Path(name), seconds)
    taken = _cpu_seconds() - begin
    if text is None:
        return Proof(kernels, None, taken)
    if "ANALYSIS SUMMARY" not in text:
        raise ValueError(text[-2000:])
    functions = frozenset(re.findall(r"Values at end of function (\w+):", text))
    return Proof(kernels, tuple(_alarms(text, compiled.bundle)), taken, functions)


def _kernels(compiled: CompiledModel) -> frozenset[str]:
    """Those that are functions: markers of loops and streams are none."""
    return frozenset(i.kernel for i in compiled.program.instrs) - MARKERS


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _constants(bundle: Bundle) -> list[tuple[str, str]]:
    """The C type and the name of each array."""
    header = bundle.files.get(f"{bundle.name}_weights.h", "")
    return re.findall(r"^extern MCUGEN_ALIGN\(4\) const (\w+) (\w+)\[", header, re.M)


def _numbers(model: CompiledModel) -> list[str]:
    """The arrays that may hold anything: none of kernels that go where their constants tell."""
    if any(CHECKED in kernel.lacks for kernel in declared_kernels() if kernel.name in _kernels(model)):
        return []
    return [array for ctype, array in _constants(model.bundle) if ctype in ANY]


def _analysis(model: CompiledModel, folder: Path, seconds: int) -> str | None:
    """What Eva prints; None where it was not done in time."""
    bundle = model.bundle
    is_placed = bool(_kernels(model) & BY_PLACE)
    for file in (*bundle.sources, *bundle.headers):
        text = PLACE.sub(r"\1//@ split \2;\n\1", bundle.files[file]) if is_placed else bundle.files[file]
        (folder / file).write_text(_with_what_is_known(text))
    values = {
        "name": bundle.name,
        "inputs": bundle.inputs,
        "numbers": _numbers(model),
        "biases": [array for ctype, array in _constants(bundle) if ctype == "int32_t" and array.endswith("_bias")],
    }
    (folder / "main.c").write_text(_MAIN.render(values))
    assert FRAMA_C is not None
    share = subprocess.run([FRAMA_C, "-print-share-path"], capture_output=True, text=True, check=True).stdout.strip()
    # Nothing is const, as constants may be anything, and nothing volatile, which is for compilers that keep excess
    # precision; what counts zeros is a loop and no builtin, of which Eva knows nothing.
    defined = "-Dconst= -Dvolatile= -DMCUGEN_PLAIN_C -U__SIZEOF_INT__"
    reading = (f"-cpp-extra-args=-I. {defined}", "-machdep", "gcc_x86_64")
    meets = is_placed or _kernels(model) & MEETS
    precise = (*(JOINED if meets else PRECISE), "-eva-warn-copy-indeterminate=-@all")
    others = ("-eva-no-show-progress", "-warn-special-float", "none")  # results that are no finite numbers are C's, too
    files = ("main.c", *bundle.sources, f"{share}/libc/__fc_builtin.c")
    command = ["prlimit", f"--cpu={seconds}", FRAMA_C, "-eva", *precise, *others, *reading, *files]
    environment = {**os.environ, "PWD": str(folder)}  # which Frama-C takes for the working directory
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return None if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else done.stdout


def _with_what_is_known(text: str) -> str:
    for place, known in KNOWN.items():
        text = re.sub(place, known, text, flags=re.S)
    return _NATURAL + text if "proof_natural" in text else text


def _alarms(text: str, bundle: Bundle) -> Iterator[tuple[str, str]]:
    """The function and the words of each."""
    for match in re.finditer(r"\[eva:alarm\] ([\w./]+):(\d+): Warning:\s+([^\n]*)", text):
        lines = bundle.files.get(match[1], "").splitlines()[: int(match[2])]
        heads = [
            found[1] for found in (re.match(r"(?:static|int|void)\b[^;=]*?(\w+)\(", line) for line in lines) if found
        ]
        if not match[3].startswith("assertion got status"):  # only those of KNOWN are there
            yield (heads[-1] if heads else match[1]), match[3]


def small_models() -> Iterator[CompiledModel]:
    """Yield models of fixed sizes, without states, that together use nearly all declared kernels."""
    from portable_models import portable_models

    for portable in portable_models():
        bundle = portable.model.bundle
        if not (bundle.symbols or bundle.has_state or bundle.streamed):
            yield portable.model


@dataclass(frozen=True)
class Row:
    """The result for one kernel in one model: a line of the file that keeps results."""

    digest: str
    """Digest of the model's code."""
    kernel: str
    inputs: str
    constants: str
    allowed: str
    """Allowed CPU time in seconds."""
    seconds: str
    finding: str

    @classmethod
    def read(cls, line: str) -> Row:
        """Return the row of a line that `str` wrote."""
        return cls(*line.rstrip("\n").split("\t"))

    def __str__(self) -> str:
        return "\t".join(vars(self).values())


PROVEN, LATE, OTHERWISE, NOT_RUN = "proven", "not in time", "not followed", "not run"


def rows_of(model: CompiledModel, seconds: int) -> Iterator[Row]:
    """Analyse a model, and yield the result for each of its kernels."""
    found = prove(model, seconds)
    shapes = " ".join("x".join(map(str, port.shape)) for port in model.bundle.inputs)
    for kernel in sorted(_kernels(model)):
        finding = _finding(found, kernel)
        yield Row(digest(model.bundle), kernel, shapes, weights(model), str(seconds), f"{found.seconds:.0f}", finding)


def _finding(found: Proof, kernel: str) -> str:
    if found.alarms is None:
        return LATE
    alarms = {text for function, text in found.alarms if function.startswith(kernel)}
    if kernel in found.proven or alarms:
        return f"{len(alarms)} alarms" if alarms else PROVEN
    shared = sorted({function for function, _ in found.alarms if function.startswith("mcugen_")})
    return f"alarm in {', '.join(shared)}" if shared else OTHERWISE


def weights(model: CompiledModel) -> str:
    """Return which of a model's constants may have any value in the analysis, as text for the table.

    Words that hold several values at once are as generated.
    """
    return "any" if _numbers(model) else "as generated" if _constants(model.bundle) else ""


def digest(bundle: Bundle) -> str:
    """Return a digest of all code of a model."""
    return hashlib.sha256(repr(sorted(bundle.files.items())).encode()).hexdigest()[:16]


def own_kernels() -> set[str]:
    """Return the names of all declared kernels, without those of libraries."""
    return {kernel.name for kernel in declared_kernels() if not kernel.library} - MARKERS


def told(document: str) -> Iterator[Row]:
    """Yield the rows of the table in an earlier version of the document."""
    for line in between_markers(document, "proofs").splitlines():
        if re.match(r"\| \w+ \|", line) and "| kernel |" not in line:
            kernel, inputs, constants, seconds, finding = (cell.strip() for cell in line.strip("|").split("|"))
            yield Row("", kernel, inputs, constants, "0", seconds, finding)


def table(rows: Sequence[Row], known: Set[str]) -> str:
    """Return the Markdown table: the best result of each kernel, then kernels without a result.

    Args:
        rows: All results.
        known: Names of the kernels of the small models.
    """
    best = dict[str, Row]()
    for row in sorted(rows, key=lambda row: (row.finding != PROVEN, row.finding == LATE, -int(row.allowed))):
        best.setdefault(row.kernel, row)
    for kernel in known:
        best.setdefault(kernel, Row("", kernel, "", "", "", "", NOT_RUN))
    lines = ["| kernel | inputs | weights | s | |", "|---|---|---|--:|---|"]
    lines += [
        f"| {row.kernel} | {row.inputs} | {row.constants} | {row.seconds} | {row.finding} |"
        for _, row in sorted(best.items())
    ]
    counts = Counter(row.finding for row in best.values())
    alarmed = len(best) - counts[PROVEN] - counts[LATE] - counts[NOT_RUN]
    summary = f"{counts[PROVEN]} of {len(best)} proven, {alarmed} with alarms or not followed, "
    summary += f"{counts[LATE]} {LATE}, {counts[NOT_RUN]} {NOT_RUN}."
    others = ", ".join(f"`{kernel}`" for kernel in sorted(own_kernels() - best.keys()))
    return "\n".join([*lines, "", f"{summary} Without a small model of known sizes: {others}."])


def main() -> None:
    """Analyse what is not proven yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=int, help="of CPU for each model; with 0 nothing runs")
    parser.add_argument("--kernels", default="", help="beginnings of names, between commas")
    parser.add_argument("--write-docs", action="store_true", help=f"rewrite the table of {DOCUMENT.name}")
    given = parser.parse_args()
    KEPT.parent.mkdir(exist_ok=True)
    kept = defaultdict[str, list[Row]](list)
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        kept[Row.read(line).digest].append(Row.read(line))
    now, known = list[Row](), set[str]()
    for model in small_models():
        known |= _kernels(model)
        rows = kept[digest(model.bundle)]
        proven = {row.kernel for row in now if row.finding == PROVEN}
        wanted = any(kernel.startswith(tuple(given.kernels.split(","))) for kernel in _kernels(model) - proven)
        is_open = all(row.finding == LATE and int(row.allowed) < given.seconds for row in rows)
        if wanted and is_open and given.seconds > 0:
            try:
                rows = list(rows_of(model, given.seconds))
            except ValueError as error:
                print(f"{model.bundle.name}: {error}"[:300], file=sys.stderr)
            with KEPT.open("a") as file:
                file.writelines(f"{row}\n" for row in rows)
        now += rows
    before, found = DOCUMENT.read_text(), {row.kernel for row in now}
    text = table([*now, *(row for row in told(before) if row.kernel in known - found)], known)
    print(text)
    if given.write_docs:
        DOCUMENT.write_text(replace_between_markers(before, "proofs", text))


if __name__ == "__main__":
    main()
