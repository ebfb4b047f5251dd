# SPDX-License-Identifier: Apache-2.0
"""--input-type: the caller passes whole numbers in place of reals, and all outputs stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from onnx_models import Net, onnxruntime_outputs, outputs_in_c

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.core.options import INPUT_TYPES, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.frontend.onnx.borders import with_input_types


def network() -> onnx.ModelProto:
    """Pixels, scaled by the network itself, and a real number besides."""
    draw = np.random.default_rng(0)
    net = Net()
    x = net.op("Mul", net.input("x", 1, 3, 8, 8), net.const(1 / 255))
    x = net.op("Conv", x, net.const(draw.normal(size=(4, 3, 3, 3))), kernel_shape=[3, 3])
    net.output(net.op("Add", net.op("GlobalAveragePool", x), net.input("gain", 1, 4, 1, 1), out="y"))
    return net.model()


def numbers(name: str, count: int = 1) -> np.ndarray:
    limits = np.iinfo(name)
    shape = (count, 3, 8, 8)
    return np.random.default_rng(1).integers(limits.min, limits.max, shape, endpoint=True).astype(name)


@pytest.mark.parametrize("name", INPUT_TYPES)
def test_outputs_are_those_of_the_same_numbers(name: str) -> None:
    model, feeds = network(), {"x": numbers(name), "gain": np.full((1, 4, 1, 1), 0.25, np.float32)}
    compiled = compile_model(model, options=CompileOptions(input_types={"x": name}))
    assert [e.dtype.numpy for e in compiled.program.inputs] == [np.dtype(name), np.float32]
    expected = onnxruntime_outputs(model, feeds | {"x": feeds["x"].astype(np.float32)})
    np.testing.assert_allclose(outputs_in_c(compiled, feeds)["y"], expected["y"], rtol=1e-5, atol=1e-5)


def test_the_changed_model_is_onnx() -> None:
    changed = with_input_types(network(), {"x": "uint8"})
    onnx.checker.check_model(changed, full_check=True)
    feeds = {"x": numbers("uint8"), "gain": np.zeros((1, 4, 1, 1), np.float32)}
    expected = onnxruntime_outputs(network(), feeds | {"x": feeds["x"].astype(np.float32)})
    np.testing.assert_allclose(onnxruntime_outputs(changed, feeds)["y"], expected["y"], rtol=1e-6)
    assert with_input_types(changed, {"x": "uint8"}) == changed  # as it is already


def test_bodies_read_what_nodes_read() -> None:
    net = Net()
    x, flag = net.input("x", 2), net.input("flag", 1, dtype=np.bool_)
    value = onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [2])
    bodies = {
        f"{name}_branch": onnx.helper.make_graph([onnx.helper.make_node(op, [x, x], ["b"])], name, [], [value])
        for name, op in (("then", "Add"), ("else", "Mul"))
    }
    net.output(net.op("If", net.op("Reshape", flag, net.const([], np.int64)), out="y", **bodies))
    compiled = compile_model(net.model(), options=CompileOptions(input_types={"x": "int8"}))
    for taken, expected in ((True, [-6, 14]), (False, [9, 49])):
        feeds = {"x": np.array([-3, 7], np.int8), "flag": np.array([taken])}
        np.testing.assert_array_equal(outputs_in_c(compiled, feeds)["y"], np.float32(expected))


def test_pixels_are_codes_of_a_network_that_is_quantized() -> None:
    """A quarter of the input's bytes, and no reals on the way to the first layer."""
    samples = {"x": numbers("uint8", 32), "gain": np.zeros((32, 1, 4, 1, 1), np.float32)}
    samples["x"][:, :, 0, 0], samples["x"][:, :, 0, 1] = 0, 255
    compiled, plain = (
        Compilation(network(), "host", CompileOptions(input_types=types), Quantizing(calibration=samples)).compiled
        for types in ({"x": "uint8"}, {})
    )
    assert [int(np.prod(e.shape)) * e.dtype.nbytes for e in compiled.program.inputs] == [192, 16]
    assert [int(np.prod(e.shape)) * e.dtype.nbytes for e in plain.program.inputs] == [768, 16]
    feeds = {"x": samples["x"][0], "gain": samples["gain"][0]}
    reals = feeds | {"x": feeds["x"].astype(np.float32)}
    feeds["x"], reals["x"] = feeds["x"][None], reals["x"][None]
    np.testing.assert_allclose(outputs_in_c(compiled, feeds)["y"], outputs_in_c(plain, reals)["y"], atol=0.02)


def test_what_is_no_real_input_is_refused() -> None:
    for name in ("y", "z"):
        with pytest.raises(UsageError, match="must be an input of real numbers") as error:
            compile_model(network(), options=CompileOptions(input_types={name: "uint8"}))
        assert "'x', 'gain'" in error.value.remedy


@pytest.mark.parametrize("text", ["x", "x=float32", "=uint8", "x=uint8,"])
def test_the_option_is_read(tmp_path: Path, text: str) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    done = mcugen("compile", tmp_path / "net.onnx", "--board", "host", "--input-type", text, "-o", tmp_path / "net")
    assert done.code == 2
    assert "--input-type must read NAME=TYPE" in done.err
    assert not (tmp_path / "net").exists()
