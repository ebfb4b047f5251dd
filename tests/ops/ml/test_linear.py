# SPDX-License-Identifier: Apache-2.0
"""Linear models of domain ai.onnx.ml against onnxruntime."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ml_models import LABEL_AND_SCORES, MlCases

from mcugen.core.errors import McugenError

POSTS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
random = np.random.default_rng(0)
X = random.standard_normal((20, 4)).astype(np.float32)


def numbers(*shape: int) -> list[float]:
    return random.standard_normal(shape).astype(np.float32).reshape(-1).tolist()


def test_regressors() -> None:
    cases = MlCases(x=X)
    for targets, post, intercepts in product((1, 3), POSTS, (True, False)):
        more = {"intercepts": numbers(targets)} if intercepts else {}
        cases.add("LinearRegressor", coefficients=numbers(targets, 4), targets=targets, post_transform=post, **more)
    cases.check()


def test_classifiers() -> None:
    """One score for two classes, or one for each; integers and doubles are computed as float32."""
    cases = MlCases(x=X, d=X.astype(np.float64), i=np.rint(X * 3).astype(np.int64), s=np.rint(X).astype(np.int32))
    for (targets, labels), post in product(((1, [4, 2]), (2, [0, 1]), (3, [5, 0, 3])), POSTS):
        attributes = {"coefficients": numbers(targets, 4), "intercepts": numbers(targets), "post_transform": post}
        cases.add("LinearClassifier", LABEL_AND_SCORES, classlabels_ints=labels, **attributes)
    for name in "dis":
        attributes = {"coefficients": numbers(3, 4), "intercepts": numbers(3), "classlabels_ints": [0, 1, 2]}
        cases.add("LinearClassifier", LABEL_AND_SCORES, inputs=[name], **attributes)
    cases.check()


def test_probit() -> None:
    """Of numbers between 0 and 1, far enough from one half."""
    cases = MlCases(x=np.linspace(0.55, 0.95, 12, dtype=np.float32)[:, None])
    cases.add("LinearRegressor", coefficients=[1.0], post_transform="PROBIT")
    cases.add("LinearRegressor", coefficients=[1.0, -0.9], intercepts=[0.0, 0.9], targets=2, post_transform="PROBIT")
    cases.check(1e-4)


def test_softmax_zero_of_zeros() -> None:
    """Scores of 0 stay 0; if all are, nothing is left to divide by."""
    cases = MlCases(x=np.asarray([[1, 0, 0], [0, -2, 1], [0, 0, 0], [-1, -2, 3]], np.float32))
    eye = np.eye(3).reshape(-1).tolist()
    cases.add("LinearRegressor", coefficients=eye, targets=3, post_transform="SOFTMAX_ZERO")
    cases.check()


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("LinearRegressor", {"coefficients": [1.0] * 3}, "coefficient a feature"),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "targets": 0}, "coefficient a feature"),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "post_transform": "X"}, "post_transform must be known"),
        ("LinearClassifier", {"coefficients": [1.0] * 4, "intercepts": [0.0]}, "there must be classes"),
        (
            "LinearClassifier",
            {"coefficients": [1.0] * 4, "intercepts": [0.0], "classlabels_ints": [6]},
            "for two classes",
        ),
        (
            "LinearClassifier",
            {"coefficients": [1.0] * 8, "intercepts": [0.0] * 2, "classlabels_ints": [1]},
            "each score must have a class",
        ),
        (
            "LinearClassifier",
            {
                "coefficients": [1.0] * 4,
                "intercepts": [0.0],
                "classlabels_ints": [1, 2],
                "post_transform": "PROBIT",
            },
            "PROBIT needs a score",
        ),
    ],
)
def test_refusals(op_type: str, attributes: dict[str, object], message: str) -> None:
    cases = MlCases(x=X)
    cases.add(op_type, LABEL_AND_SCORES[: 1 + (op_type == "LinearClassifier")], **attributes)
    with pytest.raises(McugenError, match=message):
        cases.compile()


def test_inputs_of_three_dimensions_are_refused() -> None:
    cases = MlCases(x=X[None])
    cases.add("LinearRegressor", coefficients=[1.0] * 4)
    with pytest.raises(McugenError, match=r"rank|dimensions"):
        cases.compile()
