# SPDX-License-Identifier: Apache-2.0
"""The pair matrix: every kind of producer before every operator of several outputs, in all places, for all goals.

Twelve pairs are a model. `make test` compiles half of the models, and compares their graphs with ONNX Runtime (floats
only: quantized results depend on the CPU there). The C of a part runs under the sanitizers. The sweep has all models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx
import pytest
from bundle_batch import combine
from onnx_models import Feeds, Net, assert_close, onnxruntime_outputs, random_feeds, reference_outputs
from pairs import CONSUMERS, PLACES, PRODUCERS, SHAPE, model_of

from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.memory.verify_plan import verify_plan
from mcugen.ops.onnx_node import BUILT_IN
from mcugen.ops.training import TRAINING
from mcugen.simulation import Setup, simulate

GROUP = 12
BATCH = 4
"""Models of a program."""
SHARE = 24
"""Of the models, one in so many is run in CI."""
PARTS = 4
"""Of the sweep, so that both cores are busy to its end."""
STEPS = 2
"""Samples of a run: what is kept goes from one to the next."""
FIXED_SHAPES = ("in a loop", "in a branch")
"""Places where no shape may depend on data."""


@dataclass(frozen=True)
class Group:
    """Pairs that are compiled as one model, for a goal."""

    pairs: tuple[tuple[str, str], ...]
    place: str
    goal: str

    def __str__(self) -> str:
        pairs = "; ".join(f"{producer} before {consumer}" for producer, consumer in self.pairs)
        return f"{pairs} ({self.place}, {self.goal})"

    def compiled(self, name: str = "net") -> tuple[onnx.ModelProto, CompiledModel]:
        """Right where ONNX Runtime can tell; what goes wrong names its pair."""
        try:
            return self._compiled(name)
        except Exception as error:
            singles = [Group((pair,), self.place, self.goal) for pair in self.pairs]
            for single in singles if len(singles) > 1 else ():
                single.compiled()
            raise AssertionError(f"{self}: {error}") from error

    def _compiled(self, name: str) -> tuple[onnx.ModelProto, CompiledModel]:
        proto, states = model_of(self.pairs, self.place)
        model = compile_model(proto, "host", CompileOptions(name=name, states=states, optimize=self.goal))
        verify_plan(model.program)
        if not any("codes" in producer for producer, _ in self.pairs):
            feeds = random_feeds(proto)
            wanted = onnxruntime_outputs(proto, feeds)
            found = model.interpret(feeds)
            assert_close({name: found[name] for name in wanted}, wanted, 1e-4)
        return proto, model


def groups(place: str, turn: int) -> list[Group]:
    """All pairs in a place, for goals that take turns, beginning with goal `turn`."""
    consumers = [c for c in CONSUMERS if c != "Unique"]
    rows = [tuple(consumers[i : i + GROUP]) for i in range(0, len(consumers), GROUP)]
    rows += [("Unique",)] * (place not in FIXED_SHAPES)  # its size is known at run time: compiled several times
    parts = [tuple((producer, consumer) for consumer in row) for producer, row in product(PRODUCERS, rows)]
    return [Group(pairs, place, GOALS[(number + turn) % len(GOALS)]) for number, pairs in enumerate(parts)]


def check_in_c(chosen: Sequence[Group]) -> None:
    """The C of the groups, a few to a program, gives what numpy does."""
    for start in range(0, len(chosen), BATCH):
        _run(chosen[start : start + BATCH])


def _run(chosen: Sequence[Group]) -> None:
    made = [group.compiled(f"net{number}") for number, group in enumerate(chosen)]
    expected = [_expected(proto, model) for proto, model in made]
    samples = [
        {f"net{number}/{name}": a for number, steps in enumerate(expected) for name, a in steps[step][0].items()}
        for step in range(STEPS)
    ]
    found = simulate(
        combine([model.bundle for _, model in made]), made[0][1].board, samples, setup=Setup(sanitize=True)
    ).outputs
    for number, (group, steps) in enumerate(zip(chosen, expected, strict=True)):
        for step, (_, wanted) in enumerate(steps):
            got = {name: found[step][f"net{number}/{name}"] for name in wanted}
            try:
                assert_close(got, wanted, 1e-4)
            except AssertionError as error:
                raise AssertionError(f"{group}, step {step}: {error}") from error


def _expected(proto: onnx.ModelProto, model: CompiledModel) -> list[tuple[Feeds, Feeds]]:
    """Of each step the inputs and the outputs that C has; states begin with 0, and go from one to the next."""
    states = model.options.states
    outputs = [info.name for info in proto.graph.output if info.name not in states]
    kept = {name: np.zeros((1,), np.float32) for name in states.values()}
    steps = []
    for step in range(STEPS):
        feeds = {**random_feeds(proto, step), **kept}
        found = model.interpret(feeds)
        kept = {name: found[out] for out, name in states.items()}
        steps.append(
            ({port.name: feeds[port.name] for port in model.bundle.inputs}, {name: found[name] for name in outputs})
        )
    return steps


@pytest.mark.parametrize("place", PLACES)
def test_pairs(place: str) -> None:
    """Each model has one goal; goals take turns. Of the models in places other than the model itself, a twelfth."""
    turn = list(PLACES).index(place)
    chosen = groups(place, turn)[turn :: 1 if place == "plain" else 12]
    for group in half_of(chosen) if place == "plain" else chosen:
        group.compiled()


def half_of(chosen: Sequence[Group]) -> list[Group]:
    """Return half of the groups of a place, in which every producer, consumer and goal occurs; the sweep has all."""
    rows = len(chosen) // len(PRODUCERS)
    half = []
    for number, group in enumerate(chosen):
        producer, row = divmod(number, rows)
        if (producer + producer // 2 + row) % 2 == 0:  # goals take turns, too: not every second number
            half.append(group)
    for part in ("producers", "consumers", "goals"):
        assert _named(part, half) == _named(part, chosen)
    return half


def _named(part: str, chosen: Sequence[Group]) -> set[str]:
    if part == "goals":
        return {group.goal for group in chosen}
    return {pair[part == "consumers"] for group in chosen for pair in group.pairs}


@pytest.mark.parametrize("place", PLACES)
def test_pairs_in_c(place: str) -> None:
    turn = list(PLACES).index(place)
    check_in_c(groups(place, turn)[turn::SHARE])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("goal", range(len(GOALS)))
@pytest.mark.parametrize("place", PLACES)
def test_all_pairs_in_c_for_all_goals(place: str, goal: int, part: int) -> None:
    check_in_c(groups(place, goal)[part::PARTS])


def test_every_operator_of_several_outputs_is_a_consumer() -> None:
    def most_outputs(domain: str, name: str) -> int:
        return onnx.defs.get_schema(name, domain).max_output if onnx.defs.has(name, domain) else 1

    importers = [(domain, name) for domain, name in BUILT_IN.importers if domain != TRAINING]  # see below
    several = {name for domain, name in importers if most_outputs(domain, name) > 1}
    net = Net(opset=18)
    for number, consumer in enumerate(CONSUMERS):
        PLACES["plain"](net, f"x{number}", "relu", consumer)
    assert several <= {node.op_type for node in net.nodes if len(node.output) > 1}


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("producer", ["matmul of three axes", "matmul and add", "gemm and reshape"])
def test_a_linear_layer_before_a_recurrent_one_that_keeps_its_state(producer: str, op_type: str) -> None:
    """The ordinary streaming network."""
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type], 3
    net = Net(opset=18)
    x = PRODUCERS[producer](net, net.input("x", *SHAPE))
    weights = [net.const(np.full((1, gates * hidden, size), 0.1)) for size in (SHAPE[2], hidden)]
    kept = [net.input(name, 1, 1, hidden) for name in ("h", "c")[: 2 if op_type == "LSTM" else 1]]
    outs = ["y", *(f"{name}_out" for name in kept)]
    net.output(*net.ops(op_type, x, *weights, "", "", *kept, outs=outs, hidden_size=hidden))
    states = {f"{name}_out": name for name in kept}
    model = compile_model(net.model(), options=CompileOptions(name="net", states=states))
    frames = [{"x": random_feeds(net.model(), step)["x"]} for step in range(STEPS)]
    found = model.run({"x": np.stack([frame["x"] for frame in frames])}, sanitize=True)
    assert_close({"y": found["y"]}, {"y": np.stack([o["y"] for o in model.reference(frames)])})


@pytest.mark.parametrize(("optimizer", "kept"), [("Adagrad", 1), ("Adam", 2), ("Momentum", 1)])
def test_a_layer_before_an_optimizer(optimizer: str, kept: int) -> None:
    """ONNX Runtime has none of these: ONNX's reference has. Gradient's own tests are test_gradient.py."""
    rng = np.random.default_rng(0)
    net = Net()
    product = net.op("MatMul", net.input("x", 2, 4), net.const(rng.normal(size=(4, 3))))
    gradient = net.op("Add", product, net.const(rng.normal(size=3)))
    states = [net.input(f"v{number}", 2, 3) for number in range(kept + 1)]
    rest = {"alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.1} if optimizer == "Momentum" else {}
    inputs = [net.const(0.1), net.const(2, np.int64), states[0], gradient, *states[1:]]
    made = net.ops(optimizer, *inputs, outs=[f"y{number}" for number in range(kept + 1)], domain=TRAINING, **rest)
    net.output(*made, shape=(2, 3))
    feeds = {name: np.abs(array) for name, array in random_feeds(net.model()).items()}
    model = compile_model(net.model(), "host", CompileOptions(name="net"))
    wanted = {name: np.float32(array) for name, array in reference_outputs(net.model(), feeds).items()}
    assert_close(model.interpret(feeds), wanted, 1e-5)
