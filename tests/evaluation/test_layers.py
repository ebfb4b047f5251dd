# SPDX-License-Identifier: Apache-2.0
"""Which layer diverges, by hand-made figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rich.console import Console

from mcugen.evaluation.layers import NO_INTEGER_FORM, LayerError, summarize_layers
from mcugen.reporting.text import print_comparison

EMPTY = LayerError("", [], "conv", "int8", "", "minmax", -1.0, 1.0, 0.0, 40.0, None, 1.0, 0.0, [])


def layer(name: str, sqnr_db: float | None, *sources: str) -> LayerError:
    return replace(EMPTY, name=name, sqnr_db=sqnr_db, sources=list(sources))


CHAIN = [layer("x", None), layer("a", 50.0, "x"), layer("b", 45.0, "a"), layer("c", 30.0, "b"), layer("d", 35.0, "c")]


def test_the_first_below_the_threshold_diverges():
    assert summarize_layers(CHAIN, 4, 40.0).first_diverging == "c"
    assert summarize_layers(CHAIN, 4, 50.0).first_diverging == "b"
    assert summarize_layers(CHAIN, 4, 20.0).first_diverging is None


def test_the_steepest_fall_is_against_the_worst_source():
    """Layer `a` falls from an exact input: what quantization costs at least is no fall."""
    assert summarize_layers(CHAIN, 4).steepest_fall == "c"
    branches = [*CHAIN, layer("e", 29.0, "a", "c"), layer("f", 20.0, "a")]
    assert summarize_layers(branches, 4).steepest_fall == "f"
    assert summarize_layers(CHAIN[:2], 4).steepest_fall is None


def test_worst_first():
    unknown = replace(layer("u", None), cosine=None)
    found = summarize_layers([*CHAIN, unknown], 4)
    assert [row.name for row in found.worst_first] == ["c", "d", "b", "a", "x"]
    assert math.isinf(unknown.quality)


def printed(all_layers: bool, width: int = 140) -> list[str]:
    kept = replace(layer("k", 44.0, "d"), precision="float32", reason=NO_INTEGER_FORM, low=None, high=None)
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        print_comparison(summarize_layers([*CHAIN, kept], 4, 40.0), console, all_layers)
    return capture.get().splitlines()


@pytest.mark.parametrize(("all_layers", "order"), [(True, "xabcdk"), (False, "cdkbax")])
def test_table(all_layers: bool, order: str):
    lines = printed(all_layers)
    names = [line.split()[0] for line in lines if " conv " in line]
    assert names == list(order)
    assert lines[-2:] == ["first layer with an SQNR below 40 dB: c", "steepest fall: c"]


def test_narrow_terminals_get_fewer_columns():
    assert all(len(line) <= 80 for line in printed(False, 80)[:-3])  # sentences below the table wrap by themselves
    heads = {width: next(line for line in printed(False, width) if "max error" in line) for width in (60, 140)}
    assert "cosine" not in heads[60] and "cosine" in heads[140]
    assert any(line.startswith("left out for the width: ") and "cosine" in line for line in printed(False, 60))
