# SPDX-License-Identifier: Apache-2.0
"""Weights of 8 bits that are so coarse that a code of them is short."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from float_models import normal_samples, random_weights
from onnx_models import Net

from mcugen.autotuning.precision import AccuracyDemand, PrecisionSearch
from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.metrics import METRICS
from mcugen.evaluation.samples import Samples
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import DType
from mcugen.lir.program import DECODE_WEIGHTS
from mcugen.quantization import quantize
from mcugen.quantization.few_bits import bytes_per_weight, compressible_layers, num_stored_weights, redistribute_bits
from mcugen.quantization.plan import Plan
from mcugen.quantization.quantize import Quantizer, create_quantizer, import_float_model
from mcugen.quantization.refine import quantize_weights
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.weights import layer_weights, plain_codes, real_weights, stored_bits

WIDTHS = (4, 32, 64, 48)


def network(side: int = 8, widths: tuple[int, ...] = WIDTHS) -> onnx.ModelProto:
    """Convolutions of different sizes, one with a channel of zeros and one with a loud channel."""
    net = Net(21)
    y = net.input("x", 1, widths[0], side, side)
    for index, (before, count) in enumerate(pairwise(widths)):
        weights = random_weights(index, count, before, 3, 3)
        weights[1] *= (0, 8, 1)[index]
        y = net.op(
            "Conv", y, net.const(weights), net.const(random_weights(9 + index, count)), pads=[1] * 4, out=f"c{index}"
        )
        y = net.op("Relu", y, out=f"r{index}") if index < len(widths) - 2 else y
    net.output(net.op("GlobalAveragePool", y, out="y"))
    return net.model()


def made(scheme: Scheme | None = None, model: onnx.ModelProto | None = None) -> Quantizer:
    model, scheme = model or network(), scheme or Scheme()
    source = load(model)
    return create_quantizer(
        source, import_float_model(source, CompileOptions(), scheme, wide=True), scheme, normal_samples(model, 12)
    )


def counting(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What weights were rounded for by samples."""
    rounded = list[object]()

    def counted_refine(model: object, plan: Plan, samples: object, *rest: object) -> Plan:
        known = plan.few_bits, frozenset(plan.code_bits.items()), frozenset(plan.precision.items())
        rounded.extend([known] if samples else [])
        return quantize_weights(model, plan, samples, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(quantize, "quantize_weights", counted_refine)
    return rounded


@pytest.mark.parametrize("bits", [3.0, 4.7, 6.1])
@pytest.mark.parametrize("scheme", [Scheme(), Scheme(per_channel=False), Scheme(power_of_two=True)])
def test_scales_are_as_small_as_the_code_allows(bits: float, scheme: Scheme):
    for node in compressible_layers(made(scheme).model, made(scheme).quantize().plan):
        codes = plain_codes(node, scheme, code_bits=bits)
        assert stored_bits(codes) <= bits
        assert scheme.power_of_two or stored_bits(codes) > min(bits, stored_bits(plain_codes(node, scheme))) - 0.05
        errors = np.abs(real_weights(codes) - layer_weights(node)[0])
        assert (errors <= 0.5001 * codes.steps).all()  # none is clipped
        assert codes.scales.size == plain_codes(node, scheme).scales.size


def test_many_bits_change_nothing():
    for node in compressible_layers(made().model, made().quantize().plan):
        np.testing.assert_array_equal(
            plain_codes(node, Scheme(), code_bits=9.0).weights, plain_codes(node, Scheme()).weights
        )


def test_bits_are_allotted_by_noise():
    maker = made()
    even = maker.choose_code_bits({}, 0.6)
    maker.code_bits = even
    plan = maker.quantize().plan
    layers = compressible_layers(maker.model, plan)
    noise = dict(zip(layers, (1.0, 1e-3, 1e-3), strict=False))
    bits = redistribute_bits(noise, plan)
    sizes = [num_stored_weights(n, plan) for n in layers]
    names = [n.outputs[0].name for n in layers]
    given, found = (sum(s * b[n] for s, n in zip(sizes, names, strict=True)) for b in (even, bits))
    assert found == pytest.approx(given, rel=1e-3)
    assert bits[names[0]] > even[names[0]] and max(bits.values()) <= 8


def test_all_take_the_share_with_less_noise_than_four_and_eight_bits():
    maker = made()
    assert maker.quantize().plan.code_bits == {}
    maker.code_bits = maker.choose_code_bits({}, 0.6)
    coded = maker.quantize()
    assert 0.57 < bytes_per_weight(coded.model, coded.plan) <= 0.6
    assert "with weights for a code" in coded.describe()
    maker.code_bits = {}
    layers = maker.four_bit_candidates(coded.plan)
    ways = [maker.quantize(way) for way in maker.choose_narrow_layers({}, layers, 0.6, 4)]
    assert coded.plan.noise < 0.7 * min(way.plan.noise for way in ways)
    assert maker.quantize().plan.noise is None  # it is as before


def test_impossible_shares_have_no_bits():
    assert made().choose_code_bits({}, 0.2) == {}


def search(goal: str, share: float = 0.6, model: onnx.ModelProto | None = None) -> PrecisionSearch:
    model = model or network()
    maker = made(model=model)
    judged = Samples(normal_samples(model, 12), None)
    demand = AccuracyDemand(METRICS["sqnr"], min_sqnr=12.0, max_weights=share)
    return PrecisionSearch(maker, load_board("nrf52840"), CompileOptions(optimize=goal), judged, demand)


def test_auto_takes_them_where_flash_matters_most():
    found = {goal: search(goal).run() for goal in ("flash", "balanced")}
    assert found["flash"].plan.code_bits and not found["flash"].plan.few_bits
    assert found["balanced"].plan.few_bits and not found["balanced"].plan.code_bits
    compiled = {goal: compile_model(each, "nrf52840", CompileOptions(optimize="flash")) for goal, each in found.items()}
    kernels = [i.kernel for i in compiled["flash"].program.instrs]
    assert kernels.count(DECODE_WEIGHTS) >= 2
    assert compiled["flash"].program.weights_size < 0.62 * 47_232 + 1_500


def test_a_balance_takes_them_where_decoding_is_little_beside_its_layers(monkeypatch: pytest.MonkeyPatch):
    """Of many pixels: less noise is worth more than that time. Nothing is rounded twice."""
    rounded = counting(monkeypatch)
    searched = search("balanced", model=network(32, (4, 32, 32, 32)))
    found = searched.run()
    assert found.plan.code_bits
    assert len(rounded) == len(set(rounded)) <= 12
    narrow = searched._best_narrowed(0.6)
    assert (found.plan.noise or 1.0) < 0.95 * searched._noise_with_own_weights(narrow.requested)
    compiled = compile_model(found, "nrf52840", CompileOptions(optimize="balanced"))
    assert [i.kernel for i in compiled.program.instrs].count(DECODE_WEIGHTS) >= 2
    assert compiled.program.weights_size < 1.1 * 0.6 / 0.53 * narrow.compiled.program.weights_size


def test_all_ways_of_a_search_are_rounded_once(monkeypatch: pytest.MonkeyPatch):
    maker, rounded = made(), counting(monkeypatch)
    for bits in 2 * (3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0):
        maker.with_code_bits({"r0": bits}).quantize()
        maker = maker.with_code_bits({})
    assert len(rounded) == 7


def test_the_file_is_one_of_int8_that_onnx_runtime_computes():
    found = search("flash").run()
    samples = normal_samples(network(), 4)
    exact, outputs = (run_onnxruntime(proto, samples) for proto in (found.model.proto, found.proto))
    errors = [np.square(a["y"] - b["y"]).sum() / np.square(a["y"]).sum() for a, b in zip(exact, outputs, strict=True)]
    assert np.mean(errors) < 10**-1.2
    types = {t.data_type for t in found.proto.graph.initializer if len(t.dims) == 4}
    assert types == {onnx.TensorProto.INT8}


def test_layers_of_activations_of_16_bits_keep_their_codes():
    maker = made()
    maker.code_bits = maker.choose_code_bits({}, 0.6)
    raised = (
        maker.quantize({"c1": DType.INT16})
        if "c1" in maker.quantize().assignment.precision
        else maker.quantize({"r1": DType.INT16})
    )
    assert bytes_per_weight(raised.model, raised.plan) <= 0.605
