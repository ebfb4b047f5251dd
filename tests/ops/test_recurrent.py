# SPDX-License-Identifier: Apache-2.0
"""RNN, LSTM and GRU against onnxruntime and against `recurrence`, ONNX's equations written down once more.

onnxruntime cannot judge everything: it has no layout=1 and no float64, and other defaults of alpha and beta than
ONNX. There `recurrence` is the only oracle.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from checks import check_c
from onnx_models import Net, assert_close, imported, onnxruntime_outputs, operators, optimized

from mcugen.core.errors import ModelError, UnsupportedError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
DIRECTIONS = ("forward", "reverse", "bidirectional")
DEFAULTS = {"RNN": ["Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
RESULTS = {"RNN": ("Y", "Y_h"), "LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h")}
INPUTS = ("X", "W", "R", "B", "lens", "h0", "c0", "P")

FUNCTIONS: dict[str, Callable] = {
    "Relu": lambda x, a, b: max(x, 0.0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: x if x >= 0 else a * x,
    "ThresholdedRelu": lambda x, a, b: x if x >= a else 0.0,
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: min(max(a * x + b, 0.0), 1.0),
    "Elu": lambda x, a, b: x if x >= 0 else a * (np.exp(x) - 1),
    "Softsign": lambda x, a, b: x / (1 + abs(x)),
    "Softplus": lambda x, a, b: np.log(1 + np.exp(x)),
}
TAKES = {
    "Affine": "ab",
    "LeakyRelu": "a",
    "ThresholdedRelu": "a",
    "ScaledTanh": "ab",
    "HardSigmoid": "ab",
    "Elu": "a",
}


@dataclass(frozen=True)
class Layer:
    """One node with its tensors: by name those of INPUTS that it has; `fed` are inputs of the graph."""

    op: str
    tensors: dict[str, np.ndarray]
    fed: tuple[str, ...] = ("X",)
    direction: str = "forward"
    activations: tuple[tuple[str, float, float], ...] = ()
    """Name, alpha, beta of each, for all directions; () for the defaults."""
    clip: float = 0.0
    layout: int = 0
    linear: int = 0
    forget: int = 0
    results: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.results or RESULTS[self.op]

    def all_attributes(self) -> dict[str, object]:
        found: dict[str, object] = {"direction": self.direction, "hidden_size": self.tensors["R"].shape[2]}
        if self.activations:
            found["activations"] = [name for name, _, _ in self.activations]
            alphas = [a for name, a, _ in self.activations if "a" in TAKES.get(name, "")]
            betas = [b for name, _, b in self.activations if "b" in TAKES.get(name, "")]
            found |= {"activation_alpha": alphas} if alphas else {}
            found |= {"activation_beta": betas} if betas else {}
        found |= {"clip": self.clip} if self.clip else {}
        found |= {"layout": self.layout} if self.layout else {}
        found |= {"linear_before_reset": 1} if self.linear else {}
        found |= {"input_forget": 1} if self.forget else {}
        return found

    def add_to(self, net: Net, number: int) -> None:
        """The node in a graph; its inputs and outputs carry the number."""
        names = []
        for role in INPUTS[: 8 if self.op == "LSTM" else 6]:
            array = self.tensors.get(role)
            if array is None:
                names.append("")
            elif role in self.fed:
                names.append(net.input(f"{role}{number}", *array.shape, dtype=array.dtype.type))
            else:
                names.append(net.const(array, array.dtype.type))
        outs = [f"{r}{number}" if r in self.outputs else "" for r in RESULTS[self.op]]
        while not names[-1]:
            names.pop()
        net.nodes.append(onnx.helper.make_node(self.op, names, outs, f"node{number}", **self.all_attributes()))
        net.output(*filter(None, outs), dtype=self.tensors["X"].dtype.type)

    def feeds(self, number: int) -> dict[str, np.ndarray]:
        return {f"{role}{number}": self.tensors[role] for role in self.fed}

    def expected(self, number: int) -> dict[str, np.ndarray]:
        dtype = self.tensors["X"].dtype
        found = recurrence(self)
        return {f"{r}{number}": found[r].astype(dtype) for r in self.outputs}


# --------------------------------------------------------------------------------- the equations, in float64


def recurrence(layer: Layer) -> dict[str, np.ndarray]:
    """Y, Y_h and Y_c: one sequence after the other, one step after the other."""
    t = {k: v if k == "lens" else v.astype(np.float64) for k, v in layer.tensors.items()}
    x = t["X"].transpose(1, 0, 2) if layer.layout else t["X"]
    steps, batch, _ = x.shape
    hidden, dirs = t["R"].shape[2], len(t["R"])
    y = np.zeros((steps, dirs, batch, hidden))
    last = {"h": np.zeros((dirs, batch, hidden)), "c": np.zeros((dirs, batch, hidden))}
    for d, b in itertools.product(range(dirs), range(batch)):
        length = min(max(int(t["lens"][b]), 0), steps) if "lens" in t else steps
        state = [np.zeros(hidden), np.zeros(hidden)]
        for i, role in enumerate(("h0", "c0")):
            if role in t and length:
                state[i] = t[role][b, d] if layer.layout else t[role][d, b]
        backwards = layer.direction == "reverse" or d == 1
        for step in range(length)[:: -1 if backwards else 1]:
            state = cell(layer, d, x[step, b], *state, t)
            y[step, d, b] = state[0]
        last["h"][d, b], last["c"][d, b] = state
    if layer.layout:
        y = y.transpose(2, 0, 1, 3)
        last = {k: v.transpose(1, 0, 2) for k, v in last.items()}
    return {"Y": y, "Y_h": last["h"], "Y_c": last["c"]}


def cell(
    layer: Layer, d: int, x: np.ndarray, h: np.ndarray, c: np.ndarray, t: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """One step of direction d."""
    gates, per = GATES[layer.op], len(DEFAULTS[layer.op])
    chosen = layer.activations or tuple((n, 0.0, 0.0) for n in DEFAULTS[layer.op]) * len(t["R"])
    functions = [_elementwise(*chosen[d * per + i]) for i in range(per)]

    def clipped(v: np.ndarray) -> np.ndarray:
        return np.clip(v, -layer.clip, layer.clip) if layer.clip else v

    w, r = np.split(t["W"][d], gates), np.split(t["R"][d], gates)
    bias = t["B"][d] if "B" in t else np.zeros(2 * gates * len(h))
    wb, rb = np.split(bias[: len(bias) // 2], gates), np.split(bias[len(bias) // 2 :], gates)
    f = functions[0]
    if layer.op == "RNN":
        return [f(clipped(w[0] @ x + r[0] @ h + wb[0] + rb[0])), c]
    g = functions[1]
    if layer.op == "GRU":
        z = f(clipped(w[0] @ x + r[0] @ h + wb[0] + rb[0]))
        reset = f(clipped(w[1] @ x + r[1] @ h + wb[1] + rb[1]))
        inner = reset * (r[2] @ h + rb[2]) if layer.linear else r[2] @ (reset * h) + rb[2]
        return [(1 - z) * g(clipped(w[2] @ x + inner + wb[2])) + z * h, c]
    pi, po, pf = np.split(t["P"][d], 3) if "P" in t else np.zeros((3, len(h)))
    total = [w[n] @ x + r[n] @ h + wb[n] + rb[n] for n in range(4)]
    i = f(clipped(total[0] + pi * c))
    forget = 1 - i if layer.forget else f(clipped(total[2] + pf * c))
    new = forget * c + i * g(clipped(total[3]))
    return [f(clipped(total[1] + po * new)) * functions[2](new), new]


def _elementwise(name: str, a: float, b: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: np.array([FUNCTIONS[name](v, a, b) for v in values])


# ------------------------------------------------------------------------------------------------- the checks


def tensors(
    op: str,
    direction: str = "forward",
    *,
    steps: int = 4,
    batch: int = 3,
    depth: int = 3,
    hidden: int = 5,
    layout: int = 0,
    without: tuple[str, ...] = (),
    seed: int = 0,
    dtype: type = np.float32,
) -> dict[str, np.ndarray]:
    """Random tensors for all inputs but `without`; one sequence is of full length."""
    random = np.random.default_rng(seed)
    dirs, rows = 1 + (direction == "bidirectional"), GATES[op] * hidden
    state = (batch, dirs, hidden) if layout else (dirs, batch, hidden)
    shapes = {
        "X": (batch, steps, depth) if layout else (steps, batch, depth),
        "W": (dirs, rows, depth),
        "R": (dirs, rows, hidden),
        "B": (dirs, 2 * rows),
        "h0": state,
        "c0": state,
        "P": (dirs, 3 * hidden),
    }
    found = {k: (random.standard_normal(s) * 0.7).astype(dtype) for k, s in shapes.items()}
    found["lens"] = np.concatenate([[steps], random.integers(1, steps, batch - 1)]).astype(np.int32)
    unknown = () if op == "LSTM" else ("c0", "P")
    return {k: v for k, v in found.items() if k not in (*without, *unknown)}


def check(layers: list[Layer], by_onnxruntime: bool = True, in_c: int = 1, relative: float = 2e-5) -> None:
    """The equations ≈ onnxruntime (where it can) ≈ the numpy reference ≈ C (every `in_c`-th layer)."""
    judged = [layer for layer in layers if by_onnxruntime and not layer.layout]
    if judged:
        model, feeds, expected = together(judged)
        assert_close(onnxruntime_outputs(model, feeds), expected, 1e-4)
    model, feeds, expected = together(layers)
    assert_close(interpret(imported(model), feeds), expected, relative)
    model, feeds, expected = together(layers[::in_c])
    check_c(compile_model(model), feeds, expected, relative)


def together(layers: list[Layer]) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """All layers in one model, its inputs, and its outputs by the equations."""
    net = Net(opset=22)
    feeds: dict[str, np.ndarray] = {}
    expected: dict[str, np.ndarray] = {}
    for number, layer in enumerate(layers):
        layer.add_to(net, number)
        feeds |= layer.feeds(number)
        expected |= layer.expected(number)
    return net.model(), feeds, expected


OTHER = {
    "RNN": ("HardSigmoid",),
    "LSTM": ("HardSigmoid", "Softsign", "ScaledTanh"),
    "GRU": ("HardSigmoid", "LeakyRelu"),
}


def grid(op: str) -> list[Layer]:
    """Every combination of options; what else may be absent, constant or computed takes turns."""
    choices = itertools.product(
        DIRECTIONS,
        (None, "const", "fed"),
        (0, 1),
        (0.0, 0.6),
        (False, True),
        (0, 1) if op == "GRU" else (0,),
        (0, 1) if op == "LSTM" else (0,),
        (False, True) if op == "LSTM" else (False,),
    )
    layers = []
    for n, (direction, lens, layout, clip, other, linear, forget, peepholes) in enumerate(choices):
        turn = n // 3 % 6
        absent = [("h0",), ("c0",), ("h0", "c0"), (), (), ()][n % 6] + (("B",) if n % 5 == 3 else ())
        absent += (() if lens else ("lens",)) + (() if peepholes else ("P",))
        made = tensors(op, direction, layout=layout, without=absent, seed=n, hidden=4 + n % 3)
        fed = ("X", *(["lens"] if lens == "fed" else []), *[(), ("h0",), ("c0",), ("h0", "c0")][n % 4])
        results = [(), ("Y",), ("Y_h",), RESULTS[op][1:], (), RESULTS[op][::2]][turn]
        names = OTHER[op] * (2 if direction == "bidirectional" else 1)
        chosen = tuple((name, 0.3 + 0.1 * i, 0.4) for i, name in enumerate(names)) if other else ()
        fed = tuple(role for role in fed if role in made)
        layers.append(Layer(op, made, fed, direction, chosen, clip, layout, linear, forget, results))
    return layers


@pytest.mark.parametrize("op", GATES)
def test_grid(op: str):
    check(grid(op), in_c={"RNN": 5, "GRU": 7, "LSTM": 11}[op])


@pytest.mark.parametrize("op", GATES)
def test_activations(op: str):
    """Every function in every place; both directions have their own, and take alpha and beta in their order."""
    per, names = len(DEFAULTS[op]), list(FUNCTIONS)
    layers = []
    for n in range(len(names)):
        row = [names[(n + 3 * i) % len(names)] for i in range(2 * per)]
        chosen = tuple((name, 0.2 + 0.05 * i, 0.5 - 0.05 * i) for i, name in enumerate(row))
        layers.append(Layer(op, tensors(op, "bidirectional", seed=n, steps=3), ("X",), "bidirectional", chosen))
    check(layers, in_c=3)


def test_defaults_of_activations():
    """Those of the ONNX operators; onnxruntime has 0 for Affine and ThresholdedRelu."""
    defaults = {"Affine": (1.0, 0.0), "LeakyRelu": (0.01, 0), "ThresholdedRelu": (1.0, 0), "Elu": (1.0, 0)}
    defaults["HardSigmoid"] = (0.2, 0.5)
    net, expected, feeds = Net(opset=22), {}, {}
    for n, (name, (a, b)) in enumerate(defaults.items()):
        layer = Layer("RNN", tensors("RNN", without=("lens",), seed=n), activations=((name, a, b),))
        expected |= layer.expected(n)
        feeds |= layer.feeds(n)
        layer.add_to(net, n)
        del net.nodes[-1].attribute[:]
        net.nodes[-1].attribute.append(onnx.helper.make_attribute("hidden_size", 5))
        net.nodes[-1].attribute.append(onnx.helper.make_attribute("activations", [name.lower()]))
    assert_close(interpret(imported(net.model()), feeds), expected, 1e-5)


def weights(op: str) -> tuple[str, ...]:
    return ("X", "W", "R", "B", "lens", "h0", *(("c0", "P") if op == "LSTM" else ()))


def test_everything_may_be_an_input():
    layers = [
        Layer(op, tensors(op, direction, hidden=6), weights(op), direction, linear=linear)
        for op, linear in (("RNN", 0), ("LSTM", 0), ("GRU", 0), ("GRU", 1))
        for direction in ("reverse", "bidirectional")
    ]
    check(layers)


def test_float64():
    layers = [
        Layer(op, tensors(op, direction, dtype=np.float64), fed, direction, chosen, clip=clip)
        for op in GATES
        for direction, fed, chosen, clip in (
            ("bidirectional", ("X",), (), 0.0),
            ("reverse", weights(op), tuple((name, 0.25, 0.5) for name in OTHER[op]), 0.5),
        )
    ]
    check(layers, by_onnxruntime=False, relative=1e-12)


def test_lengths_are_clamped_and_may_be_0():
    """onnxruntime refuses what needs clamping; at length 0, it gives 0 for the last state."""
    for lens, judged in (([4, 0, 2], True), ([9, -5, 4], False)):
        layers = []
        for op, direction, fed in itertools.product(GATES, DIRECTIONS, (("X",), ("X", "lens"))):
            made = tensors(op, direction) | {"lens": np.asarray(lens, np.int32)}
            layers.append(Layer(op, made, fed, direction))
        check(layers, by_onnxruntime=judged)


def test_full_lengths_cost_nothing():
    made = tensors("GRU") | {"lens": np.full(3, 4, np.int32)}
    (node,) = imported(together([Layer("GRU", made)])[0]).nodes
    assert node.inputs[4] is None


def test_constant_inputs_are_folded_rightly():
    """ONNX's own reference does not know of lengths."""
    layers = [Layer(op, tensors(op, "bidirectional"), (), "bidirectional", clip=0.4) for op in GATES]
    model, feeds, expected = together(layers)
    graph = optimized(model)
    assert operators(graph) == []
    assert_close(interpret(graph, feeds), expected, 1e-5)


@pytest.mark.parametrize("op", GATES)
def test_steps_one_by_one_give_the_whole(op: str):
    """With the state carried by the caller, and with the state kept by the model."""
    absent = ("lens", "P", "h0", "c0")
    whole = Layer(op, tensors(op, steps=6, without=absent, seed=5))
    expected = recurrence(whole)
    state = {role: np.zeros((1, 3, 5), np.float32) for role in (("h0", "c0") if op == "LSTM" else ("h0",))}
    one = Layer(op, whole.tensors | {"X": whole.tensors["X"][:1]} | state, ("X", *state))
    kept = {f"Y_{role[0]}0": f"{role}0" for role in state}
    compiled = compile_model(together([one])[0])
    samples = []
    for x in whole.tensors["X"]:
        samples.append({"X0": x[None]} | {f"{role}0": array for role, array in state.items()})
        found = interpret(compiled.graph, samples[-1])
        state = {role: found[f"Y_{role[0]}0"] for role in state}
    for role, array in state.items():
        np.testing.assert_allclose(array, expected[f"Y_{role[0]}"], rtol=1e-5, atol=1e-6)
    outputs = compiled.run({name: np.stack([s[name] for s in samples]) for name in samples[0]}, sanitize=True)
    np.testing.assert_allclose(outputs["Y0"][:, 0], expected["Y"], rtol=1e-5, atol=1e-6)

    stateful = compile_model(together([one])[0], "host", CompileOptions(states=kept))
    assert [i.kernel for i in stateful.program.instrs] == [op.lower()]  # the state is updated in its own place
    outputs = stateful.run({"X0": whole.tensors["X"][:, None]}, sanitize=True)
    np.testing.assert_allclose(outputs["Y0"][:, 0], expected["Y"], rtol=1e-5, atol=1e-6)


def test_what_nobody_reads_is_not_computed():
    """Outputs that are named but not used cost no memory."""
    net = Net()
    made = tensors("LSTM", steps=50, without=("lens", "h0", "c0", "P"))
    x = net.input("x", *made["X"].shape)
    _, y_h, _ = net.ops("LSTM", x, *(net.const(made[r]) for r in "WRB"), outs=["y", "y_h", "y_c"], hidden_size=5)
    net.output(net.op("Relu", y_h, out="z"))
    compiled = compile_model(net.model())
    (node,) = [n for n in compiled.graph.nodes if n.op.name == "lstm"]
    assert [v.name for v in node.outputs] == ["y_h"]
    assert max(b.count for b in compiled.program.buffers if b.planned) == made["X"].size
    expected = {"z": np.maximum(recurrence(Layer("LSTM", made))["Y_h"], 0).astype(np.float32)}
    check_c(compiled, {"x": made["X"]}, expected, 1e-5)


def test_figures():
    """Both directions together make all multiplications."""
    made = tensors("GRU", "bidirectional", steps=4, batch=3, depth=3, hidden=5)
    report = compile_model(together([Layer("GRU", made, direction="bidirectional")])[0])
    assert sum(i.macs for i in report.program.instrs) == 2 * 4 * 3 * 15 * (3 + 5)


def test_opsets():
    """An old model, with what is now an attribute's default."""
    net = Net(opset=7)
    layer = Layer("LSTM", tensors("LSTM"))
    layer.add_to(net, 0)
    assert_close(interpret(optimized(net.model()), layer.feeds(0)), layer.expected(0), 1e-5)


REFUSED = {
    "direction": ({"direction": "sideways"}, "direction must be one of"),
    "activation": ({"activations": ["Sine", "Tanh"]}, "activation must be one of"),
    "number of activations": ({"activations": ["Tanh"]}, "2 activations for each direction"),
    "clip": ({"clip": -1.0}, "clip must be positive"),
    "hidden size": ({"hidden_size": 7}, "hidden_size must agree"),
    "no default": (
        {"activations": ["ScaledTanh", "Tanh"], "activation_alpha": [1.0]},
        "activation_beta must be .* given for ScaledTanh",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str):
    attributes, message = REFUSED[case]
    net = Net(opset=22)
    made = tensors("GRU")
    constants = [net.const(made[r]) for r in "WRB"]
    net.ops("GRU", net.input("x", *made["X"].shape), *constants, outs=["", "y"], **({"hidden_size": 5} | attributes))
    net.output("y", shape=(1, 3, 5))
    with pytest.raises(UnsupportedError, match=message):
        imported(net.plain_model())


@pytest.mark.parametrize("role", ["W", "R"])
def test_wrong_ranks(role: str):
    net = Net(opset=22)
    made = tensors("LSTM", without=("lens",))
    made[role] = made[role].reshape(-1)
    net.output(net.op("LSTM", net.input("x", *made["X"].shape), *(net.const(made[r]) for r in "WR"), out="y"))
    with pytest.raises((ModelError, UnsupportedError)):
        imported(net.plain_model())


@pytest.mark.parametrize("role", ["W", "R", "B", "lens", "h0", "c0", "P"])
def test_wrong_shapes(role: str):
    net = Net(opset=22)
    made = tensors("LSTM", without=("lens",)) | {"lens": np.asarray([1, 2, 3], np.int32)}
    made[role] = made[role][..., :-1]
    Layer("LSTM", made).add_to(net, 0)
    del net.nodes[0].attribute[:]
    with pytest.raises((ModelError, UnsupportedError)):
        imported(net.plain_model())
