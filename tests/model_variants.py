# SPDX-License-Identifier: Apache-2.0
"""Small models for each variant of generated code: interfaces of callers, sizes at run time, places of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx_models import Net

from mcugen.core.options import CompileOptions, Places

LONG = "a_network_whose_name_is_as_long_as_it_may_be_in_identifiers"
"""The longest name of a network that identifiers may contain."""
PATH = "StatefulPartitionedCall/functional_1/block_12_depthwise/batch_normalization_37/FusedBatchNormV3;block_12"
"""A long node name as Keras writes it."""


def quantized(long: str = "") -> Net:
    """Return a network of convolutions, a sum, a pool, a dense layer and Softmax, with float input and output."""
    random = np.random.default_rng(0)
    net = Net()
    x = net.fake(net.input(f"{long}image", 1, 3, 9, 9), 0.05, 3)

    def weights(*shape: int) -> str:
        return net.dequantize(net.const(random.integers(-127, 128, shape), np.int8), 0.003)

    a = net.fake(net.op("Relu", net.op("Conv", x, weights(8, 3, 3, 3), pads=[1] * 4, out=f"{long}/conv1")), 0.03, -128)
    b = net.fake(net.op("Conv", a, weights(8, 1, 3, 3), pads=[1] * 4, group=8, out=f"{long}/depthwise"), 0.03, 4)
    c = net.fake(net.op("Add", a, b), 0.05, 0)
    d = net.fake(net.op("Flatten", net.op("GlobalAveragePool", c)), 0.04, 0)
    e = net.fake(net.op("MatMul", d, weights(8, 4)), 0.1, 0)
    net.output(net.fake(net.op("Softmax", e), 1 / 256, -128, out=f"{long}scores"))
    return net


def floats() -> Net:
    """Return a small float network."""
    net = Net()
    x = net.op("Conv", net.input("x", 1, 2, 8, 8), net.const(np.ones((4, 2, 3, 3)) / 7), out="y.1")
    y = net.op("LeakyRelu", net.op("Tanh", x), alpha=0.25)
    net.output(net.op("MaxPool", y, kernel_shape=[2, 2]), net.op("ReduceMean", y, keepdims=0))
    net.output(net.op("Where", net.op("Greater", y, net.const([np.inf])), net.const([-np.inf]), y))
    return net


def sized() -> Net:
    """Return a product over a sequence whose length is known at run time."""
    net = Net()
    x = net.input(f"{PATH}/tokens", "a_dimension_with_a_name_that_explains_everything", 8)
    y = net.op("Softmax", net.op("MatMul", x, net.const(np.ones((8, 8)))))
    net.output(net.op("ReduceMean", y, axes=[0]), net.op("Transpose", y))
    return net


def stateful() -> Net:
    """Return a network that keeps a state between calls."""
    net = Net()
    half = net.op("Mul", net.input(f"{PATH}/state", 1, 4), net.const([0.5]))
    after = net.op("Add", half, net.input("x", 1, 4), out="after")
    net.output(net.op("Mul", after, net.const([3.0]), out="y"), after)
    return net


def branching() -> Net:
    """Return a loop whose body contains a branch."""
    body = Net(prefix="body_")
    body.inputs += [_scalar("step", np.int64), _scalar("go_on", bool)]
    total = body.input("body_total", 4)
    body.output(body.op("Identity", "go_on", out="go_on_out"), dtype=bool, shape=[])
    body.output(body.op("Tanh", body.op("Add", total, body.const([1.0, 2.0, 3.0, 4.0]))))
    net = Net()
    x = net.input("x", 4)
    left, right = Net(prefix="left_"), Net(prefix="right_")
    left.output(left.op("Exp", x))
    right.output(right.op("Sqrt", x))
    found = net.op("If", net.input("is_left", 1, dtype=bool), then_branch=left.graph("l"), else_branch=right.graph("r"))
    loop = net.op("Loop", net.const(3, np.int64), "", found, body=body.graph("body"), out=f"{PATH}/loop")
    net.output(loop)
    return net


def _scalar(name: str, dtype: type) -> object:
    from onnx_models import _info

    return _info(name, dtype, [])


Make = Callable[[], Net]
"""A function that builds a network."""
MODELS: Mapping[str, tuple[Make, str, CompileOptions]] = {
    "int8 on Cortex-M4": (quantized, "nrf52840", CompileOptions(name="net")),
    "int8 on Cortex-M0+": (quantized, "rp2040", CompileOptions(name="net")),
    "int8 on Cortex-M3": (quantized, "stm32f103", CompileOptions(name="net")),
    "int8 on Helium": (quantized, "corstone300", CompileOptions(name="net")),
    "int8 on RISC-V": (quantized, "esp32c3", CompileOptions(name="net")),
    "long names": (lambda: quantized(PATH), "host", CompileOptions(name=LONG)),
    "floats": (floats, "rt1060", CompileOptions(name="net")),
    "floats in RAM": (floats, "host", CompileOptions(name="net", optimize="ram")),
    "sizes": (
        sized,
        "host",
        CompileOptions(name=LONG, dims={"a_dimension_with_a_name_that_explains_everything": (1, 37)}),
    ),
    "state": (stateful, "nrf52840", CompileOptions(name=LONG, states={"after": f"{PATH}/state"})),
    "blocks": (branching, "host", CompileOptions(name="net")),
    "input row by row": (lambda: quantized(PATH), "host", CompileOptions(name=LONG, stream_input=True)),
    "row by row": (quantized, "corstone300", CompileOptions(name="net", optimize="ram")),
    "steps": (quantized, "host", CompileOptions(name=LONG, optimize="ram", steps=True)),
    "helpers and labels": (
        quantized,
        "host",
        CompileOptions(name="net", helpers=True, labels=("a", "\u00e9" * 99, "c", "?"), integer_io=True),
    ),
    "weights of their own": (lambda: quantized(PATH), "nrf52840", CompileOptions(name=LONG, weights_blob=True)),
    "several memories": (
        lambda: quantized(PATH),
        "stm32f746",
        CompileOptions(name=LONG, place=Places(arena=("dtcm", "sram"), weights="flash", hot_weights=("itcm", 512))),
    ),
}
"""Variants of generated code: builder, board and options by description."""

STATISTICS = "mean;rms;std;peak;range;crest;skewness;kurtosis"
OF_FILES_AND_RAW_DATA: Mapping[str, tuple[Make, str, CompileOptions]] = {
    "updatable": (lambda: quantized(PATH), "nrf52840", CompileOptions(name=LONG, updatable=True)),
    "updatable floats": (floats, "host", CompileOptions(name="net", updatable=True)),
    "weights that are read": (lambda: quantized(PATH), "host", CompileOptions(name=LONG, weights_reader=True)),
    "updates that are read": (floats, "host", CompileOptions(name="net", weights_reader=True, updatable=True)),
    "an image": (
        lambda: quantized(PATH),
        "host",
        CompileOptions(name=LONG, input_pipeline="image=uyvy, crop=20x20+1+2, bgr, scale=1/255, mean=0.5;0.4;0.3"),
    ),
    "a small image": (
        quantized,
        "host",
        CompileOptions(name="net", input_pipeline="image=rgb565, crop=center, nearest"),
    ),
    "a sound": (
        lambda: quantized(PATH),
        "host",
        CompileOptions(name=LONG, input_pipeline="sound=8000, frame=99/50, mel=9:10:4000, dct=9, stack=27"),
    ),
    "a vibration": (
        quantized,
        "host",
        CompileOptions(
            name="net", input_pipeline=f"vibration=99x3, frame=9/12, stats={STATISTICS}, bins=1:1:40, stack=9"
        ),
    ),
}
"""Variants with weights in files, or with an input pipeline: builder, board and options by description."""
