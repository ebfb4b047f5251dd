# SPDX-License-Identifier: Apache-2.0
"""Pipelines of scikit-learn, trained here, converted by skl2onnx: the C decides as ONNX Runtime does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import pytest
from bundle_batch import combine
from onnx_models import onnxruntime_outputs
from sklearn.base import BaseEstimator, is_classifier
from sklearn.cluster import KMeans
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, MinMaxScaler, Normalizer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier

from mcugen.core.board import load_board
from mcugen.core.errors import UnsupportedError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation import Setup, simulate

skl2onnx = pytest.importorskip("skl2onnx")

ROWS = 15
NAMES = load_iris().target_names


@dataclass(frozen=True)
class Task:
    """What is learned from: features and answers."""

    x: np.ndarray
    y: np.ndarray


def tasks() -> dict[str, Task]:
    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    pick = y > 0
    numbers, answers = load_diabetes(return_X_y=True)
    return {
        "flowers": Task(x, y),
        "named": Task(x, NAMES[y]),
        "two": Task(x[pick], y[pick]),
        "two_named": Task(x[pick], NAMES[y[pick]]),
        "whole": Task(np.rint(x).astype(np.int64), y),
        "holes": Task(np.where(x > 6.8, np.nan, x).astype(np.float32), y),
        "numbers": Task(numbers.astype(np.float32), answers),
        "several": Task(x[:, :2], x[:, 2:]),
    }


SEED = {"random_state": 0}
MODELS: dict[str, tuple[str, BaseEstimator]] = {
    "forest": ("flowers", RandomForestClassifier(12, max_depth=6, **SEED)),
    "forest_of_two": ("two", RandomForestClassifier(8, **SEED)),
    "forest_of_names": ("named", RandomForestClassifier(5, **SEED)),
    "forest_regressor": ("numbers", RandomForestRegressor(5, max_depth=6, **SEED)),
    "forest_of_targets": ("several", RandomForestRegressor(5, max_depth=5, **SEED)),
    "extra_trees": ("flowers", ExtraTreesClassifier(5, max_depth=6, **SEED)),
    "boosting": ("flowers", GradientBoostingClassifier(n_estimators=6, **SEED)),
    "boosting_of_two": ("two", GradientBoostingClassifier(n_estimators=6, **SEED)),
    "boosting_regressor": ("numbers", GradientBoostingRegressor(n_estimators=10, **SEED)),
    "ada": ("flowers", AdaBoostClassifier(n_estimators=4, **SEED)),
    "tree": ("flowers", DecisionTreeClassifier(**SEED)),
    "svc": ("flowers", SVC()),
    "svc_of_two": ("two", SVC()),
    "svc_probability": ("flowers", SVC(probability=True, **SEED)),
    "svc_of_two_names": (
        "two_named",
        make_pipeline(StandardScaler(), SVC(probability=True, kernel="poly", **SEED)),
    ),
    "svr": ("numbers", make_pipeline(StandardScaler(), SVR(C=20))),
    "logistic": ("flowers", make_pipeline(StandardScaler(), LogisticRegression())),
    "logistic_of_two_names": ("two_named", make_pipeline(StandardScaler(), LogisticRegression())),
    "ridge": ("flowers", RidgeClassifier()),
    "linear": ("numbers", LinearRegression()),
    "perceptron": ("flowers", make_pipeline(MinMaxScaler(), MLPClassifier((8,), max_iter=60, **SEED))),
    "perceptron_of_names": ("named", make_pipeline(MinMaxScaler(), MLPClassifier((8,), max_iter=60, **SEED))),
    "neighbours": ("flowers", make_pipeline(PCA(2), KNeighborsClassifier(3))),
    "one_hot": ("whole", make_pipeline(OneHotEncoder(handle_unknown="ignore"), DecisionTreeClassifier(**SEED))),
    "normalized": ("flowers", make_pipeline(Normalizer(), LogisticRegression())),
    "binarized": ("flowers", make_pipeline(Binarizer(threshold=2.5), LogisticRegression())),
    "imputed": ("holes", make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())),
    "bayes": ("flowers", GaussianNB()),
    "clusters": ("flowers", KMeans(3, n_init=2, **SEED)),
}
MISSING = {"neighbours": "Scan"}
"""Models that need an operator which may not be supported (yet)."""


@dataclass(frozen=True)
class Trained:
    """A pipeline as ONNX, with rows to try it on."""

    model: onnx.ModelProto
    x: np.ndarray

    def compile(self, name: str, optimize: str = "balanced", board: str = "host") -> CompiledModel:
        options = CompileOptions(name=name, dims={"X:0": len(self.x)}, optimize=optimize)
        return compile_model(self.model, board, options)

    def expected(self) -> dict[str, np.ndarray]:
        """What ONNX Runtime gives; dictionaries by class as rows, names of classes as positions."""
        return {name: plain(value) for name, value in onnxruntime_outputs(self.model, {"X": self.x}).items()}


def plain(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind not in "OU":
        return value
    if isinstance(value[0], Mapping):
        return np.asarray([list(row.values()) for row in value], np.float32)
    known = {name: index for index, name in enumerate(sorted(set(NAMES.tolist())))}
    return np.asarray([known[name] for name in value.tolist()])


@cache
def trained(name: str, zipmap: bool) -> Trained:
    task_name, estimator = MODELS[name]
    task = tasks()[task_name]
    options = {"zipmap": zipmap} if is_classifier(estimator) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = estimator.fit(task.x, task.y)
        model = skl2onnx.to_onnx(fitted, task.x[:1], options=options, target_opset=18)
    return Trained(model, task.x[:: len(task.x) // ROWS][:ROWS])


VARIANTS = {"balanced": False, "speed": True}
"""Goals of optimization, and whether the model ends in a ZipMap."""


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], dict[str, np.ndarray] | str]:
    """What the C of all models gives, built as one program under the sanitizers; a text where none was made."""
    compiled: dict[tuple[str, str], CompiledModel] = {}
    found: dict[tuple[str, str], dict[str, np.ndarray] | str] = {}
    for number, name in enumerate(MODELS):
        for goal, zipmap in VARIANTS.items():
            try:
                compiled[name, goal] = trained(name, zipmap).compile(f"m{number}{goal[0]}", goal)
            except UnsupportedError as error:
                found[name, goal] = str(error)
    sample = {f"{c.bundle.name}/X": trained(n, VARIANTS[g]).x for (n, g), c in compiled.items()}
    bundle = combine([c.bundle for c in compiled.values()])
    (outputs,) = simulate(bundle, load_board("host"), [sample], measure=False, setup=Setup(sanitize=True)).outputs
    for key, c in compiled.items():
        found[key] = {e.name: outputs[f"{c.bundle.name}/{e.name}"] for e in c.program.outputs}
    return found


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, wanted in expected.items():
        got = found[name]
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-5 * np.abs(wanted).max(), err_msg=name)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=name)


@pytest.mark.parametrize("goal", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_pipelines(name: str, goal: str, results: dict[tuple[str, str], dict[str, np.ndarray] | str]) -> None:
    found = results[name, goal]
    if isinstance(found, str):
        assert name in MISSING and MISSING[name] in found, found
        pytest.skip(f"{MISSING[name]} is not supported")
    expected = trained(name, VARIANTS[goal]).expected()
    if "two_names" in name:  # positions among the two classes that were there
        expected = {key: value - value.min() if value.dtype.kind == "i" else value for key, value in expected.items()}
    assert_same(found, expected)


@pytest.mark.qemu
@pytest.mark.parametrize(("name", "goal"), [("forest", "balanced"), ("boosting_of_two", "speed"), ("svc", "balanced")])
def test_on_a_cortex_m4(name: str, goal: str) -> None:
    model = trained(name, False)
    found = model.compile(name, goal, "stm32f411").run({"X": model.x[None]})
    assert_same({key: array[0] for key, array in found.items()}, model.expected())
