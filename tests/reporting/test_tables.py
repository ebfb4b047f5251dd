# SPDX-License-Identifier: Apache-2.0
"""Tables of all commands show complete numbers at every width; what does not fit is left out and named."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import pytest
from onnx_models import Net
from rich.console import Console
from rich.text import Text

from mcugen import compile_model
from mcugen.calibration.fit import Calibration, Residual
from mcugen.calibration.runs import MeasuredLayer
from mcugen.calibration.text import residual_table
from mcugen.core.board import board_names, load_board
from mcugen.deploy.linking.text import link_table
from mcugen.deploy.validation.figures import INSTRUCTIONS, CycleRange, LayerCheck
from mcugen.deploy.validation.text import layer_check_table
from mcugen.deploy.validation.text import totals as validation_totals
from mcugen.driver.compiled import CompiledModel
from mcugen.evaluation.layers import LayerError, summarize_layers
from mcugen.evaluation.metrics import METRICS
from mcugen.explore.point import Figures, Outcome, Point
from mcugen.explore.text import outcome_table
from mcugen.reporting.comparison import print_differences
from mcugen.reporting.differences import differences, number
from mcugen.reporting.figures import Report
from mcugen.reporting.listing import board_table, layer_memory_table, memory_table, node_table
from mcugen.reporting.memory import memory_map
from mcugen.reporting.search_table import search_table
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_facts, print_table
from mcugen.reporting.text import error_table, layer_table, print_report, totals, tradeoff_table
from mcugen.reporting.tradeoffs import Goal, Tradeoff

WIDTHS = (60, 80, 120, 200)
LONG = "model/block_17/inverted_residual/depthwise_conv2d_17/depthwise"
LARGE = 1_234_567_890


@cache
def compiled() -> CompiledModel:
    net = Net()
    value = net.op("Relu", net.op("Conv", net.input("x", 1, 2, 9, 9), net.const([[[[0.5]], [[1.0]]]] * 3)))
    net.nodes[-2].name = LONG
    net.output(net.op("GlobalAveragePool", value))
    return compile_model(net.plain_model(), "nrf52840")


def report(step: int = 0) -> Report:
    """Return a report with large figures, which are others for another step."""
    figures = {"instructions": LARGE + step, "cycles_estimate": 2 * LARGE + step, "flash": LARGE, "ram": LARGE + step}
    known = compiled().report
    known = replace(known, instructions=LARGE + step, cycles_estimate=2 * LARGE + step)
    return replace(known, layers=[replace(layer, macs=LARGE, **cast(Any, figures)) for layer in known.layers])


def errors() -> Any:
    layer = LayerError(
        *(LONG, [], "conv", "int8", "", "percentile", -1234.5, 2345.6, 0.1234, 45.6),
        *(12.3, 0.98765, 1.25e-5, []),
    )
    return summarize_layers([replace(layer, name=f"{LONG}{i}") for i in range(3)], 4)


def validation() -> Any:
    layer = LayerCheck(LONG, [], "conv", "depthwise_s8_dsp", LARGE, "exact", LARGE, LARGE, LARGE, LARGE, LARGE)
    cycles = CycleRange("cycles", "DWT", LARGE, LARGE, LARGE, 64_000_000, 1.5)
    return SimpleNamespace(layers=[layer] * 3, cycles=cycles)


def tradeoffs() -> TextTable:
    step = Tradeoff(LONG, "int16x8", 0.9375, 0.0123, None, LARGE, LARGE, LARGE, False, True, True)
    return tradeoff_table(Goal(METRICS["sqnr"], 40.0, least=30.0), [step])


def explored() -> TextTable:
    outcome = Outcome(
        Point("stm32l4r5", "int16x8", "balanced"),
        Figures(None, 1234.5, LARGE, LARGE, 12345.6, False),
        None,
        None,
        None,
        True,
    )
    demands = SimpleNamespace(missed=lambda outcome: ["accuracy"], metric=None)
    return outcome_table(cast(Any, demands), [outcome])


def linked() -> TextTable:
    model = SimpleNamespace(
        ram=SimpleNamespace(arena=LARGE, state=LARGE),
        flash=SimpleNamespace(weights=LARGE),
        model=SimpleNamespace(name=LONG),
    )
    one = SimpleNamespace(apart=LARGE, linked=LARGE, saved=0)
    figures = {"models": [model], "model_code": [LARGE], "arena": one, "state": LARGE, "weights": one}
    return link_table(cast(Any, SimpleNamespace(**figures, code=one, flash=one)))


def searched() -> TextTable:
    entry = SimpleNamespace(
        number=12,
        is_chosen=True,
        metrics=SimpleNamespace(time=float(LARGE), stall_cycles=float(LARGE), ram=LARGE, flash=LARGE),
        plan=SimpleNamespace(decisions=lambda: ["weights copied before layers: 3"]),
        candidate="as asked",
        transformation="kernel choice",
        verdict="Chosen: it serves the goal best of all candidates that fit.",
    )
    return search_table([cast(Any, entry)])


TABLES = {
    "report: layers": lambda: layer_table(report()),
    "report: errors": lambda: error_table(errors(), True),
    "precision search": tradeoffs,
    "validate": lambda: layer_check_table(validation()),
    "inspect": lambda: node_table(compiled().graph),
    "inspect --memory": lambda: layer_memory_table(memory_map(compiled().program, "nrf52840")),
    "inspect --search": searched,
    "boards": lambda: board_table([load_board(name) for name in board_names()]),
    "show": lambda: memory_table(load_board("rp2350")),
    "explore": explored,
    "link": linked,
    "calibrate-board": lambda: residual_table(
        Calibration(load_board("nrf52840"), (Residual(MeasuredLayer("net", LONG, LARGE, 0.5), -0.123, 0.01),), ())
    ),
}


def printed(table: TextTable, width: int, wide: bool = False) -> str:
    console = Console(width=width, file=StringIO())
    print_table(table, console, wide)
    return cast(StringIO, console.file).getvalue()


def lines_of(cell: str | Text) -> list[str]:
    return [line for line in (cell.plain if isinstance(cell, Text) else cell).split("\n") if line.strip()]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut(name: str, width: int) -> None:
    table = TABLES[name]()
    text = printed(table, width)
    omitted = text.partition("left out for the width: ")[2].partition(" (")[0].split(", ")
    shown = [i for i, column in enumerate(table.columns) if column.head not in omitted]
    words = text.split("\n")
    for row, i in itertools.product(table.rows, shown):
        if table.columns[i].kind in (CellKind.NUMBER, CellKind.WORD):
            assert all(any(line.strip() in word for word in words) for line in lines_of(row[i])), (name, row[i])
    assert all(column.rank or i in shown for i, column in enumerate(table.columns))
    assert max(map(len, words[:-2])) <= max(width, 80), "a table takes no more than its console"


@pytest.mark.parametrize("name", TABLES)
def test_a_wide_table_has_all_columns_and_whole_names(name: str) -> None:
    table = TABLES[name]()
    text = printed(table, 60, wide=True)
    assert "left out" not in text and "…" not in text
    flat = [line.split() for line in text.splitlines()]
    for row in table.rows:
        for cell, column in zip(row, table.columns, strict=True):
            if column.kind is not CellKind.TEXT:
                assert all(any(set(line.split()) <= set(words) for words in flat) for line in lines_of(cell))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_has_the_figures_of_its_json(width: int) -> None:
    console = Console(width=width, file=StringIO())
    made = report()
    print_report(made, console, wide=True)
    text = cast(StringIO, console.file).getvalue()
    for layer in made.to_json()["layers"]:
        assert all(f"{layer[key]:,}" in text for key in ("macs", "instructions", "cycles", "flash", "ram"))
    for _, figure, _ in totals(made):
        assert figure in text


@pytest.mark.parametrize("width", WIDTHS)
def test_differences_show_whole_figures(width: int) -> None:
    console = Console(width=width, file=StringIO())
    before, after = report(), report(1)
    found = differences(before, after)
    print_differences(found, console)
    text = cast(StringIO, console.file).getvalue()
    for layer in found.to_json()["layers"]:
        for side in ("before", "after"):
            assert number(layer[side]["cycles_estimate"]) in text and number(layer[side]["ram"]) in text
    for change in found.changes:
        assert number(change.before) in text and number(change.after) in text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("label", ["instructions", "plausible: " + LONG * 2])
def test_facts_keep_their_figures(width: int, label: str) -> None:
    console = Console(width=width, file=StringIO())
    facts = [(label, f"{LARGE:,}", "retired, one inference, of random inputs")] * 2
    facts.append(("  best and worst", f"{LARGE:,} to {2 * LARGE:,}", f"of 3 inputs; any takes at most {3 * LARGE:,}"))
    print_facts("net on [board]", facts, console)
    text = cast(StringIO, console.file).getvalue()
    assert all(f"{n * LARGE:,}" in text for n in (1, 2, 3)) and "net on [board]" in text


def test_columns_go_by_rank() -> None:
    columns = (TableColumn("a"), TableColumn("b", rank=1), TableColumn("c", rank=2), TableColumn("d", rank=1))
    table = TextTable(columns, [["123,456,789"] * 4])
    texts = [printed(table, width).partition("left out for the width: ")[2] for width in (60, 50, 36, 20)]
    assert [text.partition(" (")[0] for text in texts] == ["", "c", "c, d", "b, c, d"]


def test_shortened_names_of_a_column_stay_different() -> None:
    names = [f"/block{n}/{kind}/conv/Conv" for n in (1, 2, 3) for kind in ("depthwise", "pointwise")]
    table = TextTable((TableColumn("layer", CellKind.NAME), TableColumn("n")), [[name, "1234"] for name in names])
    cells = [line.split()[0] for line in printed(table, 28).splitlines() if "1234" in line]
    assert len({*cells}) == len(names) and all("…" in cell for cell in cells)


def test_untrusted_text_is_no_markup_and_no_escape() -> None:
    table = TextTable(
        (TableColumn("name", CellKind.NAME), TableColumn("text", CellKind.TEXT)), [["[red]\x1b[2J", "[/x]\x1b"]]
    )
    text = printed(table, 80)
    assert "[red]" in text and "[/x]" in text and "\x1b" not in text


def test_a_simulator_counts_instructions() -> None:
    """No row and no column calls them cycles, and there is no time, which nobody measured."""
    made = validation()
    made.cycles = replace(made.cycles, unit=INSTRUCTIONS)
    heads = [column.head for column in layer_check_table(made).columns]
    assert INSTRUCTIONS in heads and "cycles" not in heads
    assert "cycles" in [column.head for column in layer_check_table(validation()).columns]
    full = SimpleNamespace(
        **vars(made), outputs="exact", different_samples=0, samples=1, layer_samples=1, accuracy=None, stack=None
    )
    full.firmware, full.simulated, full.instructions_estimate = (
        SimpleNamespace(arena=1, version="", compiler="", flags=""),
        None,
        None,
    )
    full.wire = SimpleNamespace(lost=0, damaged=0, resets=0, frames=1, sent=1, received=1, baud=1, seconds=1.0)
    labels = {label: figure for label, figure, _ in validation_totals(cast(Any, full))}
    assert labels[INSTRUCTIONS] == f"{LARGE:,}" and not {"cycles", "milliseconds"} & set(labels)


def test_a_table_as_data() -> None:
    columns = (TableColumn("layer", CellKind.NAME), TableColumn("cycles"))
    table = TextTable(columns, [("conv", "1,200"), (Text("dense"), "9")])
    assert table.to_json() == {
        "heads": ["layer", "cycles"],
        "numbers": [False, True],
        "rows": [["conv", "1,200"], ["dense", "9"]],
    }
