# SPDX-License-Identifier: Apache-2.0
"""Estimated cycles: timings counted by hand from the CPUs' manuals, and profiles of what ran."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import add_one, assembled, tiny

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board, load_board
from mcugen.core.errors import VerificationError
from mcugen.memory.loop_tuning import SLOW_FMA
from mcugen.simulation import simulate
from mcugen.simulation.build import build_target
from mcugen.simulation.cycles import Disassembly, cycles_of, estimate_cycles
from mcugen.simulation.disassembly import Instruction, parse
from mcugen.simulation.machines import find_machine
from mcugen.simulation.profile import Edge, Profiler, Span, read_spans
from mcugen.simulation.riscv import parse as parse_riscv
from mcugen.simulation.timings import TIMINGS


def waitless(name: str) -> Board:
    """A board whose memories nobody waits for: what is left is the time of the CPU."""
    board = load_board(name)
    return replace(board, memories=tuple(replace(m, access=None) for m in board.memories), caches=())


M4, M7 = waitless("nrf52840"), waitless("rt1060")
BOARDS = {"cortex-m0plus": waitless("rp2040"), "cortex-m3": waitless("stm32f103"), M4.cpu: M4, M7.cpu: M7}
ONE = [{"x": np.zeros(16, np.int8)}]


def read(*lines: str) -> list[Instruction]:
    """Instructions from a mnemonic and operands each, as objdump would write them."""
    return list(parse(_line(i, line) for i, line in enumerate(lines)))


def _line(index: int, line: str) -> str:
    """Of 32 bits where the mnemonic says so, or where there is none of 16."""
    wide = re.match(r"\w+\.w|v|smlad|mla|ssat|sxtb16|le ", line)
    return f"{4 * index:8x}:\t{'ea00 0000' if wide else '4770     '} \t{line.replace(' ', chr(9), 1)}"


def cycles(cpu: str, *lines: str) -> int:
    return TIMINGS[cpu].cycles(read(*lines))


def estimated(model: Bundle, board: Board, wait_states: int | None = None) -> int | None:
    run = simulate(model, board, ONE, cycles=True, wait_states=wait_states)
    assert run.cycles is not None
    return run.cycles.total


def test_instructions_are_read_as_objdump_writes_them():
    text = """
00000400 <f>:
     400:	bfb8      	it	lt
     402:	f856 0b04 	ldrlt.w	r0, [r6], #4
     406:	d20c      	bcs.n	444 <r3+0x3c>
     408:	ecb3 0a08 	vldmia	r3!, {s0-s7}
     40c:	ed2d 8b04 	vpush	{d8-d9}
     410:	bdf0      	pop	{r4, r5, r6, r7, pc}
     412:	2000dead 	.word	0x2000dead
     416:	4b0c      	ldr	r3, [pc, #48]	@ (478 <f+0x78>)
"""
    found = list(parse(text.splitlines()))
    assert [i.mnemonic for i in found] == ["it", "ldr", "b", "vldmia", "vpush", "pop", "ldr"]
    _, load, branch, multiple, push, pop, literal = found
    assert (load.size, load.results, load.moved, load.address_registers) == (4, {"r0"}, {"r6"}, {"r6"})
    assert branch.registers == ()
    assert (multiple.results, multiple.moved) == ({f"s{i}" for i in range(8)}, {"r3"})
    assert push.registers == ("s16", "s17", "s18", "s19")
    assert pop.results == {"r4", "r5", "r6", "r7", "pc"}
    assert (literal.operands, literal.end) == (("r3", "[pc, #48]"), 0x418)


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        # Section 3.3.2 of the manual itself:
        (3, ("ldr r0, [r1]", "ldr r1, [r2]")),
        (3, ("ldr r0, [r1, r2]", "str r0, [r3, #20]")),
        (3, ("ldr r0, [r1, r2]", "str r1, [r3, r2]")),
        (4, ("ldr r0, [r1, r5]", "ldr r1, [r2]", "ldr r2, [r3, #4]")),
        # A loaded address; a store before a load; a store to a computed address.
        (4, ("ldr r0, [r1]", "ldr r2, [r0]")),
        (3, ("str r0, [r1]", "ldr r2, [r3]")),
        (2, ("str r0, [r1, r2]",)),
        # An address from the instruction before.
        (4, ("adds r1, #4", "ldr r0, [r1]")),
        (3, ("adds r1, #4", "ldr r0, [r2]")),
        # 1 + N; nothing overlaps with several.
        (5, ("ldmia.w r0!, {r4, r5, r6, r7}",)),
        (6, ("push {r4, r5, r6, r7, lr}",)),
        (8, ("ldr r0, [r1]", "ldrd r2, r3, [r1]", "strd r2, r3, [r4]")),
        (9, ("vldmia r3!, {s0-s7}",)),
        (5, ("vpush {d8-d9}",)),
        # Multiplications take one cycle, whatever they multiply; what IT covers counts as if it ran.
        (
            5,
            (
                "smlad r0, r1, r2, r0",
                "smull r0, r1, r2, r3",
                "smlal r0, r1, r2, r3",
                "mla r0, r1, r2, r3",
                "mul r0, r1",
            ),
        ),
        (4, ("it ge", "movge r0, r1", "ssat r0, #8, r0", "nop")),
        # Floating point: a result is late, but in time as an addend.
        (3, ("vadd.f32 s0, s1, s2", "vmul.f32 s3, s0, s1")),
        (2, ("vadd.f32 s0, s1, s2", "vmul.f32 s3, s1, s1")),
        (4, ("vmul.f32 s0, s1, s2", "vfma.f32 s0, s3, s4")),
        (7, ("vfma.f32 s0, s3, s4", "vmla.f32 s5, s0, s4")),
        (6, ("vfma.f32 s0, s3, s4", "vstr s0, [r0]")),
        (28, ("vdiv.f32 s0, s1, s2", "vsqrt.f32 s3, s4")),
        (4, ("vmov r0, s0", "vmov r0, r1, d0", "vmov.f32 s0, s1")),
    ],
)
def test_cortex_m4_by_its_manual(wanted: int, lines: tuple[str, ...]):
    assert cycles("cortex-m4", *lines) == wanted


@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "cortex-m85"])
def test_products_and_sums_are_apart_where_that_takes_less_time(core: str):
    together = cycles(core, *(f"vfma.f32 s{i}, s8, s9" for i in range(8)))
    apart = cycles(
        core, *(f"vmul.f32 s{16 + i}, s8, s9" for i in range(8)), *(f"vadd.f32 s{i}, s{16 + i}" for i in range(8))
    )
    assert (apart < together) == (core in SLOW_FMA)


def test_older_cpus_multiply_and_load_slower():
    loads = ("ldr r0, [r1]", "ldr r2, [r3]", "str r0, [r1]")
    assert [cycles(cpu, *loads) for cpu in ("cortex-m0plus", "cortex-m3")] == [6, 4]
    products = ("mla r0, r1, r2, r0", "smull r0, r1, r2, r3", "smlal r0, r1, r2, r3")
    assert cycles("cortex-m3", *products) == 2 + 5 + 7
    assert cycles("cortex-m0plus", "muls r0, r1", "pop {r4, r5, pc}", "bl 0") == 1 + (1 + 3 + 1) + 2


# The figures are read off LLVM's models of these CPUs (lib/Target/ARM/ARMScheduleM7.td and so on) by hand.
@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        (1, ("adds r0, #1", "adds r1, #1")),
        (2, ("adds r0, #1", "adds r1, r0, #1")),
        (2, ("adds r0, #1", "adds r1, #1", "adds r2, #1")),
        (1, ("ldr r0, [r1]", "ldr r2, [r1]")),  # two loads a cycle,
        (2, ("str r0, [r1]", "str r2, [r1]")),  # one store,
        (1, ("str r0, [r1]", "ldr r2, [r1]")),
        (2, ("ldr r0, [r1]", "adds r0, #1")),  # words are there in the next one,
        (3, ("ldrb r0, [r1]", "adds r0, #1")),  # bytes later
        (3, ("adds r1, #4", "ldr r0, [r1]")),  # addresses are needed early,
        (3, ("ldr r0, [r1]", "ldr r2, [r0]")),
        (2, ("ldr r0, [r1], #4", "ldr r2, [r1], #4")),  # but are there at once where a load moves them on
        (1, ("ldr r0, [r1]", "str r0, [r2]")),  # what is stored is needed late
        (1, ("ldr r0, [r1]", "smlad r4, r5, r6, r4")),
        (3, ("ldmia.w r0!, {r4, r5, r6, r7}", "adds r1, #1")),  # two words a cycle, alone: assumed
        (2, ("smlad r4, r5, r6, r4", "smlad r4, r7, r8, r4")),  # one product a cycle, forwarded as an addend
        (3, ("smlad r4, r5, r6, r4", "smlad r0, r4, r8, r0")),
        (2, ("sxtb16 r0, r1", "sxtb16 r2, r3")),  # one unit for parts of registers, in the first place of a pair
        (2, ("adds r0, #1", "sxtb16 r2, r3")),
        (1, ("sxtb16 r2, r3", "adds r0, #1")),
        (3, ("ssat r0, #8, r1", "adds r2, r0, #1")),
        (6, ("vfma.f32 s0, s1, s2", "vadd.f32 s3, s0, s1")),
        (4, ("vfma.f32 s0, s1, s2", "vfma.f32 s0, s3, s4")),
        (4, ("vmul.f32 s0, s1, s2", "vadd.f32 s3, s0, s1")),
        (2, ("vmul.f32 s0, s1, s2", "vmul.f32 s3, s1, s1")),
        (1, ("vfma.f32 s0, s1, s2", "vldr s3, [r0]")),
        (8, ("sdiv r0, r1, r2", "adds r3, #1")),
        (1, ("subs r0, #1", "bne.n 0 <f>")),
        (2, ("bne.n 0 <f>", "subs r0, #1")),
        (2, ("lsls r0, r1, #2", "add.w r2, r3, r4, lsl #2")),  # one shifter,
        (3, ("adds r4, #1", "add.w r2, r3, r4, lsl #2")),  # which comes before the sum
    ],
)
def test_cortex_m7_model_issues_pairs(wanted: int, lines: tuple[str, ...]):
    assert cycles("cortex-m7", *lines) == wanted


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        (2, ("ldr.w r0, [r1]", "ldr.w r2, [r3]")),
        (3, ("ldr.w r0, [r1]", "add.w r0, r0, r4")),  # what is loaded comes a cycle later
        (2, ("ldr.w r0, [r1]", "smlad r4, r5, r6, r4")),
        (2, ("smlad r4, r5, r6, r4", "smlad r4, r7, r8, r4")),
        (3, ("mla r4, r5, r6, r4", "mla r4, r7, r8, r4")),
        (1, ("ldr r0, [r1]", "adds r2, #4")),  # pairs of 16 bits, of which one is simple,
        (2, ("ldr r0, [r1]", "eors r2, r3")),
        (2, ("ldr.w r0, [r1]", "adds r2, #4")),  # but none of 32
        (2, ("adds r2, #4", "adds r2, #4")),
        (1, ("subs r0, #1", "bne.n 0 <f>")),
        (2, ("vmul.f32 s0, s1, s2", "vmul.f32 s3, s1, s1")),
        (3, ("vmul.f32 s0, s1, s2", "vmul.f32 s3, s0, s1")),
        (6, ("vfma.f32 s0, s3, s4", "vfma.f32 s0, s1, s2")),
        (5, ("ldmia.w r0!, {r4, r5, r6, r7}", "add.w r1, r1, r2")),
    ],
)
def test_cortex_m33_model(wanted: int, lines: tuple[str, ...]):
    assert cycles("cortex-m33", *lines) == wanted


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        # The examples of LLVM's description: beats of different parts overlap, those of one part do not.
        (4, ("vldrb.u8 q0, [r0]", "vadd.i8 q2, q3, q4", "vmul.i8 q5, q6, q7", "vstrb.8 q1, [r1]")),
        (5, ("vldrb.u8 q0, [r0]", "vldrb.u8 q1, [r2]", "vadd.i8 q2, q3, q4", "vstrb.8 q5, [r1]")),
        # Loads and products in turn: one a cycle.
        (4, ("vldrb.s8 q0, [r0], #16", "vmladava.s8 lr, q1, q2", "vldrb.s8 q3, [r1], #16", "vmladava.s8 r2, q4, q5")),
        (3, ("vmladava.s8 lr, q0, q1", "vmladava.s8 r2, q0, q2")),
        (3, ("vfma.f32 q0, q1, q2", "vadd.f32 q3, q0, q1")),
        (2, ("vadd.i32 q0, q1, q2", "vldrw.u32 q3, [r0]")),
        (2, ("smlad r4, r5, r6, r4", "add.w r7, r8, r9")),
        (3, ("smlad r4, r5, r6, r4", "smlad r4, r7, r8, r4")),
        (2, ("add.w r7, r8, r9", "le lr, 0 <f>", "add.w r1, r2, r3")),
    ],
)
def test_cortex_m55_model_overlaps_beats(wanted: int, lines: tuple[str, ...]):
    assert cycles("cortex-m55", *lines) == wanted


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        (1, ("ldr r0, [r1]", "ldr r2, [r1]")),
        (1, ("str r0, [r1]", "str r2, [r1]")),  # two stores a cycle,
        (1, ("lsls r0, r1, #2", "lsls r2, r3, #2")),  # and shifters for all
        (1, ("adds r0, #1", "vldrb.u8 q0, [r1]")),
        (2, ("vldrb.u8 q0, [r1]", "adds r0, #1")),
        (3, ("vldrb.u8 q0, [r0]", "vldrb.u8 q1, [r2]")),
        (2, ("vldrb.u8 q0, [r0]", "vmladava.s8 lr, q1, q2")),
    ],
)
def test_cortex_m85_model(wanted: int, lines: tuple[str, ...]):
    assert cycles("cortex-m85", *lines) == wanted


def riscv(core: str, *lines: str) -> int:
    spaced = (line.replace(" ", "\t", 1) for line in lines)
    return TIMINGS[core].cycles(
        list(parse_riscv(f"{4 * i:8x}:\t00000013          \t{line}" for i, line in enumerate(spaced)))
    )


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        (2, ("lw a0,0(a1)", "lw a2,4(a1)")),
        (3, ("lw a0,0(a1)", "add a2,a0,a3")),
        (3, ("lw a0,0(a1)", "lw a2,0(a0)")),
        (2, ("lw a0,0(a1)", "sw a0,0(a2)")),  # what is stored is needed late
        (3, ("lw a0,0(a1)", "sw a2,0(a0)")),
        (2, ("mul a0,a1,a2", "mulh a3,a0,a0")),
        (19, ("div a0,a1,a2", "add a3,a4,a5")),
    ],
)
def test_hazard3_by_its_manual(wanted: int, lines: tuple[str, ...]):
    assert riscv("hazard3", *lines) == wanted


def test_riscv_instructions_are_read_as_objdump_writes_them():
    text = """
80000400 <f>:
80000400:\t00050513          \tmv\ta0,a0
80000404:\t4188                \tlw\ta0,0(a1)
80000406:\tfe5513e3          \tbne\ta0,t0,800003ec <g+0x8>
8000040a:\t00b52023          \tsw\ta1,0(a0) # 8000 <h>
"""
    move, load, branch, store = parse_riscv(text.splitlines())
    assert (load.address, load.size, load.results, load.address_registers) == (0x80000404, 2, {"a0"}, {"a1"})
    assert (move.size, branch.results, branch.unit) == (4, frozenset(), "branch")
    assert (store.is_store, store.registers, store.results) == (True, ("a1", "a0"), frozenset())


def test_profile_is_read_span_by_span():
    first = ["edge 10 14 20 3", "memory 0 5 1 7 4 2 9", "unaligned 2", "mark 20"]
    spans = list(read_spans([*first, "memory 0 0 0 0 0 0 0", "unaligned 0", "mark 30"]))
    assert spans[0] == Span((Edge(0x10, 0x14, 0x20, 3),), 2, 0x20, ((0, 5, 1, 7, 4, 2, 9),))
    assert spans[1] == Span((), 0, 0x30, ((0,) * 7,))


def test_where_pages_end_makes_no_difference():
    """QEMU divides blocks there: of three additions in a row each could be one of a pair with the next."""
    code = Disassembly({i.address: i for i in read(*(f"add.w r{n}, r{n}, #1" for n in range(7)))})
    whole = Span((Edge(0x0, 0x14, 0x18, 100),), 0, 0x18)
    parts = Span((Edge(0x0, 0x4, 0x8, 100), Edge(0x8, 0x8, 0xC, 100), Edge(0xC, 0x14, 0x18, 100)), 0, 0x18)
    assert [cycles_of(span, code, TIMINGS["cortex-m7"]) for span in (whole, parts)] == [300, 300]


def test_what_others_lead_to_is_a_block_of_its_own():
    """A loop, and what goes on to it once."""
    code = Disassembly({i.address: i for i in read(*(f"add.w r{n}, r{n}, #1" for n in range(3)), "bne.w 8", "nop")})
    loop = [Edge(0x0, 0x4, 0x8, 1), Edge(0x8, 0xC, 0x8, 99), Edge(0x8, 0xC, 0x10, 1)]
    timing = TIMINGS["cortex-m7"]
    again = 1 + timing.refill(code.at(0xC), code.at(0x8))
    assert cycles_of(Span(tuple(loop), 0, 0x10), code, timing) == 1 + 99 * again + 1


COUNTDOWN = """
    movs r1, #100
    1: subs r1, #1
    bne 1b
    movs r0, #0
    bx lr
"""


@pytest.mark.qemu
def test_riscv_cores_are_timed():
    code = """
        li a1, 100
        1: lw a2, 0(a0)
        addi a2, a2, 1
        addi a1, a1, -1
        bnez a1, 1b
        li a0, 0
        ret
    """
    hazard3 = replace(load_board("rv32imc"), core="hazard3")
    # A load that the sum waits for; loops go back for nothing.
    assert estimated(assembled(code, riscv=True), hazard3) == 1 + 100 * 5 + 1 + (1 + 1)


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("cpu", "wanted"),
    [
        ("cortex-m0plus", 1 + 100 * 2 + 99 * 1 + 1 + (1 + 1)),
        ("cortex-m3", 1 + 100 * 2 + 99 * 2 + 1 + (1 + 2)),
        ("cortex-m4", 1 + 100 * 2 + 99 * 2 + 1 + (1 + 2)),
        ("cortex-m7", 1 + 100 + 1),
    ],
)
def test_taken_branches_refill_the_pipeline(cpu: str, wanted: int):
    assert estimated(assembled(COUNTDOWN), BOARDS[cpu]) == wanted


@pytest.mark.qemu
def test_inner_loop_of_an_int8_convolution():
    code = """
        push {r4-r11, lr}
        movs r12, #9
        mov r1, r0
        1: ldmia r0!, {r4-r7}
        ldmia r1!, {r8-r11}
        smlad r2, r4, r8, r2
        smlad r2, r5, r9, r2
        smlad r3, r6, r10, r3
        smlad r3, r7, r11, r3
        subs r12, #1
        bne 1b
        movs r0, #0
        pop {r4-r11, pc}
    """
    iteration = (1 + 4) + (1 + 4) + 4 + 1 + 1
    assert estimated(assembled(code), M4) == (1 + 9) + 2 + 9 * iteration + 8 * 2 + 1 + (1 + 9 + 2)


@pytest.mark.qemu
def test_straight_code_costs_the_same_where_qemu_divides_it():
    # 32-bit instructions across the ends of QEMU's pages, and loads that overlap there.
    loads = assembled("nop\n.rept 700\nldr.w r1, [r0]\n.endr\nmovs r0, #0\nbx lr")
    assert estimated(loads, M4) == 1 + (2 + 699) + 1 + (1 + 2)


@pytest.mark.qemu
def test_unaligned_accesses_take_further_transfers():
    code = """
        ldr.w r1, [r0, #1]
        nop
        ldr.w r1, [r0, #2]
        nop
        ldrh.w r1, [r0, #3]
        nop
        movs r0, #0
        bx lr
    """
    assert estimated(assembled(code), M4) == 3 * 2 + 3 + 1 + (1 + 2) + (2 + 1 + 1)


@pytest.mark.qemu
def test_cycles_of_layers():
    spin = '__asm__ volatile(".syntax unified\\n 1: subs %0, #1\\n bne 1b" : "+l"(n) : : "cc");'
    body = f"(void)arena; uint32_t n = 100; {spin} HOOK(0); n = 1000; {spin} HOOK(1); return 0;"
    hook = "#ifdef MCUGEN_ON_LAYER\n#define HOOK(i) MCUGEN_ON_LAYER(0, i)\n#else\n#define HOOK(i) (void)0\n#endif"
    run = simulate(tiny(body, before=hook, layers=("a", "b")), M4, ONE, per_layer=True, cycles=True)
    assert run.cycles is not None and run.cycles.total is not None
    np.testing.assert_allclose(run.cycles.layers, [400, 4000], rtol=0, atol=12)  # around the loops: calls, constants
    assert abs(run.cycles.total - 4400) < 20


def without_plugins(folder: Path) -> None:
    """A QEMU that knows no -plugin."""
    script = folder / "qemu-system-arm"
    real = shutil.which("qemu-system-arm")
    script.write_text(f'#!/bin/sh\ncase "$*" in *-plugin*) echo no -plugin; exit 1;; esac\nexec {real} "$@"\n')
    script.chmod(0o755)


@pytest.mark.qemu
def test_missing_tools_leave_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")
        run = simulate(add_one(), M4, ONE, cycles=True)
    assert run.instructions and run.cycles and run.cycles.total is None
    assert "no-such-compiler" in run.cycles.note

    without_plugins(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    run = simulate(add_one(), M4, ONE, cycles=True)
    assert run.instructions and run.cycles and run.cycles.total is None
    assert "no -plugin" in run.cycles.note


@pytest.mark.qemu
def test_cpu_without_timing_leaves_a_note():
    run = simulate(add_one(), replace(M4, core="another"), ONE, cycles=True)
    assert run.cycles and run.cycles.total is None and "another" in run.cycles.note
    assert simulate(add_one(), M4, ONE).cycles is None


@pytest.mark.qemu
def test_profile_that_misses_instructions_is_refused(tmp_path: Path):
    machine = find_machine(M4)
    images = build_target(assembled(COUNTDOWN), M4, machine, tmp_path, hooks=False)
    profiler = Profiler(machine, assembled(COUNTDOWN), ONE[0], M4, 60)
    assert estimate_cycles(images, profiler, 203).total == 403
    with pytest.raises(VerificationError, match="must agree"):
        estimate_cycles(images, profiler, 204)
    assert estimate_cycles(images, replace(profiler, board=replace(M4, core="another")), 203).total is None
