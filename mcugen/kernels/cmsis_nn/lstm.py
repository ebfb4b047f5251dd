# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's LSTM: arm_lstm_unidirectional_s8 for a loop whose body is one step of a quantized LSTM.

The library computes the same step as mcugen (recurrent.py) in other units: gate sums are multiples of 2^-12 and
saturate at ±8, and their functions interpolate a table of 256 entries. After one step, hidden states differ from
mcugen's by at most one quantization step, and cell states (int16) by at most 5 steps. Differences can grow over a
sequence: of 20 random layers over 50 to 200 steps, 10 stayed within one step, 19 within 3, and one differed by 6. Their
error relative to the float layer was the same within 0.3 dB, but for two layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.kernels.cmsis_nn.common import RESULT_LIMIT, SCRATCH, SHIFTED_SUM_LIMIT, Scratch, library_kernel
from mcugen.kernels.cmsis_nn.curves import sigmoid, tanh
from mcugen.kernels.common.lstm_loop import LstmLoopSpec
from mcugen.kernels.common.specs import WeightedSpec
from mcugen.lir.kernel import Call, Kernel, Params, Site, Trained, reads, writes
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import Requantizer

GATE_SUM_QUANT = QuantParams((2.0**-12,), 0)
"""Quantization of the sums from which the library computes gates: scale 2⁻¹², zero point 0."""

MAX_GATE_SUM_SCALE = 2.0**-11
"""Largest scale of mcugen's gate sums for which the library's range of ±8 covers all sums that calibration saw:
mcugen's quantization leaves a factor of 2 (mcugen.quantization.recurrent.HEADROOM)."""

MIN_HIDDEN_MULTIPLIER = 200
"""Smallest multiplier of a hidden state: with fewer bits, its rounding would exceed a quarter of a quantization
step."""


# --------------------------------------------------------------------------------------------- the library's units


@dataclass(frozen=True)
class LibraryUnits:
    """The fixed-point parameters of an LSTM step, in CMSIS-NN's formats.

    Attributes:
        scales: Multiplier and left shift of the products with x, then with h, for each gate: int32 [4 gates, 4].
        inner_bias: Biases of the products with x, with x's zero point folded in: int32 [4 · hidden size].
        recurrent_bias: Biases of the products with h, with h's zero point folded in: int32 [4 · hidden size].
        fraction: Number of fraction bits of a cell state (int16).
        factor: Requantization multiplier, Q0.31, of output gate · tanh(cell state), which is the hidden state.
    """

    scales: Array
    inner_bias: Array
    recurrent_bias: Array
    fraction: int
    factor: int

    @staticmethod
    def of(loop: LstmLoopSpec) -> LibraryUnits:
        """Return the fixed-point parameters with which CMSIS-NN computes an LSTM."""
        columns = []
        for layer in (loop.inner, loop.recurrent):
            scales = layer.x.q.scales * _by_gate(layer)[:, 0] / GATE_SUM_QUANT.scales
            requantizers = [Requantizer.of(scale, 0) for scale in scales]
            columns += [[int(r.multiplier[0]) for r in requantizers], [31 - r.shift for r in requantizers]]
        return LibraryUnits(
            np.asarray(columns, np.int32).T,
            loop.inner.folded_bias.astype(np.int32),
            loop.recurrent.folded_bias.astype(np.int32),
            round(-np.log2(loop.cell.q.scale[0])),
            round(2 / loop.hidden.q.scale[0]),
        )


def _by_gate(layer: WeightedSpec) -> Array:
    """Scales of weights [4, H]."""
    return np.broadcast_to(layer.w.q.scales, layer.channels).reshape(4, -1)


def is_lstm(loop: LstmLoopSpec) -> bool:
    """Require a loop over steps of an LSTM in int8, from states of 0.

    Return whether the layer meets this condition of a kernel: hidden and cell state are 0 before the first step.
    """
    bias = loop.recurrent.bias
    return loop.starts_from_zero and bias is not None and not bias.any()


def has_scales_by_gate(loop: LstmLoopSpec) -> bool:
    """Require int8 weights with one scale for all weights of a gate.

    Return whether the layer meets this condition of a kernel.
    """
    layers = (loop.inner, loop.recurrent)
    return all(n.weights.dtype == np.int8 and not np.ptp(_by_gate(n), axis=1).any() for n in layers)


def fits_library_units(loop: LstmLoopSpec) -> bool:
    """Require that gate sums are within ±8, and that the scale of cell states is a power of two.

    Return whether the layer meets this condition of a kernel: CMSIS-NN's fixed-point formats need both. A gate sum is
    the argument of a gate's sigmoid or tanh.
    """
    if loop.inner.y.q.scale[0] > MAX_GATE_SUM_SCALE:
        return False
    numbers, scale = LibraryUnits.of(loop), loop.cell.q.scale[0]
    if scale != 2.0**-numbers.fraction or not -1 <= numbers.fraction <= 24 or numbers.factor < MIN_HIDDEN_MULTIPLIER:
        return False
    return all(
        int(max_sum) << int(shift) < SHIFTED_SUM_LIMIT
        and int(max_sum) * int(multiplier) >> (31 - int(shift)) < RESULT_LIMIT
        for column, layer in ((0, loop.inner), (2, loop.recurrent))
        for (multiplier, shift), max_sum in zip(
            numbers.scales[:, column : column + 2], layer.largest_sums.reshape(4, -1).max(1), strict=True
        )
    )


# --------------------------------------------------------------------------------------------- the library's result


def evaluate(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the outputs of an LSTM loop, bit by bit as CMSIS-NN computes them."""
    loop: LstmLoopSpec = spec_of(node)
    numbers = LibraryUnits.of(loop)
    w, r = (layer.weights.astype(np.int64) for layer in (loop.inner, loop.recurrent))
    h, c, x = (a.astype(np.int64) for a in arrays)
    rows = []
    scales = numbers.scales.astype(np.int64).repeat(loop.size, axis=0).T
    for step in range(loop.steps):
        sums = _scaled(x.take(step, loop.axis) @ w.T + numbers.inner_bias, scales[0], scales[1])
        sums = _int16(_int16(sums) + _scaled(h @ r.T + numbers.recurrent_bias, scales[2], scales[3]))
        i, o, f, g = np.split(sums, 4, axis=-1)
        c = _int16(_scaled(sigmoid(f, 0) * c, 1 << 16))
        c = np.clip(c + _scaled(sigmoid(i, 0) * tanh(g, 0), 1 << (numbers.fraction + 1)), -32767, 32767)
        h = _scaled(sigmoid(o, 0) * tanh(c, 12 - numbers.fraction), numbers.factor) + loop.hidden.q.zero_point
        h = np.clip(h, -128, 127)
        rows.append(h)
    return (h, c, np.stack(rows, loop.axis)) if loop.is_stacked else (h, c)


def _scaled(v: Array, multiplier: Array | int, left: Array | int = 0) -> Array:
    scaled: Array = ((v << left) * multiplier + (1 << 30)) >> 31
    return scaled


def _int16(v: Array) -> Array:
    return np.clip(v, -32768, 32767)


# --------------------------------------------------------------------------------------------- the call


class LstmParams(Params):
    """Kernel parameters of a loop over the steps of an LSTM: sizes, fixed-point scales and zero points."""

    time_major: Annotated[int, "1 if steps come before sequences in x and y"]
    batch: Annotated[int, "sequences"]
    steps: Annotated[int, "steps of a sequence"]
    input_size: Annotated[int, "elements of a step of x"]
    hidden_size: Annotated[int, "elements of a hidden state"]
    cell_fraction_bits: Annotated[Trained, "fraction bits of a cell state"]
    hidden_multiplier: Annotated[Trained, "scale of a product of two activations / scale of hidden states, Q0.31"]
    x_zero_point: Annotated[Trained, "zero point of x"]
    h_zero_point: Annotated[Trained, "zero point of hidden states"]


def emit(loop: LstmLoopSpec, site: Site) -> Call:
    """Emit the CMSIS-NN call that computes a loop over the steps of an LSTM.

    Weights and biases are passed gate by gate. CMSIS-NN updates the cell state in place, in the output of the loop.
    """
    numbers, x = LibraryUnits.of(loop), loop.inner.x
    params = LstmParams(
        time_major=int(loop.axis == 0),
        batch=loop.batch,
        steps=loop.steps,
        input_size=x.shape[-1],
        hidden_size=loop.size,
        cell_fraction_bits=numbers.fraction,
        hidden_multiplier=numbers.factor,
        x_zero_point=x.q.zero_point,
        h_zero_point=loop.hidden.q.zero_point,
    )
    size = 4 * loop.batch * loop.size
    hidden_states = loop.steps * loop.batch * loop.size
    operands = {
        "x": site.input(2),
        "w": site.const("w", loop.inner.weights),
        "r": site.const("r", loop.recurrent.weights),
        "w_bias": site.const("w_bias", numbers.inner_bias),
        "r_bias": site.const("r_bias", numbers.recurrent_bias),
        "scales": site.const("scales", numbers.scales),
        **{role: site.output(index) for index, role in enumerate(("h", "c"))},
        "y": site.output(2) if loop.is_stacked else site.scratch("every", DType.INT8, hidden_states),
        "scratch": site.scratch("scratch", DType.INT8, size),
    }
    return site.call(operands, [params, Scratch(scratch_bytes=size)])


CMSIS_LSTM: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_lstm_s8",
        what="a loop over steps of an int8 LSTM whose states start at 0: arm_lstm_unidirectional_s8",
        operands=(
            reads("x", "sequences", DType.INT8),
            reads("w", "weights of x by gate: input, output, forget, cell", DType.INT8),
            reads("r", "weights of the hidden state by gate", DType.INT8),
            reads("w_bias", "biases of the products with x, with its zero point folded in", DType.INT32),
            reads("r_bias", "biases of the products with h, with its zero point folded in", DType.INT32),
            reads("scales", "by gate, multiplier and shift of both products", DType.INT32),
            writes("h", "last hidden states", DType.INT8),
            writes("c", "last cells", DType.INT16),
            writes("y", "hidden states of all steps", DType.INT8),
            SCRATCH,
        ),
        params=(LstmParams, Scratch),
        when=(is_lstm, has_scales_by_gate, fits_library_units),
        emit=emit,
        evaluate=evaluate,
    ),
)
"""CMSIS-NN's kernels of loops: a single one, which computes all steps of an int8 LSTM."""
