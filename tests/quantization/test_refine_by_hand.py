# SPDX-License-Identifier: Apache-2.0
"""Layers one after the other, each by what those before it give in integers: biases, and the noise that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from float_models import normal_samples, random_weights
from onnx_models import Net

from mcugen.frontend.onnx.load import load
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization import refine as refining
from mcugen.quantization.float_model import FloatModel, build_float_model
from mcugen.quantization.plan import Plan, QuantizedWeights, Stored
from mcugen.quantization.profile import Profile, TensorProfile
from mcugen.quantization.refine import quantize_weights
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.weights import plain_codes

INT8, INT16, FLOAT32 = DType.INT8, DType.INT16, DType.FLOAT32
WIDTHS = {"a": (5, 7), "b": (7, 6), "c": (6, 3), "d": (3, 4)}
SCHEME = Scheme(optimize_rounding=False)


def chain() -> FloatModel:
    net = Net(17)
    y = net.input("x", 1, 5)
    for k, (name, (depth, width)) in enumerate(WIDTHS.items()):
        bias = net.const(np.linspace(-1, 1, width) * k)
        y = net.op("Gemm", y, net.const(2 * random_weights(k, depth, width)), bias, out=name)
    net.output(y)
    return build_float_model(load(net.model()).proto, "net", equalized=False)


MODEL = chain()
NODES = {node.output.name: node for node in MODEL.graph.nodes}


def weights(name: str) -> Array:
    """[inputs, outputs]."""
    data = NODES[name].input(1).data
    assert data is not None
    return (data if data.shape == WIDTHS[name] else data.T).astype(np.float64)


def bias(name: str) -> Array:
    data = NODES[name].input(2).data
    assert data is not None
    return data.astype(np.float64)


def stored(low: float, high: float, dtype: DType) -> Stored:
    """In steps of a whole range: asymmetric int8, symmetric int16."""
    return Stored(dtype, params(low, high, dtype), "minmax", low, high)


def params(low: float, high: float, dtype: DType) -> QuantParams:
    if dtype is INT16:
        return QuantParams((float(np.float32(max(-low, high) / 32767)),), 0)
    scale = float(np.float32((high - low) / 255))
    return QuantParams((scale,), round(-128 - low / scale))


def rounded(x: Array, quant: QuantParams, dtype: DType) -> Array:
    (scale,), (low, high) = quant.scale, dtype.limits
    q = np.rint((x.astype(np.float32) / np.float32(scale)).astype(np.float64)) + quant.zero_point
    return (np.clip(q, low, high) - quant.zero_point) * scale


def decoded(codes: QuantizedWeights, name: str) -> Array:
    real = codes.weights.astype(np.float64) * np.asarray(codes.steps, np.float64)
    return real if real.shape == WIDTHS[name] else real.T


def by_hand(plan: Plan, samples: Sequence[Mapping[str, Array]], trust: float) -> tuple[dict[str, Array], float]:
    """The bias of each integer layer, of which the means are kept as far as they are trusted; and the noise."""
    real = seen = np.concatenate([s["x"] for s in samples]).astype(np.float64)
    source, found = "x", {}
    for name in WIDTHS:
        dtype, w = plan.precision[name], weights(name)
        if dtype is FLOAT32:
            read, made, offset = seen, w, bias(name)
        else:
            info = plan.activations[source]
            is_stored = source != "x" and plan.precision[source] is not FLOAT32 and info.dtype is dtype
            read = seen if is_stored else rounded(seen, params(info.low, info.high, dtype), dtype)
            made = decoded(plan.layers[name], name)
            offset = bias(name) + trust * (real.mean(0) @ w - read.mean(0) @ made)
            found[name] = offset
        real, seen = real @ w + bias(name), read @ made + offset
        if dtype is not FLOAT32 and name in plan.activations:
            seen = rounded(seen, plan.activations[name].quant, plan.activations[name].dtype)
        source = name
    return found, float(np.square(real - seen).sum() / np.square(real).sum())


def types(names: str, **others: DType) -> dict[str, DType]:
    return {**dict.fromkeys(names, INT8), **others}


TYPES: dict[str, tuple[dict[str, DType], dict[str, DType]]] = {
    "all of int8": (types("abcd"), types("xabcd")),
    "a wide one": (types("abcd", b=INT16), types("xabcd", a=INT16, b=INT16)),
    "a float one": (types("abcd", c=FLOAT32), types("xabcd")),
    "real results": (types("abcd", b=FLOAT32, c=FLOAT32, d=INT16), types("xac", c=INT16)),
}


def plan_of(kind: str) -> Plan:
    precision, dtypes = TYPES[kind]
    ends = {"x": (-3.0, 2.5), "a": (-5.0, 6.0), "b": (-9.0, 7.0), "c": (-9.0, 12.0), "d": (-14.0, 16.0)}
    activations = {name: stored(*ends[name], dtype) for name, dtype in dtypes.items()}
    return Plan(scheme=SCHEME, activations=activations, precision=precision)


NO_PROFILE = Profile("", 0, {})


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("count", "trust"), [(20, 1 - 1 / 20), (48, 1 - 1 / 48), (60, 1 - 1 / 48)])
def test_biases_keep_the_means_of_what_layers_before_give(kind: str, count: int, trust: float) -> None:
    """By 48 samples at most."""
    samples = normal_samples(MODEL.proto, count)
    steps: list[tuple[int, int]] = []
    plan = quantize_weights(MODEL, plan_of(kind), samples, NO_PROFILE, lambda *step: steps.append(step))
    used = [samples[i * count // min(count, 48)] for i in range(min(count, 48))]
    found, _ = by_hand(plan, used, trust)
    assert plan.layers.keys() == found.keys() and plan.noise is None
    for name, wanted in found.items():
        assert plan.layers[name].bias == pytest.approx(wanted, abs=1e-4)  # as if one element were rounded otherwise
    last = max(i for i, name in enumerate(WIDTHS, 1) if plan.precision[name] is not FLOAT32)
    assert steps == [(k, last) for k in range(1, last + 1)]


@pytest.mark.parametrize("kind", TYPES)
def test_the_noise_of_coarse_weights_is_that_of_outputs(kind: str) -> None:
    """Relative to their signal; by fifty samples and more, means are believed in full."""
    samples = normal_samples(MODEL.proto, 100)
    plan = plan_of(kind)
    plan.few_bits = frozenset({"a"})
    plan = quantize_weights(MODEL, plan, samples, NO_PROFILE, lambda *_: None)
    assert plan.layers["a"].dtype is DType.INT4 and np.abs(plan.layers["a"].weights).max() <= 8
    found, noise = by_hand(plan, samples, trust=1.0)
    for name, wanted in found.items():
        assert plan.layers[name].bias == pytest.approx(wanted, abs=1e-2)
    assert plan.noise == pytest.approx(noise, rel=0.02)


def test_weights_without_samples_are_the_nearest() -> None:
    """Biases are those of the model, or by the means of a profile where it has them."""
    ends = tuple(map(float, range(10)))
    tensor = TensorProfile(ends, ends, (), tuple(np.linspace(-1, 1, 5)))
    profile = Profile("", 10, {"x": tensor})
    plan = quantize_weights(MODEL, plan_of("all of int8"), [], profile, lambda *_: None)
    for name in WIDTHS:
        codes, w = plan.layers[name], weights(name)
        scale = np.abs(w).max(0) / 127
        plain = np.rint(w / scale.astype(np.float32))
        assert np.abs(decoded(codes, name) / scale - plain).max() < 1e-3
        wanted = bias(name)
        if name == "a":
            wanted = wanted + (1 - 1 / 10) * np.linspace(-1, 1, 5) @ (w - decoded(codes, name))
        assert codes.bias == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "most", "elements", "used"),
    [(9, 4, 10, 4), (3, 4, 10, 3), (100, 48, 10**7, 8), (100, 48, 3 * 10**6, 22), (5, 48, 10**9, 5)],
)
def test_as_many_samples_as_fit_the_memory(
    count: int, most: int, elements: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refining, "MAX_REFINEMENT_ELEMENTS", 2**26 * 7 // elements)
    samples = [{"x": np.asarray(i)} for i in range(count)]
    found = [int(s["x"]) for s in refining._spread(MODEL.graph, samples, most)]
    wanted = min(count, most, max(2**26 * 7 // elements // 7, 8))
    assert found == [i * count // wanted for i in range(wanted)] and wanted == used


@pytest.mark.parametrize("options", [{}, {"per_channel": False}, {"power_of_two": True}])
def test_scales_of_four_bits_may_clip_where_they_are_free(options: Mapping[str, bool]) -> None:
    """Not those that all channels share, nor powers of two."""
    scheme = Scheme(correct_bias=False, **options)
    plan = plan_of("all of int8")
    plan.scheme, plan.few_bits = scheme, frozenset("a")
    found = quantize_weights(MODEL, plan, normal_samples(MODEL.proto, 30), NO_PROFILE, lambda *_: None).layers
    plain = plain_codes(NODES["a"], scheme, DType.INT4)
    assert found["a"].scales.shape == plain.scales.shape
    assert (found["a"].scales != plain.scales).any() == (not options)
    assert (found["b"].scales == plain_codes(NODES["b"], scheme).scales).all()


@pytest.mark.parametrize("correct_bias", [True, False])
@pytest.mark.parametrize("with_samples", [True, False])
def test_outputs_that_never_change_have_weights_only_where_no_bias_stands_for_them(
    correct_bias: bool, with_samples: bool
) -> None:
    constant = np.full(7, np.nan)
    constant[[1, 4]] = 0.5, -2.0
    plan = plan_of("all of int8")
    plan.scheme = Scheme(optimize_rounding=not correct_bias, correct_bias=correct_bias)
    plan.few_bits, plan.constants = frozenset("a"), {"a": constant}
    samples = normal_samples(MODEL.proto, 30) if with_samples else []
    ends = tuple(map(float, range(10)))
    profile = Profile("", 10, {"x": TensorProfile(ends, ends, (), (0.1,) * 5)})
    codes = quantize_weights(MODEL, plan, samples, profile, lambda *_: None).layers["a"]
    by_output = np.moveaxis(codes.weights, codes.axis, 0)
    assert [bool(row.any()) for row in by_output] == [not correct_bias or np.isnan(c) for c in constant]
