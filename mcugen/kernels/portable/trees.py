# SPDX-License-Identifier: Apache-2.0
"""Kernels of ensembles of decision trees: tables that one loop walks, or one C function per tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, Real, no_rounds, reads, writes
from mcugen.lir.program import Instr, Param

_FLOATS = (DType.FLOAT32, DType.FLOAT64)

Line = tuple[str | Param, ...]
"""A line of C code as a sequence of texts and numbers; each number becomes a parameter or a literal."""


class ForestParams(Params):
    """Kernel parameters of tree ensembles: sizes of input and output, and constants with which leaves are combined."""

    rows: Annotated[int, "rows of x"]
    features: Annotated[int, "elements of a row"]
    targets: Annotated[int, "scores of a row"]
    unset_score: Annotated[Real | None, "NaN, which marks a score that no leaf has added to"] = None
    num_trees_real: Annotated[Real | None, "number of trees, for an average"] = None


class ForestOptions(Options):
    """Template options of tree ensembles: how the weights of the leaves that a row reaches become the row's scores.

    With `marked`, a score begins as NaN, which the first weight replaces; `fills` makes it 0 if no leaf adds a weight.
    """

    x_t: Annotated[str, "C type of the computation"]
    combine: Annotated[str, "C text that adds a weight {w} to a score {y}"]
    marked: Annotated[bool, "whether scores begin as NaN, not as 0"]
    fills: Annotated[bool, "whether scores that stay NaN become 0"]
    average: Annotated[bool, "whether sums are divided by the number of trees"]
    has_base: Annotated[bool, "whether scores begin with a base"]
    single_score: Annotated[bool, "whether there is one score, and each leaf has a weight for it"]


class TableParams(Params):
    """Kernel parameters of tree ensembles in tables: sizes of the tables of nodes, leaves and weights."""

    num_nodes: Annotated[int, "inner nodes; greater numbers are leaves"]
    num_trees: Annotated[int, "trees"]
    num_leaves: Annotated[int | None, "leaves, if tables are checked"] = None
    num_weights: Annotated[
        int | None, "weights of all leaves, if tables are checked and the number of weights per leaf varies"
    ] = None
    leaf_weights: Annotated[int | None, "weights of a leaf, if all leaves have as many"] = None


class TableOptions(ForestOptions):
    """Template options of tree ensembles that are stored as tables: comparisons, checks, and the weights of leaves.

    A node compares a feature with a threshold, and leads to its yes or no side. `tests` is used if the nodes use
    several comparisons, which have numbers in the tables.
    """

    test: Annotated[str, "C text of the comparison, if all nodes use the same"]
    tests: Annotated[list[tuple[int, str]], "numbers and C texts of the comparisons, if nodes use several"]
    nans: Annotated[bool, "whether NaN goes to the yes side at some nodes"]
    checked: Annotated[bool, "whether tables are checked for damage"]
    leaf: Annotated[
        str, "dense: a weight per leaf and score; even: the same number of weights per leaf; ragged: any number"
    ]


def _rounds(instr: Instr) -> int | None:
    """Return the most iterations of a loop: rows times the longest path over all trees, or the most weights of leaves.

    None where the kind of a comparison is looked up, as a jump then depends on data.
    """
    if instr.code["tests"]:
        return None
    tables = {o.role: o.buffer.data for o in instr.operands if o.buffer.data is not None}
    yes, no, root = (tables[role].tolist() for role in ("yes", "no", "root"))
    below: list[int] = [0] * (1 + max([*yes, *no, *root]))
    for node in reversed(range(len(yes))):
        below[node] = 1 + max(below[yes[node]], below[no[node]])
    longest = sum((below[node] for node in root), 0)
    weights = int(np.diff(tables["first"].astype(int)).max()) if "first" in tables else 0
    rows = instr.params["rows"]
    assert isinstance(rows, int)
    max_per_row: int = max(longest, weights * len(root))
    return rows * max_per_row


TREES_TABLE = Kernel(
    "trees_table",
    varies="leaves lie at different depths",
    rounds=_rounds,
    what="decision trees as tables: nodes are followed from the root of each tree to a leaf, whose weights are added",
    operands=(
        reads("x", "rows of features", *_FLOATS),
        reads("feature", "feature that each node compares"),
        reads("threshold", "threshold of each node", *_FLOATS),
        reads("yes", "next node if the comparison is true, by node"),
        reads("no", "next node if the comparison is false, by node"),
        reads("root", "first node of each tree"),
        reads("how", "by node, number of the comparison; 8 more where NaN goes to the yes side", optional=True),
        reads("weight", "weights, leaf by leaf", *_FLOATS),
        reads("target", "score that each weight is added to", optional=True),
        reads("first", "first weight of each leaf", optional=True),
        reads("base", "initial value of each score", *_FLOATS, optional=True),
        writes("y", "scores", *_FLOATS),
    ),
    params=(ForestParams, TableParams),
    options=(TableOptions,),
)
"""Kernel of tree ensembles that one loop evaluates by tables."""


@dataclass(frozen=True)
class TreeText:
    """The C text of the function that evaluates one decision tree.

    Attributes:
        lines: Lines of the function's body.
        reads: Whether the function's body reads the features x.
        writes: Whether the function's body writes the scores y.
    """

    lines: Sequence[Line]
    reads: bool
    writes: bool

    @staticmethod
    def of(lines: Sequence[Line]) -> TreeText:
        """Return the C text of a decision tree's function, given the lines of its body.

        The lines show whether the body reads the features x, and whether it writes the scores y.
        """
        return TreeText(lines, _mentions(lines, "x["), _mentions(lines, "y["))


def _mentions(lines: Sequence[Line], text: str) -> bool:
    return any(isinstance(part, str) and text in part for line in lines for part in line)


class TreeCodeOptions(ForestOptions):
    """Template options of tree ensembles that are compiled to one C function for each tree, in nested ifs."""

    trees: Annotated[list[TreeText], "the body of each tree's function"]


TREES_CODE = Kernel(
    "trees_code",
    varies="leaves lie at different depths",
    rounds=no_rounds,
    what="decision trees as C functions of nested ifs: faster than tables, and larger",
    operands=(
        reads("x", "rows of features", *_FLOATS),
        reads("base", "initial value of each score", *_FLOATS, optional=True),
        writes("y", "scores", *_FLOATS),
    ),
    params=(ForestParams,),
    options=(TreeCodeOptions,),
)
"""Kernel of tree ensembles whose trees are C functions."""
