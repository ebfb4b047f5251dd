# SPDX-License-Identifier: Apache-2.0
"""Weights that a layer reads again and again from slow flash, copied to the arena while the layer runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from mobile_networks import u_net
from onnx_models import Net, assert_close, outputs_in_c, random_feeds
from shared_models import MODELS, SHARED

from mcugen.backends.cpu.pipeline import Kernels
from mcugen.core.board import Board, board_names, load_board
from mcugen.core.errors import DoesNotFitError, UsageError, VerificationError
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.target import target_of
from mcugen.hir.interpreter import interpret
from mcugen.kernels.choose import AMPLE_MEMORY_FRACTION, MAX_BALANCED_SLOWDOWN, MIN_TOTAL_GAIN
from mcugen.lir.program import (
    BEGIN_WEIGHTS,
    END_WEIGHTS,
    READ_ROWS,
    STAGE_WEIGHTS,
    TRANSFER_KERNELS,
    Access,
    Control,
    Program,
)
from mcugen.memory.constant_stalls import constant_stall_cycles
from mcugen.memory.place import copied_bytes
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.search import candidates, weight_staging
from mcugen.search.objective import Objective
from mcugen.search.problem import SearchProblem
from mcugen.search.program_search import ProgramSearch
from mcugen.simulation import simulate
from mcugen.simulation.timings import TIMINGS

L4R5 = load_board("stm32l4r5")
HOST = replace(
    load_board("host"),
    clock_hz=L4R5.clock_hz,
    memories=L4R5.memories,
    caches=L4R5.caches,
    **{f"{part}_memory": getattr(L4R5, f"{part}_memory") for part in ("arena", "weights", "code", "data")},
).with_flash_waits(30)
"""This computer, if its memories were those of the board, and flash slower by far."""
SPEED = CompileOptions("net", optimize="speed")


LARGE = (14, 48)
"""Of weights that take more than the image."""


def convolutions(side: int = 16, channels: int = 16) -> onnx.ModelProto:
    """Three convolutions; the weights of each are gone through for every few of its pixels. The image is the peak."""
    random, net = np.random.default_rng(3), Net()
    x = net.fake(net.input("x", 1, 3, 2 * side, 2 * side), 0.05, 0)
    for name, before, stride in (("a", 3, 2), ("b", channels, 2), ("c", channels, 1)):
        weights = net.dequantize(net.const(random.integers(-127, 128, (channels, before, 3, 3)), np.int8), 0.003)
        x = net.fake(net.op("Conv", x, weights, pads=[1] * 4, strides=[stride] * 2, out=name), 0.2, 4)
    net.output(x)
    return net.model()


def copied(compiled: CompiledModel) -> list[int]:
    """Bytes of each copy."""
    return [i.operand("x").buffer.nbytes for i in compiled.program.instrs if i.kernel == STAGE_WEIGHTS]


def compiled(board: Board = L4R5, size: tuple[int, int] = (16, 16), **options: object) -> CompiledModel:
    return compile_model(convolutions(*size), board, replace(SPEED, **options))  # type: ignore[arg-type]


def test_what_is_read_again_is_copied_and_told():
    found = compiled()
    assert len(copied(found)) >= 2
    text = found.bundle.files["net.c"]
    assert text.count("    MCUGEN_STAGE(") == len(copied(found))
    assert "weights to where they are read faster" in text
    assert {row.kernel for row in found.report.layers}.isdisjoint({STAGE_WEIGHTS})


def test_balanced_takes_room_that_is_free_and_no_more(monkeypatch: pytest.MonkeyPatch):
    found = compiled(optimize="balanced")
    assert copied(found)
    monkeypatch.setattr(candidates, "staged", lambda attempt, *_: attempt.built)
    without = compiled(optimize="balanced")
    assert not copied(without)
    assert found.program.arena_size == without.program.arena_size
    assert found.program.arena_bound >= without.program.arena_bound


def test_an_arena_that_grows_for_copies_is_the_least_for_them():
    """A plan that merely fits is not taken: it is that which `plan_memory` gives when told of no limit."""
    program = compiled(size=LARGE).program
    assert program.arena_size > compiled(size=LARGE, optimize="balanced").program.arena_size
    taken = program.arena_size
    plan_memory(program)
    assert program.arena_size == taken


def test_speed_grows_the_arena_within_the_budget():
    free = compiled(size=LARGE)
    least = compiled(size=LARGE, optimize="balanced").program.arena_size
    assert least < free.program.arena_size
    tight = compiled(size=LARGE, max_ram=free.program.arena_size - 16)
    assert least <= tight.program.arena_size < free.program.arena_size
    assert sum(copied(tight)) < sum(copied(free))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(lambda: compiled(L4R5.with_flash_waits(0)), id="flash-keeps-pace"),
        pytest.param(lambda: compiled(load_board("stm32h7a3")), id="a-cache-holds-them"),
        pytest.param(lambda: compiled(place=Places(weights="sram")), id="weights-in-ram"),
        pytest.param(lambda: compiled(place=Places(hot_weights=("sram", 20000))), id="the-user-places-them"),
        pytest.param(lambda: compiled(optimize="flash"), id="least-flash"),
        pytest.param(lambda: compiled(load_board("host")), id="no-timing"),
    ],
)
def test_nothing_is_copied_that_gains_nothing(found):
    assert copied(found()) == []


@pytest.mark.qemu
def test_it_saves_cycles(monkeypatch: pytest.MonkeyPatch):
    feeds = random_feeds(convolutions())

    def cycles() -> int:
        made = simulate(compiled().bundle, L4R5, [feeds], cycles=True).cycles
        assert made is not None and made.total is not None
        return made.total

    with_copies = cycles()
    monkeypatch.setattr(candidates, "staged", lambda attempt, *_: attempt.built)
    assert with_copies < 0.97 * cycles()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimize": "balanced"},
        {"optimize": "ram"},
        {"steps": True},
        {"weights_blob": True},
        {"updatable": True},
        {"external_io": True},
        {"validation": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_bits_stay(options: dict[str, object]):
    model = convolutions()
    feeds = random_feeds(model)
    found = compile_model(model, HOST, replace(SPEED, **options))  # type: ignore[arg-type]
    assert copied(found)
    assert_close(outputs_in_c(found, feeds), interpret(found.graph, feeds))


AHEAD = replace(HOST, dma_reads=("flash",))
"""The same, with a DMA controller that reads flash."""

DELAYED = """
static struct { void *to; const void *from; size_t nbytes; } copies[16];
static unsigned begun, ended;
static void begin_copy(void *to, const void *from, size_t nbytes)
{
    copies[begun % 16u].to = to;
    copies[begun % 16u].from = from;
    copies[begun++ % 16u].nbytes = nbytes;
    if (begun - ended > 16u) { abort(); }
    EARLY;
}
static void end_copy(void *to, size_t nbytes)
{
    const unsigned at = ended++ % 16u;
    if (ended > begun || copies[at].to != to || copies[at].nbytes != nbytes) { abort(); }
    LATE;
}
#define MCUGEN_STAGE_BEGIN begin_copy
#define MCUGEN_STAGE_END end_copy
"""
"""Copies of the firmware's own; each that begins is ended, in order, or the program stops."""
COPY = "memcpy(to, copies[at].from, nbytes)"


def with_copies(found: CompiledModel, early: str, late: str) -> CompiledModel:
    """Whose firmware does something where copies begin, and where they end."""
    own = DELAYED.replace("EARLY", early).replace("LATE", late)
    name = f"{found.bundle.name}.c"
    text = f"#include <stdlib.h>\n#include <string.h>\n{own}{found.bundle.files[name]}"
    return replace(found, given_bundle=replace(found.bundle, files={**found.bundle.files, name: text}))


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("memset(to, 0x55, nbytes)", COPY),
        ("memcpy(to, from, nbytes)", "(void)at"),
        ("memcpy(to, from, nbytes)", COPY),
    ],
    ids=["at-the-end", "at-the-beginning", "all-the-time"],
)
@pytest.mark.parametrize("goal", ["speed", "ram"])
def test_a_copy_may_be_made_at_any_time_between_its_beginning_and_its_end(early: str, late: str, goal: str):
    """Layers one by one, and in a group of rows."""
    model = convolutions()
    feeds = random_feeds(model)
    found = compile_model(model, AHEAD, replace(SPEED, optimize=goal, copy_ahead=True))
    text = found.bundle.files["net.c"]
    assert text.count("    MCUGEN_STAGE_BEGIN(") == text.count("    MCUGEN_STAGE_END(") > 0
    assert "weights of a later layer, while this one runs" in text
    assert_close(outputs_in_c(with_copies(found, early, late), feeds), interpret(found.graph, feeds))


def test_a_copy_goes_on_while_layers_before_its_own_run():
    program = compiled(AHEAD, copy_ahead=True).program
    kernels = [i.kernel for i in program.instrs]
    assert BEGIN_WEIGHTS in kernels
    for begin in _indices(kernels, BEGIN_WEIGHTS):
        held = program.instrs[begin].operand("y").buffer
        end = next(i for i in _indices(kernels, END_WEIGHTS) if program.instrs[i].operand("y").buffer is held)
        meanwhile = [i.name for i in program.instrs[begin:end] if i.kernel not in TRANSFER_KERNELS]
        assert any(program.layer_estimates.get(name) for name in meanwhile)
        reader = next(i for i in program.instrs[end + 1 :] if held in [o.buffer for o in i.operands])
        assert reader.macs > 0


def _indices(kernels: list[str], *wanted: str) -> list[int]:
    return [index for index, kernel in enumerate(kernels) if kernel in wanted]


def test_what_was_hidden_is_told():
    found = compiled(AHEAD, copy_ahead=True)
    copies = [i.operand("x").buffer.nbytes for i in found.program.instrs if i.kernel == BEGIN_WEIGHTS]
    (note,) = (note for note in found.report.notes if "--copy-ahead" in note)
    assert f"{len(copies)} copies of weights, {sum(copies):,} bytes" in note
    assert "MCUGEN_STAGE_BEGIN" in note


def test_no_copy_goes_on_while_a_run_may_end():
    """Rows that the caller hands over may be refused, which ends the run."""
    model = convolutions()
    found = compile_model(model, AHEAD, replace(SPEED, stream_input=True, copy_ahead=True)).program
    kernels = [i.kernel for i in found.instrs]
    reads = _indices(kernels, READ_ROWS)
    begun = kernels[: reads[-1]].count(BEGIN_WEIGHTS)
    assert reads
    assert begun == kernels[: reads[0]].count(END_WEIGHTS) == kernels[: reads[-1]].count(END_WEIGHTS)


@pytest.mark.parametrize(
    ("board", "options", "told"),
    [
        (HOST, {}, "dma_reads"),
        (load_board("rt1060"), {}, "data cache"),
        (AHEAD, {"place": Places(arena=("auto",))}, "data cache"),
        (AHEAD, {"steps": True}, "--steps"),
        (AHEAD, {"optimize": "flash"}, "--optimize flash"),
    ],
    ids=["no-dma", "a-cache-before-the-arena", "any-memory", "steps", "least-flash"],
)
def test_copies_ahead_are_refused_where_they_cannot_be(board: Board, options: dict[str, object], told: str):
    with pytest.raises(UsageError, match=told):
        compiled(board, copy_ahead=True, **options)


@pytest.mark.qemu
def test_copies_ahead_save_what_the_cpu_would_wait():
    """By the simulation, in which copies go on while the flash has nothing else to do."""
    board, size = with_ram(26_000), (8, 32)
    feeds = random_feeds(convolutions(*size))
    found = compiled(board, size=size, copy_ahead=True)
    made = simulate(found.bundle, board, [feeds], per_layer=False, cycles=True)
    assert_close(made.outputs[0], interpret(found.graph, feeds))
    assert made.cycles is not None
    (waits,) = (wait for wait in made.cycles.waits if wait.memory == "flash")
    reading = board.sequential_read_cycles(board.memory("flash"), found.program.weights_size)
    assert reading is not None
    assert not at_start(board, size=size)
    assert waits.read_cycles < 0.6 * reading


def dropped_end(program: Program) -> None:
    del program.instrs[[i.kernel for i in program.instrs].index(END_WEIGHTS)]


def late_end(program: Program) -> None:
    index = [i.kernel for i in program.instrs].index(END_WEIGHTS)
    program.instrs.append(program.instrs.pop(index))


def other_place(program: Program) -> None:
    """What the layer beside a copy writes lies where that writes."""
    begin = [i.kernel for i in program.instrs].index(BEGIN_WEIGHTS)
    layer = next(i for i in program.instrs[begin:] if i.kernel not in TRANSFER_KERNELS)
    held = program.instrs[begin].operand("y").buffer
    next(o.buffer for o in layer.operands if o.access is Access.OUT and o.buffer.planned).offset = held.offset


@pytest.mark.parametrize("damage", [dropped_end, late_end, other_place])
def test_nothing_may_use_what_a_copy_writes_meanwhile(damage: Callable[[Program], None]):
    program = compiled(AHEAD, copy_ahead=True).program
    verify_plan(program)
    damage(program)
    with pytest.raises(VerificationError, match=r"cop(y|ies)"):
        verify_plan(program)


def test_what_a_group_reads_for_each_row_is_copied_before_it():
    """Row by row, a layer goes through its weights again and again."""
    program = compiled(HOST, size=LARGE, optimize="ram").program
    (begin, end), *_ = (b for b in program.blocks() if program.instrs[b[0]].control is Control.STREAM)
    within = {o.buffer for instr in program.instrs[begin:end] for o in instr.operands}
    copies = [i for i in program.instrs[:begin] if i.kernel == STAGE_WEIGHTS]
    assert copies
    assert {i.operand("y").buffer for i in copies} <= within
    assert {i.operand("x").buffer for i in copies}.isdisjoint(within)


def test_what_a_loop_reads_in_each_step_is_copied_before_it():
    """A Scan whose body has a product: its weights would be read once a step."""
    net = Net()
    body = Net(prefix="b.")
    weights = body.const(np.random.default_rng(3).standard_normal((32, 32)) / 8, np.float32)
    made = body.op("Sin", body.op("Add", body.op("MatMul", body.input("h", 1, 32), weights), body.input("row", 1, 32)))
    body.output(body.op("Identity", made), body.op("Identity", made))
    start = net.const(np.zeros((1, 32)), np.float32)
    _, rows = net.ops(
        "Scan", start, net.input("x", 12, 1, 32), outs=["last", "rows"], body=body.graph("body"), num_scan_inputs=1
    )
    net.output(rows)
    model = net.model()
    found = compile_model(model, HOST, SPEED)
    loop = next(i for i, instr in enumerate(found.program.instrs) if instr.control is Control.FOR)
    copies = [i.operand("x").buffer.nbytes for i in found.program.instrs[:loop] if i.kernel == STAGE_WEIGHTS]
    assert 4 * 32 * 32 in copies
    feeds = random_feeds(model)
    assert_close(outputs_in_c(found, feeds), interpret(found.graph, feeds))


RP2350 = load_board("rp2350")


def with_ram(nbytes: int) -> Board:
    """An RP2350 with so much of it."""
    memories = tuple(replace(m, size=nbytes) if m.kind == "ram" else m for m in RP2350.memories)
    return replace(RP2350, memories=memories)


@pytest.mark.parametrize("nbytes", [150_000, 90_000])
def test_waits_for_a_serial_flash_are_a_part_of_the_trade(nbytes: int):
    """A U-Net whose bottleneck has most of the weights, and little of the activations: with its arena as large as there
    is memory, or computed row by row, it waited for flash three to ten times as long as it computed.
    """
    board, model = with_ram(nbytes), u_net(32, is_integer=True)

    def found(goal: str) -> tuple[float, float, int]:
        """Cycles of waiting and of computing, bytes of RAM."""
        made = compile_model(model, board, CompileOptions(optimize=goal))
        copied = sum(b.nbytes for b in made.draft.placement.copies)
        waits = 0.0 if copied else constant_stall_cycles(made.program, board, board.memory("flash"))
        return waits, made.program.instructions_estimate or 0.0, made.program.arena_size + copied

    (waits, work, ram), (fast_waits, fast_work, most) = found("balanced"), found("speed")
    assert fast_waits < 0.25 * fast_work
    assert waits < work
    assert ram <= most < nbytes


def smaller(board: Board, times: int) -> Board:
    """With so much less memory."""
    return replace(board, memories=tuple(replace(m, size=m.size // times) for m in board.memories))


def at_start(board: Board = RP2350, **options: object) -> int:
    """Bytes of weights that start-up copies to RAM."""
    found = compiled(board, **options)
    return sum(b.nbytes for b in found.draft.placement.copies)


@pytest.mark.parametrize("goal", ["speed", "balanced"])
def test_weights_of_a_serial_flash_are_copied_at_start(goal: str):
    """For `balanced` since they are more than a quarter of its time."""
    found = compiled(RP2350, optimize=goal)
    assert at_start(optimize=goal) == found.program.weights_size
    assert not copied(found)
    assert any("start-up copies" in note and "--place weights=flash" in note for note in found.report.notes)


@pytest.mark.parametrize(
    ("board", "options"),
    [
        (RP2350, {"optimize": "ram"}),
        (smaller(RP2350, 8), {"optimize": "balanced", "size": LARGE}),
        (RP2350, {"place": Places(weights="flash")}),
        (RP2350, {"max_ram": 400_000}),
        (RP2350, {"weights_blob": True}),
        (smaller(RP2350, 32), {"size": LARGE}),
        (L4R5, {}),
        (load_board("rt1060"), {"optimize": "balanced", "size": (4, 32)}),
    ],
    ids=[
        *("least-ram", "over-a-quarter", "told-to-stay", "a-budget", "a-file", "too-little-ram", "parallel-flash"),
        "kept-by-a-cache",
    ],
)
def test_weights_stay_in_flash_otherwise(board: Board, options: dict[str, object]):
    assert at_start(board, **options) == 0


@pytest.mark.qemu
@pytest.mark.shared
def test_kernels_are_chosen_for_where_start_up_copies_weights(monkeypatch: pytest.MonkeyPatch):
    """More weights for less time: in flash they would cost more than they save."""
    path = MODELS / "pt_resnet_s_legacy.onnx"
    again = fitted(path, "rt1060", "speed")
    monkeypatch.setattr(Objective, "is_clearly_faster", lambda *_: False)
    once = fitted(path, "rt1060", "speed")
    for found in (again, once):
        assert copied_bytes(found.program, found.board, found.options.place) >= found.program.weights_size
    assert again.program.weights_size > once.program.weights_size
    assert cycles_of(again) < 0.97 * cycles_of(once)


MIDDLING = smaller(RP2350, 8)
"""With room for one of the two large layers of LARGE beside the arena."""


def test_speed_copies_a_part_where_not_all_fits():
    """The two layers that are alike save as much; the rest stays in flash, which is told."""
    found = compiled(MIDDLING, size=LARGE)
    placement = found.draft.placement
    taken, constants = sum(b.nbytes for b in placement.copies), found.program.weights_size
    assert 0.4 * constants < taken < constants
    assert placement.copied_to(placement.arenas[0]) + found.program.arena_size < MIDDLING.total_ram - 8192
    assert any(f"start-up copies {taken:,} of {constants:,} bytes" in note for note in found.report.notes)
    feeds = random_feeds(convolutions(*LARGE))
    assert_close(simulate(found.bundle, MIDDLING, [feeds]).outputs[0], interpret(found.graph, feeds))


@pytest.mark.qemu
def test_copies_of_a_part_save_cycles(monkeypatch: pytest.MonkeyPatch):
    feeds = random_feeds(convolutions(*LARGE))

    def cycles() -> int:
        made = simulate(compiled(MIDDLING, size=LARGE).bundle, MIDDLING, [feeds], per_layer=False, cycles=True).cycles
        assert made is not None
        assert made.total is not None
        return made.total

    with_part = cycles()
    monkeypatch.setattr(weight_staging, "_a_part", lambda program, board, options, arena: options)
    assert with_part < 0.97 * cycles()


@pytest.mark.qemu
@pytest.mark.shared
def test_kernels_with_more_weights_may_leave_some_in_flash():
    """All of Winograd's weights of ResNet-8 that pay are too many for copies, by 4 KB."""
    path = MODELS / "resnet8_cifar10_f32.onnx"
    found = fitted(path, "rt1060", "speed")
    copied = copied_bytes(found.program, found.board, found.options.place)
    assert 0.9 * found.program.weights_size < copied < found.program.weights_size
    assert sum(row.kernel == "conv2d_f32_winograd" for row in found.report.layers) == 3
    assert cycles_of(found) < 15_200_000


IN_CI = (
    ("autoencoder_ad", "stm32l4r5"),
    ("autoencoder_ad", "stm32g0b1"),
    ("streaming_wakeword", "stm32l4r5"),
    ("streaming_wakeword", "corstone300"),
)
"""Where kernels of fewer instructions take more cycles; the others take a minute each."""
SWEPT = ("autoencoder_ad", "ds_cnn_kws", "streaming_wakeword", "resnet8_cifar10", "mobilenet_v1_025_vww")
TIMED = [name for name in board_names() if load_board(name).qemu and load_board(name).cpu in TIMINGS]


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "board"),
    [
        *IN_CI,
        *(pytest.param(*cell, marks=pytest.mark.slow) for cell in itertools.product(SWEPT, TIMED) if cell not in IN_CI),
    ],
)
def test_speed_takes_no_more_cycles_than_balanced(name: str, board: str):
    """Weights that are widened cost fewer instructions, and more waits and loads."""
    path = MODELS / f"{name}_int8_qdq.onnx"
    assert cycles_of(fitted(path, board, "speed")) <= cycles_of(fitted(path, board, "balanced"))


QUICK = (
    ("mnist_cntk", "rt1060"),
    ("autoencoder_ad_f32", "stm32n657"),
    ("pt_mlp_dynbatch_legacy", "rp2350"),
    ("esp_tcn_stream", "corstone300"),
    ("pt_tcn_legacy", "nrf52840"),
    ("autoencoder_ad_int8_qdq", "esp32c3"),
    ("mobilenet_v1_025_vww_f32", "rt1060"),
)
"""In CI: models in float and as given, of which start-up copies all, a part or nothing, and one in portions."""
EVERY = sorted(
    path.stem
    for folder in ("models", "zoo")
    for path in (SHARED / folder).glob("*.onnx")
    if path.stem != "silero_vad_16k"  # whose inputs must be bound
)
KINDS = ("stm32n657", "rt1060", "rp2350", "nrf52840", "corstone300", "stm32h743", "esp32c3")
"""Of cores and of memories."""


@pytest.mark.qemu
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "board"),
    [
        *QUICK,
        *(pytest.param(*cell, marks=pytest.mark.slow) for cell in itertools.product(EVERY, KINDS) if cell not in QUICK),
    ],
)
def test_on_any_model_speed_takes_no_more_cycles_than_balanced(name: str, board: str):
    """But for what estimates cannot tell (MIN_TOTAL_GAIN): the linker's places for functions, and a cache of code."""
    fast, found = (cycles_of(fitted(shared(name), board, goal)) for goal in ("speed", "balanced"))
    assert fast <= (1 + MIN_TOTAL_GAIN) * found


def shared(name: str) -> Path:
    """A shared model, or one of the zoo."""
    return next(path for folder in ("models", "zoo") if (path := SHARED / folder / f"{name}.onnx").exists())


def fitted(path: Path, board: str, goal: str) -> CompiledModel:
    try:
        return compile_model(path, board, CompileOptions(optimize=goal, dims=DIMS.get(path.stem, {})))
    except DoesNotFitError as error:
        pytest.skip(str(error))


def cycles_of(found: CompiledModel) -> int:
    feeds = dict(found.draft.samples[0].inputs)
    made = simulate(found.bundle, found.board, [feeds], per_layer=False, cycles=True).cycles
    assert made is not None
    assert made.total is not None
    return made.total


DIMS = {"st_mobilenet_v2_035_128": {"unk__608": 1}, "st_yamnet_256": {"unk__120": 1}}
ROOMY = ("rt1060", "rp2350", "rp2350_psram", "stm32h743", "stm32n657", "nrf52840")
"""Whose weights lie in slow flash, or whose arena does behind a cache."""
ROOMY_IN_CI = (
    ("esp_tcn_stream", "rt1060"),
    ("resnet8_cifar10_int8_qdq", "rt1060"),
    ("ds_cnn_kws_f32", "nrf52840"),
    ("pt_resnet_s_dynamo", "stm32h743"),
    ("pt_mlp_dynbatch_dynamo", "rp2350"),
    ("pt_bilstm_dynamo", "nrf52840"),
    ("ds_cnn_kws_w8_f32_nhwc", "rt1060"),
)
"""Integers, and floats: their products stall, their fastest kernels take more memory, their weights are read again."""


@pytest.mark.qemu
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "board"),
    [
        *ROOMY_IN_CI,
        *(
            pytest.param(*cell, marks=pytest.mark.slow)
            for cell in itertools.product(EVERY, ROOMY)
            if cell not in ROOMY_IN_CI
        ),
    ],
)
def test_balanced_is_nearly_as_fast_where_there_is_room(name: str, board: str):
    """By a quarter at most, while RAM and flash of the fastest program are under a quarter of the board's."""
    fast, found = (fitted(shared(name), board, goal) for goal in ("speed", "balanced"))
    ram = fast.program.arena_size + copied_bytes(fast.program, fast.board, fast.options.place)
    if (
        ram > AMPLE_MEMORY_FRACTION * fast.board.total_ram
        or fast.program.weights_size > AMPLE_MEMORY_FRACTION * fast.board.total_flash
    ):
        pytest.skip("no such room")
    assert cycles_of(found) <= MAX_BALANCED_SLOWDOWN * cycles_of(fast)


@pytest.mark.qemu
@pytest.mark.shared
def test_balanced_copies_a_part_where_copies_before_layers_are_much_slower() -> None:
    """Of MobileNet's weights in float, which are read again for each four pixels; its arena stays as it is."""
    found = fitted(MODELS / "mobilenet_v1_025_vww_f32.onnx", "rt1060", "balanced")
    assert 0.3 * found.program.weights_size < copied_bytes(found.program, found.board, found.options.place)
    assert found.program.arena_size < 112_000
    assert cycles_of(found) < 31_000_000  # 35.2 million without


@pytest.mark.shared
def test_rows_and_kernels_together_take_a_quarter_more_at_most() -> None:
    """Kernels for a balance take 1.18 times the instructions of the fastest here, and rows 1.18 times those."""
    found = fitted(SHARED / "zoo" / "deeploy_cct_1_32.onnx", "rp2350_psram", "balanced")
    slowest = Kernels(found.graph, found.board, CompileOptions()).slowest()
    assert found.program.instructions_estimate is not None
    assert found.program.instructions_estimate <= slowest < math.inf


@pytest.mark.slow
@pytest.mark.shared
def test_an_arena_counts_beside_copies_that_are_made_anyway() -> None:
    """A group of rows halves that of a network in float, whose weights start-up copies in any case.

    Its program is that before it is compared with `speed` (mcugen.search.slowdown_cap), which is much faster here.
    """
    model = compile_model(MODELS / "resnet8_cifar10_f32.onnx", "rt1060", CompileOptions("net"))
    problem = SearchProblem(model.graph, target_of(model.board, CompileOptions()), CompileOptions())
    fit = ProgramSearch(problem).run().fit
    assert fit.chosen.copies is not None and fit.chosen.copies.options.place.hot
    assert any(instr.control is Control.STREAM for instr in fit.program.instrs)
    assert fit.program.arena_size < 80_000
