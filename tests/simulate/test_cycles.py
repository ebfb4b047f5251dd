# SPDX-License-Identifier: Apache-2.0
"""Estimated cycles: timings counted by hand from the CPUs' manuals, and profiles of what ran."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import add_one, assembled, tiny

from mcugen.board import Board, load_board
from mcugen.codegen.bundle import Bundle
from mcugen.errors import VerificationError
from mcugen.simulate import simulate
from mcugen.simulate.build import build_target
from mcugen.simulate.cycles import estimate_cycles
from mcugen.simulate.disassembly import Instruction, parse
from mcugen.simulate.machines import find_machine
from mcugen.simulate.profile import Edge, Profiler, Span, read_spans
from mcugen.simulate.timings import TIMINGS

M4, M7 = load_board("nrf52840"), load_board("rt1060")
BOARDS = {"cortex-m0plus": load_board("rp2040"), "cortex-m3": load_board("stm32f103"), M4.cpu: M4, M7.cpu: M7}
ONE = [{"x": np.zeros(16, np.int8)}]


def read(*lines: str) -> list[Instruction]:
    """Instructions from a mnemonic and operands each, as objdump would write them."""
    spaced = (line.replace(" ", "\t", 1) for line in lines)
    return list(parse(f"{2 * i:8x}:\t4770      \t{line}" for i, line in enumerate(spaced)))


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


def test_older_cpus_multiply_and_load_slower():
    loads = ("ldr r0, [r1]", "ldr r2, [r3]", "str r0, [r1]")
    assert [cycles(cpu, *loads) for cpu in ("cortex-m0plus", "cortex-m3")] == [6, 4]
    products = ("mla r0, r1, r2, r0", "smull r0, r1, r2, r3", "smlal r0, r1, r2, r3")
    assert cycles("cortex-m3", *products) == 2 + 5 + 7
    assert cycles("cortex-m0plus", "muls r0, r1", "pop {r4, r5, pc}", "bl 0") == 1 + (1 + 3 + 1) + 2


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        (1, ("adds r0, #1", "adds r1, #1")),
        (2, ("adds r0, #1", "adds r1, r0, #1")),
        (2, ("ldr r0, [r1]", "ldr r2, [r1]")),  # one access a cycle
        (1, ("ldr r0, [r1]", "smlad r4, r5, r6, r4")),
        (3, ("ldr r0, [r1]", "adds r0, #1")),  # loaded values come a cycle later
        (3, ("ldmia.w r0!, {r4, r5, r6, r7}", "adds r1, #1")),  # two words a cycle, alone
        (2, ("smlad r4, r5, r6, r4", "smlad r4, r7, r8, r4")),  # one product a cycle, forwarded as an addend
        (3, ("smlad r4, r5, r6, r4", "smlad r0, r4, r8, r0")),
        (4, ("vfma.f32 s0, s1, s2", "vadd.f32 s3, s0, s1")),
        (1, ("vfma.f32 s0, s1, s2", "vldr s3, [r0]")),
        (1, ("subs r0, #1", "bne.n 0 <f>")),
        (2, ("bne.n 0 <f>", "subs r0, #1")),
        (2, ("lsls r0, r1, #2", "add.w r2, r3, r4, lsl #2")),  # one shifter
    ],
)
def test_cortex_m7_model_issues_pairs(wanted: int, lines: tuple[str, ...]):
    assert cycles("cortex-m7", *lines) == wanted


def test_profile_is_read_span_by_span():
    first = ["edge 10 14 20 3", "memory 0 5 1 7 4 2 9", "unaligned 2", "mark 20"]
    spans = list(read_spans([*first, "memory 0 0 0 0 0 0 0", "unaligned 0", "mark 30"]))
    assert spans[0] == Span((Edge(0x10, 0x14, 0x20, 3),), 2, 0x20, ((0, 5, 1, 7, 4, 2, 9),))
    assert spans[1] == Span((), 0, 0x30, ((0,) * 7,))


COUNTDOWN = """
    movs r1, #100
    1: subs r1, #1
    bne 1b
    movs r0, #0
    bx lr
"""


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
    run = simulate(add_one(), load_board("corstone300"), ONE, cycles=True)
    assert run.cycles and run.cycles.total is None and "cortex-m55" in run.cycles.note
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
