# SPDX-License-Identifier: Apache-2.0
"""Outputs may lie over inputs just as kernels declare: random layers of every kernel, run at the declared distances.

Nobody lists kernels here. The random layers are tried with each declared kernel that fits them; whatever an instruction
declares (overlaps, claims to work in place, blocks of rows or of shards) is run with output and input as near as that
permits, and farther apart, and compared with separate buffers: by plain C on this computer under the sanitizers, and by
the kernel itself under QEMU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from cmsis_nn_library import library
from declared_blocks import (
    BOARDS,
    blocks_of_all_boards,
    declared_blocks,
    forked_blocks,
    is_for_board,
    streamed_blocks,
)
from overlap_runs import Block, Claim, Finding, run_permitted, run_tighter
from shared_models import roomy
from test_overlaps import M55, Layer, lowered_by

from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN
from mcugen.reporting.kernels import declared_kernels

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]
"""Seeds of random layers: of the sweep all but the first, with more layers."""

SEPARATE = {
    "accumulate_rows_s8",
    "average_of_sums_s8",
    "bitcast",
    "cached_attention_f32",
    "cached_attention_f32_fpu",
    "cached_attention_s8",
    "cached_attention_s8_dsp",
    "cached_attention_s8_mve",
    "coded_product",
    "compress",
    "conv2d_s8_mve_8",
    "conv_direct",
    "conv_transpose",
    "decode_weights",
    "deform_conv",
    "dense_direct",
    "det",
    "detection",
    "fill",
    "fill_rows",
    "fill_with",
    "gather",
    "gather_elements",
    "grid_sample",
    "inverse",
    "max_roi_pool",
    "move",
    "ngrams",
    "nonmaxsuppression",
    "nonzero",
    "one_hot",
    "range",
    "rbf",
    "reverse_sequence",
    "roi_align",
    "shift_rows",
    "signal_energy",
    "signal_fft",
    "signal_filter_bank",
    "signal_log",
    "signal_square_root",
    "slice_at",
    "stream_get",
    "stream_put",
    "svm_coupling",
    "svm_duels",
    "svm_winner",
    "top_k",
    "translate",
    "trees_code",
    "trees_table",
    "unique",
    "unpool",
}
"""Kernels that declare nothing: their outputs never lie over inputs. `move` is the planner's own, which the verifier
replays byte by byte."""

LEARNING = {"descend", "descend_codes"}
"""Kernels of models that learn, which step weights in place: tests/training runs them so."""

LOOSE = {
    "dense_s8_s16_thumb1",
    "matmul_f32",
    "matmul_f64",
    "matmul_int",
    "matmul_s16",
    "matmul_s8",
    "matmul_s8_dsp",
    "matmul_s8_mve",
    "matmul_s8_thumb1",
    "resize_linear_f32",
    "resize_linear_s16",
    "resize_linear_s8",
    "resize_linear_s8_lanes",
    "resize_nearest",
}
"""Kernels that declare more distance than their plain C needs: products as if whole matrices were read to the end,
interpolations that copy equal rows, since the source of a copy may be no part of its target."""


def layers_of(seed: int) -> tuple[int, int]:
    """Return how many random layers of a kind there are, and with how many of them a kernel is tried."""
    return (24, 3) if seed == 0 else (80, 16)


def claims_of(blocks: Sequence[Block]) -> list[Claim]:
    """Return what blocks declare, each claim by itself."""
    return [claim for block in blocks for claim in block.claims()]


def assert_same(findings: Sequence[Finding]) -> None:
    """Every result is that of separate buffers, and nothing else has changed."""
    assert findings
    wrong = [f"{finding.claim} at {finding.lead}" for finding in findings if not finding.is_same]
    beyond = [f"{finding.claim} at {finding.lead}" for finding in findings if finding.is_beyond]
    assert not wrong, "the input is overwritten before it is read:\n" + "\n".join(wrong)
    assert not beyond, "memory of nobody is written:\n" + "\n".join(beyond)


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_c(seed: int):
    blocks = blocks_of_all_boards(seed, *layers_of(seed))
    assert_same(run_permitted(claims_of(blocks), load_board("host")))


@pytest.mark.qemu
@pytest.mark.riscv
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("board", BOARDS)
def test_code_for_a_cpu(board: str, seed: int):
    """Kernels of every CPU, which may have fast paths, in the sweep alone."""
    blocks = declared_blocks(seed, *layers_of(seed), board)
    kernels = [(block, block.head.declaration) for block in blocks]
    own = [b for b, kernel in kernels if kernel and is_for_board(kernel, board) and (seed > 0 or kernel.needs)]
    assert_same(run_permitted(claims_of(own), roomy(board), samples=2, align=4))


def test_every_kernel_is_reached():
    reached = {block.kernel for block in blocks_of_all_boards(0, *layers_of(0))}
    names = {kernel.name for kernel in declared_kernels() if not kernel.library}
    assert not names - reached - SEPARATE - LEARNING, (
        "kernels declare an overlap and are reached by no shape of this test, or declare none: add random layers that "
        "take them (random_layers.py), or list them among SEPARATE"
    )
    assert not reached & SEPARATE, "kernels that declare something do not belong among SEPARATE"
    assert names >= SEPARATE, "kernels that are no more do not belong among SEPARATE"


def test_a_tighter_lead_shows():
    """A declaration that is an element too short is noticed: of nearly all claims, and of every kernel of an order."""
    findings = run_tighter(claims_of(blocks_of_all_boards(0, *layers_of(0))))
    noticed = defaultdict[str, list[bool]](list)
    for finding in findings:
        noticed[finding.claim.block.kernel].append(not finding.is_same)
    blind = {kernel for kernel, shown in noticed.items() if len(shown) > 2 and not any(shown)}
    assert blind <= LOOSE, (
        "no tighter lead of these kernels shows: their layers are too small, or their orders too wide"
    )
    rest = [shown for kernel, each in noticed.items() if kernel not in LOOSE for shown in each]
    assert sum(rest) > 0.85 * len(rest)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_layers_by_rows(seed: int):
    claims = claims_of(streamed_blocks(np.random.default_rng(seed), 1 if seed == 0 else 6))
    assert_same(run_permitted(claims, load_board("host"), samples=3))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_layers_in_portions(seed: int):
    """Computed one side after the other, in both orders."""
    claims = claims_of(forked_blocks(seed, 4 if seed == 0 else 24, np.random.default_rng(seed)))
    assert_same(run_permitted(claims, load_board("host"), samples=3))


@pytest.mark.parametrize("board", ["host", pytest.param("nrf52840", marks=[pytest.mark.qemu, pytest.mark.slow])])
def test_calls_of_a_library(board: str):
    claims = claims_of(declared_blocks(0, 1, 6, "nrf52840", library=CMSIS_NN))
    assert_same(run_permitted(claims, roomy(board), library=library(load_board(board))))


IMAGES = [
    Layer(height, width, in_c, out_c, kernel=(1, 1), batch=batch)
    for batch in (2, 3, 4)
    for height, width in ((1, 1), (1, 3), (3, 1))
    for in_c, out_c in ((1, 4), (5, 8), (7, 9), (8, 16), (17, 17))
]
"""Images of an odd number of pixels."""

LINES = [
    Layer(1, width, 8, 8, (1, taps), pads=(0, 0, 0, right), dilations=(1, dilation), group=8, batch=batch)
    for batch in (1, 2, 3)
    for width, right in ((9, 0), (10, 1), (13, 1))
    for taps, dilation in ((2, 1), (2, 2), (2, 3), (3, 2))
]
"""Dilated lines, whose outputs are shorter than their inputs, by a multiple of the dilation or not."""


@pytest.mark.parametrize("board", ["host", pytest.param(M55, marks=pytest.mark.qemu)])
@pytest.mark.parametrize(
    ("kernel", "layers"),
    [
        ("conv2d_s16_mve", IMAGES),
        ("conv2d_s8_mve", IMAGES),
        ("depthwise_s8_mve_row", LINES),
        ("depthwise_s16_mve", LINES),
    ],
)
def test_batches(kernel: str, layers: list[Layer], board: str):
    program = lowered_by(layers, kernel, board=M55).program
    blocks = [Block(instr, (instr,), kernel) for instr in program.instrs if instr.overlaps or instr.inplace]
    assert_same(run_permitted(claims_of(blocks), roomy(board), align=2))
