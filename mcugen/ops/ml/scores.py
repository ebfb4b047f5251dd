# SPDX-License-Identifier: Apache-2.0
"""Common parts of the classical models of domain ai.onnx.ml: feature rows, class labels, score transforms.

C has no strings: a label whose class is named by a string becomes the class's index in the model's list (int64). The
list is shown in the comment of the layer that computes the label, and in the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mcugen.expressions import functions as fn
from mcugen.expressions.nodes import Constant, Convert, Entry, Expression, call, select
from mcugen.hir.graph import Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.lir.program import Param, real_param
from mcugen.ops.conversion import Cast
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.movement import Reshape
from mcugen.ops.onnx_node import Importer, OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import Binary, Unary, Where
from mcugen.ops.reduce import Arg, Reduce
from mcugen.ops.softmax import Softmax

POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""Values of the attribute post_transform, in the order of their numbers in TreeEnsemble."""


def ml_operator(
    *op_types: str, kernels: Sequence[str] = (), limits: str = "", takes_strings: bool = False
) -> Callable[[Importer], Importer]:
    """Return a decorator that registers an importer of operators of domain ai.onnx.ml.

    Args:
        op_types: Names of the operators.
        kernels: Templates that compute the operator, for `mcugen operators`.
        limits: What is not supported, in a few words.
        takes_strings: Whether a constant list of strings is passed as int64 indices into the list.
    """
    return onnx_operator(*op_types, domain="ai.onnx.ml", kernels=kernels, limits=limits, takes_strings=takes_strings)


def rows(node: OnnxNode, keep_double: bool = False) -> Value:
    """Return input 0 of a node as a float32 matrix [N, F]; a vector becomes one row.

    Args:
        node: Node that is imported.
        keep_double: Whether a float64 input stays float64.
    """
    x = node.input(0)
    node.require(x.type.rank in (1, 2), "the input must have one or two dimensions", f"{x.type.shape}", "reshape it")
    if x.type.rank == 1:
        x = node.emit(Reshape((1, *x.type.shape)), x, suffix="row")
    if x.type.dtype is DType.FLOAT32 or (keep_double and x.type.dtype is DType.FLOAT64):
        return x
    return node.emit(Cast(DType.FLOAT32), x, suffix="float")


def as_float(node: OnnxNode, value: Value) -> Value:
    """Return `value`, cast to float32 if it has another type."""
    return value if value.type.dtype is DType.FLOAT32 else node.emit(Cast(DType.FLOAT32), value, suffix="narrow")


def floats(node: OnnxNode, key: str) -> Array:
    """Return the list of reals in attribute `key` or in the tensor attribute `key`_as_tensor; empty if absent."""
    values = node.attr(key, None)
    if values is None or not len(values):
        values = node.attr(f"{key}_as_tensor", ())
    return np.asarray(values, np.float64).reshape(-1)


def ints(node: OnnxNode, key: str) -> tuple[int, ...]:
    """Return the integer list in attribute `key`; empty if absent."""
    return tuple(node.integers(key))


def float32_constant(node: OnnxNode, suffix: str, values: object) -> Value:
    """Add a float32 constant with these values to the graph, named after the node with `suffix`, and return it."""
    return node.constant(suffix, np.asarray(values, np.float32))


# --------------------------------------------------------------------------------------------------- labels


class Threshold(Elementwise):
    """y = `above` where x > `limit`, else `below`.

    Attributes:
        limit: The limit.
        above: Result for elements that exceed the limit.
        below: Result for all other elements.
        to: Element type of the result.
    """

    mnemonic: ClassVar[str] = "threshold"
    limit: float = 0.0
    above: float = 1
    below: float = 0
    to: DType = DType.FLOAT32

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: the type of the two results."""
        return self.to

    def _limit(self, dtype: DType) -> Param:
        """Among integers x > limit and x > ⌊limit⌋ are one."""
        if dtype.is_float:
            return real_param(self.limit, dtype)
        low, high = dtype.limits
        return min(max(math.floor(self.limit), low), high)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return `above` where the argument exceeds the limit, else `below`."""
        choices = (self.above, self.below)
        above, below = (scalar(real_param(v, self.to) if self.to.is_float else int(v)) for v in choices)
        return Convert(self.to, select(args[0] > scalar(self._limit(args[0].dtype)), above, below))


class TableEntry(Elementwise):
    """y = table[x] for int64 indices x (of classes) that are known to lie inside the table."""

    mnemonic: ClassVar[str] = "pick"
    tables: ClassVar[frozenset[int]] = frozenset({1})

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the table entry at index x."""
        return Entry(args[1], args[0])


@dataclass(frozen=True)
class Classes:
    """The classes of a classifier.

    Attributes:
        labels: The label of each class, as the C code returns it.
        names: The string label of each class, if the model has strings; the labels are then indices.
    """

    labels: tuple[int, ...]
    names: tuple[str, ...] = ()

    @staticmethod
    def of(node: OnnxNode, key: str) -> Classes:
        """Return the classes in the attribute classlabels_strings, or else in the integer attribute `key`."""
        names = tuple(str(name) for name in node.attr("classlabels_strings", ()))
        labels = tuple(range(len(names))) if names else ints(node, key)
        node.require(labels, "there must be classes", f"neither strings nor {key}", "export again")
        return Classes(labels, names)

    def __len__(self) -> int:
        return len(self.labels)

    def emit(self, node: OnnxNode, op: Operator, *inputs: Value, suffix: str = "") -> Value:
        """Add a node that computes labels, and return its output.

        The texts of the node's origin include a line with the names of the classes, for comments in the C code.

        Args:
            node: Node that is imported.
            op: Operator of the new node.
            inputs: Its inputs.
            suffix: End of the output's name; "" for the first output of `node`.
        """
        name = f"{node.outputs[0]}.{suffix}" if suffix else node.outputs[0]
        origin = (*describe_names(self.names), node.name or node.outputs[0])
        return node.graph.add(op, inputs, origin, names=[name]).output

    def at(self, node: OnnxNode, position: Value) -> Value:
        """Return the labels of classes, given a tensor of class indices.

        Args:
            node: Node that is imported.
            position: Indices of classes, [N].
        """
        if self.labels == tuple(range(len(self))):
            return position
        return self.emit(node, TableEntry(), position, node.constant("classes", np.asarray(self.labels, np.int64)))

    def top(self, node: OnnxNode, scores: Value) -> Value:
        """Return the label of each row's greatest score, the first one on ties, [N].

        Args:
            node: Node that is imported.
            scores: Scores, [N, classes].
        """
        if scores.type.shape[1] > len(self):
            counts = f"{scores.type.shape[1]} scores, {len(self)} classes"
            raise Refusal(f"{node.op_type}: each score must have a class", counts, "repair the model")
        return self.at(node, self.top_position(node, scores))

    def top_position(self, node: OnnxNode, scores: Value) -> Value:
        """Return the index of each row's greatest score, the first one on ties, [N].

        Args:
            node: Node that is imported.
            scores: Scores, [N, classes].
        """
        position = self.emit(node, Arg("max", 1), scores, suffix="position")
        return self.emit(node, Reshape(scores.type.shape[:1]), position, suffix="top")

    def binary(self, node: OnnxNode, score: Value, limit: float, above: int, below: int) -> Value:
        """Add a node that returns one of two labels by comparing scores with a limit.

        Args:
            node: Node that is imported.
            score: Scores, [N, 1].
            limit: The limit.
            above: Label where the score exceeds the limit.
            below: Label elsewhere.
        """
        label = self.emit(node, Threshold(limit, above, below, DType.INT64), score, suffix="label")
        return self.emit(node, Reshape(score.type.shape[:1]), label)


def describe_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return a line such as "classes 0 = cat, 1 = dog", in a tuple of one; an empty tuple if classes have no names."""
    return (f"classes {', '.join(f'{i} = {name}' for i, name in enumerate(names))}",) if names else ()


# --------------------------------------------------------------------------------------------------- scores


def of_scores(node: OnnxNode) -> OnnxNode:
    """Return the node as if its second output (the scores) were its only output.

    New nodes are then named after the scores.
    """
    return replace(node, outputs=node.outputs[1:])


def pair(node: OnnxNode, score: Value, factors: tuple[float, float], terms: tuple[float, float]) -> Value:
    """Return the scores [N, 2] of two classes, each computed from one score as factor · score + term.

    Args:
        node: Node that is imported.
        score: The score, [N, 1].
        factors: Factor of each class.
        terms: Term of each class.
    """
    both = node.emit(Binary("Mul"), score, float32_constant(node, "factors", [factors]), suffix="pair")
    if not any(terms):
        return both
    return node.emit(Binary("Add"), both, float32_constant(node, "terms", [terms]), suffix="shifted")


def two_class_scores(node: OnnxNode, score: Value, post: str, is_probability: bool) -> Value:
    """Return the scores of both classes from the score s of the second class, as ONNX Runtime does.

    LOGISTIC gives the logistic function of [−s, s]. Otherwise the result is [1 − s, s] for probabilities, else [−s, s].
    PROBIT is refused, and other transforms are ignored.

    Args:
        node: Node that is imported.
        score: Score s of the second class, [N, 1].
        post: Name of the post-transform, one of POST_TRANSFORMS.
        is_probability: Whether the score is a probability.
    """
    node.require(post != "PROBIT", "PROBIT needs a score for each class", "one score for two", "export both scores")
    if post == "LOGISTIC" or not is_probability:
        opposite = pair(node, score, (-1, 1), (0, 0))
        return transformed(node, opposite, post) if post == "LOGISTIC" else opposite
    return pair(node, score, (-1, 1), (1, 0))


def post_transform_of(node: OnnxNode) -> str:
    """Return the attribute post_transform, one of POST_TRANSFORMS.

    Raises:
        Refusal: The name is unknown.
    """
    post = str(node.attr("post_transform", "NONE"))
    node.require(post in POST_TRANSFORMS, "post_transform must be known", post, f"one of {', '.join(POST_TRANSFORMS)}")
    return post


def transformed(node: OnnxNode, scores: Value, post: str) -> Value:
    """Return the scores after the model's post-transform, such as a softmax.

    A single score (C = 1) is changed by PROBIT only, and returned unchanged for all other transforms.

    Args:
        node: Node that is imported.
        scores: Scores, float32 [N, C].
        post: Name of the transform, one of POST_TRANSFORMS.
    """
    if post == "NONE" or (scores.type.shape[1] == 1 and post != "PROBIT"):
        return scores
    if post == "SOFTMAX":
        return node.emit(Softmax(1), scores, suffix="softmax")
    if post == "LOGISTIC":
        return node.emit(Unary("Sigmoid"), scores, suffix="logistic")
    if post == "SOFTMAX_ZERO":
        return _softmax_zero(node, scores)
    return node.emit(Probit(), scores, node.emit(ProbitLog(), scores, suffix="log"), suffix="probit")


def _softmax_zero(node: OnnxNode, x: Value) -> Value:
    """Softmax in which scores of 0 stay 0: they are no part of the sum."""

    def emit(op: Operator, *inputs: Value, suffix: str) -> Value:
        return node.emit(op, *inputs, suffix=suffix)

    greatest = emit(Reduce("max", (1,)), x, suffix="max")
    e = emit(Unary("Exp"), emit(Binary("Sub"), x, greatest, suffix="centered"), suffix="exp")
    size = emit(Unary("Abs"), x, suffix="size")
    used = emit(Threshold(1e-7, to=DType.BOOL), size, suffix="used")
    total = emit(Binary("Mul"), e, emit(Cast(DType.FLOAT32), used, suffix="weight"), suffix="part")
    total = emit(Reduce("sum", (1,)), total, suffix="sum")
    scale = emit(Unary("Exp"), emit(Unary("Neg"), greatest, suffix="negated"), suffix="scale")
    small = emit(Binary("Mul"), x, scale, suffix="small")
    return emit(Binary("Div"), emit(Where(), used, e, small, suffix="both"), total, suffix="softmax")


class ProbitLog(Elementwise):
    """y = log((1 − t)(1 + t)) with t = 2x − 1: the intermediate result from which `Probit` computes erf⁻¹(t)."""

    mnemonic: ClassVar[str] = "probit_log"

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return log((1 − t) · (1 + t)) with t = 2x − 1."""
        t = 2 * args[0] - 1
        return call(fn.LOG, (1 - t) * (1 + t))


class Probit(Elementwise):
    """The probit function √2 · erf⁻¹(2x − 1), by Winitzki's approximation from l = ProbitLog(x).

    y = ±√2 · √(√(v² − l/a) − v), with v = 2/(πa) + l/2.
    """

    mnemonic: ClassVar[str] = "probit"
    a: ClassVar[float] = 0.147
    first: ClassVar[float] = 2 / (3.14159 * 0.147)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the approximation of √2 · erf⁻¹(2x − 1) from the logarithm that `ProbitLog` computes."""
        x, log = args
        v = scalar(self.first) + 0.5 * log
        root = call(fn.SQRT, call(fn.SQRT, v * v - scalar(1 / self.a) * log) - v)
        sign = select(x < 0.5, Constant(-1.41421356, x.dtype), Constant(1.41421356, x.dtype))
        return sign * root
