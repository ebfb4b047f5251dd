# SPDX-License-Identifier: Apache-2.0
"""Which memories a program gets, and what is said where none is large enough."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from onnx_models import Net
from programs import Sketch, chain

from mcugen.core.board import Board, Memory, load_board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import Places
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import DType
from mcugen.lir.program import ALIGNMENT, Access, Buffer, Control, Instr, Operand, Program, Space
from mcugen.memory.place import NO_PLACES, place
from mcugen.memory.plan import plan_memory
from mcugen.memory.traffic import traffic


def board(arena: str = "fast", **sizes: int) -> Board:
    """RAM `fast` and `slow`, flash `rom`, of these sizes."""
    memories = (
        Memory("fast", "ram", 0x2000_0000, sizes.get("fast", 64), 1),
        Memory("slow", "ram", 0x3000_0000, sizes.get("slow", 256), 3),
        Memory("rom", "flash", 0x0800_0000, sizes.get("rom", 512), 2),
    )
    return replace(load_board("rt1060"), name="toy", memories=memories, arena_memory=arena, weights_memory="rom")


def planned(sketch: Sketch, weights: int = 0) -> Program:
    program = sketch.program
    if weights:
        constant = Buffer("weights of the layer", DType.INT8, weights, Space.CONST)
        program.buffers.append(constant)
        program.instrs[0].operands = (*program.instrs[0].operands, Operand("w", Access.IN, constant))
    plan_memory(program)
    return program


def test_the_boards_own_choice_comes_first():
    assert place(planned(chain(16, 16)), board("slow")).arenas[0].name == "slow"


def test_a_larger_memory_where_that_is_too_small():
    sizes = {"fast": 16}
    assert place(planned(chain(64, 64)), board(**sizes)).arenas[0].name == "slow"


def test_exactly_full_fits():
    assert place(planned(chain(32, 32), weights=512), board()).arenas[0].name == "fast"


def test_an_arena_that_does_not_fit_names_the_bytes_and_the_largest_buffers():
    sketch = Sketch()
    sketch.input("x", 160)
    sketch.step("small", "x", nbytes=16)
    sketch.step("large", "x", "small", nbytes=128, scratch=32)
    sketch.output("large")
    with pytest.raises(DoesNotFitError) as error:
        place(planned(sketch), board(fast=16))
    assert error.value.exit_code == 5
    assert error.value.rule == "the arena must fit in the RAM memories of board 'toy'"
    assert error.value.found == (
        "336 bytes, 'fast' has 16 and 'slow' has 256; largest: 'x' 160, 'large' 128, 'large.scratch' 32, 'small' 16"
    )
    assert "quantized" in error.value.remedy


def test_weights_that_do_not_fit():
    with pytest.raises(DoesNotFitError, match=r"the weights must fit.* 10 more than 'rom'.*'weights of the layer' 522"):
        place(planned(chain(16, 16), weights=522), board())


def test_compile_model_refuses_what_does_not_fit():
    net = Net()
    net.output(net.op("Relu", net.input("x", 100_000)))
    told = "bytes of RAM, 380,032 more than there are beside the stack (layer 'Relu_t0': 't0' 400,000"
    with pytest.raises(DoesNotFitError, match=re.escape(told)):
        compile_model(net.model(), "stm32f103")


def test_weights_as_large_as_the_flash():
    net = Net()
    net.output(net.op("MatMul", net.input("x", 1, 64), net.const(np.random.default_rng(0).random((64, 2048)))))
    with pytest.raises(DoesNotFitError, match="the weights must fit"):
        compile_model(net.model(), "stm32f103")


# ------------------------------------------------------------------------------------------------ several memories

AUTO = Places(("auto",))


def busy() -> Sketch:
    """`hot` is read five times, `cold` once; both live with 64 bytes at most of others."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("cold", "x", nbytes=48)
    sketch.step("hot", "x", nbytes=48)
    for index in range(4):
        sketch.step(f"y{index}", "hot", nbytes=16)
    sketch.step("y", "hot", "cold", "y0", "y1", "y2", "y3", nbytes=16)
    sketch.output("y")
    return sketch


def areas(sketch: Sketch) -> dict[str, int]:
    return {name: buffer.area for name, buffer in sketch.buffers.items()}


def test_what_is_used_most_often_lies_in_the_fastest_memory():
    sketch = busy()
    found = place(planned(sketch), board(), AUTO)
    assert [m.name for m in found.arenas] == ["fast", "slow"]
    assert (areas(sketch)["hot"], areas(sketch)["cold"]) == (0, 1)
    assert all(size <= m.size for size, m in zip(sketch.program.area_sizes, found.arenas, strict=True))
    assert found.names_arena


def test_one_memory_where_one_suffices():
    sketch = busy()
    found = place(planned(sketch), board(fast=256), AUTO)
    assert [m.name for m in found.arenas] == ["fast"]
    assert set(areas(sketch).values()) == {0}


def test_by_default_buffers_spill_where_the_boards_memory_is_too_small():
    sketch = busy()
    found = place(planned(sketch), board())
    assert [m.name for m in found.arenas] == ["fast", "slow"]
    assert (areas(sketch)["hot"], areas(sketch)["cold"]) == (0, 1)


def test_what_may_not_spill_lies_in_one_memory_though_a_slower_one():
    found = place(planned(busy()), board(), most_spilled=0)
    assert [m.name for m in found.arenas] == ["slow"]


def test_several_arenas_take_no_more_than_they_may():
    """Together they may take more than one does."""
    one = planned(busy()).arena_size
    several = planned(busy())
    assert len(place(several, board()).arenas) == 2
    assert len(place(planned(busy()), board(), most_spilled=several.arena_size).arenas) == 2
    assert several.arena_size >= one
    assert len(place(planned(busy()), board(), most_spilled=several.arena_size - 16).arenas) == 1


def test_nothing_spills_where_several_memories_save_little():
    program = planned(busy())
    program.instructions_estimate = 1e6
    before = [(b.area, b.offset) for b in program.buffers]
    found = place(program, board())
    assert [m.name for m in found.arenas] == ["slow"]
    assert [(b.area, b.offset) for b in program.buffers] == before
    assert len(program.area_sizes) == 1


def test_stack_and_variables_have_room_beside_what_spills():
    """Of the memory that they are in, unless the user says what lies there."""

    def used(data_memory: str, places: Places = NO_PLACES) -> list[str]:
        toy = replace(board(fast=8192 + 48, slow=32768), data_memory=data_memory)
        return [m.name for m in place(planned(chain(8192, 8192)), toy, places).arenas]

    assert used("slow") == used("fast", AUTO) == ["fast", "slow"]
    assert used("fast") == ["slow"]


def test_memories_are_taken_in_the_order_of_the_user_where_they_are_equally_fast():
    memories = tuple(replace(m, speed=1) for m in board().memories)
    found = place(planned(chain(16, 16)), replace(board(), memories=memories), Places(("slow", "fast")))
    assert [m.name for m in found.arenas] == ["slow"]


@pytest.mark.parametrize("sizes", [(64, 48, 64, 32, 80, 48), (80, 80, 80), (32, 96, 16, 96, 32)])
@pytest.mark.parametrize("inplace", [False, True])
def test_an_arena_in_two_memories_that_are_just_large_enough(sizes: tuple[int, ...], inplace: bool):
    """Neighbours take turns: the odd ones here, the even ones there."""
    even, odd = max(sizes[::2]), max(sizes[1::2])
    program = planned(chain(*sizes, inplace=inplace))
    found = place(program, board(fast=even, slow=odd), AUTO)
    assert all(size <= m.size for size, m in zip(program.area_sizes, found.arenas, strict=True))


def test_buffers_that_a_plan_joined_may_be_parted_if_need_be():
    sketch = chain(64, 64, inplace=True)
    sketch.step("z", "x1", "x1", nbytes=64, inplace=False)
    sketch.program.outputs.clear()
    sketch.output("z")
    assert len(place(planned(sketch), board(fast=64, slow=64), AUTO).arenas) == 2


def test_hot_weights_leave_the_arena_less_room():
    program = planned(chain(32, 32), weights=40)
    assert place(program, board(), Places(("fast",))).arenas[0].name == "fast"
    hot = Places(("fast",), hot_weights=("fast", 48))
    with pytest.raises(DoesNotFitError, match=r"the arena must fit in memory 'fast' .* 48 more than 'fast' has"):
        place(program, board(), hot)


def test_no_more_weights_are_copied_than_asked_for():
    program = planned(chain(16, 16), weights=40)
    (weights,) = (b for b in program.buffers if b.space is Space.CONST)
    assert place(program, board(), Places(hot_weights=("slow", 48))).copies == {weights: board().memory("slow")}
    assert place(program, board(), Places(hot_weights=("slow", 47))).copies == {}


def test_names_that_the_board_does_not_have():
    with pytest.raises(UsageError, match="no memory 'quick'"):
        place(planned(chain(16, 16)), board(), Places(("slow", "quick")))


def test_a_memory_at_address_0_begins_with_a_gap():
    assert [Memory("m", "ram", origin, 64, 1).room for origin in (0, 16)] == [64 - ALIGNMENT, 64]


def test_traffic_counts_bytes_by_access_and_multiply_accumulates():
    sketch = Sketch()
    sketch.input("x", 16)
    instr = sketch.step("y", "x", nbytes=32, scratch=8)
    instr.macs = 16 * 32
    weights = Buffer("w", DType.INT16, 64, Space.CONST)
    sketch.program.buffers.append(weights)
    instr.operands = (*instr.operands, Operand("w", Access.IN, weights))
    found = {buffer.name: nbytes for buffer, nbytes in traffic(sketch.program).items()}
    assert found == {"x": 16, "y": 32, "y.scratch": 2 * 8 + 16 * 32, "w": 2 * 16 * 32}


def test_traffic_counts_the_steps_of_loops():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.program.instrs.append(Instr("for", "loop", (), {"steps": 5}, control=Control.FOR))
    sketch.step("y", "x", nbytes=32)
    sketch.program.instrs.append(Instr("end", "loop", (), control=Control.END))
    sketch.step("z", "y", nbytes=8)
    found = {buffer.name: nbytes for buffer, nbytes in traffic(sketch.program).items()}
    assert found == {"x": 5 * 16, "y": 5 * 32 + 32, "z": 8}


def test_traffic_counts_the_events_of_streams():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.program.instrs.append(Instr("stream", "rows", (), events=(0, 1, 1, 0, 1), control=Control.STREAM))
    for case in range(2):
        sketch.program.instrs.append(Instr("case", "rows", (), case=case, control=Control.CASE))
        sketch.step(f"y{case}", "x", nbytes=32)
        sketch.program.instrs.append(Instr("end", "rows", (), control=Control.END))
    sketch.program.instrs.append(Instr("end", "rows", (), control=Control.END))
    found = {buffer.name: nbytes for buffer, nbytes in traffic(sketch.program).items()}
    assert found == {"x": 5 * 16, "y0": 2 * 32, "y1": 3 * 32}


def test_hot_weights_are_those_that_fit_beside_one_another():
    """Of 96 bytes 64 are taken by the constant that is read most often; then 32 are left."""
    sketch = chain(16, 16)
    sizes = {"hot": 64, "warm": 48, "cool": 32, "cold": 16}
    for number, (name, nbytes) in enumerate(sizes.items()):
        sketch.buffer(name, nbytes, Space.CONST).data = np.zeros(nbytes, np.int8)
        sketch.step("x1", "x0", name).macs = 64 * nbytes >> number
    program = planned(sketch)
    found = place(program, board(), Places(hot_weights=("slow", 96))).copies
    assert [b.name for b in found] == ["hot", "cool"]
    found = place(program, board(), Places(hot_weights=("slow", 112))).copies
    assert [b.name for b in found] == ["hot", "warm"]
