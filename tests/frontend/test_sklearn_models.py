# SPDX-License-Identifier: Apache-2.0
"""Estimators and pipelines, compiled from Python in one call, predict what scikit-learn predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import numpy_outputs

import mcugen
from mcugen.core.errors import ModelError, UsageError
from mcugen.frontend.onnx.load import load

pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.calibration import CalibratedClassifierCV  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.compose import ColumnTransformer, make_column_transformer  # noqa: E402
from sklearn.datasets import load_iris  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    BaggingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest  # noqa: E402
from sklearn.kernel_approximation import Nystroem  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: E402
from sklearn.mixture import GaussianMixture  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.multiclass import OneVsRestClassifier  # noqa: E402
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, PolynomialFeatures, StandardScaler  # noqa: E402
from sklearn.svm import LinearSVC, OneClassSVM  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402

from mcugen.frontend.sklearn.estimator import convert  # noqa: E402

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


SEED = {"random_state": 0}
ESTIMATORS = {
    "scaled components": lambda: make_pipeline(StandardScaler(), PCA(2), LogisticRegression()),
    "polynomials": lambda: make_pipeline(PolynomialFeatures(2), StandardScaler(), Ridge()),
    "best features": lambda: make_pipeline(SelectKBest(k=2), LogisticRegression(max_iter=500)),
    "columns": lambda: make_pipeline(
        make_column_transformer((StandardScaler(), [0, 2]), (MinMaxScaler(), [3])), Ridge()
    ),
    "outliers of a forest": lambda: IsolationForest(n_estimators=5, **SEED),
    "outliers of a machine": lambda: OneClassSVM(nu=0.1),
    "clusters": lambda: KMeans(3, n_init=2, **SEED),
    "mixture": lambda: GaussianMixture(3, **SEED),
    "one class at a time": lambda: OneVsRestClassifier(LogisticRegression()),
    "calibrated": lambda: CalibratedClassifierCV(LinearSVC(), cv=2),
    "voting": lambda: VotingClassifier(
        [("a", LogisticRegression()), ("b", DecisionTreeClassifier(**SEED))], voting="soft"
    ),
    "bagging": lambda: BaggingClassifier(n_estimators=3, **SEED),
    "linear machine": LinearSVC,
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=3),
    "search": lambda: GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1]}, cv=2),
}
"""Makers of estimators and pipelines that skl2onnx converts."""


def converted_outputs(model: Any, samples: Any) -> list[Any]:
    proto = convert(model)
    rows = [list(numpy_outputs(proto, {"X": row[None]}).values()) for row in samples]
    return [np.concatenate(each) for each in zip(*rows, strict=True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_predictions_and_scores_are_the_estimators(make: Any) -> None:
    model, x = fitted(make())
    first, *scores = converted_outputs(model, x[::10])
    np.testing.assert_allclose(first.reshape(-1), model.predict(x[::10]), rtol=1e-5, atol=1e-5)
    functions = ("predict_proba", "decision_function", "transform")
    method = next((getattr(model, name) for name in functions if scores and hasattr(model, name)), None)
    if method is not None:
        np.testing.assert_allclose(
            scores[0].reshape(len(first), -1), method(x[::10]).reshape(len(first), -1), 1e-4, 1e-4
        )


def test_several_targets() -> None:
    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    numbers = MultiOutputRegressor(Ridge()).fit(x, x[:, :2] * 2)
    np.testing.assert_allclose(converted_outputs(numbers, x[:9])[0].reshape(9, 2), numbers.predict(x[:9]), 1e-4)
    classes = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(x, np.c_[y, y > 0])
    labels, *scores = converted_outputs(classes, x[::10])
    np.testing.assert_array_equal(labels.reshape(-1, 2), classes.predict(x[::10]))
    for found, wanted in zip(scores, classes.predict_proba(x[::10]), strict=True):
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, 1e-4, 1e-5)


def test_columns_selected_by_name_are_positions_of_one_vector() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    x, y = load_iris(return_X_y=True)
    frame = pandas.DataFrame(x.astype(np.float32), columns=["a", "b", "c", "d"])
    columns = [("first", StandardScaler(), ["d", "a"]), ("second", make_pipeline(PCA(1)), ["c", "b"])]
    model = make_pipeline(ColumnTransformer(columns), LogisticRegression()).fit(frame, y)
    labels, scores = converted_outputs(model, frame.to_numpy()[::10])
    np.testing.assert_array_equal(labels, model.predict(frame[::10]))
    np.testing.assert_allclose(scores.reshape(-1, 3), model.predict_proba(frame[::10]), 1e-5, 1e-6)


def test_texts_are_one_error() -> None:
    with pytest.raises(UsageError, match=r"must be numbers.*OneHotEncoder with the category 'blue'"):
        mcugen.compile(OneHotEncoder().fit(np.asarray([["red"], ["blue"]])))


def test_a_step_without_a_converter_is_named() -> None:
    model, _ = fitted(make_pipeline(Nystroem(n_components=5), LogisticRegression()))
    with pytest.raises(
        ModelError, match=r"Pipeline: .*none for sklearn.kernel_approximation.Nystroem.*another estimator"
    ):
        mcugen.compile(model)


def test_names_of_classes_are_labels() -> None:
    x, y = load_iris(return_X_y=True)
    proto = convert(LogisticRegression(max_iter=500).fit(x, np.asarray(["one", "two", "three"])[y]))
    assert load(proto).labels == ("one", "three", "two")


@pytest.mark.parametrize(
    ("package", "name", "settings"),
    [
        ("xgboost", "XGBRFClassifier", {}),
        ("xgboost", "XGBRegressor", {"booster": "gblinear"}),
        ("lightgbm", "LGBMRegressor", {"linear_tree": True, "verbose": -1}),
    ],
)
def test_boosted_models_that_would_change_are_refused(package: str, name: str, settings: dict[str, Any]) -> None:
    library = pytest.importorskip(package, reason=f"{package} is not installed")
    pytest.importorskip("onnxmltools", reason="onnxmltools is not installed")
    model, _ = fitted(getattr(library, name)(n_estimators=4, **settings))
    with pytest.raises(ModelError, match=f"{name}.*gradient-boosted trees"):
        mcugen.compile(model)


@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_boosted_trees_behind_a_scaler(package: str) -> None:
    library = pytest.importorskip(package, reason=f"{package} is not installed")
    pytest.importorskip("onnxmltools", reason="onnxmltools is not installed")
    quiet = {"verbose": -1} if package == "lightgbm" else {}
    make = {"xgboost": "XGBRegressor", "lightgbm": "LGBMRegressor"}[package]
    model, x = fitted(make_pipeline(StandardScaler(), getattr(library, make)(n_estimators=4, **quiet)))
    (found,) = converted_outputs(model, x[::10])
    np.testing.assert_allclose(found.reshape(-1), model.predict(x[::10]), 1e-5, 1e-6)


@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_boosted_trees(package: str) -> None:
    library = pytest.importorskip(package, reason=f"{package} is not installed")
    pytest.importorskip("onnxmltools", reason="onnxmltools is not installed")
    quiet = {"verbose": -1} if package == "lightgbm" else {}
    make = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}[package]
    model, x = fitted(getattr(library, make)(n_estimators=4, **quiet))
    np.testing.assert_array_equal(predictions(model, x[::10]), model.predict(x[::10]))
