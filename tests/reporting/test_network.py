# SPDX-License-Identifier: Apache-2.0
"""The network as it came and as it is compiled: rows, lanes, and the page in a browser."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from browser import needs_chromium, opened
from command_line import mcugen

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.reporting.network import MAX_LANES, Box, compiled_boxes, drawn, network_page, onnx_boxes

HOSTILE = "</li></script><script>alert(1)</script><img src=x onerror=alert(1)>"

RESIDUAL = """<ir_version: 10, opset_import: ["": 21]>
residual (float[1, 4] x) => (float[1, 4] y)
<float[4, 4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, float[1] s = {0.5}, int8[1] z = {0}> {
  [dq] c = DequantizeLinear(z, s)
  [a] h = MatMul(x, w)
  [b] r = Relu(h)
  [c] y = Add(r, x)
}"""


def residual() -> onnx.ModelProto:
    model = onnx.parser.parse_model(RESIDUAL)
    for node, name in zip(model.graph.node, ("constant", "first", "second", "sum"), strict=True):
        node.name = name
    return model


def box(name: str, *reads: str) -> Box:
    return Box("op", name, reads, (name,), "")


def test_a_chain_has_one_lane() -> None:
    found = drawn("", [box("a"), box("b", "a"), box("c", "b")])
    assert ([row.lane for row in found.rows], found.lanes, len(found.lines)) == ([0, 0, 0], 1, 2)


def test_a_tensor_keeps_its_lane_until_it_was_read_last() -> None:
    found = drawn("", [box("x"), box("b", "x"), box("c", "b"), box("sum", "c", "x"), box("end", "sum")])
    assert [row.lane for row in found.rows] == [0, 1, 1, 0, 0]
    assert found.lanes == 2
    assert len(found.lines) == 5


def test_what_is_read_twice_has_two_lines_and_what_nobody_reads_no_lane() -> None:
    found = drawn("", [box("x"), box("unread", "x"), box("y", "x"), box("sum", "y", "y")])
    assert len(found.lines) == 3
    assert max(row.lane for row in found.rows) == 1


def test_many_lanes_are_drawn_in_the_last_one() -> None:
    many = [box(f"x{i}") for i in range(30)]
    found = drawn("", [*many, box("sum", *(b.name for b in many))])
    assert found.lanes == MAX_LANES
    assert max(x for x, _ in found.dots) < found.width


def test_boxes_name_types_kernels_and_where_they_come_from() -> None:
    before = onnx_boxes(residual())
    assert [b.op for b in before] == ["input", "MatMul", "Relu", "Add", "output"], "constants have no row"
    assert before[1].type == "1x4 float"
    compiled = compile_model(residual(), "stm32f446")
    after = compiled_boxes(compiled.graph, compiled.program)
    layers = [b for b in after if b.op not in ("input", "output")]
    assert {name for b in layers for name in b.origin} == {"first", "second", "sum"}
    assert all(b.kernel for b in layers)


@needs_chromium
def test_a_node_shows_what_became_of_it(tmp_path: Path) -> None:
    onnx.save(residual(), tmp_path / "residual.onnx")
    page_file = tmp_path / "graph.html"
    done = mcugen("inspect", tmp_path / "residual.onnx", "--board", "stm32f446", "--html", page_file, "-q")
    assert done.code == 0, done.err
    for width in (1400, 400):
        with opened(page_file, width=width) as page:
            assert (page.errors, page.requests) == ([], [])
            assert page.run("return document.documentElement.scrollWidth") == width
            page.run("[...document.querySelectorAll('li')].find(li => li.textContent.includes('second')).focus()")
            shown = page.run("return [...document.querySelectorAll('li.shown')].map(li => li.textContent)")
            assert len(shown) == 2, "one on each side"
            assert "Relu" in shown[0]
            assert "second" in page.run("return document.getElementById('told').innerText")


@pytest.mark.parametrize("name", [HOSTILE, "\x1b[2J'\"&"])
def test_names_are_text(name: str) -> None:
    model = residual()
    for node in model.graph.node:
        node.name = name + node.op_type
    compiled = compile_model(model, "host", CompileOptions(name="net"))
    page = network_page(model, compiled.graph, compiled.program, name)
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "\x1b" not in page
