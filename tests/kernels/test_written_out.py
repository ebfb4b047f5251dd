# SPDX-License-Identifier: Apache-2.0
"""What kernels say of the bytes of functions that are written out is what the compiler makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, random_feeds

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.kernels.dsp.dsp_conv import DSP_KERNELS
from mcugen.lir.spec import spec_of

KERNEL = "conv2d_s8_dsp_few"


def two_layers(channels: int, size: int, pad: int) -> Net:
    """Convolutions whose function is called twice: one that is called once is a part of its caller."""
    net, random = Net(21), np.random.default_rng(1)
    x = net.dequantize(net.input("x", 1, channels, 8, 8, dtype=np.int8), 0.05, 3)
    for name, outputs in (("y", 6), ("z", 10)):
        w = net.dequantize(net.const(random.integers(-60, 60, (outputs, channels, size, size)), np.int8), 0.01)
        y = net.op("Conv", x, w, pads=[pad] * 4)
        net.output(net.quantize(y, 0.4, 5, np.int8, out=name), dtype=np.int8)
    return net


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("channels", "size", "pad"),
    [(8, 1, 0), (16, 1, 0), (32, 1, 0), (64, 1, 0), (3, 3, 1), (8, 3, 1), (1, 5, 2), (2, 4, 0)],
)
def test_bytes_of_a_written_out_function(channels: int, size: int, pad: int):
    model = two_layers(channels, size, pad).model()
    compiled = compile_model(model, "nrf52840", CompileOptions(kernels=(KERNEL,)))
    node = next(n for n in compiled.graph.nodes if n.op.macs(n.sig))
    (kernel,) = [k for k in DSP_KERNELS if k.name == KERNEL]
    assert kernel.code is not None
    sizes = compiled.simulate([random_feeds(model)]).sizes
    assert sizes is not None
    taken = sum(nbytes for name, nbytes in sizes.functions.items() if name.startswith(KERNEL))
    assert 0.7 < kernel.code(spec_of(node)) / taken < 1.5, "parameters of a layer come to what is counted here"
