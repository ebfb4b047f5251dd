# SPDX-License-Identifier: Apache-2.0
"""Options that nobody gave, and that would make a call faster: told where they would, with what they save."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_models import Net, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation import simulate

H7 = load_board("stm32h743")
PICO = load_board("rp2350")
BALANCED = CompileOptions("net")


def dense(*widths: int) -> onnx.ModelProto:
    """Layers of int8 whose weights are read once a call."""
    random, net = np.random.default_rng(5), Net()
    x = net.fake(net.input("x", 1, widths[0]), 0.05, 0)
    for index, (before, after) in enumerate(itertools.pairwise(widths)):
        weights = net.dequantize(net.const(random.integers(-127, 128, (before, after)), np.int8), 0.003)
        x = net.fake(net.op("MatMul", x, weights), 0.1 * (index + 1), 0)
    net.output(x)
    return net.model()


def hints(found: CompiledModel, option: str) -> list[str]:
    return [note for note in found.report.notes if note.startswith(option) and "would" in note]


def told_cycles(hint: str) -> int:
    found = re.search(r"about ([\d,]+) cycles a call", hint)
    assert found
    return int(found[1].replace(",", ""))


@pytest.mark.qemu
def test_all_ram_is_hinted_at_with_what_it_saves():
    """By the simulation, within a third; and no longer where it was asked for."""
    model = dense(256, 256, 256)
    feeds = [random_feeds(model)]
    plain, spread = (
        compile_model(model, H7, replace(BALANCED, place=place)) for place in (Places(), Places(arena=("auto",)))
    )
    (hint,) = hints(plain, "--place auto")
    assert "'dtcm'" in hint
    assert not hints(spread, "--place auto")
    cycles = []
    for found in (plain, spread):
        made = simulate(found.bundle, H7, feeds, per_layer=False, cycles=True)
        assert made.cycles is not None
        cycles.append(made.cycles.total)
    saved = cycles[0] - cycles[1]
    assert 2 / 3 < told_cycles(hint) / saved < 4 / 3


@pytest.mark.parametrize("options", [{"optimize": "ram"}, {"place": Places(weights="flash")}], ids=["ram", "told"])
def test_where_places_are_settled_there_is_no_hint(options: dict[str, object]):
    assert not hints(compile_model(dense(256, 256, 256), H7, replace(BALANCED, **options)), "--place auto")


def test_memory_that_keeps_pace_calls_for_no_hint():
    assert not hints(compile_model(dense(64, 64), load_board("corstone300"), BALANCED), "--")


def test_copies_by_dma_are_hinted_at_where_they_may_be():
    """Weights that start-up may not copy, and layers that compute longer than it takes to read the next one's."""
    options = replace(BALANCED, optimize="speed", max_ram=60_000)
    model = convolutions(side=8, channels=32)
    (hint,) = hints(compile_model(model, PICO, options), "--copy-ahead")
    assert told_cycles(hint) > 0
    asked = compile_model(model, PICO, replace(options, copy_ahead=True))
    assert not hints(asked, "--copy-ahead")
    assert not hints(compile_model(model, PICO, replace(options, steps=True)), "--copy-ahead")
    assert not hints(compile_model(model, replace(PICO, dma_reads=()), options), "--copy-ahead")


def test_an_input_of_floats_that_is_most_of_the_arena_may_be_codes():
    """A picture that is only quantized: the hint's figures are those of the arena, and of the input as codes."""
    model = convolutions(side=32, channels=3)
    plain = compile_model(model, H7, BALANCED)
    (hint,) = hints(plain, "--integer-io")
    size, arena, codes = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]+\d", hint))
    assert (size, codes) == (32 * 32 * 3 * 4, 32 * 32 * 3)
    assert arena == plain.program.arena_size
    coded = compile_model(model, H7, replace(BALANCED, integer_io=True))
    assert not hints(coded, "--integer-io")
    raw = compile_model(model, H7, replace(BALANCED, input_pipeline="image=rgb565, crop=center"))
    assert not hints(raw, "--integer-io")
    assert sum("--integer-io" in note for note in raw.report.notes) == 1, "the pipeline's own"
    assert coded.program.arena_size < arena


def test_small_inputs_and_small_shares_are_not_worth_a_word():
    assert not hints(compile_model(convolutions(side=8, channels=3), H7, BALANCED), "--integer-io")
    net = Net()
    x = net.fake(net.input("x", 1, 1, 32, 32), 0.05, 0)
    weights = net.dequantize(net.const(np.ones((64, 1, 3, 3)), np.int8), 0.01)
    net.output(net.fake(net.op("GlobalAveragePool", net.fake(net.op("Conv", x, weights), 0.1, 0)), 0.1, 0))
    assert not hints(compile_model(net.model(), H7, replace(BALANCED, optimize="speed")), "--integer-io")


def convolutions(side: int, channels: int) -> onnx.ModelProto:
    """Three of int8, one behind the other."""
    random, net = np.random.default_rng(5), Net()
    x = net.fake(net.input("x", 1, channels, side, side), 0.05, 0)
    for scale in (0.2, 0.5, 1.0):
        weights = random.integers(-127, 128, (channels, channels, 3, 3))
        x = net.op("Conv", x, net.dequantize(net.const(weights, np.int8), 0.003), pads=[1, 1, 1, 1])
        x = net.fake(x, scale, 0)
    net.output(x)
    return net.model()


def whole_network(kept: bool) -> onnx.ModelProto:
    """Two layers of whole weights in floats, as NEMO writes them; `kept`: the first ones are no whole numbers."""
    random, net = np.random.default_rng(2), Net(17)
    first = random.integers(-9, 10, (8, 1, 3, 3)) * (1.0 if kept else 1.01)
    x = net.op("Conv", net.input("image", 1, 1, 9, 9), net.const(first))
    factors, shifts = (
        net.const(random.integers(low, high, (8, 1, 1)).astype(np.float32)) for low, high in ((9, 19), (-9, 9))
    )
    total = net.op("Add", net.op("Mul", x, factors), shifts)
    codes = net.op("Floor", net.op("Div", total, net.const(1024.0)))
    codes = net.op("Clip", codes, net.const(0.0), net.const(127.0))
    net.output(net.op("Conv", codes, net.const(random.integers(-9, 10, (4, 8, 3, 3)).astype(np.float32))))
    return net.model()


def test_a_network_of_whole_numbers_asks_for_the_type_of_its_input():
    (hint,) = hints(compile_model(whole_network(True), options=BALANCED), "--input-type")
    assert "'image'=uint8" in hint and "33% of the multiply-accumulates" in hint
    typed = replace(BALANCED, input_types={"image": "uint8"})
    assert not hints(compile_model(whole_network(True), options=typed), "--input-type")
    assert not hints(compile_model(whole_network(False), options=BALANCED), "--input-type")
