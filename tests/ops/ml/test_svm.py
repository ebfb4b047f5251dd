# SPDX-License-Identifier: Apache-2.0
"""Support vector machines against onnxruntime: kernel functions, votes, probabilities."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ml_models import LABEL_AND_SCORES, MlCases

from mcugen.core.errors import McugenError

KERNELS = {
    "LINEAR": [0.5, 0.0, 3.0],
    "POLY": [0.25, 0.5, 3.0],
    "RBF": [0.25, 0.0, 3.0],
    "SIGMOID": [0.125, 0.25, 3.0],
}
X = np.random.default_rng(0).standard_normal((25, 3)).astype(np.float32)


def numbers(seed: int, *shape: int) -> list[float]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).reshape(-1).tolist()


def classifier(sizes: list[int], kernel: str = "RBF", probability: bool = False, **more: object) -> dict[str, object]:
    count, vectors = len(sizes), sum(sizes)
    pairs = count * (count - 1) // 2
    platt = {"prob_a": [-1.0 - abs(v) for v in numbers(4, pairs)], "prob_b": numbers(5, pairs)}
    return {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "vectors_per_class": sizes,
        "support_vectors": numbers(1, vectors, 3),
        "coefficients": numbers(2, count - 1, vectors),
        "rho": numbers(3, pairs),
        "classlabels_ints": [9, 4, 7, 1][:count],
        **(platt if probability else {}),
        **more,
    }


def regressor(kernel: str, **more: object) -> dict[str, object]:
    return {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "n_supports": 6,
        "support_vectors": numbers(1, 6, 3),
        "coefficients": numbers(2, 6),
        "rho": [0.25],
        **more,
    }


def test_regressors() -> None:
    cases = MlCases(x=X)
    for kernel, one_class in product(KERNELS, (0, 1)):
        cases.add("SVMRegressor", **regressor(kernel, one_class=one_class))
    for degree in (2.0, 4.0):
        cases.add("SVMRegressor", **regressor("POLY", kernel_params=[0.25, 3.0, degree]))
    for kernel in KERNELS:
        cases.add(
            "SVMRegressor", kernel_type=kernel, kernel_params=KERNELS[kernel], coefficients=[1.0, 2, 3], rho=[1.0]
        )
    cases.check()


@pytest.mark.parametrize("sizes", [[3, 4], [2, 3, 4], [2, 1, 3, 2]])
def test_classifiers(sizes: list[int]) -> None:
    cases = MlCases(x=X)
    for kernel, probability in product(KERNELS, (False, True)):
        cases.add("SVMClassifier", LABEL_AND_SCORES, **classifier(sizes, kernel, probability))
    for post, probability in product(("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"), (False, True)):
        attributes = classifier(sizes, probability=probability, post_transform=post)
        cases.add("SVMClassifier", LABEL_AND_SCORES, **attributes)
    cases.check()


def test_linear_classifiers() -> None:
    """Without support vectors; of two classes the rule depends on the signs of all coefficients."""
    cases = MlCases(x=X, i=np.rint(X * 2).astype(np.int64), d=X.astype(np.float64))
    for labels, positive, post in product(([3, 8], [3, 8, 5]), (False, True), ("NONE", "LOGISTIC", "SOFTMAX")):
        weights = numbers(len(labels), len(labels), 3)
        weights = [abs(w) for w in weights] if positive else weights
        attributes = {"coefficients": weights, "rho": [0.25], "kernel_params": KERNELS["RBF"], "post_transform": post}
        cases.add("SVMClassifier", LABEL_AND_SCORES, classlabels_ints=labels, **attributes)
    for name in "id":
        cases.add("SVMClassifier", LABEL_AND_SCORES, inputs=[name], **classifier([2, 3, 2], probability=True))
    cases.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_type": "COSINE"}, "COSINE"),
        ({"kernel_params": [1.0]}, "gamma, coef0 and degree"),
        ({"support_vectors": [1.0] * 5}, "as long as the features"),
        ({"vectors_per_class": [3, 3]}, "of each class"),
        ({"vectors_per_class": [-1, 4, 4]}, "of each class"),
        ({"coefficients": [1.0] * 3}, "coefficients and rho"),
        ({"rho": [1.0]}, "coefficients and rho"),
        ({"prob_b": [1.0]}, "each pair"),
        ({"vectors_per_class": None}, "coefficient a feature"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    cases = MlCases(x=X)
    cases.add("SVMClassifier", LABEL_AND_SCORES, **classifier([2, 3, 2], probability=True) | change)
    with pytest.raises(McugenError, match=message):
        cases.compile()


@pytest.mark.parametrize("change", [{"coefficients": [1.0]}, {"rho": None}, {"n_supports": 7}])
def test_refusals_of_regressors(change: dict[str, object]) -> None:
    cases = MlCases(x=X)
    cases.add("SVMRegressor", **regressor("RBF") | change)
    with pytest.raises(McugenError, match="support vector"):
        cases.compile()
