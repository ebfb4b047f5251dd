# SPDX-License-Identifier: Apache-2.0
"""Loops and branches in programs: the plan against running the program, with memory of its own for each buffer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Sketch, assert_overwrite_is_found

from mcugen.core.errors import VerificationError
from mcugen.hir.types import DType
from mcugen.lir.moves import order_moves
from mcugen.lir.printer import print_program
from mcugen.lir.program import MOVE, Access, Buffer, Control, Instr, Operand, Program, Space
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan

CELL = 16


class Flow(Sketch):
    """A sketch with blocks."""

    def mark(self, control: Control, *operands: tuple[str, Access, str], steps: int = 0) -> None:
        found = tuple(Operand(role, access, self.buffers[name]) for role, access, name in operands)
        params = {"steps": steps} if steps else {}
        self.program.instrs.append(Instr(control.value, control.value, found, params, control=control, group=1))

    def move(self, source: str, target: str) -> None:
        if target not in self.buffers:
            self.buffer(target, self.buffers[source].nbytes)
        operands = (Operand("x", Access.IN, self.buffers[source]), Operand("y", Access.OUT, self.buffers[target]))
        params = {"nbytes": self.buffers[target].nbytes}
        self.program.instrs.append(Instr(MOVE, target, operands, params, inplace=(("y", "x"),)))

    def loop(self, index: str, steps: int, *stacks: str, cond: str = "") -> Callable[[], None]:
        """Begins a loop; the result ends it."""
        self.buffer(index, CELL)
        conds = [("cond", Access.IN, cond)] if cond else []
        rows = [(f"part{i}", Access.OUT, name) for i, name in enumerate(stacks)]
        self.mark(Control.FOR, ("index", Access.OUT, index), *conds, *rows, steps=steps)
        return lambda: self.mark(Control.END, ("index", Access.INOUT, index), *conds)

    def row(self, index: str, source: str, stack: str) -> None:
        """A part of `stack`, written by each step."""
        names = (("x", Access.IN, source), ("y", Access.INOUT, stack), ("step", Access.IN, index))
        operands = tuple(Operand(role, access, self.buffers[name]) for role, access, name in names)
        self.program.instrs.append(Instr("part", stack, operands))


def carried(renew: str = "plain") -> Flow:
    """x → s; three times: n = f(s) (or f(w, s) before a late reader of s); s = n; y = g(s)."""
    flow = Flow()
    flow.input("x")
    flow.input("w")
    flow.move("x", "s")
    end = flow.loop("i", 3)
    flow.step("t", "w", "s")
    flow.step("n", *(["t", "s"] if renew == "with the old" else ["t"]), inplace=[1] if renew == "with the old" else [0])
    if renew == "late reader":
        flow.step("late", "s", "n")
        flow.move("late", "s")
    else:
        flow.move("n", "s")
    end()
    flow.step("y", "s")
    flow.output("y")
    return flow


def test_a_buffer_of_the_surroundings_lives_throughout_the_loop():
    flow = carried()
    ranges = flow.program.live_ranges()
    assert ranges[flow.buffers["w"]] == (-1, 5)
    assert ranges[flow.buffers["s"]] == (0, 6)
    assert ranges[flow.buffers["t"]] == (2, 3)
    assert flow.program.loops() == [(1, 5)]


@pytest.mark.parametrize(("renew", "shared"), [("plain", True), ("with the old", True), ("late reader", False)])
def test_states_are_renewed_in_place_where_nobody_reads_the_old_value_later(renew: str, shared: bool):
    flow = carried(renew)
    plan_memory(flow.program)
    verify_plan(flow.program)
    assert (flow.buffers["n"].offset == flow.buffers["s"].offset) is shared
    assert flow.buffers["x"].offset == flow.buffers["s"].offset
    run_both_ways(flow.program, [])


def test_stacked_parts_begin_with_the_loop():
    flow = Flow()
    flow.input("x")
    flow.buffer("all", 3 * CELL)
    end = flow.loop("i", 3, "all")
    flow.step("a", "x")
    flow.step("b", "a")
    flow.row("i", "b", "all")
    end()
    flow.output("all")
    plan_memory(flow.program)
    verify_plan(flow.program)
    assert flow.program.live_ranges()[flow.buffers["all"]] == (0, 5)


def test_stacked_parts_that_nobody_reads_keep_their_place_in_the_loop():
    flow = Flow()
    flow.input("x")
    flow.buffer("all", 3 * CELL)
    end = flow.loop("i", 3, "all")
    flow.row("i", "x", "all")
    flow.step("y", "x", nbytes=64)
    end()
    flow.step("z", "x")
    flow.output("z")
    plan_memory(flow.program)
    verify_plan(flow.program)
    assert flow.program.live_ranges()[flow.buffers["all"]] == (0, 3)


def test_layers_are_single_instructions_and_groups():
    flow = carried()
    for instr in flow.program.instrs[:-1]:
        instr.group = 1
    assert flow.program.layers() == [range(0, 6), range(6, 7)]
    assert flow.program.head(range(0, 6)).control is Control.FOR


def test_the_dump_shows_blocks():
    lines = print_program(carried().program).splitlines()
    assert "    1: for @out index=%i {steps=3} group 1" in lines
    assert any(line.startswith("    2:   kernel @in x0=%w") for line in lines)


# ------------------------------------------------------------------------------------------------- sabotage


def test_overwriting_what_the_next_step_reads_is_found():
    flow = carried()
    plan_memory(flow.program)
    flow.buffers["t"].offset = flow.buffers["w"].offset
    flow.program.instrs[2].inplace = (("y", "x0"),)
    with pytest.raises(VerificationError, match="%w: t: read after another buffer took its place"):
        verify_plan(flow.program)


def test_a_result_of_one_branch_only_is_found():
    flow = branching()
    plan_memory(flow.program)
    verify_plan(flow.program)
    flow.program.instrs.pop(5)  # the move in the second branch
    with pytest.raises(VerificationError, match="%y: z: read after another buffer took its place"):
        verify_plan(flow.program)


def test_a_result_of_a_loop_that_may_not_begin_is_found():
    flow = Flow()
    flow.input("x")
    flow.input("c")
    end = flow.loop("i", 3, cond="c")
    flow.step("y", "x")
    end()
    flow.output("y")
    plan_memory(flow.program)
    with pytest.raises(VerificationError, match="%y: an output is overwritten before the end"):
        verify_plan(flow.program)


def branching() -> Flow:
    """y = c ? f(x) : g(x); z = h(y)."""
    flow = Flow()
    flow.input("x")
    flow.input("c")
    flow.mark(Control.IF, ("cond", Access.IN, "c"))
    flow.step("a", "x", inplace=True)
    flow.move("a", "y")
    flow.mark(Control.ELSE)
    flow.step("b", "x", inplace=True)
    flow.move("b", "y")
    flow.mark(Control.END)
    flow.step("z", "y", inplace=True)
    flow.output("z")
    return flow


@pytest.mark.parametrize("taken", [False, True])
def test_branches_write_one_place(taken: bool):
    flow = branching()
    plan_memory(flow.program)
    verify_plan(flow.program)
    assert len({flow.buffers[name].offset for name in "aby"}) == 1
    run_both_ways(flow.program, [taken])


# ----------------------------------------------------------------------------------------- random programs


class Machine:
    """Runs a program on cells of 16 bytes: each result is a tuple of what it was computed from."""

    def __init__(self, program: Program, shared: bool, choices: list[bool]) -> None:
        self.program = program
        self.place = {b: (b.offset or 0) // CELL if shared else 1000 * i for i, b in enumerate(program.buffers)}
        self.cells: dict[int, object] = {}
        self.choices = itertools.cycle(choices or [True])
        for endpoint in program.inputs:
            self.write(endpoint.buffer, endpoint.name)

    def span(self, buffer: Buffer) -> range:
        return range(self.place[buffer], self.place[buffer] + -(-buffer.nbytes // CELL))

    def read(self, buffer: Buffer) -> tuple[object, ...]:
        return tuple(self.cells.get(cell) for cell in self.span(buffer))

    def write(self, buffer: Buffer, value: object) -> None:
        for number, cell in enumerate(self.span(buffer)):
            self.cells[cell] = hash((value, number))

    def run(self, at: int = 0) -> int:
        """From an instruction to the end of its block."""
        instrs = self.program.instrs
        while at < len(instrs) and instrs[at].control not in (Control.ELSE, Control.END):
            instr = instrs[at]
            if instr.control is Control.IF:
                other = next(i for i in range(at, len(instrs)) if self.closes(at, i, Control.ELSE))
                end = next(i for i in range(at, len(instrs)) if self.closes(at, i, Control.END))
                self.run(at + 1 if next(self.choices) else other + 1)
                at = end
            elif instr.control is Control.FOR:
                for operand in instr.operands:
                    if operand.access is Access.OUT:
                        self.write(operand.buffer, "nothing yet")
                for step in range(int(instr.params["steps"])):
                    self.write(instr.operand("index").buffer, step)
                    end = self.run(at + 1)
                at = end
            else:
                self.execute(instr)
            at += 1
        return at

    def closes(self, start: int, at: int, control: Control) -> bool:
        depth = 0
        for instr in self.program.instrs[start : at + 1]:
            depth += instr.control in (Control.IF, Control.FOR)
            depth -= instr.control is Control.END
        wanted = 0 if control is Control.END else 1
        return self.program.instrs[at].control is control and depth == wanted

    def execute(self, instr: Instr) -> None:
        reads = tuple(self.read(o.buffer) for o in instr.operands if o.access.reads)
        if instr.kernel == MOVE:
            x, y, length = (int(instr.params.get(key, 0)) // CELL for key in ("x_at", "y_at", "nbytes"))
            targets = self.span(instr.operand("y").buffer)[y : y + length]
            for cell, value in zip(targets, reads[0][x : x + length], strict=True):
                self.cells[cell] = value
            return
        for operand in instr.operands:
            if operand.access is Access.SCRATCH:
                self.write(operand.buffer, "garbage")
        for operand in instr.operands:
            if operand.access in (Access.OUT, Access.INOUT):
                self.write(operand.buffer, (instr.name, reads))


def run_both_ways(program: Program, choices: list[bool]) -> None:
    """The outputs are the same whether buffers share memory or not."""
    machines = [Machine(program, shared, choices) for shared in (False, True)]
    for machine in machines:
        machine.run()
    for endpoint in program.outputs:
        apart, together = (machine.read(endpoint.buffer) for machine in machines)
        assert apart == together, endpoint.name


@st.composite
def programs(draw: st.DrawFn) -> Flow:
    """Steps, moves of parts, branches and loops at random, nested at most twice; all but concats are one cell."""
    flow = Flow()
    names = (f"v{i}" for i in itertools.count())

    def any_of(visible: list[str]) -> str:
        return draw(st.sampled_from(visible))

    def some(visible: list[str]) -> str:
        return any_of([name for name in visible if flow.buffers[name].nbytes == CELL])

    def steps(visible: list[str], depth: int) -> None:
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["step"] * 4 + ["concat", "take"] + ["if", "loop"] * (depth < 2)))
            {"step": step, "concat": concat, "take": take, "if": branch, "loop": loop}[kind](visible, depth)

    def step(visible: list[str], depth: int) -> None:
        sources = list(dict.fromkeys(any_of(visible) for _ in range(draw(st.integers(1, 2)))))
        name = next(names)
        flow.step(name, *sources, inplace=draw(st.booleans()), scratch=draw(st.sampled_from([0, 0, 32])))
        visible.append(name)

    def concat(visible: list[str], depth: int) -> None:
        parts = [any_of(visible) for _ in range(draw(st.integers(1, 3)))]
        sizes = [flow.buffers[part].nbytes for part in parts]
        name = next(names)
        flow.buffer(name, sum(sizes))
        for part, end in zip(parts, itertools.accumulate(sizes), strict=True):
            flow.part(part, name, y_at=end - flow.buffers[part].nbytes)
        visible.append(name)

    def take(visible: list[str], depth: int) -> None:
        source, name = any_of(visible), next(names)
        flow.buffer(name)
        flow.part(source, name, x_at=CELL * draw(st.integers(0, flow.buffers[source].nbytes // CELL - 1)))
        visible.append(name)

    def branch(visible: list[str], depth: int) -> None:
        result = next(names)
        flow.mark(Control.IF, ("cond", Access.IN, some(visible)))
        for control in (Control.ELSE, Control.END):
            inner = list(visible)
            steps(inner, depth + 1)
            flow.move(some(inner), result)
            for _ in range(draw(st.integers(0, 1))):  # which may lie over the result by mistake
                step(inner, depth)
            flow.mark(control)
        visible.append(result)

    def loop(visible: list[str], depth: int) -> None:
        states = [next(names) for _ in range(draw(st.integers(1, 3)))]
        for state in states:
            flow.move(some(visible), state)
        index, stack = next(names), next(names)
        flow.buffer(stack)
        end = flow.loop(index, draw(st.integers(1, 3)), stack)
        inner = [*visible, *states, index]
        steps(inner, depth + 1)
        flow.row(index, some(inner), stack)
        moves = [(flow.buffers[some(inner)], flow.buffers[state]) for state in states]
        for source, target in order_moves(moves, lambda like: flow.buffer(next(names), like.nbytes)):
            flow.move(source.name, target.name)
        end()
        visible += [*states, stack]

    for k in range(draw(st.integers(1, 2))):
        flow.input(f"x{k}")
    top = list(flow.buffers)
    steps(top, 0)
    for name in dict.fromkeys(some(top) for _ in range(draw(st.integers(1, 2)))):
        if flow.buffers[name].space is Space.ARENA:
            flow.buffers[name].space = Space.OUTPUT
        flow.output(name)
    return flow


@settings(max_examples=400, deadline=None, derandomize=True)
@given(programs(), st.lists(st.booleans(), min_size=1, max_size=5))
def test_random_programs_compute_the_same_in_shared_memory(flow: Flow, choices: list[bool]):
    plan_memory(flow.program)
    verify_plan(flow.program)
    run_both_ways(flow.program, choices)


def survives(program: Program) -> bool:
    """Return whether outputs are the same in shared memory, whichever branches are taken."""
    num_branches = sum(instr.control is Control.IF for instr in program.instrs)
    for choices in itertools.product([True, False], repeat=min(num_branches, 4)):
        try:
            run_both_ways(program, list(choices))
        except AssertionError:
            return False
    return True


@settings(max_examples=80, deadline=None, derandomize=True)
@given(programs(), st.randoms(use_true_random=False))
def test_the_verifier_finds_every_damage_that_changes_a_result(flow: Flow, random: Random):
    plan_memory(flow.program)
    placed = [buffer for buffer in flow.program.buffers if buffer.planned]
    flow.program.area_sizes[0] += 4 * CELL
    for _ in range(6):
        moved, onto = random.choice(placed), random.choice(placed)
        before, moved.offset = moved.offset, onto.offset
        if not survives(flow.program):
            with pytest.raises(VerificationError):
                verify_plan(flow.program)
        moved.offset = before


@pytest.mark.parametrize("branch", [Control.IF, Control.ELSE])
@pytest.mark.parametrize("has_other_branch", [False, True])
def test_what_one_branch_overwrites_is_lost_behind_both(branch: Control, has_other_branch: bool):
    flow = Flow()
    flow.input("c")
    flow.input("x")
    flow.mark(Control.IF, ("cond", Access.IN, "c"))
    flow.step("a", "c")
    if has_other_branch or branch is Control.ELSE:
        flow.mark(Control.ELSE)
        flow.step("b", "c")
    flow.mark(Control.END)
    flow.step("y", "x")
    flow.output("y")
    plan_memory(flow.program)
    verify_plan(flow.program)
    written = flow.buffers["a" if branch is Control.IF else "b"]
    written.offset = flow.buffers["x"].offset
    with pytest.raises(VerificationError, match="%x: y: read after another buffer took its place"):
        verify_plan(flow.program)


@pytest.mark.parametrize("branch", [Control.IF, Control.ELSE])
def test_a_result_that_one_branch_overwrites_is_lost(branch: Control):
    flow = Flow()
    flow.input("c")
    flow.input("x")
    for control, name in ((Control.IF, "a"), (Control.ELSE, "b")):
        flow.mark(control, *([("cond", Access.IN, "c")] if control is Control.IF else []))
        flow.step(f"of_{name}", "x")
        flow.move(f"of_{name}", "y")
        flow.step(name, "c")
    flow.mark(Control.END)
    flow.step("z", "y")
    flow.output("z")
    plan_memory(flow.program)
    verify_plan(flow.program)
    assert_overwrite_is_found(
        flow, "a" if branch is Control.IF else "b", "y", "%y: z: read after another buffer took its place"
    )


def test_what_a_loop_without_steps_would_not_overwrite_may_be_lost():
    flow = Flow()
    flow.input("c")
    flow.input("x")
    end = flow.loop("i", 2, cond="c")
    flow.step("a", "c")
    end()
    flow.step("y", "x")
    flow.output("y")
    plan_memory(flow.program)
    verify_plan(flow.program)
    assert_overwrite_is_found(flow, "a", "x", "%x: y: read after another buffer took its place")


def test_moves_at_once():
    a, b, c, d = (Buffer(name, DType.INT8, 16, Space.ARENA) for name in "abcd")
    spare = Buffer("spare", DType.INT8, 16, Space.ARENA)

    def effect(moves: list[tuple[Buffer, Buffer]]) -> dict[str, str]:
        held = {x: x.name for x in (a, b, c, d)}
        for source, target in order_moves(moves, lambda _: spare):
            held[target] = held[source]
        return {x.name: held[x] for x in (a, b, c, d)}

    assert effect([(b, a), (a, b)]) == {"a": "b", "b": "a", "c": "c", "d": "d"}
    assert effect([(b, a), (c, b), (a, c), (a, d)]) == {"a": "b", "b": "c", "c": "a", "d": "a"}
    assert effect([(a, b), (b, c), (d, d)]) == {"a": "a", "b": "a", "c": "b", "d": "d"}
