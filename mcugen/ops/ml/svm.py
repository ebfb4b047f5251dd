# SPDX-License-Identifier: Apache-2.0
"""Importers of support vector machines of domain ai.onnx.ml, with the results of ONNX Runtime (and of libsvm)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.ml import (
    RBF,
    SVM_COUPLING,
    SVM_DUELS,
    SVM_WINNER,
    ClassPairs,
    DuelsParams,
    Iteration,
    RbfParams,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.ops.elementwise import emit_elementwise
from mcugen.ops.matmul import Dense
from mcugen.ops.ml.linear import emit_dense
from mcugen.ops.ml.scores import (
    Classes,
    Threshold,
    float32_constant,
    floats,
    ints,
    ml_operator,
    of_scores,
    post_transform_of,
    rows,
    transformed,
    two_class_scores,
)
from mcugen.ops.movement import Reshape
from mcugen.ops.onnx_node import OnnxNode, Refusal
from mcugen.ops.pointwise import Binary, Unary, Where
from mcugen.ops.reduce import Reduce

# -------------------------------------------------------------------------------------------------- kernels


class Rbf(Operator):
    """y[n, v] = exp(−gamma · Σ_f (x[n, f] − s[v, f])²): Gaussian kernel values for support vectors s."""

    mnemonic: ClassVar[str] = "rbf"
    gamma: float = 1.0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [rows of x, number of support vectors]."""
        x, s = required(inputs)
        if x.shape[1] != s.shape[1]:
            raise ModelError("rbf: vectors must have equal lengths", f"{x.shape}, {s.shape}", "repair the model")
        return (TensorType((x.shape[0], s.shape[0])),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the kernel values exp(−gamma · squared distance) in float32."""
        x, s = arrays
        distance = np.square(x[:, None] - s[None]).sum(2)
        return (np.exp(np.float32(-self.gamma) * distance),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: rows · support vectors · features."""
        return sig.output.count * sig.input(1).shape[1]

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit a call of the operator's only kernel."""
        count, features = node.input(1).type.shape
        params = RbfParams(
            rows=node.input(0).type.shape[0], vectors=count, features=features, negative_gamma=-self.gamma
        )
        builder.call(node, Call(RBF, builder.operands(node, "x", "s"), [params]))


def _kernel_values(node: OnnxNode, x: Value, vectors: Array) -> Value:
    """Return the kernel function of each row of x and each support vector, [N, V]."""
    kind, parameters = str(node.attr("kernel_type", "LINEAR")), floats(node, "kernel_params")
    if kind not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        raise Refusal(f"{node.op_type}: kernel_type must be known", kind, "one of LINEAR, POLY, RBF, SIGMOID")
    if parameters.size < 3 and (parameters.size or kind != "LINEAR"):
        parameter_count = f"{parameters.size} numbers"
        raise Refusal(
            f"{node.op_type}: kernel_params must hold gamma, coef0 and degree", parameter_count, "repair the model"
        )
    if kind == "RBF":
        return node.emit(Rbf(float(parameters[0])), x, float32_constant(node, "vectors", vectors), suffix="rbf")
    if kind == "LINEAR":
        return emit_dense(node, x, vectors, np.zeros(len(vectors)), "dot")
    gamma, offset, degree = (float(v) for v in parameters[:3])
    dot = node.emit(Dense(), x, float32_constant(node, "vectors", vectors), suffix="dot")
    scaled = node.emit(Binary("Mul"), dot, float32_constant(node, "gamma", gamma), suffix="scaled")
    base = node.emit(Binary("Add"), scaled, float32_constant(node, "coef0", offset), suffix="shifted")
    if kind == "SIGMOID":
        return node.emit(Unary("Tanh"), base, suffix="tanh")
    if degree in (2.0, 3.0):
        square = node.emit(Binary("Mul"), base, base, suffix="square")
        return square if degree == 2 else node.emit(Binary("Mul"), square, base, suffix="cube")
    return node.emit(Binary("Pow"), base, float32_constant(node, "degree", degree), suffix="power")


def _support_vectors(node: OnnxNode, x: Value, count: int) -> Array:
    vectors, features = floats(node, "support_vectors"), x.type.shape[1]
    if count < 1 or vectors.size != count * features:
        counts = f"{vectors.size} numbers for {count} vectors of {features}"
        raise Refusal(f"{node.op_type}: support vectors must be as long as the features", counts, "repair the model")
    return vectors.reshape(count, features)


# ----------------------------------------------------------------------------------------- one against another


def _pairs(classes: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of classes, in the order of their classifiers."""
    return combinations(range(classes), 2)


class PairwiseDecisions(Operator):
    """Decision values of a one-against-one support vector classifier, for each pair of classes i < j.

    y[n, (i, j)] = rho + Σ_{v of class i} c[j − 1, v] · k[n, v] + Σ_{v of class j} c[i, v] · k[n, v]. The inputs are the
    kernel values k [N, V], coefficients c [C − 1, V], offsets rho [C(C − 1)/2], and the index of the first support
    vector of each class, followed by V.
    """

    mnemonic: ClassVar[str] = "svm_duels"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [N, pairs]."""
        k, _, rho, _ = required(inputs)
        return (TensorType((k.shape[0], rho.count)),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the decision values pair by pair in float64; the C kernel uses compensated summation instead."""
        k, c, rho, first = (a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays)
        own = [slice(a, b) for a, b in pairwise(first.tolist())]
        columns = [k[:, own[i]] @ c[j - 1, own[i]] + k[:, own[j]] @ c[i, own[j]] for i, j in _pairs(len(own))]
        return ((np.stack(columns, 1) + rho).astype(np.float32),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: rows · support vectors · (classes − 1).

        A support vector has a term in each pair of classes that includes its own class.
        """
        return sig.input(0).count * sig.input(1).shape[0]

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit a call of the operator's only kernel."""
        count, vectors = node.input(1).type.shape
        params = DuelsParams(rows=node.input(0).type.shape[0], classes=count + 1, vectors=vectors)
        builder.call(node, Call(SVM_DUELS, builder.operands(node, "k", "c", "rho", "first"), [params]))


class VoteWinner(Operator):
    """y[n] = the class with most votes in row n of pairwise decision values; the first one on ties.

    In the decision value of a pair (i, j), class i gets the vote if the value is positive, else class j.

    Attributes:
        classes: Number of classes.
    """

    mnemonic: ClassVar[str] = "svm_winner"
    classes: int = 2

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [N], int64."""
        (x,) = required(inputs)
        return (TensorType(x.shape[:1], DType.INT64),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: count the votes of each row, and return the class with most of them."""
        (x,) = arrays
        votes = np.zeros((len(x), self.classes), np.int64)
        for column, (i, j) in enumerate(_pairs(self.classes)):
            votes[:, i] += x[:, column] > 0
            votes[:, j] += ~(x[:, column] > 0)
        return (votes.argmax(1),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit a call of the operator's only kernel."""
        rows_, pairs = node.input(0).type.shape
        params = ClassPairs(rows=rows_, classes=self.classes, pairs=pairs)
        builder.call(node, Call(SVM_WINNER, builder.operands(node, "x"), [params]))


class Coupling(Operator):
    """Class probabilities from pairwise probabilities, by the second method of Wu, Lin and Weng (as in libsvm).

    The inputs are the pairwise decision values [N, pairs], and the parameters a and b of Platt's sigmoid by pair. The
    iteration stops as early as libsvm's, because its steps are part of the result. ROUNDS is the largest number of
    iterations.

    Attributes:
        classes: Number of classes.
    """

    mnemonic: ClassVar[str] = "svm_coupling"
    classes: int = 2
    ROUNDS: ClassVar[int] = 100

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [N, classes]."""
        (x,) = required(inputs[:1])
        return (TensorType((x.shape[0], self.classes)),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the class probabilities iteratively for each row, in float32."""
        x, a, b = arrays
        margin = x * a + b
        logistic = np.float32(1) / (np.float32(1) + np.exp(-np.abs(margin)))
        wins = np.float32(1) - np.where(margin < 0, np.float32(1) - logistic, logistic)
        wins = np.clip(wins, np.float32(1e-7), np.float32(1) - np.float32(1e-7))
        return (np.stack([self._coupled(row) for row in wins]),)

    def _coupled(self, wins: Array) -> Array:
        n = self.classes
        q = np.zeros((n, n), np.float32)
        for (i, j), r in zip(_pairs(n), wins, strict=True):
            loses = np.float32(1) - r
            q[i, i] += loses * loses
            q[j, j] += r * r
            q[i, j] = q[j, i] = -loses * r
        p = np.full(n, np.float32(1) / np.float32(n))
        for _ in range(self.ROUNDS):
            qp = q @ p
            pqp = p @ qp
            if np.abs(qp - pqp).max() < np.float32(0.005) / np.float32(n):
                break
            for i in range(n):
                step = (pqp - qp[i]) / q[i, i]
                grown = np.float32(1) + step
                p[i] += step
                pqp = (pqp + step * (step * q[i, i] + np.float32(2) * qp[i])) / grown / grown
                qp = (qp + step * q[i]) / grown
                p /= grown
        return p

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to one kernel, which has a matrix and a vector as working memory."""
        n, name = self.classes, node.output.name
        rows_, pairs = node.input(0).type.shape
        operands = builder.operands(node, "x", "a", "b")
        for role, count in (("q", n * n), ("qp", n)):
            operands[role] = builder.scratch(f"{name}.{role}", DType.FLOAT32, count)
        params = ClassPairs(rows=rows_, classes=n, pairs=pairs)
        stop = Iteration(max_iterations=self.ROUNDS, tolerance=float(np.float32(0.005) / np.float32(n)))
        builder.call(node, Call(SVM_COUPLING, operands, [params, stop]))


# --------------------------------------------------------------------------------------------------- import


@ml_operator("SVMRegressor", kernels=("rbf", "dense_f32"))
def _import_svm_regressor(node: OnnxNode) -> list[Value]:
    """ONNX Runtime applies no post-transform, and no kernel function without support vectors."""
    x, count = rows(node), int(node.attr("n_supports", 0))
    weights, rho = floats(node, "coefficients"), floats(node, "rho")
    values = _kernel_values(node, x, _support_vectors(node, x, count)) if count else x
    if weights.size != values.type.shape[1] or not rho.size:
        counts = f"{weights.size} coefficients, {rho.size} rho"
        raise Refusal("SVMRegressor: each support vector needs a coefficient, and one rho", counts, "repair the model")
    score = emit_dense(node, values, weights[None], rho[:1], "score")
    return [node.emit(Threshold(0.0, 1.0, -1.0), score) if node.attr("one_class", 0) else score]


@ml_operator("SVMClassifier", kernels=("rbf", "dense_f32", "svm_duels", "svm_winner", "svm_coupling"))
def _import_svm_classifier(node: OnnxNode) -> list[Value]:
    classes, post = Classes.of(node, "classlabels_ints"), post_transform_of(node)
    sizes, rho = ints(node, "vectors_per_class"), floats(node, "rho")
    x = rows(node)
    if not sum(sizes):
        return _linear(node, classes, x, post)
    pairs = math.comb(len(classes), 2)
    weights = floats(node, "coefficients")
    if len(sizes) != len(classes) or len(classes) < 2 or min(sizes) < 0:
        counts = f"{len(sizes)} sizes, {len(classes)} classes"
        raise Refusal("SVMClassifier: vectors_per_class must count those of each class", counts, "repair the model")
    if rho.size < pairs or weights.size != (len(classes) - 1) * sum(sizes):
        counts = f"{rho.size} rho, {weights.size} coefficients for {len(classes)} classes, {sum(sizes)} vectors"
        raise Refusal("SVMClassifier: each pair of classes needs coefficients and rho", counts, "repair the model")
    values = _kernel_values(node, x, _support_vectors(node, x, sum(sizes)))
    weights, rho = weights.reshape(len(classes) - 1, -1), rho[:pairs]
    starts = node.constant("first", np.cumsum([0, *sizes]).astype(np.int32))
    constants = [float32_constant(node, "coefficients", weights), float32_constant(node, "rho", rho), starts]
    duels = node.emit(PairwiseDecisions(), values, *constants, suffix="duels")
    label = classes.at(node, classes.emit(node, VoteWinner(len(classes)), duels, suffix="winner"))
    return [label, _pair_scores(of_scores(node), duels, len(classes), post)]


def _pair_scores(node: OnnxNode, duels: Value, classes: int, post: str) -> Value:
    """Probabilities where the model has Platt's parameters; else the duels themselves."""
    a, b = floats(node, "prob_a"), floats(node, "prob_b")
    pairs = duels.type.shape[1]
    if a.size:
        if min(a.size, b.size) < pairs:
            counts = f"{a.size} and {b.size} for {pairs} pairs"
            raise Refusal("SVMClassifier: prob_a and prob_b must be given for each pair", counts, "repair the model")
        parameters = [float32_constant(node, name, v[:pairs]) for name, v in (("prob_a", a), ("prob_b", b))]
        return transformed(node, node.emit(Coupling(classes), duels, *parameters, suffix="coupled"), post)
    if classes > 2:
        return transformed(node, duels, post)
    return two_class_scores(node, duels, post, is_probability=post != "NONE")


def _linear(node: OnnxNode, classes: Classes, x: Value, post: str) -> list[Value]:
    """Import a classifier without support vectors: one linear function for each class."""
    weights, rho = floats(node, "coefficients"), floats(node, "rho")
    if weights.size != len(classes) * x.type.shape[1] or not rho.size:
        counts = f"{weights.size} coefficients, {rho.size} rho"
        raise Refusal(
            "SVMClassifier: each class needs a coefficient a feature, and one rho", counts, "repair the model"
        )
    bias = np.full(len(classes), rho[0])
    scores = emit_dense(node, x, weights.reshape(len(classes), -1), bias, "scores")
    position = classes.top_position(node, scores)
    if len(classes) == 2 and not floats(node, "prob_a").size:
        limit = float(np.nextafter(np.float32(0.5), np.float32(0))) if (weights >= 0).all() else 0.0
        greatest = node.emit(Reduce("max", (1,)), scores, suffix="max")
        sure = node.emit(Threshold(limit, to=DType.BOOL), greatest, suffix="sure")
        sure = node.emit(Reshape(position.type.shape), sure, suffix="flat")
        second = node.constant("second", np.ones(position.type.shape, np.int64))
        position = emit_elementwise(node, Where(), sure, second, position, suffix="decided")
    return [classes.at(node, position), transformed(of_scores(node), scores, post)]
