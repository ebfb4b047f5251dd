# SPDX-License-Identifier: Apache-2.0
"""RequantShift beside its formula in whole numbers; networks of it are integer ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import Net, c_outputs, numpy_outputs, optimized

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import DType
from mcugen.ops.conv import Conv

DOMAINS = ["", "PACTOps", "ai.onnx.contrib"]


def formula(x: np.ndarray, mul: np.ndarray, add: np.ndarray, div: int, levels: int, signed: int) -> np.ndarray:
    low = -levels // 2 if signed else 0
    sums = x.astype(np.int64) * mul.astype(np.int64) + add.astype(np.int64) + div // 2
    return np.clip(sums // div, low, low + levels - 1)


def network(domain: str, signed: int) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    draw = np.random.default_rng(3)
    weights = [draw.integers(-90, 91, s).astype(np.float32) for s in ((5, 2, 3, 3), (4, 5, 1, 1))]
    numbers = [draw.integers(lo, hi, (5, 1, 1)).astype(np.float32) for lo, hi in ((60, 90), (-9999, 9999))]
    net = Net(17)
    sums = net.op("Conv", net.input("x", 1, 2, 6, 6), net.const(weights[0]))
    options = {
        "div": helper.make_tensor("d", onnx.TensorProto.FLOAT, [], [4096]),
        "n_levels_out": 256.0,
        "signed": signed,
    }
    codes = net.op("RequantShift", sums, *map(net.const, numbers), domain=domain, **options)
    net.output(net.op("Conv", codes, net.const(weights[1]), out="y"), shape=(1, 4, 4, 4))
    model = net.plain_model()
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model, [*weights, *numbers]


@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("domain", DOMAINS)
def test_codes_are_those_of_the_formula(domain: str, signed: int) -> None:
    model, (first, second, mul, add) = network(domain, signed)
    layers = [n for n in optimized(model).nodes if isinstance(n.op, Conv)]
    assert [n.input(0).type.dtype for n in layers] == [DType.FLOAT32, DType.INT8]
    x = np.random.default_rng(4).integers(-128, 128, (1, 2, 6, 6)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, first)
    codes = formula(sums, mul, add, 4096, 256, signed)
    assert len(np.unique(codes)) > 20
    expected = np.einsum("nchw,ocij->nohw", codes, second).astype(np.float32)
    np.testing.assert_array_equal(numpy_outputs(model, {"x": x})["y"], expected)
    np.testing.assert_array_equal(c_outputs(model, {"x": x})["y"], expected)


@pytest.mark.parametrize("div", [0.5, 0.0, -4.0, float("inf"), "many", [1.0, 2.0], None])
def test_what_is_no_whole_number_is_refused_by_node(div: object) -> None:
    model, _ = network("PACTOps", 0)
    (node,) = (n for n in model.graph.node if n.op_type == "RequantShift")
    (kept,) = (a for a in node.attribute if a.name == "div")
    node.attribute.remove(kept)
    if div is not None:
        node.attribute.append(helper.make_attribute("div", div))
    with pytest.raises(McugenError, match="div must be one whole number"):
        compile_model(model, "host")
