# SPDX-License-Identifier: Apache-2.0
"""Networks of inverted residuals and U-Nets as exports of TFLite have them: how little RAM they need, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from mobile_networks import MCUNET_VWW, MOBILENET_V2_035, Block, mobile_net, u_net
from onnx_models import Net, assert_close, outputs_in_c, random_feeds

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.verify import verify_graph
from mcugen.lir.program import Control
from mcugen.search import goal_program
from mcugen.search.graph_transformations import GraphVariant
from mcugen.search.plan import divided_layers
from mcugen.search.problem import SearchProblem
from mcugen.search.spatial_tiling import tile_columns


def least(model: onnx.ModelProto, board: str, **options: bool) -> CompiledModel:
    return compile_model(model, board, CompileOptions(optimize="ram", **options))


def one_by_one(model: onnx.ModelProto, board: str) -> CompiledModel:
    """With each layer apart, as `speed` has them."""
    return compile_model(model, board, CompileOptions(optimize="speed"))


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", ["nrf52840", "rp2040"])
def test_inverted_residuals_need_little_more_than_their_largest_window(board: str) -> None:
    """Or even less: seven rows of the widest expanded tensor and what is expanded there are 26,240 bytes."""
    model = mobile_net(is_integer=True)
    compiled = least(model, board)
    assert compiled.program.arena_size < 26_000
    assert compiled.program.arena_size < 0.4 * one_by_one(model, board).program.arena_size


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", ["nrf52840", "rp2040"])
def test_balanced_computes_by_rows_what_pays(board: str) -> None:
    """Much less RAM for some more instructions; and not where a few bytes would cost many."""
    model = mobile_net(is_integer=True)
    found, plain = compile_model(model, board), one_by_one(model, board)
    assert any(instr.control is Control.STREAM for instr in found.program.instrs)
    assert found.program.arena_size < 0.4 * plain.program.arena_size
    assert (found.report.instructions_estimate or 0) < 1.25 * (plain.report.instructions_estimate or 0)
    small = compile_model(mobile_net((32, 32), MCUNET_VWW[:4], is_integer=True), board)
    assert not any(instr.control is Control.STREAM for instr in small.program.instrs)


@pytest.mark.parametrize("blocks", [MCUNET_VWW[:2], MOBILENET_V2_035[:3]], ids=["7x7", "residual"])
def test_patches_give_the_same(blocks: Sequence[Block]) -> None:
    model = mobile_net((22, 70), blocks, is_integer=True)
    graph = compile_model(model).graph
    patched = tile_columns(graph, graph.nodes)
    assert patched is not None and len(patched.nodes) > len(graph.nodes)
    assert len(divided_layers(graph, patched)) == 1 and divided_layers(graph, graph) == ()
    verify_graph(patched)
    feeds = random_feeds(model)
    assert_close(interpret(patched, feeds), interpret(graph, feeds))


@pytest.mark.spread(3)
@pytest.mark.parametrize("board", ["nrf52840", "rp2040", "corstone300", "rv32imc"])
def test_patches_on_the_target(board: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where convolutions have other padding at the left than at the right."""
    model = mobile_net((10, 66), MCUNET_VWW[:2], is_integer=True)

    def in_patches_alone(problem: SearchProblem, *_: object) -> list[GraphVariant]:
        graph = tile_columns(problem.graph, problem.graph.nodes)
        assert graph is not None
        return [GraphVariant(graph)]

    monkeypatch.setattr(goal_program, "graph_variants", in_patches_alone)
    compiled, feeds = least(model, board), random_feeds(model)
    assert sum(instr.name.endswith((".0", ".1")) for instr in compiled.program.instrs) >= 2 * 5
    assert_close(compiled.simulate([feeds], measure=False).outputs[0], interpret(compiled.graph, feeds))


def test_what_reads_whole_images_has_no_patches() -> None:
    graph = compile_model(mobile_net((22, 70), MCUNET_VWW[:2], is_integer=True)).graph
    assert tile_columns(graph, [node for node in graph.nodes if node.op.name != "conv"]) is None
    assert tile_columns(compile_model(mobile_net((16, 16), MCUNET_VWW[:2])).graph, graph.nodes[:0]) is None


@pytest.mark.parametrize("options", [{"kernels": ("conv2d_s8",)}, {"weights_reader": True, "weights_blob": True}])
def test_balanced_leaves_layers_apart_where_they_are_asked_for(options: dict[str, Any]) -> None:
    found = compile_model(mobile_net(is_integer=True), "nrf52840", CompileOptions(**options))
    assert not any(instr.control is Control.STREAM for instr in found.program.instrs)


def test_pads_between_conversions_are_part_of_windows() -> None:
    compiled = compile_model(mobile_net(blocks=MCUNET_VWW[:3]), "nrf52840")
    assert not {"fill_s8", "fill", "pad"} & {instr.kernel for instr in compiled.program.instrs}
    assert "pad" not in {node.op.name for node in compiled.graph.nodes}


@pytest.mark.spread(2)
@pytest.mark.parametrize("board", ["nrf52840", "corstone300"])
def test_a_u_net_needs_little_more_than_half(board: str) -> None:
    """Of the last concatenation beside both of its parts; layer by layer, one of these spreads out in place."""
    copied = 2 * 32 * 32 * (16 + 16)
    model = u_net(is_integer=True)
    arenas = [found.program.arena_size for found in (least(model, board), compile_model(model, board))]
    assert arenas[0] <= 0.52 * copied
    assert arenas[0] < arenas[1] <= 0.9 * copied


@pytest.mark.spread(2)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_same_bits_with_the_least_ram(is_streamed: bool) -> None:
    model = mobile_net((32, 32), MCUNET_VWW[:7], is_integer=True)
    compiled = least(model, "host", stream_input=is_streamed)
    feeds = random_feeds(model)
    assert_close(outputs_in_c(compiled, feeds), interpret(compile_model(model).graph, feeds))


def test_the_same_bits_of_a_u_net() -> None:
    model = u_net(16, (8, 12, 16), is_integer=True)
    feeds = random_feeds(model)
    assert_close(outputs_in_c(least(model, "host"), feeds), interpret(compile_model(model).graph, feeds))


@pytest.mark.slow
def test_a_large_image() -> None:
    """Of which the image alone takes 150,528 bytes."""
    model = mobile_net((224, 224), is_integer=True)
    assert least(model, "nrf52840").program.arena_size < 165_000
    assert least(model, "nrf52840", stream_input=True).program.arena_size < 105_000


def test_a_real_input_may_as_well_be_codes() -> None:
    model = mobile_net((40, 40), MCUNET_VWW[:4])
    codes = least(model, "nrf52840", integer_io=True)
    assert codes.program.inputs[0].dtype.numpy == np.int8
    assert codes.program.arena_size < 0.6 * least(model, "nrf52840").program.arena_size


@pytest.mark.parametrize("operator", ["DepthToSpace", "SpaceToDepth"])
def test_pixels_of_channels_by_rows(operator: str) -> None:
    """Between convolutions that make many channels of the larger image."""
    net = Net()
    random, (inputs, between) = np.random.default_rng(0), (4, 32) if operator == "DepthToSpace" else (2, 6)
    after = between // 4 if operator == "DepthToSpace" else between * 4

    def conv(x: str, inputs: int, outputs: int) -> str:
        weights = net.dequantize(net.const(random.integers(-90, 91, (outputs, inputs, 3, 3)), np.int8), 0.01)
        return net.fake(net.op("Conv", x, weights, pads=[1] * 4), 0.05)

    x = net.dequantize(net.input("x", 1, inputs, 24, 24, dtype=np.int8), 0.05, 3)
    moved = net.op(operator, conv(x, inputs, between), blocksize=2)
    mean = net.op("GlobalAveragePool", conv(conv(moved, after, 4), 4, 4))
    net.output(net.quantize(mean, 0.05, 0, out="y"), dtype=np.int8)
    model = net.model()
    compiled, plain = least(model, "host"), compile_model(model)
    assert compiled.program.arena_size < 0.8 * plain.program.arena_size
    feeds = random_feeds(model)
    assert_close(outputs_in_c(compiled, feeds), interpret(plain.graph, feeds))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_time_is_rows_where_an_image_has_one_line(is_streamed: bool) -> None:
    """As exports of Keras' layers of one dimension have it."""
    net, random = Net(), np.random.default_rng(0)

    def conv(x: str, inputs: int, outputs: int, **attributes: object) -> str:
        groups = int(str(attributes.get("group", 1)))
        weights = net.const(random.integers(-90, 91, (outputs, inputs // groups, 1, 5)), np.int8)
        y = net.op("Conv", x, net.dequantize(weights, 0.01), **attributes)
        return net.fake(net.op("Relu", y), 0.05, -128)

    x = net.dequantize(net.input("x", 1, 6, 1, 200, dtype=np.int8), 0.05, 3)
    x = conv(x, 6, 24, pads=[0, 2, 0, 2])
    y = conv(x, 24, 24, pads=[0, 4, 0, 4], dilations=[1, 2], group=24)
    x = net.op("MaxPool", net.fake(net.op("Add", x, y), 0.05), kernel_shape=[1, 2], strides=[1, 2])
    x = conv(net.op("AveragePool", x, kernel_shape=[1, 2], strides=[1, 2]), 24, 16, pads=[0, 2, 0, 2], strides=[1, 2])
    net.output(net.quantize(net.op("GlobalAveragePool", net.fake(x, 0.05)), 0.05, 0, out="y"), dtype=np.int8)
    model = net.model()
    plain, compiled = compile_model(model), least(model, "host", stream_input=is_streamed)
    assert compiled.program.arena_size < 0.5 * plain.program.arena_size
    feeds = random_feeds(model)
    assert_close(outputs_in_c(compiled, feeds), interpret(plain.graph, feeds))
