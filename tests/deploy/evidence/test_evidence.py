# SPDX-License-Identifier: Apache-2.0
"""The file that an assessor asks for."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import onnx
import pytest
from command_line import mcugen
from cyclonedx.model.bom import Bom

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.deploy.evidence.coverage import MIN_CONDITION_COVERAGE_GCC, Coverage, file_coverage, gcc_version
from mcugen.deploy.evidence.folder import TOOL_DEPENDENT_FILES, Evidence, gather_evidence
from mcugen.deploy.evidence.requirements import REQUIREMENTS
from mcugen.deploy.evidence.sources import Deviation, layer_call_lines, parse_deviations, parse_functions
from mcugen.deploy.evidence.text import coverage_text, format_code
from mcugen.deploy.evidence.trace import find_untraced, trace
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Judging

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ROOT / "examples" / "digits"
COMMITTED = DIGITS / "evidence"


@pytest.fixture(scope="module")
def digits() -> Evidence:
    if "GCOV_PREFIX" in os.environ:
        pytest.skip("make coverage counts elsewhere")
    judging = Judging(DIGITS / "calibration.npz")
    return gather_evidence(Compilation(DIGITS / "digits_int8.onnx", "nrf52840", judging=judging))


@pytest.mark.qemu
def test_the_committed_folder_is_what_the_command_writes(digits: Evidence):
    """`make docs` rewrites it. Where other tools are installed, what depends on them is not compared."""
    assert {path.name for path in COMMITTED.iterdir()} == set(digits.files)
    old, new = json.loads((COMMITTED / "bounds.json").read_text()), json.loads(digits.files["bounds.json"])
    same_tools = all(old[key] == new[key] for key in ("compiler", "simulator"))
    here = json.loads((COMMITTED / "coverage.json").read_text())["compiler"] == digits.coverage.compiler
    for name, text in digits.files.items():
        is_known = {"bounds": same_tools, "coverage": here}.get(name.split(".")[0], name not in TOOL_DEPENDENT_FILES)
        assert not is_known or (COMMITTED / name).read_text() == text, name


@pytest.mark.qemu
def test_the_bill_of_materials_holds_code_model_compiler_and_tools(digits: Evidence):
    told = json.loads(digits.files["sbom.json"])
    committed = json.loads((COMMITTED / "sbom.json").read_text())
    code_of = [[c for c in bom["components"] if c["type"] == "file"] for bom in (told, committed)]
    assert code_of[0] == code_of[1] and len(code_of[0]) >= 6
    names = {c["name"] for c in told["components"]}
    assert {"mcugen", "numpy", "onnx", "digits_int8.onnx", "arm-none-eabi-gcc", "qemu-system-arm"} <= names
    assert "pytest" not in names
    assert all("hashes" in c or c["properties"] for c in told["components"])
    assert "timestamp" not in told["metadata"] and str(ROOT) not in digits.files["sbom.json"]
    assert len(Bom.from_json(told).components) == len(told["components"])  # type: ignore[attr-defined]


@pytest.mark.qemu
def test_what_the_compiler_runs_and_links_is_in_the_bill(digits: Evidence):
    bom = json.loads(digits.files["sbom.json"])
    needs = {d["ref"]: d.get("dependsOn", []) for d in bom["dependencies"]}
    assert {"library/libgcc.a", "library/libc_nano.a"} <= set(needs["code/digits_int8"])
    assert "application/arm-none-eabi-gcc/cc1" in needs["application/arm-none-eabi-gcc"]
    assert "library/numpy" in needs["library/onnx"]
    known = {c["bom-ref"] for c in (*bom["components"], bom["metadata"]["component"])}
    assert {ref for refs in needs.values() for ref in refs} <= known


@pytest.mark.qemu
def test_no_run_takes_more_than_the_bounds_that_are_told(digits: Evidence):
    told = json.loads(digits.files["bounds.json"])
    assert told["stack_bound"]["bytes"] >= told["ram"]["stack"]
    time = told["instruction_range"]
    assert time["best"] <= told["instructions"] <= time["worst"] <= time["bound"]
    assert f"{time['bound']:,}" in digits.files["bounds.md"]


@pytest.mark.qemu
def test_every_node_layer_and_constant_has_a_counterpart(digits: Evidence):
    assert find_untraced(digits.trace) == {"layers": (), "constants": (), "nodes": ()}
    stem = digits.trace.layers[1]
    assert stem.nodes == ("/stem/conv/Conv",) and "digits_int8_stem_conv_conv_weights" in stem.constants
    assert any(f.startswith("conv2d_s8_dsp_fours_block ") for f in stem.functions)
    assert any(f.startswith("mcugen_copy ") for f in stem.functions), "what macros call counts"
    weights = next(n for n in digits.trace.nodes if n.name == "ConvBnFusion_W_stem.conv.weight_DequantizeLinear")
    assert (weights.how, weights.layers) == ("absorbed", (1,))


@pytest.mark.qemu
def test_coverage_tells_what_no_sample_runs(digits: Evidence):
    own = next(f for f in digits.coverage.files if f.file == "digits_int8.c")
    assert 0 < own.covered_lines < own.lines and own.covered_branches < own.branches
    assert "return MCUGEN_ERROR_NULL;" in digits.files["coverage.md"]


def test_each_requirement_names_tests_that_exist():
    assert len({r.id for r in REQUIREMENTS}) == len(REQUIREMENTS)
    for requirement in REQUIREMENTS:
        for test in requirement.tests:
            file, name = test.split("::")
            tree = ast.parse((ROOT / "tests" / file).read_text())
            assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test


MODEL = """
<ir_version: 10, opset_import: ["": 21]>
net (float[1, 8] x) => (float[1, 8] y)
<float[8, 8] w = {WEIGHTS}> {
  constant = Constant <value = float[8] {1, 2, 3, 4, 5, 6, 7, 8}> ()
  lost = Neg(x)
  a = MatMul(x, w)
  b = Softmax(a)
  y = Mul(b, constant)
}
"""


def small(**options: object) -> CompiledModel:
    model = onnx.parser.parse_model(MODEL.replace("WEIGHTS", ", ".join(["0.5"] * 64)))
    return compile_model(model, load_board("host"), CompileOptions("net", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"steps": True}, {"check_weights": True}], ids=str)
def test_code_of_other_forms_is_traced(options: dict[str, object]):
    compiled = small(**options)
    found = trace(compiled.model, compiled.bundle, compiled.report.layers)
    assert not find_untraced(found)["layers"] and not find_untraced(found)["constants"]
    how = {node.operator: node.how for node in found.nodes}
    assert how["MatMul"] == "named" and how.get("Neg", "absorbed") != "named"


def test_functions_are_read_with_their_lines():
    macro = "#define TWICE(x) \\\n    once(once(x))\n"
    text = f"{macro}int once(int x);\nstatic int once(int x)\n{{\n    return x; /* twice */\n}}\n"
    found = parse_functions({"a.h": text})
    assert [(f.name, f.first, f.last) for f in found] == [("TWICE", 1, 2), ("once", 4, 7)]
    assert "once" in found[0].words and "twice" not in found[1].words


def test_layers_are_read_with_what_is_brought_for_them():
    text = """int run(void)
{
    /* 0: a */
    f(x);
    MCUGEN_ON_LAYER(&m, 0);
    /* weights to where they are read faster */
    MCUGEN_STAGE(held, w, 4u);
    /* 1: b */
    g(held);
    MCUGEN_ON_LAYER(&m, 1);
}
"""
    found = layer_call_lines("m.c", text)
    assert [(p.first, p.last) for p in found[1]] == [(6, 10)]
    assert "w" in found[1][0].words and "w" not in found[0][0].words


GCOV_14 = json.loads(
    """{"file": "a.h", "lines": [
    {"line_number": 1, "count": 2, "branches": [], "conditions": []},
    {"line_number": 3, "count": 2, "branches": [{"count": 1}, {"count": 1}, {"count": 1}, {"count": 0}],
     "conditions": [{"count": 4, "covered": 3, "not_covered_true": [], "not_covered_false": [1]}]}]}"""
)
"""What gcov 14 says, as far as it is read, of `return a > 0 && b > 0;` for 1, 1 and 0, 1."""


def test_conditions_are_told_where_gcc_counts_them():
    (known, unknown) = (file_coverage("a.h", [GCOV_14], conditions=counts) for counts in (True, False))
    assert (known.covered_conditions, known.conditions, known.unshown) == (3, 4, (3,))
    assert (unknown.covered_conditions, unknown.conditions, unknown.unshown) == (None, None, ())
    text = coverage_text(Coverage(2, "gcc", (known,), "counted"), {"a.h": "a\nb\n    return a > 0 && b > 0;\n"})
    assert "| a.h | 2 of 2 (100.0 %) | 3 of 4 (75.0 %) | 3 of 4 (75.0 %) |" in text
    assert "    3 return a > 0 && b > 0;" in text
    assert "| statements | branches |\n" in coverage_text(Coverage(2, "gcc", (unknown,), "not counted"), {"a.h": ""})


def test_this_computers_gcc_counts_conditions_if_it_can(digits: Evidence):
    counts = [file.conditions for file in digits.coverage.files]
    assert all(counts) if gcc_version() >= MIN_CONDITION_COVERAGE_GCC else counts == [None] * len(counts)


def test_annotated_deviations_are_listed():
    text = "int a;\n/* cppcheck-suppress misra-c2012-10.1 ; a reason,\n   and a guard */\nint b = 1 << 2;\n"
    (found,) = parse_deviations({"a.c": text})
    assert found == Deviation("10.1", "a.c", 2, "a reason, and a guard")


def test_what_stands_beside_a_word_is_told_of_each_function_that_uses_it():
    header = """/* misra-c2012-dir-4.3 of NAKED ; all of it */
/* misra-c2012-dir-4.3 of asm ; a
 * name */
#define NAKED __attribute__((naked))
"""
    code = """
static NAKED void whole(void)
{
    asm("nop");
}

static int word(int a)
{
    asm("nop");
    return a; /* NAKED */
}

static int plain(int a)
{
    return a;
}
"""
    assert parse_deviations({"b.c": code, "a.h": header}) == [
        Deviation("Dir 4.3", "b.c", 2, "all of it", "whole"),
        Deviation("Dir 4.3", "b.c", 7, "a name", "word"),
    ]


def test_names_of_a_model_stay_within_their_cell():
    assert format_code("a`b|c\nd").count("`") == 2
    assert "\n" not in format_code("a\nb") and "|" not in format_code("a|b")


@pytest.mark.skipif(shutil.which("gcov") is None, reason="needs gcov")
def test_the_command_leaves_other_files_alone(tmp_path: Path):
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "own.txt").write_text("mine")
    model = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(MODEL.replace("WEIGHTS", ", ".join(["0.5"] * 64))), model)
    done = mcugen("evidence", model, "--board", "host", "-o", folder)
    assert done.code == 0 and "lines of C" in done.err
    assert (folder / "own.txt").read_text() == "mine"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert mcugen("evidence", model, "--board", "host", "-o", folder, "--quiet").err == ""
    assert first == {path.name: path.read_bytes() for path in folder.iterdir()}
