# SPDX-License-Identifier: Apache-2.0
"""--stream-input: a model whose first input the caller hands over row by row computes what it always does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import Net
from typer.testing import CliRunner

from mcugen.cli.app import app
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

STREAMED = CompileOptions(name="net", stream_input=True)


def network(*, channels_last: bool = False) -> onnx.ModelProto:
    """Two convolutions and a mean, of int8."""
    random = np.random.default_rng(0)
    net = Net()
    shape = (1, 61, 10, 3) if channels_last else (1, 3, 61, 10)
    x = net.dequantize(net.input("x", *shape, dtype=np.int8), 0.05, 3)
    x = net.op("Transpose", x, perm=[0, 3, 1, 2]) if channels_last else x
    for inputs, outputs, stride in ((3, 8, 2), (8, 12, 1)):
        weights = net.const(random.integers(-127, 128, (outputs, inputs, 3, 3)), np.int8)
        y = net.op("Conv", x, net.dequantize(weights, 0.004), pads=[1] * 4, strides=[stride] * 2)
        x = net.fake(net.op("Relu", y), 0.03, -128)
    mean = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.quantize(mean, 0.02, 0, out="y"), dtype=np.int8)
    return net.model()


def samples(model: onnx.ModelProto, count: int = 3) -> dict[str, np.ndarray]:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(1).integers(-128, 128, (count, *shape)).astype(np.int8)}


@pytest.mark.parametrize("channels_last", [False, True], ids=["channels first", "channels last"])
def test_the_same_results_without_the_input_in_memory(channels_last: bool):
    model = network(channels_last=channels_last)
    feeds = samples(model)
    plain, streamed = compile_model(model), compile_model(model, options=STREAMED)
    found = streamed.run(feeds, sanitize=True)
    np.testing.assert_array_equal(found["y"], plain.run(feeds)["y"])
    port = streamed.bundle.streamed
    assert port is not None
    assert (port.rows, port.row_count, port.row_bytes) == (1, 61, 30)
    assert port.row_shape == ((10, 3) if channels_last else (3, 10))
    assert streamed.program.arena_size < port.nbytes <= plain.program.arena_size


@pytest.mark.qemu
def test_on_a_board_it_is_measured_as_always():
    model = network(channels_last=True)
    feeds = samples(model, 1)
    compiled = compile_model(model, "nrf52840", STREAMED)
    run = compiled.simulate([{"x": feeds["x"][0]}], per_layer=True)
    np.testing.assert_array_equal(run.outputs[0]["y"], compile_model(model).run(feeds)["y"][0])
    assert run.instructions is not None
    assert run.layer_instructions is not None
    assert abs(sum(run.layer_instructions) - run.instructions) < 0.02 * run.instructions
    assert run.sizes is not None
    assert run.sizes.static_ram == 0  # the harness keeps the sample


def test_the_documented_reader_compiles(tmp_path: Path):
    """For a model whose lines are 96 pixels wide."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 6, 96, 3, dtype=np.int8), 0.05, 3)
    weights = net.dequantize(net.const(np.ones((4, 3, 3, 3)), np.int8), 0.01)
    y = net.op("Conv", net.op("Transpose", x, perm=[0, 3, 1, 2]), weights, strides=[2, 2])
    net.output(net.quantize(net.op("GlobalAveragePool", y), 0.05, 0, out="y"), dtype=np.int8)
    folder = compile_model(net.model(), options=STREAMED).write(tmp_path / "net")
    document = (Path(__file__).parents[2] / "docs" / "how-to" / "memory.md").read_text()
    (code,) = (block for block in document.split("```c\n")[1:] if "read_line" in block)
    main = '#include "net.h"\nvoid wait_for_interrupt(void);\nvoid camera_line_received(void);\n'
    main += code.split("```")[0] + "int main(void) { return net_run(net_default_arena(), read_line, NULL); }\n"
    (folder / "main.c").write_text(main)
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror", "-fsyntax-only"]
    subprocess.run(["gcc", "-std=c99", *warnings, "main.c"], cwd=folder, check=True)


@pytest.mark.parametrize("kind", ["dense", "sizes"])
def test_what_cannot_be_streamed_is_refused(kind: str):
    net = Net()
    dims: dict[str, int | tuple[int, int]] = {}
    if kind == "dense":
        net.output(net.op("MatMul", net.input("x", 1, 16), net.const(np.ones((16, 4))), out="y"))
    else:
        net.output(net.op("Softmax", net.input("x", "T", 4), axis=0, out="y"))
        dims = {"T": (1, 8)}
    with pytest.raises(UsageError, match="--stream-input: the first input must be read row by row"):
        compile_model(net.model(), options=CompileOptions(dims=dims, stream_input=True))


def test_the_command_line(tmp_path: Path):
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    folder = tmp_path / "out"
    done = CliRunner().invoke(app, ["compile", str(path), "--board", "host", "--stream-input", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert "input row by row" in (folder / "net.h").read_text()
    main = '#include "net.h"\nint main(void) { return net_selftest(net_default_arena()); }\n'
    (folder / "main.c").write_text(main)
    sources = [str(p) for p in sorted(folder.glob("*.c"))]
    subprocess.run(["gcc", "-std=c99", "-I", str(folder), *sources, "-lm", "-o", str(tmp_path / "run")], check=True)
    subprocess.run([str(tmp_path / "run")], check=True)
    np.savez(tmp_path / "x.npz", x=samples(network())["x"])
    command = ["run", str(path), "--board", "host", "--stream-input", "--inputs", str(tmp_path / "x.npz")]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "y.npz")])
    assert done.exit_code == 0, done.output
    expected = compile_model(network()).run(samples(network()))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], expected["y"])
