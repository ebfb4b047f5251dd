# SPDX-License-Identifier: Apache-2.0
"""Which layers are computed more precisely: the decisions by given SQNRs, and what is looked at, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from float_models import random_weights
from onnx_models import Net

from mcugen.evaluation.layers import OtherPrecision, PrecisionReason, precision_lines
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Value
from mcugen.hir.traits import readers_behind
from mcugen.hir.types import Array, DType
from mcugen.quantization import rescue
from mcugen.quantization.float_model import FloatModel, build_float_model
from mcugen.quantization.scheme import Scheme

INT16, INT32, FLOAT32 = DType.INT16, DType.INT32, DType.FLOAT32
Layers = Mapping[str, DType]


def fused(model: onnx.ModelProto, **states: str) -> FloatModel:
    return build_float_model(load(model).proto, "net", states=states)


@dataclass
class FakeQuantizer:
    """A quantizer of a model, whose results are told by layers and by whether weights compensate."""

    model: FloatModel
    samples: Sequence[Mapping[str, Array]] = ()
    scheme: Scheme = field(default_factory=Scheme)
    alone_db: Mapping[str, float] = field(default_factory=dict)
    compensates: bool = False
    always_compensates: bool = False

    def quantize(self, layers: Layers) -> Any:
        plan = SimpleNamespace(compensates=self.always_compensates or self.compensates)
        return SimpleNamespace(plan=plan, layers=dict(layers), compensates=self.compensates)

    def sqnr_of_tensor(self, name: str) -> float:
        return self.alone_db.get(name, 99.0)


# ------------------------------------------------------------------------------------------------- decisions

FIRST = rescue._Remedy(["a", "b"], INT16, "first reason")
SECOND = rescue._Remedy(["b", "c"], FLOAT32, "second reason")
THIRD = rescue._Remedy(["d"], INT16, "third reason", rescue.STREAM_DOUBTFUL_DB)

BOTH, ALL = {"a": INT16, "b": INT16}, {"a": INT16, "b": INT16, "c": FLOAT32}

DECISIONS: dict[str, tuple[dict[str, Any], dict[str, DType], list[str]]] = {
    "good already": ({"few": 31.0, "": 0.0, "ab": 99.0}, {}, []),
    "doubtful, the first helps": ({"few": 30.9, "": 30.9, "ab": 34.0}, BOTH, ["34.0 dB so, not 30.9"]),
    "by exactly 3 dB": ({"few": 20.0, "": 20.0, "ab": 23.0, "abc": 25.9}, BOTH, ["23.0 dB so, not 20.0"]),
    "by less": ({"few": 20.0, "": 20.0, "ab": 22.9, "bc": 22.9}, {}, []),
    "one after the other": (
        {"few": 20.0, "": 20.0, "ab": 23.0, "abc": 26.0},
        ALL,
        ["23.0 dB so, not 20.0", "26.0 dB so, not 23.0"],
    ),
    "the second alone": (
        {"few": 20.0, "": 20.0, "ab": 20.0, "bc": 29.0},
        {"b": FLOAT32, "c": FLOAT32},
        ["29.0 dB so, not 20.0"],
    ),
    "good enough after the first": ({"few": 20.0, "": 20.0, "ab": 31.0, "abc": 99.0}, BOTH, ["31.0 dB so"]),
    "all samples are better than few": ({"few": 20.0, "": 31.0, "ab": 99.0}, {}, []),
    "the third has a limit of its own": ({"few": 20.0, "": 39.9, "d": 42.9}, {"d": INT16}, ["42.9 dB so, not 39.9"]),
    "the third is not needed": ({"few": 20.0, "": 40.0, "d": 99.0}, {}, []),
    "chosen layers stay": (
        {"wanted": {"a": FLOAT32, "d": FLOAT32}, "few": 20.0, "ad": 26.0, "abd": 30.0, "abcd": 99.0},
        {"a": FLOAT32, "b": INT16, "c": FLOAT32, "d": FLOAT32},
        ["int16: 'b'; first reason, and outputs have 30.0 dB so", "float32: 'c'; second reason, and"],
    ),
    "a state has the higher limit": ({"is_stream": True, "few": 39.9, "": 39.9, "d": 42.9}, {"d": INT16}, ["42.9"]),
    "a good state": ({"is_stream": True, "few": 40.0, "": 0.0, "ab": 99.0}, {}, []),
    "a state where precisions are searched": (
        {"is_stream": True, "is_searched": True, "few": 31.0, "": 0.0, "ab": 99.0},
        {},
        [],
    ),
    "bad where precisions are searched": (
        {"is_searched": True, "few": 24.0, "": 24.9, "ab": 30.0, "abc": 99.0, "abd": 99.0},
        BOTH,
        ["30.0 dB so, not 24.9"],
    ),
    "not bad where precisions are searched": ({"is_searched": True, "few": 24.0, "": 25.0, "ab": 99.0}, {}, []),
    "without samples": ({"count": 0, "few": 0.0, "": 0.0, "ab": 99.0}, {}, []),
}


def decide(
    monkeypatch: pytest.MonkeyPatch, told: Mapping[str, Any], compensated: Mapping[str, float], maker: FakeQuantizer
) -> tuple[dict[str, DType], list[str]]:
    """`told`: SQNRs in dB by the raised layers, `few` for few samples, and options; 0 dB for others."""

    def sqnr(asked: FakeQuantizer, layers: Layers, most: int) -> float:
        assert asked is maker and most in (rescue.MAX_FIRST_CHECK_SAMPLES, rescue.MAX_COMPARED_SAMPLES)
        key = "few" if most == rescue.MAX_FIRST_CHECK_SAMPLES else "".join(sorted(layers))
        return (compensated if maker.compensates else told).get(key, 0.0)

    monkeypatch.setattr(rescue, "_sqnr", sqnr)
    monkeypatch.setattr(rescue, "_remedies", lambda _, is_searched: iter([FIRST, SECOND, THIRD]))
    wanted = told.get("wanted", {})
    given = dict(wanted)
    found = rescue.rescue_layers(maker, wanted, is_searched=told.get("is_searched", False))  # type: ignore[arg-type]
    assert wanted == given
    layers, reasons, notes = found
    return layers, [*rendered(reasons), *notes]


def rendered(reasons: Sequence[PrecisionReason]) -> list[str]:
    """Return the lines that the user reads of these reasons."""
    return precision_lines([OtherPrecision(r.layer, "", r.precision, r.reason, r.remedy) for r in reasons])


def plain_model(*, is_stream: bool = False) -> FloatModel:
    net = Net()
    net.op("Add", net.input("x", 1, 4), net.input("h", 1, 4), out="y")
    net.output("y")
    return fused(net.model(), **({"y": "h"} if is_stream else {}))


def fake(told: Mapping[str, Any]) -> FakeQuantizer:
    samples = [{"x": np.zeros((1, 4), np.float32)}] * told.get("count", 15)
    return FakeQuantizer(plain_model(is_stream=told.get("is_stream", False)), samples)


@pytest.mark.parametrize("name", DECISIONS)
def test_layers_are_raised_as_their_gain_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told, wanted, notes = DECISIONS[name]
    layers, found = decide(monkeypatch, told, {}, fake(told))
    assert layers == wanted
    assert len(found) == len(notes)
    assert all(note in each for note, each in zip(notes, found, strict=True))


@pytest.mark.parametrize(
    ("before", "after", "count", "is_kept"),
    [
        (20.0, 22.0, 16, True),
        (20.0, 21.9, 16, False),
        (24.9, 26.9, 16, True),
        (25.0, 99.0, 16, False),
        (20.0, 22.0, 15, False),
    ],
)
def test_weights_make_good_what_was_lost_where_that_helps(
    before: float, after: float, count: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By 2 dB, on 16 samples and more, of outputs below 25 dB."""
    told = {"few": 20.0, "": before, "count": count}
    maker = fake(told)
    layers, notes = decide(monkeypatch, told, {"": after}, maker)
    assert layers == {} and maker.compensates is is_kept
    assert [f"outputs have {after:.1f} dB so, not {before:.1f}" in note for note in notes] == [True] * is_kept
    for changed in ({"always_compensates": True}, {"scheme": Scheme(optimize_rounding=False)}):
        maker = fake(told)
        for option, value in changed.items():
            setattr(maker, option, value)
        assert decide(monkeypatch, told, {"": after}, maker) == ({}, []) and not maker.compensates


# ------------------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize(
    ("count", "most", "macs", "judged"),
    [(100, 16, 10, 16), (10, 16, 10, 10), (100, 64, 10**8, 20), (100, 16, 10**9, 4), (3, 16, 10**9, 3), (9, 8, 0, 8)],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_large_models_are_judged_by_fewer_samples(
    count: int, most: int, macs: int, judged: int, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread from first to last, but the first ones of a stream."""
    nodes = [
        SimpleNamespace(op=SimpleNamespace(macs=lambda sig: sig), sig=part) for part in (macs - macs // 3, macs // 3)
    ]
    model = SimpleNamespace(graph=SimpleNamespace(nodes=nodes), states={"a": "b"} if is_stream else {})
    maker: Any = SimpleNamespace(model=model, samples=[{"x": i} for i in range(count)], quantize=lambda layers: layers)
    seen: list[list[int]] = []

    def output_sqnr(quantized: object, samples: Sequence[Mapping[str, int]]) -> float:
        assert quantized == {"l": INT16}
        seen.append([sample["x"] for sample in samples])
        return 12.0

    monkeypatch.setattr(rescue, "output_sqnr_db", output_sqnr)
    assert rescue._sqnr(maker, {"l": INT16}, most) == 12.0
    (places,) = seen
    assert len(places) == judged and places == sorted(set(places))
    if is_stream:
        assert places == list(range(judged))
    else:
        assert places[0] == 0 and places[-1] == count - 1
        assert max(np.diff(places), default=1) <= min(np.diff(places), default=1) + 1


# ------------------------------------------------------------------------------------------------- remedies


def two_inputs() -> onnx.ModelProto:
    """A concatenation of two inputs, one of which is flattened before, and an input of its own."""
    net = Net(17)
    flat = net.op("Reshape", net.input("a", 1, 2, 2), net.const([1, 4], np.int64), out="flat")
    net.op("Concat", flat, net.input("b", 1, 3), axis=1, out="joined")
    net.op("Transpose", "joined", perm=[1, 0], out="turned")
    net.op("MatMul", net.const(random_weights(1, 3, 7)), "turned", out="y")
    net.op("Concat", "b", net.const(np.ones((1, 2))), axis=1, out="padded")
    net.op("MatMul", "padded", net.const(random_weights(1, 5, 3)), out="z")
    net.op("Relu", net.input("c", 1, 3), out="r")
    net.op("Concat", "c", "r", axis=1, out="mixed")
    net.op("Concat", "c", "b", axis=1, out="others")
    net.op("Concat", "c", net.const(np.ones((1, 2))), "b", axis=1, out="filled")
    net.op("Gather", "filled", net.input("places", 2, dtype=np.int64), axis=1, out="picked")
    net.output("y", "z", "mixed", "others", "picked")
    return net.model()


def names_of(values: Sequence[Value]) -> set[str]:
    return {v.name for v in values}


def test_tensors_of_several_inputs() -> None:
    model = fused(two_inputs())
    assert names_of(rescue._moved_inputs(model, model.graph.inputs)) == {
        "joined",
        "turned",
        "others",
        "filled",
        "picked",
    }
    assert names_of(rescue._moved_inputs(model, [v for v in model.graph.inputs if v.name != "a"])) == {
        "others",
        "filled",
        "picked",
    }


def test_readers_behind_what_moves_data() -> None:
    model = fused(two_inputs())
    inputs = {v.name: v for v in model.graph.inputs if v.name != "places"}
    found = {name: {n.outputs[0].name for n in readers_behind(v)} for name, v in inputs.items()}
    assert found == {"a": {"y"}, "b": {"y", "z"}, "c": {"r"}}


def test_layers_are_raised_on_from_results_that_int8_serves_badly() -> None:
    net = Net(17)
    net.op("MatMul", net.input("x", 1, 4), net.const(random_weights(1, 4, 4)), out="spectrum")
    net.op("Log", "spectrum", out="log")
    net.op("MatMul", "log", net.const(random_weights(2, 4, 4)), out="y")
    net.op("Tanh", "x", out="t")
    net.output("y", "t")
    model = fused(net.model())
    for alone_db, wanted in (
        ({"spectrum": 24.9}, ["log", "spectrum", "t"]),
        ({"spectrum": 25.0}, ["spectrum", "t"]),
        ({"spectrum": 0.0, "log": 0.0}, ["log", "spectrum", "t", "y"]),
    ):
        maker: Any = FakeQuantizer(model, alone_db=alone_db)
        assert sorted(rescue._readers_of(model.graph.inputs, maker)) == wanted


def test_a_layer_is_named_by_its_first_output() -> None:
    net = Net(17)
    weights = [net.const(random_weights(s, 1, 20, n)) for s, n in ((1, 4), (2, 5))]
    net.ops("LSTM", net.input("x", 3, 1, 4), *weights, outs=["all", "last"], hidden_size=5)
    net.output("all", "last")
    maker: Any = FakeQuantizer(fused(net.model()))
    assert rescue._readers_of(maker.model.graph.inputs, maker) == ["all"]


def test_what_is_observed_of_tensors() -> None:
    model = fused(two_inputs())
    random = np.random.default_rng(0)
    shapes, places = {"a": (1, 2, 2), "b": (1, 3), "c": (1, 3)}, {"places": np.zeros(2, np.int64)}
    samples = [
        {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()} | places for _ in range(300)
    ]
    maker: Any = FakeQuantizer(model, samples)
    seen = np.linspace(0, 299, 256).round().astype(int)
    values = {v.name: v for v in model.tensors}
    found = rescue._observe(maker, values["a"])
    assert [x.tolist() for x in found] == [samples[i]["a"].tolist() for i in seen]
    maker = FakeQuantizer(model, samples[:3])
    for name, wanted in (("joined", lambda s: [[*s["a"].ravel(), *s["b"][0]]]), ("b", lambda s: s["b"])):
        found = rescue._observe(maker, values[name])
        assert [x.tolist() for x in found] == [np.asarray(wanted(s)).tolist() for s in samples[:3]]


def spans_ratio(arrays: Sequence[Array], axis: int) -> float:
    """Of single elements: ranges that hold 0, by index along the axis; empty ones do not count."""
    low, high = [0.0] * arrays[0].shape[axis], [0.0] * arrays[0].shape[axis]
    for array in arrays:
        for index, element in np.ndenumerate(array):
            k = index[axis]
            low[k], high[k] = min(low[k], float(element)), max(high[k], float(element))
    spans = [b - a for a, b in zip(low, high, strict=True) if b > a]
    return max(spans) / min(spans) if spans else 1.0


def value_of(shape: tuple[int, ...]) -> Value:
    net = Net(17)
    net.output(net.op("Relu", net.input("x", *shape)))
    return fused(net.model()).graph.inputs[0]


@pytest.mark.parametrize("shape", [(1, 5), (2, 3), (1, 3, 4), (2, 3, 4, 2), (1, 2, 3, 4)])
def test_disparate_ranges(shape: tuple[int, ...]) -> None:
    """Along the channels, and along the last axis of rows."""
    random, value = np.random.default_rng(0), value_of(shape)
    for axis, sign in ((a, s) for a in range(len(shape)) for s in (1, -1, 0)):
        arrays = [random.uniform(0.9, 1.0, shape) * (sign or random.choice([1, -1], shape)) for _ in range(3)]
        index = tuple(slice(0, 1) if a == axis else slice(None) for a in range(len(shape)))
        for array in arrays:
            array[index] /= 20
        assert rescue._ratio(value, arrays, axis) == pytest.approx(spans_ratio(arrays, axis))
        looked_at = {1, len(shape) - 1} if len(shape) < 4 else {1}
        assert rescue._is_disparate(value, arrays) == any(spans_ratio(arrays, a) > 8 for a in looked_at)
    assert rescue._ratio(value, [np.zeros(shape)], 1) == 1.0


@pytest.mark.parametrize(("ratio", "is_disparate"), [(8.0, False), (8.01, True)])
def test_ranges_apart(ratio: float, is_disparate: bool) -> None:
    arrays = [np.array([[ratio, 0.0, 1.0]]), np.array([[0.0, 0.0, 0.5]])]
    assert rescue._is_disparate(value_of((1, 3)), arrays) is is_disparate


# ------------------------------------------------------------------------------------------------- what may be tried


def recurrent_net() -> onnx.ModelProto:
    """A GRU of one input, a layer of another that is disparate, and a state that is written out."""
    net = Net(17)
    weights = [net.const(random_weights(s, 1, 9, n)) for s, n in ((1, 4), (2, 3))]
    net.ops("GRU", net.input("x", 2, 1, 4), *weights, outs=["g"], hidden_size=3)
    net.op("MatMul", net.input("apart", 1, 4), net.const(random_weights(3, 4, 3)), out="p")
    net.op("MatMul", net.input("coarse", 1, 4), net.const(random_weights(4, 4, 3)), out="c")
    net.op("Tanh", net.input("n", 4), out="t")
    net.op("Relu", net.op("MatMul", "p", net.const(random_weights(5, 3, 3)), out="pre"), out="before")
    new = net.op("Mul", net.input("h", 1, 3), net.const([0.5, 0.6, 0.7]), out="decayed")
    net.op("Tanh", net.op("Add", new, "before", out="sum"), out="hn")
    net.op("MatMul", "hn", net.const(random_weights(6, 3, 2)), out="y")
    net.output("g", "c", "t", "y", "hn")
    return net.model()


def remedies(
    scheme: Scheme, alone_db: Mapping[str, float], *, is_searched: bool = False
) -> list[tuple[set[str], DType, float]]:
    model, random = fused(recurrent_net(), hn="h"), np.random.default_rng(0)
    sample = {v.name: random.uniform(0.5, 1, v.type.shape).astype(np.float32) for v in model.graph.inputs}
    sample["apart"][0, 0], sample["n"][0] = 99.0, 99.0
    maker: Any = FakeQuantizer(model, [sample], scheme, alone_db)
    return [(set(r.layers), r.dtype, r.below_db) for r in rescue._remedies(maker, is_searched=is_searched)]


def test_what_may_be_tried() -> None:
    """Recurrent layers; readers of disparate features, of small numbers, layers beside any; the layers of a state."""
    found = remedies(Scheme(), {"coarse": 24.9, "x": 25.0, "apart": 0.0})
    (cells, cell_type, cell_db), *features, (state, state_type, state_db), (behind, behind_type, behind_db) = found
    assert len(cells) == 1 and (cell_type, cell_db) == (INT16, 31.0)
    assert features == [({"p"}, FLOAT32, 31.0), ({"c"}, FLOAT32, 31.0), ({"p", "c", "g"}, FLOAT32, 31.0)]
    assert (state_type, state_db) == (INT16, 40.0)
    assert state == {"decayed", "sum", "hn", "before"}
    assert (behind, behind_type, behind_db) == (state | {"y"}, INT16, 45.0)
    assert remedies(Scheme(activations=INT16), {"coarse": 24.9}) == [*features[:2], ({"c"}, FLOAT32, 31.0)]
    assert remedies(Scheme(), {})[2:4] == [(set(), FLOAT32, 31.0)] * 2
    searched = remedies(Scheme(), {"coarse": 24.9, "x": 25.0, "apart": 0.0}, is_searched=True)
    assert searched == [remedy for remedy in found if remedy != ({"p", "c", "g"}, FLOAT32, 31.0)]


@pytest.mark.parametrize(("alone_db", "beside"), [(34.9, {"sum", "hn"}), (35.0, set())])
def test_layers_beside_a_tensor_that_int8_serves_badly(alone_db: float, beside: set[str]) -> None:
    """What computes that tensor, and what reads it, wherever that is."""
    assert remedies(Scheme(), {"sum": alone_db})[3] == (beside, FLOAT32, 31.0)


@pytest.mark.parametrize(("alone_db", "beside"), [(43.9, {"y", "d", "score.kept"}), (44.0, set())])
def test_scores_have_higher_limits(alone_db: float, beside: set[str]) -> None:
    net = Net(18)
    net.op("MatMul", net.input("x", 1, 4), net.const(random_weights(1, 4, 4)), out="y")
    net.op("Abs", "y", out="d")
    net.output(net.op("ReduceMean", "d", net.const([1], np.int64), out="score", keepdims=0))
    model = fused(net.model())
    maker: Any = FakeQuantizer(model, [{"x": np.ones((1, 4), np.float32)}], alone_db={"y": alone_db, "d": alone_db})
    (found,) = [r for r in rescue._remedies(maker, is_searched=False) if r.below_db == 40.0 and r.dtype is FLOAT32]
    assert set(found.layers) == beside
    assert rescue._doubtful_db(model) == 40.0


@pytest.mark.parametrize(
    ("reached", "activations", "times", "chosen"),
    [
        ((40.0, 33.0, 33.0), DType.INT8, {}, INT16),
        ((40.0, 32.9, 33.0), DType.INT8, {}, INT32),
        ((40.0, 32.9, 32.9), DType.INT8, {}, FLOAT32),
        ((31.0, 32.9, 30.0), DType.INT8, {}, INT32),
        ((31.0, 32.9, 29.9), DType.INT8, {}, FLOAT32),
        ((40.0, 33.0, 33.0), INT16, {}, FLOAT32),
        ((40.0, 33.0, 33.0), DType.INT8, {FLOAT32: 9.0, INT16: 8.0, INT32: 7.0}, INT32),
        ((40.0, 33.0, 33.0), DType.INT8, {FLOAT32: 7.0, INT16: 8.0, INT32: 9.0}, FLOAT32),
        ((40.0, 33.0, 32.9), DType.INT8, {FLOAT32: 9.0, INT16: 8.0, INT32: 7.0}, INT16),
        ((40.0, 33.0, 33.0), DType.INT8, {FLOAT32: 7.0, INT16: 8.0}, INT16),
    ],
)
def test_costly_layers_get_the_fastest_type_that_is_enough(
    reached: tuple[float, float, float],
    activations: DType,
    times: Mapping[DType, float],
    chosen: DType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """6,400 of 6,800 multiplications cost much in float32, 400 do not. Where a time is unknown, the first type wins."""
    net = Net(17)
    net.op("MatMul", net.input("x", 1, 80), net.const(random_weights(1, 80, 80)), out="wide")
    net.output(net.op("MatMul", "wide", net.const(random_weights(2, 80, 5)), out="narrow"))
    maker: Any = FakeQuantizer(fused(net.model()), [{"x": np.zeros((1, 80), np.float32)}], Scheme(activations))
    sqnr_db = {None: 20.0, **dict(zip((FLOAT32, INT16, INT32), reached, strict=True))}
    monkeypatch.setattr(rescue, "_sqnr", lambda _maker, layers, _most: sqnr_db[layers.get("wide")])
    monkeypatch.setattr(
        rescue, "_remedies", lambda _, is_searched: iter([rescue._Remedy(["wide", "narrow"], FLOAT32, "it is small")])
    )
    layers, reasons, _ = rescue.rescue_layers(
        maker, {}, time_of=lambda model: times.get(cast(Any, model).layers["wide"])
    )
    assert layers == {"wide": chosen, "narrow": FLOAT32}
    assert {reason.layer: reason.precision for reason in reasons} == {n: d.value for n, d in layers.items()}
    assert all(
        f"it is small, and outputs have {sqnr_db[chosen]:.1f} dB so, not 20.0" in note for note in rendered(reasons)
    )


def test_layers_between_a_state_and_its_next() -> None:
    """And those whose results they read: not what comes before these; apart from them what reads a state besides."""
    net = Net(17)
    net.op("MatMul", net.op("Tanh", net.input("x", 1, 4), out="first"), net.const(random_weights(1, 4, 4)), out="read")
    net.op("Sigmoid", net.input("h", 1, 4), out="gate")
    net.op("Mul", "gate", "read", out="kept")
    net.op("Transpose", "kept", perm=[1, 0], out="turned")
    net.op("Softmax", "turned", axis=0, out="soft")
    net.op("Reshape", "soft", net.const([1, 4], np.int64), out="hn")
    net.op("Exp", "h", out="aside")
    net.op("Neg", "hn", out="behind")
    net.output("hn", "aside", "behind")
    assert rescue._state_layers(fused(net.model(), hn="h")) == (["read", "gate", "kept", "soft"], ["aside", "behind"])
    assert rescue._state_layers(fused(net.model())) == ([], [])


def test_a_state_that_is_only_moved_has_no_layers() -> None:
    """A cache that a scatter updates, and a window of samples, keep what was rounded once; a sum with it does not."""
    for updates in ("scatter", "window", "sum"):
        net = Net(17)
        x = net.op("Tanh", net.op("MatMul", net.input("x", 1, 4), net.const(random_weights(1, 4, 4))), out="read")
        h = net.input("h", 3, 4)
        if updates == "window":
            hn = net.op(
                "Concat", net.op("Slice", h, *(net.const([n], np.int64) for n in (1, 3, 0))), x, axis=0, out="hn"
            )
        else:
            kept = net.op("Mul", h, net.const(0.5)) if updates == "sum" else h
            index = net.op("Reshape", net.input("pos", 1, dtype=np.int64), net.const([1, 1], np.int64))
            hn = net.op("ScatterND", kept, index, x, out="hn")
        net.output("hn", net.op("Exp", hn, out="behind"))
        kept_layers, behind = rescue._state_layers(fused(net.model(), hn="h"))
        assert bool(kept_layers) == bool(behind) == (updates == "sum")
