# SPDX-License-Identifier: Apache-2.0
"""The memory map: what lies where while each layer runs, as data, text and picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from convolution_models import convolutions
from onnx_models import Net
from programs import Sketch, chain
from rich.console import Console

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.memory.plan import plan_memory
from mcugen.reporting.drawing import draw
from mcugen.reporting.listing import print_memory
from mcugen.reporting.memory import MemoryMap, memory_map
from mcugen.search.line_buffering import reasons_against_rows

HOSTILE = "</title><script>alert(1)</script>\x1b[2J&amp;\"'\u202e"


def mapped(sketch: Sketch) -> MemoryMap:
    plan_memory(sketch.program)
    return memory_map(sketch.program, "toy")


def branched() -> Sketch:
    """The peak is layer 1: x 160, small 16, large 128, scratch 32 bytes."""
    sketch = Sketch()
    sketch.input("x", 160)
    sketch.step("small", "x", nbytes=16)
    sketch.step("large", "x", "small", nbytes=128, scratch=32)
    sketch.output("large")
    return sketch


def test_a_row_for_each_layer_with_all_that_is_alive() -> None:
    memory = mapped(branched())
    assert [(row.name, row.nbytes, row.scratch) for row in memory.rows] == [("small", 176, 0), ("large", 336, 32)]
    assert [sorted(b.name for b in row.blocks) for row in memory.rows] == [
        ["small", "x"],
        ["large", "large.scratch", "small", "x"],
    ]
    assert {b.name: b.kind for b in memory.blocks} == {
        "x": "input",
        "small": "activation",
        "large": "activation",
        "large.scratch": "scratch",
    }


def test_the_peak_names_what_makes_it() -> None:
    memory = mapped(branched())
    assert (memory.peak.layer, memory.peak.name, memory.peak.nbytes) == (1, "large", 336)
    assert [b.name for b in memory.peak.blocks] == ["x", "large", "large.scratch", "small"]
    assert memory.arena == memory.bound == 336


def test_bytes_that_two_buffers_share_count_once() -> None:
    memory = mapped(chain(64, 64, inplace=True))
    assert [row.nbytes for row in memory.rows] == [64]
    assert len(memory.rows[0].blocks) == 2


def test_an_unused_input_makes_the_peak_at_the_call() -> None:
    sketch = chain(16, 16)
    sketch.input("unused", 512)
    memory = mapped(sketch)
    assert (memory.peak.layer, memory.peak.name, memory.peak.nbytes) == (None, "the call", 528)
    assert "528 bytes in the call" in printed(memory)


def test_areas_lie_one_behind_the_other() -> None:
    sketch = branched()
    sketch.buffers["large"].area = 1
    memory = mapped(sketch)
    assert memory.areas == (208, 128)
    assert next(b.offset for b in memory.blocks if b.name == "large") == 208
    assert memory.rows[1].nbytes == 336
    assert drawn(memory).count('class="axis"') == 3  # two axes and a border


def test_a_program_without_layers() -> None:
    sketch = Sketch()
    sketch.input("x", 32)
    memory = mapped(sketch)
    assert memory.rows == () and memory.peak.nbytes == 32
    ElementTree.fromstring(drawn(memory))


def test_json_has_layers_buffers_and_the_peak() -> None:
    found = json.loads(json.dumps(mapped(branched()).to_json()))
    assert [layer["name"] for layer in found["layers"]] == ["small", "large"]
    assert found["peak"]["layer"] == 1 and found["peak"]["buffers"][0] == {"name": "x", "kind": "input", "bytes": 160}
    lives = {b["name"]: (b["first"], b["last"]) for b in found["buffers"]}
    assert lives == {"x": (-1, 1), "small": (0, 1), "large": (1, 2), "large.scratch": (1, 1)}
    for layer in found["layers"]:
        assert all(b["offset"] + b["bytes"] <= found["arena"] for b in layer["buffers"])


def test_each_layer_of_a_model_has_a_row() -> None:
    compiled = compile_model(convolutions(), "stm32f746")
    memory = memory_map(compiled.program, "stm32f746")
    assert len(memory.rows) == len(compiled.program.layers()) == len(compiled.report.layers)
    assert max(b.end for b in memory.blocks) <= memory.arena == compiled.program.arena_size


def test_a_group_of_layers_is_one_row_at_its_busiest_moment() -> None:
    compiled = compile_model(convolutions(), "stm32f746", CompileOptions(optimize="ram"))
    memory = memory_map(compiled.program, "stm32f746")
    assert len(memory.rows) == len(compiled.program.layers())
    assert memory.peak.nbytes == max(row.nbytes for row in memory.rows) <= memory.arena
    ElementTree.fromstring(drawn(memory))


def test_what_stops_rows_is_named() -> None:
    net = Net()
    x = net.op("Conv", net.input("x", 1, 2, 8, 8), net.const(np.ones((8, 2, 3, 3))), pads=[1] * 4)
    net.output(net.op("Softmax", net.op("Flatten", x), out="y"))
    compiled = compile_model(net.model(), "nrf52840", CompileOptions(optimize="ram"))
    whole = reasons_against_rows(compiled.graph)
    reason = "softmax of 1x512 float32 to 1x512 float32 has no form by rows"
    assert reason in whole.values()
    assert not any("conv" in reason for reason in whole.values())
    memory = memory_map(compiled.program, "nrf52840", whole)
    assert [row.whole for row in memory.rows if "softmax" in row.op] == [reason]
    assert "by rows" in printed(memory)


# ---------------------------------------------------------------------------------------------- text and picture


def printed(memory: MemoryMap, width: int = 100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        print_memory(memory, console)
    return capture.get()


def drawn(memory: MemoryMap) -> str:
    return str(draw(memory))


def test_text_is_legible_at_100_columns() -> None:
    text = printed(mapped(branched()))
    assert all(len(line) <= 100 for line in text.splitlines())
    for words in ("336 bytes", "layer 1, 'large'", "large.scratch", "█"):
        assert words in text


def test_what_is_shared_is_marked_in_the_text() -> None:
    assert "▓" in printed(mapped(chain(64, 64, inplace=True))).split("\n", 5)[-1]
    assert "▓" not in printed(mapped(chain(64, 64))).partition("free")[2]


def rectangles(svg: str, kind: str) -> list[ElementTree.Element]:
    """With a tooltip: the legend's are not among them."""
    root = ElementTree.fromstring(svg)
    groups = root.iter("{http://www.w3.org/2000/svg}g")
    return [g[1] for g in groups if kind in g[1].attrib["class"].split()]


def test_a_rectangle_for_each_buffer_and_each_overlap() -> None:
    memory = mapped(chain(64, 64, 64, inplace=True))
    svg = drawn(memory)
    assert len(rectangles(svg, "block")) == len(memory.blocks) == 3
    assert len(rectangles(svg, "shared")) == 2
    assert not rectangles(drawn(mapped(chain(64, 64))), "shared")


def test_rectangles_lie_as_buffers_do() -> None:
    svg = drawn(mapped(branched()))
    by_kind = {kind: rectangles(svg, kind)[0].attrib for kind in ("input", "scratch")}
    heights = {kind: float(found["height"]) for kind, found in by_kind.items()}
    assert heights["input"] / heights["scratch"] == pytest.approx(5, rel=0.01)
    assert float(by_kind["input"]["width"]) > float(by_kind["scratch"]["width"])


def test_the_picture_marks_peak_axes_and_a_bound_below_the_arena() -> None:
    memory = mapped(branched())
    svg = drawn(memory)
    for words in ("peak: 336 bytes in large", "address in the arena, bytes", "0 small", "1 large", ">336<"):
        assert words in svg
    assert (
        "prefers-color-scheme: dark" in svg
        and "<script" not in svg
        and "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    )
    assert 'class="bound"' not in svg
    assert 'class="bound"' in drawn(replace(memory, bound=320))


def test_names_are_text_in_the_picture() -> None:
    sketch = branched()
    sketch.buffers["large"].name = sketch.program.instrs[1].name = HOSTILE
    svg = drawn(mapped(sketch))
    root = ElementTree.fromstring(svg)
    assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "<script" not in svg and "\x1b" not in svg and "\u202e" not in svg
    assert any("</title><scr" in (element.text or "") for element in root.iter())


def test_equal_maps_give_equal_bytes() -> None:
    assert drawn(mapped(branched())) == drawn(mapped(branched()))


def test_a_picture_of_moves_that_vanished() -> None:
    """The concatenation that the layers before it compute in place is no layer; time goes on behind them."""
    net = Net()
    h = net.op("MatMul", net.input("x", 1, 6), net.const(np.ones((6, 2))))
    net.output(net.op("Concat", h, net.op("Tanh", h), out="y", axis=1))
    compiled = compile_model(net.model(), "host")
    assert len(compiled.program.layers()) < len(compiled.program.instrs)
    root = ElementTree.fromstring(draw(memory_map(compiled.program, "host")))
    width = float(root.attrib["width"])
    blocks = [e.attrib for e in root.iter() if e.get("class", "").startswith("block") and e.get("height") != "12"]
    assert len(blocks) == 4  # the legend's boxes are 12 high
    assert all(float(b["x"]) + float(b["width"]) <= width and float(b["width"]) > 0 for b in blocks)
