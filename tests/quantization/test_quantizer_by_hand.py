# SPDX-License-Identifier: Apache-2.0
"""What a quantizer remembers and chooses, by results that are given; and what it knows of states and of cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from float_models import conv_net, quantizer_of, random_weights
from onnx_models import Net
from test_profile import fused

from mcugen.core.errors import UsageError
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import DType
from mcugen.quantization import few_bits, quantize
from mcugen.quantization.float_model import build_float_model
from mcugen.quantization.plan import Plan
from mcugen.quantization.profile import Profile, TensorProfile
from mcugen.quantization.quantize import Quantizer, add_stream_states
from mcugen.quantization.ranges import RangeChoice, round_outward

FLOAT32, INT4, INT8, INT16 = DType.FLOAT32, DType.INT4, DType.INT8, DType.INT16


@pytest.fixture
def maker() -> Quantizer:
    return quantizer_of(conv_net())


# ------------------------------------------------------------------------------------------------- what is remembered


def test_the_last_eight_models_are_remembered(maker: Quantizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By layers, bits of codes, and whether weights compensate; not those of known weights."""
    made: list[Mapping[str, DType]] = []

    def quantized(layers: Mapping[str, DType], known: object) -> Any:
        made.append(layers)
        return SimpleNamespace(layers=layers, known=known)

    monkeypatch.setattr(maker, "_quantize", quantized)
    asked = [{f"layer{i}": INT8} for i in range(9)]
    first = [maker.quantize(each) for each in asked[:8]]
    assert [maker.quantize(each) for each in asked[:8]] == first and len(made) == 8
    maker.quantize(asked[8])
    assert maker.quantize(asked[1]) is first[1] and len(made) == 9
    assert maker.quantize(asked[0]) is not first[0] and len(made) == 10
    given: Any = {"codes": 1}
    assert maker.quantize(asked[2], given).known is given and len(made) == 11  # type: ignore[attr-defined]
    before = maker.quantize()
    maker.compensates = True
    assert maker.quantize() is not before
    maker.compensates = False
    assert maker.quantize({}) is before
    assert maker.with_code_bits({"a": 3.0}).quantize() is not before


def test_rounded_plans_are_remembered(maker: Quantizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last eight, by all that decides about codes."""
    rounded: list[Plan] = []
    monkeypatch.setattr(maker, "_refine_weights", lambda plan, samples: rounded.append(plan) or plan)
    plans = [Plan(precision={"a": dtype}) for dtype in (INT8, INT16, FLOAT32)]
    plans += [Plan(few_bits=frozenset(name)) for name in "ab"] + [Plan(two_bits=frozenset("a"))]
    plans += [Plan(compensated=True), Plan(code_bits={"a": 3.0}), Plan(code_bits={"a": 4.0})]
    for plan in plans[:8] * 2:
        assert maker._refine(plan) is plan
    assert rounded == plans[:8]
    maker._refine(plans[8])
    maker._refine(plans[1])
    assert len(rounded) == 9
    maker._refine(plans[0])
    assert len(rounded) == 10


# ------------------------------------------------------------------------------------------------- shares of bytes


@pytest.mark.parametrize(
    ("found", "less"), [(0.4, 1.0), (0.5, 1.0), (0.5001, 0.998 * 0.5 / 0.5001), (1.0, 0.998 * 0.5)]
)
def test_bits_are_fewer_where_a_share_was_missed(
    found: float, less: float, maker: Quantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker, "_coded_plan", lambda wanted, bits: Plan(code_bits=bits))
    monkeypatch.setattr(few_bits, "bytes_per_weight", lambda model, plan: found)
    assert maker._reduce_bits({}, {"a": 4.0, "b": 6.0}, 0.5) == pytest.approx({"a": 4.0 * less, "b": 6.0 * less})


@pytest.mark.parametrize(("noises", "chosen"), [((1.0, 2.0), 3.0), ((2.0, 1.0), 5.0), ((None, 1.0), 3.0)])
def test_codes_of_least_noise_are_taken(
    noises: tuple[float | None, float], chosen: float, maker: Quantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bits that are the same for all, and of those that are allotted by noise."""
    by_bits = {3.0: noises[0], 5.0: noises[1]}
    monkeypatch.setattr(maker, "_evenly_coded", lambda wanted, share: (Plan(code_bits={"a": 3.0}), {}))
    monkeypatch.setattr(maker, "_reduce_bits", lambda wanted, bits, share: bits)
    monkeypatch.setattr(few_bits, "redistribute_bits", lambda noise, plan: {"a": 5.0})
    monkeypatch.setattr(maker, "_coded_plan", lambda wanted, bits: Plan(noise=by_bits[bits["a"]]))
    assert maker.choose_code_bits({}, 0.5) == {"a": chosen}
    monkeypatch.setattr(maker, "_evenly_coded", lambda wanted, share: None)
    assert maker.choose_code_bits({}, 0.5) == {}


# ------------------------------------------------------------------------------------------------- ranges


def test_the_noise_of_a_tensor_alone(maker: Quantizer) -> None:
    """The least of the groups that it is in; none is known of others."""
    maker.__dict__["_own"] = {
        (("a", "b"), INT8): RangeChoice("minmax", -1.0, 1.0, 30.0),
        (("a",), INT16): RangeChoice("minmax", -1.0, 1.0, 20.0),
        (("c",), INT8): RangeChoice("minmax", -1.0, 1.0, None),
    }
    assert [maker.sqnr_of_tensor(name) for name in "abcd"] == [20.0, 30.0, math.inf, math.inf]


def test_ranges_of_groups_are_chosen_once(maker: Quantizer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[Any], Any]] = []

    def chosen(*arguments: Any) -> dict[str, RangeChoice]:
        *_, groups, _, _, _, _, beside = arguments
        asked.append((list(groups), beside))
        return {name: RangeChoice("minmax", -1.0, float(len(asked))) for group in groups for name in group}

    monkeypatch.setattr(quantize, "choose_ranges", chosen)
    plain = maker._ranges(maker._assign_types({}))
    assert len(asked) == 1 and asked[0][1] is None and {c.high for c in plain.values()} == {1.0}
    assert maker._ranges(maker._assign_types({})) == plain and len(asked) == 1
    wide = maker._ranges(maker._assign_types({"pointwise": INT16}))
    (groups, beside) = asked[1]
    assert groups and sorted(beside) == sorted(asked[0][0])
    assert {name for name, c in wide.items() if c.high == 2.0} == {name for group in groups for name in group}
    assert maker._ranges(maker._assign_types({"pointwise": INT16})) == wide and len(asked) == 2


def test_ranges_within_layers_are_steady() -> None:
    net = Net(17)
    weights = [net.const(random_weights(s, 1, 20, n)) for s, n in ((1, 4), (2, 5))]
    net.ops("LSTM", net.input("x", 3, 1, 4), *weights, outs=["y"], hidden_size=5)
    net.op("Tanh", "y", out="y2")
    net.output("y2")
    tensors = {
        name: TensorProfile((low,), (high,), (1,), ())
        for name, low, high in (("y.cell", -0.3, 0.7), ("y.gates", -3.1, 2.9), ("y2", -1.0, 1.0), ("y", -0.1, 0.2))
    }
    found = quantize._internal_ranges(fused(net.model()), Profile("", 1, tensors))
    assert found["y"] == {
        "cell": (round_outward(-0.3), round_outward(0.7)),
        "gates": (round_outward(-3.1), round_outward(2.9)),
    }
    assert all(not ranges for name, ranges in found.items() if name != "y")


def test_layers_must_be_known(maker: Quantizer) -> None:
    with pytest.raises(UsageError, match="'nothing'"):
        maker.quantize({"pointwise": INT8, "nothing": INT8, "unknown": INT8})


# ------------------------------------------------------------------------------------------------- states


def test_samples_of_a_stream_have_the_states_of_the_ones_before() -> None:
    """At first 0, or what a sample itself says."""
    net = Net(17)
    x, h = net.input("x", 1, 3), net.input("h", 1, 3)
    net.output(net.op("Add", net.op("Mul", h, net.const(0.5)), x, out="hn"))
    net.output(net.op("Neg", "hn", out="y"))
    proto = load(net.model()).proto
    samples = [{"x": np.full((1, 3), i, np.float32)} for i in (1, 4, 2)]
    found = add_stream_states(build_float_model(proto, "net", states={"hn": "h"}), samples)
    assert [s["h"].ravel().tolist() for s in found] == [[0.0] * 3, [1.0] * 3, [4.5] * 3]
    assert [s["x"].ravel().tolist() for s in found] == [[i] * 3 for i in (1, 4, 2)]
    plain = build_float_model(proto, "net")
    assert add_stream_states(plain, samples) is samples
