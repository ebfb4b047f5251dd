# SPDX-License-Identifier: Apache-2.0
"""The table of operators says what is so."""

from __future__ import annotations

from collections import defaultdict

import onnx
import pytest
from onnx_tests import Case, Compiled, compile_case
from test_onnx_suite import one_per_operator

from mcugen.ops.onnx_node import BUILT_IN
from mcugen.reporting.operators import operator_table

BESIDE = {"copy", "transpose", "fill", "move", "elementwise", "if", "else", "for", "end"}
"""What may stand beside an operator's own kernels, as the table's head says; and the markers of blocks."""


def used_kernels(case: Case) -> set[str]:
    compiled = compile_case(case, 0)
    assert isinstance(compiled, Compiled), compiled
    return {instr.kernel for instr in compiled.model.program.instrs}


def test_kernels_that_are_used_are_listed() -> None:
    unlisted: dict[str, set[str]] = defaultdict(set)
    for case in one_per_operator():
        key = (case.model.graph.node[0].domain, case.operators[0])
        if key in BUILT_IN.support:
            unlisted[key[1]] |= used_kernels(case) - BESIDE - set(BUILT_IN.support[key].kernels)
    assert {name: kernels for name, kernels in unlisted.items() if kernels} == {}


def test_every_importer_says_how_it_is_computed() -> None:
    silent = {
        name
        for (_, name), support in BUILT_IN.support.items()
        if not support.kernels and "refused" not in support.limits
    }
    assert silent <= {"ZipMap"}


def test_the_registries_agree() -> None:
    assert BUILT_IN.support.keys() == BUILT_IN.importers.keys()


@pytest.mark.parametrize("name", ["Conv", "LSTM", "TopK", "If", "TreeEnsembleClassifier", "Attention", "SequenceAt"])
def test_operators_are_in_the_table(name: str) -> None:
    row = next(line for line in operator_table().splitlines() if line.startswith(f"| {name} |"))
    _, _, versions, types, kernels, _, _ = (cell.strip() for cell in row.split("|"))
    assert versions and types and kernels


def test_what_is_missing_is_named() -> None:
    missing = operator_table().partition("### Not supported")[2]
    assert "ImageDecoder" in missing
    numeric = [
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if f" {schema.name}," in missing and any("tensor(float)" in str(i.types) for i in schema.inputs)
    ]
    assert set(numeric) <= {"RandomNormalLike", "RandomUniformLike", "Multinomial"}
