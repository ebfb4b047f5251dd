# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: RNN, LSTM, GRU, in one direction or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple, Self

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.expressions.c import Binding, c_text
from mcugen.expressions.nodes import Argument, Expression, Parameter, select
from mcugen.expressions.parts import headers
from mcugen.expressions.values import Evaluator
from mcugen.hir.crop import Box, Crop, replaced, whole
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import Cell, Croppable, Partial, Stepwise, Widenable
from mcugen.hir.types import Array, DType, TensorType, are_halves, int8_multiples
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.weighted_layers import INTERLEAVED_ROWS
from mcugen.kernels.portable.recurrent import (
    GRU,
    LSTM,
    RNN,
    DirectionActivations,
    FunctionParams,
    Gates,
    GruOptions,
    LstmOptions,
    RecurrentLayer,
    RecurrentSizes,
    float_literal,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import FLOAT16_WEIGHTS, UPDATABLE, Kernel, Options
from mcugen.lir.program import Buffer, real_param
from mcugen.numerics.sums import real_product
from mcugen.ops.onnx_node import FLOATS, OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import UNARY_FUNCTIONS

# ---------------------------------------------------------------------------------------------- activations


@dataclass(frozen=True)
class ActivationFunction:
    """An activation function of recurrent layers.

    Attributes:
        build: Returns the expression of x and, if the function has them, alpha and beta.
        defaults: ONNX's default for alpha and beta, as many as the function has; NaN if it must be given.
    """

    build: Callable[..., Expression]
    defaults: tuple[float, ...] = ()


FUNCTIONS: dict[str, ActivationFunction] = {
    "Relu": ActivationFunction(lambda x: select(x < 0, 0, x)),
    "Tanh": ActivationFunction(UNARY_FUNCTIONS["Tanh"].build),
    "Sigmoid": ActivationFunction(UNARY_FUNCTIONS["Sigmoid"].build),
    "Affine": ActivationFunction(lambda x, a, b: a * x + b, (1.0, 0.0)),
    "LeakyRelu": ActivationFunction(UNARY_FUNCTIONS["LeakyRelu"].build, (0.01,)),
    "ThresholdedRelu": ActivationFunction(lambda x, a: select(x >= a, x, 0), (1.0,)),
    "ScaledTanh": ActivationFunction(lambda x, a, b: a * UNARY_FUNCTIONS["Tanh"].build(b * x), (math.nan, math.nan)),
    "HardSigmoid": ActivationFunction(UNARY_FUNCTIONS["HardSigmoid"].build, (0.2, 0.5)),
    "Elu": ActivationFunction(UNARY_FUNCTIONS["Elu"].build, (1.0,)),
    "Softsign": ActivationFunction(UNARY_FUNCTIONS["Softsign"].build),
    "Softplus": ActivationFunction(UNARY_FUNCTIONS["Softplus"].build),
}
"""Activation functions of recurrent layers, by ONNX name."""


@dataclass(frozen=True)
class Activation:
    """An activation function of a recurrent layer, with its parameters.

    Attributes:
        function: Name of the function, a key of FUNCTIONS.
        alpha: ONNX's first parameter, if the function has it.
        beta: ONNX's second parameter, if the function has it.
    """

    function: str
    alpha: float = 0.0
    beta: float = 0.0

    def __str__(self) -> str:
        return self.function

    def __call__(self, x: Array) -> Array:
        """Evaluate the activation by numpy."""
        return _of_x(self, DType.of(x))({"x": x}).astype(x.dtype)

    def expression(self, role: str, x: Expression) -> Expression:
        """Return the activation of x as an expression whose parameters are members of a kernel's parameter struct.

        `role` is the kernel's name of the activation, such as "f"; it begins the names of the members.
        """
        params = self.params(role, x.dtype)
        return FUNCTIONS[self.function].build(x, *(Parameter(f"p->{name}", v, x.dtype) for name, v in params.items()))

    def params(self, role: str, dtype: DType) -> dict[str, float]:
        """Return the activation's parameters by their names in the kernel's parameter struct.

        Args:
            role: The kernel's name of the activation, such as "f".
            dtype: Element type of the layer, to which the parameters are rounded.
        """
        count = len(FUNCTIONS[self.function].defaults)
        return {
            f"{role}_{letter}": real_param(value, dtype)
            for letter, value in list(zip("ab", (self.alpha, self.beta), strict=True))[:count]
        }


@cache
def _of_x(activation: Activation, dtype: DType) -> Evaluator:
    """Return a reusable evaluator of the activation's expression of x."""
    return Evaluator(activation.expression("x", Argument("x", dtype)))


# -------------------------------------------------------------------------------------------------- operator

X, W, R, B, LENS, H0, C0, P = range(8)
"""Indices of the inputs, as ONNX's LSTM has them: x, weights, biases, sequence lengths, first states, peepholes."""

MAX_BATCH_ELEMENTS = 2**22
"""Largest number of elements, over all steps, that a batch of samples computes when samples are evaluated together."""

STATE_ROLES = {"h": "hidden", "c": "cell"}
"""Role of each state (h, and c of an LSTM) among the tensors that `internals` returns."""

_OPTIONAL = {"lens": LENS, "h0": H0, "c0": C0, "peepholes": P}
"""Kernel roles of inputs that are read as they are."""

_RESULT_ROLES = {"Y": "y", "Y_h": "h", "Y_c": "c"}
"""Kernel operand of each ONNX output."""


class Weights(NamedTuple):
    """Weights of one direction of a recurrent layer.

    Attributes:
        w: Rows of W, [gates · hidden, depth].
        r: Rows of R, [gates · hidden, hidden].
        b: Biases of W, then of R, [2 · gates · hidden]; None if there are none.
        p: Peepholes of i, o and f, [3 · hidden]; None if there are none.
    """

    w: Array
    r: Array
    b: Array | None
    p: Array | None


class Recurrent(Partial, Stepwise, Cell, Croppable, Widenable, Operator):
    """A recurrent layer over sequences, as ONNX defines RNN, LSTM and GRU (the subclasses).

    Inputs: x [steps, batch, depth]; w [directions, gates · hidden, depth]; r [directions, gates · hidden, hidden];
    optionally biases [directions, 2 · gates · hidden], lengths [batch] (int32), first h and c [directions, batch,
    hidden] and peepholes [directions, 3 · hidden]. Outputs, those of `results`: Y [steps, directions, batch, hidden],
    Y_h and Y_c [directions, batch, hidden]. With `batch_first`, batch comes before steps and directions.

    A sequence is computed up to its own length (clamped to 0 … steps), backwards from there in reverse; Y is 0 beyond
    it. Y_h and Y_c are the state after the last step; as in ONNX Runtime, 0 for a sequence of length 0.

    Attributes:
        activations: The activation functions of each direction, in the order of `roles`.
        backwards: Whether each direction runs from the last step to the first.
        results: The outputs, out of Y, Y_h and Y_c.
        clip: Limit of the magnitude of what the gates' activation functions read (not h(c) of an LSTM).
        batch_first: Whether the batch axis comes before steps and directions.
        roles: The kernel's names of the activation functions of one direction.
        standard: Names of the activations with which the layer has a quantized form.
        gates: Number of gates.
        states: Names of the states that a step carries to the next one.
        kernel: The kernel that computes one direction.
        matrices: Indices of the inputs that hold weights.
    """

    matrices: ClassVar[tuple[int, ...]] = (W, R)
    kernel: ClassVar[Kernel]
    gates: ClassVar[int]
    states: ClassVar[tuple[str, ...]] = ("h",)
    roles: ClassVar[tuple[str, ...]]

    activations: tuple[tuple[Activation, ...], ...] = ()
    backwards: tuple[bool, ...] = (False,)
    results: tuple[str, ...] = ("Y", "Y_h")
    clip: float = math.inf
    batch_first: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the `results`; all shapes follow from those of x and r."""
        x, r = inputs[X], inputs[R]
        if x is None or r is None or x.rank != 3 or r.rank != 3:
            raise ModelError(f"{self.name}: X and R must have three dimensions", f"{x} and {r}", "repair the model")
        sizes = self.sizes(x, r)
        rows = self.gates * sizes.hidden
        expected_shapes = {
            W: (sizes.directions, rows, sizes.depth),
            R: (sizes.directions, rows, sizes.hidden),
            B: (sizes.directions, 2 * rows),
            LENS: (sizes.batch,),
            H0: sizes.state_shape,
            C0: sizes.state_shape,
            P: (sizes.directions, 3 * sizes.hidden),
        }
        for index, shape in expected_shapes.items():
            actual_type = inputs[index] if index < len(inputs) else None
            dtype = DType.INT32 if index == LENS else x.dtype
            if actual_type is not None and (actual_type.shape, actual_type.dtype) != (shape, dtype):
                rule = f"{self.name}: input {index} must be {TensorType(shape, dtype)}"
                raise ModelError(rule, str(actual_type), "repair the model")
        return tuple(TensorType(sizes.y_shape if r == "Y" else sizes.state_shape, x.dtype) for r in self.results)

    def sizes(self, x: TensorType, r: TensorType) -> RecurrentSizes:
        """Return the numbers of steps, sequences, inputs and hidden elements, given the types of the inputs X and R."""
        steps, batch = (x.shape[1], x.shape[0]) if self.batch_first else x.shape[:2]
        return RecurrentSizes(steps, batch, x.shape[2], r.shape[2], len(self.backwards), self.batch_first)

    def keeping(self, needed: Sequence[bool]) -> Self:
        """Return the layer with only those `results` that are marked.

        Args:
            needed: For each of the `results`, whether it is needed.
        """
        return replace(self, results=tuple(r for r, w in zip(self.results, needed, strict=True) if w))

    def last_part(self, node: Node, output: Value) -> tuple[int, int] | None:
        """Return the offset and the number of elements of the last step in output Y.

        Returns:
            Both numbers; None for other outputs, if the step is not contiguous in Y, and for layers with two
            directions, a peephole, a clip or an input of sequence lengths.
        """
        sizes = self.sizes(node.input(X).type, node.input(R).type)
        if self.results[node.outputs.index(output)] != "Y" or sizes.directions > 1 or min(sizes.steps, sizes.batch) < 1:
            return None
        if (sizes.batch > 1 and self.batch_first) or self._has_rare_options(node):
            return None
        count = sizes.batch * sizes.hidden
        return (0 if self.backwards[0] else sizes.steps - 1) * count, count

    def last_state(self, node: Node, graph: Graph, output: Value) -> Value:
        """Return output Y_h, the hidden state after the last step; it is added to the node if it is missing."""
        if "Y_h" in self.results:
            return node.outputs[self.results.index("Y_h")]
        return self._with_result(node, graph, "Y_h").outputs[-1]

    def _with_result(self, node: Node, graph: Graph, result: str) -> Node:
        """Replace a node by one with a further result, and return it."""
        for value in node.outputs:
            graph.release_name(value)
        names = [*(v.name for v in node.outputs), f"{node.outputs[0].name}.last"]
        more = replace(self, results=(*self.results, result))
        new_node = graph.add(more, node.inputs, node.origin, names=names, before=node)
        for old, new in zip(node.outputs, new_node.outputs, strict=False):
            graph.replace(old, new)
        graph.remove(node)
        return new_node

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the layer for the steps up to the last one that is wanted.

        Return None if it runs backwards, if sequences have lengths, or if the last state is a result.
        """
        lengths = node.inputs[LENS] if len(node.inputs) > LENS else None
        if self.results != ("Y",) or any(self.backwards) or lengths is not None:
            return None
        axis = int(self.batch_first)
        steps = {axis: range(region[axis][-1] + 1)}
        x, *constants = (None if v is None else whole(v.type.shape) for v in node.inputs)
        assert x is not None
        return Crop(self, replaced(whole(node.output.type.shape), steps), (replaced(x, steps), *constants))

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates of all steps (W times x and R times h), for sequences of full length."""
        sizes = self.sizes(sig.input(X), sig.input(R))
        rows = sizes.directions * self.gates * sizes.hidden
        return sizes.steps * sizes.batch * rows * (sizes.depth + sizes.hidden)

    # ------------------------------------------------------------------------------------------- reference

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs in numpy, step by step, for all sequences of the batch at once."""
        return self._found(sig, arrays)[0]

    def internals(self, sig: Signature, *arrays: Array) -> Mapping[str, Array]:
        """Return the tensors that the steps compute, by role, such as "gates", for quantization.

        Each tensor has one row for each step, direction and sequence. The states include the initial states.
        """
        return {role: np.concatenate(rows) for role, rows in self._found(sig, arrays)[1].items()}

    def evaluate_batch(
        self, sig: Signature, samples: Sequence[Sequence[Array]]
    ) -> Iterator[tuple[tuple[Array, ...], Mapping[str, Array]]]:
        """Evaluate the layer for several samples, and yield each sample's results and internal tensors.

        Samples with equal weights and full sequence length are computed together, as sequences of one batch.
        """
        places = [i for i, t in enumerate(sig.inputs) if t is not None]
        shared = [k for k, i in enumerate(places) if i not in (X, H0, C0)]
        if LENS in places or any(sample[k] is not samples[0][k] for sample in samples for k in shared):
            for sample in samples:
                results, steps = self._found(sig, sample)
                yield results, {role: np.concatenate(rows) for role, rows in steps.items()}
            return
        sizes, axis = self.sizes(sig.input(X), sig.input(R)), 0 if self.batch_first else 1
        elements = sizes.steps * sizes.directions * sizes.batch * (self.gates + 1) * sizes.hidden
        count = max(MAX_BATCH_ELEMENTS // max(elements, 1), 1)
        for some in (samples[at : at + count] for at in range(0, len(samples), count)):
            operands = zip(*some, strict=True)
            joined = [arrays[0] if k in shared else np.concatenate(arrays, axis) for k, arrays in enumerate(operands)]
            results, steps = self._found(sig, joined)
            axes = [2 * axis if name == "Y" else axis for name in self.results]
            parts = [np.split(array, len(some), place) for array, place in zip(results, axes, strict=True)]
            inner = {role: np.split(np.stack(rows), len(some), 1) for role, rows in steps.items()}
            for k in range(len(some)):
                rows = {role: array[k].reshape(-1, array[k].shape[-1]) for role, array in inner.items()}
                yield tuple(part[k] for part in parts), rows

    standard: ClassVar[tuple[str, ...]] = ()

    def can_expand(self, node: Node) -> bool:
        """Return whether several integer operators can replace the layer, so that it can be quantized.

        The activation functions must be ONNX's defaults, and the weights must be constant. The layer must have no
        sequence lengths, peepholes, clip or coupled gates.
        """
        if node.input(X).type.dtype is not DType.FLOAT32:
            return False
        inputs_by_index = dict(enumerate(node.inputs))
        constants = all((v := inputs_by_index.get(i)) is None or v.is_constant for i in (W, R, B))
        is_standard = all(tuple(map(str, names)) == self.standard for names in self.activations)
        sizes = (*node.input(X).type.shape, *node.input(R).type.shape)
        return constants and is_standard and not self._has_rare_options(node) and min(sizes) > 0

    def _has_rare_options(self, node: Node) -> bool:
        inputs_by_index = dict(enumerate(node.inputs))
        return inputs_by_index.get(LENS) is not None or inputs_by_index.get(P) is not None or self.clip < np.inf

    def outputs_of_one_scale(self, node: Node) -> list[Value]:
        """Return the outputs that quantization must give one common scale: Y and Y_h, which hold hidden states."""
        return [v for v, result in zip(node.outputs, self.results, strict=True) if result != "Y_c"]

    def _found(self, sig: Signature, arrays: Sequence[Array]) -> tuple[tuple[Array, ...], dict[str, list[Array]]]:
        """Return the results, and the tensors that the steps compute by role."""
        y, states, steps = self._run(sig, arrays)
        by_name = {"Y": y.transpose(2, 0, 1, 3) if self.batch_first else y}
        by_name |= {f"Y_{state}": self._turned(value) for state, value in zip(self.states, states, strict=True)}
        inner = {role: [s[role] for s in steps if role in s] for role in (steps[-1] if steps else {})}
        return tuple(by_name[r] for r in self.results), inner

    def _run(self, sig: Signature, arrays: Sequence[Array]) -> tuple[Array, Array, list[dict[str, Array]]]:
        """Return Y, the last states [states, directions, batch, hidden], and the tensors of all steps.

        Y has steps before batch.
        """
        present = (i for i, t in enumerate(sig.inputs) if t is not None)
        operands = dict(zip(present, arrays, strict=True))
        sizes = self.sizes(sig.input(X), sig.input(R))
        x = self._turned(operands[X])
        batch = x.shape[1]  # several samples' may be side by side
        lens = np.clip(operands.get(LENS, np.full(batch, sizes.steps)), 0, sizes.steps)
        y = np.zeros((sizes.steps, sizes.directions, batch, sizes.hidden), x.dtype)
        last = np.zeros((len(self.states), *y.shape[1:]), x.dtype)
        for index, role in enumerate((H0, C0)[: len(self.states)]):
            if role in operands:
                last[index] = np.where((lens > 0)[:, None], self._turned(operands[role]), 0)
        computed_steps: list[dict[str, Array]] = []
        for d, backwards in enumerate(self.backwards):
            weights = Weights(
                operands[W][d], operands[R][d], *(operands[i][d] if i in operands else None for i in (B, P))
            )
            computed_steps.append(
                {STATE_ROLES[s]: value for s, value in zip(self.states, last[:, d].copy(), strict=True)}
            )
            for step in range(sizes.steps):
                active = np.flatnonzero(step < lens)
                at = lens[active] - 1 - step if backwards else np.full(len(active), step)
                computed_steps.append(self.step(d, x[at, active], last[:, d, active], weights))
                last[:, d, active] = [computed_steps[-1][STATE_ROLES[s]] for s in self.states]
                y[at, d, active] = last[0, d, active]
        return y, last, computed_steps

    def _turned(self, array: Array) -> Array:
        """Swap the first two axes if the layer is `batch_first`."""
        return array.swapaxes(0, 1) if self.batch_first else array

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """Compute one step of direction `d` and return its tensors by role.

        "projection" is W's product with its bias, "recurrence" is R's, and "gates" is the activations' argument.

        Args:
            d: Index of the direction.
            x: Rows [batch, depth].
            state: States [states, batch, hidden].
            weights: Weights of the direction.
        """
        raise NotImplementedError

    def _sums(self, x: Array, h: Array, weights: Weights) -> dict[str, Array]:
        """Return both products and their sum."""
        w, r, b, _ = weights
        product = real_product(x, w.T)
        projection = product if b is None else product + self.summed_bias(b)
        recurrence = real_product(h, r.T)
        return {"projection": projection, "recurrence": recurrence, "gates": projection + recurrence}

    def _gate(self, values: Array, activation: Activation) -> Array:
        """Return the activation of a gate's clipped sum."""
        return activation(values if math.isinf(self.clip) else np.clip(values, -self.clip, self.clip))

    def summed_bias(self, bias: Array) -> Array:
        """Return the input biases plus the recurrent biases, […, gates · hidden].

        Args:
            bias: The input biases, then the recurrent biases, […, 2 · gates · hidden].
        """
        w, r = np.split(bias, 2, axis=-1)
        total: Array = w + r
        return total

    # -------------------------------------------------------------------------------------------- lowering

    def widened_bytes(self, node: Node) -> int:
        """Return the bytes of the weights as float32 if fewer bytes hold them exactly; else 0."""
        w, r = (node.input(index) for index in (W, R))
        is_narrow = w.data is not None and r.data is not None and bool(narrow_weights(w.data, r.data))
        return 4 * (w.type.count + r.type.count) if is_narrow else 0

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one instruction per direction; all of them write to the same results."""
        layer = self._layer(node, builder)
        for d in range(layer.sizes.directions):
            functions = self._functions(d, layer.x.dtype)
            layer.call(node, builder, d, functions.params, [*self.options(layer, functions), FloatLoops.of(builder)])

    def _layer(self, node: Node, builder: Builder) -> RecurrentLayer:
        """Return the layer with its inputs as kernels read them."""
        sizes = self.sizes(node.input(X).type, node.input(R).type)
        inputs_by_index = dict(enumerate(node.inputs))
        if not sizes.steps:  # then the state is 0
            inputs_by_index |= {LENS: None, H0: None, C0: None}
        inputs = self._weights(node, builder)
        stored = {DType.FLOAT16: "halves", DType.INT8: "scaled"}.get(inputs["w"].dtype, "")
        inputs = {"x": builder.buffer(node.input(X)), **inputs}
        inputs |= {
            role: builder.buffer(v) for role, i in _OPTIONAL.items() if (v := inputs_by_index.get(i)) is not None
        }
        outputs = dict(zip(self.results, node.outputs, strict=True))
        b = inputs_by_index.get(B)
        return RecurrentLayer(
            self.kernel,
            sizes,
            self.rows,
            self.backwards,
            self.states,
            node.input(X).type,
            outputs["Y"].type if "Y" in outputs else None,
            inputs,
            {_RESULT_ROLES[result]: builder.buffer(value) for result, value in outputs.items()},
            packed=_are_constant(node),
            bias="none" if b is None else "pair" if b.data is None else "sum",
            stored=stored,
        )

    def _weights(self, node: Node, builder: Builder) -> dict[str, Buffer]:
        """Return the operands w, r and bias of all directions."""
        name, w, r = node.outputs[0].name, node.input(W), node.input(R)
        b = node.inputs[B] if len(node.inputs) > B else None
        if w.data is not None and r.data is not None:
            rows = self.rows
            narrow_arrays = narrow_weights(w.data, r.data) if _stays_narrow(builder) else {}
            packed = [
                rows.packed(narrow_arrays.get("w", w.data), (self.gates,)),
                rows.packed(narrow_arrays.get("r", r.data), rows.blocks),
            ]
            has_whole_blocks = r.type.shape[-1] % INTERLEAVED_ROWS == 0
            blocks = [INTERLEAVED_ROWS * v.type.shape[-1] if has_whole_blocks else 0 for v in (w, r)]
            operands = {
                role: builder.const(f"{name}.{role}", array, block)
                for role, array, block in zip("wr", packed, blocks, strict=True)
            }
            scales = {role: array for role, array in narrow_arrays.items() if role not in operands}
            operands |= {role: builder.const(f"{name}.{role}", array) for role, array in scales.items()}
        else:
            operands = {"w": builder.buffer(w), "r": builder.buffer(r)}
        if b is not None:
            summed = None if b.data is None else self.summed_bias(b.data)
            operands["bias"] = builder.buffer(b) if summed is None else builder.const(f"{name}.bias", summed)
        return operands

    @property
    def rows(self) -> Gates:
        """Return how the rows of the weights W and R are grouped by gate, which defines the weight layout of kernels.

        By default, one matrix product with R computes all gates.
        """
        return Gates(self.gates, (self.gates,), self.gates)

    def options(self, layer: RecurrentLayer, functions: DirectionActivations) -> list[Options]:
        """Return the template options of one direction's kernel.

        Args:
            layer: Sizes and types of the layer.
            functions: The activation functions of the direction.
        """
        return [layer.options(functions)]

    def _functions(self, d: int, dtype: DType) -> DirectionActivations:
        """Return C statements that apply each activation to a variable `@`."""
        x = Argument("@", dtype)
        clip = Parameter("p->clip", self.clip, dtype)
        clips = not math.isinf(self.clip)
        texts: dict[str, str] = {}
        params: dict[str, dict[str, float]] = {}
        called: set[str] = set()
        for role, activation in zip(self.roles, self.activations[d], strict=True):
            steps = [activation.expression(role, x)]
            if clips and role in ("f", "g"):
                steps.insert(0, select(x < -clip, -clip, select(x > clip, clip, x)))
            texts[role] = "\n".join(f"@ = {c_text(step, Binding.SELECT)};" for step in steps)
            called.update(*map(headers, steps))
            params[role] = activation.params(role, dtype)
        limit = real_param(self.clip, dtype) if clips else None
        return DirectionActivations(texts, sorted(called), FunctionParams(clip=limit, **params))


def _are_constant(node: Node) -> bool:
    return node.input(W).data is not None and node.input(R).data is not None


def _stays_narrow(builder: Builder) -> bool:
    """Return whether weights that fit few bytes are stored so, which costs time and saves flash."""
    return UPDATABLE not in builder.features and (FLOAT16_WEIGHTS in builder.features or not builder.widens)


def narrow_weights(w: Array, r: Array) -> dict[str, Array]:
    """Return float32 weights of a recurrent layer in fewer bytes, by the names of the kernel's operands.

    Args:
        w: Weights of the input, [directions, rows, depth].
        r: Weights of the hidden state, [directions, rows, hidden].

    Returns:
        `w` and `r` as int8, with `w_scale` and `r_scale` [directions · rows]; else both as float16; empty if both
        formats would change a weight.
    """
    if w.dtype != np.float32:
        return {}
    multiples = [int8_multiples(matrix.reshape(-1, matrix.shape[-1])) for matrix in (w, r)]
    if multiples[0] is not None and multiples[1] is not None:
        (w_values, w_scale), (r_values, r_scale) = multiples[0], multiples[1]
        values = {"w": w_values.reshape(w.shape), "r": r_values.reshape(r.shape)}
        return {**values, "w_scale": w_scale, "r_scale": r_scale}
    return {"w": w.astype(np.float16), "r": r.astype(np.float16)} if are_halves(w) and are_halves(r) else {}


class Rnn(Recurrent):
    """A simple recurrent layer (ONNX RNN): h' = f(W x + R h + Wb + Rb)."""

    mnemonic: ClassVar[str] = "rnn"
    standard: ClassVar[tuple[str, ...]] = ("Tanh",)
    kernel: ClassVar[Kernel] = RNN
    gates: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("f",)

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """Compute one step, h' = f(W·x + R·h + b), and return its tensors by role.

        Args:
            d: Index of the direction.
            x: Rows [batch, depth].
            state: States [1, batch, hidden].
            weights: Weights of the direction.
        """
        sums = self._sums(x, state[0], weights)
        return {**sums, "hidden": self._gate(sums["gates"], self.activations[d][0])}


class Lstm(Recurrent):
    """A long short-term memory (ONNX LSTM).

    i, o, f = f(W x + R h + Wb + Rb + p · c); g = g(…); c' = f · c + i · g; h' = o · h(c'). The output gate's peephole
    sees c'.

    Attributes:
        coupled: Whether f = 1 − i (ONNX's input_forget).
    """

    mnemonic: ClassVar[str] = "lstm"
    standard: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh", "Tanh")
    kernel: ClassVar[Kernel] = LSTM
    gates: ClassVar[int] = 4
    states: ClassVar[tuple[str, ...]] = ("h", "c")
    roles: ClassVar[tuple[str, ...]] = ("f", "g", "k")
    coupled: bool = False

    def _has_rare_options(self, node: Node) -> bool:
        return self.coupled or super()._has_rare_options(node)

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """Compute one step, the gates, c' and h' by ONNX's equations of LSTM, and return its tensors by role.

        Args:
            d: Index of the direction.
            x: Rows [batch, depth].
            state: States h and c, [2, batch, hidden].
            weights: Weights of the direction.
        """
        h, c = state
        f, g, k = self.activations[d]
        sums = self._sums(x, h, weights)
        i, o, forget, fresh = np.split(sums["gates"], 4, axis=1)
        peep_i, peep_o, peep_f = np.zeros((3, 1), x.dtype) if weights.p is None else np.split(weights.p, 3)
        i = self._gate(i + peep_i * c, f)
        forget = 1 - i if self.coupled else self._gate(forget + peep_f * c, f)
        new = forget * c + i * self._gate(fresh, g)
        return {**sums, "cell": new, "hidden": self._gate(o + peep_o * new, f) * k(new)}

    def options(self, layer: RecurrentLayer, functions: DirectionActivations) -> list[Options]:
        """Return the template options of one direction's kernel, including those of gates and cells.

        Args:
            layer: Sizes and types of the layer.
            functions: The activation functions of the direction.
        """
        own = LstmOptions(
            g=functions.texts["g"],
            k=functions.texts["k"],
            one=float_literal("1.0", layer.x.dtype),
            coupled=self.coupled,
            c0="c0" in layer.inputs,
            peepholes="peepholes" in layer.inputs,
        )
        return [*super().options(layer, functions), own]


class Gru(Recurrent):
    """A gated recurrent unit (ONNX GRU).

    z, r = f(W x + R h + Wb + Rb); g = g(Wh x + Rh (r · h) + Rbh + Wbh); h' = (1 − z) · g + z · h.

    Attributes:
        linear: Whether g = g(Wh x + r · (Rh h + Rbh) + Wbh) (ONNX's linear_before_reset).
    """

    mnemonic: ClassVar[str] = "gru"
    standard: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh")
    kernel: ClassVar[Kernel] = GRU
    gates: ClassVar[int] = 3
    roles: ClassVar[tuple[str, ...]] = ("f", "g")
    linear: bool = False

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """Compute one step, h' and the gates by ONNX's equations of GRU, and return its tensors by role.

        "reset" is the operand that r scales; "difference" is h − g, so that h' = g + z · difference.

        Args:
            d: Index of the direction.
            x: Rows [batch, depth].
            state: States [1, batch, hidden].
            weights: Weights of the direction.
        """
        (h,), (w, r, b, _) = state, weights
        f, g = self.activations[d]
        bias = np.zeros(4 * h.shape[1], x.dtype) if b is None else self.summed_bias(b)
        split = 2 * h.shape[1]
        projection = real_product(x, w.T) + bias[: len(w)]
        recurrence = real_product(h, r[:split].T)
        first = projection[:, :split] + recurrence
        z, reset = np.split(self._gate(first, f), 2, axis=1)
        if self.linear:
            product = real_product(h, r[split:].T) + bias[len(w) :]
            scaled = hidden = reset * product
        else:
            scaled = reset * h
            product = hidden = real_product(scaled, r[split:].T)
        second = projection[:, split:] + hidden
        fresh = self._gate(second, g)
        return {
            "projection": projection,
            "recurrence": np.concatenate([recurrence, product], axis=1),
            "reset": scaled,
            "gates": np.concatenate([first, second], axis=1),
            "difference": h - fresh,
            "hidden": (1 - z) * fresh + z * h,
        }

    def summed_bias(self, bias: Array) -> Array:
        """Return the input biases plus the recurrent biases of the three gates (update, reset, hidden).

        With `linear`, the reset gate scales the recurrent bias of the hidden gate, which then cannot be added to the
        input bias: it follows as a fourth block. The result is […, 3 · hidden] or, with `linear`, […, 4 · hidden].
        """
        if not self.linear:
            return super().summed_bias(bias)
        wz, wr, wh, rz, rr, rh = np.split(bias, 6, axis=-1)
        return np.concatenate([wz + rz, wr + rr, wh, rh], axis=-1)

    @property
    def rows(self) -> Gates:
        """Return how the rows of the weights W and R are grouped by gate, which defines the weight layout of kernels.

        R has one block for the gates z and r and one for the hidden gate, because the reset gate r scales the hidden
        state between both products. With `linear`, the hidden gate's product with R is kept in a buffer of its own.
        """
        return Gates(3, (2, 1), 4 if self.linear else 3)

    def options(self, layer: RecurrentLayer, functions: DirectionActivations) -> list[Options]:
        """Return the template options of the kernel that computes one direction, including those of the hidden gate.

        Args:
            layer: Sizes and types of the layer.
            functions: The activation functions of the direction.
        """
        own = GruOptions(g=functions.texts["g"], one=float_literal("1.0", layer.x.dtype), linear=self.linear)
        return [*super().options(layer, functions), own]


# --------------------------------------------------------------------------------------------------- import

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_DEFAULTS = {"RNN": ("Tanh",), "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}
_RESULTS = ("Y", "Y_h", "Y_c")


def _import_recurrent(node: OnnxNode) -> list[Value]:
    inputs = [node.inputs[i] if i < len(node.inputs) else None for i in range(P + 1)]
    if node.op_type != "LSTM":
        inputs[C0:] = [None, None]
    for index in (X, W, R):
        node.require_dtype(node.input(index), DType.FLOAT32, DType.FLOAT64)
        if node.input(index).type.rank != 3:
            shape_text = f"input {index} is {node.input(index).type.shape}"
            raise Refusal(f"{node.op_type}: X, W and R must have three axes", shape_text, "repair the model")
    if node.has(LENS):
        node.require_dtype(node.input(LENS), DType.INT32)
        inputs[LENS] = _lengths(node)
    while inputs[-1] is None:
        inputs.pop()
    names = dict(zip(_RESULTS, node.outputs, strict=False))
    named_results = {result: name for result, name in names.items() if name}
    if not named_results:
        return []
    results = node.emit_all(_operator(node, tuple(named_results)), inputs, tuple(named_results.values()))
    values = dict(zip(named_results, results, strict=True))
    return [values.get(result, results[0]) for result in names]  # what has no name is read by nobody


def _operator(node: OnnxNode, results: tuple[str, ...]) -> Recurrent:
    """Return the operator with the node's attributes."""
    direction = str(node.attr("direction", "forward")).lower()
    node.require(direction in _DIRECTIONS, f"the direction must be one of {', '.join(_DIRECTIONS)}", f"'{direction}'")
    hidden = node.input(R).type.shape[-1]
    if node.attr("hidden_size", hidden) != hidden:
        sizes = f"{node.attr('hidden_size', hidden)}, R has {hidden}"
        raise Refusal(f"{node.op_type}: hidden_size must agree with R", sizes, "repair the model")
    clip = float(node.attr("clip", math.inf))
    node.require(clip > 0, "clip must be positive", str(clip), "leave it out for no clipping")
    backwards = _DIRECTIONS[direction]
    activations, first = _activations(node, len(backwards)), bool(node.attr("layout", 0))
    if node.op_type == "LSTM":
        return Lstm(activations, backwards, results, clip, first, bool(node.attr("input_forget", 0)))
    if node.op_type == "GRU":
        return Gru(activations, backwards, results, clip, first, bool(node.attr("linear_before_reset", 0)))
    return Rnn(activations, backwards, results, clip, first)


def _lengths(node: OnnxNode) -> Value | None:
    """Return the sequence lengths, or None if all are known to be full."""
    lens, x = node.input(LENS), node.input(X).type
    steps = x.shape[1 if node.attr("layout", 0) else 0]
    return None if lens.data is not None and (lens.data >= steps).all() else lens


def _activations(node: OnnxNode, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction.

    Functions with parameters consume activation_alpha and activation_beta in order.
    """
    default = _DEFAULTS[node.op_type]
    names = [str(n) for n in node.attr("activations", ())] or [*default] * directions
    if node.op_type == "RNN" and directions == 1:
        names = names[:1]  # ONNX's default has two
    if len(names) != len(default) * directions:
        counts = f"{len(names)} in {directions} direction{'s' * (directions > 1)}"
        rule = f"{node.op_type}: there must be {len(default)} activations for each direction"
        raise Refusal(rule, counts, "repair the model")
    spelled = {known.lower(): known for known in FUNCTIONS}
    unknown = [n for n in names if n.lower() not in spelled]
    if unknown:
        rule = f"{node.op_type}: an activation must be one of {', '.join(FUNCTIONS)}"
        raise Refusal(rule, f"'{unknown[0]}'", "export with one of these")
    functions = [spelled[n.lower()] for n in names]
    defaults = [(*FUNCTIONS[f].defaults, None, None) for f in functions]
    alphas = _parameters(node, "alpha", [row[0] for row in defaults])
    betas = _parameters(node, "beta", [row[1] for row in defaults])
    flat = [Activation(*row) for row in zip(functions, alphas, betas, strict=True)]
    return tuple(tuple(flat[i : i + len(default)]) for i in range(0, len(flat), len(default)))


def _parameters(node: OnnxNode, key: str, defaults: Sequence[float | None]) -> list[float]:
    numbers = node.reals(f"activation_{key}")
    remaining_numbers = iter(numbers)
    values = [0.0 if default is None else next(remaining_numbers, default) for default in defaults]
    if any(math.isnan(v) for v in values):
        rule = f"{node.op_type}: activation_{key} must be numbers, and given for ScaledTanh, which has no default"
        raise Refusal(rule, f"activation_{key}={numbers}", f"set activation_{key}")
    return values


for _op_type in _DEFAULTS:
    onnx_operator(_op_type, types=FLOATS, kernels=(_op_type.lower(),))(_import_recurrent)
