# SPDX-License-Identifier: Apache-2.0
"""What the report says of the arena."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from onnx_models import Net
from rich.console import Console

from mcugen.driver.compiler import compile_model
from mcugen.reporting.text import print_report


@pytest.mark.parametrize(
    ("arena", "bound", "note"),
    [
        (28_416, 28_416, "28,416 bytes, proven optimal: activations"),
        (28_416, 28_032, "28,416 bytes, at most 1.4 % above the least possible (lower bound 28,032): activations"),
        (0, 0, "0 bytes, proven optimal: activations"),
    ],
)
def test_the_arena_and_how_much_smaller_it_could_be(arena: int, bound: int, note: str):
    net = Net()
    net.output(net.op("Relu", net.input("x", 1, 64)))
    report = compile_model(net.plain_model()).report
    assert report.ram.arena == report.ram.arena_bound == 256
    console = Console(width=200, file=StringIO())
    print_report(replace(report, ram=replace(report.ram, arena=arena, arena_bound=bound)), console)
    assert isinstance(console.file, StringIO)
    assert note in " ".join(console.file.getvalue().replace("│", " ").split())
