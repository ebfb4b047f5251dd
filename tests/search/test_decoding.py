# SPDX-License-Identifier: Apache-2.0
"""Weights that are stored by a code, and decoded to the arena before their layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compressible_models import coarse_weights, compressible_network
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx_models import assert_close, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.kernels.choose import AMPLE_MEMORY_FRACTION
from mcugen.kernels.portable.compressed_weights import CompressedConstant, compress_constant, split_base_256
from mcugen.lir.program import DECODE_WEIGHTS, Instr
from mcugen.search import goal_program
from mcugen.search.budget import use_of
from mcugen.search.weight_decompression import DECODED_TILE_BYTES
from mcugen.simulation import Setup, simulate

FLASH = CompileOptions("net", optimize="flash")
ROOMY = 2**20
"""Bytes of flash, of which there are enough then: nothing is decoded."""


def decoding(compiled: CompiledModel) -> list[Instr]:
    return [i for i in compiled.program.instrs if i.kernel == DECODE_WEIGHTS]


def decoded_bytes(compiled: CompiledModel, layer: str) -> int:
    """The weights of a layer and of its tiles of channels."""
    return sum(i.operand("y").buffer.nbytes for i in decoding(compiled) if i.name.split(".")[0] == layer)


def numbers_of(data: np.ndarray, count: int, remainder: int) -> list[int]:
    """As the code is described: bit by bit."""
    bits = iter("".join(f"{byte:08b}" for byte in data))
    found = []
    for _ in range(count):
        prefix = 0
        while prefix < 16 and next(bits) == "0":
            prefix += 1
        rest, number = (8, 0) if prefix == 16 else (remainder, prefix)
        for _ in range(rest):
            number = 2 * number + int(next(bits))
        found.append(-(number + 1) // 2 if number % 2 else number // 2)
    return found


def decoded(code: CompressedConstant) -> np.ndarray:
    """Words in rows, by what is stored of them."""
    rows, before, inner, after = (
        getattr(code.params, n) or 0 for n in ("rows", "words_before", "coded_size", "words_after")
    )
    numbers = np.array(numbers_of(code.coded, rows * inner * 4, code.params.remainder_bits), np.int64)
    words = (numbers.reshape(rows, inner, 4) << [0, 8, 16, 24]).sum(-1).astype(np.int64)
    assert code.plain is not None
    plain = code.plain.reshape(rows, before + after)
    return np.concatenate([plain[:, :before], words.astype(np.uint32).view(np.int32), plain[:, before:]], 1)


@settings(max_examples=60)
@given(arrays.arrays(np.int32, st.integers(1, 30), elements=st.integers(-(2**31), 2**31 - 1)))
def test_digits_are_those_of_the_words(words: np.ndarray):
    digits = split_base_256(words).astype(np.int64)
    assert ((digits << [0, 8, 16, 24]).sum(-1).astype(np.uint32).view(np.int32) == words).all()


def test_weights_that_are_packed_in_halves_are_digits_again():
    """As kernels pack two channels: 256 times the odd one and the even one, of which each may be negative."""
    codes = coarse_weights(1, 4, 50).astype(np.int64)
    halves = (codes[0::2] + 256 * codes[1::2]).astype("<i2")
    words = np.ascontiguousarray(halves).view("<i4")
    digits = split_base_256(words).reshape(2, -1, 2, 2)
    assert (digits[:, :, 0, 0] == codes[0::2, 0::2]).all()
    assert np.abs(digits[:, :, 1, 0] - codes[0::2, 1::2]).max() <= 1


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 3), st.integers(1, 20), st.integers(0, 3))
def test_words_come_back_with_what_is_not_coded(seed: int, rows: int, before: int, inner: int, after: int):
    random = np.random.default_rng(seed)
    words = random.integers(-(2**31), 2**31, (rows, before + inner + after)).astype(np.int32)
    words[:, before : before + inner] = coarse_weights(seed, rows, inner, 4).view(np.int32)[..., 0]
    code = compress_constant(words)
    assert code is not None
    assert (decoded(code) == words).all()


def test_biases_beside_weights_are_left_alone():
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (16, 36)).astype(np.int32)
    words[:, 2:-2] = coarse_weights(0, 16, 32, 4).view(np.int32)[..., 0]
    code = compress_constant(words)
    assert code is not None
    assert (code.params.words_before, code.params.coded_size, code.params.words_after) == (2, 32, 2)
    assert code.nbytes < 0.75 * words.nbytes


@pytest.mark.parametrize(
    "board",
    [
        "host",
        *(pytest.param(b, marks=pytest.mark.qemu) for b in ("nrf52840", "rt1060", "corstone300")),
        *(pytest.param(b, marks=pytest.mark.riscv) for b in ("rv32imc", "rv32imafc")),
    ],
)
def test_layers_compute_the_same_from_decoded_weights(board: str):
    model, hardware = compressible_network(), load_board(board)
    compiled = compile_model(model, hardware, FLASH)
    plain = compile_model(model, hardware, replace(FLASH, max_flash=ROOMY))
    assert len(decoding(compiled)) >= 2 and not decoding(plain)
    assert compiled.program.weights_size < 0.8 * plain.program.weights_size
    feeds = random_feeds(model)
    run = simulate(compiled.bundle, hardware, [feeds], measure=False, setup=Setup(sanitize=board == "host"))
    assert_close(run.outputs[0], interpret(compiled.graph, feeds))


def test_damaged_codes_write_no_more_than_the_weights():
    """Whatever the bits are, as many weights come of them: the sanitizer sees each write."""
    compiled = compile_model(compressible_network(), "host", FLASH)
    for instr in decoding(compiled):
        coded = instr.operand("x").buffer
        assert coded.data is not None
        coded.data = np.full(coded.count, 255, np.uint8)  # more codes than weights
    feeds = random_feeds(compressible_network())
    assert simulate(compiled.bundle, load_board("host"), [feeds], measure=False, setup=Setup(sanitize=True)).outputs


@pytest.mark.qemu
def test_decoding_takes_a_dozen_instructions_a_weight():
    """As the estimate has it, within a fifth."""
    model = compressible_network(64, 4.0, 4)
    compiled = compile_model(model, "nrf52840", FLASH)
    plain = compile_model(model, "nrf52840", replace(FLASH, max_flash=ROOMY))
    feeds, board = random_feeds(model), load_board("nrf52840")
    runs = [simulate(c.bundle, board, [feeds], per_layer=True) for c in (compiled, plain)]
    counts = [run.instructions or 0 for run in runs]
    layers = [
        dict(zip(c.bundle.layers, r.layer_instructions or (), strict=True))
        for c, r in zip((compiled, plain), runs, strict=True)
    ]
    sizes = {
        f"Conv_{name}": decoded_bytes(compiled, buffer) for name, buffer in (("c0", "t4"), ("c2", "t12"), ("c3", "t16"))
    }
    ratios = {name: (layers[0][name] - layers[1][name]) / nbytes for name, nbytes in sizes.items()}
    assert sum(sizes.values()) > 40_000 and max(ratios.values()) < 15.5, ratios
    estimates = [c.program.instructions_estimate or 0.0 for c in (compiled, plain)]
    assert estimates[0] - estimates[1] == pytest.approx(counts[0] - counts[1], rel=0.2)


def test_not_where_little_is_saved_or_weights_are_read_otherwise():
    assert not decoding(compile_model(compressible_network(spread=40.0), "nrf52840", FLASH))
    model = compressible_network()
    assert not decoding(compile_model(model, "nrf52840", replace(FLASH, optimize="balanced")))
    for more in ({"weights_reader": True}, {"updatable": True}, {"checked_indices": True}):
        assert not decoding(compile_model(model, "nrf52840", replace(FLASH, **more)))  # type: ignore[arg-type]


@pytest.mark.qemu
def test_a_balance_decodes_where_flash_falls_more_than_time_grows():
    """Of many pixels, beside which decoding is little; never where speed is the goal and nothing limits flash."""
    for side, count in ((12, 0), (32, 3)):
        model = compressible_network(32, side=side)
        compiled = compile_model(model, "nrf52840", replace(FLASH, optimize="balanced"))
        assert len(decoding(compiled)) == count
        assert not decoding(compile_model(model, "nrf52840", replace(FLASH, optimize="speed")))
    assert compiled.program.weights_size < 9_500
    feeds = random_feeds(model)
    assert_close(compiled.simulate([feeds]).outputs[0], interpret(compiled.graph, feeds))


def test_a_limit_of_flash_asks_for_codes():
    """By the kernels of the goal as far as that is enough."""
    model = compressible_network(24, side=24)
    fast = replace(FLASH, optimize="speed")
    limited = compile_model(model, "nrf52840", replace(fast, max_flash=18_000))
    assert decoding(limited) and use_of(limited.program, limited.board, fast).flash <= 18_000
    least = compile_model(model, "nrf52840", FLASH).program.instructions_estimate or 0.0
    assert (limited.program.instructions_estimate or 0.0) < 1.1 * least


def test_weights_whose_room_in_the_arena_is_too_large_stay_as_they_are():
    model = compressible_network(48)
    everywhere = compile_model(model, "nrf52840", FLASH)
    most = everywhere.program.arena_size - 4096
    within = compile_model(model, "nrf52840", replace(FLASH, max_ram=most))
    assert within.program.arena_size <= most
    assert len(decoding(within)) < len(decoding(everywhere))
    assert everywhere.program.arena_size <= AMPLE_MEMORY_FRACTION * load_board("nrf52840").total_ram


@pytest.mark.parametrize("board", ["host", pytest.param("nrf52840", marks=pytest.mark.qemu)])
def test_a_large_layer_is_decoded_in_portions(board: str, monkeypatch: pytest.MonkeyPatch):
    """Of its channels, each as large as a tile: the arena has no room for all of its weights at once."""
    model, hardware = compressible_network(48), load_board(board)
    with monkeypatch.context() as patch:
        patch.setattr(goal_program, "tile_for_decoding", lambda *_: None)
        whole = compile_model(model, hardware, FLASH)
    tiled, feeds = compile_model(model, hardware, FLASH), random_feeds(model)
    assert len(decoding(tiled)) > len(decoding(whole))
    assert max(i.operand("y").buffer.nbytes for i in decoding(tiled)) <= DECODED_TILE_BYTES
    assert tiled.program.arena_size < 0.8 * whole.program.arena_size
    assert tiled.program.weights_size < 1.02 * whole.program.weights_size
    run = simulate(tiled.bundle, hardware, [feeds], measure=False, setup=Setup(sanitize=board == "host"))
    assert_close(run.outputs[0], interpret(tiled.graph, feeds))


def test_balanced_decodes_where_nothing_else_fits():
    model = compressible_network()
    least = compile_model(model, "nrf52840", FLASH)
    plain = compile_model(model, "nrf52840", replace(FLASH, max_flash=ROOMY))
    uses = [use_of(c.program, load_board("nrf52840"), c.options).flash for c in (least, plain)]
    budget = (uses[0] + min(uses)) // 2 + 500
    assert uses[0] + 1000 < uses[1]
    made = compile_model(model, "nrf52840", CompileOptions("net", max_flash=budget))
    assert decoding(made)


def test_the_report_counts_decoding_with_its_layer():
    compiled = compile_model(compressible_network(), "nrf52840", FLASH)
    program = compiled.program
    for layer in program.layers():
        kernels = [program.instrs[i].kernel for i in layer]
        if DECODE_WEIGHTS in kernels:
            assert program.head(layer).kernel != DECODE_WEIGHTS
            assert program.macs_of(layer) > 0
