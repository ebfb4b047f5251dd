# SPDX-License-Identifier: Apache-2.0
"""Scaling, encoding and selection of features against onnxruntime, or numpy where it has no kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ml_models import MlCases

from mcugen.core.errors import McugenError

random = np.random.default_rng(0)
X = random.standard_normal((6, 4)).astype(np.float32) * 3
I64, I32 = np.rint(X).astype(np.int64), np.rint(X).astype(np.int32)


def test_scaler() -> None:
    cases = MlCases(x=X, d=X.astype(np.float64) + 1e6, i=I64, s=I32, v=X[0])
    for name in "xdisv":
        rank = 1 if name == "v" else 2
        cases.add("Scaler", ((np.float32, rank),), [name], offset=[0.5, -1.0, 2.0, 0.25], scale=[2.0, 0.5, 1.0, 3.0])
        cases.add("Scaler", ((np.float32, rank),), [name], offset=[0.5], scale=[0.1])
    cases.check()


def test_normalizer() -> None:
    """Rows of zeros stay as they are; the maximum is not that of magnitudes."""
    x = np.concatenate([X, np.zeros((1, 4), np.float32), -np.abs(X[:1])])
    cases = MlCases(x=x, i=np.rint(x).astype(np.int64), d=x.astype(np.float64), v=X[0])
    for norm in ("MAX", "L1", "L2"):
        for name in "xidv":
            cases.add("Normalizer", ((np.float32, 1 if name == "v" else 2),), [name], norm=norm)
    cases.check()


def test_binarizer_and_imputer() -> None:
    missing = X.copy()
    missing[1, 2] = missing[4, 0] = np.nan
    missing[0] = 0
    cases = MlCases(x=missing, whole=X, i=I64)
    for threshold in (0.0, -0.5, 1e9):
        cases.add("Binarizer", inputs=["whole"], threshold=threshold)
    cases.add("Imputer", imputed_value_floats=[7.0], replaced_value_float=float("nan"))
    cases.add("Imputer", imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=0.0)
    cases.add("Imputer", ((np.int64, 2),), ["i"], imputed_value_int64s=[-7], replaced_value_int64=int(I64[0, 0]))
    cases.add("Imputer", ((np.int64, 2),), ["i"], imputed_value_int64s=[2**40, 2, 3, 4], replaced_value_int64=1)
    cases.check()


def test_binarizer_of_integers() -> None:
    cases = MlCases(i=I64, s=I32)
    for name, dtype in (("i", np.int64), ("s", np.int32)):
        cases.add("Binarizer", ((dtype, 2),), [name], threshold=1.5)
        cases.add("Binarizer", ((dtype, 2),), [name], threshold=-1e30)
    cases.check(reference=False)
    found = cases.compile().run({"i": I64[None], "s": I32[None]})
    np.testing.assert_array_equal(found["y0"][0], I64 > 1.5)
    np.testing.assert_array_equal(found["y3"][0], np.ones_like(I32))


def test_one_hot_encoder() -> None:
    """A category that is not listed gives zeros."""
    cases = MlCases(i=I64, x=X, v=I64[:, 0])
    for name, rank in (("i", 3), ("x", 3), ("v", 2)):
        cases.add("OneHotEncoder", ((np.float32, rank),), [name], cats_int64s=[3, -1, 0, 2], zeros=1)
    cases.check()


def test_feature_vectorizer() -> None:
    """Inputs are cut or filled up to their declared sizes."""
    cases = MlCases(x=X, more=X * 2, less=X[:, :2], i=I64)
    cases.add("FeatureVectorizer", ((np.float32, 2),), ["x", "more", "less"], inputdimensions=[4, 2, 6])
    cases.add("FeatureVectorizer", ((np.float32, 2),), ["i"], inputdimensions=[3])
    cases.check()


def test_array_feature_extractor() -> None:
    cases = MlCases(x=X, i=I64, v=X[0], cube=X.reshape(2, 3, 4), at=np.asarray([[3], [0], [3]], np.int64))
    some, one = cases.const("some", np.asarray([2, 0, 1, 2])), cases.const("one", np.asarray([1]))
    known = cases.const("known", np.asarray([[1.5, 2.5, 3.5, 4.5]], np.float32))
    for name, dtype, rank in (("x", np.float32, 2), ("i", np.int64, 2), ("v", np.float32, 2), ("cube", np.float32, 3)):
        for positions in (some, one, "at"):
            cases.add("ArrayFeatureExtractor", ((dtype, rank),), [name, positions])
    cases.add("ArrayFeatureExtractor", ((np.float32, 2),), [known, "at"])
    cases.check()


def test_positions_outside_are_moved_inside() -> None:
    """They are known at run time only; onnxruntime refuses them. Negative ones count from the end, as in Gather."""
    cases = MlCases(x=X, at=np.asarray([4, -1, 2**40, -(2**40)], np.int64))
    cases.add("ArrayFeatureExtractor", ((np.float32, 2),), ["x", "at"])
    found = cases.compile().run({"x": X[None], "at": cases.feeds["at"][None]}, sanitize=True)["y0"][0]
    np.testing.assert_array_equal(found, X[:, [3, 3, 3, 0]])


def test_label_encoder() -> None:
    x = np.asarray([[1, -2.5, np.nan], [0.0, 7, 3]], np.float32)
    cases = MlCases(version=4, x=x, i=np.asarray([5, -1, 2**40, 7, 0], np.int64), d=x.astype(np.float64))
    nan = float("nan")
    cases.add("LabelEncoder", keys_floats=[7.0, 1.0, -2.5], values_floats=[0.5, 1.5, 2.5], default_float=9.0)
    cases.add("LabelEncoder", keys_floats=[nan, 1.0, 3.0], values_floats=[0.5, 1.5, 2.5])
    cases.add("LabelEncoder", ((np.int64, 2),), keys_floats=[1.0, 3.0], values_int64s=[10, 30], default_int64=-5)
    cases.add("LabelEncoder", ((np.int64, 1),), ["i"], keys_int64s=[2**40, 5, -1], values_int64s=[1, 2**50, 3])
    cases.add("LabelEncoder", ((np.float32, 1),), ["i"], keys_int64s=[7, 5, 0, 9], values_floats=[1.0, 2.0, 3.0, 4.0])
    tensors = {"keys_tensor": [1.0, 7.0], "values_tensor": [0.25, 0.75], "default_tensor": [2.0]}
    doubles = {
        key: onnx.numpy_helper.onnx.numpy_helper.from_array(np.asarray(value, np.float64))
        for key, value in tensors.items()
    }
    cases.add("LabelEncoder", ((np.float64, 2),), ["d"], **doubles)
    cases.check()


def test_repeated_keys_and_names_as_values() -> None:
    """The last of equal keys counts; values that are strings are told by their positions."""
    cases = MlCases(version=4, i=np.asarray([3, 4, 5], np.int64))
    cases.add("LabelEncoder", ((np.int64, 1),), ["i"], keys_int64s=[3, 4, 3], values_int64s=[1, 2, 8])
    cases.add("LabelEncoder", ((np.object_, 1),), ["i"], keys_int64s=[4, 3], values_strings=["four", "three"])
    compiled = cases.compile()
    found = compiled.run({"i": cases.feeds["i"][None]}, sanitize=True)
    assert found["y0"][0].tolist() == [8, 2, -1]
    assert found["y1"][0].tolist() == [1, 0, -1]
    assert "classes 0 = four, 1 = three" in compiled.bundle.files["ml.c"]


def test_constant_strings_are_taken_by_position() -> None:
    cases = MlCases(at=np.asarray([[2], [0]], np.int64))
    names = cases.const("names", np.asarray(["setosa", "versicolor", "virginica"], object))
    cases.add("ArrayFeatureExtractor", ((np.object_, 2),), [names, "at"])
    compiled = cases.compile()
    assert compiled.run({"at": cases.feeds["at"][None]})["y0"][0].tolist() == [[2, 0]]
    assert "0 = setosa, 1 = versicolor, 2 = virginica" in compiled.bundle.files["ml.c"]


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("Scaler", {"offset": [0.0, 1.0], "scale": [1.0]}, "one value, or one a feature"),
        ("Scaler", {"scale": [1.0]}, "one value, or one a feature"),
        ("Normalizer", {"norm": "L3"}, "L3"),
        ("Binarizer", {"threshold": float("nan")}, "finite"),
        ("Imputer", {"imputed_value_int64s": [1]}, "input's type"),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0]}, "one value, or one a feature"),
        ("OneHotEncoder", {"cats_strings": ["a"]}, "strings"),
        ("OneHotEncoder", {"cats_int64s": [1, 1]}, "different integers"),
        ("FeatureVectorizer", {"inputdimensions": [1, 2]}, "a size an input"),
        ("FeatureVectorizer", {"inputdimensions": [0]}, "a size an input"),
        ("LabelEncoder", {"keys_floats": [1.0], "values_floats": [1.0, 2.0]}, "value for each numeric key"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_floats": [1.0]}, "value for each numeric key"),
        ("LabelEncoder", {"keys_floats": [float("nan")], "values_floats": [1.0]}, "besides NaN"),
    ],
)
def test_refusals(op_type: str, attributes: dict[str, object], message: str) -> None:
    cases = MlCases(x=X)
    cases.add(op_type, **attributes)
    with pytest.raises(McugenError, match=message):
        cases.compile()


@pytest.mark.parametrize("default", [np.zeros(0, np.int64), np.zeros(2, np.int64), np.array(["a"])])
def test_defaults_that_are_no_number_are_refused(default: np.ndarray) -> None:
    cases = MlCases(version=4, x=X)
    tensor = onnx.helper.make_tensor("d", onnx.TensorProto.STRING, [1], [b"a"])
    tensor = tensor if default.dtype.kind == "U" else onnx.numpy_helper.from_array(default)
    cases.add("LabelEncoder", keys_floats=[1.0], values_floats=[1.0], default_tensor=tensor)
    with pytest.raises(McugenError, match="the default must be one number"):
        cases.compile()


@pytest.mark.parametrize("positions", [[4], [-5], [0, 9]])
def test_constant_positions_outside_are_refused(positions: list[int]) -> None:
    cases = MlCases(x=X)
    at = cases.const("at", np.asarray(positions))
    cases.add("ArrayFeatureExtractor", ((np.float32, 2),), ["x", at])
    with pytest.raises(McugenError, match="axis"):
        cases.compile()


def test_what_needs_strings_is_refused() -> None:
    cases = MlCases(i=I64)
    cases.add("CategoryMapper", ((np.object_, 2),), ["i"], cats_int64s=[1], cats_strings=["a"])
    with pytest.raises(McugenError, match="CategoryMapper: only numbers"):
        cases.compile()
