# SPDX-License-Identifier: Apache-2.0
"""What quantization cost is told: by samples not used for it, with the layers to blame where it is much."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import conv_net, normal_samples, random_weights
from onnx_models import Net, onnxruntime_outputs
from test_quantize_command import FLOAT, SAMPLES

from mcugen.core.options import CompileOptions
from mcugen.evaluation.metrics import sqnr_db
from mcugen.evaluation.samples import Samples
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import Array
from mcugen.quantization.estimate import (
    choose_evaluation_samples,
    comparable_outputs,
    estimate_loss,
    hold_out,
    split_samples,
)
from mcugen.quantization.quantize import Quantization, create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

Sample = dict[str, Array]


def made(
    model: onnx.ModelProto, samples: list[Sample], scheme: Scheme | None = None, states: dict[str, str] | None = None
) -> Quantization:
    source, scheme = load(model), scheme or Scheme()
    fused = import_float_model(source, CompileOptions(states=states or {}), scheme)
    return create_quantizer(source, fused, scheme, samples).quantize()


# ------------------------------------------------------------------------------------------------- held out


@pytest.mark.parametrize(("count", "held"), [(1, 0), (19, 0), (20, 4), (24, 4), (100, 20), (500, 32)])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_fifth_is_held_out(count: int, held: int, is_stream: bool) -> None:
    samples: list[Sample] = [{"x": np.array(i)} for i in range(count)]
    known, judged = ([int(s["x"]) for s in part] for part in hold_out(samples, is_stream))
    assert len(judged) == held and sorted(known + judged) == list(range(count))
    assert known == sorted(known) and judged == sorted(judged)
    if is_stream:
        assert known == list(range(count - held))
    elif held:
        assert np.diff([-1, *judged, count]).max() <= np.diff(judged).min() + 1


@pytest.mark.parametrize(("count", "is_parted"), [(2, False), (63, False), (64, True), (65, True), (101, True)])
@pytest.mark.parametrize("is_stream", [False, True])
def test_precisions_are_chosen_by_one_half_and_judged_by_the_other(
    count: int, is_parted: bool, is_stream: bool
) -> None:
    samples: list[Sample] = [{"x": np.array(i)} for i in range(count)]
    known, judged = ([int(s["x"]) for s in part] for part in split_samples(samples, is_stream))
    if not is_parted:
        assert known == list(range(count)) and judged == []
    elif is_stream:
        assert (known, judged) == (list(range(count // 2)), list(range(count // 2, count)))
    else:
        assert (judged, known) == (list(range(0, count, 2)), list(range(1, count, 2)))


def test_what_is_judged_by() -> None:
    held, known, data = [{"x": np.zeros(1)}], [{"x": np.ones(1)}], Samples([{"x": np.full(1, 2)}], [], [])
    assert choose_evaluation_samples(held, known, data) == (data.inputs, "evaluation")
    assert choose_evaluation_samples(held, known, None) == (held, "held out")
    assert choose_evaluation_samples([], known, None) == (known, "calibration")


def test_outputs_that_can_be_compared() -> None:
    """Numbers of one shape in every sample, that are no states."""
    one, two, text = np.zeros(1), np.zeros(2), np.array(["a"])
    first = {"real": one, "integer": two.astype(int), "state": one, "text": text, "shape": one, "once": one}
    second = {**first, "once": two}
    reference = {**first, "shape": two}
    found = comparable_outputs([first, second], [reference, reference], {"state"})
    assert found.names == ["real", "integer"]


# --------------------------------------------------------------------------------------------- the figures


def test_the_figures_are_those_of_both_models() -> None:
    model, tests = conv_net(), normal_samples(conv_net(), 40, seed=5)
    result = estimate_loss(made(model, normal_samples(model)), tests, "held out")
    wanted, found = ([onnxruntime_outputs(m, s)["scores"].ravel() for s in tests] for m in (model, result.proto))
    assert result.estimate is not None and (result.estimate.samples, result.estimate.kind) == (40, "held out")
    assert result.estimate.sqnr_db == pytest.approx(sqnr_db(np.concatenate(found), np.concatenate(wanted)), abs=0.06)
    same = [a.argmax() == b.argmax() for a, b in zip(found, wanted, strict=True)]
    assert result.estimate.agreement == pytest.approx(np.mean(same), abs=1e-4)
    assert not result.notes


def test_codes_at_the_border_change_nothing() -> None:
    model, tests = conv_net(), normal_samples(conv_net(), 8, seed=5)
    results = [
        estimate_loss(made(model, normal_samples(model), Scheme(integer_io=io)), tests, "held out")
        for io in (False, True)
    ]
    assert results[0].estimate == results[1].estimate is not None


def running_mean() -> onnx.ModelProto:
    """h' = 0.9 h + 0.1 Wx, y = h'."""
    net = Net(17)
    x, h = net.input("x", 1, 8), net.input("h", 1, 6)
    new = net.op("MatMul", x, net.const(random_weights(1, 8, 6) * 0.1))
    kept = net.op("Add", net.op("Mul", h, net.const(0.9)), new, out="h_out")
    net.output(net.op("MatMul", kept, net.const(random_weights(2, 6, 4)), out="y"))
    net.output("h_out")
    return net.model()


def test_a_stream_keeps_its_own_errors() -> None:
    """The quantized model goes on from its own state, and the state is no output that anybody sees."""
    frames = [{"x": s["x"] + 1} for s in normal_samples(running_mean(), 40)]
    quantized = made(running_mean(), frames, states={"h_out": "h"})
    result = estimate_loss(quantized, frames, "held out")
    wanted, found, kept = [], [], {}
    for model, results in ((quantized.source.given, wanted), (quantized.proto, found)):
        (state,) = (i for i in model.graph.input if i.name == "h")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(state.type.tensor_type.elem_type)
        zero = quantized.plan.activations["h"].quant.zero_point if dtype == np.int8 else 0
        kept = {"h": np.full((1, 6), zero, dtype)}
        for frame in frames:
            outputs = onnxruntime_outputs(model, {**frame, **kept})
            kept = {"h": outputs["h_out"]}
            results.append(outputs["y"].ravel())
    assert result.estimate is not None
    assert result.estimate.sqnr_db == pytest.approx(sqnr_db(np.concatenate(found), np.concatenate(wanted)), abs=0.06)


def test_what_cannot_be_compared_is_not_judged() -> None:
    quantized = made(conv_net(), normal_samples(conv_net()))
    assert estimate_loss(quantized, [], "evaluation") is quantized


# -------------------------------------------------------------------------------------------------- warnings


def test_much_loss_is_one_line_that_names_layers() -> None:
    """Calibrated by samples a fiftieth as large as those to come."""
    model = conv_net()
    small = [{"x": s["x"] / 50} for s in normal_samples(model)]
    (note,) = estimate_loss(made(model, small), normal_samples(model, 8, seed=3), "evaluation").notes
    assert "quantization costs much" in note and "'Conv_stem'" in note and "\n" not in note


def test_other_classes_are_warned_of_whatever_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of scores; where the output is a reconstruction, its largest element says nothing."""
    monkeypatch.setattr("mcugen.quantization.estimate.MIN_CLASS_AGREEMENT", 1.1)
    for outputs, warned in ((5, True), (8, False)):
        net = Net(17)
        net.output(net.op("MatMul", net.input("x", 1, 8), net.const(random_weights(1, 8, outputs)), out="y"))
        samples = normal_samples(net.model())
        assert bool(estimate_loss(made(net.model(), samples), samples, "calibration").notes) == warned


HOLLOW: dict[str, tuple[Callable[[Array], Array], list[str]]] = {
    "all well": (lambda x: x, []),
    "few": (lambda x: x[:3], ["calibrated by 3 samples"]),
    "one": (lambda x: x[:1], ["calibrated by 1 sample:"]),
    "repeated": (lambda x: x[[*range(12), 3, 3]], ["2 of 14 calibration samples are duplicates"]),
    "constant": (lambda x: np.concatenate([x[:12], np.full_like(x[:1], 7)]), ["1 of 13 calibration samples are const"]),
    "one of many": (lambda x: np.concatenate([x, x[:1]]), []),
    "zeros": (lambda x: 0 * x[:14], ["14 of 14 .* constant", "13 of 14 .* duplicates", "by 1 different sample:"]),
}


@pytest.mark.parametrize("kind", HOLLOW)
def test_samples_that_say_little_are_told_in_one_line_each(kind: str) -> None:
    choose, wanted = HOLLOW[kind]
    samples = choose(np.stack([s["x"] for s in normal_samples(conv_net())]))
    notes = made(conv_net(), [{"x": x} for x in samples]).notes
    assert len(notes) == len(wanted)
    for note, start in zip(notes, wanted, strict=True):
        assert re.search(start, note)


# -------------------------------------------------------------------------------------------- command line


def test_the_commands_tell(tmp_path: Path) -> None:
    common = (FLOAT, "--calibration", SAMPLES)
    done = mcugen("compile", *common, "-b", "host", "-o", tmp_path / "out", "--json", tmp_path / "r.json")
    line = r"quantized: 100.0 % agreement, SQNR [4-6]\d\.\d dB against float32 on 20 samples not calibrated on"
    assert done.code == 0 and re.search(line, " ".join(done.err.split()))
    report = json.loads((tmp_path / "r.json").read_text())
    estimate = report["quantization_estimate"]
    assert set(estimate) == {"samples", "kind", "agreement", "sqnr_db"} and report["accuracy"] is None
    assert (estimate["samples"], estimate["kind"], estimate["agreement"]) == (20, "held out", 1.0)
    written = json.loads((tmp_path / "out" / "digits_f32_report.json").read_text())
    assert written["quantization_estimate"] == estimate
    data = ("--data", FLOAT.parent / "eval.npz")
    judged = mcugen("quantize", *common, *data, "-o", tmp_path / "q.onnx")
    assert "on 64 samples of --data" in " ".join(judged.err.split()) and "by 100 samples" in judged.err
    assert not mcugen("compile", *common, "-b", "host", "-o", tmp_path / "out", "--quiet").err


def test_bad_samples_are_told_and_compiled(tmp_path: Path) -> None:
    """Exit code 0, and all of it in the JSON even if quiet."""
    image = np.load(SAMPLES)["image"]
    np.savez(tmp_path / "few.npz", image=np.moveaxis(image[:2] / 50, 1, -1).reshape(2, 64))
    done = mcugen("compile", FLOAT, "--calibration", tmp_path / "few.npz", "--data", SAMPLES, "-b", "host",
                  "-o", tmp_path / "out", "--json", "-")  # fmt: skip
    told = " ".join(done.err.split())
    assert done.code == 0
    assert "note: calibrated by 2 samples" in told and "note: quantization costs much" in told
    notes = json.loads(done.out)["notes"]
    assert len(notes) == 2 and "the worst layers" in notes[1]


def test_turned_images_are_told_by_every_command(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "net.onnx")
    images = np.stack([s["x"][0] for s in normal_samples(conv_net(), 24)])
    np.savez(tmp_path / "x.npz", x=np.moveaxis(images, 1, -1))
    np.savez(tmp_path / "first.npz", x=images)
    note = "have their channels last"
    net, calibration = tmp_path / "net.onnx", ("--calibration", tmp_path / "x.npz")
    for command in (
        ("quantize", net, *calibration, "-o", tmp_path / "q.onnx"),
        ("profile", net, *calibration, "-o", tmp_path / "p.json"),
        ("run", net, "-b", "host", "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz"),
    ):
        done = mcugen(*command)
        assert done.code == 0 and note in " ".join(done.err.split()), command
        assert not mcugen(*command, "--quiet").err
    quantized = (tmp_path / "q.onnx").read_bytes()
    assert mcugen("quantize", net, "--calibration", tmp_path / "first.npz", "-o", tmp_path / "q.onnx").code == 0
    assert (tmp_path / "q.onnx").read_bytes() == quantized
    done = mcugen("report", net, "-b", "host", "--data", tmp_path / "x.npz", "--json", "-", "--quiet")
    assert note in json.loads(done.out)["notes"][0] and not done.err
