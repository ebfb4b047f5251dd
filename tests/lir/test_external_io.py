# SPDX-License-Identifier: Apache-2.0
"""--external-io: inputs and outputs lie in buffers of the caller's, and take nothing of the arena."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import Net, assert_close, outputs_in_c, random_feeds
from typer.testing import CliRunner

from mcugen.cli.app import app
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import Space

LENT = CompileOptions(name="net", external_io=True)


def dense(net: Net, x: str, width: int, out: str = "") -> str:
    """A layer of `width` by `width` weights."""
    matrix = np.random.default_rng(width).integers(-3, 4, (width, width)) / 8
    return net.op("Relu", net.op("MatMul", x, net.const(matrix)), out=out)


def plain() -> onnx.ModelProto:
    """An input, an output, and a layer between."""
    net = Net()
    dense(net, net.input("x", 4, 16), 16, out="y")
    net.output("y", shape=(4, 16))
    return net.model()


def nothing_to_do() -> onnx.ModelProto:
    """Outputs that are an input, its elements in another shape, a constant, and one tensor twice."""
    net = Net()
    x = net.input("x", 4, 16)
    net.output(net.op("Identity", x, out="same"), shape=(4, 16))
    net.output(net.op("Reshape", x, net.const([8, 8], np.int64), out="other"), shape=(8, 8))
    net.output(net.op("Identity", net.const(np.arange(6)), out="constant"), shape=(6,))
    y = dense(net, x, 16)
    net.output(net.op("Identity", y, out="once"), shape=(4, 16))
    net.output(net.op("Identity", y, out="twice"), shape=(4, 16))
    return net.model()


def moves() -> onnx.ModelProto:
    """Parts of the input go to parts of an output, and one output is an operand of what makes another."""
    net = Net()
    x = net.input("x", 4, 16)
    top, bottom = net.ops("Split", x, axis=0, outs=["top", "bottom"])
    joined = net.op("Concat", bottom, dense(net, top, 16), bottom, axis=0, out="joined")
    net.output(joined, shape=(6, 16))
    net.output(net.op("Transpose", net.op("Add", joined, joined), perm=[1, 0], out="turned"), shape=(16, 6))
    return net.model()


def flow() -> onnx.ModelProto:
    """A branch whose results are an output as they come, with an integer that decides."""
    net = Net()
    net.input("x", 4, 16)
    which = net.input("which", 1, dtype=np.int64)
    branches = []
    for name in ("Sigmoid", "Neg"):
        branch = Net()
        branch.output(branch.op(name, "x", out=f"{name}_y"), shape=(4, 16))
        branches.append(branch.graph(name))
    first = net.op("Gather", which, net.const(0, np.int64))
    condition = net.op("Greater", first, net.const(0, np.int64))
    net.output(net.op("If", condition, then_branch=branches[0], else_branch=branches[1], out="y"), shape=(4, 16))
    return net.model()


def feeds_of(model: onnx.ModelProto, count: int = 3) -> dict[str, np.ndarray]:
    """Random inputs, of both signs."""
    random, feeds = np.random.default_rng(1), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = (count, *(d.dim_value for d in kind.shape.dim))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feeds[value.name] = random.integers(-5, 6, shape).astype(dtype)
    return feeds


@pytest.mark.parametrize("make", [plain, nothing_to_do, moves, flow])
def test_the_same_results(make: Callable[[], onnx.ModelProto]):
    model = make()
    feeds = feeds_of(model)
    inside, lent = compile_model(model), compile_model(model, options=LENT)
    found, wanted = lent.run(feeds, sanitize=True), inside.run(feeds)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
    ends = [*lent.program.inputs, *lent.program.outputs]
    assert {e.buffer.space for e in ends} == {Space.GIVEN, Space.TAKEN}
    assert len({e.buffer for e in ends}) == len(ends)
    assert not any(b.space in (Space.INPUT, Space.OUTPUT) for b in lent.program.buffers)


def test_nothing_is_copied():
    """One layer between two buffers needs no arena."""
    program = compile_model(plain(), options=LENT).program
    assert (len(program.instrs), program.arena_size) == (1, 0)


def test_an_input_is_only_read():
    header = compile_model(plain(), options=LENT).bundle.files["net.h"]
    assert "int net_run(void *arena, const float *x, float *y);" in header
    assert "net_input" not in header
    assert "net_output(" not in header


def test_addresses_are_checked(tmp_path: Path):
    """Missing ones, and those that no element of the tensor may lie at."""
    folder = compile_model(plain(), options=LENT).write(tmp_path / "net")
    (tmp_path / "main.c").write_text(
        """
        #include "net.h"
        static float x[64], y[64], after[2];
        int main(void)
        {
            void *arena = net_default_arena();
            (void)after;
            if (net_run(arena, x, y) != MCUGEN_OK || net_selftest(arena) != MCUGEN_OK) {
                return 1;
            }
            if (net_run(arena, NULL, y) != MCUGEN_ERROR_NULL || net_run(arena, x, NULL) != MCUGEN_ERROR_NULL) {
                return 2;
            }
            if (net_run(arena, x, (float *)(void *)((char *)y + NET_IO_ALIGN / 2)) != MCUGEN_ERROR_ALIGNMENT) {
                return 3;
            }
            return 0;
        }
        """
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", f"-I{folder}"]
    sources = [str(file) for file in folder.glob("*.c")]
    program = tmp_path / "main"
    subprocess.run(["gcc", *flags, str(tmp_path / "main.c"), *sources, "-o", str(program), "-lm"], check=True)
    assert subprocess.run([str(program)], check=False).returncode == 0


def test_besides_states_sizes_rows_weights_and_several_arenas():
    """All that the run function may be given."""
    net = Net()
    x, h = net.input("x", "T", 64), net.input("h", 1, 64)
    y = dense(net, net.op("Add", x, h), 64)
    net.op("ReduceMean", y, axes=[0], keepdims=1, out="h_out")
    net.output(net.op("Sigmoid", y, out="y"), shape=("T", 64))
    net.output("h_out", shape=(1, 64))
    options = CompileOptions("net", {"T": (1, 8)}, states={"h_out": "h"}, weights_blob=True)
    lent = CompileOptions("net", {"T": (1, 8)}, states={"h_out": "h"}, weights_blob=True, external_io=True)
    samples = [{"x": np.full((length, 64), length / 4, np.float32)} for length in (8, 3)]
    wanted, found = (compile_model(net.model(), options=o).simulate(samples).outputs for o in (options, lent))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours["y"], theirs["y"])


def test_the_arena_is_less_by_what_the_caller_has():
    """Row by row, too; where rows of the input come one by one, the outputs alone are the caller's."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 61, 16, 3, dtype=np.int8), 0.05, 3)
    x = net.op("Transpose", x, perm=[0, 3, 1, 2])
    for inputs, outputs in ((3, 8), (8, 12)):
        weights = net.const(np.random.default_rng(0).integers(-127, 128, (outputs, inputs, 3, 3)), np.int8)
        y = net.op("Conv", x, net.dequantize(weights, 0.004), pads=[1] * 4, strides=[2, 2])
        x = net.fake(net.op("Relu", y), 0.03, -128)
    net.output(net.quantize(net.op("GlobalAveragePool", x), 0.02, 0, out="y"), dtype=np.int8)
    model = net.model()
    feeds, arenas, results = random_feeds(model), [], []
    for lent in (False, True):
        for streamed in (False, True):
            options = CompileOptions(optimize="ram", external_io=lent, stream_input=streamed)
            compiled = compile_model(model, "host", options)
            results.append(outputs_in_c(compiled, feeds))
            arenas.append(compiled.program.arena_size)
    inside, streamed_in, lent_all, lent_outputs = arenas
    assert lent_all < inside
    assert lent_outputs <= streamed_in
    for found in results:
        assert_close(found, results[0])


def test_the_command(tmp_path: Path):
    onnx.save(plain(), tmp_path / "net.onnx")
    line = ["compile", str(tmp_path / "net.onnx"), "-b", "host", "-o", str(tmp_path / "c"), "--external-io"]
    assert CliRunner().invoke(app, line).exit_code == 0
    assert "const float *x, float *y" in (tmp_path / "c" / "net.h").read_text()
