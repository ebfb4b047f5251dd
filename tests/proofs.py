# SPDX-License-Identifier: Apache-2.0
"""What an abstract interpreter proves of plain C: no access out of bounds and no overflow, whatever weights and inputs.

Frama-C's Eva follows the generated code of a small layer with intervals in place of numbers: all int8 and uint8
constants and all inputs may be anything, biases lie within ±2^30, all else is as generated. What it has no alarm for
cannot happen.

    python tests/proofs.py 60   # a table of kernels, with so many seconds for each
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2

from mcugen.codegen.bundle import Bundle
from mcugen.compiled import CompiledModel

FRAMA_C = shutil.which("frama-c")
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
    """What was found: alarms as (function, text), or that it was not done in time (None)."""

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


def prove(compiled: CompiledModel, seconds: float) -> Proof:
    """Follows the run function of a model; ValueError where Frama-C does not read the code."""
    kernels, begin = frozenset(i.kernel for i in compiled.program.instrs), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mcugen-proof-") as name:
        text = _analysis(compiled.bundle, Path(name), seconds)
    taken = time.monotonic() - begin
    if text is None:
        return Proof(kernels, None, taken)
    if "ANALYSIS SUMMARY" not in text:
        raise ValueError(text[-2000:])
    functions = frozenset(re.findall(r"Values at end of function (\w+):", text))
    return Proof(kernels, tuple(_alarms(text, compiled.bundle)), taken, functions)


def _analysis(bundle: Bundle, folder: Path, seconds: float) -> str | None:
    """What Eva prints; None where it was not done in time."""
    for file in (*bundle.sources, *bundle.headers):
        (folder / file).write_text(bundle.files[file])
    constants = re.findall(
        r"^extern MCUGEN_ALIGN\(4\) const (\w+) (\w+)\[", bundle.files[f"{bundle.name}_weights.h"], re.M
    )
    values = {
        "name": bundle.name,
        "inputs": bundle.inputs,
        "bytes": [array for ctype, array in constants if ctype in ("int8_t", "uint8_t")],
        "biases": [array for ctype, array in constants if ctype == "int32_t" and array.endswith("_bias")],
    }
    (folder / "main.c").write_text(_MAIN.render(values))
    assert FRAMA_C is not None
    share = subprocess.run([FRAMA_C, "-print-share-path"], capture_output=True, text=True, check=True).stdout.strip()
    # Nothing is const, as constants may be anything; every loop is followed round by round.
    options = ("-cpp-extra-args=-I. -Dconst= -DMCUGEN_PLAIN_C", "-machdep", "gcc_x86_64", "-eva-no-show-progress")
    precise = ("-eva-slevel", "20000", "-eva-auto-loop-unroll", "2000", "-eva-warn-copy-indeterminate=-@all")
    files = ("main.c", *bundle.sources, f"{share}/libc/__fc_builtin.c")
    command = [FRAMA_C, "-eva", *precise, *options, *files]
    try:
        environment = {**os.environ, "PWD": str(folder)}  # which Frama-C takes for the working directory
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        return done.stdout
    except subprocess.TimeoutExpired:
        return None


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


def main() -> None:
    """Prints the table: of each kernel the first model in which it is proven, else what was found."""
    seconds, rows = float(sys.argv[1]), dict[str, str]()
    for model in integer_models():
        kernels = {instr.kernel for instr in model.program.instrs}
        if all(rows.get(kernel, "").endswith("proven |") for kernel in kernels):
            continue
        try:
            found = prove(model, seconds)
        except ValueError as error:
            print(f"{model.bundle.name}: {error}"[:300], file=sys.stderr)
            continue
        shape = " ".join("x".join(map(str, port.shape)) for port in model.bundle.inputs)
        for kernel in kernels:
            alarms = {text for function, text in found.alarms or () if function.startswith(kernel)}
            verdict = "proven" if kernel in found.proven else f"{len(alarms)} alarms" if alarms else "not followed"
            verdict = "not in time" if found.alarms is None else verdict
            if not rows.get(kernel, "").endswith("proven |"):
                rows[kernel] = f"| {kernel} | {shape} | {found.seconds:.0f} | {verdict} |"
                print(rows[kernel], flush=True)


if __name__ == "__main__":
    main()
