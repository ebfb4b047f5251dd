# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's LSTM: arm_lstm_unidirectional_s8 for a loop whose body is one step of a quantized LSTM.

The library computes what the loop does (recurrent.py), in other units: sums of gates are multiples of 2^-12
and end at ±8, their functions are lines between 256 entries of a table. A step gives our hidden states or the codes
beside them, and cells at most 5 of their 2^16 codes away. As steps go on from there, a layer may be farther off: of 20
random ones over 50 to 200 steps 10 within one code, 19 within 3, one 6 codes where its states grow by feeding
themselves. To the float layer, they were as near as ours: within 0.3 dB but for two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, cast

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.kernels.cmsis_nn.common import MOST_RESULT, MOST_SHIFTED, SCRATCH, Scratch, library_kernel
from mcugen.kernels.cmsis_nn.curves import sigmoid, tanh
from mcugen.lir.kernel import Call, Kernel, Params, Site, Trained, reads, writes
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import Requantizer

SUMS = QuantParams((2.0**-12,), 0)
"""Quantization of the library's gate sums."""

COARSEST_SUMS = 2.0**-11
"""Our sums' scale where ±8 was seen: quantization leaves a factor of 2 (mcugen.quantization.recurrent.HEADROOM)."""

LEAST_FACTOR = 200
"""Least multiplier of a hidden state, which has few bits: its rounding is then at most a quarter of a step."""


class _Walk(Protocol):
    @property
    def axis(self) -> int: ...
    @property
    def backwards(self) -> bool: ...


class _Loop(Protocol):
    """The fields of a loop operator that are read here."""

    steps: int
    taken: tuple[_Walk, ...]
    stacked: tuple[_Walk, ...]

    def lstm(self) -> LstmStep | None: ...


@dataclass(frozen=True)
class LstmStep:
    """Layers of four gates each that read the input and the hidden state; both states as the step gets them."""

    inner: Node
    recurrent: Node
    hidden: Value
    cell: Value

    @property
    def size(self) -> int:
        """Return the size of the hidden state."""
        return self.hidden.type.shape[-1]


def _step(node: Node) -> LstmStep | None:
    return cast("_Loop", node.op).lstm()


# --------------------------------------------------------------------------------------------- the library's units


@dataclass(frozen=True)
class Numbers:
    """The library's parameters by gate: multipliers and shifts of x and h [4, 4], biases minus zero points [4H]."""

    scales: Array
    inner_bias: Array
    recurrent_bias: Array
    fraction: int
    """Fractional bits of a cell state."""
    factor: int
    """From products of two results of functions to hidden states, with 31 bits of fraction."""

    @staticmethod
    def of(cell: LstmStep) -> Numbers:
        """Return the parameters of an LSTM step."""
        columns = []
        for layer in (cell.inner, cell.recurrent):
            scales = layer.sig.input(0).q.scales * _by_gate(layer)[:, 0] / SUMS.scales
            requantizers = [Requantizer.of(scale, 0) for scale in scales]
            columns += [[int(r.multiplier[0]) for r in requantizers], [31 - r.shift for r in requantizers]]
        return Numbers(
            np.asarray(columns, np.int32).T,
            spec_of(cell.inner).folded_bias.astype(np.int32),
            spec_of(cell.recurrent).folded_bias.astype(np.int32),
            round(-np.log2(cell.cell.type.q.scale[0])),
            round(2 / cell.hidden.type.q.scale[0]),
        )


def _by_gate(layer: Node) -> Array:
    """Scales of weights [4, H]."""
    return np.broadcast_to(layer.sig.input(1).q.scales, len(spec_of(layer).weights)).reshape(4, -1)


def is_lstm(node: Node) -> bool:
    """Require a loop over steps of an LSTM in int8, from states of 0."""
    cell = _step(node)
    if cell is None:
        return False
    h, c = (v.data if v is not None else None for v in node.inputs[:2])
    from_zero = h is not None and c is not None and bool((h == cell.hidden.type.q.zero_point).all()) and not c.any()
    bias = cell.recurrent.inputs[2]
    return from_zero and bias is not None and bias.data is not None and not bias.data.any()


def has_scales_by_gate(node: Node) -> bool:
    """Require int8 weights, one scale for all of a gate."""
    cell = _step(node)
    layers = () if cell is None else (cell.inner, cell.recurrent)
    return all(spec_of(n).weights.dtype == np.int8 and not np.ptp(_by_gate(n), axis=1).any() for n in layers)


def fits_units(node: Node) -> bool:
    """Require sums within 8, a cell's scale a power of two."""
    cell = _step(node)
    if cell is None or cell.inner.output.type.q.scale[0] > COARSEST_SUMS:
        return False
    numbers, scale = Numbers.of(cell), cell.cell.type.q.scale[0]
    if scale != 2.0**-numbers.fraction or not -1 <= numbers.fraction <= 24 or numbers.factor < LEAST_FACTOR:
        return False
    return all(
        int(max_sum) << int(shift) < MOST_SHIFTED and int(max_sum) * int(multiplier) >> (31 - int(shift)) < MOST_RESULT
        for column, layer in ((0, cell.inner), (2, cell.recurrent))
        for (multiplier, shift), max_sum in zip(
            numbers.scales[:, column : column + 2], spec_of(layer).largest_sums.reshape(4, -1).max(1), strict=True
        )
    )


# --------------------------------------------------------------------------------------------- the library's result


def evaluate(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Step by step, to the last bit what the library gives."""
    loop, cell = cast("_Loop", node.op), _step(node)
    assert cell is not None
    numbers, axis = Numbers.of(cell), loop.taken[0].axis
    w, r = (spec_of(layer).weights.astype(np.int64) for layer in (cell.inner, cell.recurrent))
    h, c, x = (a.astype(np.int64) for a in arrays)
    rows = []
    scales = numbers.scales.astype(np.int64).repeat(cell.size, axis=0).T
    for step in range(loop.steps):
        sums = _scaled(x.take(step, axis) @ w.T + numbers.inner_bias, scales[0], scales[1])
        sums = _int16(_int16(sums) + _scaled(h @ r.T + numbers.recurrent_bias, scales[2], scales[3]))
        i, o, f, g = np.split(sums, 4, axis=-1)
        c = _int16(_scaled(sigmoid(f, 0) * c, 1 << 16))
        c = np.clip(c + _scaled(sigmoid(i, 0) * tanh(g, 0), 1 << (numbers.fraction + 1)), -32767, 32767)
        h = _scaled(sigmoid(o, 0) * tanh(c, 12 - numbers.fraction), numbers.factor) + cell.hidden.type.q.zero_point
        h = np.clip(h, -128, 127)
        rows.append(h)
    return (h, c, np.stack(rows, axis)) if loop.stacked else (h, c)


def _scaled(v: Array, multiplier: Array | int, left: Array | int = 0) -> Array:
    scaled: Array = ((v << left) * multiplier + (1 << 30)) >> 31
    return scaled


def _int16(v: Array) -> Array:
    return np.clip(v, -32768, 32767)


# --------------------------------------------------------------------------------------------- the call


@dataclass(frozen=True, kw_only=True)
class LstmParams(Params):
    """Sizes and units."""

    time_major: Annotated[int, "1 if steps come before sequences in x and y"]
    batch: Annotated[int, "sequences"]
    steps: Annotated[int, "steps of a sequence"]
    input_size: Annotated[int, "elements of a step of x"]
    hidden_size: Annotated[int, "elements of a hidden state"]
    cell_fraction_bits: Annotated[Trained, "fraction bits of a cell state"]
    hidden_multiplier: Annotated[Trained, "scale of a product of two activations / scale of hidden states, Q0.31"]
    x_zero_point: Annotated[Trained, "zero point of x"]
    h_zero_point: Annotated[Trained, "zero point of hidden states"]


def emit(node: Node, site: Site) -> Call:
    """Weights and biases as they are, gates one after the other; the last cell is where the library keeps it."""
    loop, cell = cast("_Loop", node.op), _step(node)
    assert cell is not None
    numbers, x, batch = Numbers.of(cell), cell.inner.sig.input(0), cell.hidden.type.shape[0]
    params = LstmParams(
        time_major=int(loop.taken[0].axis == 0),
        batch=batch,
        steps=loop.steps,
        input_size=x.shape[-1],
        hidden_size=cell.size,
        cell_fraction_bits=numbers.fraction,
        hidden_multiplier=numbers.factor,
        x_zero_point=x.q.zero_point,
        h_zero_point=cell.hidden.type.q.zero_point,
    )
    size = 4 * batch * cell.size
    operands = {
        "x": site.input(2),
        "w": site.const("w", spec_of(cell.inner).weights),
        "r": site.const("r", spec_of(cell.recurrent).weights),
        "w_bias": site.const("w_bias", numbers.inner_bias),
        "r_bias": site.const("r_bias", numbers.recurrent_bias),
        "scales": site.const("scales", numbers.scales),
        **{role: site.output(index) for index, role in enumerate(("h", "c"))},
        "y": site.output(2) if loop.stacked else site.scratch("every", DType.INT8, loop.steps * batch * cell.size),
        "scratch": site.scratch("scratch", DType.INT8, size),
    }
    return site.call(operands, [params, Scratch(scratch_bytes=size)])


CMSIS_LSTM: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_lstm_s8",
        what="a loop over steps of an LSTM in int8, from states of 0: arm_lstm_unidirectional_s8",
        operands=(
            reads("x", "sequences", DType.INT8),
            reads("w", "weights of x by gate: input, output, forget, cell", DType.INT8),
            reads("r", "weights of the hidden state by gate", DType.INT8),
            reads("w_bias", "biases of the products with x, less its zero point's", DType.INT32),
            reads("r_bias", "biases of the products with h, less its zero point's", DType.INT32),
            reads("scales", "by gate, multiplier and shift of both products", DType.INT32),
            writes("h", "last hidden states", DType.INT8),
            writes("c", "last cells", DType.INT16),
            writes("y", "hidden states of all steps", DType.INT8),
            SCRATCH,
        ),
        params=(LstmParams, Scratch),
        when=(is_lstm, has_scales_by_gate, fits_units),
        emit=emit,
        evaluate=evaluate,
    ),
)
"""Kernels of loops. Their specification is the node, whose body holds everything."""
