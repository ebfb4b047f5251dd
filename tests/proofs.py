# SPDX-License-Identifier: Apache-2.0
"""What an abstract interpreter proves of plain C: no access out of bounds and no overflow, whatever weights and inputs.

Frama-C's Eva follows the generated code of a small layer with intervals in place of numbers: all int8 and uint8
constants and all inputs may be anything, biases lie within ±2^30, all else is as generated. What it has no alarm for
cannot happen.

    python tests/proofs.py 60 --write-docs   # the table of docs/safety.md, with so many seconds of CPU for each

What was found is kept in build/proofs.txt by what the code is: a run that was interrupted goes on, and one with more
seconds takes up what was not done in time.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markers import replace_between_markers

from mcugen.codegen.bundle import Bundle
from mcugen.compiled import CompiledModel

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "safety.md"
KEPT = ROOT / "build" / "proofs.txt"
FRAMA_C = shutil.which("frama-c")
MARKERS = frozenset({"stream", "case", "end", "move"})
"""Instructions that are rendered in place."""
BYTES = ("int8_t", "uint8_t")
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
{% for array in bytes %}
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


@dataclass(frozen=True)
class Proof:
    """What was found: alarms as (function, text), or that it was not done in time (None); seconds of CPU."""

    kernels: frozenset[str]
    alarms: tuple[tuple[str, str], ...] | None
    seconds: float
    functions: frozenset[str] = frozenset()
    """Those that were followed to their ends."""

    @property
    def proven(self) -> frozenset[str]:
        """Kernels that were followed without an alarm in them, or in a function that several call."""
        if self.alarms is None:
            return frozenset()
        followed = (k for k in self.kernels if any(f.startswith(k) for f in self.functions))
        alarmed = [function for function, _ in self.alarms]
        return frozenset(k for k in followed if all(f.startswith(tuple(self.kernels - {k})) for f in alarmed))


def prove(compiled: CompiledModel, seconds: int) -> Proof:
    """Follows the run function of a model within so much CPU time; ValueError where Frama-C does not read the code."""
    kernels, begin = _kernels(compiled), _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="mcugen-proof-") as name:
        text = _analysis(compiled.bundle, Path(name), seconds)
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


def _analysis(bundle: Bundle, folder: Path, seconds: int) -> str | None:
    """What Eva prints; None where it was not done in time."""
    for file in (*bundle.sources, *bundle.headers):
        (folder / file).write_text(bundle.files[file])
    constants = _constants(bundle)
    values = {
        "name": bundle.name,
        "inputs": bundle.inputs,
        "bytes": [array for ctype, array in constants if ctype in BYTES],
        "biases": [array for ctype, array in constants if ctype == "int32_t" and array.endswith("_bias")],
    }
    (folder / "main.c").write_text(_MAIN.render(values))
    assert FRAMA_C is not None
    share = subprocess.run([FRAMA_C, "-print-share-path"], capture_output=True, text=True, check=True).stdout.strip()
    # Nothing is const, as constants may be anything; every loop is followed round by round.
    options = ("-cpp-extra-args=-I. -Dconst= -DMCUGEN_PLAIN_C", "-machdep", "gcc_x86_64", "-eva-no-show-progress")
    precise = ("-eva-slevel", "20000", "-eva-auto-loop-unroll", "2000", "-eva-warn-copy-indeterminate=-@all")
    files = ("main.c", *bundle.sources, f"{share}/libc/__fc_builtin.c")
    command = ["prlimit", f"--cpu={seconds}", FRAMA_C, "-eva", *precise, *options, *files]
    environment = {**os.environ, "PWD": str(folder)}  # which Frama-C takes for the working directory
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return None if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else done.stdout


def _alarms(text: str, bundle: Bundle) -> Iterator[tuple[str, str]]:
    """The function and the words of each."""
    for match in re.finditer(r"\[eva:alarm\] ([\w./]+):(\d+): Warning:\s+([^\n]*)", text):
        lines = bundle.files.get(match[1], "").splitlines()[: int(match[2])]
        heads = [
            found[1] for found in (re.match(r"(?:static|int|void)\b[^;=]*?(\w+)\(", line) for line in lines) if found
        ]
        yield (heads[-1] if heads else match[1]), match[3]


def integer_models() -> Iterator[CompiledModel]:
    """Small models that together take the declared kernels, but those that compute in floating point."""
    from portable_models import portable_models

    for portable in portable_models():
        model = portable.model
        has_floats = any(b.dtype.is_float or b.dtype.is_narrow_float for b in model.program.buffers)
        if not (has_floats or model.bundle.symbols or model.bundle.has_state or model.bundle.streamed):
            yield model


@dataclass(frozen=True)
class Row:
    """What was found of a kernel in a model; a line of the file that keeps them."""

    digest: str
    """Of the model's code."""
    kernel: str
    inputs: str
    constants: str
    allowed: str
    """Seconds of CPU."""
    seconds: str
    finding: str

    @classmethod
    def read(cls, line: str) -> Row:
        """Of a line that `str` made."""
        return cls(*line.rstrip("\n").split("\t"))

    def __str__(self) -> str:
        return "\t".join(vars(self).values())


PROVEN, LATE, OTHERWISE = "proven", "not in time", "not followed"


def rows_of(model: CompiledModel, seconds: int) -> Iterator[Row]:
    """What is found of each of its kernels."""
    found = prove(model, seconds)
    shapes = " ".join("x".join(map(str, port.shape)) for port in model.bundle.inputs)
    for kernel in sorted(_kernels(model)):
        alarms = {text for function, text in found.alarms or () if function.startswith(kernel)}
        finding = PROVEN if kernel in found.proven else f"{len(alarms)} alarms" if alarms else OTHERWISE
        finding = LATE if found.alarms is None else finding
        yield Row(
            digest(model.bundle), kernel, shapes, weights(model.bundle), str(seconds), f"{found.seconds:.0f}", finding
        )


def weights(bundle: Bundle) -> str:
    """Whether they may be anything: words hold several things at once, and are as generated."""
    constants = _constants(bundle)
    return "any" if any(ctype in BYTES for ctype, _ in constants) else "as generated" if constants else ""


def digest(bundle: Bundle) -> str:
    """Of all its code."""
    return hashlib.sha256(repr(sorted(bundle.files.items())).encode()).hexdigest()[:16]


def table(rows: Sequence[Row]) -> str:
    """The best that was found of each kernel."""
    best = dict[str, Row]()
    for row in sorted(rows, key=lambda row: (row.finding != PROVEN, row.finding == LATE, -int(row.allowed))):
        best.setdefault(row.kernel, row)
    lines = ["| kernel | inputs | weights | s | |", "|---|---|---|--:|---|"]
    lines += [
        f"| {row.kernel} | {row.inputs} | {row.constants} | {row.seconds} | {row.finding} |"
        for _, row in sorted(best.items())
    ]
    counts = Counter(row.finding if row.finding in (PROVEN, LATE) else "other" for row in best.values())
    return "\n".join([*lines, "", f"{counts[PROVEN]} of {len(best)} proven, {counts[LATE]} {LATE}."])


def main() -> None:
    """Looks at what is not proven yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", type=int, help="of CPU for each model; with 0 what is kept")
    parser.add_argument("--kernels", default="", help="beginnings of names, between commas")
    parser.add_argument("--write-docs", action="store_true", help=f"rewrite the table of {DOCUMENT.name}")
    given = parser.parse_args()
    KEPT.parent.mkdir(exist_ok=True)
    kept = defaultdict[str, list[Row]](list)
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        kept[Row.read(line).digest].append(Row.read(line))
    now = list[Row]()
    for model in integer_models():
        rows = kept[digest(model.bundle)]
        proven = {row.kernel for row in now if row.finding == PROVEN}
        wanted = any(kernel.startswith(tuple(given.kernels.split(","))) for kernel in _kernels(model) - proven)
        if wanted and all(row.finding == LATE and int(row.allowed) < given.seconds for row in rows):
            try:
                rows = list(rows_of(model, given.seconds))
            except ValueError as error:
                print(f"{model.bundle.name}: {error}"[:300], file=sys.stderr)
            with KEPT.open("a") as file:
                file.writelines(f"{row}\n" for row in rows)
        now += rows
    print(table(now))
    if given.write_docs:
        DOCUMENT.write_text(replace_between_markers(DOCUMENT.read_text(), "proofs", table(now)))


if __name__ == "__main__":
    main()
