# SPDX-License-Identifier: Apache-2.0
"""What orders and places instructions, as text: `text/WHAT.txt` is a program before and after.

The first part is the test, written by hand; the other is written by `pytest --update-golden`, and then read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mcugen.lir.parser import parse_program
from mcugen.lir.printer import print_program
from mcugen.lir.program import Program
from mcugen.memory.order import reorder
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan

FILES = sorted((Path(__file__).parent / "text").glob("*.txt"))
AFTER = "=== after\n"


def place(program: Program) -> None:
    plan_memory(program)
    verify_plan(program)


STAGES: dict[str, Callable[[Program], object]] = {"reorder": reorder, "plan": place}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_stage(path: Path, golden: Callable[[str, str], None]):
    before = path.read_text().partition(AFTER)[0]
    about, text = before[: before.index("program ")], before[before.index("program ") :]
    program = parse_program(text)
    assert print_program(program) == text
    STAGES[path.stem](program)
    golden(str(path), f"{about}{text}{AFTER}{print_program(program)}")


def test_every_stage_has_its_text():
    assert {path.stem for path in FILES} == STAGES.keys()
