# SPDX-License-Identifier: Apache-2.0
"""What kernels declare: members of parameter structs, operands, conditions; calls that are not as declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

import pytest

from mcugen.core.errors import VerificationError
from mcugen.hir.types import DType
from mcugen.lir.kernel import (
    ByAxis,
    Call,
    DeclaredMember,
    Kernel,
    Options,
    Params,
    Real,
    Role,
    Trained,
    no_rounds,
    reads,
    scratch,
    updates,
    writes,
)
from mcugen.lir.program import Access, Buffer, Double, Instr, Operand, Space, Wide
from mcugen.reporting.kernels import declared_kernels

ZERO = Double(0)


class Some(Params):
    """Members of each kind."""

    count: Annotated[int, "elements"]
    zero: Annotated[Trained, "zero point"]
    factor: Annotated[Wide | None, "multiplier"] = None
    low: Annotated[float, "limit"] = 0.0
    exact: Annotated[Double, "limit in double"] = ZERO
    real_: Annotated[Real | None, "as computed"] = None


class Axes(ByAxis):
    """Members by axis."""

    d: Annotated[Mapping[str, int], "trips"]
    x_s: Annotated[Mapping[str, int], "steps"]
    start: Annotated[int | None, "where it begins"] = None


class Flags(Options):
    """One option."""

    wide: Annotated[bool, "whether it is"]


KERNEL = Kernel(
    "k",
    operands=(
        reads("x", "input", DType.INT8),
        reads("t", "table", optional=True),
        reads("v", "several", several=True, optional=True),
        scratch("s", "room"),
        updates("z", "both", optional=True),
        writes("y", "output"),
    ),
    params=(Some, Axes),
    optional=(Axes,),
    options=(Flags,),
    without=frozenset({"low"}),
)


def test_members_are_declared_with_kind_and_meaning():
    assert Some.declared() == (
        DeclaredMember("count", int, "elements"),
        DeclaredMember("zero", int, "zero point", is_trained=True),
        DeclaredMember("factor", Wide, "multiplier", is_trained=True),
        DeclaredMember("low", float, "limit", is_trained=True),
        DeclaredMember("exact", Double, "limit in double", is_trained=True),
        DeclaredMember("real", object, "as computed", is_trained=True),
    )
    assert Axes.declared() == (
        DeclaredMember("d", int, "trips", many=True),
        DeclaredMember("x_s", int, "steps", many=True),
        DeclaredMember("start", int, "where it begins"),
    )
    assert Flags.declared() == (DeclaredMember("wide", object, "whether it is", is_trained=True),)


def test_values_have_their_types():
    found = Some(count=3, zero=-4, factor=Wide(5), exact=Double(1), real_=Double(2)).values()
    assert found == {"count": 3, "zero": -4, "factor": 5, "low": 0.0, "exact": 1.0, "real": 2.0}
    assert [type(v) for v in found.values()] == [int, int, Wide, float, Double, Double]
    assert list(Some(count=3, zero=-4).values()) == ["count", "zero", "low", "exact"]


@pytest.mark.parametrize(
    ("value", "fits"), [(2**31 - 1, True), (2**31, False), (-(2**31), True), (-(2**31) - 1, False)]
)
def test_an_int_has_32_bits(value: int, fits: bool):
    if fits:
        assert Some(count=value, zero=0).values()["count"] == value
        return
    with pytest.raises(VerificationError, match="parameter count must fit 32 bits"):
        Some(count=value, zero=0).values()


def test_a_wide_one_has_more():
    assert Some(count=0, zero=0, factor=Wide(2**40)).values()["factor"] == 2**40


def test_members_by_axis_come_axis_by_axis():
    trips = {f"d{axis}": axis for axis in range(11)}
    found = list(Axes(d=trips, x_s={"x_s0": 5, "x_s10": 6}, start=7).values())
    assert found == ["start", "d0", "x_s0", *(f"d{axis}" for axis in range(1, 10)), "d10", "x_s10"]


def test_members_are_found_by_name():
    assert [m.name for m in KERNEL.members] == ["count", "zero", "factor", "exact", "real", "d", "x_s", "start"]
    assert KERNEL.meaning("count") == "elements"
    assert KERNEL.meaning("d1") == "trips"
    assert KERNEL.meaning("x_s1") == "steps"
    assert KERNEL.meaning("count1") == ""
    assert KERNEL.member("low") is None
    by_place = type("ByPlace", (Axes,), {"by_place": True})
    assert [m.name for m in replace(KERNEL, params=(Some, by_place)).named_members] == [
        "count",
        "zero",
        "factor",
        "exact",
        "real",
    ]


def test_members_of_a_longer_name_are_another_declaration():
    """Whatever the order of declarations is: `d` names no member of `d_s`, and no single one called `depth`."""

    class Steps(Params):
        d_s: Annotated[Mapping[str, Trained], "trips of s"]
        depth: Annotated[int, "single"]
        d: Annotated[int, "first"]

    names = {"d0": "trips", "d_s0": "trips of s", "d_s12": "trips of s", "depth": "single", "d": "first"}
    for params in ((Axes, Steps), (Steps, Axes)):
        kernel = replace(KERNEL, params=params)
        assert {name: kernel.meaning(name) for name in names} == names
        assert kernel.member("depths") == kernel.member("d7")


@pytest.mark.parametrize("kernel", declared_kernels(), ids=lambda kernel: kernel.name)
def test_every_kernel_finds_each_of_its_members(kernel: Kernel):
    """Alternative groups may declare one name with other types and meanings, but agree on what training changes."""
    for member in kernel.members:
        found = kernel.member(f"{member.name}0" if member.many else member.name)
        assert found is not None
        assert (found.name, found.many, found.is_trained) == (member.name, member.many, member.is_trained)


def test_operands_are_found_by_name():
    assert [role.access for role in KERNEL.operands] == [
        Access.IN,
        Access.IN,
        Access.IN,
        Access.SCRATCH,
        Access.INOUT,
        Access.OUT,
    ]
    assert KERNEL.role("v12").meaning == "several"
    assert KERNEL.role("x").meaning == "input"
    with pytest.raises(VerificationError, match="kernel k has no operand x1"):
        KERNEL.role("x1")
    mingled = replace(KERNEL, operands=(reads("a", ""), reads("x", "", several=True), reads("t", "", several=True)))
    assert [mingled.place(name) for name in ("a", "x0", "t1", "x2")] == [0, 1, 1, 1]
    assert [KERNEL.place(name) for name in ("x", "t", "v1", "s", "z", "y")] == [0, 1, 2, 3, 4, 5]
    last = replace(KERNEL, operands=(reads("x", "", several=True), writes("y", "")))
    assert last.place("y") == 1


def buffer(dtype: DType = DType.INT8) -> Buffer:
    return Buffer("b", dtype, 4, Space.ARENA)


X, S, Y = buffer(), buffer(), buffer()
PARAMS, OPTIONS = [Some(count=1, zero=2)], [Flags(wide=True)]


def test_a_call_as_declared():
    axes = Axes(d={"d0": 3}, x_s={})
    call = Call(KERNEL, {"x": X, "s": S, "y": Y}, [*PARAMS, axes], OPTIONS, access={"y": Access.INOUT})
    assert call.operand_list() == (
        Operand("x", Access.IN, X),
        Operand("s", Access.SCRATCH, S),
        Operand("y", Access.INOUT, Y),
    )
    assert call.scalars() == {"count": 1, "zero": 2, "exact": 0.0, "d0": 3}
    assert call.template_options() == {"wide": True}
    many = {"x": X, "v1": buffer(), "v0": buffer(DType.FLOAT32), "s": S, "z": X, "y": Y}
    assert [o.role for o in Call(KERNEL, many, PARAMS, OPTIONS).operand_list()] == list(many)


@pytest.mark.parametrize(
    ("operands", "params", "options", "found"),
    [
        ({"x": X, "y": Y}, PARAMS, OPTIONS, "operands x, y"),
        ({"y": Y, "x": X, "s": S}, PARAMS, OPTIONS, "operands y, x, s"),
        ({"x": buffer(DType.UINT8), "s": S, "y": Y}, PARAMS, OPTIONS, "x of uint8"),
        ({"x": X, "s": S, "y": Y}, [], OPTIONS, r"\[\] for \['Some', 'Axes'\]"),
        ({"x": X, "s": S, "y": Y}, [Axes(d={}, x_s={}), *PARAMS], OPTIONS, "'Axes', 'Some'"),
        ({"x": X, "s": S, "y": Y}, PARAMS, [], r"\[\] for \['Flags'\]"),
        ({"x": X, "s": S, "y": Y, "w": X}, PARAMS, OPTIONS, "no operand w"),
    ],
)
def test_a_call_that_is_not_as_declared_is_refused(
    operands: dict[str, Buffer], params: list[Params], options: list[Options], found: str
):
    with pytest.raises(VerificationError, match=found):
        Call(KERNEL, operands, params, options)


@pytest.mark.parametrize(
    ("features", "runs"), [(set(), False), ({"dsp"}, True), ({"dsp", "fpu"}, True), ({"dsp", "helium"}, False)]
)
def test_features_that_a_kernel_needs_or_lacks(features: set[str], runs: bool):
    kernel = replace(KERNEL, needs=frozenset({"dsp"}), lacks=frozenset({"helium"}))
    assert kernel.runs_on(frozenset(features)) is runs


def is_small(layer: object) -> bool:
    """It is small.

    More."""
    return True


def test_reasons_are_library_features_and_conditions():
    assert KERNEL.reason == "portable C"
    assert replace(KERNEL, library="lib").reason == "lib"
    assert replace(KERNEL, needs=frozenset({"b", "a"}), when=(is_small,)).reason == "a; b; It is small."


@pytest.mark.parametrize(
    ("declare", "access"),
    [(reads, Access.IN), (writes, Access.OUT), (updates, Access.INOUT), (scratch, Access.SCRATCH)],
)
def test_operands_are_declared_by_their_use(declare: Callable[..., Role], access: Access):
    plain = Role("x", access, "what it is", (DType.INT8, DType.UINT8), optional=False, several=False)
    assert declare("x", "what it is", DType.INT8, DType.UINT8) == plain
    assert declare("x", "what it is") == replace(plain, types=())
    assert declare("x", "what it is", *plain.types, optional=True) == replace(plain, optional=True)
    assert declare("x", "what it is", *plain.types, several=True) == replace(plain, several=True)


def test_no_loop_depends_on_data_where_branches_alone_do():
    assert no_rounds(Instr("k", "y", ())) == 0


def test_what_is_not_said_of_a_kernel_is_the_plain_case():
    kernel, role, member = Kernel("k"), Role("x", Access.IN, "input"), DeclaredMember("n", int, "elements")
    assert (kernel.any_size, kernel.spends, kernel.loads, kernel.products, kernel.sweeps) == (False, False, 0.25, 1, 1)
    assert (role.optional, role.several, member.many, member.is_trained) == (False, False, False, False)
    assert not Some.by_place
