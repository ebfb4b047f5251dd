# SPDX-License-Identifier: Apache-2.0
"""Small models that together take nearly every kernel, for CPUs unlike those that mcugen is made for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from onnx_models import Feeds, Net, random_feeds
from onnx_tests import Compiled, cases, compile_case
from shared_models import roomy
from test_dsp_conv import Layers
from test_overlaps import ANY_TAPS, Layer, Reals
from test_streamed import Image

from mcugen.compiled import CompiledModel
from mcugen.compiler import compile_model
from mcugen.hir.types import DType
from mcugen.options import CompileOptions

TEMPLATES = Path(__file__).parents[1] / "templates" / "kernels"

# One of ONNX's own tests a kernel, the smallest.
# fmt: off
_ONNX = (
    "argmax_default_axis_example", "averagepool_2d_ceil_last_window_starts_on_pad", "bitcast_bool_to_uint8",
    "compress_bfloat16", "convinteger_without_padding", "convtranspose_1d", "concat_2d_axis_1", "cumprod_2d_int32",
    "basic_deform_conv_without_padding", "affine_grid_2d", "det_2d", "dft_irfft_opset19",
    "clip_default_int8_inbounds", "if", "edge_pad", "resize_tf_crop_and_resize_extrapolation_value",
    "constant_pad_axes", "scan9_scalar", "gathernd_example_int32", "gather_elements_0",
    "gridsample_aligncorners_true", "gru_with_initial_bias", "logsoftmax_example_1", "lstm_reverse", "matmul_1d_1d",
    "matmulinteger", "maxpool_2d_ceil_output_size_reduce_by_one", "maxpool_2d_uint8", "concat_1d_axis_0",
    "tfidfvectorizer_tf_onlybigrams_levelempty", "nonmaxsuppression_single_box", "nonzero_example",
    "instancenorm_example", "onehot_with_bfloat16_values", "lppool_2d_dilations",
    "range_bfloat16_type_positive_delta", "l1normalization_axis_0", "resize_downsample_scales_linear_antialias",
    "resize_downsample_scales_linear_half_pixel_symmetric", "resize_downsample_scales_nearest",
    "reversesequence_bfloat16", "simple_rnn_reverse", "roialign_aligned_false", "scatter_elements_with_axis",
    "scatternd_max_with_element_indices", "softmax_example", "tensorscatter", "top_k_same_values",
    "einsum_transpose_bfloat16", "ai_onnx_ml_tree_ensemble_set_membership", "tril_one_row_neg", "unique_length_1",
    "maxunpool_export_without_output_shape",
)
# fmt: on

_FLAT = Layer(2, in_c=9, out_c=5, kernel=None)
_ROW = Layer(1, in_c=24, out_c=6, kernel=None)
_DENSE = [Layer(4, 5, 3, 5, pads=(1, 1, 1, 1)), Layer(3, 3, 8, 4, (1, 1))]
_DEEP = Layer(4, 5, 8, 8, pads=(1, 1, 1, 1), group=8)
_BY_THREE = Layer(5, 5, 8, 8, pads=(1, 1, 1, 1))
_FEW = Layer(5, 5, 3, 4, pads=(1, 1, 1, 1))
M0, M3, M4, M55, C3 = "rp2040", "stm32f103", "nrf52840", "corstone300", "esp32c3"
LAYERS: dict[str, tuple[str, list[Layer]]] = {
    **{f"conv2d_{kind}": (M4, _DENSE) for kind in ("s8", "s16", "f32", "f32_fpu", "s16_dsp", "s8_dsp", "s8_dsp16")},
    **{f"dense_{kind}": (M4, [_FLAT]) for kind in ("s8", "s16", "f32", "f32_fpu")},
    **{f"dense_{kind}": (M4, [_ROW]) for kind in ("s16_dsp", "s8_dsp", "s8_dsp16", "s8_dsp_direct")},
    **{f"depthwise_{kind}": (M4, [_DEEP]) for kind in ("s8", "s16", "f32", "f32_fpu", "s8_dsp")},
    **{f"depthwise_{kind}_taps_dsp": (M4, [ANY_TAPS[4]]) for kind in ("s8", "s16")},
    **{f"conv2d_s8_winograd{kind}": (M4, [_BY_THREE]) for kind in ("", "_dsp")},
    **{
        f"conv2d_s8_winograd_fly_{kind}": (M4, [_BY_THREE])
        for kind in ("t4", "t8", "t16", "dsp_t8", "dsp_t16", "dsp_t32")
    },
    "conv2d_s8_dsp_few": (M4, [_FEW]),
    "pointwise_s8_dsp": (M4, [_DENSE[1]]),
    "conv2d_s8_thumb1": (M0, _DENSE),
    "dense_s8_thumb1": (M0, [_FLAT]),
    "conv2d_s8_thumb2": (M3, _DENSE),
    "dense_s8_thumb2": (M3, [_FLAT]),
    "depthwise_s8_3x3": (M3, [_DEEP]),
    "conv2d_s8_rv32": (C3, _DENSE),
    "depthwise_f32_mve": (M55, [_DEEP]),
    "dense_s8_mve": (M55, [_ROW]),
    "depthwise_s8_mve": (M55, [_DEEP]),
    "depthwise_s8_mve_4x4": (M55, [_DEEP]),
    "depthwise_s8_mve_8x8": (M55, [_DEEP]),
    **{f"conv2d_s8_mve{kind}": (M55, _DENSE) for kind in ("", "_8", "_inplace")},
    "conv2d_s8_mve_columns": (M55, [Layer(3, 4, 16, 4, pads=(1, 1, 1, 1))]),
}
"""By kernel: the board that has it, and layers that it computes."""


@dataclass(frozen=True)
class Portable:
    """A compiled model with inputs, and the outputs of numpy."""

    model: CompiledModel
    feeds: Feeds
    expected: Feeds

    @property
    def name(self) -> str:
        """Of the generated files."""
        return self.model.bundle.name

    @property
    def kernels(self) -> set[str]:
        """The templates of its code."""
        return {i.kernel for i in self.model.program.instrs}

    @property
    def has_doubles(self) -> bool:
        """Whether it computes in float64."""
        return any(b.dtype is DType.FLOAT64 for b in self.model.program.buffers)


@cache
def portable_models() -> list[Portable]:
    """All of them; the names of their files differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return [*_of_onnx(), *_layers(), *_quantized(), *_rows()]


def _portable(net: Net, name: str, board: str = "host", options: CompileOptions | None = None) -> Portable:
    model = net.model()
    compiled = compile_model(model, roomy(board), replace(options or CompileOptions(), name=name))
    return _with_numpy(compiled, random_feeds(model, seed=len(name)))


def _with_numpy(compiled: CompiledModel, feeds: Feeds) -> Portable:
    """Without the outputs that only tell the sizes of others."""
    sizes = {symbol.output for symbol in compiled.program.symbols}
    found = compiled.interpret(feeds)
    return Portable(compiled, feeds, {name: array for name, array in found.items() if name not in sizes})


def _of_onnx() -> Iterator[Portable]:
    wanted = {f"test_{name}" for name in _ONNX}
    for number, case in enumerate(c for c in cases(("node",)) if c.name in wanted):
        compiled = compile_case(case, number)
        assert isinstance(compiled, Compiled), compiled
        yield _with_numpy(compiled.model, compiled.sample())


def _layers() -> Iterator[Portable]:
    for kernel, (board, _) in LAYERS.items():
        yield _portable(layers_of(kernel), f"w_{kernel}", board, CompileOptions(kernels=(kernel,)))


def layers_of(kernel: str) -> Net:
    """What a kernel of LAYERS computes."""
    kind = kernel.split("_")[1]
    model = Reals() if kind == "f32" else Layers(np.int16 if kind == "s16" else np.int8)
    for number, layer in enumerate(LAYERS[kernel][1]):
        layer.add(model, f"y{number}")
    return model.net


def _quantized() -> Iterator[Portable]:
    for name, net in quantized_operators():
        yield _portable(net, name)


def quantized_operators() -> Iterator[tuple[str, Net]]:
    """Models of one operator of int8 or int16, by name."""
    for dtype in (np.int8, np.int16):
        for number, add in enumerate(_OPERATORS):
            net = Net(20)
            y = add(net, partial(_codes, net, dtype))
            net.output(net.quantize(y, *_CODES, dtype, out="y"), dtype=dtype)
            yield f"q{8 * dtype(0).itemsize}_{number}", net


def _codes(net: Net, dtype: type, index: int, *shape: int) -> str:
    """An input of codes, as reals."""
    return net.dequantize(net.input(f"x{index}", *shape, dtype=dtype), *_CODES, dtype)


_CODES = (2.0**-5, 0)
_Input = Callable[..., str]


def _weights(net: Net, *shape: int) -> str:
    return net.dequantize(net.const(np.random.default_rng(3).integers(-127, 128, shape), np.int8), 2.0**-8)


_OPERATORS: list[Callable[[Net, _Input], str]] = [
    lambda net, x: net.op("Add", x(0, 3, 7), x(1, 3, 7)),
    lambda net, x: net.op("Mul", x(0, 3, 7), x(1, 3, 7)),
    lambda net, x: net.op("PRelu", x(0, 3, 7), x(1, 3, 7)),
    lambda net, x: net.op("Max", x(0, 3, 7), x(1, 3, 1)),
    lambda net, x: net.op("Tanh", x(0, 3, 7)),
    lambda net, x: net.op("Softmax", x(0, 3, 7)),
    lambda net, x: net.op("LogSoftmax", x(0, 3, 7)),
    lambda net, x: net.op("MatMul", x(0, 3, 7), x(1, 7, 5)),
    lambda net, x: net.op("MaxPool", x(0, 1, 5, 6, 7), kernel_shape=[3, 2], pads=[1, 0, 1, 0]),
    lambda net, x: net.op("AveragePool", x(0, 1, 5, 6, 7), kernel_shape=[3, 2], strides=[2, 2]),
    lambda net, x: net.op("GlobalAveragePool", x(0, 1, 5, 6, 7)),
    lambda net, x: net.op("ReduceSum", x(0, 3, 7), net.const([1], np.int64)),
    lambda net, x: net.op("Resize", x(0, 1, 2, 3, 4), "", net.const([1, 1, 2, 1.5]), mode="linear"),
    lambda net, x: net.op("ConvTranspose", x(0, 1, 3, 4, 3), _weights(net, 3, 2, 2, 3), strides=[2, 2]),
    lambda net, x: net.op("LayerNormalization", x(0, 3, 8), net.const(np.linspace(0.5, 1.5, 8)), net.const(np.ones(8))),
    lambda net, x: net.op("Transpose", x(0, 1, 3, 4, 5), perm=[0, 2, 3, 1]),
    lambda net, x: net.op("Concat", x(0, 2, 3), x(1, 2, 5), axis=1),
]


def _rows() -> Iterator[Portable]:
    """Layers row by row, and an image that is turned where it lies."""
    for number, has_mean in enumerate((True, False)):
        image = Image(16, 6, 1)
        image = image.conv(4).conv(4, depthwise=True).conv(4) if has_mean else image.conv(6).conv(1, stride=2)
        last = image.net.op("GlobalAveragePool", image.last) if has_mean else image.last
        image.net.output(image.net.quantize(last, 0.05, 0, out="y"), dtype=np.int8)
        yield _portable(image.net, f"rows{number}", options=CompileOptions(optimize="ram"))
    net = Net()
    net.output(
        net.op("Transpose", net.input("x", 1, 3, 24, 24, dtype=np.int8), out="y", perm=[0, 2, 3, 1]), dtype=np.int8
    )
    yield _portable(net, "turned", options=CompileOptions(kernels=("transpose_inplace",)))
