# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: what codes lose is learned back, on samples that did not teach it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from float_models import conv_net, normal_samples, quantizer_of, random_weights
from onnx_models import Net

from mcugen.core.errors import UsageError
from mcugen.hir.types import DType
from mcugen.quantization.estimate import estimate_loss, model_sqnr_db
from mcugen.quantization.finetune import finetune
from mcugen.quantization.quantize import Quantization, create_quantizer
from mcugen.quantization.scheme import Scheme

FOUR_BIT_GROUP_SIZES = Scheme(weights=DType.INT4, optimize_rounding=False, correct_bias=False)


def deep_net() -> onnx.ModelProto:
    """Dense layers, which have a lot to lose by weights of 4 bits."""
    net = Net(21)
    y = net.input("x", 1, 12)
    for index, (depth, count) in enumerate([(12, 32), (32, 32), (32, 32), (32, 6)]):
        weights, bias = random_weights(index, count, depth), random_weights(20 + index, count)
        y = net.op("Gemm", y, net.const(weights), net.const(bias), transB=1)
        y = net.op("Relu", y) if index < 3 else y
    net.output(y)
    return net.model()


def tuned(model: onnx.ModelProto, scheme: Scheme, epochs: int = 3) -> tuple[Quantization, Quantization, list[float]]:
    """Without and with fine-tuning, and their SQNR on samples that were never seen."""
    maker = quantizer_of(model, scheme)
    maker = create_quantizer(maker.source, maker.model, scheme, normal_samples(model, 160))
    plain = maker.quantize()
    found = finetune(maker, plain, epochs, 100.0, lambda done, total: None)
    others = normal_samples(model, 60, 9)
    return plain, found, [model_sqnr_db(maker.model, each.proto, others) for each in (plain, found)]


@pytest.mark.parametrize("model", [deep_net(), conv_net(21)], ids=["dense", "convolutions"])
def test_what_was_lost_is_learned_back(model: onnx.ModelProto):
    plain, found, (before, after) = tuned(model, FOUR_BIT_GROUP_SIZES)
    assert after > before + 1.5
    assert "fine-tuned: 3 epochs of 128 samples" in found.notes[-1]
    onnx.checker.check_model(found.proto, full_check=True)
    assert {n: c.dtype for n, c in found.plan.layers.items()} == {n: c.dtype for n, c in plain.plan.layers.items()}
    biases = {n: (c.bias, found.plan.layers[n].bias) for n, c in plain.plan.layers.items()}
    assert not [n for n, (old, new) in biases.items() if np.array_equal(old, new)], "gradients reach every layer"


def test_what_is_good_enough_stays():
    """By samples that calibration did not see: those it saw look better."""
    model = deep_net()
    source = quantizer_of(model)
    maker = create_quantizer(source.source, source.model, Scheme(weights=DType.INT4), normal_samples(model, 20))
    plain = estimate_loss(maker.quantize(), normal_samples(model, 60, 9), "held out")
    assert plain.estimate is not None and plain.estimate.sqnr_db is not None
    unseen = plain.estimate.sqnr_db
    assert model_sqnr_db(maker.model, plain.proto, maker.samples) > unseen + 0.5
    found, learned = (finetune(maker, plain, 1, least, lambda done, total: None) for least in (unseen, unseen + 0.1))
    assert found.proto is plain.proto and "not calibrated on is enough" in found.notes[-1]
    assert "1 epoch of 16 samples" in learned.notes[-1]


def test_few_samples_teach_nothing():
    maker = quantizer_of(deep_net())
    few = create_quantizer(maker.source, maker.model, maker.scheme, normal_samples(deep_net(), 8))
    with pytest.raises(UsageError, match="samples for training"):
        finetune(few, few.quantize(), 1, None, lambda done, total: None)


def test_the_same_twice():
    first, second = (tuned(deep_net(), FOUR_BIT_GROUP_SIZES, 1)[1].proto.SerializeToString() for _ in range(2))
    assert first == second


def test_the_command_tells_what_was_won(tmp_path: Path):
    onnx.save(deep_net(), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=np.concatenate([s["x"] for s in normal_samples(deep_net(), 160)]))
    options = ("--calibration", tmp_path / "samples.npz", "--precision", "w4a8", "--finetune", 2, "--min-sqnr", 60)
    plain = ("--without", "rounding", "--without", "bias-correction")
    done = mcugen("quantize", tmp_path / "net.onnx", *options, *plain, "-o", tmp_path / "made.onnx")
    assert done.code == 0, done.err
    assert "fine-tuned: 2 epochs" in done.err and "before fine-tuning:" in done.err
    onnx.checker.check_model(onnx.load(tmp_path / "made.onnx"))
