# SPDX-License-Identifier: Apache-2.0
"""The same known places of row after row: looked at once, taken four at a time."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, numpy_outputs, random_feeds

from mcugen.core.board import load_board
from mcugen.driver.compiler import compile_model
from mcugen.simulation import Setup, simulate


def gathered(rows: int, depth: int, count: int, axis: int = 1, dtype: type = np.int8) -> Net:
    net, random = Net(21), np.random.default_rng(5)
    shape = (rows, depth) if axis else (depth, 3)
    places = net.const(random.integers(-depth, depth, count), np.int64)
    net.output(net.op("Gather", net.input("x", *shape, dtype=dtype), places, axis=axis, out="y"), dtype=dtype)
    return net


@pytest.mark.parametrize("target", ["host", "nrf52840", "rp2040", "rv32imc"])
def test_places_of_rows(target: str):
    for dtype in (np.int8, np.float32):
        for net in (*(gathered(5, 35, count, dtype=dtype) for count in (3, 4, 99)), gathered(1, 300, 9, axis=0)):
            model, feeds = compile_model(net.model(), target), random_feeds(net.model())
            assert any(i.kernel == "gather" for i in model.program.instrs)
            setup = Setup(sanitize=target == "host")
            run = simulate(model.bundle, load_board(target), [feeds], measure=False, setup=setup)
            np.testing.assert_array_equal(run.outputs[0]["y"], numpy_outputs(net.model(), feeds)["y"])


def test_instructions():
    """Ten an element, where each place was looked at for each row."""
    net = gathered(16, 35, 99)
    model = compile_model(net.model(), "nrf52840")
    run = simulate(model.bundle, load_board("nrf52840"), [random_feeds(net.model())])
    assert run.instructions < 7 * 16 * 99
