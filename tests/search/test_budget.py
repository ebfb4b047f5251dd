# SPDX-License-Identifier: Apache-2.0
"""`--max-ram` and `--max-flash`: kept, at the least price, or refused with what dominates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import Net, onnxruntime_outputs, random_feeds
from shared_models import MODELS

from mcugen.backends.cpu import pipeline
from mcugen.core.board import Board, load_board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import STAGE_WEIGHTS, Program
from mcugen.reporting.figures import Report, require_fit
from mcugen.search import candidates as candidate_module
from mcugen.search.budget import STACK_RESERVE_BYTES, cheapest
from mcugen.search.candidates import REQUESTED_CANDIDATE_NAME, TRANSFORMATIONS
from mcugen.search.line_buffering import Streamings
from mcugen.search.metrics import Metrics, Use
from mcugen.search.objective import Budget
from mcugen.search.plan import BuiltProgram, ProgramCandidate
from mcugen.search.problem import SearchProblem
from mcugen.search.transformations import Transformation

BOARD = "stm32f746"


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Three convolutions of int8, whose fast kernels need scratch and larger weights."""
    net = Net()
    random = np.random.default_rng(0)
    x = net.dequantize(net.input("x", 1, 16, 20, 20, dtype=np.int8), 0.05)
    for _ in range(3):
        weights = net.dequantize(net.const(random.integers(-127, 128, (16, 16, 3, 3)), np.int8), 0.002)
        x = net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1, 1, 1, 1])), 0.05)
    net.output(net.quantize(net.op("GlobalAveragePool", x), 0.05, out="y"), dtype=np.int8)
    return net.model()


def compiled(model: onnx.ModelProto, **options: object) -> CompiledModel:
    return compile_model(model, BOARD, CompileOptions(**options))  # type: ignore[arg-type]


def ram(found: CompiledModel) -> int:
    return found.report.ram.arena + found.report.ram.state


def copies(found: CompiledModel) -> int:
    """Of weights, to the arena before their layers."""
    return sum(instr.kernel == STAGE_WEIGHTS for instr in found.program.instrs)


def test_without_a_budget_nothing_is_said_of_one(model: onnx.ModelProto) -> None:
    found = compiled(model)
    assert found.report.budget is None
    assert found.report.instructions_estimate > found.report.model.macs / 2


def test_a_budget_that_holds_changes_no_code(model: onnx.ModelProto) -> None:
    free = compiled(model)
    found = compiled(model, max_ram=ram(free), max_flash=1 << 20)
    assert found.report.budget.step == REQUESTED_CANDIDATE_NAME
    assert str(found.report.budget) == f"--max-ram {ram(free):,} and --max-flash 1,048,576: as asked"
    banner = [(a, b) for a, b in zip(code_of(free), code_of(found), strict=True) if a != b]
    assert all("at most" in b for _, b in banner)


def code_of(found: CompiledModel) -> list[str]:
    files = {name: text for name, text in found.bundle.files.items() if name.endswith((".c", ".h"))}
    return [line for name in sorted(files) for line in files[name].splitlines()]


@pytest.mark.parametrize("goal", ["balanced", "speed"])
def test_a_byte_less_takes_another_step(model: onnx.ModelProto, goal: str) -> None:
    free = compiled(model, optimize=goal)
    found = compiled(model, optimize=goal, max_ram=ram(free) - 1)
    assert ram(found) < ram(free)
    assert found.report.budget.ram == ram(found)
    assert found.report.budget.step in {step.name for step in TRANSFORMATIONS} or copies(found) < copies(free)
    assert found.report.instructions_estimate >= free.report.instructions_estimate
    slowdown = found.report.instructions_estimate / free.report.instructions_estimate - 1
    assert found.report.budget.slowdown_estimate == pytest.approx(slowdown, abs=1e-3)


def test_what_fits_computes_the_same(model: onnx.ModelProto) -> None:
    feeds = random_feeds(model)
    expected = onnxruntime_outputs(model, feeds)
    for budget in (
        {},
        {"max_ram": ram(compiled(model)) - 1},
        {"max_flash": flash(compiled(model, max_flash=1 << 20)) - 1},
    ):
        found = compile_model(model, "host", CompileOptions(**budget))
        for name, array in found.run({key: value[None] for key, value in feeds.items()}).items():
            assert np.abs(array[0].astype(int) - expected[name]).max() <= 1, budget


def flash(found: CompiledModel) -> int:
    return found.report.budget.flash_estimate


def test_less_flash(model: onnx.ModelProto) -> None:
    free = compiled(model, optimize="speed", max_flash=1 << 20)
    found = compiled(model, optimize="speed", max_flash=flash(free) - 1)
    assert flash(found) < flash(free)
    assert found.report.flash.weights <= free.report.flash.weights


def test_the_least_ram_is_said_and_can_be_had(model: onnx.ModelProto) -> None:
    least = ram(compiled(model, optimize="ram"))
    assert ram(compiled(model, max_ram=least)) <= least
    with pytest.raises(DoesNotFitError) as error:
        compiled(model, max_ram=1000)
    assert error.value.exit_code == 5
    assert error.value.rule == "the model must fit --max-ram 1,000"
    number = int(error.value.found.split(" bytes of RAM")[0].removeprefix("the least is ").replace(",", ""))
    assert number <= least
    assert "layer '" in error.value.found and any(step.name in error.value.found for step in TRANSFORMATIONS)
    assert ram(compiled(model, max_ram=number)) == number


def test_a_refusal_for_flash_names_the_largest_constants(model: onnx.ModelProto) -> None:
    with pytest.raises(
        DoesNotFitError, match=r"--max-flash 100\..*the least is about [\d,]+ bytes of flash, [\d,]+ of"
    ) as error:
        compiled(model, max_flash=100)
    assert "weights' 2,304" in error.value.found


def test_both_budgets_at_once(model: onnx.ModelProto) -> None:
    with pytest.raises(
        DoesNotFitError, match=r"--max-ram 1,000 and --max-flash 100\..*the nearest is .*RAM.* and .*flash"
    ):
        compiled(model, max_ram=1000, max_flash=100)


def test_state_counts_as_ram() -> None:
    net = Net()
    net.output(net.op("Relu", net.op("Add", net.input("x", 1, 64), net.input("h", 1, 64), out="y"), out="z"), "y")
    options = {"states": {"y": "h"}}
    need = ram(compile_model(net.model(), BOARD, CompileOptions(**options)))
    assert need >= 256 + 256
    assert compile_model(net.model(), BOARD, CompileOptions(**options, max_ram=need)).report.budget.ram == need
    with pytest.raises(DoesNotFitError, match="256 of state"):
        compile_model(net.model(), BOARD, CompileOptions(**options, max_ram=need - 1))


def test_copies_of_weights_count_as_ram(model: onnx.ModelProto) -> None:
    free = compiled(model, max_ram=1 << 20)
    places = Places(weights=free.board.arena_memory)
    found = compiled(model, place=places, max_ram=1 << 20)
    assert found.report.budget.ram - free.report.budget.ram >= found.report.flash.weights
    with pytest.raises(DoesNotFitError, match=r"of copied weights"):
        compiled(model, place=places, max_ram=found.report.flash.weights)


def test_an_arena_in_several_memories_counts_as_a_whole(model: onnx.ModelProto) -> None:
    board = load_board(BOARD)
    need = ram(compiled(model))
    small = [replace(m, size=min(m.size, need - 2048)) if m.kind == "ram" else m for m in board.memories]
    board = replace(board, memories=tuple(small))
    found = compile_model(model, board, CompileOptions(place=Places(("auto",)), max_ram=1 << 20))
    assert len(found.program.area_sizes) > 1
    assert found.report.budget.ram == sum(found.program.area_sizes)


def test_sizes_known_at_run_time_are_as_large_as_can_be() -> None:
    net = Net()
    net.output(net.op("Relu", net.input("x", "T", 64)))
    options = {"dims": {"T": (1, 8)}}
    need = ram(compile_model(net.model(), BOARD, CompileOptions(**options)))
    assert (
        compile_model(net.model(), BOARD, CompileOptions(**options, max_ram=need)).report.budget.step
        == REQUESTED_CANDIDATE_NAME
    )
    with pytest.raises(DoesNotFitError, match=f"the least is {need:,} bytes of RAM"):
        compile_model(net.model(), BOARD, CompileOptions(**options, max_ram=need - 1))


def with_so_much(ram: int = 1 << 20, flash: int = 1 << 20, waits: bool = False) -> Board:
    """A board of two memories, of which flash may be slow enough for copies in the arena."""
    board = load_board(BOARD)
    sizes = {board.arena_memory: ram, board.weights_memory: flash}
    kept = [replace(m, size=sizes[m.name]) for m in board.memories if m.name in sizes]
    return replace(board, memories=tuple(m if waits else replace(m, access=None) for m in kept), caches=())


@pytest.mark.parametrize("goal", ["balanced", "speed"])
def test_a_board_is_a_budget(model: onnx.ModelProto, goal: str) -> None:
    options, scarce = CompileOptions(optimize=goal), 1 << 15  # Ample memory would allow `balanced` faster kernels.
    free = compile_model(model, with_so_much(scarce), options)
    room = ram(free) + STACK_RESERVE_BYTES
    same = compile_model(model, with_so_much(room), options)
    assert code_of(same) == code_of(free)
    assert same.report.notes == free.report.notes
    found = compile_model(model, with_so_much(room - 1), options)
    assert ram(found) < ram(free)
    (note,) = set(found.report.notes) - set(free.report.notes)
    assert f"--optimize {goal} as such takes {ram(free):,} bytes of RAM, more than board '{BOARD}' has: " in note
    assert any(f"has: {step.name}, {ram(found):,} bytes of RAM" in note for step in TRANSFORMATIONS)
    assert found.report.budget is None
    told = compile_model(model, with_so_much(scarce), replace(options, max_ram=ram(free) - 1))
    assert all(a == b or "at most" in a for a, b in zip(code_of(told), code_of(found), strict=True))


def test_so_is_its_flash(model: onnx.ModelProto) -> None:
    options = CompileOptions(optimize="speed", max_flash=1 << 20)
    free = compile_model(model, with_so_much(), options)
    found = compile_model(model, with_so_much(flash=flash(free) - 1), options)
    assert flash(found) < flash(free)
    assert any(f"takes about {flash(free):,} bytes of flash, more than board" in note for note in found.report.notes)


def test_copies_of_weights_in_the_arena_leave_room_for_code_and_stack(model: onnx.ModelProto) -> None:
    options = CompileOptions(optimize="speed", max_flash=1 << 20)
    free = compile_model(model, with_so_much(waits=True), options)
    assert any(instr.kernel == STAGE_WEIGHTS for instr in free.program.instrs)
    assert flash(compile_model(model, with_so_much(flash=flash(free) - 1, waits=True), options)) < flash(free)
    room = ram(free) + STACK_RESERVE_BYTES - 1
    assert ram(compile_model(model, with_so_much(room, waits=True), options)) <= room - STACK_RESERVE_BYTES


@pytest.mark.parametrize("goal", ["speed", "ram"])
def test_where_nothing_fits_the_least_is_told_with_its_goal(model: onnx.ModelProto, goal: str) -> None:
    least = ram(compile_model(model, with_so_much(), CompileOptions(optimize="ram")))
    told = rf"the least is {least:,} bytes of RAM, .*\(--optimize (speed|ram)\)"
    with pytest.raises(DoesNotFitError, match=told) as error:
        compile_model(model, with_so_much(least // 2), CompileOptions(optimize=goal))
    assert error.value.rule == f"the model must fit board '{BOARD}'"


@pytest.mark.parametrize("option", ["max_ram", "max_flash"])
@pytest.mark.parametrize("value", [0, -1])
def test_budgets_must_be_positive(option: str, value: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} must be a positive number of bytes"):
        compile_model(tmp_path / "nothing.onnx", BOARD, CompileOptions(**{option: value}))


def test_the_steps_are_tried_only_where_they_serve(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    class Recorded(Transformation):
        kind = "recorded"

        def propose(self, problem: SearchProblem) -> Iterator[ProgramCandidate]:
            called.append(self.name)
            program = pipeline.plan_program(pipeline.lowered(problem.graph, problem.board, problem.options))
            yield self.candidate(problem, BuiltProgram(program))

    steps = tuple(Recorded(memory, (memory,)) for memory in ("ram", "flash"))
    monkeypatch.setattr(candidate_module, "TRANSFORMATIONS", steps)
    with pytest.raises(DoesNotFitError):
        compiled(model, max_ram=1000)
    assert called == ["ram"]
    compiled(model, max_ram=1 << 20)
    assert called == ["ram"]


# ---------------------------------------------------------------------------------------------------- the choice


def candidate(name: str, ram: int, flash: int, instructions: float | None) -> ProgramCandidate:
    return ProgramCandidate(name, BuiltProgram(Program(name)), Metrics(instructions or 0.0, None, 0.0, Use(ram, flash)))


def test_of_what_fits_the_fastest_is_taken() -> None:
    candidates = [
        candidate("a", 120, 10, 1.0),
        candidate("b", 90, 10, 9.0),
        candidate("c", 80, 10, 3.0),
        candidate("d", 10, 10, 3.0),
    ]
    assert cheapest(candidates, Budget(ram=100)).name == "c"
    assert cheapest(candidates, Budget(ram=120)).name == "a"
    assert cheapest(candidates, Budget(flash=10)).name == "a"
    with pytest.raises(DoesNotFitError, match="the least is 10 bytes of RAM"):
        cheapest(candidates, Budget(ram=9))


def test_measured_flash_must_hold_too(model: onnx.ModelProto) -> None:
    found = compiled(model, max_flash=1 << 20)
    total = found.report.flash.weights + 500

    def with_total(more: int) -> Report:
        flash = replace(found.report.flash, code=500, total=total)
        return replace(found.report, flash=flash, budget=replace(found.report.budget, max_flash=total - more))

    require_fit(with_total(0), found.board)
    with pytest.raises(DoesNotFitError, match="bytes as measured, 1 more"):
        require_fit(with_total(1), found.board)


@pytest.mark.shared
def test_speed_that_does_not_fit_takes_no_more_than_what_is_balanced():
    model = onnx.load(MODELS / "resnet8_cifar10_int8_qdq.onnx")
    fast, balanced = (
        compile_model(model, "stm32f103rb", CompileOptions(optimize=goal)).report.instructions_estimate
        for goal in ("speed", "balanced")
    )
    assert fast is not None and balanced is not None and fast <= balanced


def residuals() -> onnx.ModelProto:
    """Two residual blocks on an image: layer by layer they need 44 KB."""
    net, random = Net(), np.random.default_rng(1)

    def conv(x: str, in_c: int) -> str:
        weights = net.dequantize(net.const(random.integers(-127, 128, (16, in_c, 3, 3)), np.int8), 0.002)
        return net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1, 1, 1, 1])), 0.05)

    x = conv(net.dequantize(net.input("x", 1, 8, 32, 32, dtype=np.int8), 0.05), 8)
    for _ in range(2):
        x = net.fake(net.op("Add", x, conv(conv(x, 16), 16)), 0.05)
    net.output(net.quantize(net.op("GlobalAveragePool", x), 0.05, out="y"), dtype=np.int8)
    return net.model()


@pytest.mark.qemu
def test_two_rows_at_once_within_a_limit_where_kernels_are_faster_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd's blocks have two rows: they save a fifth of the instructions."""
    found = residuals()
    feeds, options = random_feeds(found), CompileOptions(max_ram=32_000)
    by_twos = compile_model(found, "nrf52840", options)
    convolutions = [i.kernel for i in by_twos.program.instrs if i.kernel.startswith("conv2d")]
    assert convolutions and all("winograd" in kernel for kernel in convolutions)
    monkeypatch.setattr(Streamings, "with_pairs", lambda self, graph: (self.of(graph),))
    one_by_one = compile_model(found, "nrf52840", options)
    runs = [each.simulate([feeds]) for each in (by_twos, one_by_one)]
    assert runs[0].instructions < 0.8 * runs[1].instructions
    np.testing.assert_array_equal(runs[0].outputs[0]["y"], runs[1].outputs[0]["y"])
