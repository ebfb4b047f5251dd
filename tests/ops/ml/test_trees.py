# SPDX-License-Identifier: Apache-2.0
"""Decision trees against onnxruntime: branch modes, missing values, aggregates, transforms, rules for two classes."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from ml_models import LABEL_AND_SCORES, ML, MlCases
from onnx import helper

from mcugen.core.errors import McugenError, UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import DType
from mcugen.ops.ml.forest import MAX_NESTED_IFS, Forest, Leaf, Line, Split, nested_ifs
from mcugen.ops.onnx_node import Refusal

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
BOTH = ("balanced", "speed")


def rows(count: int = 24, features: int = 5, dtype: type = np.float32) -> np.ndarray:
    """Halves, so that equality occurs, and NaNs."""
    random = np.random.default_rng(0)
    x = (random.integers(-4, 5, (count, features)) / 2).astype(dtype)
    x[random.random(x.shape) < 0.1] = np.nan
    return x


class Table:
    """Attributes of nodes, filled tree by tree at random."""

    def __init__(self, seed: int, side: str, features: int = 5) -> None:
        self.random = np.random.default_rng(seed)
        self.side, self.features = side, features
        names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
        self.nodes: dict[str, list] = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
        self.leaves: dict[str, list] = {f"{side}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}

    def tree(self, depth: int, modes: tuple[str, ...], targets: object, tracks: str = "none", low: float = -1) -> None:
        """`targets` is a list of targets, or a function that gives those of a leaf."""
        tree = len(set(self.nodes["nodes_treeids"]))
        ids = iter(range(10**6))
        first = len(self.nodes["nodes_treeids"])

        def grow(left: int) -> int:
            own, row = next(ids), len(self.nodes["nodes_treeids"])
            is_leaf = left == 0 or (left < depth and self.random.random() < 0.2)
            track = {"none": 0, "all": 1, "some": int(self.random.integers(2))}[tracks]
            values = (tree, own, "LEAF", 0, 0.0, 0, 0, track)
            if not is_leaf:
                mode = f"BRANCH_{self.random.choice(modes)}"
                values = (tree, own, mode, int(self.random.integers(self.features)), 0.0, 0, 0, track)
            for column, value in zip(self.nodes.values(), values, strict=True):
                column.append(value)
            if is_leaf:
                for target in targets() if callable(targets) else targets:
                    entry = (tree, own, target, float(np.float32(self.random.uniform(low, 1))))
                    for column, value in zip(self.leaves.values(), entry, strict=True):
                        column.append(value)
            else:
                self.nodes["nodes_values"][row] = float(self.random.integers(-3, 4) / 2)
                self.nodes["nodes_truenodeids"][row] = grow(left - 1)
                self.nodes["nodes_falsenodeids"][row] = grow(left - 1)
            return own

        grow(depth)
        assert self.nodes["nodes_nodeids"][first] == 0

    def attributes(self, **more: object) -> dict[str, object]:
        own = self.nodes | self.leaves
        if not any(own["nodes_missing_value_tracks_true"]):
            own = {key: value for key, value in own.items() if key != "nodes_missing_value_tracks_true"}
        return {**own, **more}


def forest(seed: int, side: str, modes: tuple[str, ...] = ("LEQ",), targets: object = (0,), **more: object) -> Table:
    table = Table(seed, side)
    for _ in range(3):
        table.tree(3, modes, targets, **more)
    return table


def test_branch_modes_and_missing_values() -> None:
    cases = MlCases(x=rows())
    for number, (modes, tracks) in enumerate(product([*((m,) for m in MODES), MODES], ("none", "some", "all"))):
        cases.add("TreeEnsembleRegressor", **forest(number, "target", modes, tracks=tracks).attributes(n_targets=1))
    cases.check(goals=BOTH)


@pytest.mark.spread(6)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressors(aggregate: str) -> None:
    """Several targets: all at each leaf, one at each leaf, or as it comes; with base values and transforms."""
    cases = MlCases(x=rows())
    random = np.random.default_rng(1)
    kinds = {
        "dense": (0, 1, 2),
        "even": lambda: [random.integers(3)],
        "ragged": lambda: sorted(random.choice(3, random.integers(1, 4), replace=False)),
    }
    for number, (targets, base) in enumerate(product(kinds.values(), (None, [0.5, -0.25, 0.125]))):
        for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
            if base is not None and targets != (0, 1, 2):
                continue  # onnxruntime forgets the base of targets that no reached leaf contributes to
            table = forest(number, "target", targets=targets)
            attributes = table.attributes(n_targets=3, base_values=base, post_transform=post)
            cases.add("TreeEnsembleRegressor", aggregate_function=aggregate, **attributes)
    for post, base in product(("NONE", "LOGISTIC", "SOFTMAX"), (None, [0.5])):
        attributes = forest(3, "target").attributes(n_targets=1, base_values=base, post_transform=post)
        cases.add("TreeEnsembleRegressor", aggregate_function=aggregate, **attributes)
    cases.check(goals=BOTH if aggregate in ("SUM", "MIN") else BOTH[:1])


def test_probit() -> None:
    """Its formula loses digits near one half: a looser comparison."""
    cases = MlCases(x=rows())
    for targets in (1, 2):
        table = forest(7, "target", targets=range(targets), low=0.5)
        more = {"n_targets": targets, "aggregate_function": "AVERAGE", "post_transform": "PROBIT"}
        cases.add("TreeEnsembleRegressor", **table.attributes(base_values=[0.05] * targets, **more))
    cases.check(1e-4)


def test_other_element_types() -> None:
    """Integers are compared as float32; doubles as doubles, and summed so."""
    whole = np.nan_to_num(rows()).astype(np.int64)
    third = rows(dtype=np.float64) / 3
    cases = MlCases(x=whole, small=whole.astype(np.int32), d=third)
    double = forest(5, "target").attributes(n_targets=1)
    double["nodes_values"] = [v / 3 for v in double["nodes_values"]]
    cases.add("TreeEnsembleRegressor", inputs=["d"], **forest(4, "target").attributes(n_targets=1))
    for name in ("x", "small", "d"):
        labels = forest(4, "class", targets=(0, 1, 2)).attributes(classlabels_int64s=[3, 1, 2])
        cases.add("TreeEnsembleClassifier", LABEL_AND_SCORES, inputs=[name], **labels)
    for key in ("nodes_values", "target_weights"):
        double[f"{key}_as_tensor"] = onnx.numpy_helper.from_array(np.asarray(double.pop(key), np.float64))
    cases.add("TreeEnsembleRegressor", inputs=["d"], **double)
    cases.check(goals=BOTH)


def test_a_vector_is_one_row() -> None:
    cases = MlCases(x=rows(), row=rows()[3], whole=np.nan_to_num(rows()).astype(np.int64))
    for name in ("x", "row", "whole"):
        cases.add("TreeEnsembleRegressor", inputs=[name], **forest(4, "target").attributes(n_targets=1))
    found = cases.compile().run({name: array[None] for name, array in cases.feeds.items()}, sanitize=True)
    assert found["y1"].tolist() == found["y0"][:, 3:4].tolist()
    assert found["y2"].shape == found["y0"].shape


def labels_of(count: int) -> dict[str, object]:
    return {"classlabels_int64s": [7, 5, 9, 11][:count]}


@pytest.mark.spread(6)
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_two_classes(post: str) -> None:
    """Weights of the first class, the second or both; of one sign or both; with and without base values."""
    cases = MlCases(x=rows())
    for number, (used, low, base) in enumerate(product([(0,), (1,), (0, 1)], (0, -1), (None, [0.3], [0.2, 0.4]))):
        if used == (1,) and base is not None and len(base) == 2:
            continue
        table = forest(number, "class", targets=used, low=low)
        table.leaves["class_weights"] = [w / 3 for w in table.leaves["class_weights"]]
        attributes = table.attributes(base_values=base, post_transform=post, **labels_of(2))
        cases.add("TreeEnsembleClassifier", LABEL_AND_SCORES, **attributes)
    cases.check()


def test_one_and_several_classes() -> None:
    cases = MlCases(x=rows())
    for base, post in product((None, [0.25]), ("NONE", "LOGISTIC")):
        attributes = forest(1, "class").attributes(base_values=base, post_transform=post, **labels_of(1))
        cases.add("TreeEnsembleClassifier", LABEL_AND_SCORES, **attributes)
    random = np.random.default_rng(1)
    for base, post in product((None, [0.5, -0.25, 0.1, 0]), ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")):
        for targets in (range(4), lambda: [random.integers(3)]):  # nobody ever votes for the last class
            attributes = forest(2, "class", targets=targets).attributes(base_values=base, post_transform=post)
            cases.add("TreeEnsembleClassifier", LABEL_AND_SCORES, **attributes, **labels_of(4))
    cases.check(goals=BOTH)


def test_class_names_become_positions_and_are_told() -> None:
    cases = MlCases(x=rows())
    names = ["setosa", "ver*/sicolor", "virginica"]
    attributes = forest(2, "class", targets=range(3)).attributes(classlabels_strings=names)
    cases.add("TreeEnsembleClassifier", ((np.object_, 1), (np.float32, 2)), **attributes)
    compiled = cases.compile()
    found = compiled.run({"x": cases.feeds["x"][None]})
    assert found["y0"].dtype == np.int64
    np.testing.assert_array_equal(found["y0"][0], found["z0"][0].argmax(1))
    assert "classes 0 = setosa, 1 = ver* /sicolor, 2 = virginica" in compiled.bundle.files[f"{compiled.bundle.name}.c"]


# ---------------------------------------------------------------------------------------------- TreeEnsemble


def ensemble(dtype: type, **more: object) -> dict[str, object]:
    """Three trees: a root with two leaves, membership below a comparison, and a shared leaf."""
    tensors = {
        "nodes_modes": np.asarray([0, 0, 6, 4, 6], np.uint8),
        "nodes_splits": np.asarray([0.5, 1.0, 0, -0.5, 0], dtype),
        "membership_values": np.asarray([-1, 2, 1, np.nan, 2, np.nan], dtype),
        "leaf_weights": np.asarray([1.5, -2, 0.25, 4, 0.75], dtype),
    }
    return {
        **{key: onnx.numpy_helper.from_array(value) for key, value in tensors.items()},
        "tree_roots": [0, 1, 3],
        "nodes_featureids": [0, 1, 2, 3, 4],
        "nodes_truenodeids": [0, 2, 2, 4, 0],
        "nodes_trueleafs": [1, 0, 1, 0, 1],
        "nodes_falsenodeids": [1, 3, 4, 4, 1],
        "nodes_falseleafs": [1, 1, 1, 1, 1],
        "nodes_missing_value_tracks_true": [0, 1, 1, 0, 1],
        "leaf_targetids": [0, 1, 2, 1, 0],
        "n_targets": 3,
        **more,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tree_ensemble(dtype: type) -> None:
    x = rows(dtype=dtype)
    x[:, [2, 4]] = np.rint(x[:, [2, 4]])  # onnxruntime cuts fractions off before it looks for members
    cases = MlCases(version=5, opset=21, x=x)
    for aggregate, post in product(range(4), (0, 3)):
        attributes = ensemble(dtype, aggregate_function=aggregate, post_transform=post)
        cases.add("TreeEnsemble", ((dtype, 2),), **attributes)
    cases.check(goals=BOTH)


def test_transforms_of_tree_ensemble() -> None:
    """By the standard 1 is softmax and 2 the logistic function; onnxruntime takes one for the other."""
    cases = MlCases(version=5, opset=21, x=rows())
    for post in range(3):
        cases.add("TreeEnsemble", **ensemble(np.float32, post_transform=post))
    scores, softmax, logistic = (a[0] for a in cases.compile().run({"x": cases.feeds["x"][None]}).values())
    np.testing.assert_allclose(softmax, np.exp(scores) / np.exp(scores).sum(1, keepdims=True), 1e-5)
    np.testing.assert_allclose(logistic, 1 / (1 + np.exp(-scores)), 1e-5)


def test_half_precision() -> None:
    cases = MlCases(version=5, opset=21, x=rows(dtype=np.float16))
    cases.add("TreeEnsemble", ((np.float16, 2),), **ensemble(np.float16))
    wide = MlCases(version=5, opset=21, x=rows())
    wide.add("TreeEnsemble", **ensemble(np.float32))
    found, expected = (c.compile().run({"x": c.feeds["x"][None]})["y0"] for c in (cases, wide))
    np.testing.assert_array_equal(found, expected.astype(np.float16))


# ---------------------------------------------------------------------------------------------------- shapes


def chain(length: int, side: str) -> Forest:
    """A path of nodes, each with a leaf on the other side."""
    splits = []
    for index in range(length):
        onward = index + 1 if index + 1 < length else ~0
        yes, no = (onward, ~1) if side == "yes" else (~1, onward)
        splits.append(Split(0, 0, float(index), False, yes, no))
    return Forest.of(splits, [0], [((0, 1.0),), ((0, 2.0),)], 1)


def leaf_text(leaf: Leaf) -> list[Line]:
    return [("return ", leaf[0][1], ";")]


def test_nested_ifs_end_where_c_does() -> None:
    assert nested_ifs(chain(MAX_NESTED_IFS + 1, "yes"), DType.FLOAT32, leaf_text) is None
    assert nested_ifs(chain(MAX_NESTED_IFS, "yes"), DType.FLOAT32, leaf_text) is not None
    assert nested_ifs(chain(5000, "no"), DType.FLOAT32, leaf_text) is not None
    shared = Forest.of(
        [Split(0, 0, 1.0, False, 1, 2), Split(1, 0, 1.0, False, ~0, 2), Split(2, 0, 1.0, False, ~0, ~0)],
        [0],
        [((0, 1.0),)],
        1,
    )
    assert nested_ifs(shared, DType.FLOAT32, leaf_text) is None


def test_membership_is_one_condition() -> None:
    members = tuple(float(v) for v in range(5))
    one = Forest.of([Split(2, 6, 0.0, False, ~0, ~1, members)], [0], [((0, 1.0),), ((0, 2.0),)], 1)
    (body,) = nested_ifs(one, DType.FLOAT32, leaf_text) or [[]]
    text = " ".join(str(part) for line in body for part in line)
    assert text.count("if (") == 1 and text.count("||") == 4
    np.testing.assert_array_equal(one.walk(np.asarray([[0, 0, 3], [0, 0, 7]], np.float32)), [[0], [1]])


def test_deep_trees_fall_back_to_tables() -> None:
    cases = MlCases(x=np.arange(-2, 150, 0.5, dtype=np.float32)[:, None])
    count = 140
    ids = list(range(2 * count + 1))
    inner = [i % 2 == 0 and i < 2 * count for i in ids]
    leaves = [i for i in ids if not inner[i]]
    cases.add(
        "TreeEnsembleRegressor",
        n_targets=1,
        nodes_treeids=[0] * len(ids),
        nodes_nodeids=ids,
        nodes_modes=["BRANCH_GT" if own else "LEAF" for own in inner],
        nodes_featureids=[0] * len(ids),
        nodes_values=[i / 2 for i in ids],
        nodes_truenodeids=[i + 2 if own else 0 for i, own in zip(ids, inner, strict=True)],
        nodes_falsenodeids=[i + 1 if own else 0 for i, own in zip(ids, inner, strict=True)],
        target_treeids=[0] * len(leaves),
        target_nodeids=leaves,
        target_ids=[0] * len(leaves),
        target_weights=[float(i) for i in leaves],
    )
    assert [i.kernel for i in cases.compile("speed").program.instrs] == ["trees_table"]
    cases.check(goals=("speed",))


def test_tables_take_the_smallest_types() -> None:
    """7 bytes a node where numbers fit a byte: feature, threshold, two children."""
    cases = MlCases(x=rows())
    cases.add("TreeEnsembleRegressor", **forest(0, "target").attributes(n_targets=1))
    (instr,) = cases.compile().program.instrs
    types = {o.role: o.buffer.dtype.c for o in instr.operands}
    assert types["feature"] == types["yes"] == types["no"] == types["root"] == "uint8_t"
    table = Table(1, "target")
    for _ in range(20):
        table.tree(6, ("LEQ",), (0,))
    cases.add("TreeEnsembleRegressor", **table.attributes(n_targets=1))
    types = {o.role: o.buffer.dtype.c for o in cases.compile().program.instrs[1].operands}
    assert (types["feature"], types["yes"], types["no"]) == ("uint8_t", "uint16_t", "uint16_t")


def test_equal_leaves_are_stored_once() -> None:
    leaves: list[Leaf] = [((0, 1.0),), ((0, 2.0),), ((0, 1.0),)]
    splits = [Split(0, 0, 1.0, False, ~0, 1), Split(0, 0, 2.0, False, ~1, ~2), Split(0, 0, 3.0, False, ~0, ~0)]
    found = Forest.of(splits, [0], leaves, 1)
    assert (len(found.leaves), len(found.features)) == (2, 2)  # and the node that none leads to is gone


# -------------------------------------------------------------------------------------------------- refusals


def test_goals_are_checked_and_told() -> None:
    cases = MlCases(x=rows())
    cases.add("TreeEnsembleRegressor", **forest(0, "target").attributes(n_targets=1))
    with pytest.raises(UsageError, match="balanced, speed, ram, flash"):
        cases.compile("fast")
    assert "optimize speed" in cases.compile("speed").bundle.files["ml.c"]
    assert "optimize" not in cases.compile().bundle.files["ml.h"]
    assert CompileOptions(optimize="ram").describe() == "optimize ram"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_featureids": 5}, "feature 5 of 5"),
        ({"nodes_featureids": -1}, "feature -1"),
        ({"nodes_modes": "BRANCH_LIKE"}, "BRANCH_LIKE"),
        ({"nodes_truenodeids": 0}, "circle"),
        ({"nodes_truenodeids": 99}, "consistent"),
        ({"nodes_nodeids": 1}, "described once"),
        ({"target_nodeids": 99}, "weights must belong"),
        ({"target_ids": 1}, "existing targets"),
        ({"target_weights": float("nan")}, "numbers as weights"),
        ({"target_weights": None}, "consistent"),
        ({"nodes_values": None}, "equal lengths"),
        ({"base_values": [1.0, 2.0]}, "number of base_values must be 1"),
        ({"n_targets": 0}, "n_targets"),
        ({"aggregate_function": "MEDIAN"}, "MEDIAN"),
        ({"post_transform": "SQUARE"}, "SQUARE"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    attributes = forest(0, "target").attributes(n_targets=1)
    for key, value in change.items():
        old = attributes.get(key)
        if isinstance(old, list):
            attributes[key] = [value, *old[1:]] if value is not None else old[1:]
        else:
            attributes[key] = value
    cases = MlCases(x=rows())
    cases.add("TreeEnsembleRegressor", **attributes)
    with pytest.raises(McugenError, match=message):
        cases.compile()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tree_roots": [5]}, "children that exist"),
        ({"tree_roots": [-1]}, "roots must be nodes"),
        ({"nodes_truenodeids": [0, 1, 2, 4, 0]}, "circle"),
        ({"nodes_falsenodeids": [9, 3, 4, 4, 1]}, "children that exist"),
        ({"nodes_falsenodeids": [-1, 3, 4, 4, 1]}, "must exist"),
        ({"nodes_featureids": [0, 1, 2, 3, 9]}, "feature 9 of 5"),
        ({"nodes_featureids": [0, 1, 2, 3]}, "equal lengths"),
        ({"leaf_targetids": [0, 1, 3, 1, 0]}, "existing targets"),
        ({"leaf_targetids": [0, 1]}, "a target and a weight each"),
        ({"aggregate_function": 4}, "must be known"),
        ({"post_transform": -1}, "must be known"),
    ],
)
def test_refusals_of_tree_ensemble(change: dict[str, object], message: str) -> None:
    cases = MlCases(version=5, opset=21, x=rows())
    cases.add("TreeEnsemble", **ensemble(np.float32, **change))
    with pytest.raises(McugenError, match=message):
        cases.compile()


@pytest.mark.parametrize(
    ("targets", "more", "message"),
    [
        ((0,), {"post_transform": "PROBIT"}, "PROBIT"),
        ((1,), {"base_values": [0.5, 0.5]}, "first class"),
        ("some", {}, "must weigh the same"),
        ((0,), {"base_values": [0.5] * 3}, "1 or 2"),
        ((0,), {"classlabels_int64s": None}, "there must be classes"),
    ],
)
def test_refusals_of_two_classes(targets: object, more: dict[str, object], message: str) -> None:
    random = np.random.default_rng(0)
    chosen = (lambda: [random.integers(2)]) if targets == "some" else targets
    attributes = forest(0, "class", targets=chosen).attributes(**{**labels_of(2), **more})
    cases = MlCases(x=rows())
    cases.add("TreeEnsembleClassifier", LABEL_AND_SCORES, **attributes)
    with pytest.raises(UnsupportedError, match=message):
        cases.compile()


def test_circles_are_refused_before_anything_walks_them() -> None:
    with pytest.raises(Refusal, match="circle"):
        Forest.of([Split(0, 0, 0.0, False, 1, ~0), Split(0, 0, 0.0, False, ~0, 0)], [0], [((0, 1.0),)], 1)


def test_models_without_standard_operators_need_no_standard_opset() -> None:
    cases = MlCases(x=rows())
    cases.add("TreeEnsembleRegressor", **forest(0, "target").attributes(n_targets=1))
    model = cases.model()
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid(ML, 3))
    assert compile_model(model).program.instrs
