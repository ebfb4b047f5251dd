# SPDX-License-Identifier: Apache-2.0
"""An abstract interpreter follows kernels for any weights and inputs."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from markers import between_markers
from onnx_models import Net
from proofs import DOCUMENT, FRAMA_C, Row, own_kernels, prove, small_models, table, told

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

frama_c = pytest.mark.skipif(FRAMA_C is None, reason="needs frama-c: sudo apt-get install frama-c-base")


def test_no_kernel_is_missing_in_the_table():
    text = between_markers(DOCUMENT.read_text(), "proofs")
    named = [row.kernel for row in told(DOCUMENT.read_text())] + re.findall(r"`(\w+)`", text)
    assert sorted(named) == sorted(own_kernels()), "run `make docs`; python tests/proofs.py 60 --write-docs proves it"


def test_the_table_has_the_best_of_each_kernel_and_what_did_not_run():
    late, proven = (Row("", "copy", "2x3", "any", "30", "9", finding) for finding in ("not in time", "proven"))
    text = f"<!-- proofs:begin -->\n{table([late, proven], {'copy', 'pad'})}\n<!-- proofs:end -->"
    assert [(row.kernel, row.finding) for row in told(text)] == [("copy", "proven"), ("pad", "not run")]
    assert "1 of 2 proven, 0 with alarms or not followed, 0 not in time, 1 not run." in text


def convolution(board: str) -> CompiledModel:
    """Two channels of 3x3, padded: bias, borders and rounding."""
    draw = np.random.default_rng(0)
    net = Net()
    scale, zero = net.const(0.02), net.const(0, np.int8)
    x = net.op("DequantizeLinear", net.input("x", 1, 2, 3, 3, dtype=np.int8), scale, zero)
    w = net.op("DequantizeLinear", net.const(draw.integers(-9, 9, (2, 2, 3, 3)), np.int8), scale, zero)
    bias = net.op("DequantizeLinear", net.const([5, -7], np.int32), net.const(0.0004), net.const(0, np.int32))
    y = net.op("Conv", x, w, bias, pads=[1, 1, 1, 1])
    net.op("QuantizeLinear", y, net.const(0.5), zero, out="y")
    net.output("y", dtype=np.int8)
    return compile_model(net.model(), load_board(board), CompileOptions(name="net"))


@frama_c
@pytest.mark.slow
def test_a_convolution_is_within_bounds_for_any_weights():
    found = prove(convolution("host"), 120)
    assert found.alarms == ()
    assert "conv2d_s8" in found.proven


@frama_c
@pytest.mark.slow
def test_what_is_wrong_raises_an_alarm():
    """A row of the output too many."""
    model = convolution("host")
    files = dict(model.bundle.files)
    assert files["net.c"].count(".out_height = 3,") == 1
    files["net.c"] = files["net.c"].replace(".out_height = 3,", ".out_height = 400,")
    found = prove(dataclasses.replace(model, given_bundle=dataclasses.replace(model.bundle, files=files)), 120)
    assert found.alarms


@frama_c
@pytest.mark.slow
def test_what_is_known_does_not_hide_what_is_wrong():
    """A place behind a table's end, though no element is above the largest."""
    net = Net(20)
    y = net.op("Softmax", net.dequantize(net.input("x", 1, 5, dtype=np.int8), 2.0**-5, 0))
    net.output(net.quantize(y, 2.0**-7, 0, out="y"), dtype=np.int8)
    model = compile_model(net.model(), load_board("host"), CompileOptions(name="net"))
    assert prove(model, 120).proven == {"softmax_s8"}
    files = dict(model.bundle.files)
    assert "exp_table[max - a[0]]" in files["net_kernels.h"]
    files["net_kernels.h"] = files["net_kernels.h"].replace("exp_table[max - a[0]]", "exp_table[max - a[0] + 1]")
    found = prove(dataclasses.replace(model, given_bundle=dataclasses.replace(model.bundle, files=files)), 120)
    assert found.alarms


@frama_c
@pytest.mark.slow
def test_kernels_are_within_bounds_for_any_weights():
    """Those that are not proven in time are told in docs/reference/figures/proofs.md."""
    failed = {}
    for model in small_models():
        found = prove(model, 60)
        for function, text in found.alarms or ():
            failed[function] = text
    assert not failed
