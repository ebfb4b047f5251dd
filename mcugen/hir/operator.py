# SPDX-License-Identifier: Apache-2.0
"""What the passes may ask of an operator: the one interface between them and the operator families in ops/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from mcugen.hir.types import Array, Bounds, TensorType

if TYPE_CHECKING:
    from mcugen.hir.graph import Graph, Node, Value

Permutation = tuple[int, ...]
IntegerForm = tuple["Operator", Sequence["Value | None"]]


@dataclass(frozen=True)
class Signature:
    """The types an operator is applied to. An absent optional input is None."""

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]

    def input(self, index: int) -> TensorType:
        """The type of an input that is present."""
        found = self.inputs[index]
        assert found is not None
        return found

    @property
    def output(self) -> TensorType:
        """The type of the only output."""
        (found,) = self.outputs
        return found


@dataclass(frozen=True)
class Channels:
    """Of which channels (indices of the last axis) the output's channels are made, and the operator for fewer.

    `sources` has by input an entry for each output channel: the one channel of that input which it depends on, −1 if
    on none; None: the input is read as a whole, or not channel by channel. Constants with an axis in
    `Operator.weight_axes` have their channels there.
    """

    sources: Sequence[Array | None]
    narrowed: Callable[[int], Operator]
    """The operator for a number of output channels, whose inputs are as narrow."""
    sums: bool = False
    """Whether each output channel is a sum over all channels of input 0, weighed by the last axis of input 1."""
    leaves: bool = False
    """Whether some of these sums lack elements, where a window leaves the input."""


@dataclass(frozen=True)
class RowWindow:
    """The rows of an input that output row r reads: `span` of them from r · stride − before, along `axis`.

    Rows outside of the input hold `fill` throughout, and so do the columns that are added to each row at both `sides`,
    on the axis after.
    """

    axis: int = 1
    span: int = 1
    stride: int = 1
    before: int = 0
    fill: float = 0
    sides: tuple[int, int] = (0, 0)

    @property
    def leaves(self) -> bool:
        """Whether it may reach outside of the input."""
        return self.span > 1 or self.before > 0 or any(self.sides)


@dataclass(frozen=True)
class RowForm:
    """How an operator computes one row of its output: `op`, applied to the rows in its windows.

    `windows` are by input, None where all of it is read. With `finish`, `op` adds one row of its first input to sums
    (its second, int32, 0 at first), and `finish` makes the output of the sums of all rows.
    """

    op: Operator
    windows: tuple[RowWindow | None, ...]
    axis: int = 1
    finish: Operator | None = None


@dataclass(frozen=True)
class Operator:
    """An operator with its attributes; immutable, compared by value. Subclasses live in ops/.

    A method that a pass calls has a default meaning "nothing to gain here", so that a new operator needs
    only `infer`, `evaluate` and `lower` (see lir/lower.py).
    """

    mnemonic: ClassVar[str] = ""
    """Name in dumps and reports; families of many functions override `name` instead."""
    moves_data: ClassVar[bool] = False
    """Copies elements without looking at them: works on every element type, keeps quantization parameters."""
    weight_axes: ClassVar[Mapping[int, int]] = {}
    """Constant inputs that are quantized symmetrically, one scale for each index of the axis given."""
    bias_input: ClassVar[int | None] = None
    """The constant input that is added to the accumulators, in their unit."""
    real_inputs: ClassVar[frozenset[int]] = frozenset()
    """Constant inputs that the integer form takes as real numbers."""

    @property
    def name(self) -> str:
        """Name in dumps, reports and kernel names."""
        return self.mnemonic

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """The names that operators of this class have, and the fields that each tells: for dumps to be read again."""
        return {cls.mnemonic: {}} if cls.mnemonic else {}

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Graphs that the operator runs. Passes, checks and dumps descend into them; their signatures stay."""
        return ()

    @property
    def repeats(self) -> tuple[int, ...]:
        """How often each of its bodies runs, at most."""
        return (1,) * len(self.bodies)

    @property
    def wants_channels_last(self) -> bool:
        """Whether this is the channels-first form of an operator with space."""
        return False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Types of the outputs; raises ModelError when the inputs cannot be right."""
        raise NotImplementedError

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The numpy reference: for integer types, the specification to the last bit."""
        raise NotImplementedError

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """What the elements of each output lie between, by the bounds of the inputs; None: nothing is known.

        Inputs are as in `evaluate`; both bounds of a constant are one array.
        """
        ends = [bounds for bounds in inputs if bounds is not None]
        if not self.rises or not ends or len(ends) < len(inputs):
            return (None,) * len(sig.outputs)
        lows, highs = (self.evaluate(sig, *arrays) for arrays in zip(*ends, strict=True))
        return tuple(zip(lows, highs, strict=True))

    @property
    def rises(self) -> bool:
        """Whether no output falls where inputs rise."""
        return self.moves_data

    def channels(self, sig: Signature) -> Channels | None:
        """How it works channel by channel, or sums all of them with constant weights; None: neither."""
        return None

    def macs(self, sig: Signature) -> int:
        """Multiply-accumulates of one inference, padding included."""
        return 0

    def reads(self, sig: Signature) -> int:
        """Elements under all windows, where an operator has windows but no multiply-accumulates; else 0."""
        return 0

    def spec(self, node: Node) -> object:
        """What kernels take of the layer: types, constants and what follows from them; see mcugen.lir.spec.

        By default the node itself.
        """
        return node

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """A value that already equals the only output of `node` (or is cheaper to compute), else None."""
        return None

    def keeping(self, wanted: Sequence[bool]) -> Operator | None:
        """The operator with only those outputs, in order; None: it always computes all."""
        return None

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """How to compute this on quantized tensors directly, or None (then it stays a float island).

        `sig` and `inputs` are what the integer operator would read and write: quantized wherever the model
        (de)quantizes; the output always is. The form may name other inputs, e.g. constants added to `graph`.
        """
        return None

    def internals(self, sig: Signature, *arrays: Array) -> Mapping[str, Array]:
        """Tensors within the computation that an integer form quantizes too, by role (of a cell: its state)."""
        return {}

    def unfolded(self, sig: Signature, x: Array) -> Array | None:
        """The real input of an operator with weights as [groups, rows, depth].

        Its sums are rows · wᵀ + bias for weights as [groups, outputs of a group, depth]. None: it is no such product.
        """
        return None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """ONNX operator, attributes and further constant inputs that compute the same on reals, `clamp` aside.

        None: there is no single ONNX node of these inputs; the model's own nodes say it.
        """
        return None

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """The operator whose output is this one's transposed by `perm`.

        With it come the permutations that its inputs must undergo (None: leave that input as it is).
        None: transpositions do not pass through this operator.
        """
        return None

    def with_clamp(self, low: float, high: float) -> Self | None:
        """The operator with its real-valued result clamped to [low, high], if it can do that for nothing."""
        return None

    def by_rows(self, sig: Signature) -> RowForm | None:
        """How to compute one row of the output, or None: there is no such thing."""
        return None

    def without_clamp(self) -> Self | None:
        """The operator without its clamp; None: it has none that `bounds` knows of."""
        return None
