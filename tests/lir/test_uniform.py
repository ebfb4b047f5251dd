# SPDX-License-Identifier: Apache-2.0
"""Parameters on which all layers of a function agree stand in it as literals; what may differ or change does not."""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx_models import Net

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model


def two_convolutions(zeros: tuple[int, int]) -> onnx.ModelProto:
    """Of images whose padding holds these zero points."""
    net, random = Net(), np.random.default_rng(0)
    for i, zero in enumerate(zeros):
        x = net.dequantize(net.input(f"x{i}", 1, 8, 9, 7 + i, dtype=np.int8), 0.05, zero)
        codes = net.const(random.integers(-127, 128, (6, 8, 3, 3)), np.int8)
        w = net.dequantize(codes, 0.01, 0)
        net.output(net.quantize(net.op("Conv", x, w, pads=(1, 1, 1, 1)), 0.4, 3, out=f"y{i}"), dtype=np.int8)
    return net.model()


def members(compiled: CompiledModel, kernel: str = "conv2d_s8_dsp") -> set[str]:
    """Of the struct of a kernel's parameters."""
    text = compiled.bundle.files[f"{compiled.program.name}_kernels.h"]
    found = re.search(rf"typedef struct {{([^}}]*)}} {kernel}_params;", text)
    assert found, kernel
    return set(re.findall(r"int32_t (\w+);", found[1]))


def compiled(zeros: tuple[int, int], **options: object) -> CompiledModel:
    return compile_model(two_convolutions(zeros), "nrf52840", CompileOptions(kernels=("conv2d_s8_dsp",), **options))  # type: ignore[arg-type]


def test_what_all_layers_agree_on_is_in_no_struct():
    same, other = members(compiled((-5, -5))), members(compiled((-5, 7)))
    assert not {"batch", "x_zero_point"} & same
    assert {"in_width", "inner_iterations"} <= same, "conditions that a compiler would see through, or that differ"
    assert "dilation_height" in same, "products with the literal 1 were code without effect"
    assert other - same == {"x_zero_point"}


def test_what_training_changes_stays_a_member():
    assert {"x_zero_point", "upper_word_offset", "batch"} <= members(compiled((-5, -5), updatable=True))
