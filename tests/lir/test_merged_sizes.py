# SPDX-License-Identifier: Apache-2.0
"""One program for many sizes, merged from programs that are written by hand: what may differ, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from mcugen.core.errors import ModelError, UnsupportedError
from mcugen.hir.types import DType, QuantParams, Shape
from mcugen.lir.bounded import MAX_SIZE_SYMBOLS, NUM_RANGE_SIZES, NUM_TRIED_SIZES, difference, merge_sizes
from mcugen.lir.formula import Atom, Polynomial, Quotient, Sizes, Symbol, ValueTable
from mcugen.lir.program import Access, Buffer, Control, Endpoint, Instr, Operand, Overlap, Program, Space, Wide

N = Polynomial(((1, (Atom("n"),)),))
T = Symbol("n", 1, 8)


@dataclass
class Fixed:
    """The model at fixed sizes; `change` makes its program another."""

    sizes: Sizes
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    outputs: Mapping[str, Shape] = field(default_factory=dict)
    change: Callable[[Program, Sizes], None] | None = None

    def lower(self) -> Program:
        """x[n, 3] → t[n, 3] → y[2n], with a constant and a parameter of each kind."""
        n = self.sizes["n"]
        program = Program("net")
        x, t, y = (
            Buffer(name, DType.FLOAT32, count, space)
            for name, count, space in (("x", 3 * n, Space.INPUT), ("t", 3 * n, Space.ARENA), ("y", 2 * n, Space.OUTPUT))
        )
        w = Buffer("w", DType.INT8, 4, Space.CONST, np.arange(4, dtype=np.int8))
        s = Buffer("s", DType.INT8, 5, Space.STATE)
        program.buffers = [x, t, y, w, s]
        program.inputs, program.outputs = [endpoint(x, (n, 3))], [endpoint(y, (2 * n,))]
        program.states = [endpoint(s, (5,))]
        first = (Operand("x", Access.IN, x), Operand("w", Access.IN, w), Operand("y", Access.OUT, t))
        second = (Operand("x", Access.IN, t), Operand("s", Access.INOUT, s), Operand("y", Access.OUT, y))
        params = {"count": 3 * n, "fixed": 7, "nan": float("nan"), "mean": 1 / n}
        program.instrs = [
            Instr("f", "t", first, params, frozenset({"count", "fixed"}), inplace=(("y", "x"),), origin=("", "F")),
            Instr(
                "g", "y", second, {"k": 1}, code={"o": 1}, overlaps=(Overlap("y", "x", 4 * n),), inplace=(("y", "x"),)
            ),
        ]
        if self.change:
            self.change(program, self.sizes)
        return program


def endpoint(buffer: Buffer, shape: Shape) -> Endpoint:
    return Endpoint(buffer.name, shape, buffer.dtype, None, buffer)


def merged(change: Callable[[Program, Sizes], None] | None = None, *symbols: Symbol) -> Program:
    return merge_sizes(symbols or [T], lambda sizes: Fixed(sizes, change=change))


def test_what_follows_the_size_becomes_a_formula():
    program = merged()
    first, second = program.instrs
    assert first.formulas == {"count": Polynomial(((3, (Atom("n"),)),)), "mean": Quotient(1.0, N)}
    examples = {k: v for k, v in first.params.items() if k != "nan"}
    assert examples == {"count": 3 * 10, "fixed": 7, "mean": 1.0}, "two larger sizes confirm the formulas"
    assert first.baked == {"fixed"}
    assert first.inplace == (("y", "x"),), "x and t have equally many elements at every size"
    assert (second.formulas, second.overlaps, second.inplace) == ({}, (), (("y", "x"),))
    assert [buffer.count for buffer in program.buffers] == [24, 24, 16, 4, 5]
    (x,), (y,) = program.inputs, program.outputs
    assert (x.shape, x.sizes) == ((8, 3), {0: N})
    assert (y.shape, y.sizes) == ((16,), {0: Polynomial(((2, (Atom("n"),)),))})
    assert y.shape_at({"n": 3}) == (6,)
    assert program.symbols == [T]


def test_a_range_of_one_size_has_no_formulas():
    program = merged(None, Symbol("n", 1, 1))
    assert program.instrs[0].formulas.keys() == {"count", "mean"}, "larger sizes confirm them"
    assert [buffer.count for buffer in program.buffers] == [3, 3, 2, 4, 5]


@pytest.mark.parametrize("falls", [False, True])
def test_a_length_of_two_values_has_a_formula_too(falls: bool):
    """All sizes of the range are tried, so that no larger one confirms it."""

    def change(program: Program, sizes: Sizes) -> None:
        length = (sizes["n"] + 9) // 10
        program.outputs[0] = replace(program.outputs[0], shape=(length,))
        program.buffers[1].count = 3 - length if falls else length

    program = merged(change, Symbol("n", 1, 20))
    (y,) = program.outputs
    assert (y.shape, [y.shape_at({"n": n}) for n in (1, 10, 11, 20)]) == ((2,), [(1,), (1,), (2,), (2,)])
    assert program.buffers[1].count == 2


def share_as(count: Callable[[int], int]) -> Callable[[Program, Sizes], None]:
    """Another number of elements of t, by the size."""

    def change(program: Program, sizes: Sizes) -> None:
        program.buffers[1].count = count(sizes["n"])

    return change


@pytest.mark.parametrize("count", [lambda n: 3 * n + 1, lambda n: 24, lambda n: 4 * n - 8 if n > 3 else n])
def test_what_may_have_other_lengths_has_no_one_place(count: Callable[[int], int]):
    """Only of equally many elements at all sizes one may overwrite the other."""
    assert merged(share_as(count)).instrs[0].inplace == ()


def test_pairs_that_not_all_sizes_allow_have_no_one_place():
    def change(program: Program, sizes: Sizes) -> None:
        if sizes["n"] == 5:
            program.instrs[0].inplace = ()

    assert merged(change).instrs[0].inplace == ()


def test_overlaps_that_all_sizes_have_stay_where_nothing_else_changes():
    def change(program: Program, sizes: Sizes) -> None:
        program.instrs[1].overlaps = (Overlap("y", "x", 4),)
        program.instrs[0].overlaps = (Overlap("y", "x", 4),)

    first, second = merged(change).instrs
    assert (first.overlaps, second.overlaps) == ((), (Overlap("y", "x", 4),))


def test_a_table_where_no_formula_is_simpler():
    values = [3, 1, 4, 1, 5, 9, 2, 6]

    def change(program: Program, sizes: Sizes) -> None:
        program.instrs[1].params = {"k": -values[(sizes["n"] - 1) % 8]}

    second = merged(change).instrs[1]
    assert second.formulas == {} or second.formulas == {"k": ValueTable("n", 1, tuple(-v for v in values))}
    assert second.params["k"] in (-9, 1)


# ---------------------------------------------------------------------------------------------------- differences


def programs() -> tuple[Program, Program]:
    return Fixed({"n": 4}).lower(), Fixed({"n": 2}).lower()


def test_programs_of_two_sizes_differ_in_nothing_else():
    one, other = programs()
    assert difference(one, other) == ""
    one.instrs[0].reason, one.instrs[0].macs, one.instrs[0].note = "else", 5, "note"
    assert difference(one, other) == ""


def set_up(program: Program, index: int, **changes: object) -> None:
    program.instrs[index] = replace(program.instrs[index], **changes)  # type: ignore[arg-type]


def other_operand(program: Program, index: int, place: int, **changes: object) -> None:
    operands = list(program.instrs[index].operands)
    operands[place] = replace(operands[place], **changes)  # type: ignore[arg-type]
    program.instrs[index].operands = tuple(operands)


def constant(*values: int) -> Buffer:
    return Buffer("w", DType.INT8, len(values), Space.CONST, np.asarray(values, np.int8))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda p: p.instrs.pop(), "other kernels are needed from the number of layers on"),
        (lambda p: set_up(p, 1, kernel="h"), "other kernels are needed from layer 'y' (g) on"),
        (lambda p: set_up(p, 0, kernel="h"), "other kernels are needed from layer 'F' (f) on"),
        (lambda p: set_up(p, 0, variant="v"), "layer 'F' (f): its variant differs"),
        (lambda p: set_up(p, 1, code={"o": 2}), "layer 'y' (g): its code differs"),
        (lambda p: set_up(p, 1, control=Control.IF), "layer 'y' (g): its control differs"),
        (lambda p: set_up(p, 1, params={"l": 1}), "layer 'y' (g): it has other parameters"),
        (lambda p: set_up(p, 1, params={"k": 1.0}), "layer 'y' (g): it has other parameters"),
        (lambda p: set_up(p, 1, params={"k": Wide(1)}), "layer 'y' (g): it has other parameters"),
        (lambda p: set_up(p, 0, baked=frozenset()), "layer 'F' (f): it has other parameters"),
        (lambda p: other_operand(p, 0, 0, role="z"), "layer 'F' (f): it has other operands"),
        (lambda p: other_operand(p, 0, 0, access=Access.INOUT), "layer 'F' (f): it has other operands"),
        (
            lambda p: other_operand(p, 1, 0, buffer=replace(p.buffers[1])),
            "layer 'y' (g): operand 'x' is another tensor",
        ),
        (lambda p: setattr(p.buffers[1], "dtype", DType.INT8), "layer 'F' (f): operand 'y' has another type"),
        (lambda p: setattr(p.buffers[1], "space", Space.OUTPUT), "layer 'F' (f): operand 'y' has another type"),
        (
            lambda p: other_operand(p, 0, 1, buffer=constant(0, 1, 2, 4)),
            "layer 'F' (f): operand 'w' 'w' is a constant that depends on the size",
        ),
        (
            lambda p: other_operand(p, 0, 1, buffer=constant(0, 1, 2, 3, 4)),
            "layer 'F' (f): operand 'w' 'w' is a constant that depends on the size",
        ),
        (
            lambda p: other_operand(p, 0, 1, buffer=constant()),
            "layer 'F' (f): operand 'w' 'w' is a constant that depends on the size",
        ),
        (lambda p: other_operand(p, 0, 1, buffer=constant(0, 1, 2)), ""),  # the beginning of the longer one
        (lambda p: setattr(p, "inputs", [replace(p.inputs[0], name="z")]), "'x' has another type or rank"),
        (lambda p: setattr(p, "outputs", [replace(p.outputs[0], dtype=DType.INT8)]), "'y' has another type or rank"),
        (lambda p: setattr(p, "outputs", [replace(p.outputs[0], shape=(1, 1))]), "'y' has another type or rank"),
        (
            lambda p: setattr(p, "outputs", [replace(p.outputs[0], quant=QuantParams(1.0, 0))]),
            "'y' has another type or rank",
        ),
        (
            lambda p: setattr(p, "outputs", [replace(p.outputs[0], buffer=replace(p.buffers[2]))]),
            "'y' is another tensor",
        ),
        (lambda p: setattr(p, "states", [replace(p.states[0], shape=(1,))]), "'s': state must have a fixed shape"),
    ],
)
def test_what_else_differs_is_told(damage: Callable[[Program], object], found: str):
    one, other = programs()
    damage(other)
    assert difference(one, other) == found


# ------------------------------------------------------------------------------------------------------- refusals


def at_sizes(sizes: range, damage: Callable[[Program], object]) -> Callable[[Program, Sizes], None]:
    return lambda program, at: damage(program) if at["n"] in sizes else None


OTHER_KERNEL: Callable[[Program], object] = lambda p: set_up(p, 1, kernel="h")  # noqa: E731


@pytest.mark.parametrize(
    ("sizes", "remedy"),
    [
        (range(1, 4), r"begin at 4: n=4\.\.8"),
        (range(1, 7), r"begin at 7: n=7\.\.8"),
        (range(1, 8), r"dimension: --dim n=SIZE"),  # one size would be left
        (range(2, 4), r"dimension \(--dim n=SIZE\), or begin at 4"),  # 1 may be alike by chance
        (range(4, 6), r"dimension: --dim n=SIZE"),  # not only small ones
        (range(7, 8), r"dimension: --dim n=SIZE"),
    ],
)
def test_sizes_that_are_otherwise_are_named_with_a_remedy(sizes: range, remedy: str):
    with pytest.raises(UnsupportedError, match=rf"n={sizes[0]}: other kernels.*{remedy}"):
        merged(at_sizes(sizes, OTHER_KERNEL))


def test_a_size_that_the_model_finds_must_not_matter():
    count = Symbol("m", 1, 8, output="count")
    change = lambda program, at: OTHER_KERNEL(program) if at["m"] == 3 else None  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"n=8, m=3: other kernels.*end the model at 'm'"):
        merged(change, T, count)
    mixed = lambda program, at: OTHER_KERNEL(program) if at["n"] != 8 != at["m"] else None  # noqa: E731
    with pytest.raises(UnsupportedError, match="n=2, m=3: other kernels"):
        merged(mixed, T, replace(count, output=""))


def test_a_size_that_is_refused_says_so():
    def build(sizes: Sizes) -> Fixed:
        if sizes["n"] == 3:
            raise ModelError("lengths must be even", "3", "pad it")
        return Fixed(sizes)

    with pytest.raises(
        ModelError, match=r"valid for every size of the range.*with n=3: lengths must be even\. 3.*pad it"
    ):
        merge_sizes([T], build)


def test_numbers_without_a_formula_are_refused():
    """Of a large range not all sizes are tried, and no table has all of them."""
    wide = Symbol("n", 1, 400)
    primes = [p for p in range(2, 500) if all(p % d for d in range(2, p))]

    def parameter(program: Program, sizes: Sizes) -> None:
        program.instrs[1].params = {"k": sum(p < sizes["n"] for p in primes)}

    def length(program: Program, sizes: Sizes) -> None:
        program.buffers[1].count = 1 + sum(p < sizes["n"] for p in primes)

    def axis(program: Program, sizes: Sizes) -> None:
        program.outputs[0] = replace(program.outputs[0], shape=(1 + sum(p < sizes["n"] for p in primes),))

    for change, what in (
        (parameter, "layer 'y' .g.: parameter 'k' follows no formula"),
        (length, "the size of 't' follows no formula"),
        (axis, "axis 0 of 'y' follows no formula"),
    ):
        with pytest.raises(UnsupportedError, match=what):
            merged(change, wide)


def test_a_length_that_would_be_negative_is_refused():
    def change(program: Program, sizes: Sizes) -> None:
        program.instrs[1].params = {"k": sizes["n"] - 1}

    merged(change)
    with pytest.raises(UnsupportedError, match=r"with n=0 parameter 'k' of layer 'y' \(g\) would be -1"):
        merged(change, Symbol("n", 0, 8))


@pytest.mark.parametrize("negative", [20, 31, 977])
def test_a_length_that_would_be_negative_at_one_size_is_refused(negative: int):
    """Of a large range all sizes are looked at, though few are tried."""
    wide = Symbol("n", 1, 1000)
    tried: list[int] = []

    def build(sizes: Sizes) -> Fixed:
        tried.append(sizes["n"])
        return Fixed(sizes, change=change)

    def change(program: Program, sizes: Sizes) -> None:
        n = sizes["n"]
        program.instrs[1].params = {"k": (n - negative + 1) * (n - negative - 1)}

    with pytest.raises(UnsupportedError, match=rf"with n={negative} parameter 'k' of layer 'y' \(g\) would be -1"):
        merge_sizes([wide], build)
    assert negative not in tried


def test_a_length_that_would_be_negative_where_two_sizes_are_least_is_refused():
    """Each of them is tried with the other at its largest."""

    def change(program: Program, sizes: Sizes) -> None:
        program.instrs[1].params = {"k": sizes["n"] + sizes["m"] - 3}

    assert merged(change, T, Symbol("m", 2, 8)).instrs[1].formulas.keys() == {"k"}
    with pytest.raises(UnsupportedError, match=r"with n=1, m=1 parameter 'k' of layer 'y' \(g\) would be -1"):
        merged(change, T, Symbol("m", 1, 8))


def test_few_examples_are_confirmed_beyond_the_range():
    """A length of steps of 9 has 3 of them up to 24; with more sizes it has as many as tell."""
    change = share_as(lambda n: (n + 8) // 9)
    assert merged(change, Symbol("n", 12, 24)).buffers[1].count == 3
    tried: list[int] = []

    def build(sizes: Sizes) -> Fixed:
        tried.append(sizes["n"])
        return Fixed(sizes)

    merge_sizes([Symbol("n", 3, 4)], build)
    assert sorted(tried) == [3, 4, *range(5, 13)]


@pytest.mark.parametrize("refused", [9, 10])
def test_larger_sizes_that_are_otherwise_or_refused_confirm_nothing(refused: int):
    tried: list[int] = []

    def build(sizes: Sizes) -> Fixed:
        tried.append(sizes["n"])
        if sizes["n"] >= refused:
            raise ModelError("too large", "", "")
        return Fixed(sizes, change=at_sizes(range(9, 10), OTHER_KERNEL))

    assert merge_sizes([T], build).instrs[0].formulas.keys() == {"count", "mean"}
    assert max(tried) == refused, "behind a size that is refused there is none"


@pytest.mark.parametrize("high", [NUM_RANGE_SIZES, NUM_RANGE_SIZES + 1, 1000])
def test_all_of_a_small_range_are_tried_and_some_of_a_large_one(high: int):
    tried: list[int] = []

    def build(sizes: Sizes) -> Fixed:
        tried.append(sizes["n"])
        return Fixed(sizes)

    merge_sizes([Symbol("n", 1, high)], build)
    assert len(tried) == len(set(tried))
    assert (
        len(tried) == NUM_RANGE_SIZES
        if high == NUM_RANGE_SIZES
        else NUM_RANGE_SIZES // 2 < len(tried) <= NUM_RANGE_SIZES
    )
    assert {*range(1, NUM_RANGE_SIZES // 4 + 1), *range(high - 7, high + 1)} <= set(tried) <= set(range(1, high + 1))
    assert max(b - a for a, b in zip(sorted(tried), sorted(tried)[1:], strict=False)) <= max(high / 20, 1)


def test_of_computed_sizes_few_are_tried_and_their_structure_is_that_of_larger_ones():
    tried: list[tuple[int, int]] = []

    def build(sizes: Sizes) -> Fixed:
        tried.append((sizes["n"], sizes["m"]))
        return Fixed(sizes)

    merge_sizes([T, Symbol("m", 1, 3, output="count")], build)
    assert tried[0] == (8, 10)
    tried.clear()
    merge_sizes([T, Symbol("m", 1, 300, output="count")], build)
    assert NUM_TRIED_SIZES // 2 < len({m for _, m in tried}) <= NUM_TRIED_SIZES


def test_no_more_sizes_than_can_be_tried():
    symbols = [Symbol(f"n{i}", 1, 2) for i in range(MAX_SIZE_SYMBOLS + 1)]
    with pytest.raises(UnsupportedError, match=f"at most {MAX_SIZE_SYMBOLS} sizes"):
        merge_sizes(symbols, lambda sizes: Fixed({"n": 2}))


# ---------------------------------------------------------------------------------------------- simpler programs


def test_where_an_axis_has_one_element_shapes_must_follow_the_others():
    def build(sizes: Sizes, first: Shape = (2, 3)) -> Fixed:
        n = sizes["n"]
        change = OTHER_KERNEL if n == 1 else lambda program: None
        return Fixed(sizes, {"t": (2 * n, 3) if n > 1 else first, "u": (n, 3)}, change=lambda p, at: change(p))

    assert merge_sizes([T], build).outputs[0].shape == (16,)
    for shape in ((3, 3), (2, 4), (2,), (2, 3, 1)):
        with pytest.raises(
            UnsupportedError, match=r"with n=1 tensor 't' is \(.*by the other sizes it should be \(2, 3\)"
        ):
            merge_sizes([T], lambda sizes, shape=shape: build(sizes, shape))


@pytest.mark.parametrize(("shape", "fits"), [((0,), True), ((1,), False)])
def test_without_elements_outputs_must_follow_the_formulas(shape: Shape, fits: bool):
    def build(sizes: Sizes) -> Fixed:
        return Fixed(sizes, outputs={"y": shape} if not sizes["n"] else {})

    none = Symbol("n", 0, 8)
    assert merge_sizes([T], build).symbols == [T]
    if fits:
        assert merge_sizes([none], build).symbols == [none]
        return
    with pytest.raises(
        UnsupportedError, match=r"with n=0 output 'y' is \(1,\), by the other sizes it should be \(0,\)"
    ):
        merge_sizes([none], build)


def test_shapes_that_other_sizes_lack_or_have_otherwise_are_not_compared():
    """Of names that only some sizes have, or whose rank depends on the size, no formula is known."""

    def build(sizes: Sizes) -> Fixed:
        n = sizes["n"]
        shapes: dict[str, Shape] = {"t": (n, 3), "rank": (4,) * (1 + n % 2)}
        if n == 1:
            shapes |= {"rank": (7, 7, 7), "small": (9,)}
        return Fixed(sizes, shapes, change=at_sizes(range(1, 2), OTHER_KERNEL))

    assert merge_sizes([T], build).outputs[0].shape == (16,)
