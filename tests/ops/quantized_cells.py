# SPDX-License-Identifier: Apache-2.0
"""Operators between DequantizeLinear and QuantizeLinear, with results computed by arithmetic on reals.

A cell is written twice: with quantized inputs and outputs, for mcugen; and on reals, for ONNX Runtime. numpy quantizes
the real results, so that no code of mcugen computes the expected values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from onnx_models import Feeds, Net, onnxruntime_outputs

from mcugen.hir.types import Array


@dataclass(frozen=True)
class Quantization:
    """An element type with scale and zero point."""

    dtype: str
    scale: float
    zero: int

    @property
    def numpy(self) -> type:
        """Return the numpy element type for ONNX models, which pack types of 4 bits."""
        found: type = getattr(ml_dtypes, self.dtype, None) or np.dtype(self.dtype).type
        return found

    @property
    def limits(self) -> tuple[int, int]:
        """Return the least and the greatest integer."""
        info = ml_dtypes.iinfo(self.numpy)
        return int(info.min), int(info.max)

    def integers(self, random: np.random.Generator, *shape: int) -> Array:
        """Return random integers of all the type's values."""
        low, high = self.limits
        return np.asarray(random.integers(low, high + 1, shape))

    def reals(self, integers: Array) -> Array:
        """Return the real values of integers, as DequantizeLinear computes them in float32."""
        return np.asarray((integers.astype(np.int64) - self.zero).astype(np.float32) * np.float32(self.scale))

    def steps(self, reals: Array) -> Array:
        """Return the reals in steps of the scale, within the limits and before they are rounded; NaN stays."""
        return np.asarray(
            np.clip(reals.astype(np.float64) / np.float64(np.float32(self.scale)) + self.zero, *self.limits)
        )


_BASES = {"int8": (0.05, 0, 3), "uint8": (0.05, 128, 117), "int16": (4e-4, 0, 100), "uint16": (4e-4, 32768, 30000)}
_BASES |= {"int4": (0.5, 0, 1), "uint4": (0.5, 8, 6)}
"""By element type: a scale, the middle zero point, and another one."""
DTYPES = tuple(_BASES)
"""Names of the quantized element types that cells are tested with."""


def quantization(dtype: str, zero: str = "middle") -> Quantization:
    """Return the quantization of an input: a type's scale, and the zero point `middle` or `odd`."""
    scale, middle, odd = _BASES[dtype]
    return Quantization(dtype, scale, odd if zero == "odd" else middle)


def output_of(x: Quantization, change: str) -> Quantization:
    """Return the output quantization: the `same` as the input's, or another `scale`, `zero` point or `type`."""
    step = {"int4": 2, "uint4": 2, "int8": 9, "uint8": 9}.get(x.dtype, 900)
    other = {"int8": "uint8", "uint8": "int8", "int16": "int8", "uint16": "uint8", "int4": "int8", "uint4": "uint8"}
    changes: dict[str, Quantization] = {
        "same": x,
        "scale": replace(x, scale=x.scale * 1.37),
        "zero": replace(x, zero=x.zero - step),
        "type": quantization(other[x.dtype], "odd"),
        "wide": quantization("int16"),
    }
    return changes[change]


CHANGES = ("same", "scale", "zero", "type", "wide")
"""Kinds of difference between the quantization of a cell's output and that of its input (`output_of`)."""


class Cell:
    """A part of a model that tests one operator; the names of its tensors begin with the cell's name."""

    def __init__(self, net: Net, name: str, x: Quantization, y: Quantization, on_reals: bool) -> None:
        self.net, self.name, self.x, self.y, self.on_reals = net, name, x, y, on_reals
        self.inputs: dict[str, Quantization] = {}
        self.outputs: dict[str, Quantization | None] = {}
        self.random = np.random.default_rng(len(name))

    def input(self, *shape: int, of: Quantization | None = None) -> str:
        """Return a real tensor: an input, or a dequantized one."""
        of, name = of or self.x, f"{self.name}.x{len(self.inputs)}"
        self.inputs[name] = of
        if self.on_reals:
            return self.net.input(name, *shape)
        return self.net.dequantize(self.net.input(name, *shape, dtype=of.numpy), of.scale, of.zero, of.numpy)

    def codes(self, *shape: int) -> tuple[str, Callable[[str], str]]:
        """Add an input of integers, and return it with a function that dequantizes moved integers.

        The cell's type must not be a real one.
        """
        name = f"{self.name}.x{len(self.inputs)}"
        self.inputs[name] = self.x
        self.net.input(name, *shape, dtype=self.x.numpy)
        return name, lambda moved: self.net.dequantize(moved, self.x.scale, self.x.zero, self.x.numpy)

    def output(self, real: str) -> None:
        """Quantize a real tensor, and make it the output of the cell."""
        name, y = f"{self.name}.y{len(self.outputs)}", self.y
        self.outputs[name] = y
        if self.on_reals:
            self.net.output(self.net.op("Identity", real, out=name))
        else:
            self.net.output(self.net.quantize(real, y.scale, y.zero, y.numpy, out=name), dtype=y.numpy)

    def raw(self, value: str, dtype: type) -> None:
        """Make a tensor that is no real number, such as an index or a truth value, the output of the cell."""
        name = f"{self.name}.y{len(self.outputs)}"
        self.outputs[name] = None
        self.net.output(self.net.op("Identity", value, out=name), dtype=dtype)

    def op(self, op_type: str, *inputs: object, **attributes: object) -> str:
        """Add an operator; inputs that are no names are constants: lists of int are int64, all else float32."""
        names = [v if isinstance(v, str) else self._constant(v) for v in inputs]
        return self.net.op(op_type, *names, out=f"{self.name}.t{len(self.net.nodes)}", **attributes)

    def _constant(self, value: object) -> str:
        array = np.asarray(value)
        return self.net.const(array, np.int64 if array.dtype.kind == "i" else np.float32)

    def weights(self, dtype: str, *shape: int, axis: int | None = None) -> str:
        """Return constant weights with one scale, or one for each index of an axis."""
        of = quantization(dtype)
        integers = of.integers(self.random, *shape) if dtype not in ("int16", "uint16") else self._short(of, shape)
        unit = 4 / (of.limits[1] - of.limits[0]) / (30 if "16" in dtype else 1)
        scales = np.asarray(self.random.uniform(unit / 2, unit, () if axis is None else shape[axis]), np.float32)
        self.weight_scales = scales
        zeros = self.net.const(np.full(scales.shape, of.zero), of.numpy)
        attributes = {} if axis is None else {"axis": axis}
        return self.net.op(
            "DequantizeLinear", self.net.const(integers, of.numpy), self.net.const(scales), zeros, **attributes
        )

    def _short(self, of: Quantization, shape: Sequence[int]) -> Array:
        return self.random.integers(of.zero - 300, of.zero + 300, shape)

    def bias(self, kind: str, count: int) -> list[str]:
        """Return the bias operand of a layer as a list: float zeros, int32, or no operand for an empty `kind`."""
        match kind:
            case "float":
                return [self.net.const(self.random.normal(size=count))]
            case "zeros":
                return [self.net.const(np.zeros(count))]
            case "int32":
                scales = np.float32(self.x.scale) * self.weight_scales
                integers = self.net.const(self.random.integers(-999, 999, count), np.int32)
                attributes = {"axis": 0} if scales.ndim else {}
                return [self.net.op("DequantizeLinear", integers, self.net.const(scales), **attributes)]
        return []


Write = Callable[[Cell], None]
"""A function that writes the nodes of one cell."""


def single(op_type: str, *shapes: Sequence[int], after: Sequence[object] = (), **attributes: object) -> Write:
    """Return the cell of one operator on inputs of these shapes, with constants after them."""

    def write(cell: Cell) -> None:
        inputs = [cell.input(*shape) for shape in shapes]
        cell.output(cell.op(op_type, *inputs, *after, **attributes))

    return write


def several(
    op_type: str, shape: Sequence[int], count: int, after: Sequence[object] = (), **attributes: object
) -> Write:
    """Return the cell of one operator with several results, all of them quantized."""

    def write(cell: Cell) -> None:
        names = [cell._constant(v) for v in after]
        outs = [f"{cell.name}.o{i}" for i in range(count)]
        for real in cell.net.ops(op_type, cell.input(*shape), *names, outs=outs, **attributes):
            cell.output(real)

    return write


def _pads(
    value: object = None, mode: str = "constant", shape: Sequence[int] = (2, 3, 5), **more: Sequence[int]
) -> Write:
    widths = more.get("widths", [0, 1, 2, 0, 0, 1])
    return single("Pad", shape, after=[widths, *([] if value is None else [np.float32(value)])], mode=mode)


def _pad_then(op_type: str, value: float, **attributes: object) -> Write:
    def write(cell: Cell) -> None:
        padded = cell.op("Pad", cell.input(1, 3, 5, 6), [0, 0, 1, 1, 0, 0, 1, 2], np.float32(value))
        cell.output(cell.op(op_type, padded, **attributes))

    return write


def _two_scales(op_type: str, *shapes: Sequence[int], **attributes: object) -> Write:
    def write(cell: Cell) -> None:
        others = [cell.x, output_of(cell.x, "scale"), output_of(cell.x, "zero")]
        inputs = [cell.input(*shape, of=of) for shape, of in zip(shapes, others, strict=False)]
        cell.output(cell.op(op_type, *inputs, **attributes))

    return write


def _select(of: str) -> Write:
    def write(cell: Cell) -> None:
        condition = cell.net.const([[True], [False]], np.bool_)
        other = cell.input(1, 3, of=output_of(cell.x, of))
        cell.output(cell.op("Where", condition, cell.input(2, 3), other))

    return write


def _top(cell: Cell) -> None:
    values, positions = cell.net.ops(
        "TopK", cell.input(3, 6), cell._constant([3]), outs=[f"{cell.name}.values", f"{cell.name}.positions"]
    )
    cell.output(values)
    cell.raw(positions, np.int64)


def _best(op_type: str, **attributes: object) -> Write:
    return lambda cell: cell.raw(cell.op(op_type, cell.input(3, 6), **attributes), np.int64)


def _moved_twice(cell: Cell) -> None:
    first = cell.op("Transpose", cell.input(1, 4, 5, 3), perm=[0, 3, 1, 2])
    padded = cell.op("Pad", first, [0, 0, 1, 1, 0, 0, 1, 1], np.float32(0.7))
    cell.output(cell.op("Transpose", padded, perm=[0, 2, 3, 1]))


def _two_readers(cell: Cell) -> None:
    x = cell.input(2, 3, 4)
    rows = cell.op("Reshape", x, [6, 4])
    cell.output(rows)
    cell.output(cell.op("Pad", rows, [1, 0, 0, 1]))
    cell.output(cell.op("Relu", x))


MOVEMENTS: Mapping[str, Write] = {
    "reshape": single("Reshape", (2, 3, 4), after=[[4, 6]]),
    "flatten": single("Flatten", (2, 3, 4)),
    "squeeze": single("Squeeze", (2, 1, 4), after=[[1]]),
    "unsqueeze": single("Unsqueeze", (2, 4), after=[[0, 2]]),
    "identity": single("Identity", (5,)),
    "transpose": single("Transpose", (2, 3, 4, 5), perm=[0, 3, 1, 2]),
    "transpose_matrix": single("Transpose", (5, 7)),
    "slice": single("Slice", (2, 6, 9), after=[[1, 2], [6, 9], [1, 2], [2, 3]]),
    "slice_backwards": single("Slice", (12,), after=[[-1], [-20], [0], [-2]]),
    "gather": single("Gather", (2, 5, 4), after=[[3, -1, 0]], axis=1),
    "gather_elements": single("GatherElements", (3, 4), after=[[[0, 1, 2, 0], [2, 2, 1, 1]]], axis=0),
    "gather_nd": single("GatherND", (3, 4, 2), after=[[[0, 1], [2, 3]]]),
    "expand": single("Expand", (2, 1, 4), after=[[3, 2, 5, 4]]),
    "tile": single("Tile", (2, 3), after=[[2, 3]]),
    "depth_to_space": single("DepthToSpace", (2, 8, 3, 2), blocksize=2, mode="CRD"),
    "space_to_depth": single("SpaceToDepth", (2, 3, 4, 6), blocksize=2),
    "split": several("Split", (2, 5, 3), 2, after=[[2, 3]], axis=1),
    "pad": _pads(),
    "pad_zero": _pads(0),
    "pad_value": _pads(0.7311),
    "pad_negative": _pads(-0.7311),
    "pad_above": _pads(1e6),
    "pad_below": _pads(-1e6),
    "pad_lowest": _pads(-np.inf),
    "pad_one_axis": _pads(1, shape=(4,), widths=[2, 1]),
    "pad_five_axes": _pads(1.1, shape=(1, 2, 2, 3, 2), widths=[0, 0, 1, 2, 0, 0, 0, 2, 1, 1]),
    "pad_crops": _pads(0.7, widths=[0, -1, 1, 0, 1, -2]),
    "pad_edge": _pads(mode="edge"),
    "pad_reflect": _pads(mode="reflect", widths=[0, 1, 2, 0, -1, 2]),
    "pad_wrap": _pads(mode="wrap"),
    "pad_between_transposes": _moved_twice,
    "pad_then_pool": _pad_then("MaxPool", -5, kernel_shape=[3, 3], strides=[2, 2]),
    "two_readers": _two_readers,
    "concat": single("Concat", (2, 3), (2, 4), axis=1),
    "concat_scales": _two_scales("Concat", (2, 3), (2, 4), (2, 1), axis=1),
    "where": _select("same"),
    "where_scales": _select("scale"),
    "resize_nearest": single("Resize", (1, 2, 3, 4), after=["", [1.0, 1, 2, 2]], mode="nearest"),
    "reverse": single("ReverseSequence", (4, 3), after=[[4, 2, 3]], batch_axis=1, time_axis=0),
    "crop_or_pad": single("CenterCropPad", (5, 4), after=[[7, 3]]),
    "trilu": single("Trilu", (2, 4, 4)),
    "top_k": _top,
    "arg_max": _best("ArgMax", axis=1),
    "arg_min": _best("ArgMin", axis=0, select_last_index=1),
    "max_pool": single("MaxPool", (2, 3, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    "max_pool_padded": single("MaxPool", (2, 9, 5, 6), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max_pool_ceil": single("MaxPool", (1, 3, 6, 7), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
    "max_pool_dilated": single("MaxPool", (1, 2, 7, 7), kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 0, 1, 0]),
    "max_pool_line": single("MaxPool", (2, 3, 7), kernel_shape=[3], strides=[2], pads=[1, 1]),
    "max_pool_volume": single("MaxPool", (1, 2, 4, 4, 4), kernel_shape=[2, 2, 2], pads=[1, 0, 0, 0, 0, 1]),
    "global_max_pool": single("GlobalMaxPool", (2, 3, 4, 5)),
    "reduce_max": single("ReduceMax", (2, 3, 4), after=[[1]]),
    "reduce_max_all": single("ReduceMax", (2, 3, 4), keepdims=0),
    "reduce_min": single("ReduceMin", (2, 3, 4), after=[[0, 2]], keepdims=0),
    "max": single("Max", (2, 3), (2, 3)),
    "min_of_three": single("Min", (2, 3), (1, 3), (2, 1)),
    "relu": single("Relu", (2, 3, 4)),
    "clip": single("Clip", (2, 3, 4), after=[np.float32(0), np.float32(1.1)]),
}
"""Cells whose results are elements of an input or constants: exact if the scale stays."""


def product(layer: str, dtype: str, bias: str, axis: int | None) -> Write:
    """Return the cell of a layer with weights."""

    def write(cell: Cell) -> None:
        match layer:
            case "conv":
                x, w = cell.input(2, 3, 5, 6), cell.weights(dtype, 4, 3, 3, 3, axis=axis)
                cell.output(cell.op("Conv", x, w, *cell.bias(bias, 4), pads=[1, 1, 0, 1], strides=[1, 2]))
            case "depthwise":
                x, w = cell.input(2, 4, 5, 6), cell.weights(dtype, 4, 1, 3, 3, axis=axis)
                cell.output(cell.op("Conv", x, w, *cell.bias(bias, 4), pads=[1, 1, 1, 1], group=4))
            case "convtranspose":
                x, w = cell.input(2, 3, 4, 4), cell.weights(dtype, 3, 4, 3, 3, axis=None if axis is None else 1)
                cell.output(cell.op("ConvTranspose", x, w, *cell.bias(bias, 4), strides=[2, 2], pads=[1, 1, 0, 0]))
            case "gemm":
                x, w = cell.input(2, 7), cell.weights(dtype, 5, 7, axis=axis)
                cell.output(cell.op("Relu", cell.op("Gemm", x, w, *cell.bias(bias, 5), transB=1)))
            case "matmul":
                x, w = cell.input(2, 3, 7), cell.weights(dtype, 7, 5, axis=None if axis is None else 1)
                product = cell.op("MatMul", x, w)
                cell.output(cell.op("Add", product, *cell.bias(bias, 5)) if bias else product)

    return write


def _products() -> dict[str, Write]:
    """Return layers with weights of all types, whose biases and numbers of scales take turns."""
    turns = [("", None), ("float", 0), ("zeros", None), ("int32", 0), ("int32", None), ("", 0), ("float", None)]
    found: dict[str, Write] = {}
    for layer in ("conv", "depthwise", "convtranspose", "gemm", "matmul"):
        for dtype in DTYPES:
            bias, axis = turns[len(found) % len(turns)]
            name = f"{layer}_{dtype}_{bias or 'no'}_bias_per_{'tensor' if axis is None else 'channel'}"
            found[name] = product(layer, dtype, bias, axis)
    return found


def _cell_of(op_type: str) -> Write:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]

    def write(cell: Cell) -> None:
        w, r = cell.weights("int8", 1, gates * 4, 3), cell.weights("int8", 1, gates * 4, 4)
        outs = [f"{cell.name}.all", f"{cell.name}.last"]
        for real in cell.net.ops(op_type, cell.input(5, 2, 3), w, r, outs=outs, hidden_size=4):
            cell.output(real)

    return write


_FUNCTIONS = ("Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Softplus", "Exp", "Abs", "Neg", "Erf")
_FUNCTIONS += ("Gelu", "Mish", "Floor", "Round", "Sign", "Sqrt", "Reciprocal", "Sin")
_PADDED = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
_CHANNELS = np.linspace(0.3, 1, 3, dtype=np.float32).reshape(3, 1)

CALCULATIONS: Mapping[str, Write] = {
    **{name.lower(): single(name, (2, 3, 4), (2, 3, 4)) for name in ("Add", "Sub", "Mul", "Div")},
    **{f"{name.lower()}_scales": _two_scales(name, (2, 3, 4), (3, 1)) for name in ("Add", "Sub", "Mul", "Div", "Max")},
    **{f"{name.lower()}_constant": single(name, (2, 3), after=[np.float32(0.37)]) for name in ("Add", "Mul", "Pow")},
    **{f"{name.lower()}_channels": single(name, (2, 3, 4), after=[_CHANNELS]) for name in ("Add", "Sub", "Mul", "Div")},
    **{name.lower(): single(name, (2, 3, 4)) for name in _FUNCTIONS},
    "prelu": single("PRelu", (2, 3, 4), after=[_CHANNELS]),
    "prelu_computed": single("PRelu", (2, 3, 4), (3, 1)),
    "sum": single("Sum", (2, 3), (2, 3), (2, 3)),
    "tanh_five_axes": single("Tanh", (1, 2, 1, 2, 3)),
    "softmax": single("Softmax", (2, 3, 5)),
    "softmax_channels": single("Softmax", (1, 4, 2, 3), axis=1),
    "log_softmax": single("LogSoftmax", (2, 5)),
    "average_pool": single("AveragePool", (2, 3, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    "average_pool_padded": single("AveragePool", (1, 3, 5, 6), **_PADDED),
    "average_pool_counts_padding": single("AveragePool", (2, 3, 5, 6), count_include_pad=1, **_PADDED),
    "average_pool_ceil": single("AveragePool", (1, 3, 6, 6), ceil_mode=1, count_include_pad=1, **_PADDED),
    "average_pool_line": single("AveragePool", (2, 3, 7), kernel_shape=[3], strides=[2], pads=[1, 1]),
    "average_pool_volume": single("AveragePool", (1, 2, 4, 4, 4), kernel_shape=[2, 2, 2]),
    "global_average_pool": single("GlobalAveragePool", (2, 5, 4, 3)),
    "pad_then_average_pool": _pad_then("AveragePool", 0, kernel_shape=[3, 3], strides=[2, 2]),
    "reduce_mean": single("ReduceMean", (2, 3, 4), after=[[1]]),
    "reduce_mean_all": single("ReduceMean", (2, 3, 4), keepdims=0),
    "reduce_sum": single("ReduceSum", (2, 3, 4), after=[[-1]]),
    "reduce_l2": single("ReduceL2", (2, 3, 4), after=[[0]]),
    "cumulative_sum": single("CumSum", (2, 5), after=[np.int64(1)]),
    "resize_linear": single("Resize", (1, 2, 3, 4), after=["", [1.0, 1, 2, 2]], mode="linear"),
    "resize_cubic": single("Resize", (1, 2, 4, 4), after=["", [1.0, 1, 2, 2]], mode="cubic"),
    "resize_line": single("Resize", (1, 2, 5), after=["", [1.0, 1, 3]], mode="linear"),
    "layer_normalization": single("LayerNormalization", (2, 3, 8), after=[np.linspace(0.5, 1, 8), np.zeros(8)]),
    "matmul_computed": single("MatMul", (2, 3, 7), (2, 7, 4)),
    "conv_computed": single("Conv", (1, 2, 5, 5), (3, 2, 3, 3)),
    **{op_type.lower(): _cell_of(op_type) for op_type in ("LSTM", "GRU", "RNN")},
    **_products(),
}
"""Cells whose results are rounded: within one step of the output's scale."""


@dataclass(frozen=True)
class Expected:
    """The result of a cell in steps of the output's scale (None: any type, exact)."""

    quantization: Quantization | None
    steps: Array

    def assert_met(self, found: Array, name: str, exactly: bool = False) -> None:
        """Check that each element is within one step of the expected one; NaN may be anything.

        Args:
            found: The integers that were computed.
            name: Name of the cell, for messages.
            exactly: Whether each element must be the rounded expected result.
        """
        assert found.shape == self.steps.shape, name
        if self.quantization is None:
            np.testing.assert_array_equal(found, self.steps, err_msg=name)
            return
        known = ~np.isnan(self.steps)
        wanted = np.rint(self.steps[known]) if exactly else self.steps[known]
        np.testing.assert_allclose(
            found[known].astype(np.float64), wanted, rtol=0, atol=0 if exactly else 1, err_msg=name
        )


class Matrix:
    """A model of all cells for one input and one output quantization, with random inputs and expected results."""

    def __init__(self, cells: Mapping[str, Write], x: Quantization, y: Quantization, seed: int = 0) -> None:
        nets = Net(21), Net(21)
        self.cells: dict[str, Cell] = {}
        for name, write in cells.items():
            for net, on_reals in zip(nets, (False, True), strict=True):
                cell = Cell(net, name, x, y, on_reals)
                write(cell)
                self.cells[name] = cell
        self.model, self._reals = (net.model() for net in nets)
        random = np.random.default_rng(seed)
        sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in self.model.graph.input}
        inputs = {name: of for cell in self.cells.values() for name, of in cell.inputs.items()}
        self._integers = {name: of.integers(random, *sizes[name]) for name, of in inputs.items()}
        self._inputs = inputs

    @property
    def feeds(self) -> Feeds:
        """Return the inputs as the generated code takes them: 4-bit integers have a byte each."""
        return {name: self._integers[name].astype(of.dtype.replace("t4", "t8")) for name, of in self._inputs.items()}

    def expected(self) -> dict[str, Expected]:
        """Compute the cells on reals by ONNX Runtime."""
        reals = {name: of.reals(self._integers[name]) for name, of in self._inputs.items()}
        found = onnxruntime_outputs(self._reals, reals)
        outputs = {name: of for cell in self.cells.values() for name, of in cell.outputs.items()}
        return {
            name: Expected(of, found[name] if of is None else of.steps(found[name])) for name, of in outputs.items()
        }
