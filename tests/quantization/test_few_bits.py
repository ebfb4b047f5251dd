# SPDX-License-Identifier: Apache-2.0
"""`--precision w4a8`: weights of 4 bits where the model bears them, in standard ONNX and in flash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import conv_net, normal_samples, random_weights, sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import DType
from mcugen.quantization import few_bits
from mcugen.quantization.flash import WeightStorage
from mcugen.quantization.plan import Plan
from mcugen.quantization.quantize import Quantization, Quantizer, create_quantizer, import_float_model
from mcugen.quantization.rounding import (
    best_scales,
    choose_scales,
    fit_group_scales,
    fit_scales,
    quadratic_error,
    round_to_nearest,
    round_weights,
)
from mcugen.quantization.scheme import WEIGHT_LIMITS, Scheme

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
W4A8 = Scheme(weights=DType.INT4)
LIMITS = WEIGHT_LIMITS[DType.INT4]


def quantized(scheme: Scheme, count: int = 24, wanted: dict[str, DType] | None = None) -> Quantization:
    model = conv_net()
    source = load(model)
    fused = import_float_model(source, CompileOptions(), scheme)
    return create_quantizer(source, fused, scheme, normal_samples(model, count, 0)).quantize(wanted)


def error_db(made: Quantization) -> float:
    """SQNR on samples that were not calibrated on."""
    pairs = [
        (onnxruntime_outputs(made.source.given, s), onnxruntime_outputs(made.proto, s))
        for s in normal_samples(made.source.proto, 16, 1)
    ]
    exact, found = (np.concatenate([o[n].reshape(-1) for o in each for n in o]) for each in zip(*pairs, strict=True))
    return sqnr(exact, found)


def stored(made: Quantization, kind: int) -> list[str]:
    return [t.name for t in made.proto.graph.initializer if t.data_type == kind and "weight_quantized" in t.name]


def test_most_weights_are_int4_in_standard_onnx():
    made = quantized(W4A8)
    onnx.checker.check_model(made.proto, full_check=True)
    sizes = {name: codes.weights.size for name, codes in made.plan.layers.items()}
    few = sum(size for name, size in sizes.items() if name in made.plan.few_bits)
    assert few >= 0.8 * sum(sizes.values())
    assert len(stored(made, onnx.TensorProto.INT4)) == len(made.plan.few_bits)
    assert all(LIMITS[0] <= made.plan.layers[n].weights.min() for n in made.plan.few_bits)
    assert all(made.plan.layers[n].weights.max() <= LIMITS[1] for n in made.plan.few_bits)
    assert "precision w4a8" in made.describe()


def test_chosen_scales_rounding_and_biases_bring_decibels():
    plain = Scheme(weights=DType.INT4, optimize_rounding=False, correct_bias=False)
    best, worst, wide = (error_db(quantized(scheme)) for scheme in (W4A8, plain, Scheme()))
    assert wide > best > worst + 2


def test_layers_of_wanted_precision_keep_eight_bits():
    name = min(quantized(W4A8).plan.few_bits)
    made = quantized(W4A8, wanted={name: DType.INT8})
    assert name not in made.plan.few_bits and made.plan.layers[name].dtype is DType.INT8


def test_the_same_twice():
    assert quantized(W4A8).proto.SerializeToString() == quantized(W4A8).proto.SerializeToString()


def test_the_noise_that_a_plan_tells_is_that_before_the_softmax():
    made = quantized(W4A8)
    models = judging(made.model.proto, "logits"), judging(made.proto, "logits_dequantized")
    samples = normal_samples(made.source.proto, 24, 0)
    exact, found = (
        np.concatenate([next(iter(onnxruntime_outputs(m, s).values())).reshape(-1) for s in samples]) for m in models
    )
    assert made.plan.noise is not None
    assert -10 * np.log10(made.plan.noise) == pytest.approx(sqnr(exact, found), abs=0.5)
    assert quantized(Scheme()).plan.noise is None


def judging(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """With this tensor as the only output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return copy


def test_of_promising_ways_the_one_is_taken_that_leaves_least_noise(monkeypatch: pytest.MonkeyPatch):
    names = sorted(quantized(W4A8).plan.layers)
    noise = {name: quantized(Scheme(), wanted={name: DType.INT4}).plan.noise or 0.0 for name in names}
    best = min(noise, key=noise.__getitem__)
    assert noise[best] < min(each for name, each in noise.items() if name != best)
    for order in (names, names[::-1]):
        monkeypatch.setattr(few_bits, "choose_finalists", lambda *_, order=order: [[name] for name in order])
        made = quantized(W4A8)
        assert made.plan.few_bits == {best} and made.plan.noise == noise[best]


def test_scales_are_chosen_by_codes_of_least_error():
    random = np.random.default_rng(0)
    weights = random.standard_normal((1, 8, 24))
    mixed = random.standard_normal((60, 24)) @ random.standard_normal((24, 24))
    gram = (mixed.T @ mixed / 60)[None]
    start = best_scales(weights, np.abs(weights).max(-1) / 7, gram, LIMITS)
    tried = [start, 0.85 * start, 1.15 * start]
    codes, scales = choose_scales(tried, weights, gram, LIMITS)
    errors = [quadratic_error(weights, round_weights(weights, s, gram, LIMITS), s, gram) for s in tried]
    assert np.array_equal(quadratic_error(weights, codes, scales, gram), np.min(errors, 0))
    assert (np.min(errors, 0) < errors[0]).any()


def test_without_samples_weights_are_rounded_to_nearest():
    model = conv_net()
    source = load(model)
    fused = import_float_model(source, CompileOptions(), W4A8)
    profile = create_quantizer(source, fused, W4A8, normal_samples(model, 12, 0)).profile
    made = create_quantizer(source, fused, W4A8, (), profile).quantize()
    assert made.plan.few_bits and error_db(made) > 8


def test_kernels_read_them_packed():
    wanted = dict.fromkeys(("relu6", "relu", "pointwise", "logits"), DType.INT4)
    packed = CompileOptions(kernels=("conv2d_s4", "depthwise_s4", "dense_s4"), optimize="flash")
    small = compile_model(quantized(W4A8, wanted=wanted).proto, "nrf52840", packed)
    assert {i.kernel for i in small.program.instrs} >= {"conv2d_s4", "depthwise_s4", "dense_s4"}
    wide = compile_model(quantized(Scheme()).proto, "nrf52840", CompileOptions(optimize="flash"))
    assert small.program.weights_size < wide.program.weights_size


@pytest.mark.parametrize("optimize", ["flash", "speed"])
def test_generated_code_gives_the_bits_of_the_reference(optimize: str):
    made = quantized(W4A8)
    compiled = compile_model(made.proto, "host", CompileOptions(optimize=optimize))
    feeds = normal_samples(made.source.proto, 2, 3)
    for feed, found in zip(feeds, compiled.simulate(feeds).outputs, strict=True):
        for name, array in compiled.interpret(feed).items():
            np.testing.assert_array_equal(found[name], array)


def test_scales_that_clip_leave_less_error():
    random = np.random.default_rng(2)
    weights, scales = random.standard_t(4, (1, 6, 30)), np.ones((1, 6))
    rows = random.standard_normal((400, 30)) @ random.standard_normal((30, 30))
    gram = (rows.T @ rows / 400)[None]
    scales = np.abs(weights).max(-1) / LIMITS[1]
    clipped = best_scales(weights, scales, gram, LIMITS)
    codes = round_weights(weights, clipped, gram, LIMITS)
    fitted = fit_scales(weights, codes, clipped, gram)
    whole = round_weights(weights, scales, gram, LIMITS)
    errors = [
        quadratic_error(weights, q, s, gram).sum() for q, s in ((whole, scales), (codes, clipped), (codes, fitted))
    ]
    assert errors[0] > errors[1] > errors[2]
    assert (clipped < scales).any() and codes.min() >= LIMITS[0] and codes.max() <= LIMITS[1]
    assert (round_to_nearest(weights, clipped, LIMITS) != round_to_nearest(weights, scales, LIMITS)).any()


def test_on_the_command_line(tmp_path: Path):
    target = tmp_path / "digits.onnx"
    done = mcugen(
        "quantize", DIGITS / "digits_f32.onnx", "--calibration", DIGITS / "calibration.npz", "--precision", "w4a8",
        "-o", target, "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    kinds = {t.data_type for t in onnx.load(target).graph.initializer}
    assert onnx.TensorProto.INT4 in kinds
    done = mcugen("report", target, "--board", "host", "--data", DIGITS / "eval.npz", "--quiet")
    assert done.code == 0, done.err


def sized(monkeypatch: pytest.MonkeyPatch, of: Callable[[str, bool], int]) -> Quantization:
    """Quantized where layers take so many bytes, by name and whether weights have 4 bits, and channels drop out."""

    def in_flash(self: Quantizer, plan: Plan) -> WeightStorage:
        return WeightStorage({name: of(name, name in plan.few_bits) for name in plan.layers}, dropped=3)

    monkeypatch.setattr(Quantizer, "_in_flash", in_flash)
    return quantized(W4A8)


def test_a_layer_that_takes_more_flash_at_four_bits_has_eight(monkeypatch: pytest.MonkeyPatch):
    larger = min(quantized(W4A8).plan.few_bits)
    made = sized(monkeypatch, lambda name, few: 100 + (20 if name == larger else -50) * few)
    assert larger not in made.plan.few_bits and made.plan.few_bits
    assert made.plan.layers[larger].dtype is DType.INT8


def test_weights_of_four_bits_never_take_more_flash_in_all(monkeypatch: pytest.MonkeyPatch):
    few = quantized(W4A8).plan.few_bits
    made = sized(monkeypatch, lambda name, narrow: 100 + (50 if few and not narrow and name not in few else 0))
    assert made.plan.few_bits == few, "all take as much: nothing returns"
    made = sized(monkeypatch, lambda name, narrow: 100 + 50 * narrow)
    assert not made.plan.few_bits


def test_bytes_in_flash_are_those_of_channels_that_stay():
    """A channel that ReLU always silences is not stored."""
    net = Net(21)
    weights = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)
    bias = np.where(np.arange(16) < 8, -1000, 0).astype(np.float32)
    y = net.op("Relu", net.op("Conv", net.input("x", 1, 3, 6, 6), net.const(weights), net.const(bias)), out="r")
    net.output(net.op("Conv", y, net.const(np.ones((8, 16, 1, 1), np.float32) / 16), out="y"))
    model = net.model()
    source = load(model)
    fused = import_float_model(source, CompileOptions(), Scheme())
    made = create_quantizer(source, fused, Scheme(), normal_samples(model, 8, 0)).quantize()
    found = WeightStorage.of(import_model(made.proto, "net"))
    assert found.dropped == 8
    assert (found.layer_bytes("r"), found.layer_bytes("gone")) == (8 * 27, 0)


@pytest.fixture(scope="module")
def in_two_bits() -> Quantization:
    """Of the largest two layers; others have 8 bits."""
    model = uneven_net()
    source = load(model)
    fused = import_float_model(source, CompileOptions(), Scheme(), wide=True)
    maker = create_quantizer(source, fused, Scheme(), normal_samples(model, 40, 0))
    return maker.quantize({"relu0": DType.INT2, "relu1": DType.INT2})


def test_two_bits_are_stored_as_such(in_two_bits: Quantization):
    """In groups of 32 inputs, whose scales clip; the generated code has numpy's bits, ONNX Runtime the same codes."""
    codes = [in_two_bits.plan.layers[name] for name in ("relu0", "relu1")]
    assert all(c.dtype is DType.INT2 and c.group == 32 and set(np.unique(c.weights)) == {-2, -1, 0, 1} for c in codes)
    assert error_db(in_two_bits) > 6
    compiled = compile_model(in_two_bits.proto, "host", CompileOptions(optimize="flash"))
    packed = [i for i in compiled.program.instrs if i.kernel == "dense_packed"]
    assert [i.code["bits"] for i in packed] == [2, 2]
    assert compiled.program.weights_size < sum(c.weights.size * 0.25 + c.scales.size * 4 for c in codes) + 4096
    feeds = normal_samples(in_two_bits.source.proto, 2, 3)
    for feed, found in zip(feeds, compiled.simulate(feeds).outputs, strict=True):
        for name, array in compiled.interpret(feed).items():
            np.testing.assert_array_equal(found[name], array)


def test_samples_choose_codes_of_two_bits():
    """Rounding to nearest by scales that clip nothing makes most weights 0."""
    model = uneven_net()
    source = load(model)
    fused = import_float_model(source, CompileOptions(), Scheme(), wide=True)
    plain = Scheme(optimize_rounding=False, correct_bias=False)
    made = [create_quantizer(source, fused, s, normal_samples(model, 40, 0)) for s in (Scheme(), plain)]
    best, nearest = (error_db(maker.quantize({"relu0": DType.INT2})) for maker in made)
    assert best > nearest + 2


def test_convolutions_of_two_bits_are_stored_as_such():
    """A scale a channel, four weights a byte; the generated code has numpy's bits."""
    net = Net(21)
    y = net.input("x", 1, 4, 9, 9)
    for number, (depth, channels) in enumerate(((4, 16), (16, 22))):
        w, b = random_weights(number, channels, depth, 3, 3), random_weights(9 + number, channels)
        y = net.op("Relu", net.op("Conv", y, net.const(w), net.const(b), pads=[1] * 4), out=f"relu{number}")
    net.output(y)
    model = net.model()
    source = load(model)
    fused = import_float_model(source, CompileOptions(), Scheme(), wide=True)
    maker = create_quantizer(source, fused, Scheme(), normal_samples(model, 24, 0))
    made = maker.quantize({"relu1": DType.INT2})
    codes = made.plan.layers["relu1"]
    assert codes.dtype is DType.INT2 and set(np.unique(codes.weights)) == {-2, -1, 0, 1}
    assert error_db(made) > 6
    compiled = compile_model(made.proto, "host", CompileOptions(optimize="flash"))
    (layer,) = [i for i in compiled.program.instrs if i.kernel == "conv2d_s2"]
    (weights,) = [o.buffer.nbytes for o in layer.operands if o.role == "w"]
    assert weights == 9 * 16 * 6
    feeds = normal_samples(model, 2, 3)
    for feed, found in zip(feeds, compiled.simulate(feeds).outputs, strict=True):
        for name, array in compiled.interpret(feed).items():
            np.testing.assert_array_equal(found[name], array)
    with pytest.raises(UsageError, match=r"large fully connected layers and convolutions.*'relu0'.*w4a8"):
        maker.quantize({"relu0": DType.INT2})


@pytest.mark.parametrize("name", ["relu6", "logits"])
def test_two_bits_are_refused_for_other_layers(name: str):
    with pytest.raises(UsageError, match=f"large fully connected layers.*'{name}'.*w4a8"):
        quantized(Scheme(), wanted={name: DType.INT2})


GROUPED = Scheme(weights=DType.INT4, group=32)


def uneven_net() -> onnx.ModelProto:
    """Fully connected layers; weights of some inputs are ten times as large as of others."""
    net, random = Net(21), np.random.default_rng(4)
    y = net.input("x", 1, 140)
    for number, (depth, channels) in enumerate(((140, 96), (96, 64), (64, 32), (32, 8))):
        size = np.where(np.arange(depth) // 32 % 2, 1.0, 0.1) / np.sqrt(depth)
        weights = random.standard_normal((channels, depth)) * size
        y = net.op("Gemm", y, net.const(weights), net.const(random.standard_normal(channels) / 100), transB=1)
        y = net.op("Relu", y, out=f"relu{number}") if number < 3 else y
    net.output(net.op("Identity", y, out="y"))
    return net.model()


@pytest.fixture(scope="module")
def uneven() -> dict[str, Quantization]:
    """By scales of outputs, and of groups of inputs."""
    model = uneven_net()
    source, samples = load(model), normal_samples(model, 32, 0)
    fused = import_float_model(source, CompileOptions(), W4A8)
    return {
        name: create_quantizer(source, fused, scheme, samples).quantize()
        for name, scheme in (("outputs", W4A8), ("groups", GROUPED))
    }


def test_groups_of_inputs_have_scales_of_their_own(uneven: dict[str, Quantization]):
    assert error_db(uneven["groups"]) > error_db(uneven["outputs"]) + 2
    blocks = [n for n in uneven["groups"].proto.graph.node for a in n.attribute if (a.name, a.i) == ("block_size", 32)]
    assert len(blocks) == sum(c.group == 32 for c in uneven["groups"].plan.layers.values()) >= 2
    onnx.checker.check_model(uneven["groups"].proto, full_check=True)
    assert "precision w4a8g32" in uneven["groups"].describe()


def test_groups_are_computed_in_integers(uneven: dict[str, Quantization]):
    made = uneven["groups"]
    compiled = compile_model(made.proto, "host", CompileOptions(optimize="flash"))
    layers = [i for i in compiled.program.instrs if i.kernel == "dense_packed"]
    assert len(layers) >= 2 and all(i.operand("x").buffer.dtype is DType.INT8 for i in layers)
    feed = normal_samples(made.source.proto, 1, 3)
    np.testing.assert_array_equal(compiled.simulate(feed).outputs[0]["y"], compiled.interpret(feed[0])["y"])


def test_scales_of_groups_are_fitted_to_codes():
    random = np.random.default_rng(5)
    weights = random.standard_normal((6, 20)) * np.repeat([1.0, 0.1, 3.0], [8, 8, 4])
    rows = random.standard_normal((300, 20)) @ random.standard_normal((20, 20))
    gram, scales = rows.T @ rows / 300, np.full((6, 3), 0.3)
    steps = np.repeat(scales, 8, 1)[:, :20]
    codes = round_weights(weights[None], steps[None], gram[None], LIMITS)[0]
    fitted = np.repeat(fit_group_scales(weights, codes, scales, gram, 8), 8, 1)[:, :20]
    plain = round_to_nearest(weights[None], np.full((1, 6), 0.3), LIMITS)[0]
    errors = [
        quadratic_error(weights[None], q[None], s[None], gram[None]).sum()
        for q, s in ((plain, steps), (codes, steps), (codes, fitted))
    ]
    assert errors[0] > errors[1] > errors[2]


def test_channels_that_never_change_take_no_codes():
    """Of few codes none is spent on what inputs that are always 0 are multiplied by, however large that is."""
    net, random = Net(21), np.random.default_rng(0)
    first, second = (random.standard_normal(shape).astype(np.float32) for shape in ((16, 3, 3, 3), (8, 16, 1, 1)))
    bias = np.where(np.arange(16) < 8, -300, 0).astype(np.float32)
    second[:, :8] *= 20
    y = net.op("Relu", net.op("Conv", net.input("x", 1, 3, 6, 6), net.const(first), net.const(bias)), out="r")
    net.output(net.op("Conv", y, net.const(second), net.const(np.zeros(8, np.float32)), out="y"))
    source = load(net.model())
    maker = create_quantizer(
        source, import_float_model(source, CompileOptions(), W4A8), Scheme(), normal_samples(source.proto, 24, 0)
    )
    made = maker.quantize({"r": DType.INT4, "y": DType.INT4})
    codes = {name: made.plan.layers[name].weights for name in "ry"}
    assert not codes["r"][:8].any() and not codes["y"][:, :8].any()
    assert error_db(made) > 15
    assert WeightStorage.of(import_model(made.proto, "m")).layers == {
        "r_quantized": 8 * 27 // 2,
        "y_quantized": 8 * 8 // 2,
    }
