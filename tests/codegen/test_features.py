# SPDX-License-Identifier: Apache-2.0
"""Code for other CPU families than the board's is not written; plain C always is."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import Net

from mcugen.codegen.features import evaluate_condition, for_features
from mcugen.core.board import FEATURES, board_names, load_board
from mcugen.core.options import CompileOptions
from mcugen.core.resources import resource_dir
from mcugen.driver.compiler import compile_model

HEADER = (resource_dir("runtime_c") / "include" / "mcugen.h").read_text()
MACROS = sorted(set(re.findall(r"#define (MCUGEN_\w+) 1 /\*", HEADER)))
WITHOUT_MACRO = {"fpu64", "dual_issue"}
"""Features that decide on kernels and loops only; no C code has a condition on them."""
M4, M0, M3, M55 = {"dsp", "fpu"}, {"thumb1"}, {"thumb2"}, {"dsp", "fpu", "fpu64", "mve", "mve_float"}

CHAIN = """before
#if defined(MCUGEN_MVE) /* Helium */
helium
#elif defined(MCUGEN_DSP)
dsp
#else /* plain */
plain
#endif
after"""


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (M4, "before\n#if defined(MCUGEN_DSP)\ndsp\n#else /* plain */\nplain\n#endif\nafter"),
        (M0, "before\nplain\nafter"),
        (set(), "before\nplain\nafter"),
        (M55, CHAIN),
    ],
)
def test_a_chain_keeps_what_the_board_has_and_plain_c(features: set[str], expected: str):
    assert for_features(CHAIN, features) == expected


@pytest.mark.parametrize(
    ("condition", "features", "expected"),
    [
        ("defined(MCUGEN_FPU) && !defined(MCUGEN_MVE_FLOAT)", M4, "#if defined(MCUGEN_FPU)\na\n#endif"),
        ("defined(MCUGEN_FPU) && !defined(MCUGEN_MVE_FLOAT)", M0, ""),
        ("defined(MCUGEN_THUMB2) || defined(MCUGEN_THUMB1)", M3, "#if defined(MCUGEN_THUMB2)\na\n#endif"),
        ("defined(MCUGEN_FPU)", {"rv32", "fpu"}, ""),
        ("!defined(MCUGEN_DSP)", M0, "a"),
        ("defined(X) && !(defined(Y) || defined(MCUGEN_MVE))", M0, "#if defined(X) && !defined(Y)\na\n#endif"),
        ("defined(MCUGEN_DSP) && __ARM_FP > 4", M0, "#if defined(MCUGEN_DSP) && __ARM_FP > 4\na\n#endif"),
    ],
)
def test_conditions_are_resolved_as_far_as_they_are_known(condition: str, features: set[str], expected: str):
    assert for_features(f"#if {condition}\na\n#endif", features) == expected


def test_other_conditionals_stay_as_they_are():
    text = "#ifndef GUARD\n#define GUARD\n#if X > 2 // what\n  #  ifdef Y\ny\n#endif\n#elif Z\nz\n#endif\n#endif"
    assert for_features(text, set()) == text


def test_what_is_left_out_leaves_no_holes():
    text = "a\n\n#if defined(MCUGEN_MVE)\nv\n#endif\n\nb"
    assert for_features(text, set()) == "a\n\nb"


CONDITIONS = st.recursive(
    st.sampled_from([f"defined({m})" for m in MACROS] + ["defined OTHER"]),
    lambda inner: st.one_of(
        inner.map(lambda a: f"!({a})"),
        st.tuples(inner, inner).map(lambda ab: f"({ab[0]}) && ({ab[1]})"),
        st.tuples(inner, inner).map(lambda ab: f"({ab[0]} || {ab[1]})"),
    ),
    max_leaves=6,
)


@given(CONDITIONS, st.sets(st.sampled_from(MACROS)))
def test_a_resolved_condition_holds_where_the_whole_one_does(condition: str, absent: set[str]):
    found = evaluate_condition(condition, absent)
    names = sorted({*MACROS, "OTHER"} - absent)
    for defined in itertools.chain([()], [names], ([name] for name in names), itertools.combinations(names, 2)):
        assert _value(found, defined) == _value(condition, defined)


def _value(condition: bool | str, defined: tuple[str, ...]) -> bool:
    if isinstance(condition, bool):
        return condition
    text = re.sub(r"defined\((\w+)\)|defined (\w+)", lambda m: str((m[1] or m[2]) in defined), condition)
    return bool(eval(text.replace("!", " not ").replace("&&", " and ").replace("||", " or ")))


@given(st.sampled_from([M4, M0, M3, M55, set(), {"rv32", "fpu"}]), st.data())
def test_the_preprocessor_finds_the_same_text(features: set[str], data: st.DataObject):
    """A second program: whatever a CPU of the board's features or fewer makes of it, it makes of what is written."""
    lines, number = ["0"], itertools.count(1)

    def group(depth: int) -> None:
        lines.append(f"#if {data.draw(CONDITIONS)}")
        branch(depth)
        for _ in range(data.draw(st.integers(0, 2))):
            lines.append(f"#elif {data.draw(CONDITIONS)}")
            branch(depth)
        if data.draw(st.booleans()):
            lines.append("#else")
            branch(depth)
        lines.append("#endif")

    def branch(depth: int) -> None:
        lines.append(str(next(number)))
        if depth and data.draw(st.booleans()):
            group(depth - 1)

    group(2)
    text = "\n".join(lines)
    kept = for_features(text, features)
    present = [m for m in MACROS if for_features(f"#if defined({m})\n1\n#endif", features)]
    for defined in ([], present, ["OTHER"]):
        assert _taken(kept, defined) == _taken(text, defined)


def _taken(text: str, defined: list[str]) -> list[str]:
    """What is left of the text where these macros are defined."""
    taken, stack = [], []
    for line in text.split("\n"):
        word, _, condition = line.partition(" ")
        if word == "#if":
            stack.append([_value(condition, tuple(defined))] * 2)
        elif word == "#elif":
            now = not stack[-1][1] and _value(condition, tuple(defined))
            stack[-1] = [now, stack[-1][1] or now]
        elif word == "#else":
            stack[-1] = [not stack[-1][1], True]
        elif word == "#endif":
            stack.pop()
        elif all(now for now, _ in stack):
            taken.append(line)
    return taken


def test_the_header_has_a_macro_for_each_feature():
    assert sorted(f"MCUGEN_{feature.upper()}" for feature in FEATURES - WITHOUT_MACRO) == MACROS


@pytest.mark.qemu
@pytest.mark.parametrize("board", board_names())
def test_no_macro_of_a_board_is_taken_away(board: str, tmp_path: Path):
    """What the board's compiler defines by mcugen.h stays in conditions, unless the board says that it has not that."""
    from mcugen.simulation.machines import find_machine
    from mcugen.simulation.toolchain import find_program

    target = load_board(board)
    if not target.toolchain:
        return
    include = resource_dir("runtime_c") / "include"
    toolchain = find_machine(target).toolchain
    flags = [*toolchain.library, *target.cflags, "-E", "-dM", "-include", "mcugen.h", "-I", str(include)]
    command = [find_program(toolchain.gcc), *flags, "-x", "c", "/dev/null"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    defined = {m for m in MACROS if re.search(rf"^#define {m} 1$", text, re.M)}
    kept = {m for m in MACROS if for_features(f"#if defined({m})\n1\n#endif", target.features)}
    assert kept == defined


def small(board: str) -> dict[str, str]:
    net = Net()
    x = net.dequantize(net.input("x", 1, 8, 6, 6, dtype=np.int8), 0.05, 3)
    weights = net.dequantize(net.const(np.ones((8, 8, 3, 3)), np.int8), 0.01)
    a = net.fake(net.op("Conv", x, weights, pads=[1] * 4), 0.05, 0)
    b = net.fake(net.op("Softmax", net.op("Add", a, x), axis=1), 1 / 256, -128)
    net.output(net.quantize(b, 1 / 256, -128), dtype=np.int8)
    return dict(compile_model(net.model(), board, CompileOptions(name="net")).bundle.files)


@pytest.mark.parametrize(
    ("board", "foreign"),
    [
        ("nrf52840", "MVE|THUMB1|RV32"),
        ("rp2040", "MVE|THUMB2|DSP|FPU|RV32"),
        ("corstone300", "THUMB1|RV32"),
        ("esp32c3", "MVE|THUMB|DSP|FPU"),
        ("host", "MVE|THUMB|DSP|FPU|RV32"),
    ],
)
def test_generated_kernels_are_for_the_board(board: str, foreign: str):
    assert not re.search(rf"MCUGEN_({foreign})", small(board)["net_kernels.h"])
