# SPDX-License-Identifier: Apache-2.0
"""Random models that mix all kinds of operators.

In addition to those of random_graphs, they have control flow, recurrent layers, operators with several outputs, shared
weights, sizes that are known at run time, and matrices of several axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from pairs import CONSUMERS, PLACES, PRODUCERS, SHAPE, SHAPES, needs, takes
from random_graphs import FLOAT, MAX_ELEMENTS, MIXED, Growth, RandomModel

MAX_INPUTS = 6
MIN_ELEMENTS, WIDTH = int(np.prod(SHAPE)), SHAPE[-1]
MAX_MIXED_STEPS = 24
MIXED_OPSET = 18


def mixed_model(seed: int) -> RandomModel:
    """Return the random model of a seed."""
    return _Mixed(seed, MIXED_OPSET).grown()


class _Mixed(Growth):
    def __init__(self, seed: int, opset: int) -> None:
        super().__init__(seed, opset)
        self.shared = self.net.const(self.numbers.standard_normal((WIDTH, WIDTH)) * 0.4, name="shared")
        self.sized = False
        """Whether some size is known at run time only: one is enough, models are compiled at many sizes for it."""

    def grown(self) -> RandomModel:
        """Smaller than those of layers alone: a step may be many nodes."""
        for index in range(self.random.choice((1, 1, 2))):
            self._input(f"x{index}")
        for _ in range(self.random.randint(3, MAX_MIXED_STEPS)):
            self.random.choice(self.steps())(self)
        for index, tensor in enumerate(self.unread):
            self._output(tensor, index)
        model = self.net.model(f"mixed{self.seed}")  # codes may be rounded otherwise where they lie between two
        has_codes = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
        return RandomModel(model, FLOAT if self.kind == FLOAT and not has_codes else MIXED, self.seed)

    def steps(self) -> Sequence[Callable[[Growth], None]]:
        return _STEPS

    def _part(self) -> str:
        """SHAPE elements of some tensor, or "" where none has as many."""
        x = self._any(lambda t: t.count >= MIN_ELEMENTS)
        if x is None:
            return ""
        name = x.name
        if x.count > MIN_ELEMENTS:
            flat = self.net.op("Reshape", name, self.net.const([-1], np.int64))
            first = self.random.randint(0, x.count - MIN_ELEMENTS)
            bounds = (self.net.const([v], np.int64) for v in (first, first + MIN_ELEMENTS, 0))
            name = self.net.op("Slice", flat, *bounds)
        return self.net.op("Reshape", name, self.net.const(SHAPE, np.int64))

    def produce(self) -> None:
        """A layer, of whatever kind."""
        producer = self.random.choice(list(PRODUCERS))
        x = self._part()
        if x:
            self._result(PRODUCERS[producer](self.net, x), SHAPES.get(producer, SHAPE))

    def consume(self) -> None:
        """A layer, and an operator of several outputs behind it."""
        producer, consumer = self.random.choice(list(PRODUCERS)), self.random.choice(list(CONSUMERS))
        x = "" if consumer == "Unique" and self.sized else self._part()
        if not x:
            return
        self.sized |= consumer == "Unique"
        made, shape = PRODUCERS[producer](self.net, x), SHAPES.get(producer, SHAPE)
        if not takes(consumer, shape):
            shape = needs(consumer)
            made = self.net.op("Reshape", made, self.net.const(shape, np.int64))
        if consumer == "Unique":  # reals that differ by their last bits alone would be one value, or two
            made = self.net.fake(made, 0.05)
        self._results(CONSUMERS[consumer](self.net, made, shape))

    def placed(self) -> None:
        """Such a pair of an input of its own, in a loop or in a branch."""
        if len(self.net.inputs) >= MAX_INPUTS:
            return
        consumers = [name for name in CONSUMERS if name != "Unique"]
        place = self.random.choice(("in a loop", "in a branch"))
        name = f"x{len(self.net.inputs)}"
        producer, consumer = self.random.choice(list(PRODUCERS)), self.random.choice(consumers)
        self._results(PLACES[place](self.net, name, producer, consumer))

    def _results(self, types: dict[str, type]) -> None:
        """Real numbers go on where their shape is known, or are outputs; others are outputs."""
        known = {name: shape for name, shape in self._shapes(types).items() if 0 < np.prod(shape) <= MAX_ELEMENTS}
        for name, dtype in types.items():
            if dtype is np.float32 and name in known and self.random.random() < 0.7:
                self._result(name, known[name])
            elif self.random.random() < 0.8:  # else nobody reads it
                self.net.output(name, dtype=dtype)

    def _shapes(self, names: dict[str, type]) -> dict[str, tuple[int, ...]]:
        inferred = onnx.shape_inference.infer_shapes(self.net.plain_model()).graph.value_info
        dims = {v.name: v.type.tensor_type.shape.dim for v in inferred if v.type.tensor_type.HasField("shape")}
        return {
            name: tuple(d.dim_value for d in dims[name])
            for name in names
            if name in dims and dims[name] and all(d.dim_value for d in dims[name])
        }

    def share(self) -> None:
        """Two layers with the same weights."""
        for _ in range(2):
            x = self._part()
            if x:
                self._result(self.net.op("MatMul", x, self.shared), SHAPE)

    def chain(self) -> None:
        """A recurrent layer whose last state is the first of another."""
        x, gates = self._part(), 3
        if not x:
            return
        weights = [self.net.const(self.numbers.standard_normal((1, gates * WIDTH, WIDTH)) * 0.4) for _ in range(2)]
        first = self.net.ops("GRU", x, *weights, outs=["", f"{x}.state"], hidden_size=WIDTH)[1]
        outs = [f"{x}.rows", f"{x}.end"]
        rows, end = self.net.ops("GRU", x, *weights, "", "", first, outs=outs, hidden_size=WIDTH)
        self._result(rows, (SHAPE[0], 1, *SHAPE[1:]))
        self._result(end, (1, *SHAPE[1:]))

    def found(self) -> None:
        """What is not 0: how many that are is known at run time."""
        x = "" if self.sized else self._part()
        if x:
            self.sized = True
            kept = self.net.op("Relu", x)
            self.net.output(self.net.op("NonZero", kept), dtype=np.int64)


_STEPS: tuple[Callable[[_Mixed], None], ...] = (
    *[_Mixed.produce] * 5,
    *[_Mixed.consume] * 5,
    *[_Mixed.join] * 2,
    *[_Mixed.concat] * 2,
    *[_Mixed.cut] * 2,
    *[_Mixed.split] * 2,
    _Mixed.placed,
    _Mixed.share,
    _Mixed.chain,
    _Mixed.found,
    _Mixed.activation,
    _Mixed.dense,
    _Mixed.conv,
    _Mixed.turn,
    _Mixed.reshape,
)
