# SPDX-License-Identifier: Apache-2.0
"""The order of instructions: as good as any where the graph is small, never worse, and never another computation."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Net, check_everywhere
from programs import Sketch, chain

from mcugen.driver.compiler import compile_model
from mcugen.hir.types import DType, TensorType
from mcugen.lir.formula import Atom, Polynomial, Symbol
from mcugen.lir.program import (
    ALIGNMENT,
    MOVE,
    Access,
    Buffer,
    Control,
    Endpoint,
    Instr,
    LessonPorts,
    Operand,
    Overlap,
    Program,
    Space,
)
from mcugen.memory import order
from mcugen.memory.order import reorder
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan


def names(sketch: Sketch) -> list[str]:
    return [instr.name for instr in sketch.program.instrs]


def reordered(sketch: Sketch) -> list[str]:
    """The instructions' names in the new order; both orders compute the same."""
    known: dict[object, int] = {}
    before = symbolic_outputs(sketch.program, known)
    reorder(sketch.program)
    assert symbolic_outputs(sketch.program, known) == before
    return names(sketch)


def symbolic_outputs(program: Program, known: dict[object, int]) -> dict[str, int]:
    """What each output is made of, and each state: the instructions that wrote it, with what they read, by number."""
    held = {b: known.setdefault(b.name, len(known)) for b in program.buffers}
    for instr in program.instrs:
        read = tuple(held[o.buffer] for o in instr.operands if o.access.reads)
        for operand in instr.operands:
            if operand.access is not Access.IN:
                held[operand.buffer] = known.setdefault((instr.name, operand.role, read), len(known))
    ends = {e.buffer for e in program.outputs} | {b for b in program.buffers if b.space is Space.STATE}
    return {b.name: held[b] for b in ends}


# ------------------------------------------------------------------------------------- the measure, once again


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Measure:
    """The most bytes alive at an instruction: of the given order, and of the best of all orders."""

    def __init__(self, program: Program) -> None:
        self.instrs = program.instrs
        self.uses = [{o.buffer for o in i.operands if o.buffer.planned} for i in self.instrs]
        self.inputs, self.outputs = ({e.buffer for e in side} for side in (program.inputs, program.outputs))
        self.ends = max(sum(aligned(b.nbytes) for b in side) for side in (self.inputs, self.outputs))

    def cost(self, done: frozenset[int], now: int) -> int:
        later = [uses for i, uses in enumerate(self.uses) if i not in done and i != now]
        begun = self.inputs.union(*(self.uses[i] for i in done))
        needed = self.outputs.union(*later)
        never_used = self.inputs - set().union(*self.uses)
        alive = begun & needed | never_used | self.uses[now]
        saved = [0]
        for y, x, extent in shared(self.instrs[now]):
            if y not in begun and x not in needed:
                saved.append(aligned(x.nbytes) + aligned(y.nbytes) - aligned(extent))
        return sum(aligned(b.nbytes) for b in alive) - max(saved)

    def given(self) -> int:
        return max(self.ends, *(self.cost(frozenset(range(i)), i) for i in range(len(self.instrs))))

    def best(self) -> int:
        """By trying every order."""
        instrs = self.instrs
        uses = [{o.buffer for o in i.operands} for i in instrs]
        writes = [{o.buffer for o in i.operands if o.access is not Access.IN} for i in instrs]
        before = [{i for i in range(j) if writes[i] & uses[j] or uses[i] & writes[j]} for j in range(len(instrs))]

        @cache
        def rest(done: frozenset[int]) -> int:
            ready = [i for i in range(len(instrs)) if i not in done and before[i] <= done]
            return min((max(self.cost(done, i), rest(done | {i})) for i in ready), default=self.ends)

        return rest(frozenset())


def shared(instr: Instr) -> list[tuple[Buffer, Buffer, int]]:
    found = []
    for out, into in instr.inplace:
        y, x = instr.operand(out).buffer, instr.operand(into).buffer
        if y.nbytes <= x.nbytes:
            found.append((y, x, x.nbytes))
    for overlap in instr.overlaps:
        y, x = instr.operand(overlap.out).buffer, instr.operand(overlap.into).buffer
        found.append((y, x, min(max(max(overlap.lead, 0) + x.nbytes, y.nbytes), x.nbytes + y.nbytes)))
    return [(y, x, extent) for y, x, extent in found if sum(o.buffer is x for o in instr.operands) == 1]


@st.composite
def graphs(draw: st.DrawFn) -> Sketch:
    """Up to nine instructions of any width and depth, with scratch, in place or at a distance, some accumulating."""
    sketch = Sketch()
    sizes = st.sampled_from([8, 16, 40, 64, 100, 160, 300])
    sketch.input("in", draw(sizes))
    if draw(st.booleans()):
        sketch.input("late", draw(sizes))
    for index in range(draw(st.integers(1, 9))):
        readable = [name for name in sketch.buffers if not name.endswith(".scratch")]
        sources = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=2))
        written = [name for name in readable if name not in (*sources, "in", "late")]
        if written and draw(st.integers(0, 5)) == 0:
            sketch.step(draw(st.sampled_from(written)), *sources, access=Access.INOUT)
            continue
        instr = sketch.step(
            f"b{index}",
            *sources,
            nbytes=draw(sizes),
            inplace=draw(st.booleans()),
            scratch=draw(st.sampled_from([0, 0, 40])),
        )
        if draw(st.integers(0, 3)) == 0:
            instr.overlaps = (Overlap("y", "x0", draw(st.sampled_from([-16, 0, 8, 50, 100]))),)
    readable = [name for name in sketch.buffers if not name.endswith(".scratch")]
    for name in draw(st.lists(st.sampled_from(readable), min_size=1, max_size=2, unique=True)):
        sketch.output(name)
    return sketch


@settings(max_examples=300, deadline=None, derandomize=True)
@given(graphs())
def test_small_graphs_get_the_best_order_of_all(sketch: Sketch):
    measure, before = Measure(sketch.program), names(sketch)
    given_peak, best = measure.given(), measure.best()
    after = reordered(sketch)
    assert Measure(sketch.program).given() == best
    if given_peak == best:
        assert after == before


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs(), st.randoms(use_true_random=False))
def test_the_peak_of_any_order_is_what_counting_gives(sketch: Sketch, random: Random):
    program = sketch.program
    problem = order._Problem(program)
    taken, done, ready = list[int](), 0, problem.first_ready
    while ready:
        unit = random.choice([bit.bit_length() - 1 for bit in order._bits(ready)])
        taken.append(unit)
        done |= 1 << unit
        ready = ready & ~(1 << unit) | problem.newly_ready(unit, done)
    assert sorted(taken) == list(range(len(program.instrs)))
    peak = problem.peak(taken)
    program.instrs = [program.instrs[unit] for unit in taken]
    assert peak == Measure(program).given()


# ------------------------------------------------------------------------------------------- parts of the measure


@pytest.mark.parametrize("seed", range(12))
def test_what_must_be_done_before_is_what_uses_the_same(seed: int):
    """One of two writes what the other uses; a move takes its source away. Constants and what is lent do not count."""
    random, sketch = Random(seed), Sketch()
    for name in "abc":
        sketch.buffer(name)
    for space in (Space.CONST, Space.GIVEN, Space.STATE):
        sketch.buffer(space.value, 16, space)
    for number in range(8):
        source, target = random.sample(sorted(sketch.buffers), 2)
        if random.random() < 0.4:
            sketch.part(source, target)
        else:
            access = random.choice((Access.OUT, Access.INOUT, Access.SCRATCH))
            sketch.step(target, source, access=access).name = f"n{number}"
    instrs = sketch.program.instrs
    counted = [b for b in sketch.program.buffers if b.space not in (Space.CONST, Space.GIVEN)]
    uses = [{o.buffer for o in i.operands if o.buffer in counted} for i in instrs]
    takes = [
        {o.buffer for o in i.operands if o.buffer in counted and (o.access is not Access.IN or i.kernel == MOVE)}
        for i in instrs
    ]
    found = order._dependencies(sketch.program, [range(i, i + 1) for i in range(len(instrs))])
    wanted = [{i for i in range(j) if takes[i] & uses[j] or uses[i] & takes[j]} for j in range(len(instrs))]
    assert [{bit.bit_length() - 1 for bit in order._bits(mask)} for mask in found] == wanted


def test_units_are_layers_blocks_and_what_is_said_to_stay_together():
    sketch = Sketch()
    sketch.input("x")
    for number in range(6):
        sketch.step(f"s{number}", "x")
    instrs = sketch.program.instrs
    instrs[0].group = instrs[1].group = 1
    instrs[2].unit = instrs[3].unit = 5
    instrs[4].unit = 6
    for kernel in ("for", "", "if", "", "end", "end", "stop", ""):
        if kernel:
            sketch.emit(kernel, **({"steps": 2} if kernel == "for" else {"phase": 0} if kernel == "stop" else {}))
            instrs[-1].group = 0
        else:
            sketch.step(f"s{len(instrs)}", "x")
    wanted = [range(2), range(2, 4), range(4, 5), range(5, 6), range(6, 12), range(12, 13), range(13, 14)]
    assert order._units(sketch.program) == wanted
    instrs[5].unit = 6
    assert order._units(sketch.program) == [*wanted[:2], range(4, 6), *wanted[4:]]
    instrs[1].unit = instrs[2].unit = instrs[3].unit = 6
    assert order._units(sketch.program) == [range(6), *wanted[4:]]


def layer() -> Sketch:
    """x → a → b → y as one layer, the second with working memory; then z, of y and of x."""
    sketch = Sketch()
    sketch.input("x", 160)
    sketch.step("a", "x", nbytes=33)
    sketch.step("b", "a", nbytes=64, scratch=8)
    sketch.step("y", "b", nbytes=16, inplace=True)
    for instr in sketch.program.instrs:
        instr.group = 1
    sketch.step("z", "x", "y", nbytes=32, scratch=24)
    sketch.output("z")
    return sketch


def test_a_layer_takes_what_it_has_for_itself_at_its_busiest_besides_what_it_shares():
    sketch = layer()
    problem = order._Problem(sketch.program)
    inside = 48 + 64 + 16
    assert problem._inner == [inside, 0]
    cost, live = problem.step(0, 0, problem.first_live)
    assert cost == 160 + 16 + inside
    assert problem.nbytes(live) == 160 + 16
    cost, live = problem.step(1, 1, live)
    assert cost == 160 + 16 + 32 + 32
    assert problem.nbytes(live) == 32
    assert problem.floor == problem.peak([0, 1]) == 160 + 16 + inside


def test_a_block_as_a_whole_may_lie_over_its_input_and_a_layer_of_several_instructions_not():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("y", 64)
    sketch.emit("stream", ("x", Access.IN, "x"), ("y", Access.OUT, "y"), overlaps=(Overlap("y", "x", 16),), events=[0])
    sketch.emit("case", case=0)
    sketch.step("row", "x")
    sketch.step("y", "row", access=Access.INOUT)
    sketch.emit("end")
    sketch.emit("end")
    sketch.output("y")
    assert order._Problem(sketch.program).peak([0]) == 64 + 16 + 16
    for instr in sketch.program.instrs:
        instr.control, instr.group = Control.NONE, 1
    assert order._Problem(sketch.program).peak([0]) == 64 + 64 + 16


@pytest.mark.parametrize(
    ("parts", "within"),
    [
        ([(0, 16), (16, 16)], "ab"),
        ([(0, 16), (8, 16)], "a"),
        ([(0, 16), (12, 8)], "a"),
        ([(16, 16), (0, 16)], "ab"),
        ([(16, 16), (0, 17)], "a"),
        ([(0, 16), (18, 16)], "a"),  # not at a word
    ],
)
@pytest.mark.parametrize("is_input", [False, True])
def test_parts_of_a_tensor_lie_in_it_unless_two_have_the_same_bytes(
    parts: list[tuple[int, int]], within: str, is_input: bool
):
    sketch = Sketch()
    if is_input:
        sketch.input("x", 64)
    else:
        sketch.input("in")
        sketch.step("x", "in", nbytes=64)
    for name, (at, nbytes) in zip("ab", parts, strict=True):
        sketch.buffer(name, nbytes)
        sketch.part("x", name, x_at=at)
    sketch.step("y", "a", "b")
    sketch.output("y")
    problem = order._Problem(sketch.program)
    bit = {name: problem._bit[buffer] for name, buffer in sketch.buffers.items()}
    assert problem._hosts == {bit[name]: bit["x"] for name in within}
    every = bit["x"] | bit["a"] | bit["b"]
    apart = [aligned(nbytes) for name, (_, nbytes) in zip("ab", parts, strict=True) if name not in within]
    assert problem.nbytes(every) == 64 + sum(apart)


def test_parts_of_parts_lie_in_all_of_these():
    """A source that is an output is needed as it is, and what is moved within one buffer lies in none."""
    sketch = Sketch()
    sketch.input("in")
    sketch.step("small", "in", nbytes=16)
    sketch.buffer("middle", 32)
    sketch.buffer("whole", 96)
    sketch.part("small", "middle", y_at=16)
    sketch.part("middle", "whole", y_at=64)
    sketch.part("whole", "whole", x_at=64, y_at=0, nbytes=32)
    sketch.step("y", "whole")
    sketch.output("y")
    problem = order._Problem(sketch.program)
    small, middle, whole = (problem._bit[sketch.buffers[name]] for name in ("small", "middle", "whole"))
    assert problem._hosts == {small: middle | whole, middle: whole}
    assert dict(problem._guests) == {middle: small, whole: small | middle}
    assert problem.nbytes(small | whole) == problem.nbytes(small | middle | whole) == 96
    assert (problem.nbytes(small | middle), problem.nbytes(small)) == (32, 16)
    sketch.output("middle")
    problem = order._Problem(sketch.program)
    small, middle = (problem._bit[sketch.buffers[name]] for name in ("small", "middle"))
    assert problem._hosts == {small: middle}


@pytest.mark.parametrize(
    ("inplace", "overlaps", "sizes", "wanted"),
    [
        (True, (), (64, 64), [64]),
        (True, (), (64, 48), [64]),
        (True, (), (48, 64), []),
        (False, (Overlap("y", "x0", 16),), (64, 64), [80]),
        (False, (Overlap("y", "x0", -16),), (48, 64), [64]),
        (False, (Overlap("y", "x0", 63),), (64, 64), [127]),
        (False, (Overlap("y", "x0", 64),), (64, 64), []),
        (True, (Overlap("y", "x0", 16),), (64, 64), [64, 80]),
    ],
)
def test_bytes_that_an_output_and_an_input_take_together(
    inplace: bool, overlaps: tuple[Overlap, ...], sizes: tuple[int, int], wanted: list[int]
):
    sketch = Sketch()
    sketch.input("x", sizes[0])
    instr = sketch.step("y", "x", nbytes=sizes[1], inplace=inplace)
    instr.overlaps = overlaps
    x, y = sketch.buffers["x"], sketch.buffers["y"]
    assert list(order._shared_extents(instr)) == [(y, x, both) for both in wanted]
    instr.operands = (*instr.operands, Operand("again", Access.IN, x))
    assert list(order._shared_extents(instr)) == []


# ------------------------------------------------------------------------------------------- orders on paper


def branches(first: int, second: int) -> Sketch:
    """Two branches of these widths that end narrow, joined; in the file all of both begins before any of it ends."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("a", "x", nbytes=first)
    sketch.step("b", "x", nbytes=second)
    sketch.step("a.end", "a")
    sketch.step("b.end", "b")
    sketch.step("y", "a.end", "b.end")
    sketch.output("y")
    return sketch


@pytest.mark.parametrize("widths", [(400, 800), (800, 400)])
def test_a_branch_ends_before_the_next_one_begins(widths: tuple[int, int]):
    sketch = branches(*widths)
    plan_memory(sketch.program)
    assert sketch.program.arena_size >= 1200
    after = reordered(sketch)
    assert after.index("a.end") < after.index("b") or after.index("b.end") < after.index("a")
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    assert sketch.program.arena_size == 800 + 16 + 16


def test_the_wide_branch_with_the_narrow_end_comes_first():
    """While a wide one runs, the wide end of the other must not be waiting."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("kept", "x", nbytes=320)
    sketch.step("wide", "x", nbytes=640)
    sketch.step("narrow", "wide", nbytes=16)
    sketch.step("y", "kept", "narrow")
    sketch.output("y")
    assert reordered(sketch) == ["wide", "narrow", "kept", "y"]


def test_an_inception_block_computes_its_branches_one_by_one():
    sketch = Sketch()
    sketch.input("x", 64)
    widths = {"a": 64, "b": 480, "c": 240, "d": 960}
    for name, width in widths.items():
        sketch.step(f"{name}0", "x", nbytes=width)
    for name, width in widths.items():
        sketch.step(f"{name}1", f"{name}0", nbytes=width // 2)
    for name in widths:
        sketch.step(name, f"{name}1", nbytes=32)
    sketch.step("y", *widths, nbytes=128)
    sketch.output("y")
    assert Measure(sketch.program).given() >= 64 + sum(widths.values())
    reordered(sketch)
    assert Measure(sketch.program).given() == 64 + 960 + 480


def test_a_shortcut_is_computed_late():
    """Its projection is wider than what it reads."""
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.step("projected", "x", nbytes=512)
    sketch.step("a", "x", nbytes=256)
    sketch.step("b", "a", nbytes=256, scratch=512)
    sketch.step("c", "b", nbytes=512)
    sketch.step("y", "c", "projected", nbytes=512, inplace=True)
    sketch.output("y")
    assert reordered(sketch) == ["a", "b", "c", "projected", "y"]


@pytest.mark.parametrize("inplace", [False, True])
def test_chains_never_change(inplace: bool):
    sketch = chain(16, 64, 32, 480, 16, inplace=inplace)
    before = names(sketch)
    assert reordered(sketch) == before


def test_orders_without_advantage_never_change():
    sketch = branches(0, 0)
    before = names(sketch)
    assert reordered(sketch) == before


# ---------------------------------------------------------------------------------------- what must stay so


def test_a_state_is_read_before_it_is_renewed():
    """The wide reader of the old state would come last but for that."""
    sketch = Sketch()
    sketch.input("x", 16)
    state = sketch.buffer("state", 16, Space.STATE)
    sketch.program.states.append(Endpoint("state", (16,), DType.INT8, None, state))
    sketch.step("wide", "state", nbytes=800)
    sketch.step("w", "wide")
    sketch.step("new", "x", nbytes=16)
    sketch.step("state", "new")
    sketch.step("other", "x", nbytes=800)
    sketch.step("y", "w", "other")
    sketch.output("y")
    after = reordered(sketch)
    assert after.index("wide") < after.index("state")


def test_states_are_renewed_as_soon_as_they_can_be():
    """Where the peak is elsewhere, gradients do not wait for each other; the rate, of the caller's, comes along."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.buffer("given", 16, Space.GIVEN)
    for name in "ab":
        sketch.buffer(name, 16, Space.STATE)
        sketch.step(f"d{name}", "x")
    sketch.buffer("rate")
    sketch.part("given", "rate")
    for name in "ab":
        sketch.step(name, f"d{name}", "rate", access=Access.INOUT)
    sketch.step("wide", "x", nbytes=400)
    sketch.step("y", "wide")
    sketch.output("y")
    (end,) = sketch.program.outputs
    sketch.program.lesson = LessonPorts(end, end, end, 1, "a loss", "a rule", {}, ())
    assert reordered(sketch) == ["da", "rate", "a", "db", "b", "wide", "y"]


@pytest.mark.parametrize(
    ("nbytes", "wanted"),
    [(16, ["da", "rate", "a", "wide", "db", "b"]), (400, ["da", "wide", "db", "rate", "a", "b"])],
)
def test_states_are_renewed_later_where_a_rate_would_be_in_the_way(nbytes: int, wanted: list[str]):
    """Between the first and the second update a wide result is made."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.buffer("given", nbytes, Space.GIVEN)
    for name in "ab":
        sketch.buffer(name, 16, Space.STATE)
    sketch.step("da", "x")
    sketch.step("wide", "x", nbytes=400)
    sketch.step("db", "wide")
    sketch.buffer("rate", nbytes)
    sketch.part("given", "rate")
    for name in "ab":
        sketch.step(name, f"d{name}", "rate", access=Access.INOUT)
    end = Endpoint("x", (16,), DType.INT8, None, sketch.buffers["x"])
    sketch.program.lesson = LessonPorts(end, end, end, 1, "a loss", "a rule", {}, ())
    assert reordered(sketch) == wanted


def test_blocks_and_groups_move_as_a_whole():
    sketch = branches(400, 800)
    inside = sketch.program.instrs[1]
    for instr in (Instr("for", "loop", (), control=Control.FOR), Instr("end", "end", (), control=Control.END)):
        sketch.program.instrs.insert(1 if instr.control is Control.FOR else 3, instr)
    after = reordered(sketch)
    start = after.index("loop")
    assert after[start : start + 3] == ["loop", inside.name, "end"]
    assert after.index("a.end") < start or after.index("b.end") < after.index("a")


@pytest.mark.parametrize("what", ["group", "unit"])
def test_the_parts_of_a_layer_stay_together(what: str):
    sketch = branches(400, 800)
    for index in (1, 2):  # b and a.end
        setattr(sketch.program.instrs[index], what, 1)
    after = reordered(sketch)
    assert after.index("a.end") == after.index("b") + 1


def test_a_program_that_computes_sizes_stays_as_it_is():
    sketch = branches(400, 800)
    sketch.program.symbols = [Symbol("n", 0, 4, "y")]
    before = names(sketch)
    assert reordered(sketch) == before


def joined(*, shared_part: bool) -> Sketch:
    """Two parts made of wide tensors, moved into one result; the file makes both tensors first."""
    sketch = Sketch()
    sketch.input("x", 16)
    for name in "ab":
        sketch.step(f"{name}.wide", "x", nbytes=320)
    for name in "ab":
        sketch.step(name, f"{name}.wide", nbytes=160)
    if shared_part:
        sketch.step("early", "a", nbytes=16)
    sketch.buffer("y", 320)
    for at, name in ((0, "a"), (160, "b")):
        operands = (
            Operand("x", Access.IN, sketch.buffers[name]),
            Operand("y", Access.INOUT if at else Access.OUT, sketch.buffers["y"]),
        )
        sketch.program.instrs.append(Instr(MOVE, f"y{at}", operands, {"nbytes": 160, "x_at": 0, "y_at": at}))
    sketch.output("y")
    if shared_part:
        sketch.output("early")
    return sketch


def test_what_is_moved_into_a_whole_takes_no_memory_of_its_own():
    """The first part may be moved at once: its place in the whole is where it was computed."""
    sketch = joined(shared_part=False)
    assert reordered(sketch).index("a") < names(sketch).index("b.wide")
    plan_memory(sketch.program)
    verify_plan(sketch.program)


def test_a_part_is_moved_after_all_others_have_read_it():
    sketch = joined(shared_part=True)
    after = reordered(sketch)
    assert after.index("early") < after.index("y0")
    plan_memory(sketch.program)
    verify_plan(sketch.program)


# ------------------------------------------------------------------------------------------------ large graphs


def large(count: int, seed: int) -> Sketch:
    """A graph with branches everywhere, as a search for architectures might leave it."""
    random, sketch = Random(seed), Sketch()
    sketch.input("x", 64)
    ends = ["x"]
    for index in range(count):
        sources = random.sample(ends, min(len(ends), random.choice((1, 1, 1, 2, 3))))
        sketch.step(f"n{index}", *sources, nbytes=random.choice((16, 64, 256, 1024)), inplace=random.random() < 0.3)
        ends = [name for name in ends if name not in sources or random.random() < 0.4] + [f"n{index}"]
    sketch.step("y", *ends)
    sketch.output("y")
    return sketch


def test_work_on_large_graphs_is_bounded(monkeypatch: pytest.MonkeyPatch):
    sketch = large(300, 5)
    steps = 0
    step = order._Problem.step

    def counted(self: order._Problem, unit: int, done: int, live: int) -> tuple[int, int]:
        nonlocal steps
        steps += 1
        return step(self, unit, done, live)

    monkeypatch.setattr(order._Problem, "step", counted)
    given_peak = Measure(sketch.program).given()
    reordered(sketch)
    assert steps < 30 * order.MAX_ORDER_SETS
    assert Measure(sketch.program).given() < 0.9 * given_peak


def test_the_same_graph_gets_the_same_order():
    first = reordered(large(120, 3))
    order._known_orders.clear()
    assert reordered(large(120, 3)) == first


# ---------------------------------------------------------------------------------------------- compiled models


def test_a_compiled_model_in_another_order_computes_the_same():
    """Wide branches one by one: the arena holds one at a time, and results are those of ONNX Runtime."""
    random = np.random.default_rng(1)
    net = Net()
    net.input("x", 1, 2, 8, 8)
    ends = []
    for branch, width in enumerate((24, 16, 32)):
        kernel = net.const(random.standard_normal((width, 2, 3, 3)) / 4)
        net.op("Conv", "x", kernel, pads=[1] * 4, out=f"wide{branch}")
    for branch, width in enumerate((24, 16, 32)):
        kernel = net.const(random.standard_normal((2, width, 3, 3)) / 9)
        ends.append(net.op("Conv", f"wide{branch}", kernel, pads=[1] * 4, strides=[2, 2], out=f"end{branch}"))
    net.output(net.op("Concat", *ends, axis=1, out="y"))
    model = net.model()
    check_everywhere(model)
    assert compile_model(model).program.arena_size < 1.3 * 4 * 8 * 8 * (32 + 2 + 2)


def parallel(count: int, kind: str) -> Sketch:
    """Branches from one input: joined to one tensor, added up pairwise, or outputs themselves."""
    sketch = Sketch()
    sketch.input("in", 32)
    ends = []
    for number in range(count):
        sketch.step(f"wide{number}", "in", nbytes=48)
        sketch.step(f"end{number}", f"wide{number}", nbytes=16, inplace=number % 2 == 0)
        ends.append(f"end{number}")
    if kind == "outputs":
        for name in ends:
            sketch.output(name)
        return sketch
    if kind == "joined":
        sketch.buffer("whole", 16 * count)
        for number, name in enumerate(ends):
            sketch.part(name, "whole", y_at=16 * number, nbytes=16)
        sketch.step("out", "whole")
    while kind == "added" and len(ends) > 1:
        first, second, *ends = ends
        sketch.step(f"{first}+", first, second, inplace=True)
        ends.append(f"{first}+")
    sketch.output("out" if kind == "joined" else ends[0])
    return sketch


KINDS = ["joined", "added", "outputs"]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_sets_are_right_along_any_order(kind: str):
    """They are worked out from those of the set before; a problem that knows no other set adds all up."""
    random = Random(kind)
    sketch = parallel(9, kind)
    problem = order._Problem(sketch.program)
    for _ in range(20):
        done, live, ready = 0, problem.first_live, problem.first_ready
        problem.nbytes(live)
        while ready:
            unit = random.choice([bit.bit_length() - 1 for bit in order._bits(ready)])
            cost, after = problem.step(unit, done, live)
            fresh = order._Problem(sketch.program)
            during = live | fresh._touched[unit]
            assert (problem.nbytes(during), problem.nbytes(after)) == (fresh.nbytes(during), fresh.nbytes(after))
            assert cost == order._Problem(sketch.program).step(unit, done, live)[0]
            ready = ready & ~(1 << unit) | problem.newly_ready(unit, done | 1 << unit)
            done, live = done | 1 << unit, after


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_the_search_costs_the_same_in_wider_graphs(kind: str, monkeypatch: pytest.MonkeyPatch):
    """It looks at what changes, not at all branches that wait for their end."""
    monkeypatch.setattr(order, "MAX_ORDER_SETS", 800)
    monkeypatch.setattr(order, "MAX_BUFFER_VISITS", 10**9)
    found = []
    for count in (12, 24, 48):
        steps = summed = 0
        plain, apart = order._Problem.step, order._Problem._own_bytes

        def counted(*given: int, plain=plain) -> tuple[int, int]:
            nonlocal steps
            steps += 1
            return plain(*given)

        def added(problem: order._Problem, some: int, live: int, apart=apart) -> int:
            nonlocal summed
            summed += some.bit_count()
            return apart(problem, some, live)

        with monkeypatch.context() as patch:
            patch.setattr(order._Problem, "step", counted)
            patch.setattr(order._Problem, "_own_bytes", added)
            order._search(order._Problem(parallel(count, kind).program))
        found.append(summed / steps)
    assert found[2] < 1.5 * found[0] + 4, found


def test_equal_problems_are_solved_once(monkeypatch: pytest.MonkeyPatch):
    """Candidate programs of a model differ in kernels: in what is alive when most of them do not."""
    searches = []
    plain = order._search
    monkeypatch.setattr(order, "_search", lambda problem: searches.append(1) or plain(problem))
    monkeypatch.setattr(order, "_known_orders", {})
    first = reordered(parallel(6, "added"))
    assert reordered(parallel(6, "added")) == first
    assert len(searches) == 1
    for count in range(2, 2 + 2 * order.MAX_KNOWN_ORDERS):
        reordered(parallel(count, "outputs"))
    assert len(order._known_orders) == order.MAX_KNOWN_ORDERS
    monkeypatch.setattr(order, "MAX_BUFFER_VISITS", 0)
    reordered(parallel(6, "added"))
    assert len(searches) == 2 + 2 * order.MAX_KNOWN_ORDERS


def test_types_of_a_node_are_worked_out_once(monkeypatch: pytest.MonkeyPatch):
    """A concatenation of many inputs is as many moves, each of which says what the whole reads and writes."""
    counts = []
    for inputs in (8, 16, 32):
        texts = 0
        plain = TensorType.__str__

        def counted(type_: TensorType, plain=plain) -> str:
            nonlocal texts
            texts += 1
            return plain(type_)

        net = Net()
        x = net.input("x", 1, 4)
        branches = (net.op("Tanh", net.op("Mul", x, net.const([i + 2.0]))) for i in range(inputs))
        net.output(net.op("Concat", *branches, axis=1))
        with monkeypatch.context() as patch:
            patch.setattr(TensorType, "__str__", counted)
            compile_model(net.model(), "host")
        counts.append(texts)
    assert counts[2] < 2.5 * counts[1] < 2.5**2 * counts[0] * 1.2, counts


def with_stop() -> Sketch:
    """Two wide results and what makes them small again, which no call needs that only runs."""
    sketch = Sketch()
    sketch.input("x")
    for name in "ab":
        sketch.step(f"{name}.wide", "x", nbytes=320)
    sketch.emit("stop", phase=0).group = 0
    for name in "ab":
        sketch.step(name, f"{name}.wide", nbytes=16)
        sketch.output(name)
    return sketch


def test_what_stands_before_a_stop_stays_before_it():
    sketch = with_stop()
    after = reordered(sketch)
    assert after.index("stop") == 2
    assert set(after[:2]) == {"a.wide", "b.wide"}
    without = with_stop()
    del without.program.instrs[2]
    assert reordered(without) in (["a.wide", "a", "b.wide", "b"], ["b.wide", "b", "a.wide", "a"])


def test_what_stands_behind_a_stop_stays_behind_it():
    """Though it would free a large input before wide results are made."""

    def made(*, stops: bool) -> Sketch:
        sketch = Sketch()
        sketch.input("large", 640)
        sketch.input("x")
        sketch.step("wide", "x", nbytes=640)
        if stops:
            sketch.emit("stop", phase=0).group = 0
        sketch.step("small", "large")
        sketch.step("y", "wide", "small")
        sketch.output("y")
        return sketch

    assert reordered(made(stops=True)) == ["wide", "stop", "small", "y"]
    assert reordered(made(stops=False)) == ["small", "wide", "y"]


@pytest.mark.parametrize("why", ["it stays", "its part is elsewhere at other sizes", "its part begins within a word"])
def test_a_move_that_cannot_vanish_saves_nothing(why: str):
    """Then both tensors that parts are made of need not be there at once, nor need a part and the whole."""
    sketch = joined(shared_part=False)
    problem = order._Problem(sketch.program)
    whole = sum(problem._bit[sketch.buffers[name]] for name in ("a", "b", "y"))
    assert problem.nbytes(whole) == 320
    move = next(instr for instr in sketch.program.instrs if instr.kernel == MOVE)
    if why == "it stays":
        move.stays = True
    elif why == "its part begins within a word":
        move.params = {**move.params, "y_at": 2}
    else:
        move.formulas = {"y_at": Polynomial(((1, (Atom("n"),)),))}
    problem = order._Problem(sketch.program)
    assert problem.nbytes(whole) == 320 + 160
