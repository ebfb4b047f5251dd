# SPDX-License-Identifier: Apache-2.0
"""Segments written as TOSA compute our bits, by TOSA's reference model, and Vela compiles them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx_models import Net, optimized
from segments import (
    IMAGE,
    INT16_LAYERS,
    INT16_MEANS,
    ROUNDED_SEGMENTS,
    SEGMENTS,
    call,
    conv,
    dense,
    one_input,
    two_inputs,
)

from mcugen.backends.npu.ethos_u import vela
from mcugen.backends.npu.ethos_u.accelerator import ETHOS_U
from mcugen.backends.npu.ethos_u.legalization import fault_of, single_pass_sum, write_segment
from mcugen.backends.npu.ethos_u.segment_check import commands_fault
from mcugen.core.board import Board, board_names, load_board
from mcugen.core.errors import UsageError
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import run
from mcugen.hir.subgraph import body_of
from mcugen.hir.types import Array, DType
from mcugen.ops.matmul import Dense
from mcugen.ops.offload import CompiledSegment
from mcugen.ops.pointwise import Binary

BOARD = load_board("corstone300")
KINDS = ("ethos-u55-32", "ethos-u55-128", "ethos-u55-256", "ethos-u65-512", "ethos-u85-256")


def samples(graph: Graph, count: int = 3) -> list[list[Array]]:
    """Return random inputs over the whole range of the types, and inputs of extremes."""
    random = np.random.default_rng(5)
    found = [
        [
            random.integers(*v.type.dtype.limits, size=v.type.shape, endpoint=True).astype(v.type.dtype.numpy)
            for v in graph.inputs
        ]
        for _ in range(count)
    ]
    for end in (0, 1):
        found.append([np.full(v.type.shape, v.type.dtype.limits[end], v.type.dtype.numpy) for v in graph.inputs])
    return found


def run_tosa(graph: Graph, arrays: list[Array]) -> list[Array]:
    """Run a graph by TOSA's reference model."""
    model = pytest.importorskip("tosa_reference_model", reason="needs tosa-tools (pip install --no-deps tosa-tools)")
    shaped = [a.reshape(a.shape or (1,)) for a in arrays]
    results, status = model.run(write_segment(graph).serialize(), shaped)
    assert status == model.GraphStatus.TOSA_VALID
    return [np.asarray(r).reshape(v.type.shape) for r, v in zip(results, graph.outputs, strict=True)]


EXACT_SEGMENTS = {**SEGMENTS, **INT16_LAYERS, **INT16_MEANS}


@pytest.mark.parametrize("name", EXACT_SEGMENTS)
def test_the_npu_takes_it_with_our_bits(name: str):
    graph = EXACT_SEGMENTS[name]()
    assert {node.op.name: fault_of(node) for node in graph.nodes if fault_of(node)} == {}
    for arrays in samples(graph):
        for found, expected in zip(run_tosa(graph, arrays), run(graph, arrays), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("op_type", ["Add", "Sub"])
@pytest.mark.parametrize("scales", [(0.05, 0.013, 0.06), (0.9, 0.001, 1.0), (0.02, 0.021, 0.3), (0.37, 0.21, 0.1)])
def test_sums_with_short_factors_are_near_and_exact_on_the_npu(op_type: str, scales: tuple[float, float, float]):
    graph = two_inputs(op_type, (4, 256), (4, 256), scales)
    (node,) = graph.nodes
    arrays = [
        np.tile(np.arange(-128, 128).astype(np.int8), (4, 1)),
        np.random.default_rng(1).integers(-128, 128, (4, 256)).astype(np.int8),
    ]
    (exact,) = run(graph, arrays)
    short = ETHOS_U.adapt(node, BOARD.npu)
    assert isinstance(short, Binary)
    node.op = short
    fixed = short.fixed_sum(node.sig)
    assert fixed is not None
    one_pass = single_pass_sum(fixed)
    assert one_pass is not None and max(one_pass.factors) == 2**19
    (near,) = run(graph, arrays)
    np.testing.assert_array_equal(run_tosa(graph, arrays)[0], near)
    difference = np.abs(near.astype(int) - exact)
    assert difference.max() <= 1
    assert difference.mean() < 0.03


def board_with(kind: str) -> Board:
    """Return a board with an NPU of this kind."""
    assert BOARD.npu is not None
    return replace(BOARD, npu=replace(BOARD.npu, kind=kind))


def adapted(graph: Graph, kind: str) -> Graph:
    """Return a copy of a graph with the operators that the NPU computes by other roundings."""
    copy, npu = graph.copy(), board_with(kind).npu
    assert npu is not None
    for node in copy.nodes:
        node.op = ETHOS_U.adapt(node, npu) or node.op
    return copy


@pytest.mark.parametrize("name", [*ROUNDED_SEGMENTS, *INT16_LAYERS])
def test_other_roundings_are_near_and_exact_on_the_npu(name: str):
    graph = {**ROUNDED_SEGMENTS, **INT16_LAYERS}[name]()
    short = adapted(graph, "ethos-u85-256")
    assert any(fault_of(node) for node in graph.nodes) == (name in ROUNDED_SEGMENTS)
    assert {node.op.name: fault_of(node) for node in short.nodes if fault_of(node)} == {}
    for arrays in samples(graph):
        (found,), (near,), (exact,) = run_tosa(short, arrays), run(short, arrays), run(graph, arrays)
        np.testing.assert_array_equal(found, near)
        difference = np.abs(near.astype(int) - exact)
        assert difference.max() <= 1
        assert near.dtype == np.int16 or difference.mean() < 0.03


@pytest.mark.parametrize("op_type", ["Add", "Sub"])
def test_sums_of_equal_scales_stay(op_type: str):
    (node,) = two_inputs(op_type, (4, 256), (4, 256), (0.02, 0.02, 0.3)).nodes
    assert ETHOS_U.adapt(node, BOARD.npu) is None


@pytest.mark.skipif(not vela.is_installed(), reason="needs ethos-u-vela (pip install 'mcugen[ethos-u]')")
@pytest.mark.parametrize("kind", KINDS)
def test_vela_compiles_all_of_it_with_our_bits(kind: str):
    board = board_with(kind)
    graphs = {name: adapted(build(), kind) for name, build in {**ROUNDED_SEGMENTS, **INT16_LAYERS}.items()}
    graphs |= {name: build() for name, build in SEGMENTS.items()}
    if "u85" not in kind:
        assert not any(ETHOS_U.adapt(node, board.npu) for name in INT16_LAYERS for node in INT16_LAYERS[name]().nodes)
        graphs |= {name: build() for name, build in INT16_MEANS.items()}
    files = [write_segment(graph).serialize() for graph in graphs.values()]
    compiled = dict(zip(graphs, vela.compile_tosa(files, board), strict=True))
    assert {name: text for name, text in compiled.items() if isinstance(text, str)} == {}
    again = vela.compile_tosa(files, board)
    for name, ours, theirs in zip(graphs, compiled.values(), again, strict=True):
        assert not isinstance(ours, str) and not isinstance(theirs, str)
        np.testing.assert_array_equal(ours.commands, theirs.commands, name)
        np.testing.assert_array_equal(ours.weights, theirs.weights, name)
        assert ours.cycles > 0
        assert commands_fault(graphs[name], ours) == "", name
        sizes = [v.type.nbytes for v in graphs[name].inputs], [v.type.nbytes for v in graphs[name].outputs]
        assert ([p.nbytes for p in ours.inputs], [p.nbytes for p in ours.outputs]) == sizes


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_int32_sums(kind: str):
    """The last layer of a network with float outputs gives the sums of products."""
    net = Net()
    net.output(dense(7, 40)(net, net.dequantize(net.input("x", 3, 40, dtype=np.int8), 0.05, 3)))
    graph = optimized(net.model())
    body, _, _ = body_of(graph, [node for node in graph.nodes if isinstance(node.op, Dense)])
    assert body.outputs[0].type.dtype is DType.INT32 and fault_of(body.nodes[0]) == ""
    for arrays in samples(body):
        np.testing.assert_array_equal(run_tosa(body, arrays)[0], run(body, arrays)[0])
    (segment,) = ETHOS_U.compile([body], board_with(kind))
    assert isinstance(segment, CompiledSegment), segment


def test_boards_with_an_ethos_u_have_a_known_one():
    npus = {name: load_board(name).npu for name in board_names()}
    kinds = {name: vela.architecture(npu)[0] for name, npu in npus.items() if npu is not None}
    assert {"corstone300", "alif_e7", "ra8p1", "corstone320"} <= set(kinds)
    with pytest.raises(UsageError, match="ethos-u55-128"):
        vela.architecture(replace(npus["ra8p1"], kind="ethos-u55-100"))


LEFT = {
    "int16": (
        one_input((1, 40), call("Sigmoid"), scales=(0.001, 1 / 32768), zeros=(0, 0), dtype=np.int16),
        "interpolate",
    ),
    "softmax": (one_input((1, 40), call("Softmax"), scales=(0.05, 1 / 256), zeros=(0, -128)), "rounds it differently"),
    "softmax of columns": (one_input((1, 40, 3), call("Softmax", axis=1), zeros=(0, -128)), "another axis"),
    "reversal": (one_input((1, 40), call("Slice", [39], [-50], [1], [-1]), zeros=(3, 3)), "negative steps"),
    "depthwise, stride 4": (one_input(IMAGE, conv(8, (5, 5), channels=8, group=8, strides=[4, 4])), "stride"),
    "padding in an average": (
        one_input(IMAGE, call("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
        "different numbers of elements",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays_on_the_cpu_says_why(name: str):
    graph, reason = LEFT[name]
    faults = [fault_of(node) for node in graph.nodes]
    assert any(reason in fault for fault in faults), faults
