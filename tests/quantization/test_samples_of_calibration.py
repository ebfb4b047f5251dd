# SPDX-License-Identifier: Apache-2.0
"""Calibration that nothing derails: not the order of samples, nor a broken one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples, random_weights, sqnr
from onnx import numpy_helper
from onnx_models import Net, onnxruntime_outputs

from mcugen.api.compilation import Compilation
from mcugen.driver.tasks import Quantizing
from mcugen.hir.types import Array, DType
from mcugen.quantization import ranges
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.samples import (
    Sample,
    distinct_samples,
    number_samples,
    sort_samples,
    split_in_halves,
    without_outliers,
)

SAMPLES = np.concatenate([s["x"] for s in normal_samples(conv_net(), 40, 0)])


def calibrated(samples: Array) -> Quantization:
    quantizing = Quantizing(calibration={"x": samples})
    return Compilation(conv_net(), quantizing=quantizing).quantized


def error_db(made: Quantization) -> float:
    model = conv_net()
    pairs = [
        (onnxruntime_outputs(model, s)["scores"], onnxruntime_outputs(made.proto, s)["scores"])
        for s in normal_samples(model, 20, 1)
    ]
    exact, found = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return sqnr(exact, found)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_samples_does_not_matter(seed: int):
    order = np.random.default_rng(seed).permutation(len(SAMPLES))
    assert calibrated(SAMPLES[order]).proto.SerializeToString() == calibrated(SAMPLES).proto.SerializeToString()


@pytest.mark.parametrize("broken", ["element", "scaled"])
def test_one_broken_sample_is_left_out_and_named(broken: str):
    samples = SAMPLES.copy()
    if broken == "element":
        samples[17].flat[5] = 1e4
    else:
        samples[17] *= 20
    made = calibrated(samples)
    assert any("calibration sample 17 is left out" in note for note in made.notes), made.notes
    others = calibrated(np.delete(SAMPLES, 17, 0))
    assert made.proto.SerializeToString() == others.proto.SerializeToString()
    assert error_db(made) > error_db(calibrated(SAMPLES)) - 3


def test_wide_spread_is_no_stray():
    random = np.random.default_rng(3)
    heavy = [{"x": random.standard_t(3, (1, 3, 8, 8)).astype(np.float32)} for _ in range(60)]
    loud = [{"x": (s["x"] * scale).astype(np.float32)} for s, scale in zip(heavy, np.linspace(1, 40, 60), strict=True)]
    assert without_outliers(heavy)[1] == [] == without_outliers(loud)[1]
    few = normal_samples(conv_net(), 5)
    few[0]["x"] = few[0]["x"] * 100
    assert without_outliers(few)[1] == []  # of so few nobody knows which is usual


def test_strays_are_few():
    samples = normal_samples(conv_net(), 100)
    for index in (3, 8):
        samples[index]["x"] = samples[index]["x"] * 50
    kept, notes = without_outliers(samples)
    assert len(kept) == 98 and [" 3 is" in notes[0], " 8 is" in notes[1]] == [True, True]
    for index in (20, 30, 40):
        samples[index]["x"] = samples[index]["x"] * 50
    assert len(without_outliers(samples)[0]) == 100


def test_own_order_is_one_for_all_permutations():
    samples = [{"x": row} for row in SAMPLES]
    for order in (samples[::-1], samples[7:] + samples[:7]):
        for a, b in zip(sort_samples(order), sort_samples(samples), strict=True):
            np.testing.assert_array_equal(a["x"], b["x"])


# ------------------------------------------------------------------------------------------- disparate features


def tabular() -> tuple[onnx.ModelProto, Array]:
    """Raw features of very different size, batch normalization, two layers; and rows of such features."""
    random = np.random.default_rng(4)
    sizes = np.geomspace(0.01, 10000, 12).astype(np.float32)
    rows = (random.standard_normal((240, 12)) * sizes).astype(np.float32)
    net = Net(17)
    x = net.input("x", 1, 12)
    norm = [net.const(v) for v in (np.ones(12), np.zeros(12), np.zeros(12), sizes**2)]
    y = net.op("BatchNormalization", x, *norm)
    y = net.op("Relu", net.op("Gemm", y, net.const(random_weights(1, 16, 12)), transB=1), out="hidden")
    net.op("Gemm", y, net.const(random_weights(2, 4, 16)), net.const(random_weights(3, 4)), transB=1, out="y")
    net.output("y")
    return net.model(), rows


def test_disparate_features_are_read_in_float():
    model, rows = tabular()
    made = Compilation(model, quantizing=Quantizing(calibration={"x": rows[:160]})).quantized
    (head,) = [name for name, dtype in made.assignment.precision.items() if dtype is DType.FLOAT32]
    assert head not in ("hidden", "y")  # the normalization alone
    assert any(f"computed in float32: 'BatchNormalization_{head}'" in note for note in made.notes), made.notes
    pairs = [(onnxruntime_outputs(model, s)["y"], onnxruntime_outputs(made.proto, s)["y"]) for s in rows_of(rows[160:])]
    assert sqnr(*(np.concatenate(each) for each in zip(*pairs, strict=True))) > 30


def test_a_wanted_precision_stays():
    model, rows = tabular()
    quantizing = Quantizing(calibration={"x": rows[:160]})
    precision = Compilation(model, quantizing=quantizing).quantized.assignment.precision
    layers = {name: "int8" for name, dtype in precision.items() if dtype is DType.FLOAT32}
    made = Compilation(model, quantizing=replace(quantizing, layers=layers)).quantized
    assert set(made.assignment.precision.values()) == {DType.INT8}


def test_disparate_features_that_do_no_harm_are_integers():
    model, rows = tabular()
    small = np.tile(rows[:, 5:6], 12).astype(np.float32)
    small[:, 3] /= 100  # which hardly counts, as its batch normalization is of a larger one
    source, norm = onnx.ModelProto(), next(t for t in model.graph.initializer if t.name == model.graph.node[0].input[4])
    source.CopyFrom(model)
    next(t for t in source.graph.initializer if t.name == norm.name).CopyFrom(
        numpy_helper.from_array(np.full(12, float(small.var()), np.float32), norm.name)
    )
    made = Compilation(source, quantizing=Quantizing(calibration={"x": small})).quantized
    assert set(made.assignment.precision.values()) == {DType.INT8}


# ------------------------------------------------------------------------------- numbers that no 256 codes serve


def on_unseen(model: onnx.ModelProto, quantized: onnx.ModelProto, rows: Array) -> float:
    """The SQNR of `y` in dB."""
    pairs = [(onnxruntime_outputs(model, s)["y"], onnxruntime_outputs(quantized, s)["y"]) for s in rows_of(rows)]
    return sqnr(*(np.concatenate(each) for each in zip(*pairs, strict=True)))


def test_logarithms_of_what_spans_decades_are_taken_in_float():
    net = Net(17)
    x = net.input("x", 1, 1, 16, 8)
    y = net.op("Log", net.op("Add", x, net.const(1e-6)), out="log")
    y = net.op("Conv", y, net.const(random_weights(1, 6, 1, 3, 3)), strides=[2, 2], out="conv")
    net.op("Gemm", net.op("Flatten", y), net.const(random_weights(2, 4, 126)), transB=1, out="y")
    net.output("y")
    model, spectra = net.model(), 10 ** np.random.default_rng(1).uniform(-4, 2, (120, 1, 16, 8)).astype(np.float32)
    made = Compilation(model, quantizing=Quantizing(calibration={"x": spectra[:60]})).quantized
    assert [name for name, dtype in made.assignment.precision.items() if dtype is DType.FLOAT32] == ["log"]
    assert any("computed in float32: 'Log_log'; much of what they read" in note for note in made.notes), made.notes
    assert on_unseen(model, made.proto, spectra[60:]) > 30


def test_weights_make_good_what_layers_before_have_lost():
    """Channels of very different size share one scale: of the small ones, which a layer by channels makes large again
    (no equalization passes the function between), the large ones tell something.
    """
    net, sizes = Net(17), np.geomspace(0.003, 1, 24).astype(np.float32)[:, None, None, None]
    y = net.op("Conv", net.input("x", 1, 6, 4, 4), net.const(random_weights(1, 24, 6, 1, 1) * sizes))
    y = net.op("Conv", net.op("Tanh", y), net.const(random_weights(2, 24, 1, 1, 1) / sizes), group=24)
    net.op("Conv", y, net.const(random_weights(3, 8, 24, 1, 1)), out="y")
    net.output("y")
    model, images = net.model(), np.random.default_rng(3).standard_normal((100, 6, 4, 4)).astype(np.float32)
    in_int8 = dict.fromkeys(["t0", "t1", "t2", "y"], "int8")  # else they are computed in float32
    compilation = Compilation(model, quantizing=Quantizing(calibration={"x": images[:60]}, layers=in_int8))
    made, maker = compilation.quantized, compilation._basis.maker
    assert any("weights make good a part" in note for note in made.notes), made.notes
    maker.compensates = False
    assert on_unseen(model, made.proto, images[60:]) > on_unseen(model, maker.quantize().proto, images[60:]) + 2


# -------------------------------------------------------------------------------------------------- heavy tails


def recurrent_net() -> onnx.ModelProto:
    """An LSTM, and a dense layer that reads its last state."""
    net = Net(17)
    x = net.input("x", 20, 1, 4)
    w, r = random_weights(1, 1, 48, 4) * 0.7, random_weights(2, 1, 48, 12)
    state = net.ops("LSTM", x, net.const(w), net.const(r), outs=["", "state"], hidden_size=12)[1]
    y = net.op("Reshape", state, net.const([1, 12], np.int64), out="flat")
    net.op("Gemm", y, net.const(random_weights(3, 5, 12)), transB=1, out="y")
    net.output("y")
    return net.model()


def sequences(heavy: bool) -> Array:
    """Ordinary ones, or such of which every third reaches three hundred times as far."""
    x = np.random.default_rng(7).standard_normal((90, 20, 1, 4))
    if heavy:
        x[::3] *= 300
    return x.astype(np.float32)


@pytest.mark.parametrize("heavy", [True, False])
def test_recurrent_layers_keep_int16_where_that_pays(heavy: bool):
    x, model = sequences(heavy), recurrent_net()
    quantizing = Quantizing(calibration={"x": x[:60]})
    made = Compilation(model, quantizing=quantizing).quantized
    plain = Compilation(model, quantizing=replace(quantizing, layers={"state": "int8"})).quantized
    assert (made.assignment.precision["state"] is DType.INT16) == heavy
    assert any("computed in int16: 'LSTM_state'; int8 keeps too little" in note for note in made.notes) == heavy
    samples = [{"x": each} for index, each in enumerate(x[60:]) if index % 3]  # the quiet ones
    exact = [onnxruntime_outputs(model, s)["y"] for s in samples]
    found, without = (sqnr(exact, [onnxruntime_outputs(m.proto, s)["y"] for s in samples]) for m in (made, plain))
    assert found > without + 6 if heavy else found == without


def rows_of(rows: Array) -> list[dict[str, Array]]:
    return [{"x": row[None]} for row in rows]


@pytest.mark.parametrize("count", [2, 4])
def test_few_samples_leave_room_for_others(count: int, monkeypatch: pytest.MonkeyPatch):
    """By a share of 1/n; then others, which reach further, have a smaller error."""
    roomy = calibrated(SAMPLES[:count])
    most = SAMPLES[:count].max()
    assert roomy.plan.activations["x"].high == pytest.approx(most * (1 + 1 / count), rel=0.02)
    monkeypatch.setattr(ranges, "VERY_FEW_SAMPLES", 0)
    assert error_db(roomy) > error_db(calibrated(SAMPLES[:count]))


# ---------------------------------------------------------------------------------------------- single samples


def of_one_number(*numbers: float) -> list[Sample]:
    return [{"x": np.full((1, 2), number, np.float32)} for number in numbers]


def test_samples_are_numbered_by_their_energy():
    assert [place for place, _ in number_samples(of_one_number(3, -1, 2, -4, 0))] == [4, 1, 2, 0, 3]
    assert [place for place, _ in number_samples(of_one_number(1, 0, 1, 1))] == [1, 0, 2, 3]
    wide = [{"x": np.full(2, a, np.float32), "y": np.full(2, b, np.float32)} for a, b in ((3, 0), (2, 2), (0, 3.1))]
    assert [place for place, _ in number_samples(wide)] == [1, 0, 2]
    one, other = of_one_number(1, -1)  # of equal energy: by what they hold
    assert sort_samples([one, other])[0] is sort_samples([other, one])[0]


def test_repeated_samples_count_once():
    samples = of_one_number(1, 1, 2, 3, 3)
    assert [float(s["x"][0, 0]) for s in distinct_samples(samples)] == [1, 2, 3]
    assert distinct_samples(samples)[0] is samples[0]
    swapped = [{"x": np.ones(2), "y": np.zeros(2)}, {"y": np.zeros(2), "x": np.ones(2)}]
    assert len(distinct_samples(swapped)) == 1


def test_equal_samples_are_in_one_half():
    assert split_in_halves(of_one_number(5, 6, 7, 5, 8, 6)) == ([0, 2, 3], [1, 4, 5])


@pytest.mark.parametrize(
    ("count", "strays", "reach", "left_out"),
    [
        (10, 1, 7.0, 1),
        (9, 1, 7.0, 0),
        (10, 1, 6.0, 0),
        (10, 1, -7.0, 1),
        (60, 2, 50.0, 0),
        (99, 2, 50.0, 0),
        (100, 2, 50.0, 2),
        (100, 1, 50.0, 1),
        (149, 3, 50.0, 0),
        (150, 3, 50.0, 3),
    ],
)
def test_which_samples_are_strays(count: int, strays: int, reach: float, left_out: int):
    samples = of_one_number(*[1.0] * (count - strays), *[reach] * strays)[::-1]
    samples = [{"first": np.ones((1, 3), np.float32), **sample} for sample in samples]
    kept, notes = without_outliers(samples)
    assert len(kept) == count - left_out and len(notes) == left_out
    for index, note in enumerate(notes):
        wanted = f"calibration sample {index} is left out: 'x' reaches {abs(reach):.3g} there, 1 in the others"
        assert note.startswith(wanted)


def test_neither_integers_nor_a_single_event_are_strays():
    integers: list[Sample] = [{"x": np.asarray([10_000 if i == 3 else 1])} for i in range(20)]
    event = of_one_number(0, 0, 0, 50, *[0] * 16)
    empty: list[Sample] = [{"x": np.zeros((1, 0), np.float32)}] * 20
    for samples in (integers, event, empty):
        assert without_outliers(samples) == (samples, [])
