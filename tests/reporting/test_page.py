# SPDX-License-Identifier: Apache-2.0
"""A report as a page: in a browser, from a file, for many layers, with names that try to be more than text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from browser import needs_chromium, opened
from command_line import mcugen
from convolution_models import convolutions

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.layers import Histogram, LayerComparison, LayerError
from mcugen.evaluation.sample_results import farthest_results, sample_results, view_of
from mcugen.reporting.figures import Report
from mcugen.reporting.html import picture, report_page, verdict
from mcugen.reporting.memory import arena_buffers
from mcugen.reporting.stored import read_report

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J&amp;\"'\u202e"
MAX_PAGE_BYTES = 2_000_000
OTHERS = ("--optimize speed", "--optimize ram", "--optimize flash", "--precision float32")


@cache
def compiled_report(name: str = "conv") -> Report:
    """Of what was compiled, with its arena, and not run."""
    compiled = compile_model(convolutions(name), "stm32f746", CompileOptions(max_ram=100_000))
    return replace(compiled.report, buffers=arena_buffers(compiled.program, "stm32f746"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a report and its page."""
    folder = tmp_path_factory.mktemp("report")
    samples = ("--calibration", DIGITS / "calibration.npz", "--data", DIGITS / "eval.npz")
    files = ("--json", folder / "report.json", "--html", folder / "made.html")
    done = mcugen("report", DIGITS / "digits_f32.onnx", "-b", "rt1060", "-q", *samples, *files)
    assert done.code == 0, done.err
    return folder


# ------------------------------------------------------------------------------------------------ in a browser


@needs_chromium
@pytest.mark.qemu
def test_charts_show_the_numbers_of_the_report(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    with opened(made / "made.html") as page:
        assert page.errors == []
        assert page.requests == []
        charts = {"layers", "flash", "memory", "sqnr", "values", "confusion"}
        assert set(page.run("return Object.keys(mcugenViews)")) == charts
        assert page.run("return document.querySelectorAll('.chart svg').length") == len(charts)
        bars = page.run("return mcugenViews.layers.data('data_0')")
        assert {bar["all"] for bar in bars} == {layer["cycles"] for layer in report["layers"]}
        arena = page.run("return mcugenViews.memory.data('data_0')")
        assert sorted(b["bytes"] for b in arena) == sorted(b["bytes"] for b in report["buffers"])
        fields = page.run("return mcugenViews.confusion.data('source_0')")
        assert sum(field["samples"] for field in fields) == report["accuracy"]["samples"]
        flash = page.run("return mcugenViews.flash.data('source_0')")
        assert sum(bar["bytes"] for bar in flash if bar["part"] == "code") == report["flash"]["code"]
        assert {bar["what"] for bar in flash} >= {"conv2d_s8_dsp", "(the network itself)"}
        worst = min(report["quantization"]["layers"], key=lambda layer: layer["sqnr_db"] or 1e9)
        shown = page.run("return document.querySelector('select[name=shown]').value")
        assert shown.endswith(worst["name"])
        found = page.run("return mcugenViews.values.data('data_0')")
        assert [bar["elements"] for bar in found if bar["model"] == "integer"] == worst["histogram"]["integer"]
        options = page.run("return [...document.querySelectorAll('#alternatives tbody tr')].map(r => r.innerText)")
        assert [text.split("\t")[0] for text in options] == ["as it is", *OTHERS]
        first = page.run("return document.querySelector('#verdict').innerText")
        assert f"{report['ram']['total']:,} of 524,288 bytes of RAM" in first
        assert "top-1" in first


@needs_chromium
@pytest.mark.qemu
def test_bars_and_tables_are_sorted_and_names_are_told(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    cycles = [layer["cycles"] for layer in report["layers"]]
    with opened(made / "made.html", width=400, dark=True) as page:
        assert page.run("return document.documentElement.scrollWidth") == 400
        assert page.run(_SIDEWAYS) == []
        page.run(_CHOOSE, "order", "the largest first")
        found = page.run("return mcugenViews.layers.scale('y').domain()")
        order = sorted(range(len(cycles)), key=lambda i: -cycles[i])
        assert [int(name.split()[0]) for name in found] == order
        page.run(_CHOOSE, "measure", "MACs")
        bars = page.run("return mcugenViews.layers.data('data_0')")
        assert sorted(bar["value"] for bar in bars) == sorted(layer["macs"] for layer in report["layers"])
        button = "return [...document.querySelectorAll('#layers button')].find(b => b.textContent === 'cycles')"
        for _ in range(2):
            page.run(button).send_keys("\ue007")  # Enter
        shown = page.run("return [...document.querySelectorAll('#layers tbody tr')].map(r => r.cells[5].textContent)")
        assert [int(text.replace(",", "")) for text in shown] == sorted(cycles)
        hovered = page.run(
            "const e = document.querySelector('#chart-memory .mark-rect path'); const b = e.getBoundingClientRect();"
            "const at = {bubbles: true, clientX: b.x + b.width / 2, clientY: b.y + b.height / 2, view: window};"
            "for (const kind of ['pointerover', 'pointermove', 'mouseover', 'mousemove'])"
            "  e.dispatchEvent(new PointerEvent(kind, at));"
            "return document.querySelector('#vg-tooltip-element').innerText"
        )
        assert any(buffer["name"][:20] in hovered for buffer in report["buffers"])


_CHOOSE = """
const select = document.querySelector(`select[name=${arguments[0]}]`);
select.value = arguments[1];
for (const kind of ["input", "change"]) select.dispatchEvent(new Event(kind, {bubbles: true}));
return mcugenViews.layers.runAsync().then(() => 1);
"""


_SIDEWAYS = """
const wide = [...document.querySelectorAll(".wide")];
return wide.filter(e => e.scrollWidth > e.clientWidth).map(e => e.getAttribute("aria-label"));
"""
"""Tables that are wider than the window."""


@needs_chromium
def test_names_are_text_and_many_layers_are_drawn(tmp_path: Path) -> None:
    report = compiled_report(HOSTILE)
    layers = [replace(layer, name=f"{3 * layer.name}{i}") for i in range(67) for layer in report.layers[1:4]]
    histogram = Histogram.of(np.arange(300.0), np.arange(299.0))
    errors = [
        LayerError(f"{i}{HOSTILE}", [], "conv", "int8", "", "mse", -1, 1, 0, 40.0, 30.0, 0.99, 0.1, [], histogram)
        for i in range(len(layers))
    ]
    compared = LayerComparison(16, 20.0, HOSTILE, None, errors)
    report = replace(report, layers=layers, quantization=compared, notes=(HOSTILE,), command=HOSTILE, board=HOSTILE)
    (tmp_path / "page.html").write_text(report_page(report))
    assert len(report.layers) >= 200
    assert (tmp_path / "page.html").stat().st_size < MAX_PAGE_BYTES
    with opened(tmp_path / "page.html") as page:
        assert page.errors == []
        assert page.requests == []
        assert page.run("return document.querySelectorAll('main img, main script, iframe').length") == 0
        assert page.run("return document.querySelectorAll('#chart-layers .mark-rect path').length") >= 200
        assert "<img src=x" in page.run("return document.querySelector('#notes').innerText")
        assert page.run(_SIDEWAYS) == []


# ------------------------------------------------------------------------------------------------ as text


def test_a_page_needs_nothing_else_and_runs_its_own_scripts_alone() -> None:
    page = report_page(compiled_report())
    assert "default-src 'none'" in page
    policy = re.search(r"script-src ([^\"]+)\"", page)
    assert policy is not None
    assert all(source.startswith("'sha256-") for source in unescape(policy[1]).split())
    assert not re.search(r"<link|src=\"(?!data:)|@import|javascript:", page.partition("<script>")[0])


def test_hostile_names_end_no_element() -> None:
    head, _, data = report_page(compiled_report(HOSTILE)).partition('<script type="application/json" id="charts">')
    assert "<img" not in head
    assert "<script" not in head
    assert "\x1b" not in head + data.partition("</script>")[0]
    assert json.loads(data.partition("</script>")[0]).keys() == {"layers", "flash", "memory"}


def test_equal_reports_give_equal_pages() -> None:
    assert report_page(compiled_report()) == report_page(compiled_report())


@pytest.mark.qemu
def test_view_makes_the_same_page_later(made: Path) -> None:
    done = mcugen("view", made / "report.json", "-q")
    assert (done.code, done.out) == (0, "")
    assert (made / "report.html").read_bytes() == (made / "made.html").read_bytes()
    again = mcugen("view", made / "report.json", "-o", made / "again.html")
    assert "again.html" in again.err
    assert "mcugen report " in (made / "again.html").read_text()


def test_view_of_an_older_report_says_what_is_missing(tmp_path: Path) -> None:
    data = compiled_report().to_json()
    for key in ("buffers", "samples", "command"):
        del data[key]
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert read_report(tmp_path / "old.json").buffers is None
    assert mcugen("view", tmp_path / "old.json", "-q").code == 0
    assert "an earlier version of mcugen" in (tmp_path / "old.html").read_text()
    (tmp_path / "none.json").write_text("{}")
    done = mcugen("view", tmp_path / "none.json")
    assert done.code == 2
    assert "no version" in done.err


def test_the_verdict_tells_what_is_too_much() -> None:
    report = compiled_report()
    assert report.budget is not None
    tight = replace(report, budget=replace(report.budget, max_ram=100))
    assert [is_well for is_well, _ in verdict(report)] == [True, True, True]
    assert verdict(tight)[0] == (False, f"at least {report.ram.arena:,} bytes of RAM, of 100 allowed")


def test_a_layer_takes_no_more_ram_than_there_is() -> None:
    report = compiled_report()
    assert max(layer.ram for layer in report.layers) == report.ram.arena, "buffers over each other count once"


@pytest.mark.qemu
def test_code_lies_in_flash(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    (flash,) = [use for use in report["memories"] if use["name"] == "flash"]
    assert (flash["code"], flash["used"]) == (report["flash"]["code"], report["flash"]["total"])
    functions = report["flash"]["functions"]
    assert functions["digits_f32_run"] > 0
    assert sum(functions.values()) <= report["flash"]["code"]


@pytest.mark.qemu
def test_other_options_say_what_they_would_take(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    taken, *others = report["alternatives"]
    by_name = {other["options"]: other for other in others}
    assert tuple(by_name) == OTHERS
    assert taken["ram"] == report["ram"]["arena"] + report["ram"]["copies"]
    assert by_name["--optimize ram"]["ram"] <= taken["ram"]
    assert by_name["--optimize flash"]["flash_estimate"] <= taken["flash_estimate"]
    assert by_name["--optimize speed"]["instructions_estimate"] < by_name["--optimize flash"]["instructions_estimate"]
    assert by_name["--precision float32"]["flash_estimate"] > taken["flash_estimate"]


# ------------------------------------------------------------------------------------------------ samples


def test_samples_that_are_wrong_or_unsure() -> None:
    outputs = [np.array([[0.9, 0.1]]), np.array([[0.2, 0.8]]), np.array([[0.55, 0.45]])]
    inputs = [{"x": np.zeros((1, 1, 4, 4))}] * 3
    found = sample_results(outputs, inputs, np.array([0, 0, 1]))
    assert found is not None
    assert found.confusion == [[1, 1], [1, 0]]
    assert [(r.index, r.label, r.predicted, r.margin) for r in found.wrong] == [(1, 0, 1, 0.6), (2, 1, 0, 0.1)]
    assert [r.index for r in found.unsure] == [2, 1, 0]
    unlabelled = sample_results(outputs, inputs, None)
    assert unlabelled is not None
    assert (unlabelled.confusion, unlabelled.wrong) == (None, [])
    assert sample_results([np.zeros(1)], inputs[:1], None) is None
    assert sample_results([np.full(3, np.nan)], inputs[:1], None) is None
    named = sample_results(outputs, inputs, None, ["cat", "dog"])
    assert named is not None
    assert named.names == ["cat", "dog"]


def test_of_outputs_that_are_no_classes_the_farthest_are_shown() -> None:
    reference = [np.full((1, 4), 2.0)] * 3
    outputs = [reference[0] + 0.2, reference[0] + 1, reference[0]]
    found = farthest_results(outputs, reference, [{"x": np.zeros((1, 1, 4, 4))}] * 3)
    assert found is not None
    assert [(r.index, r.predicted, r.margin) for r in found.farthest] == [(1, None, 6.02), (0, None, 20.0)]
    page = report_page(replace(compiled_report(), samples=found))
    assert "sample 1: SQNR 6.0 dB" in page
    assert farthest_results(reference, reference, [{}] * 3) is None


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 1, 8, 6), (8, 6, 1)),
        ((1, 3, 8, 6), (8, 6, 3)),
        ((1, 8, 6, 3), (8, 6, 3)),
        ((1, 300), (1, 75, 1)),
        ((1, 1, 500, 4), (84, 4, 1)),
    ],
)
def test_what_a_sample_looks_like(shape: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    view = view_of(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    assert view is not None
    assert (view.height, view.width, view.channels) == expected
    assert picture(view).startswith("data:image/png;base64,")
    assert picture(replace(view, width=7777)) == ""


def test_what_is_no_picture() -> None:
    assert view_of(np.zeros((1, 4, 5, 6))) is None
    assert view_of(np.zeros((1, 2))) is None
