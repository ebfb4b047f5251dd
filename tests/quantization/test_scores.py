# SPDX-License-Identifier: Apache-2.0
"""Anomaly scores: calibrated on normal samples alone, they tell anomalies as the float model does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx_models import Net
from skl2onnx import to_onnx
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from mcugen.api.compilation import Compilation
from mcugen.driver.tasks import Quantizing
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.layers import OtherPrecision, precision_lines
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Graph
from mcugen.hir.types import Array, DType
from mcugen.quantization.float_model import build_float_model
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.scores import score_layers, tensors_of_scores, with_float_scores

FEATURES, RANK = 24, 4


def normal(seed: int, count: int) -> Array:
    """Samples near a subspace."""
    random, basis = np.random.default_rng(seed), np.random.default_rng(99).standard_normal((RANK, FEATURES))
    samples = random.standard_normal((count, RANK)) @ basis + 0.1 * random.standard_normal((count, FEATURES))
    return samples.astype(np.float32)


def anomalous(seed: int, count: int, size: float) -> Array:
    deviation = np.random.default_rng(seed + 1).standard_normal((count, FEATURES))
    return (normal(seed, count) + size * deviation).astype(np.float32)


def principal_directions(rank: int = RANK) -> Array:
    return np.linalg.svd(normal(0, 500), full_matrices=False)[2][:rank].T


def autoencoder(error: str) -> onnx.ModelProto:
    """A linear autoencoder through layers with ReLU; `error` is how its deviation becomes a score."""
    net, w = Net(18), principal_directions()
    x = net.input("x", 1, FEATURES)
    both = np.concatenate([w, -w], 1)
    code = net.op("Relu", net.op("Gemm", x, net.const(both), net.const(np.zeros(2 * RANK))))
    made = net.op("Gemm", code, net.const(np.concatenate([w.T, -w.T])), net.const(np.zeros(FEATURES)))
    e = net.op("Sub", x, made)
    axes = net.const([1], np.int64)
    if error == "mean of squares":
        y = net.op("ReduceMean", net.op("Mul", e, e), axes, keepdims=0)
    elif error == "mean of magnitudes":
        y = net.op("ReduceMean", net.op("Abs", e), axes, keepdims=0)
    elif error == "largest magnitude":
        y = net.op("ReduceMax", net.op("Abs", e), axes, keepdims=0)
    elif error == "norm":
        y = net.op("ReduceL2", e, axes, keepdims=0)
    else:
        y = net.op("Log", net.op("ReduceSumSquare", e, axes, keepdims=0))
    net.output(y)
    return net.model()


def distances() -> onnx.ModelProto:
    """The distance from the nearest of four centres, as |x|² - 2 x·c + |c|²."""
    net, centres = Net(18), normal(5, 4)
    x, axes = net.input("x", 1, FEATURES), net.const([1], np.int64)
    square = net.op("ReduceSumSquare", x, axes)
    products = net.op("Gemm", x, net.const(-2 * centres.T), net.const((centres**2).sum(1)))
    y = net.op("Sqrt", net.op("ReduceMin", net.op("Add", square, products), axes))
    net.output(y)
    return net.model()


def mixture() -> onnx.ModelProto:
    """The negative log-likelihood of a Gaussian mixture of two components."""
    net, axes = Net(18), None
    x, axes = net.input("x", 1, FEATURES), net.const([1], np.int64)
    logs = []
    for seed in (1, 2):
        samples = normal(seed, 400)
        factor = np.linalg.cholesky(np.linalg.inv(np.cov(samples.T) + 0.01 * np.eye(FEATURES)))
        whitened = net.op("Gemm", x, net.const(factor), net.const(-samples.mean(0) @ factor))
        logs.append(net.op("ReduceSumSquare", whitened, axes))
    y = net.op("ReduceLogSumExp", net.op("Mul", net.op("Concat", *logs, axis=1), net.const(-0.05)), axes)
    net.output(net.op("Neg", y))
    return net.model()


def reconstruction() -> onnx.ModelProto:
    """The squared deviation from the principal directions."""
    net, w = Net(18), principal_directions()
    centred = net.op("Sub", net.input("x", 1, FEATURES), net.const(normal(0, 500).mean(0)))
    made = net.op("MatMul", net.op("MatMul", centred, net.const(w)), net.const(w.T))
    square = net.op("Pow", net.op("Sub", centred, made), net.const(2.0))
    net.output(net.op("ReduceSum", square, net.const([1], np.int64), keepdims=0))
    return net.model()


def quadratic(net: Net, x: str, seed: int, ridge: float) -> str:
    """The squared Mahalanobis distance from a sample's mean."""
    samples = normal(seed, 400)
    inverse = np.linalg.inv(np.cov(samples.T) + ridge * np.eye(FEATURES))
    centred = net.op("Sub", x, net.const(samples.mean(0)))
    products = net.op("Mul", net.op("MatMul", centred, net.const(inverse)), centred)
    return net.op("ReduceSum", products, net.const([1], np.int64))


def mahalanobis(has_root: bool) -> onnx.ModelProto:
    net = Net(18)
    y = quadratic(net, net.input("x", 1, FEATURES), 1, 0.001)
    net.output(net.op("Sqrt", y) if has_root else y)
    return net.model()


def mixture_of_quadratic_forms() -> onnx.ModelProto:
    net = Net(18)
    x = net.input("x", 1, FEATURES)
    forms = net.op("Concat", *(quadratic(net, x, seed, 0.01) for seed in (1, 2)), axis=1)
    y = net.op("ReduceLogSumExp", net.op("Mul", forms, net.const(-0.05)), net.const([1], np.int64))
    net.output(net.op("Neg", y))
    return net.model()


def wide_autoencoder(function: str) -> onnx.ModelProto:
    """A layer of 256 that is too large to be cheap in float32, and weights that least squares give."""
    random, net, w = np.random.default_rng(3), Net(18), principal_directions()
    first, samples = w @ random.standard_normal((RANK, 256)) / 2, normal(0, 800)
    second = np.linalg.lstsq(np.maximum(samples @ first, 0), samples @ w, rcond=1e-3)[0] @ w.T
    x = net.input("x", 1, FEATURES)
    code = net.op("Relu", net.op("Gemm", x, net.const(first), net.const(np.zeros(256))))
    e = net.op("Sub", x, net.op("Gemm", code, net.const(second), net.const(np.zeros(FEATURES))))
    deviation = net.op("Mul", e, e) if function == "Mul" else net.op(function, e)
    net.output(net.op("ReduceMean", deviation, net.const([1], np.int64), keepdims=0))
    return net.model()


MODELS = {
    **{
        error: autoencoder(error)
        for error in ("mean of squares", "mean of magnitudes", "largest magnitude", "norm", "log")
    },
    "distances": distances(),
    "mixture": mixture(),
    "reconstruction": reconstruction(),
    "Mahalanobis": mahalanobis(has_root=False),
    "root of Mahalanobis": mahalanobis(has_root=True),
    "mixture of quadratic forms": mixture_of_quadratic_forms(),
}
WIDE = {
    "wide, mean of squares": wide_autoencoder("Mul"),
    "wide, mean of magnitudes": wide_autoencoder("Abs"),
}


def kernel_machine(is_expanded: bool) -> onnx.ModelProto:
    """A one-class support vector machine: sums of Gaussian kernels, which saturate as they do in float32."""
    net, vectors = Net(18), normal(5, 40)
    x, axes = net.input("x", 1, FEATURES), net.const([1], np.int64)
    if is_expanded:
        products = net.op("Gemm", x, net.const(-2 * vectors.T), net.const((vectors**2).sum(1)))
        squares = net.op("Add", net.op("ReduceSumSquare", x, axes), products)
    else:
        e = net.op("Sub", net.op("Unsqueeze", x, axes), net.const(vectors[None]))
        squares = net.op("ReduceSumSquare", e, net.const([2], np.int64), keepdims=0)
    kernels = net.op("Exp", net.op("Mul", squares, net.const(-0.02)))
    factors = np.random.default_rng(1).uniform(0.2, 1, (len(vectors), 1))
    net.output(net.op("Sub", net.const(3.0), net.op("MatMul", kernels, net.const(factors))))
    return net.model()


TOLERANCE = 0.005
"""Of the area under the curve, also for anomalies as small as the noise of normal samples."""

EVALUATED = 400
"""Samples of each kind, normal and anomalous."""


def area_under_curve(normal_scores: Array, anomaly_scores: Array) -> float:
    """Return the share of pairs in which the anomaly scores higher; a tie counts half."""
    difference = anomaly_scores[:, None] - normal_scores
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def scores(model: onnx.ModelProto, samples: Array) -> Array:
    found = run_onnxruntime(model, [{"x": x.reshape(-1, FEATURES)} for x in samples])
    return np.asarray([float(next(iter(each.values())).ravel()[0]) for each in found])


def calibrated(model: onnx.ModelProto, precision: str = "int8", **layers: str) -> Quantization:
    quantizing = Quantizing(calibration={"x": normal(1, 100)}, precision=precision, layers=layers)
    return Compilation(model, quantizing=quantizing).quantized


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
@pytest.mark.parametrize("name", [*MODELS, *WIDE])
def test_scores_tell_anomalies_as_in_float(name: str, precision: str):
    model = (MODELS | WIDE)[name]
    made = calibrated(model, precision)
    require_same_areas(model, made.proto, (0.05, 0.1, 0.2, 0.5))
    most = scores(made.proto, normal(2, EVALUATED)).max()
    sizes = [scores(made.proto, anomalous(3, 10, size)).mean() for size in (10.0, 30.0, 100.0)]
    assert most < sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("precision", ["int8", "int16x8"])
@pytest.mark.parametrize("is_expanded", [True, False])
def test_sums_of_kernels_tell_anomalies_as_in_float(is_expanded: bool, precision: str):
    model = kernel_machine(is_expanded)
    require_same_areas(model, calibrated(model, precision).proto, (1.0, 2.0, 3.0))


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly", "sigmoid"])
def test_one_class_machines_of_scikit_learn(kernel: str, is_scaled: bool):
    """As skl2onnx writes them: a decision function and the label of its sign."""
    machine = OneClassSVM(kernel=kernel, gamma=0.02 if kernel == "rbf" else 0.01, nu=0.1)
    detector = make_pipeline(StandardScaler(), machine) if is_scaled else machine
    detector.fit(normal(0, 300))
    model = to_onnx(detector, normal(0, 1), target_opset={"": 18, "ai.onnx.ml": 1})
    (name,) = (x.name for x in model.graph.input)
    compilation = Compilation(model, quantizing=Quantizing(calibration={name: normal(1, 200)}))

    def areas(decide: Callable[[Array], Array]) -> list[float]:
        usual = -decide(normal(2, EVALUATED)).ravel()
        return [area_under_curve(usual, -decide(anomalous(3, EVALUATED, size)).ravel()) for size in (0.5, 1.0, 2.0)]

    def decide(samples: Array) -> Array:
        return np.asarray(compilation.run({name: samples})["scores"])

    for found, exact in zip(areas(decide), areas(detector.decision_function), strict=True):
        assert found == pytest.approx(exact, abs=TOLERANCE)
    far = anomalous(3, 20, 100.0)
    if kernel == "rbf":
        assert decide(far).max() < decide(normal(2, EVALUATED)).min()
    assert any("must not saturate" in note for note in compilation.quantized.notes)


def test_a_score_without_axes_is_quantized():
    """The output is a single number, of rank 0, as reductions over all axes give it."""
    net = Net(18)
    x = net.input("x", 4, FEATURES)
    hidden = net.op("Relu", net.op("MatMul", x, net.const(principal_directions())))
    net.output(net.op("ReduceMean", net.op("Mul", hidden, hidden), keepdims=0))
    samples = normal(6, 160).reshape(40, 4, FEATURES)  # each sample is one input of four rows
    model = net.model()
    made = Compilation(model, quantizing=Quantizing(calibration={"x": samples})).quantized
    exact, found = (scores(each, samples) for each in (model, made.proto))
    np.testing.assert_allclose(found, exact, rtol=0.05)


def require_same_areas(model: onnx.ModelProto, made: onnx.ModelProto, sizes: tuple[float, ...]) -> None:
    held = normal(2, EVALUATED)
    float_scores, int_scores = scores(model, held), scores(made, held)
    for size in sizes:
        odd = anomalous(3, EVALUATED, size)
        wanted = area_under_curve(float_scores, scores(model, odd))
        assert area_under_curve(int_scores, scores(made, odd)) >= wanted - TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_a_note_names_the_layers_and_an_option_keeps_them_integers(name: str):
    model = MODELS[name]
    made = calibrated(model)
    assert any("must not saturate" in note and "--layer" in note for note in made.notes)
    graph = made.model.graph
    (layers,) = score_layers(graph).values()
    assert len(set(layers)) == len(layers)
    chosen = calibrated(model, **dict.fromkeys(layers, "int8"))
    assert DType.INT8 in {chosen.plan.precision[name] for name in layers}
    assert not any("must not saturate" in note for note in chosen.notes)


def classifier(pool: str) -> onnx.ModelProto:
    net = Net(18)
    x = net.input("x", 1, 3, 8, 8)
    y = net.op("Relu", net.op("Conv", x, net.const(np.random.default_rng(0).standard_normal((5, 3, 3, 3)))))
    if pool == "global":
        y = net.op("Flatten", net.op("GlobalAveragePool", y))
    else:
        y = net.op(pool, y, net.const([2, 3], np.int64), keepdims=0)
    net.output(net.op("Softmax", y))
    return net.model()


@pytest.mark.parametrize("pool", ["global", "ReduceMean", "ReduceMax", "ReduceSum"])
def test_pools_of_classifiers_are_no_scores(pool: str):
    samples = np.random.default_rng(1).standard_normal((20, 3, 8, 8)).astype(np.float32)
    made = Compilation(classifier(pool), quantizing=Quantizing(calibration={"x": samples})).quantized
    assert not score_layers(made.model.graph)
    assert DType.FLOAT32 not in made.plan.precision.values()


# ------------------------------------------------------------------------------------------- layers of a score


def graph_of(net: Net) -> Graph:
    return build_float_model(load(net.model()).proto, "net").graph


def distance(outputs: int, middle: str = "Abs", reduction: str = "ReduceMean", inputs: int = 4) -> Graph:
    """A dense layer, its distance from x by a reduction, and the least distance's place."""
    net = Net(18)
    x, axes = net.input("x", outputs, inputs), net.const([1], np.int64)
    made = net.op("Relu", net.op("MatMul", x, net.const(np.eye(inputs, 6)), out="first"), out="hidden")
    made = net.op("MatMul", made, net.const(np.eye(6, inputs)), out="made")
    e = net.op("Sub", x, made, out="e")
    if middle == "Mul":
        m = net.op("Mul", e, e, out="m")
    elif middle == "times 2":
        m = net.op("Mul", e, net.const(2.0), out="m")
    elif middle == "Pow":
        m = net.op("Pow", e, net.const(2.5), out="m")
    else:
        m = net.op(middle, e, out="m")
    score = net.op(reduction, m, axes, keepdims=0, out="score")
    net.output(score)
    net.output(net.op("ArgMin", score, axis=0, out="place"), dtype=np.int64)
    return graph_of(net)


@pytest.mark.parametrize(
    ("middle", "reduction", "is_score"),
    [
        ("Abs", "ReduceMean", True),
        ("Abs", "ReduceSum", True),
        ("Exp", "ReduceSum", True),
        ("Log", "ReduceMax", True),
        ("Mul", "ReduceMean", True),
        ("Pow", "ReduceMean", True),
        ("times 2", "ReduceMean", False),
        ("times 2", "ReduceMin", True),
        ("Relu", "ReduceL1", True),
        ("Relu", "ReduceSumSquare", True),
        ("Relu", "ReduceMean", False),
        ("Tanh", "ReduceMax", False),
        ("Abs", "ReduceProd", False),
    ],
)
def test_which_reductions_measure(middle: str, reduction: str, is_score: bool):
    found = score_layers(distance(1, middle, reduction))
    assert found.keys() == ({"score", "place"} if is_score else set())
    if is_score:
        fused = {"e"} if middle == "Relu" else set()
        assert set(found["score"]) == {"score", "score.kept", "m", "e", "made"} - fused
        assert set(found["place"]) == set(found["score"])  # the search for the least itself is exact


@pytest.mark.parametrize(("outputs", "is_score"), [(64, True), (65, False)])
def test_scores_are_few_numbers(outputs: int, is_score: bool):
    graph = distance(outputs)
    assert ("score" in score_layers(graph)) == is_score
    assert "place" in score_layers(graph)


def test_a_product_of_activations_measures():
    """The squared length of what a layer makes."""
    net = Net(18)
    made = net.op("Relu", net.op("MatMul", net.input("x", 3, 4), net.const(np.eye(4, 5))), out="made")
    net.output(net.op("MatMul", made, net.op("Transpose", made, perm=[1, 0], out="turned"), out="score"))
    assert set(score_layers(graph_of(net))["score"]) == {"score", "turned", "made"}


def test_all_tensors_behind_a_score():
    net = Net(18)
    x = net.input("x", 1, 4)
    square = net.op("ReduceSumSquare", net.op("MatMul", x, net.const(np.eye(4)), out="made"), out="score")
    net.op("Relu", net.op("Neg", x, out="other"), out="y")
    net.output(square, "y")
    graph = graph_of(net)
    assert score_layers(graph).keys() == {"score"}
    assert {"x", "made", "score"} <= tensors_of_scores(graph)
    assert tensors_of_scores(graph).isdisjoint({"other", "y"})


@pytest.mark.parametrize(
    ("wide", "inner", "is_cheap"),
    [
        ((1, 1), (64, 64), True),
        ((1, 1), (17, 241), False),
        ((1040, 100), (100, 68), True),
        ((960, 100), (100, 68), False),
    ],
)
def test_cheap_layers_are_those_of_4096_multiplications_or_a_sixteenth(
    wide: tuple[int, int], inner: tuple[int, int], is_cheap: bool
):
    """A sixteenth of all: of 110,800 are 6,800 less, of 102,800 more."""
    net = Net(18)
    net.output(net.op("MatMul", net.input("x", 1, wide[0]), net.const(np.ones(wide)), out="first"))
    made = net.op("MatMul", net.input("y", 1, inner[0]), net.const(np.ones(inner)), out="made")
    net.output(net.op("ReduceL1", made, out="score"))
    found = score_layers(graph_of(net))["score"]
    assert found == (["score", "made"] if is_cheap else ["score"])


def test_precisions_that_the_user_chose_stay():
    graph = distance(1)
    wanted = {"m": DType.INT16, "first": DType.INT8}
    layers, reasons = with_float_scores(graph, wanted)
    assert wanted == {"m": DType.INT16, "first": DType.INT8}
    assert layers == wanted | dict.fromkeys(("score", "score.kept", "e", "made"), DType.FLOAT32)
    assert {reason.layer for reason in reasons} == layers.keys() - wanted.keys()
    (note,) = precision_lines([OtherPrecision(r.layer, "", r.precision, r.reason, r.remedy) for r in reasons])
    for name in ("'score'", "'e'", "'made'", "the score 'score'"):
        assert name in note
    assert "'m'" not in note
    assert with_float_scores(graph, layers) == (layers, [])
