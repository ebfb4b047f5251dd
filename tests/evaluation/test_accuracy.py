# SPDX-License-Identifier: Apache-2.0
"""Which outputs are compared, and which of them tells the class."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net

from mcugen.core.errors import VerificationError
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import compare
from mcugen.lir.program import Endpoint

LABELS = np.array([2, 0])
SCORES = [np.array([[0.1, 0.3, 0.6]], np.float32), np.array([[0.5, 0.2, 0.3]], np.float32)]
NAMES = np.array(["a", "b", "c"])


def endpoints() -> list[Endpoint]:
    """Of a classifier: the label, then a score for each class."""
    net = Net()
    scores = net.input("x", 1, 3)
    net.output(net.op("ArgMax", scores, axis=1, keepdims=0, out="label"), dtype=np.int64)
    net.output(net.op("Identity", scores, out="scores"))
    return compile_model(net.model()).program.outputs


def outputs(labels: np.ndarray) -> list[dict[str, np.ndarray]]:
    pairs = zip(labels, SCORES, strict=True)
    return [{"label": np.array([label]), "scores": scores} for label, scores in pairs]


def test_a_single_integer_is_the_class():
    found = compare(endpoints(), outputs(LABELS), outputs(np.array([2, 1])), LABELS)
    assert (found.target, found.float32, found.agreement) == (1.0, 0.5, 0.5)
    assert found.max_abs_error == 1


def test_where_classes_are_named_the_scores_tell():
    found = compare(endpoints(), outputs(LABELS), outputs(NAMES[LABELS]), LABELS)
    assert (found.target, found.float32, found.agreement, found.max_abs_error) == (1.0, 1.0, 1.0, 0.0)


def test_names_alone_cannot_be_compared():
    with pytest.raises(VerificationError, match="must be numbers"):
        compare(endpoints()[:1], outputs(LABELS), outputs(NAMES[LABELS]), None)
