# SPDX-License-Identifier: Apache-2.0
"""Two rows per step in some layers of line-buffered groups: faster within a limit of RAM, with the same results."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_models import Net, optimized, random_feeds
from shared_models import MODELS

from mcugen import CompileOptions, compile_model, load_board
from mcugen.driver.compilation_trace import CompilationTrace
from mcugen.hir.graph import Graph
from mcugen.search import graph_variants
from mcugen.search.graph_transformations import GraphVariant, GroupedVariant, GroupingSearch
from mcugen.search.line_buffer_groups import Grouping, plan_ram_bytes
from mcugen.search.line_buffering import Streamings
from mcugen.search.problem import SearchProblem
from mcugen.search.row_pairs import RowPairs, with_row_pairs
from mcugen.search.trace import SearchTrace


def convolutions(num_blocks: int = 2) -> onnx.ModelProto:
    """Return residual blocks of 3x3 convolutions, which Winograd's kernels compute two rows at a time."""
    net, random = Net(), np.random.default_rng(1)

    def conv(x: str, in_channels: int) -> str:
        weights = net.dequantize(net.const(random.integers(-127, 128, (16, in_channels, 3, 3)), np.int8), 0.002)
        return net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1, 1, 1, 1])), 0.05)

    x = conv(net.dequantize(net.input("x", 1, 8, 24, 24, dtype=np.int8), 0.05), 8)
    for _ in range(num_blocks):
        x = net.fake(net.op("Add", x, conv(conv(x, 16), 16)), 0.05)
    net.output(net.quantize(net.op("GlobalAveragePool", x), 0.05, out="y"), dtype=np.int8)
    return net.model()


def single_rows(board: str) -> tuple[Graph, Streamings, Grouping]:
    """Return a graph with its grouping of least RAM, which computes single rows."""
    streamings = Streamings(load_board(board))
    graph = streamings.ordered(optimized(convolutions()))
    return graph, streamings, next(streamings.of(graph).plans())


def rows_of(grouping: Grouping) -> list[int]:
    return [layer.rows for stretch in grouping if stretch.op for layer in stretch.op.layers]


def instructions_of(grouping: Grouping) -> float:
    return sum(stretch.instructions for stretch in grouping)


def test_the_more_ram_there_is_the_more_layers_compute_two_rows() -> None:
    graph, streamings, single = single_rows("nrf52840")
    assert any(s.op for s in single) and max(rows_of(single)) == 1
    num_paired, instructions = list[int](), list[float]()
    limits = (plan_ram_bytes(single) - 1, 1.25 * plan_ram_bytes(single), 1.5 * plan_ram_bytes(single), math.inf)
    for max_ram in limits:
        found = with_row_pairs(streamings, graph, single, max_ram)
        assert [(s.first, s.end) for s in found] == [(s.first, s.end) for s in single]
        assert plan_ram_bytes(found) <= max(max_ram, plan_ram_bytes(single))
        num_paired.append(rows_of(found).count(2))
        instructions.append(instructions_of(found))
    assert num_paired == sorted(num_paired) and instructions == sorted(instructions, reverse=True)
    assert num_paired[0] == 0 < num_paired[-1]
    assert instructions[-1] < instructions[0] == instructions_of(single)


def test_a_cpu_without_faster_kernels_computes_single_rows() -> None:
    graph, streamings, single = single_rows("corstone300")
    assert not streamings.of(graph, in_pairs=True).pairs
    assert with_row_pairs(streamings, graph, single, math.inf) == single


def test_groups_get_two_rows_up_to_the_ram_of_the_busiest_one() -> None:
    graph, streamings, single = single_rows("nrf52840")
    problem = SearchProblem(graph, load_board("nrf52840"), CompileOptions(optimize="ram"))
    search, variant = GroupingSearch(problem, streamings), GraphVariant(graph)
    assert list(RowPairs().propose(GroupedVariant(variant, [single]), search)) == []
    busiest = 2 * plan_ram_bytes(single)
    with_larger_layers = [s if s.op else replace(s, ram=busiest) for s in single]
    (found,) = RowPairs().propose(GroupedVariant(variant, [with_larger_layers]), search)
    assert found.variant.kind == RowPairs.kind and plan_ram_bytes(found.groupings[0]) == busiest
    assert 2 in rows_of(found.groupings[0])
    assert list(RowPairs().propose(GroupedVariant(variant, []), search)) == []


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.qemu
def test_a_program_for_the_least_ram_is_faster_in_equal_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = MODELS / "mobilenet_v1_025_vww_int8_qdq.onnx", CompileOptions("net", optimize="ram")
    trace = CompilationTrace(search=SearchTrace())
    paired = compile_model(model, "corstone300", options, trace)
    monkeypatch.setattr(graph_variants, "FASTER_GROUPINGS", ())
    single = compile_model(model, "corstone300", options)
    feeds = random_feeds(onnx.load(model))
    runs = [compiled.simulate([feeds]) for compiled in (paired, single)]
    assert runs[0].instructions < 0.95 * runs[1].instructions
    assert paired.program.arena_size <= single.program.arena_size
    for name, expected in runs[1].outputs[0].items():
        np.testing.assert_array_equal(runs[0].outputs[0][name], expected)
    assert trace.search is not None
    (chosen,) = [entry for entry in trace.search.entries if entry.is_chosen]
    assert chosen.plan.row_groups
