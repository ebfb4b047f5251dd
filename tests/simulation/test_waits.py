# SPDX-License-Identifier: Apache-2.0
"""What the CPU waits for memories: firmware of known accesses, and a second cache model that is dumber."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from onnx_models import Net
from tiny_models import assembled, tiny

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board, Cache, Memory, ParallelTiming, SerialTiming, load_board
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiler import compile_model
from mcugen.simulation import simulate
from mcugen.simulation.build import TargetImages, build_target
from mcugen.simulation.cycles import Cycles, estimate_cycles
from mcugen.simulation.machines import find_machine
from mcugen.simulation.profile import Profiler
from mcugen.simulation.waits import Wait

ONE = [{"x": np.zeros(16, np.int8)}]
M4 = load_board("stm32l4r5")
FLASH, SRAM = M4.memory("flash"), M4.memory("sram")
NO_WAIT = ParallelTiming(0, 0, M4.clock_hz)


def board(flash: Memory, *caches: Cache, **options: object) -> Board:
    """An M4 with this flash; all else keeps pace with the CPU."""
    memories = (flash, replace(SRAM, access=NO_WAIT))
    return replace(M4, memories=memories, caches=caches, **options)  # type: ignore[arg-type]


def waiting(wait_states: int, line: int = 4, prefetch: bool = False, burst: int | None = None) -> Memory:
    access = ParallelTiming(wait_states, wait_states if burst is None else burst, M4.clock_hz)
    return replace(FLASH, access=access, line_bytes=line, prefetch=prefetch)


def waits(code: str, on: Board) -> Wait:
    """For flash, of a run function of these instructions."""
    cycles = simulate(assembled(code), on, ONE, cycles=True).cycles
    assert cycles is not None and cycles.total is not None and cycles.without_waits is not None
    (wait,) = cycles.waits
    assert cycles.total == cycles.without_waits + wait.cycles
    return wait


# Sixteen halfwords in lines of 16 bytes, then 2; on lines of their own, so that counts are known.
STRAIGHT = ".balign 64\n" + "nop\n" * 30 + "movs r0, #0\nbx lr"
LOOP = """
    b 2f
    .balign 64
    1: nop; nop; nop; nop; nop; nop; nop; nop
    nop; nop; nop; nop; nop; nop
    subs r1, #1
    bne 1b
    movs r0, #0
    bx lr
    .balign 64
    2: movs r1, #100
    b 1b
"""


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("flash", "wanted"),
    [
        (waiting(5), 16 * 5),  # a word, two instructions, an access
        (waiting(5, line=16), 4 * 5),
        (waiting(5, line=16, prefetch=True), 5),  # 8 cycles a line, while the next one comes in 6
        (waiting(9, line=16, prefetch=True), 9 + 3 * 2),  # 10 cycles a line, of which 8 run
        (replace(FLASH, access=SerialTiming(M4.clock_hz // 2, 4, 10), prefetch=False), 4 * (2 * (10 + 32) - 1)),
    ],
)
def test_straight_code_waits_for_each_line(flash: Memory, wanted: int):
    wait = waits(STRAIGHT, board(flash))
    lines = 64 // flash.line_bytes
    assert (wait.memory, wait.fetches, wait.fetch_cycles, wait.reads) == ("flash", lines, wanted, 0)


def cache(size: int, line: int, ways: int, holds: str = "instructions", **options: object) -> Cache:
    return Cache("cache", ("flash",), holds, size, line, ways, **options)  # type: ignore[arg-type]


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("flash", "before", "misses", "cycles"),
    [
        (waiting(5, 16), (), 203, 203 * 5),  # two lines a round, and three others
        (waiting(5, 16), (cache(64, 16, 4),), 5, 5 * 5),  # what ran between the runs has left the cache none of them
        (waiting(5, 16), (cache(4096, 16, 8),), 0, 0),  # all is there from the run before
        (waiting(5, 16), (cache(4096, 16, 8, hit_wait_states=1),), 0, 203),
        (waiting(5, 16), (cache(16, 16, 1),), 203, 203 * 5),
        (waiting(5, 16), (cache(64, 32, 2),), 4, 4 * 11),  # lines of two accesses
        (waiting(5, 16), (cache(64, 32, 2, critical_word_first=True),), 4, 4 * 5 + 4 + 3),  # flash is busy
        (waiting(5, 16, burst=0), (cache(64, 32, 2),), 4, 4 * 6),
    ],
)
def test_loops_run_from_caches(flash: Memory, before: Sequence[Cache], misses: int, cycles: int):
    wait = waits(LOOP, board(flash, *before))
    assert (wait.missed_fetches, wait.fetch_cycles) == (misses, cycles)


@pytest.mark.qemu
@pytest.mark.parametrize(("keeps", "waits_again"), [(True, False), (False, True)])
def test_what_is_read_ahead_stays_in_caches_before_the_controller(keeps: bool, waits_again: bool):
    """One that is a part of it has only what branches go to, from run to run."""
    before = cache(4096, 16, 8, keeps_prefetched=keeps)
    wait = waits(LOOP, board(waiting(5, 16, prefetch=True), before))
    assert (wait.fetch_cycles > 0) == waits_again


# Loads from a table in flash at places that a linear congruential generator gives, a thousand of them.
TABLE = 4096
LOADS = f"""
    push {{r4, r5, lr}}
    ldr r4, =tiny_table
    ldr r1, =1000
    movs r2, #1
    ldr r5, =1664525
    ldr r3, =1013904223
    1: mla r2, r2, r5, r3
    lsrs r0, r2, #{32 - 12}
    ldrb r0, [r4, r0]
    subs r1, #1
    bne 1b
    movs r0, #0
    pop {{r4, r5, pc}}
"""


def places() -> list[int]:
    """The bytes of the table that are read."""
    found, state = [], 1
    for _ in range(1000):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        found.append(state >> (32 - 12))
    return found


class DumbCache:
    """Sets are lists, the line that was used last at the end."""

    def __init__(self, size: int, line: int, ways: int) -> None:
        self.line, self.ways = line, ways
        self.sets: list[list[int]] = [[] for _ in range(size // line // ways)]

    def misses(self, address: int) -> bool:
        number = address // self.line
        lines = self.sets[number % len(self.sets)]
        missed = number not in lines
        lines[:] = [*(n for n in lines if n != number), number][-self.ways :]
        return missed


def misses(size: int, line: int, ways: int, table: int) -> int:
    """Of the second of two runs."""
    dumb = DumbCache(size, line, ways)
    counts = [sum(dumb.misses(table + place) for place in places()) for _ in range(2)]
    return counts[1]


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, TargetImages]:
    """Its table lies with the weights."""
    values = ", ".join(str(i % 7) for i in range(TABLE))
    table = f"extern const unsigned char tiny_table[{TABLE}];\nconst unsigned char tiny_table[{TABLE}] = {{{values}}};"
    made = assembled(LOADS)
    bundle = replace(made, files={**made.files, "tiny_weights.c": table})
    folder = tmp_path_factory.mktemp("loads")
    return bundle, build_target(bundle, M4, find_machine(M4), folder, hooks=False)


def loaded(loads: tuple[Bundle, TargetImages], on: Board) -> Cycles:
    bundle, images = loads
    return estimate_cycles(images, Profiler(find_machine(on), bundle, ONE[0], on, 60), 2 + 5 + 5 * 1000 + 1)


@pytest.mark.qemu
@pytest.mark.parametrize(("size", "line", "ways"), [(256, 16, 16), (1024, 32, 1), (1024, 8, 2), (2048, 64, 4)])
def test_cache_agrees_with_a_dumber_one(loads: tuple[Bundle, TargetImages], size: int, line: int, ways: int):
    # Code runs from SRAM, so that the table is all that lies in flash.
    found = loaded(loads, board(waiting(5, line), cache(size, line, ways, "data"), code_memory="sram"))
    (wait,) = found.waits
    wanted = misses(size, line, ways, FLASH.origin)
    assert 100 < wanted < 1000
    assert (wait.reads, wait.missed_reads, wait.read_cycles) == (1000, wanted, 5 * wanted)
    assert (wait.fetches, wait.fetch_cycles) == (0, 0)


@pytest.mark.qemu
def test_reads_without_a_cache_wait_each(loads: tuple[Bundle, TargetImages]):
    (wait,) = loaded(loads, board(waiting(5, 16), code_memory="sram")).waits
    assert (wait.reads, wait.read_cycles) == (1000, 5000)


@pytest.mark.qemu
def test_vectors_are_read_by_words():
    code = """
        adr r1, 2f
        vldrb.u8 q0, [r1]
        vldrh.u16 q1, [r1]
        vldrw.u32 q2, [r1]
        movs r0, #0
        bx lr
        .balign 16
        2: .word 0, 1, 2, 3
    """
    m55 = load_board("corstone300")
    memories = tuple(replace(m, access=ParallelTiming(2 * (m.kind == "flash"), 0, m55.clock_hz)) for m in m55.memories)
    assert waits(code, replace(m55, memories=memories)).reads == 3 * 4


@pytest.mark.qemu
def test_weights_in_sram_wait_for_nothing(loads: tuple[Bundle, TargetImages]):
    slow, fast = (loaded(loads, board(waiting(5, 16), weights_memory=name)) for name in ("flash", "sram"))
    # Code still lies in flash, with its three constants.
    (before,), (after,) = slow.waits, fast.waits
    assert (before.reads, after.reads) == (1003, 3)
    assert fast.without_waits == slow.without_waits


@pytest.mark.qemu
def test_code_and_weights_share_a_cache(loads: tuple[Bundle, TargetImages]):
    apart = board(waiting(5, 16), cache(256, 16, 2, "data"))
    shared = board(waiting(5, 16), cache(256, 16, 2, "both"))
    (alone,), (pushed,) = (loaded(loads, on).waits for on in (apart, shared))
    assert pushed.missed_reads > alone.missed_reads
    assert 0 < pushed.missed_fetches < alone.missed_fetches


def counter() -> Bundle:
    """A model that takes longer each time it is called."""
    made = tiny(
        """
        (void)arena;
        for (uint32_t i = 0; i < 100 * ++state->calls; i++) {
            __asm__ volatile("");
        }
        return 0;
        """
    )
    declared = "typedef struct { uint32_t calls; } tiny_state;\nvoid tiny_reset(tiny_state *state);\n"
    run = "int tiny_run(void *arena)", "int tiny_run(void *arena, tiny_state *state)"
    header = made.files["tiny.h"].replace(f"{run[0]};", f"{declared}{run[1]};")
    code = made.files["tiny.c"].replace(*run) + "void tiny_reset(tiny_state *state) { state->calls = 0; }\n"
    return replace(made, files={**made.files, "tiny.h": header, "tiny.c": code}, has_state=True)


@pytest.mark.qemu
def test_the_run_that_fills_caches_leaves_no_state():
    found = simulate(counter(), M4, ONE, cycles=True)  # or the profile would see more than was counted
    assert found.cycles is not None and found.cycles.total is not None and found.cycles.total > 100


def dense(places: Places) -> Cycles:
    """Of a matrix product of 4,096 weights on an M4 with a second RAM, which lets the CPU wait."""
    random, net = np.random.default_rng(0), Net()
    x = net.dequantize(net.input("x", 1, 64, dtype=np.int8), 0.05, 3)
    weights = net.dequantize(net.const(random.integers(-127, 128, (64, 64)), np.int8), 0.003)
    net.output(net.quantize(net.op("MatMul", x, weights), 0.1, out="y"), dtype=np.int8)
    slow = Memory("slow", "ram", 0x3000_0000, 65536, 2, ParallelTiming(3, 3, M4.clock_hz))
    on = board(waiting(5, 16))
    model = compile_model(net.model(), replace(on, memories=(*on.memories, slow)), CompileOptions(place=places))
    cycles = model.simulate([{"x": np.zeros((1, 64), np.int8)}], cycles=True).cycles
    assert cycles is not None
    return cycles


@pytest.mark.qemu
def test_placement_decides_what_is_waited_for():
    places = (Places(), Places(weights="sram"), Places(hot_weights=("sram", 8192)), Places(arena=("slow",)))
    plain, copied, hot, slow = map(dense, places)
    read = {wait.memory: wait.read_cycles for wait in plain.waits}
    assert plain.total is not None and plain.without_waits is not None
    assert read["flash"] >= 5 * 4096 // 4
    for fast in (copied, hot):
        (flash,) = fast.waits
        assert flash.memory == "flash" and flash.read_cycles < 0.05 * read["flash"]
        assert fast.without_waits == pytest.approx(plain.without_waits, rel=0.01)  # addresses are made otherwise
    reads = {wait.memory: wait.read_cycles for wait in slow.waits}
    assert reads["flash"] == pytest.approx(read["flash"], rel=0.01) and reads["slow"] >= 3 * 64 // 4
