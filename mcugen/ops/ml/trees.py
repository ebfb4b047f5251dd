# SPDX-License-Identifier: Apache-2.0
"""Importers of ensembles of decision trees of domain ai.onnx.ml."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from mcugen.expressions.nodes import Expression, is_nan, select
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.kernels.portable.trees import (
    TREES_CODE,
    TREES_TABLE,
    ForestOptions,
    ForestParams,
    Line,
    TableOptions,
    TableParams,
    TreeCodeOptions,
    TreeText,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import CHECKED, Call
from mcugen.lir.program import Buffer, real_param
from mcugen.ops.conversion import Cast
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.ml.forest import MODES, TESTS, TESTS_OR_NAN, Forest, Leaf, Split, nested_ifs
from mcugen.ops.ml.scores import (
    POST_TRANSFORMS,
    Classes,
    as_float,
    floats,
    ints,
    ml_operator,
    of_scores,
    pair,
    post_transform_of,
    rows,
    transformed,
    two_class_scores,
)
from mcugen.ops.movement import Slice
from mcugen.ops.onnx_node import OnnxNode, Refusal

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""Values of the attribute aggregate_function, in the order of their numbers in TreeEnsemble."""

_COMBINE = {
    "SUM": "{y} += {w};",
    "MARKED": "{y} = {y} != {y} ? {w} : {y} + {w};",
    "MIN": "{y} = {y} <= {w} ? {y} : {w};",
    "MAX": "{y} = {y} >= {w} ? {y} : {w};",
}
"""C text that adds a weight to a score. All but the first start from NaN: no weight yet."""


class Trees(Operator):
    """y[n, t] = base[t] + the sum, average, minimum or maximum over trees of the weights of target t.

    The weights are those of the leaf that row x[n] reaches in each tree. (ONNX Runtime forgets to add the base to
    targets of a regressor without any weight in the reached leaves.)

    Attributes:
        forest: The trees.
        aggregate: How the weights of several trees are combined, one of AGGREGATES.
        base: Number that is added to each target; may be empty.
        marks_unscored: Whether a target without any weight in the reached leaves is NaN; else it is 0 plus the base.
    """

    mnemonic: ClassVar[str] = "trees"
    forest: Forest
    aggregate: str = "SUM"
    base: tuple[float, ...] = field(default=(), repr=False)
    marks_unscored: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [N, targets]."""
        (x,) = required(inputs)
        return (TensorType((x.shape[0], self.forest.targets), x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output in numpy: walk each tree for each row, and combine the weights of the leaves."""
        (x,) = arrays
        reached = self.forest.walk(x)
        combine = {"MIN": np.minimum, "MAX": np.maximum}.get(self.aggregate, np.add)
        y = np.full((len(x), self.forest.targets), np.nan, x.dtype)
        for n, tree in np.ndindex(reached.shape):
            for target, weight in self.forest.leaves[reached[n, tree]]:
                w = x.dtype.type(weight)
                y[n, target] = w if np.isnan(y[n, target]) else combine(y[n, target], w)
        if not self.marks_unscored:
            y = np.where(np.isnan(y), x.dtype.type(0), y)
        if self.aggregate == "AVERAGE":
            y = y / x.dtype.type(len(self.forest.roots))
        return (y + np.asarray(self.base, x.dtype) if self.base else y,)

    @property
    def _combine(self) -> str:
        """The row of _COMBINE."""
        if self.aggregate in ("MIN", "MAX"):
            return self.aggregate
        return "MARKED" if self.marks_unscored else "SUM"

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to nested ifs in C if the program is optimized for speed, else to tables of nodes."""
        if builder.optimize != "speed" or not self._lower_to_ifs(node, builder):
            self._lower_to_tables(node, builder)

    # ------------------------------------------------------------------------------------------ what both need

    def _params(self, x: TensorType) -> ForestParams:
        """Return the parameters that all kernels share."""
        return ForestParams(
            rows=x.shape[0],
            features=x.shape[1],
            targets=self.forest.targets,
            unset_score=real_param(math.nan, x.dtype) if self._combine != "SUM" else None,
            num_trees_real=real_param(len(self.forest.roots), x.dtype) if self.aggregate == "AVERAGE" else None,
        )

    def _operands(self, node: Node, builder: Builder, tables: Mapping[str, Array]) -> dict[str, Buffer]:
        """Return the operands by role: x, then `tables`, the base values if any, and y."""
        name, base = node.output.name, np.asarray(self.base, node.input(0).type.dtype.numpy)
        last = {"base": builder.const(f"{name}.base", base)} if any(self.base) else {}
        consts = {role: builder.const(f"{name}.{role}", data) for role, data in tables.items()}
        return {"x": builder.buffer(node.input(0)), **consts, **last, "y": builder.buffer(node.output)}

    def _options(self, x: TensorType) -> ForestOptions:
        """Return the options that all templates share."""
        return ForestOptions(
            x_t=x.dtype.c,
            combine=_COMBINE[self._combine],
            marked=self._combine != "SUM",
            fills=self._combine != "SUM" and not self.marks_unscored,
            average=self.aggregate == "AVERAGE",
            has_base=any(self.base),
            single_score=self.forest.targets == 1 and all(len(leaf) == 1 for leaf in self.forest.leaves),
        )

    # ------------------------------------------------------------------------------------------------- tables

    def _lower_to_tables(self, node: Node, builder: Builder) -> None:
        """Arrays of the smallest types that hold them; one kernel walks them."""
        forest, x = self.forest, node.input(0).type
        modes, nans = sorted(set(forest.modes.tolist())), forest.nan_is_yes
        mixed = len(modes) > 1 or bool(nans.any() and not nans.all())
        shape, more = self._leaf_tables()
        checked = CHECKED in builder.features
        tables = self._node_tables(x.dtype, mixed)
        tables["weight"] = _reals(np.asarray([w for leaf in forest.leaves for _, w in leaf], np.float64), x.dtype)
        test = "" if mixed else (TESTS_OR_NAN if nans.any() else TESTS)[modes[0] if modes else 0]
        options = TableOptions(
            **self._options(x).values(),  # type: ignore[arg-type]  # by the names of the base class
            test=test.format(x="v", t="threshold[at]"),
            tests=[(m, TESTS[m].format(x="v", t="threshold[at]")) for m in modes] if mixed else [],
            nans=bool(nans.any()),
            checked=checked,
            leaf=shape,
        )
        sizes = TableParams(
            num_nodes=len(forest.features),
            num_trees=len(forest.roots),
            num_leaves=len(forest.leaves) if checked else None,
            num_weights=sum(map(len, forest.leaves)) if checked and shape == "ragged" else None,
            leaf_weights=len(forest.leaves[0]) if shape == "even" else None,
        )
        call = Call(
            TREES_TABLE,
            self._operands(node, builder, tables | more),
            [self._params(x), sizes],
            [options],
            variant=x.dtype.tag,
            note=self._note(node),
        )
        builder.call(node, call)

    def _node_tables(self, dtype: DType, mixed: bool) -> dict[str, Array]:
        """Return the tables of inner nodes by role; `mixed` adds the comparison of each node."""
        forest, count = self.forest, len(self.forest.features)
        yes, no, root = (np.where(refs < 0, count + ~refs, refs) for refs in (forest.yes, forest.no, forest.roots))
        tables = {
            "feature": _smallest(forest.features),
            "threshold": _reals(forest.thresholds, dtype),
            "yes": _smallest(yes),
            "no": _smallest(no),
            "root": _smallest(root),
        }
        return tables | ({"how": (forest.modes + 8 * forest.nan_is_yes).astype(np.uint8)} if mixed else {})

    def _leaf_tables(self) -> tuple[str, dict[str, Array]]:
        """Return the template text that finds a leaf's weights, and the tables it reads besides `weight`."""
        leaves, targets = self.forest.leaves, self.forest.targets
        ids = [tuple(target for target, _ in leaf) for leaf in leaves]
        if all(own == tuple(range(targets)) for own in ids):
            return "dense", {}
        target = {"target": _smallest(np.asarray([t for own in ids for t in own], np.int64))}
        if all(len(own) == len(ids[0]) for own in ids):
            return "even", target
        return "ragged", target | {"first": _smallest(np.cumsum([0, *map(len, ids)]))}

    def _note(self, node: Node) -> str:
        return f"{self.forest}: {node.input(0).type} -> {node.output.type}"

    # --------------------------------------------------------------------------------------------- nested ifs

    def _lower_to_ifs(self, node: Node, builder: Builder) -> bool:
        """Lower each tree to a C function of `if` statements; return False if C does not allow it."""
        x = node.input(0).type
        options, add = self._options(x), _COMBINE[self._combine]

        def leaf(weights: Leaf) -> list[Line]:
            if options.single_score:
                return [("return ", real_param(weights[0][1], x.dtype), ";")]
            lines: list[Line] = []
            for target, weight in weights:
                if weight or options.marked:
                    number = real_param(weight, x.dtype)
                    text = add.replace("{y}", f"y[{target}]").split("{w}")
                    lines.append(tuple(part for piece in text for part in (piece, number))[:-1])
            return [*lines, ("return;",)]

        bodies = nested_ifs(self.forest, x.dtype, leaf)
        if bodies is None:
            return False
        texts = TreeCodeOptions(
            **options.values(),  # type: ignore[arg-type]  # by the names of the base class
            trees=[TreeText.of(body) for body in bodies],
        )
        operands = self._operands(node, builder, {})
        call = Call(TREES_CODE, operands, [self._params(x)], [texts], variant=x.dtype.tag, note=self._note(node))
        builder.call(node, call)
        return True


def _smallest(numbers: Array) -> Array:
    """Numbers from 0 on in the smallest unsigned type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _reals(numbers: Array, dtype: DType) -> Array:
    """Numbers in the type that computes, or in float32 if that holds them exactly."""
    as_float32 = numbers.astype(np.float32)
    return as_float32 if np.array_equal(as_float32, numbers, equal_nan=True) else numbers.astype(dtype.numpy)


class ReplaceUnscored(Elementwise):
    """y = x, or `value` where x is NaN, which marks a target for which no tree had a weight."""

    mnemonic: ClassVar[str] = "unscored"
    value: float = 0.0

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return `value` where x is NaN, else x."""
        (x,) = args
        return select(is_nan(x), scalar(real_param(self.value, x.dtype)), x)


# --------------------------------------------------------------------------------------------------- import


def _aligned(node: OnnxNode, *columns: Sequence[object]) -> None:
    """Refuses columns of one table that differ in length."""
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(str(len(column)) for column in columns)
        raise Refusal(f"{node.op_type}: the attributes of nodes must have equal lengths", lengths, "repair the model")


def _checked(node: OnnxNode, splits: Sequence[Split], features: int) -> Sequence[Split]:
    wrong = next((s.feature for s in splits if not 0 <= s.feature < features), None)
    node.require(wrong is None, "nodes must read features of the input", f"feature {wrong} of {features}")
    return splits


def _mode(node: OnnxNode, name: str) -> int:
    mode = name.removeprefix("BRANCH_")
    node.require(mode in MODES[:-1], "the mode of a node must be known", name, f"BRANCH_ and {', '.join(MODES[:-1])}")
    return MODES.index(mode)


def _forest(node: OnnxNode, side: str, targets: int, x: Value) -> Forest:
    """Return the trees of TreeEnsembleClassifier or TreeEnsembleRegressor; `side`_* attributes hold the leaves."""
    names = [str(name) for name in node.attr("nodes_modes", ())]
    trees, ids = ints(node, "nodes_treeids"), ints(node, "nodes_nodeids")
    features, thresholds = ints(node, "nodes_featureids"), floats(node, "nodes_values").astype(x.type.dtype.numpy)
    yes, no = ints(node, "nodes_truenodeids"), ints(node, "nodes_falsenodeids")
    nans = ints(node, "nodes_missing_value_tracks_true") or (0,) * len(ids)
    _aligned(node, names, trees, ids, features, list(thresholds), yes, no, nans)
    of_key = {key: index for index, key in enumerate(zip(trees, ids, strict=True))}
    node.require(len(of_key) >= len(ids), "a node must be described once", "one is twice")
    parts = {part: ints(node, f"{side}_{part}") for part in ("treeids", "nodeids", "ids")}
    reals = floats(node, f"{side}_weights").astype(x.type.dtype.numpy).tolist()
    if len({len(reals), *map(len, parts.values())}) > 1:
        lengths = ", ".join(str(len(part)) for part in (*parts.values(), reals))
        raise Refusal(
            f"{node.op_type}: the lengths of {side}'s attributes must be consistent", lengths, "repair the model"
        )
    owners = [of_key.get(k) for k in zip(parts["treeids"], parts["nodeids"], strict=True)]
    weights: dict[int | None, list[tuple[int, float]]] = {}
    for owner, target, weight in zip(owners, parts["ids"], reals, strict=True):
        weights.setdefault(owner, []).append((target, weight))
    node.require(None not in weights, "weights must belong to nodes that exist", "one does not")
    inner = [i for i, name in enumerate(names) if name != "LEAF"]
    outer = [i for i, name in enumerate(names) if name == "LEAF"]
    ref = {old: new for new, old in enumerate(inner)} | {old: ~new for new, old in enumerate(outer)}
    roots: dict[int, int] = {}
    for index, tree in enumerate(trees):
        roots.setdefault(tree, ref[index])

    def child(index: int, children: tuple[int, ...]) -> int:
        key = trees[index], children[index]
        if key not in of_key:
            rule = f"{node.op_type}: the numbers of nodes must be consistent"
            raise Refusal(rule, f"node {key[1]} of tree {key[0]} is missing", "repair the model")
        return ref[of_key[key]]

    splits = [
        Split(features[i], _mode(node, names[i]), float(thresholds[i]), nans[i] == 1, child(i, yes), child(i, no))
        for i in inner
    ]
    leaves = [tuple(sorted(weights.get(i, ()), key=lambda w: w[0])) for i in outer]
    return Forest.of(_checked(node, splits, x.type.shape[1]), list(roots.values()), leaves, targets)


def _base(node: OnnxNode, *counts: int) -> tuple[float, ...]:
    """base_values, of which there must be none or one of `counts`."""
    base = tuple(floats(node, "base_values").tolist())
    if len(base) not in (0, *counts):
        actual_count, allowed_counts = f"{len(base)}", " or ".join(map(str, counts))
        raise Refusal(
            f"{node.op_type}: the number of base_values must be {allowed_counts}", actual_count, "repair the model"
        )
    return base


def _targets(node: OnnxNode) -> int:
    targets = int(node.attr("n_targets", 0))
    node.require(0 < targets < 2**16, "n_targets must be 1 to 65535", str(targets))
    return targets


def _finished(node: OnnxNode, scores: Value, post: str, dtype: DType) -> Value:
    """Return transformed scores in `dtype`; the transforms compute in float32."""
    if post == "NONE" and scores.type.dtype is dtype:
        return scores
    result = transformed(node, as_float(node, scores), post)
    return result if dtype is DType.FLOAT32 else node.emit(Cast(dtype), result, suffix="wide")


@ml_operator("TreeEnsembleRegressor", kernels=("trees_table", "trees_code"))
def _import_regressor(node: OnnxNode) -> list[Value]:
    x, targets, post = rows(node, keep_double=True), _targets(node), post_transform_of(node)
    aggregate = str(node.attr("aggregate_function", "SUM"))
    node.require(aggregate in AGGREGATES, "aggregate_function must be known", aggregate, ", ".join(AGGREGATES))
    op = Trees(_forest(node, "target", targets, x), aggregate, _base(node, targets))
    return [_finished(node, node.emit(op, x, suffix="scores"), post, DType.FLOAT32)]


@ml_operator("TreeEnsemble", kernels=("trees_table", "trees_code"))
def _import_ensemble(node: OnnxNode) -> list[Value]:
    x, targets = rows(node, keep_double=True), _targets(node)
    aggregate, post = int(node.attr("aggregate_function", 1)), int(node.attr("post_transform", 0))
    if not (0 <= aggregate < len(AGGREGATES) and 0 <= post < len(POST_TRANSFORMS)):
        codes = f"{aggregate}, {post}"
        raise Refusal("TreeEnsemble: aggregate_function and post_transform must be known", codes, "repair the model")
    op = Trees(_new_forest(node, targets, x), AGGREGATES[aggregate])
    return [_finished(node, node.emit(op, x, suffix="scores"), POST_TRANSFORMS[post], x.type.dtype)]


def _new_forest(node: OnnxNode, targets: int, x: Value) -> Forest:
    """Return the trees of TreeEnsemble, which has separate tables of inner nodes and leaves."""
    dtype = x.type.dtype.numpy
    modes = [int(m) for m in np.asarray(node.attr("nodes_modes", ())).reshape(-1)]
    features, thresholds = ints(node, "nodes_featureids"), floats(node, "nodes_splits").astype(dtype).tolist()
    nans = ints(node, "nodes_missing_value_tracks_true") or (0,) * len(modes)
    sides = [(ints(node, f"nodes_{s}nodeids"), ints(node, f"nodes_{s}leafs")) for s in ("true", "false")]
    _aligned(node, modes, features, thresholds, nans, *(column for side in sides for column in side))
    if not all(0 <= m < len(MODES) for m in modes) or any(at < 0 for side in sides for at in side[0]):
        raise Refusal("TreeEnsemble: modes and children of nodes must exist", "others", "repair the model")
    children = [[~at if leaf else at for at, leaf in zip(*side, strict=True)] for side in sides]
    sets = iter(_member_sets(floats(node, "membership_values").astype(dtype).tolist()))
    splits = [
        Split(f, m, t, n == 1, yes, no, next(sets, ()) if m == MODES.index("MEMBER") else ())
        for f, m, t, n, yes, no in zip(features, modes, thresholds, nans, *children, strict=True)
    ]
    weights = floats(node, "leaf_weights").astype(dtype).tolist()
    aims = ints(node, "leaf_targetids")
    if len(aims) != len(weights):
        counts = f"{len(aims)} and {len(weights)}"
        raise Refusal("TreeEnsemble: leaves must have a target and a weight each", counts, "repair the model")
    leaves = [((target, weight),) for target, weight in zip(aims, weights, strict=True)]
    roots = ints(node, "tree_roots")
    node.require(all(root >= 0 for root in roots), "roots must be nodes", str(min(roots, default=0)))
    return Forest.of(_checked(node, splits, x.type.shape[1]), roots, leaves, targets)


def _member_sets(values: Sequence[float]) -> list[tuple[float, ...]]:
    """Values between NaNs."""
    sets: list[list[float]] = [[]]
    for value in values:
        if value != value:
            sets.append([])
        else:
            sets[-1].append(value)
    return [tuple(members) for members in sets]


# ----------------------------------------------------------------------------------------------- classifiers


@ml_operator("TreeEnsembleClassifier", kernels=("trees_table", "trees_code", "arg"))
def _import_classifier(node: OnnxNode) -> list[Value]:
    classes, post = Classes.of(node, "classlabels_int64s"), post_transform_of(node)
    x = rows(node, keep_double=True)
    forest = _forest(node, "class", len(classes), x)
    if len(classes) > 2:
        return _several_classes(node, classes, forest, x, post)
    if len(classes) == 2:
        return _two_classes(node, classes, forest, x, post)
    scores = node.emit(Trees(forest, base=_base(node, 1)), x, suffix="scores")
    label = classes.binary(node, scores, 0.0, 1, 0)
    return [label, _finished(of_scores(node), scores, post, DType.FLOAT32)]


def _several_classes(node: OnnxNode, classes: Classes, forest: Forest, x: Value, post: str) -> list[Value]:
    """Return the label with the greatest score among classes that some tree weighs, and the scores."""
    base = _base(node, len(classes))
    marks = not base and len(forest.always_scored()) < len(classes)
    scores = node.emit(Trees(forest, base=base, marks_unscored=marks), x, suffix="scores")
    ranked = scores
    if marks:
        ranked = node.emit(ReplaceUnscored(-math.inf), scores, suffix="ranked")
        scores = node.emit(ReplaceUnscored(0.0), scores, suffix="filled")
    return [classes.top(node, ranked), _finished(of_scores(node), scores, post, DType.FLOAT32)]


def _two_classes(node: OnnxNode, classes: Classes, forest: Forest, x: Value, post: str) -> list[Value]:
    """ONNX Runtime's rules: they depend on which class the weights are of, their signs, and the base values."""
    used = {target for leaf in forest.leaves for target, _ in leaf}
    if not used or used != forest.always_scored():
        raise Refusal(
            "TreeEnsembleClassifier: of two classes, each leaf must weigh the same",
            "leaves with and without a weight",
            "write weights of 0, too",
        )
    base = _base(node, 1, 2)
    if len(used) == 2:
        return _two_scores(node, classes, forest, x, post, base)
    (own,) = used
    if own == 1 and len(base) == 2:
        scored_classes = "weights of the second class only"
        raise Refusal(
            "TreeEnsembleClassifier: two base_values need weights of the first class", scored_classes, "repair it"
        )
    single = replace(forest, leaves=tuple(tuple((0, w) for _, w in leaf) for leaf in forest.leaves), targets=1)
    offset = base[:1] if own == 0 else ()
    score = node.emit(Trees(single, base=offset), x, suffix="score")
    positive = all(w >= 0 for w in floats(node, "class_weights"))
    negative_label, positive_label = classes.labels
    label = classes.binary(node, score, 0.5 if positive else 0.0, positive_label, negative_label)
    after = of_scores(node)
    score = as_float(after, score)
    if own == 0 and len(base) < 2:
        return [label, two_class_scores(after, score, post, positive)]
    alone = pair(after, score, (1, 0) if own == 0 else (0, 1), (0, 0))
    return [label, transformed(after, alone, post)]


def _two_scores(
    node: OnnxNode, classes: Classes, forest: Forest, x: Value, post: str, base: tuple[float, ...]
) -> list[Value]:
    """Return the label, 1 if the second class has a positive score, else 0, and both scores."""
    offsets = {0: (), 1: (*base, 0.0), 2: (base[-1] if base else 0.0, 0.0)}[len(base)]
    scores = node.emit(Trees(forest, base=offsets), x, suffix="scores")
    count, after = scores.type.shape[0], of_scores(node)
    column = 0 if len(base) == 2 else 1
    decisive = node.emit(Slice((0, column), (count, 1), (1, 1)), scores, suffix="decisive")
    label = classes.binary(node, decisive, 0.0, 1, 0)
    if len(base) == 2:
        scores = pair(after, as_float(after, decisive), (-1, 1), (0, 0))
    return [label, _finished(after, scores, post, DType.FLOAT32)]
