# SPDX-License-Identifier: Apache-2.0
"""Kernels of recurrent layers: one call per direction; each call writes its part of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.weighted_layers import interleave
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, ExpressionParams, Kernel, Options, Params, Real, Role, reads, scratch, writes
from mcugen.lir.program import Access, Buffer, Overlap
from mcugen.lir.traversal import Traversal, nested_positions, overlap

# ------------------------------------------------------------------------------------------------- sizes


@dataclass(frozen=True)
class RecurrentSizes:
    """Sizes of a recurrent layer, and strides of its tensors X, Y and states in elements.

    Attributes:
        steps: Number of time steps of the longest sequence.
        batch: Number of sequences in a batch.
        depth: Number of elements of x at one step of a sequence.
        hidden: Number of elements of a hidden state.
        directions: Number of directions: 1 or 2.
        batch_first: Whether the first axis of x, y and states is the sequence (ONNX layout 1), else the step or
            direction.
    """

    steps: int
    batch: int
    depth: int
    hidden: int
    directions: int
    batch_first: bool

    @property
    def y_shape(self) -> Shape:
        """Return the shape of Y, the hidden states of all steps.

        It is [steps, directions, batch, hidden], or [batch, steps, directions, hidden] if sequences come first (layout
        1).
        """
        outer = (self.steps, self.directions, self.batch)
        return (*((self.batch, self.steps, self.directions) if self.batch_first else outer), self.hidden)

    @property
    def state_shape(self) -> Shape:
        """Return the shape of the tensors of initial and final states, h and c.

        It is [directions, batch, hidden], or [batch, directions, hidden] if sequences come first (ONNX layout 1).
        """
        return (*((self.batch, self.directions) if self.batch_first else (self.directions, self.batch)), self.hidden)

    @property
    def x_strides(self) -> tuple[int, int]:
        """Return two distances in X, in elements: from sequence to sequence, and from time step to time step."""
        batch, step = (self.steps, 1) if self.batch_first else (1, self.batch)
        return batch * self.depth, step * self.depth

    @property
    def y_strides(self) -> tuple[int, int]:
        """Return two distances in Y, in elements: from sequence to sequence, and from time step to time step."""
        batch, step = (self.steps * self.directions, self.directions)
        if not self.batch_first:
            batch, step = 1, self.directions * self.batch
        return batch * self.hidden, step * self.hidden

    @property
    def state_stride(self) -> int:
        """Return the distance, in elements, from sequence to sequence in the tensors of initial and final states."""
        return self.hidden * (self.directions if self.batch_first else 1)

    def start(self, direction: int) -> int:
        """Return the index of the first element of a direction in the tensor Y, and in the tensors of states.

        Args:
            direction: 0 or 1.
        """
        return direction * self.hidden * (1 if self.batch_first else self.batch)


@dataclass(frozen=True)
class Gates:
    """The grouping of the rows of a recurrent layer's weights W (of the input) and R (of the hidden state) by gate.

    Attributes:
        count: Number of gates that the rows of W and R hold.
        blocks: Numbers of gates in the blocks of R. The kernel computes the product of R and the hidden state block by
            block.
        kept: Number of values of the size of a hidden state that a step keeps at once in scratch memory: gates and
            others.
    """

    count: int
    blocks: tuple[int, ...]
    kept: int

    def packed(self, matrices: Array, blocks: Sequence[int]) -> Array:
        """Pack weight matrices into a flat array, for kernels that compute four sums at a time.

        Within each block of gates, the weights of four rows for one input are adjacent.

        Args:
            matrices: W or R, [directions, gates · hidden, k].
            blocks: Number of gates of each block.
        """
        hidden = matrices.shape[1] // self.count
        cuts = [int(gate) * hidden for gate in np.cumsum(blocks)[:-1]]
        return np.concatenate([interleave(part) for matrix in matrices for part in np.split(matrix, cuts)])


# ------------------------------------------------------------------------------------------ declarations


class SequenceParams(Params):
    """Kernel parameters of one direction of a recurrent layer: sizes of sequences, and offsets in the inputs."""

    batch: Annotated[int, "sequences"]
    steps: Annotated[int, "largest number of steps of a sequence"]
    input_size: Annotated[int, "elements of a step of x"]
    hidden_size: Annotated[int, "elements of a state"]
    is_reversed: Annotated[int, "1 if sequences are read from their end"]
    x_batch_stride: Annotated[int, "elements of x from sequence to sequence"]
    x_step_stride: Annotated[int, "elements of x from step to step"]
    w_offset: Annotated[int, "first element of w of this direction"]
    r_offset: Annotated[int, "first element of r of this direction"]
    scale_offset: Annotated[int | None, "first element of w_scale and r_scale of this direction"] = None
    bias_offset: Annotated[int | None, "first element of bias of this direction"] = None
    initial_offset: Annotated[int | None, "first element of h0 and c0 of this direction"] = None
    initial_stride: Annotated[int | None, "elements of h0 and c0 from sequence to sequence"] = None


class PeepholeParams(Params):
    """Kernel parameter of one direction of an LSTM: the offset of its peephole weights, or None without peepholes."""

    peepholes_offset: Annotated[int | None, "first element of peepholes of this direction"] = None


class OutputWalk(Params):
    """Kernel parameters with the strides and offset of one direction's part of y; absent if y is not a result."""

    y_batch_stride: Annotated[int | None, "elements of y from sequence to sequence"] = None
    y_step_stride: Annotated[int | None, "elements of y from step to step"] = None
    y_offset: Annotated[int | None, "first element of y of this direction"] = None


class HiddenWalk(Params):
    """Kernel parameters that locate one direction's hidden states in the tensor h_all of final hidden states.

    If final hidden states are no result of the layer, h_all is a scratch buffer for one state, which all sequences use.
    """

    h_offset: Annotated[int, "first element of h_all of this direction"]
    h_stride: Annotated[int, "elements of h_all from sequence to sequence; 0 if all use one state buffer"]


class CellWalk(Params):
    """Kernel parameters that locate one direction's cell states (LSTM) in the tensor c_all of final cell states.

    If final cell states are no result of the layer, c_all is a scratch buffer for one state, which all sequences use.
    """

    c_offset: Annotated[int, "first element of c_all of this direction"]
    c_stride: Annotated[int, "elements of c_all from sequence to sequence; 0 if all use one state buffer"]


class FunctionParams(ExpressionParams):
    """Kernel parameters of the activation functions of one direction of a recurrent layer: clip, alpha and beta.

    f is the function of the gates, g that of the hidden gate (GRU) or the cell gate (LSTM), k that of the cell state of
    an LSTM. Each mapping has alpha and beta if the function needs them.
    """

    clip: Annotated[Real | None, "inputs of gates are limited to -clip .. clip"] = None
    f: Annotated[Mapping[str, Real], "alpha and beta of f"] = field(default_factory=dict)
    g: Annotated[Mapping[str, Real], "alpha and beta of g"] = field(default_factory=dict)
    k: Annotated[Mapping[str, Real], "alpha and beta of the function of a cell"] = field(default_factory=dict)


class RecurrentOptions(Options):
    """Template options of any recurrent layer: layout of weights and biases, optional operands and functions.

    Activation functions are C statements in which @ stands for the variable.
    """

    packed: Annotated[bool, "whether rows of w and r are interleaved by four"]
    stored: Annotated[str, "format of w and r: halves (float16), scaled (int8 with a scale for each row), or empty"]
    bias: Annotated[str, "none, sum (of the biases of W and R), or pair (one after the other)"]
    lens: Annotated[bool, "whether sequences have different lengths"]
    h0: Annotated[bool, "whether there is an initial hidden state"]
    y: Annotated[bool, "whether the hidden states of all steps are a result"]
    t: Annotated[str, "C type of the elements"]
    zero: Annotated[str, "C literal of 0"]
    headers: Annotated[list[str], "C headers that the functions need"]
    f: Annotated[str, "function of the gates"]


class GruOptions(Options):
    """Template options of a GRU: activation g of the hidden gate, and order of reset gate and product with R.

    R is the weights of the hidden state. The activation function is a C statement in which @ stands for the variable.
    """

    g: Annotated[str, "function of the hidden gate"]
    one: Annotated[str, "C literal of 1"]
    linear: Annotated[bool, "whether the product with R is computed before the reset gate is applied"]


class LstmOptions(Options):
    """Template options of an LSTM: activations, coupled gates, initial cell state and peepholes.

    Activation functions are C statements in which @ stands for the variable: g of the cell gate, k of the cell state.
    """

    g: Annotated[str, "function of the cell gate"]
    k: Annotated[str, "function of a cell"]
    one: Annotated[str, "C literal of 1"]
    coupled: Annotated[bool, "whether the forget gate is the input gate's complement"]
    c0: Annotated[bool, "whether there is an initial cell state"]
    peepholes: Annotated[bool, "whether gates depend on the cell state through peepholes"]


_FLOATS = (DType.FLOAT32, DType.FLOAT64)
_WEIGHTS = (*_FLOATS, DType.FLOAT16, DType.INT8)
_INPUTS = (
    reads("x", "sequences", *_FLOATS),
    reads("w", "weights of x by direction, interleaved by four rows of the gates", *_WEIGHTS, holds=(1,)),
    reads("r", "weights of the state h by direction, interleaved by four rows of the gates", *_WEIGHTS, holds=(2,)),
    reads("w_scale", "scales of the rows of int8 w", DType.FLOAT32, optional=True),
    reads("r_scale", "scales of the rows of int8 r", DType.FLOAT32, optional=True),
    reads("bias", "biases of the gates by direction", *_FLOATS, optional=True, holds=(3,)),
    reads("lens", "lengths of the sequences", DType.INT32, optional=True),
    reads("h0", "initial hidden states", *_FLOATS, optional=True),
)
_CELLS = (
    reads("c0", "initial cell states", *_FLOATS, optional=True),
    reads("peepholes", "peephole weights of the cell state: input, output, forget", *_FLOATS, optional=True),
)
_Y = writes("y", "hidden states of all steps", *_FLOATS, optional=True)
_H = writes("h_all", "final hidden states, or scratch memory for one", *_FLOATS)
_C = writes("c_all", "final cell states, or scratch memory for one", *_FLOATS)
_GATES = scratch("gates", "sums of the gates of a step", *_FLOATS)


def _recurrent(
    name: str,
    what: str,
    operands: tuple[Role, ...],
    params: tuple[type[Params], ...],
    options: tuple[type[Options], ...] = (),
) -> Kernel:
    declared: tuple[type[Options], ...] = (RecurrentOptions, *options, FloatLoops)
    # Each step reads all weights again, mostly from caches.
    return Kernel(name, what=what, operands=operands, params=params, options=declared, loads=1.0, sweeps=0.25)


RNN = _recurrent(
    "rnn",
    "h' = f(W x + R h + biases), step by step",
    (*_INPUTS, _Y, _H, _GATES),
    (SequenceParams, OutputWalk, HiddenWalk, FunctionParams),
)
"""Kernel of simple recurrent layers."""
GRU = _recurrent(
    "gru",
    "gated recurrent units, step by step",
    (*_INPUTS, _Y, _H, _GATES),
    (SequenceParams, OutputWalk, HiddenWalk, FunctionParams),
    (GruOptions,),
)
"""Kernel of gated recurrent units."""
LSTM = _recurrent(
    "lstm",
    "long short-term memory, step by step",
    (*_INPUTS, *_CELLS, _Y, _H, _C, _GATES),
    (SequenceParams, PeepholeParams, OutputWalk, HiddenWalk, CellWalk, FunctionParams),
    (LstmOptions,),
)
"""Kernel of LSTM layers."""

# ------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class DirectionActivations:
    """Activation functions of one direction of a recurrent layer (RNN, GRU or LSTM).

    Attributes:
        texts: C statements by activation function: f (of the gates), g (of the hidden or cell gate) and k (of the cell
            state of an LSTM). In a statement, @ stands for the variable.
        headers: C headers that the statements need.
        params: Kernel parameters of the activation functions.
    """

    texts: Mapping[str, str]
    headers: list[str]
    params: FunctionParams


@dataclass(frozen=True)
class RecurrentLayer:
    """One node of a recurrent layer (RNN, GRU or LSTM) that is being lowered: its kernel, sizes and buffers.

    Attributes:
        kernel: The kernel of the layer: RNN, GRU or LSTM.
        sizes: Sizes of the sequences and of the hidden state, and strides.
        gates: How the rows of the weights are grouped by gate.
        backwards: For each direction, whether it reads sequences from their end.
        states: States of the layer: "h", and "c" for an LSTM.
        x: Type of the input sequences.
        y: Type of the hidden states of all steps; None if they are not a result.
        inputs: Buffers of the inputs that are present, by role.
        results: Buffers of the results that are present: "y", and final states by name.
        packed: Whether rows of W and R are interleaved by four, for kernels that compute four sums at a time.
        bias: Layout of the biases, with the values of RecurrentOptions.bias.
        stored: Format of the weights, with the values of RecurrentOptions.stored.
    """

    kernel: Kernel
    sizes: RecurrentSizes
    gates: Gates
    backwards: tuple[bool, ...]
    states: tuple[str, ...]
    x: TensorType
    y: TensorType | None
    inputs: Mapping[str, Buffer]
    results: Mapping[str, Buffer]
    packed: bool
    bias: str
    stored: str

    def options(self, functions: DirectionActivations) -> RecurrentOptions:
        """Return the template options, for one direction, that the kernels of all recurrent layers have.

        They describe the layout of weights and biases, optional operands, element type and the function of the gates.

        Args:
            functions: The activation functions of the direction.
        """
        return RecurrentOptions(
            packed=self.packed,
            stored=self.stored,
            bias=self.bias,
            lens="lens" in self.inputs,
            h0="h0" in self.inputs,
            y="y" in self.results,
            t=self.x.dtype.c,
            zero=float_literal("0.0", self.x.dtype),
            headers=functions.headers,
            f=functions.texts["f"],
        )

    def call(self, node: Node, builder: Builder, d: int, functions: FunctionParams, options: Sequence[Options]) -> None:
        """Emit the kernel call that computes one direction of the recurrent layer.

        The call for the second direction keeps what the first one has written to the results.

        Args:
            node: Node to lower.
            builder: Builder that receives the instruction.
            d: Index of the direction: 0 or 1.
            functions: Kernel parameters of the activation functions.
            options: All template options of the kernel.
        """
        name, dtype, hidden = node.outputs[0].name, self.x.dtype, self.sizes.hidden
        later = Access.INOUT if d else Access.OUT
        operands, access = dict(self.inputs), {"y": later}
        if "y" in self.results:
            operands["y"] = self.results["y"]
        for state in self.states:
            role, kept = f"{state}_all", state in self.results
            scratch = None if kept else builder.scratch(f"{name}.{state}", dtype, hidden)
            operands[role] = scratch or self.results[state]
            access[role] = later if kept else Access.SCRATCH
        operands["gates"] = builder.scratch(f"{name}.gates", dtype, self.gates.kept * hidden)
        call = Call(
            self.kernel,
            operands,
            [*self._params(d), functions],
            options,
            access=access,
            inplace=self._inplace(),
            overlaps=self._overlaps(),
            variant=dtype.tag + {"halves": "_f16", "scaled": "_w8"}.get(self.stored, ""),
        )
        builder.call(node, call).macs //= self.sizes.directions

    def _params(self, d: int) -> list[Params]:
        sizes = self.sizes
        params: list[Params] = [self._sequence(d)]
        if "c" in self.states:
            params.append(PeepholeParams(peepholes_offset=d * 3 * sizes.hidden if "peepholes" in self.inputs else None))
        if "y" in self.results:
            batch, step = sizes.y_strides
            params.append(OutputWalk(y_batch_stride=batch, y_step_stride=step, y_offset=sizes.start(d)))
        else:
            params.append(OutputWalk())
        places = {s: (sizes.start(d), sizes.state_stride) if s in self.results else (0, 0) for s in self.states}
        params.append(HiddenWalk(h_offset=places["h"][0], h_stride=places["h"][1]))
        if "c" in self.states:
            params.append(CellWalk(c_offset=places["c"][0], c_stride=places["c"][1]))
        return params

    def _sequence(self, d: int) -> SequenceParams:
        sizes, rows = self.sizes, self.gates.count * self.sizes.hidden
        batch, step = sizes.x_strides
        biases = {"none": None, "pair": d * 2 * rows, "sum": d * self.gates.kept * sizes.hidden}
        starts = {"h0", "c0"} & self.inputs.keys()
        return SequenceParams(
            batch=sizes.batch,
            steps=sizes.steps,
            input_size=sizes.depth,
            hidden_size=sizes.hidden,
            is_reversed=int(self.backwards[d]),
            x_batch_stride=batch,
            x_step_stride=step,
            w_offset=d * rows * sizes.depth,
            r_offset=d * rows * sizes.hidden,
            scale_offset=d * rows if self.stored == "scaled" else None,
            bias_offset=biases[self.bias],
            initial_offset=sizes.start(d) if starts else None,
            initial_stride=sizes.state_stride if starts else None,
        )

    def _inplace(self) -> list[tuple[str, str]]:
        """Return the overlaps of last states with the first ones, which they may replace if there is one direction."""
        if self.sizes.directions > 1:
            return []
        return [(f"{s}_all", f"{s}0") for s in self.states if s in self.results and f"{s}0" in self.inputs]

    def _overlaps(self) -> list[Overlap]:
        """Return how far y may overlap x.

        A step is read before it is written if sequences are walked once, forward and over all steps.
        """
        sizes = self.sizes
        if self.y is None or sizes.directions > 1 or self.backwards[0] or "lens" in self.inputs:
            return []
        (x_batch, x_step), (y_batch, y_step) = sizes.x_strides, sizes.y_strides
        sequences, steps = np.arange(sizes.batch), np.arange(sizes.steps)
        reads = nested_positions(sequences * x_batch, steps * x_step)
        ends = nested_positions(sequences * y_batch, steps * y_step) + sizes.hidden
        return overlap(self.x, self.y, Traversal(reads, ends))


def float_literal(text: str, dtype: DType) -> str:
    """Return the decimal number `text` as a C literal of a float type: with the suffix f for float32."""
    return text + ("" if dtype is DType.FLOAT64 else "f")
