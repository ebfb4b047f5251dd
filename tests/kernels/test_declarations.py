# SPDX-License-Identifier: Apache-2.0
"""Kernels as they are declared: templates read the same names, and calls must agree."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import jinja2
import pytest

from mcugen.codegen.declarations import mismatches
from mcugen.codegen.environment import environment
from mcugen.core.errors import VerificationError
from mcugen.hir.types import DType
from mcugen.lir.kernel import Call, Kernel, Options, Params, reads, writes
from mcugen.lir.program import Buffer, Space, Wide
from mcugen.reporting.kernels import declared_kernels

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kernel", [k for k in declared_kernels() if k.operands], ids=lambda k: k.name)
def test_a_template_reads_what_its_kernel_declares(kernel: Kernel):
    assert mismatches(kernel, environment()) == []
    assert kernel.what, "says what it computes"


class Sizes(Params):
    count: Annotated[int, "elements of x"]
    offset: Annotated[Wide, "added to each product"]
    factor: Annotated[float | None, "of the sum"] = None


class Flags(Options):
    fast: Annotated[bool, "whether it is in a hurry"]


SCALE = Kernel(
    "scale",
    what="a test",
    operands=(reads("x", "input", DType.INT8), writes("y", "output")),
    params=(Sizes,),
    options=(Flags,),
)


def _buffers(dtype: DType = DType.INT8) -> dict[str, Buffer]:
    return {name: Buffer(name, dtype, 4, Space.ARENA) for name in "xy"}


def test_parameters_have_the_types_of_their_declaration_whatever_their_values():
    values = Sizes(count=3, offset=Wide(1)).values()
    assert {k: type(v) for k, v in values.items()} == {"count": int, "offset": Wide}
    assert Sizes(count=3, offset=Wide(1), factor=2).values()["factor"] == 2.0
    with pytest.raises(VerificationError, match="count must fit 32 bits"):
        Sizes(count=2**31, offset=Wide(1)).values()


def test_a_call_must_agree_with_the_declaration():
    sizes, flags = Sizes(count=3, offset=Wide(1)), Flags(fast=True)
    good = Call(SCALE, _buffers(), [sizes], [flags])
    assert good.template_options() == {"fast": True}
    x, y = _buffers().values()
    for operands in ({"x": x}, {"y": y, "x": x}, {"x": x, "y": y, "z": y}, _buffers(DType.INT16)):
        with pytest.raises(VerificationError, match="kernel scale"):
            Call(SCALE, operands, [sizes], [flags])
    with pytest.raises(VerificationError, match="Sizes"):
        Call(SCALE, _buffers(), [], [flags])
    with pytest.raises(VerificationError, match="Flags"):
        Call(SCALE, _buffers(), [sizes])


def test_numbered_operands_may_mingle():
    roles = (
        reads("x", "inputs", several=True),
        reads("t", "tables", several=True, optional=True),
        writes("y", "output"),
    )
    loop, buffer = Kernel("loop", operands=roles), Buffer("b", DType.INT8, 4, Space.ARENA)
    for names in ("x0 t1 x2 y", "t0 x1 y", "x0 y"):
        Call(loop, dict.fromkeys(names.split(), buffer))
    for names in ("x0 y t1", "t0 y", "x0"):
        with pytest.raises(VerificationError, match="kernel loop"):
            Call(loop, dict.fromkeys(names.split(), buffer))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ signature }} p->count p->offset p->factor {{ fast }}", []),
        ("p->count p->offset p->factor {{ fast }} p->other", ["reads p->other"]),
        ("p->count p->offset {{ fast }}", ["parameter factor"]),
        ("p->count p->offset p->factor {{ fast }} {{ slow }}", ["reads slow"]),
        ("p->count p->offset p->factor", ["option fast"]),
    ],
)
def test_names_that_only_one_side_knows(template: str, said: list[str]):
    env = jinja2.Environment(loader=jinja2.DictLoader({"kernels/scale.c.j2": template}), autoescape=False)
    found = mismatches(SCALE, env)
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))


class Place(Params):
    at: Annotated[int, "where x lies, for assembly"]
    by_place: ClassVar[bool] = True


def test_groups_that_variants_lack_and_members_that_a_kernel_has_no_use_for():
    placed = replace(SCALE, params=(Place, Sizes), optional=(Place,), without=frozenset({"offset"}))
    sizes, flags = Sizes(count=3, offset=Wide(1)), Flags(fast=True)
    assert Call(placed, _buffers(), [sizes], [flags]).scalars() == {"count": 3}
    assert Call(placed, _buffers(), [Place(at=7), sizes], [flags]).scalars() == {"at": 7, "count": 3}
    for params in ([Place(at=7)], [sizes, Place(at=7)]):
        with pytest.raises(VerificationError, match="Sizes"):
            Call(placed, _buffers(), params, [flags])


def test_assembly_reads_members_by_their_places():
    placed = replace(SCALE, params=(Place,))
    env = jinja2.Environment(loader=jinja2.DictLoader({"kernels/scale.c.j2": "{{ fast }}"}), autoescape=False)
    assert mismatches(placed, env) == []


MASKS_INTERRUPTS = re.compile(
    r"\bcpsi[de]\b|\b(primask|basepri|faultmask|mstatus|mie)\b|__(dis|en)able_irq|\bcsrr?[wsc]i?\b", re.IGNORECASE
)
TEMPLATES = ROOT / "templates"
FIRMWARE = [
    *(ROOT / "runtime_c").rglob("*.h"),
    *(path for path in TEMPLATES.rglob("*.j2") if not {"harness", "kit"} & set(path.relative_to(TEMPLATES).parts)),
]
"""What lands in firmware; the simulator's harness and the start-up code of kits do not."""


def test_no_template_masks_interrupts():
    assert MASKS_INTERRUPTS.search((ROOT / "templates/harness/arm/counter.c").read_text()), "which does mask them"
    assert MASKS_INTERRUPTS.search((ROOT / "templates/harness/riscv/reset.c").read_text())
    assert [str(path.relative_to(ROOT)) for path in FIRMWARE if MASKS_INTERRUPTS.search(path.read_text())] == []


OF_A_SYSTEM = re.compile(
    r"#include <(stdio|stdlib|signal|unistd|setjmp)\.h>"
    r"|\b(malloc|calloc|realloc|free|alloca|printf|puts|fopen|exit|abort|longjmp)\("
)


def test_no_template_asks_for_a_heap_files_or_an_end():
    asking = [str(path.relative_to(ROOT)) for path in FIRMWARE if OF_A_SYSTEM.search(path.read_text())]
    assert "templates/export/main.c.j2" in asking, "which does"
    assert [name for name in asking if not name.startswith("templates/export/")] == [], "but examples of programs"
