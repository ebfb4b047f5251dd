# SPDX-License-Identifier: Apache-2.0
"""tools/lint_c.py: rules of MISRA C:2012 that generated C breaks, counted by cppcheck's add-on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from analyzers import complaints
from checked_functions import drop_checked_functions, without_assembly
from lint_c import deviation_table, readable
from tool_cache import run_tool

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("cppcheck", "clang-tidy")
pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs sudo apt-get install {' '.join(TOOLS)}"
)

BOARDS = {"plain": "nrf52840", "m0": "rp2040", "m4": "nrf52840", "m55": "corstone300", "rv32": "gd32vf103"}
"""For whose code a CPU's macros are looked at."""


def lint(folder: Path, *arguments: str, cpu: str = "plain") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "lint_c.py"), str(folder), "--cpu", cpu, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_file_may_have_a_reason_for_all_of_it(tmp_path: Path):
    text = "#include <stdint.h>\nconst int32_t a[1] = {0};\nconst int32_t b[1] = {0};\n"  # not declared before
    (tmp_path / "net.c").write_text(text)
    assert lint(tmp_path, "--list").stdout.count("8.4\tNAME.c") == 2
    (tmp_path / "net.c").write_text(f"/* cppcheck-suppress-file misra-c2012-8.4 ; tables of a test */\n{text}")
    assert lint(tmp_path, "--list").returncode == 0


@pytest.mark.parametrize("name", ["n", "a_network_with_a_rather_long_name"])
def test_generated_names_that_are_alike_are_annotated(name: str):
    digits = ROOT / "examples" / "digits" / "digits_int8.onnx"
    files = compile_model(digits, "nrf52840", CompileOptions(name)).bundle.files
    constants = re.findall(r"const \w+ (\w+)\[", files[f"{name}_weights.h"])
    alike = len({constant[:31] for constant in constants}) < len(constants)
    assert alike == (len(name) > 1)
    for end in ("_weights.h", "_weights.c"):
        assert ("misra-c2012-5.1" in files[name + end]) == alike


ONCE = """#define MOST 100
typedef struct {
    int32_t most;
} limits;

static int a(int v)
{
    const limits p = {MOST};
    return v + p.most + 1000;
}

int net_run(int v)
{
    return a(v);
}
"""
CHANGES = {
    "a number of the same size": ("1000", "1001", False),
    "the model's name": ("net", "other", False),
    "a comment": ("return v", "/* why */ return v", False),
    "a small number": ("1000", "10", True),
    "a number of another size": ("1000", "70000", True),
    "a macro that it mentions": ("MOST 100", "MOST (100)", True),
    "a type that it mentions": ("int32_t", "int16_t", True),
    "a condition around it": ("typedef", "#if defined(MCUGEN_DSP)\n#endif\n#if 1\ntypedef", True),
    "an annotation": ("const limits", "/* cppcheck-suppress misra-c2012-10.1 ; why */\n    const limits", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_function_is_looked_at_once_with_all_that_it_mentions(change: str):
    """What calls it needs its declaration."""
    old, new, is_seen_again = CHANGES[change]
    seen = set[str]()
    assert drop_checked_functions({"net.c": ONCE}, seen) == {"net.c": ONCE}
    changed = ONCE.replace(old, new)
    name = "other.c" if "other" in changed else "net.c"
    found = drop_checked_functions({name: changed}, seen)[name]
    assert ("static int a(int v)\n{" in found) == is_seen_again
    assert ("static int a(int v);\n" in found) == (not is_seen_again)


def test_with_all_numbers_each_counts():
    seen = set[str]()
    drop_checked_functions({"net.c": ONCE}, seen, numbers=True)
    assert "+ 1001" in drop_checked_functions({"net.c": ONCE.replace("1000", "1001")}, seen, numbers=True)["net.c"]
    assert "p.most" not in drop_checked_functions({"net.c": ONCE}, seen, numbers=True)["net.c"]


def test_analyzers_are_not_shown_what_assembly_writes():
    body = "    const limits p = {MOST};\n    return v + p.most + 1000;\n"
    text = ONCE.replace(body, '    __asm__ volatile("nop");\n')
    assert text != ONCE
    body = '{\n    __asm__ volatile("nop");\n}\n'
    assert without_assembly({"net.c": text}) == {"net.c": text.replace(f"\n{body}", ";\n")}
    assert without_assembly({"net.c": ONCE}) == {"net.c": ONCE}


def test_what_was_heard_is_kept_by_content_and_command(tmp_path: Path):
    kept = tmp_path / "kept"
    for text in ("one", "one", "two"):
        assert run_tool(["cat", "a"], {"a": text}, kept) == (0, text)
    assert len(list(kept.iterdir())) == 2
    assert run_tool(["cat", "b"], {"a": "one"}, kept)[0] == 1


def test_tables_are_cut_to_their_first_lines(tmp_path: Path):
    lines = "".join(f"    {row}, 0,\n" for row in range(50))
    (tmp_path / "net_weights.c").write_text(f"const int8_t net_w[102] = {{\n{lines}    7, 8}};\n")
    (tmp_path / "net_weights.h").write_text("extern const int8_t net_w[102];\n")
    files = readable(tmp_path)
    assert files["net_weights.c"] == "const int8_t net_w[6] = {\n    0, 0,\n    1, 0,\n    2, 0};\n"
    assert files["net_weights.h"] == "extern const int8_t net_w[6];\n"


FAULTS = {
    "clang-tidy": "const int32_t *none = 0;\n    if (v == 3) {\n        v = *none;\n    }\n    return v;",
    "-Wanalyzer": "int32_t *none = 0;\n    *none = v;\n    return v;",
    "-Wcast-align": 'const char *c = "abcd";\n    return v + *(const int32_t *)c;',
}


@pytest.mark.qemu
@pytest.mark.parametrize("tool", FAULTS)
def test_each_analyzer_is_run_tool(tool: str, tmp_path: Path):
    text = f"#include <stdint.h>\nint32_t net(int32_t v);\nint32_t net(int32_t v)\n{{\n    {FAULTS[tool]}\n}}\n"
    (tmp_path / "net.c").write_text(text)
    assert any(tool in f"{c.tool} {c.text}" for c in complaints(tmp_path, load_board("nrf52840")))


MEANT = {
    "v != v": False,
    "*p - *p == 0.0f": False,
    "v != *p": True,
    "v == v": True,
    "v != v2": True,
}


@pytest.mark.parametrize("comparison", MEANT)
def test_floats_are_compared_only_to_ask_for_nan(comparison: str, tmp_path: Path):
    head = "int32_t net(float v, float v2, const float *p)"
    body = f"{head};\n{head}\n{{\n    return v2 < *p || {comparison} || v > 0.0f ? 1 : 0;\n}}\n"
    (tmp_path / "net.c").write_text(f"#include <stdint.h>\n{body}")
    told = complaints(tmp_path, load_board("host"))
    assert any("-Wfloat-equal" in complaint.text for complaint in told) == MEANT[comparison]


def test_products_are_places_or_numbers(tmp_path: Path):
    """Of ints on a CPU of 64 bits: places in a tensor fit in an int, numbers may not."""
    heads = ("int32_t place(const int32_t *x, int32_t a, int32_t b)", "int64_t number(int32_t a, int32_t b)")
    bodies = ("return *(x + a * b);", "return a * b;")
    functions = "".join(f"{h};\n{h}\n{{\n    {b}\n}}\n" for h, b in zip(heads, bodies, strict=True))
    (tmp_path / "net.c").write_text(f"#include <stdint.h>\n{functions}")
    (found,) = (c for c in complaints(tmp_path, load_board("host")) if "widening" in c.text)
    assert "int64_t" in found.text


@pytest.mark.qemu
@pytest.mark.parametrize(
    "board", ["nrf52840", *(pytest.param(b, marks=pytest.mark.slow) for b in ("rp2040", "corstone300"))]
)
def test_no_analyzer_complains_of_the_digits(board: str, tmp_path: Path):
    digits = ROOT / "examples" / "digits" / "digits_int8.onnx"
    compile_model(digits, board, CompileOptions("digits")).write(tmp_path)
    assert complaints(tmp_path, load_board(board)) == []


CASES = {
    "a shift of a signed number": ("return v << 2;", 1),
    "the same with a reason": ("/* cppcheck-suppress misra-c2012-10.1 ; below 2^29 */\n    return v << 2;", 0),
    "no rule": ("return v;", 0),
}


@pytest.mark.parametrize("case", CASES)
def test_a_required_rule_needs_a_reason(case: str, tmp_path: Path):
    body, code = CASES[case]
    text = f"#include <stdint.h>\nint32_t twice(int32_t v);\nint32_t twice(int32_t v)\n{{\n    {body}\n}}\n"
    (tmp_path / "net.c").write_text(text)
    done = lint(tmp_path, "--list")
    assert done.returncode == code, done.stderr
    assert ("10.1\tNAME.c" in done.stdout) == bool(code)


LAST = "int8_t last(const int8_t *x, int32_t n)"
FLOATS = "float last(const float *x, const float *end)"
POINTERS = {
    "a pointer moves on": (
        LAST,
        "const int8_t *from = x;\n    for (; n > 0; --n, from += n) {\n    }\n    return *from;",
        "10.3",
        False,
    ),
    "a small number takes a large one": (LAST, "int8_t sum = 0;\n    sum += n;\n    return sum + x[0];", "10.3", True),
    "a pointer to floats counts": (
        FLOATS,
        "const float *v = x;\n    while (v < end) {\n        ++v;\n    }\n    return *v;",
        "14.1",
        False,
    ),
    "a float counts": (
        FLOATS,
        "float v = *x;\n    while (v < *end) {\n        ++v;\n    }\n    return v;",
        "14.1",
        True,
    ),
}


@pytest.mark.parametrize("case", POINTERS)
def test_pointers_are_no_numbers(case: str, tmp_path: Path):
    """Neither of an essential type nor floats that count, as the add-on has them."""
    head, body, rule, is_broken = POINTERS[case]
    (tmp_path / "net.c").write_text(f"#include <stdint.h>\n{head};\n{head}\n{{\n    {body}\n}}\n")
    done = lint(tmp_path, "--list")
    assert (f"{rule}\tNAME.c" in done.stdout) == is_broken, done.stderr


@pytest.mark.parametrize(
    "cpu", [pytest.param(c, marks=pytest.mark.slow if c[0] in "mr" and c != "m4" else ()) for c in BOARDS]
)
def test_the_digits_break_no_required_rule_without_a_reason(cpu: str, tmp_path: Path):
    digits = ROOT / "examples" / "digits" / "digits_int8.onnx"
    compile_model(digits, BOARDS[cpu], CompileOptions("digits")).write(tmp_path / "digits")
    done = lint(tmp_path / "digits", "--list", cpu=cpu)
    assert done.returncode == 0, done.stdout


def test_types_without_a_tag_are_not_of_one_name(tmp_path: Path):
    for name in ("a", "b"):
        table = "static const struct {\n    int32_t v;\n} tables[1] = {{3}};\n"
        head = f"int32_t {name}(void)"
        (tmp_path / f"{name}.c").write_text(
            f"#include <stdint.h>\n{head};\n{table}{head}\n{{\n    return tables[0].v;\n}}\n"
        )
    done = lint(tmp_path, "--list")
    assert "5.7" not in done.stdout


def test_documented_deviations_are_those_of_the_code():
    assert deviation_table() in (ROOT / "docs" / "reference" / "misra.md").read_text()
