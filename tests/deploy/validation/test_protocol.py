# SPDX-License-Identifier: Apache-2.0
"""Whatever a board answers, the computer ends soon, with a result or an error that is named."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import onnx
import pytest
from fake_board import DONE, PAUSED, PROGRESS, ROWS, Clock, FakeBoard, Grammar, Spoil, honest
from onnx_models import Net
from rich.console import Console

from mcugen.cli.commands.console import json_text
from mcugen.core.errors import BoardError, VerificationError
from mcugen.core.options import CompileOptions
from mcugen.deploy.validation import device, links, session
from mcugen.deploy.validation.device import Device
from mcugen.deploy.validation.frames import ANSWER_KIND_OFFSET, Frame, Kind
from mcugen.deploy.validation.runner import Runner
from mcugen.deploy.validation.session import ValidationSetup
from mcugen.deploy.validation.text import print_validation
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.metrics import METRICS
from mcugen.evaluation.samples import Samples

PATIENCE = 2.0
"""Seconds of the board's clock."""


def layers() -> onnx.ModelProto:
    net = Net(20)
    x = net.fake(net.input("x", 1, 4, 6, 6), 1 / 64)
    for _ in range(2):
        weights = net.dequantize(net.const(np.ones((4, 4, 3, 3)), np.int8), 1 / 64)
        x = net.fake(net.op("Conv", x, weights, pads=[1, 1, 1, 1]), 1 / 16)
    net.output(net.op("Identity", x, out="y"), shape=[1, 4, 6, 6])
    return net.plain_model()


def counted() -> onnx.ModelProto:
    net = Net(17)
    net.output(net.op("NonZero", net.op("Relu", net.input("x", 8)), out="y"), dtype=np.int64, shape=[1, "n"])
    return net.plain_model()


def stateful() -> onnx.ModelProto:
    net = Net(17)
    x, h = net.input("x", 1, 8), net.input("h", 1, 8)
    kept = net.op("Add", net.op("Mul", h, net.const(0.5)), x, out="after")
    net.output(net.op("MatMul", kept, net.const(np.eye(8)), out="y"), shape=[1, 8])
    net.output("after", shape=[1, 8])
    return net.plain_model()


MODELS: Mapping[str, tuple[Callable[[], onnx.ModelProto], CompileOptions]] = {
    "layers": (layers, CompileOptions("net", validation=True)),
    "rows": (layers, CompileOptions("net", validation=True, stream_input=True, optimize="ram")),
    "sizes": (counted, CompileOptions("net", validation=True)),
    "state": (stateful, CompileOptions("net", validation=True, states={"after": "h"})),
}


@cache
def compiled(name: str) -> CompiledModel:
    make, options = MODELS[name]
    return compile_model(make(), options=options)


def validated(name: str, spoil: Spoil, monkeypatch: pytest.MonkeyPatch, frame: int = 256) -> session.ValidationReport:
    """Validate against a board whose answers are spoiled, with a clock of its own; the reference is an honest one."""
    model, clock = compiled(name), Clock()
    board = FakeBoard(model, clock, spoil, frame=frame)

    @contextmanager
    def port(*_: object) -> Iterator[tuple[FakeBoard, Fraction]]:
        yield board, Fraction(1)

    @contextmanager
    def reference(_: object, stored: list, __: object) -> Iterator[tuple[Runner, list[str]]]:
        twin = Device(FakeBoard(model, Clock()), 10**9, PATIENCE)
        yield Runner(twin, model.bundle, stored, lambda found: None), []

    for module in (device, links):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(session, "_port", port)
    monkeypatch.setattr(session, "_reference", reference)
    samples = [{e.name: -np.ones(e.shape, e.dtype.numpy) for e in model.program.inputs} for _ in range(2)]
    return session.validate(model, Samples(samples, None), METRICS["sqnr"], ValidationSetup("fake", patience=PATIENCE))


@pytest.mark.parametrize("name", MODELS)
def test_an_honest_board(name: str, monkeypatch: pytest.MonkeyPatch):
    """The fake one does as the protocol says, so that what ends otherwise is due to what was spoiled."""
    report = validated(name, honest, monkeypatch)
    assert (report.outputs, report.different_samples, report.difference) == ("exact", 0, None)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_spoiled_answers(name: str, first: int, monkeypatch: pytest.MonkeyPatch):
    """A seeded grammar has wrong fields, sizes, heads, refusals, damage and silence for each state of the protocol."""
    spoil_by_seeds(name, range(first, first + 20), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_spoiled_answers(name: str, monkeypatch: pytest.MonkeyPatch):
    spoil_by_seeds(name, range(1000, 3000), monkeypatch)


def spoil_by_seeds(name: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        draw = random.Random(f"{name} {seed}")
        grammar = Grammar(draw, one_of=draw.choice((4, 20, 100)))
        try:
            report = validated(name, grammar, monkeypatch)
            json.loads(json_text(report.to_json()))
            print_validation(report, Console(file=io.StringIO()))
        except BoardError as error:
            assert error.exit_code == 10
        except VerificationError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {grammar.ways}: {type(error).__name__}: {error}") from error


def standing(when: int, state: int, value: int, *, once: bool = False) -> Spoil:
    """Tell of a state from an answer on how a run stands on, by its number, or once."""
    seen = 0

    def spoil(board: FakeBoard, answer: Frame) -> list[bytes]:
        nonlocal seen
        if answer.kind & ~ANSWER_KIND_OFFSET not in (Kind.RUN, Kind.CONTINUE):
            return honest(board, answer)
        seen += 1
        if seen == when + 1 if once else seen > when:
            answer = replace(answer, payload=PROGRESS.pack(state, value, 1, 5, 0, 0))
        return honest(board, answer)

    return spoil


def with_other_digests(then: Spoil) -> Spoil:
    """Tell of digests that differ from the reference's, whereupon the layers' results are read."""

    def spoil(board: FakeBoard, answer: Frame) -> list[bytes]:
        if (
            answer.kind == Kind.READ | ANSWER_KIND_OFFSET
            and board.hooked
            and not board.events
            and len(answer.payload) > 8
        ):
            answer = replace(answer, payload=b"\1" * len(answer.payload))
        return then(board, answer)

    return spoil


def always(kind: Kind, payload: bytes) -> Spoil:
    def spoil(board: FakeBoard, answer: Frame) -> list[bytes]:
        return honest(board, replace(answer, payload=payload) if answer.kind == kind | ANSWER_KIND_OFFSET else answer)

    return spoil


PAUSES = with_other_digests(honest)
CASES: Mapping[str, tuple[str, Spoil, str]] = {
    "pauses without end": ("layers", standing(0, PAUSED, 0), "no pause is due"),
    "pauses behind a layer without end": ("layers", standing(0, PAUSED, 2), "no pause is due"),
    "rows of a model without rows": ("layers", standing(0, ROWS, 0), "does not come by rows"),
    "the same row without end": ("rows", standing(0, ROWS, 0), "row 0 after row 0"),
    "a row beyond the last": ("rows", standing(0, ROWS, 6), "row 6"),
    "a row below the first": ("rows", standing(0, ROWS, -1), "row -1"),
    "rows backwards": ("rows", standing(1, ROWS, 0), "in their order"),
    "an unknown state": ("layers", standing(0, 3, 0), "report the state of a run"),
    "a status that nobody knows": ("layers", standing(0, DONE, 99), "must return 0"),
    "an empty answer": ("layers", always(Kind.RUN, b""), "0 bytes, 22 are due"),
    "data where none is due": ("layers", always(Kind.SPOIL, b"more"), "4 bytes, 0 are due"),
    "too little": ("layers", always(Kind.READ, b"\0"), "1 bytes"),
    "too much": ("layers", always(Kind.READ, bytes(9000)), "9,000 bytes"),
    "half a checksum": ("layers", always(Kind.CONSTANT, b"\0\0"), "2 bytes, 4 are due"),
}


@pytest.mark.parametrize("what", CASES)
def test_an_answer_that_the_protocol_does_not_allow(what: str, monkeypatch: pytest.MonkeyPatch):
    name, spoil, words = CASES[what]
    with pytest.raises((BoardError, VerificationError), match=words):
        validated(name, spoil, monkeypatch)


@pytest.mark.parametrize("frame", [0, 1, 3, 5, 63, 4097, 65535])
def test_frames_of_an_impossible_size(frame: int, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BoardError, match="frames of 64 to 4,096 bytes"):
        validated("layers", honest, monkeypatch, frame)


def test_frames_of_the_least_and_the_greatest_size(monkeypatch: pytest.MonkeyPatch):
    for frame in (64, 4096):
        assert validated("layers", honest, monkeypatch, frame).outputs == "exact"


def test_a_run_that_ends_where_a_pause_is_due(monkeypatch: pytest.MonkeyPatch):
    """Digests differ, so that layers are read one by one; the board does not stop for that."""

    def spoil(board: FakeBoard, answer: Frame) -> list[bytes]:
        is_standing = answer.kind & ~ANSWER_KIND_OFFSET in (Kind.RUN, Kind.CONTINUE)
        if is_standing and board.pause != 0xFFFF:
            answer = replace(answer, payload=PROGRESS.pack(DONE, 0, 1, 5, 0, 0))
        return with_other_digests(honest)(board, answer)

    with pytest.raises(BoardError, match="the run is done, and a pause behind layer"):
        validated("layers", spoil, monkeypatch)


def test_a_pause_behind_another_layer(monkeypatch: pytest.MonkeyPatch):
    def spoil(board: FakeBoard, answer: Frame) -> list[bytes]:
        is_standing = answer.kind & ~ANSWER_KIND_OFFSET in (Kind.RUN, Kind.CONTINUE)
        if is_standing and board.pause != 0xFFFF:
            answer = replace(answer, payload=PROGRESS.pack(PAUSED, board.pause + 1, 1, 5, 0, 0))
        return with_other_digests(honest)(board, answer)

    with pytest.raises(BoardError, match="it pauses behind layer"):
        validated("layers", spoil, monkeypatch)


def test_an_answer_to_something_else(monkeypatch: pytest.MonkeyPatch):
    def spoil(board: FakeBoard, answer: Frame) -> list[bytes]:
        return honest(board, replace(answer, kind=0x88) if answer.kind == Kind.TEXT | ANSWER_KIND_OFFSET else answer)

    with pytest.raises(BoardError, match="must answer TEXT as the protocol says"):
        validated("layers", spoil, monkeypatch)


def test_a_size_that_the_board_cannot_have_found(monkeypatch: pytest.MonkeyPatch):
    """An output whose size the model computes."""
    spoil = always(Kind.READ, struct.pack("<q", 1 << 40))
    with pytest.raises((BoardError, VerificationError)):
        validated("sizes", spoil, monkeypatch)
