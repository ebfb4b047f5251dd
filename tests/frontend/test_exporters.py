# SPDX-License-Identifier: Apache-2.0
"""Every exporter with its options: compiled, compared with ONNX Runtime, and as docs/reference/exporters.md says."""

from __future__ import annotations

from collections.abc import Sequence

import exporters
import pytest
from exporters import Measured
from markers import replace_between_markers

from mcugen.core.board import load_board
from mcugen.driver.compiler import compile_model


@pytest.fixture(scope="module")
def results() -> Sequence[Measured]:
    return exporters.measured(exporters.rows())


def test_results_are_those_of_onnxruntime(results: Sequence[Measured]) -> None:
    """Within a code, or a thousandth of the range where floats are the result."""
    off = {f"{r.row.exporter}, {r.row.option}, {r.row.network}": r.off for r in results}
    assert not {name: worst for name, worst in off.items() if worst > 1.01}
    assert not [r.row for r in results if not r.step and r.off > 1e-3]


def test_layers_in_float_have_a_reason(results: Sequence[Measured]) -> None:
    assert not [r.row for r in results if bool(r.floats) != bool(r.row.floats)]


def test_no_product_of_a_cnn_is_of_floats(results: Sequence[Measured]) -> None:
    """But of 16-bit codes around a zero point for which there are no kernels."""
    floats = [r.row for r in results if r.row.network == "CNN" and r.macs[0]]
    assert [row.option for row in floats] == ["u16s8", "s16s8", "u16u8"]
    assert all(row.floats == exporters.CENTERED for row in floats)


def test_the_table_is_current(results: Sequence[Measured]) -> None:
    """Differences aside, which depend on how ONNX Runtime sums floats."""
    text = exporters.DOCUMENT.read_text()
    made = replace_between_markers(text, "exporters", exporters.table(results))
    assert _without_differences(made) == _without_differences(text), "run `make docs`"


def _without_differences(text: str) -> list[list[str]]:
    lines = [line.split(" | ") for line in text.splitlines()]
    return [[cell for at, cell in enumerate(line) if at != exporters.HEADINGS.index("off by")] for line in lines]


def test_what_16_bits_take_is_told(results: Sequence[Measured]) -> None:
    told = {r.row.option: [n for n in r.compiled.report.notes if "zero point" in n] for r in results}
    assert len(told["s16s8"]) == len(told["u16s8"]) == 1
    assert not told["u16s8, ActivationSymmetric"]


@pytest.mark.parametrize("board", ["rp2040", "nrf52840", "corstone300"])
def test_convolutions_with_real_results_are_integer(board: str) -> None:
    layers = compile_model(exporters.torch_pt2e(), load_board(board)).report.layers
    assert not any("f32" in layer.kernel for layer in layers)
