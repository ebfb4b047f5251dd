# SPDX-License-Identifier: Apache-2.0
"""Importers of feature preprocessing of domain ai.onnx.ml: scaling, encoding, selection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from mcugen.expressions.nodes import Expression, equal, is_nan, select
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.kernels.portable.ml import TRANSLATE, TranslateOptions, TranslateParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import element_param, real_param
from mcugen.ops.conversion import Cast
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.gather import emit_taken, require_integers
from mcugen.ops.ml.scores import Threshold, as_float, describe_names, floats, ints, ml_operator
from mcugen.ops.movement import Concat, Pad, Reshape, Slice, reshaped
from mcugen.ops.onnx_node import OnnxNode, Refusal
from mcugen.ops.pointwise import Binary, Unary
from mcugen.ops.reduce import Reduce

_NUMBERS = (DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64)


def _features(node: OnnxNode, x: Value) -> int:
    """Size of the axis of features: the second, or the only one."""
    node.require(x.type.rank >= 1, "the input must have an axis of features", "a scalar", "reshape it")
    return x.type.shape[0 if x.type.rank == 1 else 1]


def _per_feature(node: OnnxNode, x: Value, values: Array, suffix: str) -> Value:
    """Return a constant with one value for all features, or one for each, aligned with their axis."""
    features = _features(node, x)
    if values.size not in (1, features):
        counts = f"{values.size} for {features} features"
        raise Refusal(f"{node.op_type}: there must be one value, or one a feature", counts, "repair the model")
    shape = [1] * x.type.rank
    shape[0 if x.type.rank == 1 else 1] = values.size
    return node.constant(suffix, values.reshape(shape))


@ml_operator("Scaler", kernels=("elementwise",))
def _import_scaler(node: OnnxNode) -> list[Value]:
    """(x − offset) · scale, in double where x is."""
    x = node.input(0)
    node.require_dtype(x, *_NUMBERS)
    if not x.type.dtype.is_float:
        x = as_float(node, x)
    dtype = x.type.dtype.numpy
    offset, scale = floats(node, "offset"), floats(node, "scale")
    centered = node.emit(Binary("Sub"), x, _per_feature(node, x, offset.astype(dtype), "offset"), suffix="centered")
    scaled = node.emit(Binary("Mul"), centered, _per_feature(node, x, scale.astype(dtype), "scale"), suffix="scaled")
    return [as_float(node, scaled)]


class UnlessZero(Elementwise):
    """y = x, or 1 where x = 0, so that y can be a divisor."""

    mnemonic: ClassVar[str] = "unless_zero"

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return 1 where x is 0, else x."""
        (x,) = args
        return select(equal(x, 0), 1, x)


@ml_operator("Normalizer", kernels=("reduce", "elementwise"))
def _import_normalizer(node: OnnxNode) -> list[Value]:
    """Rows divided by their greatest element, or by their L1 or L2 norm; rows of zeros stay."""
    x = node.input(0)
    node.require(x.type.rank in (1, 2), "the input must have one or two dimensions", f"{x.type.shape}", "reshape it")
    norm = str(node.attr("norm", "MAX"))
    functions = {"MAX": "max", "L1": "l1", "L2": "sumsquare"}
    node.require(norm in functions, "the norm must be known", norm, "one of MAX, L1, L2")
    x = as_float(node, x)
    size = node.emit(Reduce(functions[norm], (x.type.rank - 1,)), x, suffix="norm")
    if norm == "L2":
        size = node.emit(Unary("Sqrt"), size, suffix="root")
    return [node.emit(Binary("Div"), x, node.emit(UnlessZero(), size, suffix="divisor"))]


@ml_operator("Binarizer", kernels=("elementwise",))
def _import_binarizer(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, *_NUMBERS)
    limit = float(node.attr("threshold", 0.0))
    node.require(math.isfinite(limit), "the threshold must be a finite number", str(limit))
    return [node.emit(Threshold(limit, to=x.type.dtype), x)]


class Impute(Elementwise):
    """y = x, or its substitute (input 1) where x equals `missing` (a NaN equals every NaN)."""

    mnemonic: ClassVar[str] = "impute"
    missing: float = 0.0

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the substitute where x is the missing value, else x."""
        x, substitute = args
        if math.isnan(self.missing):
            return select(is_nan(x), substitute, x)
        missing = scalar(real_param(self.missing, x.dtype) if x.dtype.is_float else int(self.missing))
        return select(equal(x, missing), substitute, x)


@ml_operator("Imputer", kernels=("elementwise",))
def _import_imputer(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, *_NUMBERS)
    kind = "floats" if x.type.dtype.is_float else "int64s"
    values = np.asarray(node.attr(f"imputed_value_{kind}", ()))
    node.require(values.size, "substitutes must have the input's type", f"no imputed_value_{kind}")
    missing = node.attr("replaced_value_float", 0.0) if kind == "floats" else node.attr("replaced_value_int64", 0)
    if kind != "floats":
        low, high = x.type.dtype.limits
        if not low <= min(int(missing), values.min()) <= max(int(missing), values.max()) <= high:
            raise Refusal("Imputer: values must fit the input's type", x.type.dtype.value, "repair the model")
    substitutes = _per_feature(node, x, values.astype(x.type.dtype.numpy), "substitutes")
    return [node.emit(Impute(missing), x, substitutes)]


@ml_operator("OneHotEncoder", kernels=("elementwise",), limits="integer categories; unknown ones give zeros")
def _import_one_hot(node: OnnxNode) -> list[Value]:
    """Import OneHotEncoder: a new last axis that is 1 at the category.

    Unknown categories give zeros, as C cannot fail.
    """
    x, categories = node.input(0), ints(node, "cats_int64s")
    if not categories or len(set(categories)) < len(categories):
        given_categories = "strings" if node.attr("cats_strings", ()) else f"{categories}"
        raise Refusal(
            "OneHotEncoder: categories must be different integers", given_categories, "encode them as integers"
        )
    if x.type.dtype is not DType.INT64:
        x = node.emit(Cast(DType.INT64), x, suffix="int")
    x = node.emit(Reshape((*x.type.shape, 1)), x, suffix="column")
    known = node.constant("categories", np.asarray(categories, np.int64).reshape((1,) * (x.type.rank - 1) + (-1,)))
    return [node.emit(Cast(DType.FLOAT32), node.emit(Binary("Equal"), x, known, suffix="equal"))]


@ml_operator("FeatureVectorizer", kernels=("copy",))
def _import_feature_vectorizer(node: OnnxNode) -> list[Value]:
    """Rows side by side in float32, each input cut or filled with zeros to its declared size."""
    sizes = ints(node, "inputdimensions")
    parts = [node.input(i) for i in range(len(node.inputs))]
    if len(sizes) != len(parts) or min(sizes, default=0) < 1:
        mismatch = f"{sizes} for {len(parts)} inputs"
        raise Refusal("FeatureVectorizer: inputdimensions must give a size an input", mismatch, "repair the model")
    results = []
    for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        here, count = f"part{index}", part.type.shape[0] if part.type.rank > 1 else 1
        value = node.emit(Cast(DType.FLOAT32), part, suffix=f"{here}.float")
        value = node.emit(Reshape((count, part.type.count // max(count, 1))), value, suffix=f"{here}.rows")
        features = value.type.shape[1]
        if features > size:
            value = node.emit(Slice((0, 0), (count, size), (1, 1)), value, suffix=f"{here}.cut")
        elif features < size:
            value = node.emit(Pad((0, 0), (0, size - features)), value, suffix=f"{here}.filled")
        results.append(value)
    return [node.emit(Concat(1), *results)]


# ------------------------------------------------------------------------------------------------- look-ups


@ml_operator("ArrayFeatureExtractor", kernels=("gather", "copy"), takes_strings=True)
def _import_array_feature_extractor(node: OnnxNode) -> list[Value]:
    """Features of the last axis; a vector is one row. Of constant strings the positions: see scores.py."""
    x, indices = node.input(0), require_integers(node, 1)
    named = replace(node, name=", ".join((*describe_names(node.texts.get(0, ())), node.name or node.outputs[0])))
    x = reshaped(node, x, (1, *x.type.shape)[-max(x.type.rank, 2) :])
    return [emit_taken(named, x, x.type.rank - 1, reshaped(node, indices, (indices.type.count,), "flat"))]


class Translate(Operator):
    """y = values[k] where x = keys[k], else `default`; NaN becomes `of_nan`.

    The keys (input 1) are in ascending order; the values are input 2.
    """

    mnemonic: ClassVar[str] = "translate"
    default: float = 0
    of_nan: float = 0

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the input's shape with the element type of the values."""
        x, _, values = required(inputs)
        return (TensorType(x.shape, values.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.searchsorted."""
        x, keys, values = arrays
        at = np.minimum(np.searchsorted(keys, x), len(keys) - 1)
        translated = np.where(keys[at] == x, values[at], np.asarray(self.default, values.dtype))
        return (np.where(x != x, np.asarray(self.of_nan, values.dtype), translated).astype(values.dtype),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that searches the sorted keys for each element."""
        x, keys, values = (node.input(i).type for i in range(3))
        default, of_nan = (element_param(v, values.dtype) for v in (self.default, self.of_nan))
        may_be_nan = x.dtype.is_float
        params = TranslateParams(
            count=x.count, num_keys=keys.count, default_value=default, nan_value=of_nan if may_be_nan else None
        )
        operands = builder.operands(node, "x", "key", "value")
        options = TranslateOptions(x_t=x.dtype.c, y_t=values.dtype.c, of_nan=may_be_nan)
        variant = f"{x.dtype.tag}_{values.dtype.tag}"
        builder.call(node, Call(TRANSLATE, operands, [params], [options], variant=variant))


@ml_operator("LabelEncoder", kernels=("translate",), limits="numeric keys; strings as values become positions")
def _import_label_encoder(node: OnnxNode) -> list[Value]:
    """Numbers to numbers. Strings as values are their positions among them, -1 if the key is unknown."""
    x = node.input(0)
    node.require_dtype(x, *_NUMBERS, DType.INT16, DType.INT8, DType.UINT8)
    keys = _entries(node, "keys")
    names = tuple(str(v) for v in node.attr("values_strings", ()))
    values = np.asarray([names.index(n) for n in names], np.int64) if names else _entries(node, "values")
    default = np.asarray(-1) if names else _default(node, values)
    if not keys.size or keys.size != values.size or not values.size:
        counts = f"{keys.size} keys, {values.size} values"
        raise Refusal("LabelEncoder: there must be a value for each numeric key", counts, "encode strings beforehand")
    known = dict(zip(keys.astype(x.type.dtype.numpy).tolist(), values.tolist(), strict=True))
    of_nan = next((v for k, v in reversed(known.items()) if k != k), default.item())
    ordered = sorted(k for k in known if k == k)
    node.require(ordered, "there must be a key besides NaN", "none")
    constants = [
        node.constant("keys", np.asarray(ordered, x.type.dtype.numpy)),
        node.constant("values", np.asarray([known[k] for k in ordered], values.dtype)),
    ]
    origin = (*describe_names(names), node.name or node.outputs[0])
    op = Translate(default.item(), of_nan)
    return [node.graph.add(op, [x, *constants], origin, names=node.outputs[:1]).output]


def _entries(node: OnnxNode, side: str) -> Array:
    """Keys or values that are numbers; empty if they are none."""
    for suffix, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if len(node.attr(f"{side}_{suffix}", ())):
            return np.asarray(node.attr(f"{side}_{suffix}", ()), dtype)
    tensor = np.asarray(node.attr(f"{side}_tensor", np.zeros(0, np.float32))).reshape(-1)
    return tensor if tensor.dtype.kind in "fiu" else tensor[:0].astype(np.float32)


def _default(node: OnnxNode, values: Array) -> Array:
    """Return the result for unknown keys."""
    value = node.attr("default_tensor", None)
    if value is None:
        value = node.attr("default_float", -0.0) if values.dtype.kind == "f" else node.attr("default_int64", -1)
    default = np.asarray(value)
    if default.size != 1 or default.dtype.kind not in "fiu":
        rule = "LabelEncoder: the default must be one number"
        raise Refusal(rule, f"{default.size} of type {default.dtype}", "repair the model")
    return default.astype(values.dtype).reshape(())


# ------------------------------------------------------------------------------------------- maps and strings


@ml_operator("ZipMap", limits="the tensor in place of dictionaries")
def _import_zip_map(node: OnnxNode) -> list[Value]:
    """Import ZipMap: return the tensor from which it would build dictionaries."""
    return [node.input(0)]


@ml_operator("CategoryMapper", "DictVectorizer", "CastMap", limits="refused: strings")
def _import_strings(node: OnnxNode) -> list[Value]:
    kinds = "strings or dictionaries"
    raise Refusal(f"{node.op_type}: only numbers can be computed", kinds, "encode them as numbers before the model")
