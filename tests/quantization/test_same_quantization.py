# SPDX-License-Identifier: Apache-2.0
"""What comes of quantization follows from model, samples and wishes: not from what came before, or from hashes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from float_models import conv_net, quantized, quantizer_of, random_weights
from onnx_models import Net

from mcugen.hir.types import DType
from mcugen.quantization.scheme import Scheme

SCHEMES = {"int8": Scheme(), "w4a8": Scheme(weights=DType.INT4)}
LAYERS = ("relu6", "relu", "pointwise", "logits")


def digest(model: onnx.ModelProto) -> str:
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def recurrent() -> onnx.ModelProto:
    """A fully connected layer before and one behind an LSTM."""
    net = Net(21)
    y = net.op("MatMul", net.input("x", 6, 1, 8), net.const(random_weights(0, 8, 8)), out="before")
    weights = [net.const(random_weights(seed, 1, 20, depth)) for seed, depth in ((1, 8), (2, 5))]
    y = net.op("LSTM", y, *weights, out="y", hidden_size=5)
    net.output(
        net.op("MatMul", net.op("Reshape", y, net.const([6, 5], "i8")), net.const(random_weights(3, 5, 3)), out="z")
    )
    return net.model()


@pytest.mark.parametrize("name", SCHEMES)
def test_two_processes_give_the_same_bytes_whatever_came_before(name: str):
    found = {digest(quantized(conv_net(), SCHEMES[name]).proto)}
    quantized(recurrent(), SCHEMES[name])
    found.add(digest(quantized(conv_net(), SCHEMES[name]).proto))
    code = f"import test_same_quantization as t; print(t.digest(t.quantized(t.conv_net(), t.SCHEMES['{name}']).proto))"
    for seed in ("1", "2"):
        paths = [path for path in sys.path if path] + [str(Path(__file__).parent)]
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
        run = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
        found.add(run.stdout.strip())
    assert len(found) == 1


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("dtype", [DType.INT16, DType.FLOAT32, DType.INT4])
def test_precisions_give_the_same_whatever_was_asked_before(name: str, dtype: DType):
    used = quantizer_of(conv_net(), SCHEMES[name], wide=True)
    for wanted in ({}, *({layer: dtype} for layer in LAYERS)):
        new = quantizer_of(conv_net(), SCHEMES[name], wide=True)
        assert digest(used.quantize(wanted).proto) == digest(new.quantize(wanted).proto), wanted
        assert used.sqnr_of_tensor("relu") == new.sqnr_of_tensor("relu")
