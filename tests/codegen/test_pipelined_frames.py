# SPDX-License-Identifier: Apache-2.0
"""Pipelines over frames on two cores: the bits of one, in two threads, and what becomes of workers that fail."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from compilers import assert_accepted, run
from onnx_models import Net
from shared_models import MODELS
from two_core_boards import two_cores

from mcugen.core.board import load_board
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.lir.program import Buffer
from mcugen.memory.verify_plan import verify_plan
from mcugen.search import core_assignment, two_core_program

DEAD, AGAIN = 11, -1  # MCUGEN_ERROR_CORE, MCUGEN_AGAIN
TOLD = {
    "differ": 1,
    "nothing": AGAIN,
    "alone": 13,
    "posted": 0,
    "begun": AGAIN,
    "dead": DEAD,
    "still dead": DEAD,
    "lost": AGAIN,
    "late": 13,
    "twice": DEAD,
    "again": 13,
    "before": 1,
    "stopped": 0,
    "behind": 1,
    "null": 1,
}


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline is taken though layers in two portions would be faster."""
    found = core_assignment.share_layers
    monkeypatch.setattr(two_core_program, "share_layers", lambda *args: (found(*args)[0], float("inf")))


def compiled(model: object, board: str, **options: object) -> CompiledModel:
    made = CompileOptions("net", cores=2, optimize="throughput", **options)  # type: ignore[arg-type]
    return compile_model(model, two_cores(board), made)  # type: ignore[arg-type]


def small() -> Net:
    """Three layers, of which the first and the last read one tensor."""
    net, numbers = Net(opset=17), np.random.default_rng(0)
    x = net.input("x", 1, 4, 12, 12, dtype=np.int8)
    y = net.dequantize(x, 0.05, 3)
    for _ in range(2):
        w = net.dequantize(net.const(numbers.integers(-127, 128, (4, 4, 3, 3)), np.int8), 0.004)
        y = net.dequantize(net.quantize(net.op("Conv", y, w, pads=[1, 1, 1, 1]), 0.06, -2), 0.06, -2)
    net.output(net.quantize(net.op("Add", y, net.dequantize(x, 0.05, 3)), 0.1, 1, out="y"), dtype=np.int8)
    return net


@cache
def pipeline(board: str, *, states: bool) -> CompiledModel:
    """A small one, or one with a state, where `pipelines` is used; of an RP2040 with cores that are alike."""
    net, names = (stateful(), {"new": "old"}) if states else (small(), {})
    target = two_cores(board) if board == "rp2040" else load_board(board)
    options = CompileOptions("net", cores=2, optimize="throughput", states=names)
    return compile_model(net.model(), target, options)


@pytest.mark.usefixtures("pipelines")
@pytest.mark.parametrize("port", ["MCUGEN_CORES_POSIX", "SIGNALS=1", "SIGNALS=2"], ids=["posix", "lost", "doubled"])
def test_frames_on_two_threads(port: str, tmp_path: Path) -> None:
    """Under ThreadSanitizer: every frame's bits, and every fault of a worker or of signals that the header names."""
    model = pipeline("rp2040", states=False)
    handover = model.program.handover
    assert handover is not None
    assert len(handover) == 2  # what the second convolution reads, and the input
    model.write(tmp_path)
    for file in ("two_frames.c", "signals.h"):
        shutil.copy(Path(__file__).with_name(file), tmp_path)
    flags = ("-std=c99", "-O1", "-g", "-fsanitize=thread", "-D_POSIX_C_SOURCE=200809L", f"-D{port}")
    run(["gcc", *flags, "two_frames.c", "net_weights.c", "-lpthread", "-lm", "-o", "two"], tmp_path)
    told = run(["./two"], tmp_path)
    assert {key: int(value) for key, value in (line.rsplit(" ", 1) for line in told.splitlines())} == TOLD
    assert_accepted(tmp_path, "net.c")


@pytest.mark.usefixtures("pipelines")
@pytest.mark.parametrize("wrong", ["scratch", "output"])
def test_the_parts_of_a_pipeline_share_no_memory(wrong: str) -> None:
    """A plan that is right for one frame after the other is refused where two at once would disturb each other."""
    program = compiled(small().model(), "rp2040").program
    assert program.handover is not None
    given = program.instrs[program.handover.start].operand("y").buffer
    first = [o.buffer for i in program.instrs[: program.handover.start] for o in i.operands if o.buffer.planned]
    moved, to = {"scratch": (first[-1], given), "output": (given, program.outputs[0].buffer)}[wrong]
    moved.offset = to.offset
    with pytest.raises(VerificationError):
        verify_plan(program)


def stateful() -> Net:
    """A sum that is kept from call to call, between two layers."""
    net, numbers = Net(opset=17), np.random.default_rng(1)
    x, old = net.input("x", 1, 64), net.input("old", 1, 64)
    first = net.op("Relu", net.op("MatMul", x, net.const(numbers.normal(size=(64, 64)).astype(np.float32))))
    new = net.op("Add", first, old, out="new")
    y = net.op("MatMul", new, net.const(numbers.normal(size=(64, 64)).astype(np.float32)))
    net.output(new)
    net.output(net.op("Relu", y, out="y"))
    return net


@pytest.mark.usefixtures("pipelines")
def test_a_state_is_of_one_part() -> None:
    """It changes when its frame is computed, whichever core does that."""
    program = compiled(stateful().model(), "rp2040", states={"new": "old"}).program
    handover = program.handover
    assert handover is not None
    state = program.states[0].buffer
    users = [n for n, i in enumerate(program.instrs) if any(o.buffer is state for o in i.operands)]
    assert users
    assert max(users) < handover.start or min(users) >= handover.stop


@pytest.mark.usefixtures("pipelines")
@pytest.mark.parametrize("board", ["rt1170", "stm32h745", "rp2040"])
@pytest.mark.parametrize("states", [False, True])
def test_caches_forget_what_crosses_and_nothing_else(board: str, states: bool) -> None:
    """The first core what the second part gives, the other what is handed over; both a state of the second part, which
    the first changes, too, where no frame follows.
    """
    model = pipeline(board, states=states)
    program, text = model.program, str(model.bundle.files["net.c"])
    assert program.handover is not None
    first, second = board != "rp2040", board == "rt1170"
    kept = {("old", 256)} if states else set()
    crosses = {place(program.instrs[i].operand("y").buffer) for i in program.handover}
    shard = text[text.index("static void other_portion") : text.index("int net_worker")]
    worker = text[text.index("int net_worker") : text.index("int net_run")]
    push = text[text.index("int net_push") : text.index("int net_pull")]
    assert forgotten(shard) == (crosses if second else set()) | (kept if first else set())
    assert forgotten(push) == ({place(e.buffer) for e in program.outputs} if first else set())
    assert not forgotten(push[: push.index("mcugen_cores_join")])
    assert ("MCUGEN_CORE_INVALIDATE(cores, (uint32_t)sizeof *cores)" in worker) is second


def place(buffer: Buffer) -> tuple[int | str, int]:
    """Where it begins in the arena, and its bytes."""
    return buffer.offset or 0, buffer.nbytes


def forgotten(function: str) -> set[tuple[int | str, int]]:
    """By offset in the arena, or by name in the state, the bytes that a function invalidates."""
    pointers = re.findall(r"\*const (\w+) = \(\w[^;]*?(?:\+ (\d+)\))?;", function)
    at = {name: int(offset or 0) for name, offset in pointers}
    found = re.findall(r"MCUGEN_CORE_INVALIDATE\((?:state->)?(\w+), (\d+)u\)", function)
    return {(at.get(name, name), int(nbytes)) for name, nbytes in found}


def test_a_pipeline_is_for_two_cores() -> None:
    with pytest.raises(UsageError, match="between two cores"):
        compile_model(small().model(), "rp2040", CompileOptions("net", optimize="throughput"))
    with pytest.raises(UsageError, match="in the arena"):
        compiled(small().model(), "rp2040", external_io=True)


def test_layers_are_shared_where_that_gives_more_frames() -> None:
    """Equal cores share nearly everything of this model: no cut is as even."""
    model = compiled(MODELS / "ds_cnn_kws_int8_qdq.onnx", "rp2040")
    assert model.program.handover is None
    assert "net_run_cores" in model.bundle.files["net.h"]
