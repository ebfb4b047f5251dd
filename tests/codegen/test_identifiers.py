# SPDX-License-Identifier: Apache-2.0
"""Names from models are untrusted text: whatever they are, the C compiles, and says nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from c_programs import build_and_run, check_compiles, write
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import Net

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.identifiers import comment, identifier, own_names
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

HOSTILE = [
    "*/ #include <nothing.h> /*",
    '"; int main(void) { return 1; } "',
    "back\\slash",
    "line\\\n#error continued",
    "*\\/ #error escaped",
    "/\\* nested",
    "trigraph ??/\n#error",
    "??=define X",
    "a" * 300,
    "z" * 300 + "/conv/Conv_output_0",
    "int",
    "class",
    "restrict",
    "NULL",
    "ünïcödé 名前",
    "",
    " ",
    "0digit",
    "9",
    "a.b",
    "a_b",
    "a b",
    "A_B",
    "_Reserved",
    "__double__",
    "%d%s%n",
    "\x00\x01\x7f",
    "'{{ jinja }}'",
    "{% raw %}",
]
OURS = [
    "arena",
    "base",
    "p",
    "x",
    "y",
    "w",
    "i0",
    "status",
    "default_arena",
    "run",
    "selftest",
    "input",
    "output",
    "net",
    "net_run",
    "t0_params",
    "first_params",
    "input_first",
    "output_t0",
    "net_input_first",
    "mcugen",
    "mcugen_clamp",
    "mcugen_ok",
    "arm_nnfunctions",
    "cmsis_nn_dims",
    "memcpy",
    "memset",
    "int8_t",
    "int32_t",
    "uint32_t",
    "uintptr_t",
    "size_t",
    "float",
    "expf",
    "elementwise_add",
    "elementwise_add_params",
    "elementwise_exp",
    "dense_f32",
    "copy_runs_0d",
    "golden_net_input",
    "weights",
    "stdin",
    "errno",
    "linux",
    "unix",
    "index",
    "main",
]
"""Names that the generated code, its headers or the compiler use themselves."""


def net_of_names(names: list[str]) -> Net:
    """Each name once as an input, once as a constant, once as a result, where ONNX allows it."""
    net = Net()
    total = net.input("first", 4)
    for index, name in enumerate(names):
        kind = index % 3
        if not name:
            continue
        if kind == 0:
            total = net.op("Add", total, net.input(name, 4))
        elif kind == 1:
            total = net.op("Add", total, net.const([1.0, 2.0, 3.0, index], name=name))
        else:
            total = net.op("Exp", net.op("Transpose", net.op("Reshape", total, net.const([2, 2], np.int64)), out=name))
            total = net.op("Reshape", total, net.const([4], np.int64))
        net.nodes[-1].name = name
    net.output(total, *(node.output[0] for node in net.nodes if node.op_type == "Transpose"))
    return net


def compiled(net: Net, name: str = "net") -> Bundle:
    return compile_model(net.model(), options=CompileOptions(name=name)).bundle


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("names", [HOSTILE, OURS], ids=["hostile", "ours"])
def test_tensors_and_nodes_of_any_name(tmp_path: Path, names: list[str], turn: int):
    bundle = compiled(net_of_names([*names[turn:], *names[:turn]]))
    check_compiles(bundle, tmp_path, *(("gcc", "clang", "g++") if turn == 0 else ("gcc",)))
    for text in (bundle.files[name] for name in bundle.files if name.endswith((".c", ".h"))):
        assert not re.search(r"^\s*#\s*(error (con|esc)|include <nothing)", text, re.M)
        assert "??/" not in text


def test_a_model_and_a_constant_that_make_a_kernels_name(tmp_path: Path):
    net = Net()
    product = net.op("MatMul", net.input("x", 2, 3), net.const(np.eye(3)))
    net.output(net.op("Max", product, net.const([[1.0, 2.0, 3.0]], name="f32"), out="elementwise max"))
    check_compiles(compiled(net, "dense"), tmp_path)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    "name",
    [
        *HOSTILE[:4],
        "",
        "int",
        "class",
        "9",
        "main",
        "mcugen",
        "dense_f32",
        "elementwise",
        "string",
        "math",
        "stdint",
        "stddef",
        "a" * 300,
        "NULL",
    ],
)
def test_models_of_any_name_compile_and_run(tmp_path: Path, name: str):
    net = Net()
    x = net.op("Exp", net.op("MatMul", net.input("x", 2, 3), net.const(np.eye(3))))
    net.output(net.op("Transpose", x))
    model = net.model()
    model.graph.name = name or "model"
    bundle = compile_model(model, options=CompileOptions(name=name)).bundle
    write(bundle, tmp_path)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", bundle.name)
    call = f"{bundle.name}_selftest({bundle.name}_default_arena())"
    main = f'#include "{bundle.name}.h"\nint main(void) {{ return {call}; }}\n'
    build_and_run(main, tmp_path, *(f for f in sorted(bundle.files) if f.endswith(".c")))


def test_every_external_symbol_starts_with_the_models_name(tmp_path: Path):
    bundle = compiled(net_of_names(OURS), "own")
    check_compiles(bundle, tmp_path, "gcc")
    for source in (name for name in bundle.files if name.endswith(".c")):
        subprocess.run(["gcc", "-c", "-I.", source, "-o", f"{source}.o"], cwd=tmp_path, check=True)
        listed = subprocess.run(
            ["nm", "-g", "--defined-only", f"{source}.o"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        symbols = [line.split()[-1] for line in listed.stdout.splitlines()]
        assert symbols
        assert [symbol for symbol in symbols if not symbol.startswith("own_")] == []


# ---------------------------------------------------------------------------------------------- functions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("conv1", "conv1"),
        ("Conv/Relu:0", "conv_relu_0"),
        ("", "t"),
        ("---", "t"),
        ("0x", "t_0x"),
        ("for", "t_for"),
        ("Class", "t_class"),
        ("é", "t"),
        ("x" * 50, "x" * 13 + "_" + "x" * 26),
        ("encoder/layers.11/attention/self/query/MatMul", "encoder_layers_11_self_query_matmul"),
        ("features.14.conv.1.batch_normalization/FusedBatchNormV3", "features_14_conv_1_fusedbatchnormv3"),
        (
            "functional_1/conv2d_2/Conv2D;functional_1/relu_2/Relu;Conv2D_quantized_1",
            "functional_1_conv2d_2_relu_2_quantized_1",
        ),
    ],
)
def test_identifiers(text: str, expected: str):
    assert identifier(text) == expected


def test_a_role_stays_whole_behind_a_long_name():
    long = "encoder/layers.11/attention/self/query/MatMul"
    name = identifier(long, role="weights")
    assert name.endswith("_matmul_weights") and len(name) <= 40
    assert len(identifier(long, role="r" * 60)) <= 40


def test_taken_identifiers_are_numbered():
    taken = own_names()
    assert [identifier(text, taken) for text in ("a b", "a.b", "a_b", "a_b_2")] == [
        "a_b",
        "a_b_2",
        "a_b_3",
        "a_b_2_2",
    ]


@given(st.lists(st.text(max_size=60), max_size=30))
def test_identifiers_are_c_and_unique(texts: list[str]):
    taken = own_names()
    found = [identifier(text, taken) for text in texts]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", word) for word in found)
    assert len(set(found)) == len(texts)


def is_harmless(text: str) -> bool:
    return (
        not any(bad in text for bad in ("*/", "/*", "\\", "??", "\n", "\r")) and text.isascii() and text.isprintable()
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_comments_are_harmless(text: str):
    assert is_harmless(comment(text))


@given(st.text(alphabet=st.sampled_from("*/\\?\n a\u00fc\x00"), max_size=30), st.integers(10, 40))
def test_comments_are_harmless(text: str, longest: int):
    found = comment(text, longest)
    assert is_harmless(found)
    assert len(found) <= longest


def test_comments_keep_what_is_plain():
    assert comment("/conv1/Conv_output_0: 1x3") == "/conv1/Conv_output_0: 1x3"
