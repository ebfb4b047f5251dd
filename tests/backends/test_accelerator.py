# SPDX-License-Identifier: Apache-2.0
"""A third party's accelerator, in a plug-in, computes parts of a network; and what else happens without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import Net
from test_recipes import recipes, steps

from mcugen.backends.partition import connected_parts, segments_of
from mcugen.core.board import Board, load_board
from mcugen.core.errors import ToolMissingError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.ops.offload import Offloaded


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Return the plug-in of the recipe, written to a folder of its own."""
    for kind, file, content in steps(recipes()["An accelerator"]):
        if kind != "sh":
            path = tmp_path / Path(file).relative_to("examples/plugin")
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
    return tmp_path / "toy_accelerator.py"


@pytest.fixture
def board(toy: Path) -> Board:
    """Return this computer with the toy accelerator."""
    return load_board(str(toy.with_name("toy_board.toml")))


def sums(*zeros: int) -> onnx.ModelProto:
    """Return a network: the softmax of softmax(a) + b; `zeros` are the zero points of a and b."""
    net = Net()
    a, b = (
        net.dequantize(net.input(name, 6, 10, dtype=np.int8), 1 / 256, zero)
        for name, zero in zip("ab", zeros, strict=True)
    )
    first = net.fake(net.op("Softmax", a), 1 / 256, -128)
    total = net.fake(net.op("Add", first, b), 1 / 256, -128)
    net.output(net.quantize(net.op("Softmax", total), 1 / 256, -128, out="y"), dtype=np.int8)
    return net.model()


def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.integers(-128, 128, (1, 6, 10)).astype(np.int8) for name in "ab"}


def test_a_plug_in_computes_a_segment_with_the_same_bits(board: Board, toy: Path):
    model = sums(3, -128)
    offloaded = compile_model(model, board, CompileOptions(npu="only", plugins=(toy,)))
    plain = compile_model(model, board, CompileOptions())
    assert [type(node.op) is Offloaded for node in offloaded.graph.nodes].count(True) == 1
    assert [i.kernel for i in offloaded.program.instrs].count("toy_add") == 1
    np.testing.assert_array_equal(offloaded.run(feeds(), sanitize=True)["y"], plain.run(feeds())["y"])


def test_the_report_says_where_layers_run_and_why(board: Board, toy: Path):
    figures = compile_model(sums(3, -128), board, CompileOptions(npu="only", plugins=(toy,))).report.accelerator
    assert figures is not None
    assert [segment.accelerator for segment in figures.segments] == ["Toy"]
    placed = {placement.operator: (placement.runs_on, placement.reason) for placement in figures.placements}
    assert placed["add"][0] == "Toy"
    assert placed["softmax"] == ("CPU", "no sum of two tensors of one shape")


def test_a_node_that_the_accelerator_does_not_take_stays(board: Board, toy: Path):
    compiled = compile_model(sums(3, 9), board, CompileOptions(npu="only", plugins=(toy,)))
    assert all(type(node.op) is not Offloaded for node in compiled.graph.nodes)
    assert any("another scale" in note for note in compiled.report.notes)


def test_without_a_known_accelerator(board: Board):
    with pytest.raises(UsageError, match="toy-1"):
        compile_model(sums(3, -128), board, CompileOptions(npu="auto"))
    with pytest.raises(UsageError, match="npu"):
        compile_model(sums(3, -128), "nrf52840", CompileOptions(npu="auto"))


def test_a_missing_compiler_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mcugen.backends.npu.ethos_u.vela.is_installed", lambda: False)
    with pytest.raises(ToolMissingError, match=r"mcugen\[ethos-u\]") as caught:
        compile_model(sums(3, -128), "corstone300", CompileOptions(npu="auto"))
    assert caught.value.exit_code == 8


def test_segments_have_no_path_that_leaves_them():
    graph = compile_model(sums(3, -128), "host").graph
    nodes = list(graph.nodes)
    outer = {node for node in nodes if node.op.name == "softmax"}
    parts = segments_of(graph, outer)
    assert [len(part) for part in parts] == [1, 1]  # the sum between them stays
    assert sum(map(len, segments_of(graph, set(nodes)))) == len(nodes) == len(segments_of(graph, set(nodes))[0])
    assert segments_of(graph, set()) == []
    assert connected_parts(nodes) == [nodes]
    assert connected_parts([nodes[0], nodes[-1]]) == [[nodes[0]], [nodes[-1]]]
