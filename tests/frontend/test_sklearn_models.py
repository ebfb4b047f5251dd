# SPDX-License-Identifier: Apache-2.0
"""Estimators and pipelines, compiled from Python in one call, predict what scikit-learn predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mcugen
from mcugen.core.errors import UsageError

pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.datasets import load_iris  # noqa: E402
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402

MODELS = {
    "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "tree": lambda: DecisionTreeClassifier(max_depth=4, random_state=0),
    "forest": lambda: RandomForestClassifier(5, random_state=0),
    "boosting": lambda: GradientBoostingRegressor(n_estimators=5, random_state=0),
    "ridge": Ridge,
    "network": lambda: make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=50, random_state=0)),
}


def fitted(model: Any) -> tuple[Any, Any]:
    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    return model.fit(x, y), x


def predictions(model: Any, samples: Any) -> Any:
    results = mcugen.compile(model).run(samples[:, None])
    return next(iter(results.values())).reshape(len(samples))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_fitted_model_predicts_the_same(make: Any) -> None:
    model, x = fitted(make())
    np.testing.assert_allclose(predictions(model, x[::10]), model.predict(x[::10]), rtol=1e-5, atol=1e-5)


def test_a_model_that_was_not_fitted_is_one_error() -> None:
    with pytest.raises(UsageError, match="must be fitted"):
        mcugen.compile(Ridge())


def test_an_object_that_is_no_estimator_is_one_error() -> None:
    from sklearn.utils import Bunch

    with pytest.raises(UsageError, match="must be an estimator"):
        mcugen.compile(Bunch(a=1))


@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_boosted_trees(package: str) -> None:
    library = pytest.importorskip(package, reason=f"{package} is not installed")
    pytest.importorskip("onnxmltools", reason="onnxmltools is not installed")
    quiet = {"verbose": -1} if package == "lightgbm" else {}
    make = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}[package]
    model, x = fitted(getattr(library, make)(n_estimators=4, **quiet))
    np.testing.assert_array_equal(predictions(model, x[::10]), model.predict(x[::10]))
