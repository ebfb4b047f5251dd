# SPDX-License-Identifier: Apache-2.0
"""Functions of the runtime that are names for instructions do what their twins in C do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_kernel_format import FUNCTION

from mcugen.core.board import load_board
from mcugen.core.resources import resource_dir
from mcugen.simulation.toolchain import ARM

RUNTIME = resource_dir("runtime_c")
ANY = ("uint32_t", "int32_t")
LIMITED = ("mcugen_multiply_high", "mcugen_scale", "mcugen_weighted_sum", "mcugen_unknown")
"""Whose results must fit, which is not so of any words: tests of kernels compare these. The last does nothing."""
SIGNATURE = re.compile(r"static inline (\w+) (\w+)\(([^)]*)\)")


def on_words() -> list[tuple[str, list[str]]]:
    """Runtime functions with instructions for any words: names, and their parameters' types."""
    found = []
    for head, body in FUNCTION.findall((RUNTIME / "functions.h").read_text()):
        if "__asm__" in body and "MCUGEN_NAKED" not in head:
            result, name, parameters = SIGNATURE.match(head).groups()
            types = [parameter.split()[0] for parameter in parameters.split(",")]
            if {result, *types} <= set(ANY) and name not in LIMITED:
                found.append((name, types))
    return found


UNIT = """#include "functions.h"
uint32_t NAME(uint32_t function, uint32_t a, uint32_t b, uint32_t c);
uint32_t NAME(uint32_t function, uint32_t a, uint32_t b, uint32_t c)
{
    (void)a, (void)b, (void)c;
    switch (function) {
CASES    default: return 0;
    }
}
"""

MAIN = """#include <stdint.h>
uint32_t fast(uint32_t function, uint32_t a, uint32_t b, uint32_t c);
uint32_t twin(uint32_t function, uint32_t a, uint32_t b, uint32_t c);
static const uint32_t ends[] = {0u, 1u, 0x7fu, 0x80u, 0xffffffffu, 0x7fff8000u, 0x80007fffu, 0x807f7f80u, 0x7f80807fu,
    0x80808080u, 0x80008000u, 0x12345678u};
static uint32_t state = 1u;
static uint32_t word(void)
{
    state = state * 1664525u + 1013904223u;
    return state ^ (state >> 15);
}
static int differ(uint32_t a, uint32_t b, uint32_t c)
{
    for (uint32_t i = 0u; i < COUNTu; ++i) {
        if (fast(i, a, b, c) != twin(i, a, b, c)) {
            return (int)i + 1;
        }
    }
    return 0;
}
void _start(void)
{
    register int found __asm__("r0") = 0;
    register int leave __asm__("r7") = 1; /* Linux's exit */
    int first = 0;
    for (uint32_t n = 0u; n < 20000u && first == 0; ++n) {
        const int by_end = n < 144u;
        first = differ(by_end ? ends[n % 12u] : word(), by_end ? ends[n / 12u] : word(), word());
    }
    found = first;
    __asm__ volatile("svc 0" : : "r"(found), "r"(leave));
}
"""


@pytest.mark.qemu
@pytest.mark.skipif(shutil.which("qemu-arm") is None, reason="needs qemu-arm")
def test_instructions_on_words_do_what_their_twins_in_c_do(tmp_path: Path):
    functions = on_words()
    assert len(functions) >= 12
    cases = ""
    for number, (name, types) in enumerate(functions):
        given = ", ".join(f"({kind}){value}" for kind, value in zip(types, "abc", strict=False))
        cases += f"    case {number}u: return (uint32_t){name}({given});\n"
    flags = [
        *load_board("nrf52840").cflags,
        "-std=c99",
        "-O2",
        "-ffreestanding",
        f"-I{RUNTIME}",
        f"-I{RUNTIME / 'include'}",
        "-c",
    ]
    (tmp_path / "main.c").write_text(MAIN.replace("COUNT", str(len(functions))))
    for name, more in (("fast", []), ("twin", ["-DMCUGEN_PLAIN_C"]), ("main", [])):
        if name != "main":
            (tmp_path / f"{name}.c").write_text(UNIT.replace("NAME", name).replace("CASES", cases))
        subprocess.run([ARM.gcc, *flags, *more, f"{name}.c"], cwd=tmp_path, check=True)
    code = subprocess.run([ARM.objdump, "-d", "fast.o", "twin.o"], cwd=tmp_path, capture_output=True, text=True).stdout
    fast, twin = code.split("twin.o:")
    assert "sxtab16" in fast and "sel\t" in fast
    assert "sxtab16" not in twin and "sel\t" not in twin
    objects = ["main.o", "fast.o", "twin.o"]
    cpu = [*load_board("nrf52840").cflags, "-nostdlib", "-o", "words"]
    subprocess.run([ARM.gcc, *cpu, *objects, "-lgcc"], cwd=tmp_path, check=True)
    found = subprocess.run(["qemu-arm", "-cpu", "max", "words"], cwd=tmp_path).returncode
    assert found == 0, f"{functions[found - 1][0]} differs from its twin" if 0 < found <= len(functions) else found
