# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: RNN, LSTM, GRU, in one direction or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from mcugen.errors import ModelError
from mcugen.expressions.c import Binding, c_text
from mcugen.expressions.nodes import Argument, Expression, Parameter, select
from mcugen.expressions.parts import headers
from mcugen.expressions.values import evaluate
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.kernels.weighted import interleave
from mcugen.lir.builder import Builder
from mcugen.lir.program import Access, Buffer, Overlap, Param, real_param
from mcugen.lir.traversal import Traversal, nested, overlap
from mcugen.ops.onnx_node import FLOATS, OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import UNARY

# ---------------------------------------------------------------------------------------------- activations


@dataclass(frozen=True)
class Function:
    """One row of the table of activation functions: the expression of x, alpha and beta, as far as it has these.

    `defaults` are ONNX's of alpha and beta, as many as the function has; NaN if one must be given.
    """

    build: Callable[..., Expression]
    defaults: tuple[float, ...] = ()


FUNCTIONS: dict[str, Function] = {
    "Relu": Function(lambda x: select(x < 0, 0, x)),
    "Tanh": Function(UNARY["Tanh"].build),
    "Sigmoid": Function(UNARY["Sigmoid"].build),
    "Affine": Function(lambda x, a, b: a * x + b, (1.0, 0.0)),
    "LeakyRelu": Function(UNARY["LeakyRelu"].build, (0.01,)),
    "ThresholdedRelu": Function(lambda x, a: select(x >= a, x, 0), (1.0,)),
    "ScaledTanh": Function(lambda x, a, b: a * UNARY["Tanh"].build(b * x), (math.nan, math.nan)),
    "HardSigmoid": Function(UNARY["HardSigmoid"].build, (0.2, 0.5)),
    "Elu": Function(UNARY["Elu"].build, (1.0,)),
    "Softsign": Function(UNARY["Softsign"].build),
    "Softplus": Function(UNARY["Softplus"].build),
}


@dataclass(frozen=True)
class Activation:
    """A row of FUNCTIONS with its parameters."""

    function: str
    alpha: float = 0.0
    beta: float = 0.0

    def __str__(self) -> str:
        return self.function

    def __call__(self, x: Array) -> Array:
        """In numpy."""
        dtype = DType.of(x)
        return evaluate(self.expression("x", Argument("x", dtype)), {"x": x}).astype(x.dtype)

    def expression(self, role: str, x: Expression) -> Expression:
        """Of x; its parameters are members of a kernel's."""
        given = self.params(role, x.dtype)
        return FUNCTIONS[self.function].build(x, *(Parameter(f"p->{name}", v, x.dtype) for name, v in given.items()))

    def params(self, role: str, dtype: DType) -> dict[str, Param]:
        """The kernel parameters of the activation that has this role."""
        count = len(FUNCTIONS[self.function].defaults)
        return {
            f"{role}_{letter}": real_param(value, dtype)
            for letter, value in list(zip("ab", (self.alpha, self.beta), strict=True))[:count]
        }


# -------------------------------------------------------------------------------------------------- operator

X, W, R, B, LENS, H0, C0, P = range(8)
"""Inputs, as ONNX's LSTM has them."""

STATE_ROLES = {"h": "hidden", "c": "cell"}
"""What the states are called among all that a step computes."""

_OPTIONAL = {"lens": LENS, "h0": H0, "c0": C0, "peepholes": P}
"""Kernel roles of inputs that are read as they are."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer, and how its tensors are walked (strides in elements)."""

    steps: int
    batch: int
    depth: int
    hidden: int
    directions: int
    batch_first: bool

    @property
    def y_shape(self) -> Shape:
        """Of Y."""
        outer = (self.steps, self.directions, self.batch)
        return (*((self.batch, self.steps, self.directions) if self.batch_first else outer), self.hidden)

    @property
    def state_shape(self) -> Shape:
        """Of the first and last h and c."""
        return (*((self.batch, self.directions) if self.batch_first else (self.directions, self.batch)), self.hidden)

    def x_walk(self) -> dict[str, Param]:
        """Strides of X."""
        batch, step = (self.steps, 1) if self.batch_first else (1, self.batch)
        return {"x_batch": batch * self.depth, "x_step": step * self.depth}

    def y_walk(self, direction: int) -> dict[str, Param]:
        """Strides of Y, and where a direction starts in it."""
        batch, step = (self.steps * self.directions, self.directions)
        if not self.batch_first:
            batch, step = 1, self.directions * self.batch
        walk = {"y_batch": batch * self.hidden, "y_step": step * self.hidden}
        return {**walk, "y_offset": self._start(direction)}

    def state_walk(self, name: str, direction: int) -> dict[str, Param]:
        """Stride of a state, and where a direction starts in it."""
        stride = self.hidden * (self.directions if self.batch_first else 1)
        return {f"{name}_offset": self._start(direction), f"{name}_stride": stride}

    def _start(self, direction: int) -> int:
        return direction * self.hidden * (1 if self.batch_first else self.batch)


class Weights(NamedTuple):
    """Those of one direction: rows of W and R, both biases in a row, peepholes (i, o, f)."""

    w: Array
    r: Array
    b: Array | None
    p: Array | None


@dataclass(frozen=True)
class Recurrent(Operator):
    """A recurrent layer over sequences, as ONNX defines RNN, LSTM and GRU (the subclasses).

    Inputs: x [steps, batch, depth]; w [directions, gates · hidden, depth]; r [directions, gates · hidden, hidden];
    optionally biases [directions, 2 · gates · hidden], lengths [batch] (int32), first h and c [directions, batch,
    hidden] and peepholes [directions, 3 · hidden]. Outputs, those of `results`: Y [steps, directions, batch, hidden],
    Y_h and Y_c [directions, batch, hidden]. With `batch_first`, batch comes before steps and directions.

    A sequence is computed up to its own length (clamped to 0 … steps), backwards from there in reverse; Y is 0
    beyond it. Y_h and Y_c are the state after the last step; as in ONNX Runtime, 0 for a sequence of length 0.
    """

    gates: ClassVar[int]
    states: ClassVar[tuple[str, ...]] = ("h",)
    roles: ClassVar[tuple[str, ...]]
    """What the kernel calls a direction's activations."""

    activations: tuple[tuple[Activation, ...], ...] = ()
    """Of each direction."""
    backwards: tuple[bool, ...] = (False,)
    """Of each direction: whether it runs from the end."""
    results: tuple[str, ...] = ("Y", "Y_h")
    clip: float = math.inf
    """Bounds what goes into the gates' activations; h(c) of LSTM is no gate."""
    batch_first: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """All shapes follow from those of x and r."""
        x, r = inputs[X], inputs[R]
        if x is None or r is None or x.rank != 3 or r.rank != 3:
            raise ModelError(f"{self.name}: X and R must have three dimensions", f"{x} and {r}", "repair the model")
        sizes = self.sizes(x, r)
        rows = self.gates * sizes.hidden
        wanted = {
            W: (sizes.directions, rows, sizes.depth),
            R: (sizes.directions, rows, sizes.hidden),
            B: (sizes.directions, 2 * rows),
            LENS: (sizes.batch,),
            H0: sizes.state_shape,
            C0: sizes.state_shape,
            P: (sizes.directions, 3 * sizes.hidden),
        }
        for index, shape in wanted.items():
            found = inputs[index] if index < len(inputs) else None
            dtype = DType.INT32 if index == LENS else x.dtype
            if found is not None and (found.shape, found.dtype) != (shape, dtype):
                rule = f"{self.name}: input {index} must be {TensorType(shape, dtype)}"
                raise ModelError(rule, str(found), "repair the model")
        return tuple(TensorType(sizes.y_shape if r == "Y" else sizes.state_shape, x.dtype) for r in self.results)

    def sizes(self, x: TensorType, r: TensorType) -> Sizes:
        """Of a layer with these X and R."""
        steps, batch = (x.shape[1], x.shape[0]) if self.batch_first else x.shape[:2]
        return Sizes(steps, batch, x.shape[2], r.shape[2], len(self.backwards), self.batch_first)

    def keeping(self, wanted: Sequence[bool]) -> Self:
        """The layer without the results that nobody reads."""
        return replace(self, results=tuple(r for r, w in zip(self.results, wanted, strict=True) if w))

    def macs(self, sig: Signature) -> int:
        """Both products in every step, of the longest sequences."""
        sizes = self.sizes(sig.input(X), sig.input(R))
        rows = sizes.directions * self.gates * sizes.hidden
        return sizes.steps * sizes.batch * rows * (sizes.depth + sizes.hidden)

    # ------------------------------------------------------------------------------------------- reference

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Step by step, all sequences at once."""
        y, states, _ = self._run(sig, arrays)
        found = {"Y": y.transpose(2, 0, 1, 3) if self.batch_first else y}
        found |= {f"Y_{state}": self._turned(value) for state, value in zip(self.states, states, strict=True)}
        return tuple(found[r] for r in self.results)

    def internals(self, sig: Signature, *arrays: Array) -> Mapping[str, Array]:
        """What the steps compute, by role: rows of all steps, directions and sequences; the first states among them."""
        _, _, steps = self._run(sig, arrays)
        return {role: np.concatenate([s[role] for s in steps if role in s]) for role in (steps[-1] if steps else {})}

    def _run(self, sig: Signature, arrays: Sequence[Array]) -> tuple[Array, Array, list[dict[str, Array]]]:
        """Y with steps before batch, the last states [states, directions, batch, hidden], and what was computed."""
        present = (i for i, t in enumerate(sig.inputs) if t is not None)
        given = dict(zip(present, arrays, strict=True))
        sizes = self.sizes(sig.input(X), sig.input(R))
        lens = np.clip(given.get(LENS, np.full(sizes.batch, sizes.steps)), 0, sizes.steps)
        x = self._turned(given[X])
        y = np.zeros((sizes.steps, sizes.directions, sizes.batch, sizes.hidden), x.dtype)
        last = np.zeros((len(self.states), *y.shape[1:]), x.dtype)
        for index, role in enumerate((H0, C0)[: len(self.states)]):
            if role in given:
                last[index] = np.where((lens > 0)[:, None], self._turned(given[role]), 0)
        made: list[dict[str, Array]] = []
        for d, backwards in enumerate(self.backwards):
            weights = Weights(given[W][d], given[R][d], *(given[i][d] if i in given else None for i in (B, P)))
            made.append({STATE_ROLES[s]: value for s, value in zip(self.states, last[:, d].copy(), strict=True)})
            for step in range(sizes.steps):
                active = np.flatnonzero(step < lens)
                at = lens[active] - 1 - step if backwards else np.full(len(active), step)
                made.append(self.step(d, x[at, active], last[:, d, active], weights))
                last[:, d, active] = [made[-1][STATE_ROLES[s]] for s in self.states]
                y[at, d, active] = last[0, d, active]
        return y, last, made

    def _turned(self, array: Array) -> Array:
        """With `batch_first`, the first two axes exchanged."""
        return array.swapaxes(0, 1) if self.batch_first else array

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """What direction `d` computes from rows [batch, depth] and the state [states, batch, hidden], by role.

        "projection" is W's product with its bias, "recurrence" that of R, "gates" what the activations see.
        """
        raise NotImplementedError

    def _sums(self, x: Array, h: Array, weights: Weights) -> dict[str, Array]:
        """Both products and their sum."""
        w, r, b, _ = weights
        projection = x @ w.T if b is None else x @ w.T + self.summed_bias(b)
        recurrence = h @ r.T
        return {"projection": projection, "recurrence": recurrence, "gates": projection + recurrence}

    def _gate(self, values: Array, activation: Activation) -> Array:
        """Clipped, then activated."""
        return activation(values if math.isinf(self.clip) else np.clip(values, -self.clip, self.clip))

    def summed_bias(self, bias: Array) -> Array:
        """Biases […, 2 · gates · hidden] → what the elements of `gates` in the kernel start from."""
        w, r = np.split(bias, 2, axis=-1)
        total: Array = w + r
        return total

    # -------------------------------------------------------------------------------------------- lowering

    def lower(self, node: Node, builder: Builder) -> None:
        """One instruction a direction, all into the same results."""
        sizes = self.sizes(node.input(X).type, node.input(R).type)
        inputs = dict(enumerate(node.inputs))
        if not sizes.steps:  # then the state is 0
            inputs |= {LENS: None, H0: None, C0: None}
        optional = {role: value for role, i in _OPTIONAL.items() if (value := inputs.get(i)) is not None}
        weights, code = self._weights(node, builder)
        operands = [("x", Access.IN, builder.buffer(node.input(X))), *weights]
        operands += [(role, Access.IN, builder.buffer(value)) for role, value in optional.items()]
        code |= {role: role in optional for role in _OPTIONAL}
        for d in range(sizes.directions):
            self._lower_direction(d, sizes, node, builder, operands, code)

    def _weights(self, node: Node, builder: Builder) -> tuple[list[tuple[str, Access, Buffer]], dict[str, object]]:
        """Operands w, r and bias (of all directions), and what the template must know of them.

        Constant matrices are interleaved by four rows, constant biases summed as far as the equations allow.
        """
        name, w, r = node.outputs[0].name, node.input(W), node.input(R)
        b = node.inputs[B] if len(node.inputs) > B else None
        if w.data is not None and r.data is not None:
            packed = [self._packed(w.data, (self.gates,)), self._packed(r.data, self.blocks)]
            buffers = [builder.const(f"{name}.w", packed[0]), builder.const(f"{name}.r", packed[1])]
        else:
            buffers = [builder.buffer(w), builder.buffer(r)]
        bias = "none" if b is None else "pair" if b.data is None else "sum"
        if b is not None:
            summed = None if b.data is None else self.summed_bias(b.data)
            buffers.append(builder.buffer(b) if summed is None else builder.const(f"{name}.bias", summed))
        operands = [(role, Access.IN, buffer) for role, buffer in zip(("w", "r", "bias"), buffers, strict=False)]
        return operands, {"packed": w.data is not None and r.data is not None, "bias": bias}

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many gates each product with R computes."""
        return (self.gates,)

    def _packed(self, matrices: Array, blocks: Sequence[int]) -> Array:
        """[directions, gates · hidden, k] → flat, the rows of each block of gates interleaved for themselves."""
        hidden = matrices.shape[1] // self.gates
        cuts = [int(gate) * hidden for gate in np.cumsum(blocks)[:-1]]
        return np.concatenate([interleave(part) for matrix in matrices for part in np.split(matrix, cuts)])

    def _lower_direction(
        self,
        d: int,
        sizes: Sizes,
        node: Node,
        builder: Builder,
        inputs: Sequence[tuple[str, Access, Buffer]],
        code: dict[str, object],
    ) -> None:
        name, dtype = node.outputs[0].name, node.input(X).type.dtype
        results = {r: builder.buffer(value) for r, value in zip(self.results, node.outputs, strict=True)}
        access = Access.INOUT if d else Access.OUT
        operands, params = list(inputs), self._params(d, sizes, code)
        if "Y" in results:
            operands.append(("y", access, results["Y"]))
            params |= sizes.y_walk(d)
        inplace = []
        for state in self.states:
            result = results.get(f"Y_{state}")
            if result is None:
                scratch = builder.scratch(f"{name}.{state}", dtype, sizes.hidden)
                operands.append((f"{state}_all", Access.SCRATCH, scratch))
                params |= {f"{state}_offset": 0, f"{state}_stride": 0}
                continue
            operands.append((f"{state}_all", access, result))
            params |= sizes.state_walk(state, d)
            if code[f"{state}0"] and sizes.directions == 1:
                inplace.append((f"{state}_all", f"{state}0"))
        gates = builder.scratch(f"{name}.gates", dtype, self.scratch_gates * sizes.hidden)
        operands.append(("gates", Access.SCRATCH, gates))
        texts, constants = self._activation_code(d, dtype)
        suffix = "" if dtype is DType.FLOAT64 else "f"
        flags = code | texts | self.flags() | {"y": "Y" in results, "t": dtype.c}
        flags |= {"zero": f"0.0{suffix}", "one": f"1.0{suffix}"}
        params |= constants
        instr = builder.emit(
            node,
            self.name,
            operands,
            params,
            code=flags,
            inplace=inplace,
            overlaps=self._overlaps(node, sizes, code) if "Y" in results else [],
            variant=dtype.tag,
        )
        instr.macs //= sizes.directions

    def _overlaps(self, node: Node, sizes: Sizes, code: Mapping[str, object]) -> list[Overlap]:
        """A step of a sequence is read before it is written, if all of them are walked just once and forward."""
        if sizes.directions > 1 or self.backwards[0] or code["lens"]:
            return []
        x, y = sizes.x_walk(), sizes.y_walk(0)
        sequences, steps = np.arange(sizes.batch), np.arange(sizes.steps)
        reads = nested(sequences * x["x_batch"], steps * x["x_step"])
        ends = nested(sequences * y["y_batch"], steps * y["y_step"]) + sizes.hidden
        return overlap(node.input(X).type, node.outputs[self.results.index("Y")].type, Traversal(reads, ends))

    def _params(self, d: int, sizes: Sizes, code: dict[str, object]) -> dict[str, Param]:
        """Sizes, and where direction `d` lies in the inputs."""
        rows = self.gates * sizes.hidden
        params: dict[str, Param] = {
            "batch": sizes.batch,
            "steps": sizes.steps,
            "depth": sizes.depth,
            "hidden": sizes.hidden,
            "reverse": int(self.backwards[d]),
            **sizes.x_walk(),
            "w_offset": d * rows * sizes.depth,
            "r_offset": d * rows * sizes.hidden,
        }
        if code["bias"] != "none":
            params["bias_offset"] = d * (2 * rows if code["bias"] == "pair" else self.scratch_gates * sizes.hidden)
        if code["h0"] or code["c0"]:
            params |= sizes.state_walk("first", d)
        if code["peepholes"]:
            params["peepholes_offset"] = d * 3 * sizes.hidden
        return params

    def _activation_code(self, d: int, dtype: DType) -> tuple[dict[str, object], dict[str, Param]]:
        """C statements that apply each activation to a variable `@`, the headers that they need, and parameters."""
        x = Argument("@", dtype)
        clip = Parameter("p->clip", self.clip, dtype)
        clips = not math.isinf(self.clip)
        params: dict[str, Param] = {"clip": real_param(self.clip, dtype)} if clips else {}
        code: dict[str, object] = {}
        called: set[str] = set()
        for role, activation in zip(self.roles, self.activations[d], strict=True):
            steps = [activation.expression(role, x)]
            if clips and role in ("f", "g"):
                steps.insert(0, select(x < -clip, -clip, select(x > clip, clip, x)))
            code[role] = "\n".join(f"@ = {c_text(step, Binding.SELECT)};" for step in steps)
            called.update(*map(headers, steps))
            params |= activation.params(role, dtype)
        return code | {"headers": sorted(called)}, params

    @property
    def scratch_gates(self) -> int:
        """Times hidden: the elements of `gates` in the kernel."""
        return self.gates

    def flags(self) -> dict[str, object]:
        """More that the template must know."""
        return {}


@dataclass(frozen=True)
class Rnn(Recurrent):
    """h' = f(W x + R h + Wb + Rb)."""

    mnemonic: ClassVar[str] = "rnn"
    gates: ClassVar[int] = 1
    roles: ClassVar[tuple[str, ...]] = ("f",)

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """The equation."""
        sums = self._sums(x, state[0], weights)
        return {**sums, "hidden": self._gate(sums["gates"], self.activations[d][0])}


@dataclass(frozen=True)
class Lstm(Recurrent):
    """i, o, f = f(W x + R h + Wb + Rb + p · c); g = g(…); c' = f · c + i · g; h' = o · h(c').

    The output gate's peephole sees c'. `coupled` (ONNX's input_forget): f = 1 - i.
    """

    mnemonic: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    states: ClassVar[tuple[str, ...]] = ("h", "c")
    roles: ClassVar[tuple[str, ...]] = ("f", "g", "k")
    coupled: bool = False

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """The equations."""
        h, c = state
        f, g, k = self.activations[d]
        sums = self._sums(x, h, weights)
        i, o, forget, fresh = np.split(sums["gates"], 4, axis=1)
        peep_i, peep_o, peep_f = np.zeros((3, 1), x.dtype) if weights.p is None else np.split(weights.p, 3)
        i = self._gate(i + peep_i * c, f)
        forget = 1 - i if self.coupled else self._gate(forget + peep_f * c, f)
        new = forget * c + i * self._gate(fresh, g)
        return {**sums, "cell": new, "hidden": self._gate(o + peep_o * new, f) * k(new)}

    def flags(self) -> dict[str, object]:
        """Whether the forget gate is the input gate's complement."""
        return {"coupled": self.coupled}


@dataclass(frozen=True)
class Gru(Recurrent):
    """z, r = f(W x + R h + Wb + Rb); g = g(Wh x + Rh (r · h) + Rbh + Wbh); h' = (1 - z) · g + z · h.

    With `linear` (ONNX's linear_before_reset): g = g(Wh x + r · (Rh h + Rbh) + Wbh).
    """

    mnemonic: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    roles: ClassVar[tuple[str, ...]] = ("f", "g")
    linear: bool = False

    def step(self, d: int, x: Array, state: Array, weights: Weights) -> dict[str, Array]:
        """The equations. "reset" is what r scales; "difference" is h - g, so that h' = g + z · difference."""
        (h,), (w, r, b, _) = state, weights
        f, g = self.activations[d]
        bias = np.zeros(4 * h.shape[1], x.dtype) if b is None else self.summed_bias(b)
        split = 2 * h.shape[1]
        projection = x @ w.T + bias[: len(w)]
        recurrence = h @ r[:split].T
        first = projection[:, :split] + recurrence
        z, reset = np.split(self._gate(first, f), 2, axis=1)
        if self.linear:
            product = h @ r[split:].T + bias[len(w) :]
            scaled = hidden = reset * product
        else:
            scaled = reset * h
            product = hidden = scaled @ r[split:].T
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
        """Where R's product is scaled by r, its bias stands apart, after the gates."""
        if not self.linear:
            return super().summed_bias(bias)
        wz, wr, wh, rz, rr, rh = np.split(bias, 6, axis=-1)
        return np.concatenate([wz + rz, wr + rr, wh, rh], axis=-1)

    @property
    def scratch_gates(self) -> int:
        """Three gates, and Rh h + Rbh where that is scaled by r."""
        return 4 if self.linear else 3

    @property
    def blocks(self) -> tuple[int, ...]:
        """The hidden gate's product is one of its own."""
        return (2, 1)

    def flags(self) -> dict[str, object]:
        """Whether R's product comes before the reset gate."""
        return {"linear": self.linear}


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
            found = f"input {index} is {node.input(index).type.shape}"
            raise Refusal(f"{node.op_type}: X, W and R must have three axes", found, "repair the model")
    if node.has(LENS):
        node.require_dtype(node.input(LENS), DType.INT32)
        inputs[LENS] = _lengths(node)
    while inputs[-1] is None:
        inputs.pop()
    names = dict(zip(_RESULTS, node.outputs, strict=False))
    wanted = {result: name for result, name in names.items() if name}
    if not wanted:
        return []
    made = node.emit_all(_operator(node, tuple(wanted)), inputs, tuple(wanted.values()))
    values = dict(zip(wanted, made, strict=True))
    return [values.get(result, made[0]) for result in names]  # what has no name is read by nobody


def _operator(node: OnnxNode, results: tuple[str, ...]) -> Recurrent:
    """The operator with the node's attributes."""
    direction = str(node.attr("direction", "forward")).lower()
    if direction not in _DIRECTIONS:
        rule = f"{node.op_type}: the direction must be one of {', '.join(_DIRECTIONS)}"
        raise Refusal(rule, f"'{direction}'", "repair the model")
    hidden = node.input(R).type.shape[-1]
    if node.attr("hidden_size", hidden) != hidden:
        found = f"{node.attr('hidden_size', hidden)}, R has {hidden}"
        raise Refusal(f"{node.op_type}: hidden_size must agree with R", found, "repair the model")
    clip = float(node.attr("clip", math.inf))
    if not clip > 0:
        raise Refusal(f"{node.op_type}: clip must be positive", str(clip), "leave it out for no clipping")
    backwards = _DIRECTIONS[direction]
    activations, first = _activations(node, len(backwards)), bool(node.attr("layout", 0))
    if node.op_type == "LSTM":
        return Lstm(activations, backwards, results, clip, first, bool(node.attr("input_forget", 0)))
    if node.op_type == "GRU":
        return Gru(activations, backwards, results, clip, first, bool(node.attr("linear_before_reset", 0)))
    return Rnn(activations, backwards, results, clip, first)


def _lengths(node: OnnxNode) -> Value | None:
    """The lengths, unless they are known to be those of all steps."""
    lens, x = node.input(LENS), node.input(X).type
    steps = x.shape[1 if node.attr("layout", 0) else 0]
    return None if lens.data is not None and (lens.data >= steps).all() else lens


def _activations(node: OnnxNode, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Of each direction. activation_alpha and _beta are consumed by those functions that have such a parameter."""
    default = _DEFAULTS[node.op_type]
    names = [str(n) for n in node.attr("activations", ())] or [*default] * directions
    if node.op_type == "RNN" and directions == 1:
        names = names[:1]  # ONNX's default has two
    if len(names) != len(default) * directions:
        found = f"{len(names)} in {directions} direction{'s' * (directions > 1)}"
        rule = f"{node.op_type}: there must be {len(default)} activations for each direction"
        raise Refusal(rule, found, "repair the model")
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
    given = node.reals(f"activation_{key}")
    rest = iter(given)
    values = [0.0 if default is None else next(rest, default) for default in defaults]
    if any(math.isnan(v) for v in values):
        rule = f"{node.op_type}: activation_{key} must be numbers, and given for ScaledTanh, which has no default"
        raise Refusal(rule, f"activation_{key}={given}", f"set activation_{key}")
    return values


for _op_type in _DEFAULTS:
    onnx_operator(_op_type, types=FLOATS, kernels=(_op_type.lower(),))(_import_recurrent)
