# SPDX-License-Identifier: Apache-2.0
"""Kernels of classical machine learning: support vector machines and encoders."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, Real, reads, scratch, writes

# -------------------------------------------------------------------------------------- support vector machines

_CLASSIFIER = """<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
classifier (float[2, 2] x) => (int64[2] label, float[2, 3] scores) {
    label, scores = ai.onnx.ml.SVMClassifier <
        kernel_type = "RBF", kernel_params = [0.5, 0.0, 3.0], classlabels_ints = [0, 1, 2],
        support_vectors = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, -1.0, 0.5], vectors_per_class = [1, 1, 2],
        coefficients = [1.0, -1.0, 0.5, -0.5, 0.75, 1.0, -1.0, 0.25], rho = [0.1, -0.2, 0.3],
        prob_a = [-1.0, -0.5, -0.75], prob_b = [0.1, 0.2, 0.3]
    > (x)
}"""
"""Model that uses all four kernels of support vector machines."""


class RbfParams(Params):
    """Kernel parameters of the radial basis function exp(-gamma d²) of a support vector machine.

    d is the distance of a row of x from a support vector.
    """

    rows: Annotated[int, "rows of x"]
    vectors: Annotated[int, "support vectors"]
    features: Annotated[int, "elements of a row, and of a vector"]
    negative_gamma: Annotated[float, "-gamma"]


RBF = Kernel(
    "rbf",
    what="exp(-gamma d^2) for the distance d of each row from each support vector",
    operands=(
        reads("x", "rows", DType.FLOAT32),
        reads("s", "support vectors", DType.FLOAT32),
        writes("y", "output", DType.FLOAT32),
    ),
    params=(RbfParams,),
    example=_CLASSIFIER,
)
"""Kernel of the radial basis function of support vector machines."""


class DuelsParams(Params):
    """Kernel parameters of a support vector classifier that decides between each pair of classes: its sizes.

    k has a row for each sample, with the kernel function's value for each support vector.
    """

    rows: Annotated[int, "rows of k"]
    classes: Annotated[int, "classes"]
    vectors: Annotated[int, "support vectors of all classes"]


SVM_DUELS = Kernel(
    "svm_duels",
    what="a score for each pair of classes, from kernel values of the support vectors of both",
    operands=(
        reads("k", "kernel values by row and vector", DType.FLOAT32),
        reads("c", "coefficients by opponent and vector", DType.FLOAT32),
        reads("rho", "offset of each pair", DType.FLOAT32),
        reads("first", "first vector of each class, and the end", DType.INT32),
        writes("y", "scores by row and pair", DType.FLOAT32),
    ),
    params=(DuelsParams,),
    example=_CLASSIFIER,
)
"""Kernel that computes the pairwise decision values of a support vector classifier (one against one)."""


class ClassPairs(Params):
    """Kernel parameters with the sizes of pairwise scores of a support vector classifier.

    The classifier decides between each pair of classes; x has a row of such scores for each sample.
    """

    rows: Annotated[int, "rows of x"]
    classes: Annotated[int, "classes"]
    pairs: Annotated[int, "pairs of classes"]


SVM_WINNER = Kernel(
    "svm_winner",
    what="the class that wins most of its pairs",
    operands=(reads("x", "scores by row and pair", DType.FLOAT32), writes("y", "classes", DType.INT64)),
    params=(ClassPairs,),
    example=_CLASSIFIER,
)
"""Kernel that chooses the class of a support vector classifier: the one with most pairwise votes."""


class Iteration(Params):
    """Kernel parameters that end an iterative optimization: largest number of iterations, and tolerance."""

    max_iterations: Annotated[int, "largest number of iterations"]
    tolerance: Annotated[float, "distance from the optimum at which the iteration ends"]


SVM_COUPLING = Kernel(
    "svm_coupling",
    what="probabilities of classes that best fit those of pairs, by coordinate descent",
    operands=(
        reads("x", "scores by row and pair", DType.FLOAT32),
        reads("a", "slope of each pair's sigmoid", DType.FLOAT32),
        reads("b", "offset of each pair's sigmoid", DType.FLOAT32),
        writes("y", "probabilities by row and class", DType.FLOAT32),
        scratch("q", "matrix of the quadratic form", DType.FLOAT32),
        scratch("qp", "product of q and y", DType.FLOAT32),
    ),
    params=(ClassPairs, Iteration),
    example=_CLASSIFIER,
)
"""Kernel that turns the pairwise decision values of a support vector classifier into class probabilities."""

# ------------------------------------------------------------------------------------------------- encoders


class TranslateParams(Params):
    """Kernel parameters of LabelEncoder: the size of its table, and the values for elements that are not keys."""

    count: Annotated[int, "elements"]
    num_keys: Annotated[int, "keys"]
    default_value: Annotated[Real, "value of an element that is no key, converted to the type of y"]
    nan_value: Annotated[Real | None, "value of an element that is NaN"] = None


class TranslateOptions(Options):
    """Template options of LabelEncoder: types of keys and values."""

    x_t: Annotated[str, "C type of keys"]
    y_t: Annotated[str, "C type of values"]
    of_nan: Annotated[bool, "whether elements may be NaN"]


TRANSLATE = Kernel(
    "translate",
    what="the value of the key that an element equals, by binary search",
    operands=(
        reads("x", "input"),
        reads("key", "keys, ascending"),
        reads("value", "value of each key"),
        writes("y", "output"),
    ),
    params=(TranslateParams,),
    options=(TranslateOptions,),
    example="""<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    encoder (int64[6] x) => (float[6] y) {
        four = Constant <value_int = 4> ()
        key = Mod (x, four)
        y = ai.onnx.ml.LabelEncoder <
            keys_int64s = [0, 1, 3], values_floats = [2.0, 3.0, 5.0], default_float = -1.0
        > (key)
    }""",
)
"""Kernel that computes the ONNX operator LabelEncoder."""
