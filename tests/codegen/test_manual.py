# SPDX-License-Identifier: Apache-2.0
"""The header is the whole manual, comments and identifiers agree, and a hook tells models and layers apart."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from c_programs import build_and_run, check_compiles, write
from onnx_models import Net

from mcugen.codegen.bundle import Bundle
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.load import load
from mcugen.quantization.estimate import estimate_loss
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme


def network(nodes: tuple[str, str] = ("stem/Conv", "stem/Relu")) -> Net:
    net = Net()
    y = net.op("Conv", net.input("image", 1, 2, 5, 5), net.const(np.ones((3, 2, 3, 3)) / 9), out="t17")
    net.nodes[-1].name = nodes[0]
    y = net.op("Relu", y, out="t18")
    net.nodes[-1].name = nodes[1]
    net.output(net.op("Sigmoid", y, out="mask"))
    return net


def compiled(net: Net, name: str = "net", board: str = "host", **options: object) -> CompiledModel:
    return compile_model(net.model(), board, CompileOptions(name=name, **options))


def manual(bundle: Bundle) -> str:
    """The comment on top of the header, in one line a paragraph."""
    text = bundle.files[f"{bundle.name}.h"].split("*/")[2]
    return re.sub(r"\n \* (?=\S)", " ", text.replace(":\n *\n", ": "))


# ------------------------------------------------------------------------------------------------ the header


def test_the_list_of_layers_has_names_shapes_and_kernels():
    model = compiled(network())
    for file in ("net.h", "net.c"):
        rows = re.findall(r"^ \* +(\d+)  (.+?)  +(\S.*?)  +(\w+)$", model.bundle.files[file], re.M)
        assert [int(row[0]) for row in rows] == list(range(len(model.bundle.layers)))
        assert ("stem/Conv", "1x3x3x3 float32") in {row[1:3] for row in rows}
        for _, _, _, kernel in rows:
            assert re.search(rf"^static \w+ {kernel}\(", model.bundle.files["net_kernels.h"], re.M)
            assert re.search(rf"^    {kernel}\(", model.bundle.files["net.c"], re.M)


def test_memory_is_told():
    model = compiled(network())
    text = manual(model.bundle)
    assert (
        f"RAM: {model.program.arena_size:,} bytes of arena, and the stack. No memory is allocated at run time." in text
    )
    assert f"Flash: {model.program.weights_size:,} bytes of weights, and the code." in text
    assert "Stack: `mcugen report" in text
    assert "--board host` measures the stack" in text


def test_states_memories_and_files_are_told():
    net = Net()
    after = net.op("MatMul", net.input("s", 1, 32), net.const(np.eye(32)), out="after")
    net.output(net.op("Add", after, net.input("x", 1, 32), out="y"), after)
    model = compiled(net, board="stm32f746", states={"after": "s"}, place=Places(("dtcm",), "", ("itcm", 8192)))
    text = manual(model.bundle)
    assert "bytes of arena in dtcm, 128 bytes of net_state for each stream of inputs, " in text
    assert f"{model.report.ram.copies:,} bytes of weights that start-up code copies there" in text
    assert "net_memory.ld places" in text
    assert "arenas and states may run at the same time" in text
    blob = compiled(net, states={"after": "s"}, weights_blob=True)
    assert "in net_weights.bin, which the caller provides" in manual(blob.bundle)
    assert "net_selftest(arena, weights)" in manual(blob.bundle)


def test_libm_is_named_where_it_is_needed():
    net = Net()
    net.output(net.op("Relu", net.input("x", 4)))
    assert "-lm" not in manual(compiled(net).bundle)
    net.output(net.op("Sin", "x"))
    assert "math functions (link with -lm)" in manual(compiled(net).bundle)


def test_accuracy_is_told_if_it_was_measured():
    assert "Accuracy: not measured yet; `mcugen report" in manual(compiled(network()).bundle)
    images = np.random.default_rng(0).standard_normal((4, 1, 2, 5, 5)).astype(np.float32)
    samples = [{"image": image} for image in images]
    source, scheme = load(network().model()), Scheme()
    found = create_quantizer(source, import_float_model(source, CompileOptions(), scheme), scheme, samples).quantize()
    quantization = estimate_loss(found, samples, "held out")
    bundle = compile_model(quantization, "host", CompileOptions(name="net")).bundle
    assert f"Accuracy: {quantization.estimate}." in manual(bundle)


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", ["net", "a_network_whose_name_is_as_long_as_it_may_be"])
@pytest.mark.parametrize("kind", ["plain", "several", "state", "rows", "sizes", "blob"])
def test_the_example_compiles(kind: str, name: str, tmp_path: Path):
    net = Net()
    first = (1, 2, 61, 10) if kind == "rows" else ("n", 8) if kind == "sizes" else (1, 8)
    x = net.input("x", *first)
    if kind == "rows":
        x = net.op("Flatten", net.op("GlobalAveragePool", net.op("Conv", x, net.const(np.ones((8, 2, 3, 3))))))
    y = net.op("MatMul", x, net.const(np.eye(8)))
    if kind in ("several", "state"):
        y = net.op("Add", y, net.input("z", 1, 8), out="after")
    net.output(net.op("Tanh", y), *(["after"] if kind in ("several", "state") else []))
    options = {
        "state": {"states": {"after": "z"}},
        "rows": {"stream_input": True},
        "sizes": {"dims": {"n": (1, 5)}},
        "blob": {"weights_blob": True},
    }
    bundle = compiled(net, name, **options.get(kind, {})).bundle
    write(bundle, tmp_path)
    example = re.findall(r"^ \*     (.*)$", bundle.files[f"{bundle.name}.h"], re.M)
    start = example.index("}") + 1 if kind == "rows" else 0
    inside = "".join(f"    {line}\n" for line in example[start:])
    used = [word for word in ("data", "data_1", "data_2") if re.search(rf"\b{word}\b", inside)]
    data = "".join(f"static float {word}[1220];\n" for word in used)
    read = "".join(f"    (void){word};\n" for word in ("y", "y_1", "y_2") if f" *{word} " in inside)
    weights = f"    const void *weights = {bundle.name}_default_weights();\n" if kind == "blob" else ""
    size = "    int32_t n = 5;\n" if kind == "sizes" else ""
    main = f'#include "{bundle.name}.h"\n{data}' + "\n".join(example[:start])
    main += f"\nint main(void)\n{{\n{weights}{size}{inside}{read}    return status;\n}}\n"
    assert build_and_run(main, tmp_path, *bundle.sources) == ""


def test_the_header_is_for_cpp_too(tmp_path: Path):
    write(compiled(network()).bundle, tmp_path)
    (tmp_path / "main.cpp").write_text('#include "net.h"\nint main() { return net_selftest(net_default_arena()); }\n')
    command = ["g++", "-std=c++98", "-Wall", "-Wextra", "-Werror", "-Wno-long-long", "-fsyntax-only", "main.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)


# --------------------------------------------------------------------------------------------------- names


def test_a_layer_has_one_name_in_comments_and_identifiers():
    """Its tensor is called t18, which says nothing to anybody: its node's name does."""
    text = compiled(network()).bundle.files["net.c"]
    assert re.search(r"/\* \d+: conv stem/Conv\n     \* ONNX: stem/Conv, stem/Relu\n", text)
    assert " stem_conv_params = {" in text
    assert "(&stem_conv_params, " in text
    assert "net_stem_conv_weights" in text
    assert "t18" not in text


def test_a_layer_has_the_name_of_the_node_whose_operator_it_computes():
    net = network(("/stem/conv/Conv", "/stem/t18"))
    assert "/* 1: conv /stem/conv/Conv\n" in compiled(net).bundle.files["net.c"]


def test_what_is_fused_is_called_by_what_it_is():
    net = Net()
    for index in range(2):
        y = net.op("Conv", net.input(f"x{index}", 1, 2, 5, 5), net.const(np.ones((3, 2, 3, 3)) / 9))
        net.nodes[-1].name = f"Conv_{index}"
        y = net.op("Mul", y, net.const([2.0]))
        net.nodes[-1].name = f"Mul_{index}"
        net.output(net.op("Sqrt", y))
    text = compiled(net).bundle.files["net.c"]
    assert re.findall(r"/\* \d+: conv (.*)", text) == ["Conv_0", "Conv_1"]


def test_outputs_keep_their_names():
    text = compiled(network()).bundle.files["net.c"]
    assert "float *const mask = " in text


def test_origins_are_complete_and_wrapped():
    nodes = ";".join(f"functional_1/block_{i}/Conv2D/ReadVariableOp/resource" for i in range(12))
    text = compiled(network((nodes, "stem/Relu"))).bundle.files["net.c"]
    comment = re.search(r"/\* \d+: conv functional_1/block_0/Conv2D/ReadVariableOp/resource(.*?)\*/", text, re.S)
    assert comment is not None
    assert nodes in re.sub(r"\n +\* ", "", comment[1])
    assert max(map(len, text.split("\n"))) <= 120


# --------------------------------------------------------------------------------------------------- the hook

HOOK = """
#ifndef HOOK_H
#define HOOK_H
#define MCUGEN_ON_LAYER on_layer
#include "mcugen.h"
void on_layer(const mcugen_model *model, int32_t index);
#endif
"""
HOOKED = """
#include "first.h"
#include "second.h"
#include <stdio.h>
void on_layer(const mcugen_model *model, int32_t index)
{
    printf("%s %d/%d %s%s\\n", model->name, (int)index, (int)model->layers, model->layer_names[index],
        model == &second_model ? "!" : "");
}
int main(void)
{
    return first_run(first_default_arena()) + second_run(second_default_arena());
}
"""


def test_the_hook_tells_models_and_layers_apart(tmp_path: Path):
    write(compiled(network(), "first").bundle, tmp_path)
    other = Net()
    other.output(other.op("Exp", other.input("x", 4), out='say "exp"'))
    write(compiled(other, "second").bundle, tmp_path)
    (tmp_path / "hook.h").write_text(HOOK)
    sources = ("first.c", "first_weights.c", "second.c", "second_weights.c")
    found = build_and_run(HOOKED, tmp_path, *sources, flags=("-include", "hook.h"))
    layers = len(compiled(network(), "first").bundle.layers)
    lines = found.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["first", f"{i}/{layers}"] for i in range(layers)]
    assert "first 1/" + f"{layers} stem/Conv" in lines
    assert lines[-1] == "second 0/1 Exp_say 'exp'!"


def test_names_take_no_flash_without_a_hook(tmp_path: Path):
    write(compiled(network()).bundle, tmp_path)
    subprocess.run(["gcc", "-O0", "-c", "net.c"], cwd=tmp_path, check=True)
    assert b"stem/Conv" not in (tmp_path / "net.o").read_bytes()
    subprocess.run(["gcc", "-O0", "-c", "-DMCUGEN_ON_LAYER(m,i)=(void)(m)", "net.c"], cwd=tmp_path, check=True)
    assert b"stem/Conv" in (tmp_path / "net.o").read_bytes()


def test_all_compilers_accept_the_hook(tmp_path: Path):
    bundle = compiled(network()).bundle
    files = {**bundle.files, "net.c": "#define MCUGEN_ON_LAYER(model, index) ((void)(model), (void)(index))\n"}
    files["net.c"] += bundle.files["net.c"]
    check_compiles(Bundle(**{**vars(bundle), "files": files}), tmp_path)
