# SPDX-License-Identifier: Apache-2.0
"""Decision trees as data: they are joined, checked, evaluated in numpy, and written as nested C ifs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.portable.trees import Line
from mcugen.lir.program import real_param
from mcugen.ops.onnx_node import Refusal

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""Comparisons of a node's feature with its threshold, in the order of ONNX's numbers; MEMBER becomes a chain of EQ."""

_COMPARE: tuple[Callable[[Array, Array], Array], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
TESTS = ("{x} <= {t}", "{x} < {t}", "{x} >= {t}", "{x} > {t}", "{x} == {t}", "{x} != {t}")
"""C expressions of the comparisons of feature {x} with threshold {t}, in the order of MODES."""
TESTS_OR_NAN = (
    "!({x} > {t})",
    "!({x} >= {t})",
    "!({x} < {t})",
    "!({x} <= {t})",
    "({x} == {t} || {x} != {x})",
    TESTS[5],
)
"""C expressions of the comparisons in TESTS that are also true if feature {x} is NaN."""
_EQ, _MEMBER = 4, 6

MAX_NESTED_IFS = 100
"""Largest depth of nested ifs in generated C: C99 guarantees 127 levels of blocks."""

Leaf = tuple[tuple[int, float], ...]
"""The contributions of a leaf to the results: (target, weight) pairs, where a target is the index of a result."""


@dataclass(frozen=True)
class Split:
    """An inner node of a decision tree.

    Attributes:
        feature: Index of the compared feature.
        mode: Comparison, as an index of MODES.
        threshold: Number that the feature is compared with.
        nan_is_yes: Whether NaN takes the branch `yes`.
        yes: Child if the comparison is true: a node, or a leaf l as ~l.
        no: Child if it is false.
        members: Values of a MEMBER node, one of which the feature must equal.
    """

    feature: int
    mode: int
    threshold: float
    nan_is_yes: bool
    yes: int
    no: int
    members: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Forest:
    """Decision trees over one feature vector, stored as arrays indexed by node in preorder.

    A child number below 0 is a leaf: the leaf's index with all bits inverted (~l).

    Attributes:
        features: Feature that each node compares.
        modes: Comparison of each node, as an index of MODES.
        nan_is_yes: Whether NaN takes the branch `yes`.
        thresholds: Threshold of each node as float64, exactly the value of the compared type.
        yes: Child of each node if the comparison is true.
        no: Child of each node if it is false.
        roots: Root of each tree: a node, or a leaf as ~l.
        leaves: The distinct leaves, each with pairs of target and weight.
        targets: Number of results of the forest.
    """

    features: Array
    modes: Array
    nan_is_yes: Array
    thresholds: Array
    yes: Array
    no: Array
    roots: Array
    leaves: tuple[Leaf, ...]
    targets: int

    @staticmethod
    def of(splits: Sequence[Split], roots: Sequence[int], leaves: Sequence[Leaf], targets: int) -> Forest:
        """Return a forest from nodes in any order.

        Args:
            splits: The inner nodes.
            roots: Root of each tree: a node, or a leaf l as ~l.
            leaves: The leaves, each with pairs of target and weight.
            targets: Number of results of the forest.

        Raises:
            Refusal: A child does not exist, or the nodes form a cycle.
        """
        _check(splits, roots, leaves, targets)
        splits = _with_chains(splits)
        order = _preorder(splits, roots)
        inner = {old: new for new, old in enumerate(order)}
        distinct: dict[Leaf, int] = {}

        def child(ref: int) -> int:
            return inner[ref] if ref >= 0 else ~distinct.setdefault(leaves[~ref], len(distinct))

        used = [splits[old] for old in order]
        pairs = np.asarray([(child(s.yes), child(s.no)) for s in used], np.int64).reshape(-1, 2)
        starts = np.asarray([child(root) for root in roots], np.int64)
        return Forest(
            np.asarray([s.feature for s in used], np.int64),
            np.asarray([s.mode for s in used], np.int64),
            np.asarray([s.nan_is_yes for s in used], np.bool_),
            np.asarray([s.threshold for s in used], np.float64),
            pairs[:, 0],
            pairs[:, 1],
            starts,
            tuple(distinct),
            targets,
        )

    def __str__(self) -> str:
        return f"{len(self.roots)} trees, {len(self.features)} nodes, {len(self.leaves)} leaves"

    def always_scored(self) -> frozenset[int]:
        """Return the targets that get a weight from every row, since all leaves of some tree contribute to them."""
        targets: set[int] = set()
        for root in self.roots.tolist():
            reached = {~ref for ref in self._reached(root) if ref < 0}
            targets.update(frozenset.intersection(*(frozenset(t for t, _ in self.leaves[leaf]) for leaf in reached)))
        return frozenset(targets)

    def _reached(self, root: int) -> Iterator[int]:
        seen, stack = {root}, [root]
        while stack:
            ref = stack.pop()
            yield ref
            for child in (int(self.yes[ref]), int(self.no[ref])) if ref >= 0 else ():
                if child not in seen:
                    seen.add(child)
                    stack.append(child)

    def walk(self, x: Array) -> Array:
        """Evaluate the trees: return the leaf that each row of `x` reaches in each tree, int [N, trees]."""
        at = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        thresholds = self.thresholds.astype(x.dtype)
        while (inside := at >= 0).any():
            row, _ = np.nonzero(inside)
            here = at[inside]
            v, limit, mode = x[row, self.features[here]], thresholds[here], self.modes[here]
            is_yes = np.select([mode == m for m in range(len(_COMPARE))], [f(v, limit) for f in _COMPARE])
            is_yes = is_yes.astype(bool) | (np.isnan(v) & self.nan_is_yes[here])
            at[inside] = np.where(is_yes, self.yes[here], self.no[here])
        return ~at


def _check(splits: Sequence[Split], roots: Sequence[int], leaves: Sequence[Leaf], targets: int) -> None:
    refs = [*roots, *chain.from_iterable((s.yes, s.no) for s in splits)]
    if not roots or not all(-len(leaves) <= ref < len(splits) for ref in refs):
        raise Refusal("trees: each needs a root, and nodes children that exist", "some do not", "repair the model")
    pairs = list(chain.from_iterable(leaves))
    if not all(0 <= target < targets and weight == weight for target, weight in pairs):
        raise Refusal("trees: leaves must have numbers as weights, of existing targets", "others", "repair the model")


def _with_chains(splits: Sequence[Split]) -> list[Split]:
    """MEMBER nodes become chains of EQ nodes; the first takes the old one's place. An empty set equals nothing."""
    result = list(splits)
    for index, split in enumerate(splits):
        if split.mode != _MEMBER:
            continue
        *earlier, last = split.members or (float("nan"),)
        no = split.no
        for value in (last, *reversed(earlier[1:])) if earlier else ():
            result.append(Split(split.feature, _EQ, value, split.nan_is_yes, split.yes, no))
            no = len(result) - 1
        result[index] = Split(split.feature, _EQ, (*earlier, last)[0], split.nan_is_yes, split.yes, no)
    return result


def _preorder(splits: Sequence[Split], roots: Sequence[int]) -> list[int]:
    """Return the reachable nodes, each before its children, which may be shared; refuse cycles."""
    order: list[int] = []  # children first
    is_open: dict[int, bool] = {}
    for root in reversed(roots):
        stack = [(root, False)] if root >= 0 else []
        while stack:
            at, leaving = stack.pop()
            if leaving:
                is_open[at] = False
                order.append(at)
                continue
            if at in is_open:
                continue
            is_open[at] = True
            stack.append((at, True))
            for ref in (splits[at].yes, splits[at].no):
                if is_open.get(ref):
                    raise Refusal("trees: no path may lead in a circle", f"one at node {ref}", "repair the model")
                if ref >= 0 and ref not in is_open:
                    stack.append((ref, False))
    return order[::-1]


# ----------------------------------------------------------------------------------------------- nested ifs


def nested_ifs(forest: Forest, dtype: DType, leaf: Callable[[Leaf], list[Line]]) -> list[list[Line]] | None:
    """Return the lines of a C function body of nested ifs for each tree; None if C cannot express a tree.

    C cannot express trees that are deeper than MAX_NESTED_IFS or that share nodes.

    Args:
        forest: The trees.
        dtype: Element type of the features.
        leaf: Returns the statements of a leaf, which return from the function.
    """
    visited: set[int] = set()
    bodies = [_body(forest, int(root), dtype, leaf, visited) for root in forest.roots]
    complete_bodies = [body for body in bodies if body is not None]
    return complete_bodies if len(complete_bodies) == len(bodies) else None


def _body(
    forest: Forest, root: int, dtype: DType, leaf: Callable[[Leaf], list[Line]], visited: set[int]
) -> list[Line] | None:
    """`if (…) {yes} no`: what is true returns, so that only that side nests."""
    lines: list[Line] = []
    stack: list[tuple[int | None, int]] = [(root, 1)]
    while stack:
        ref, depth = stack.pop()
        indent = "    " * depth
        if ref is None:
            lines.append((f"{indent}}}",))
        elif ref < 0:
            lines += [(indent, *line) for line in leaf(forest.leaves[~ref])]
        else:
            run = _run(forest, ref)
            if depth > MAX_NESTED_IFS or not visited.isdisjoint(run):
                return None
            visited.update(run)
            lines += _condition(forest, run, dtype, indent)
            stack += [(int(forest.no[run[-1]]), depth), (None, depth), (int(forest.yes[ref]), depth + 1)]
    return lines


def _run(forest: Forest, first: int) -> list[int]:
    """Nodes in a row that ask whether one feature is one of several values, and go to the same place if so."""
    run, at = [first], int(forest.no[first])
    while at >= 0 and forest.modes[at] == _EQ and _kind(forest, at) == _kind(forest, first):
        run.append(at)
        at = int(forest.no[at])
    return run


def _kind(forest: Forest, at: int) -> tuple[int, int, bool, int]:
    return int(forest.modes[at]), int(forest.features[at]), bool(forest.nan_is_yes[at]), int(forest.yes[at])


def _condition(forest: Forest, run: list[int], dtype: DType, indent: str) -> list[Line]:
    """`if (a || b || …) {`, one comparison a line."""
    tests = TESTS_OR_NAN if forest.nan_is_yes[run[0]] else TESTS
    lines: list[Line] = []
    for number, at in enumerate(run):
        before, after = tests[forest.modes[at]].replace("{x}", f"x[{forest.features[at]}]").split("{t}")
        start = f"{indent}if (" if number == 0 else f"{indent}    || "
        end = ") {" if number == len(run) - 1 else ""
        lines.append((start + before, real_param(float(forest.thresholds[at]), dtype), after + end))
    return lines
