# SPDX-License-Identifier: Apache-2.0
"""--integer-io of models that come quantized: the caller converts, and all bits stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import onnx
import pytest
from onnx_models import Net, onnxruntime_outputs, outputs_in_c, random_feeds

from mcugen.api.compilation import Compilation
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.borders import with_integer_borders
from mcugen.numerics.fixedpoint import quantize

SCALE, ZERO = 0.05, 7


def network(dtype: type = np.int8, *, moved: bool = False, readers: int = 1, other: bool = False) -> Net:
    """A product between conversions; `moved` at the borders; the last reader has another scale if `other`."""
    net = Net()
    x = net.input("x", 1, 8, 3)
    x = net.op("Transpose", x, perm=[0, 2, 1]) if moved else x
    flat = net.const([1, 24], np.int64)
    for reader in range(readers):
        scale = 0.07 if other and reader == readers - 1 else SCALE
        real = net.fake(net.op("Reshape", x, flat) if moved else x, scale, ZERO, dtype)
        real = real if moved else net.op("Reshape", real, flat)
        w = net.dequantize(net.const(np.arange(-48, 48).reshape(24, 4), np.int8), 0.01)
        y = net.fake(net.op("MatMul", real, w), 0.1, 100 if dtype is np.uint8 else 3, dtype)
        net.op("Reshape", y, net.const([2, 2], np.int64), out=f"y{reader}") if moved else net.op(
            "Identity", y, out=f"y{reader}"
        )
        net.output(f"y{reader}")
    return net


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("readers", [1, 2])
def test_codes_at_the_borders_are_those_within(dtype: type, moved: bool, readers: int) -> None:
    model = network(dtype, moved=moved, readers=readers).model()
    feeds = random_feeds(model)
    whole = outputs_in_c(compile_model(model), feeds)
    compiled = compile_model(model, options=CompileOptions(integer_io=True))
    (x,) = compiled.program.inputs
    assert x.quant is not None
    assert x.dtype.numpy == np.dtype(dtype)
    codes = outputs_in_c(compiled, {"x": quantize(feeds["x"], x.quant, x.dtype)})
    for endpoint in compiled.program.outputs:
        assert endpoint.quant is not None
        real = (codes[endpoint.name].astype(np.int32) - endpoint.quant.zero_point) * np.float32(endpoint.quant.scale[0])
        np.testing.assert_allclose(real, whole[endpoint.name], rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("perm", list(permutations(range(3))), ids=lambda perm: "".join(map(str, perm)))
def test_codes_are_moved_at_every_length(batch: int, perm: Sequence[int]) -> None:
    """Transposes at both borders, of a dimension that the caller gives: each element is where ONNX has it.

    Inputs of all types share one program: a build takes longer than the test.
    """
    net, types = Net(21), (np.int8, np.uint8, np.int16, np.uint16)
    for dtype in types:
        x = net.op("Transpose", net.input(f"x_{dtype.__name__}", batch, 3, "T"), perm=list(perm))
        y = net.fake(net.op("Relu", net.fake(x, SCALE, ZERO, dtype)), SCALE, ZERO, dtype)
        net.output(net.op("Transpose", y, perm=[1, 2, 0], out=f"y_{dtype.__name__}"))
    compiled = compile_model(net.model(), options=CompileOptions(dims={"T": (2, 17)}, integer_io=True))
    for length in (2, 5, 17):
        random = np.random.default_rng(length)
        codes = {
            dtype.__name__: random.integers(
                np.iinfo(dtype).min, np.iinfo(dtype).max, (batch, 3, length), dtype, endpoint=True
            )
            for dtype in types
        }
        outputs = outputs_in_c(compiled, {f"x_{name}": array for name, array in codes.items()})
        for dtype in types:
            found = outputs[f"y_{dtype.__name__}"]
            assert found.dtype == dtype
            expected = np.maximum(codes[dtype.__name__].transpose(perm), ZERO).transpose(1, 2, 0)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("readers", [1, 2])
def test_the_changed_model_is_onnx(readers: int) -> None:
    model = network(moved=True, readers=readers).model()
    changed = with_integer_borders(onnx.shape_inference.infer_shapes(model))
    onnx.checker.check_model(changed, full_check=True)
    feeds = random_feeds(model)
    codes = onnxruntime_outputs(changed, {"x": np.clip(np.rint(feeds["x"] / SCALE) + ZERO, -128, 127).astype(np.int8)})
    expected = onnxruntime_outputs(model, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose((codes[name].astype(np.float32) - 3) * np.float32(0.1), array, rtol=1e-6)


def test_an_input_with_two_scales_stays_real() -> None:
    compiled = compile_model(network(readers=2, other=True).model(), options=CompileOptions(integer_io=True))
    assert [e.dtype.value for e in compiled.program.inputs] == ["float32"]
    assert [e.dtype.value for e in compiled.program.outputs] == ["int8", "int8"]


def test_a_model_without_conversions_is_refused() -> None:
    net = Net()
    net.output(net.op("Relu", net.input("x", 4)))
    with pytest.raises(UsageError, match="integer-io"):
        compile_model(net.model(), options=CompileOptions(integer_io=True))


def test_samples_of_reals_serve_for_codes() -> None:
    report = Compilation(network().model(), options=CompileOptions(integer_io=True)).report(
        {"x": np.random.default_rng(0).normal(0, 1, (4, 1, 8, 3)).astype(np.float32)}
    )
    assert report.accuracy is not None
    assert report.accuracy.max_abs_error == 0.0


def test_the_header_converts() -> None:
    compiled = compile_model(network().model(), options=CompileOptions(integer_io=True, name="net"))
    header = next(text for file, text in compiled.bundle.files.items() if file.endswith("net.h"))
    assert "static inline int8_t net_encode_input(float real)" in header
    assert "static inline float net_decode_output(int8_t code)" in header


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("is_result", [False, True])
def test_an_input_that_a_body_reads_stays_real(depth: int, is_result: bool) -> None:
    """The body, within others, computes with the input or gives it as its result."""
    net = Net()
    x, condition = net.input("x", 4), net.input("condition", dtype=np.bool_)
    net.output(net.fake(x, SCALE, ZERO, out="quantized"))
    inner = Net(prefix="then0.")
    inner.output(x if is_result else inner.op("Neg", x), shape=[4])
    for level in range(depth):
        other, outer = Net(prefix=f"else{level}."), Net(prefix=f"then{level + 1}.")
        other.output(other.op("Identity", other.const(np.zeros(4))), shape=[4])
        outer.output(
            outer.op("If", condition, then_branch=inner.graph("then"), else_branch=other.graph("else")), shape=[4]
        )
        inner = outer
    net.nodes += inner.nodes
    net.output(net.op("Identity", inner.outputs[0].name, out="y"), shape=[4])
    changed = with_integer_borders(onnx.shape_inference.infer_shapes(net.plain_model()))
    assert changed.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
