# SPDX-License-Identifier: Apache-2.0
"""Streams in C: tables of events and their cases, inputs row by row, and the kernels that work on rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from c_programs import build_and_run, check_compiles, write
from measure_costs import BOARDS, roomy
from programs import Sketch
from targets import CPUS

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft as Drafted
from mcugen.codegen.draft import Provenance, Sample
from mcugen.codegen.render import render
from mcugen.core.board import Board, load_board
from mcugen.hir.types import Array, DType
from mcugen.kernels.portable.pool import MeanOptions
from mcugen.lir.program import MOVE, READ_ROWS, Access, Endpoint, Param, Space
from mcugen.memory.place import place
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan
from mcugen.numerics.fixedpoint import Requantizer
from mcugen.simulation import Setup, simulate

IN, OUT, INOUT = Access.IN, Access.OUT, Access.INOUT
OK, NULL, INPUT = 0, 1, 5
HOST = load_board("host")
NOBODY = Provenance("by hand", "0" * 64, "host", "none")

Arrays = dict[str, Array]


class Draft(Sketch):
    """A program of kernels of streams, and what it computes: `reference` gives its outputs for its inputs."""

    def __init__(self, reference: Callable[[Arrays], Arrays]) -> None:
        super().__init__()
        self.reference = reference

    def port(self, name: str, shape: tuple[int, ...], space: Space, dtype: DType = DType.INT8) -> None:
        """An input, or output."""
        buffer = self.buffer(name, int(np.prod(shape)), space, dtype)
        side = self.program.outputs if space is Space.OUTPUT else self.program.inputs
        side.append(Endpoint(name, shape, dtype, None, buffer))

    def counter(self, name: str, count: int = 1) -> None:
        """int32, 0 at first."""
        self.buffer(name, count, dtype=DType.INT32)
        self.fill(name, 0, count, 0)

    def fill(self, name: str, first: int, count: int, value: Param) -> None:
        access = OUT if count == self.buffers[name].count else INOUT
        self.emit("fill_rows", ("y", access, name), first_element=first, count=count, fill_value=value)

    def copy(self, source: str, target: str, nbytes: int, x_at: int = 0, y_at: int = 0) -> None:
        access = OUT if nbytes == self.buffers[target].nbytes else INOUT
        within = {"within": source == target}
        self.emit(MOVE, ("x", IN, source), ("y", access, target), nbytes=nbytes, x_at=x_at, y_at=y_at, code=within)

    def samples(self, count: int = 3) -> list[Arrays]:
        random = np.random.default_rng(0)
        return [
            {e.name: random.integers(-128, 128, e.shape).astype(e.dtype.numpy) for e in self.program.inputs}
            for _ in range(count)
        ]

    def bundle(self, board: Board = HOST) -> Bundle:
        plan_memory(self.program)
        verify_plan(self.program)
        (sample,) = self.samples(1)
        golden = (Sample(sample, self.reference(sample), 0.0, 0),)
        return render(Drafted(self.program, NOBODY, golden, {}, place(self.program, board)))

    def check(self, board: str = "host") -> None:
        """The C gives what the reference gives, on the host under the sanitizers."""
        samples, is_host = self.samples(), board == "host"
        target = HOST if is_host else roomy(BOARDS[board])
        found = simulate(self.bundle(target), target, samples, measure=False, setup=Setup(sanitize=is_host)).outputs
        for sample, outputs in zip(samples, found, strict=True):
            for name, wanted in self.reference(sample).items():
                np.testing.assert_array_equal(outputs[name], wanted, err_msg=name)


def delayed(shape: tuple[int, ...], axis: int, *, streamed: bool, kept: int = 3, rows: int = 1) -> Draft:
    """Rows of x come into a window, whose oldest rows go to y and the next ones, with other numbers of cases, to z.

    y is x later by the window, over some rows of 7; sums are those of all rows by their last axis.
    """
    height, channels = shape[axis], shape[-1]
    row = (*shape[1:axis], *shape[axis + 1 :])
    nbytes = int(np.prod(row)) * rows
    steps = height // rows

    def reference(inputs: Arrays) -> Arrays:
        x = np.moveaxis(inputs["x"], axis, 0).reshape(height, -1)
        late = np.concatenate([np.full((kept * rows, x.shape[1]), 7, np.int8), x])[:height]
        return {"y": late, "sums": x.reshape(-1, channels).sum(0, dtype=np.int32)}

    draft = Draft(reference)
    draft.port("x", shape, Space.STREAM if streamed else Space.INPUT)
    draft.port("y", (height, nbytes // rows), Space.OUTPUT)
    draft.buffer("window", kept * nbytes)
    draft.fill("window", 0, kept * nbytes, 5)
    draft.fill("window", 0, kept * nbytes - 1, 7)
    draft.fill("window", kept * nbytes - 1, 1, 7)
    draft.port("sums", (channels,), Space.OUTPUT, DType.INT32)
    draft.fill("sums", 0, channels, 0)
    for name in ("got", "put"):
        draft.counter(name)
    for name in ("first", "oldest"):
        draft.buffer(name, nbytes)
    events = [step % 2 + 1 if part else 0 for step in range(steps) for part in range(2)]
    draft.emit("stream", ("y", OUT, "y"), events=events)
    draft.emit("case", case=0)  # the oldest rows leave
    draft.copy("window", "oldest", nbytes)
    size = {"rows": rows, "bytes": nbytes // rows}
    draft.emit("stream_put", ("x", IN, "oldest"), ("next", INOUT, "put"), ("y", INOUT, "y"), **size)
    draft.emit("end")
    for case in (1, 2):  # new ones come
        draft.emit("case", case=case)
        draft.emit("shift_rows", ("x", INOUT, "window"), total_bytes=kept * nbytes, shift_bytes=nbytes)
        if streamed:
            draft.emit(READ_ROWS, ("next", INOUT, "got"), ("y", OUT, "first"), axis=axis, **size)
        else:
            draft.emit("stream_get", ("x", IN, "x"), ("next", INOUT, "got"), ("y", OUT, "first"), **size)
        columns = nbytes // channels
        draft.emit("accumulate_rows_s8", ("x", IN, "first"), ("acc", INOUT, "sums"), pixels=columns, channels=channels)
        draft.copy("first", "window", nbytes, y_at=(kept - 1) * nbytes)
        draft.emit("end")
    draft.emit("end")
    return draft


LAST, FIRST = ((1, 9, 5, 7), 1), ((1, 3, 8, 11), 2)
"""Shapes of inputs and the axes of their rows: channels last, channels first."""


@pytest.mark.parametrize("streamed", [False, True], ids=["in the arena", "streamed"])
def test_rows_through_a_window(streamed: bool):
    delayed((1, 9, 5, 7), 1, streamed=streamed).check()


@pytest.mark.parametrize(("shape", "axis", "rows"), [(*LAST, 3), (*FIRST, 1), (*FIRST, 2), ((1, 6, 40), 1, 1)])
def test_streamed_inputs(shape: tuple[int, ...], axis: int, rows: int):
    delayed(shape, axis, streamed=True, rows=rows).check()


@pytest.mark.spread(3)
@pytest.mark.parametrize("cpu", CPUS)
def test_the_same_rows_on_every_cpu(cpu: str):
    """Windows of few bytes and of many, rows of whole words and others."""
    delayed((1, 9, 5, 7), 1, streamed=True).check(cpu)
    delayed((1, 8, 16, 16), 1, streamed=False, kept=5).check(cpu)


@pytest.mark.parametrize("streamed", [False, True], ids=["in the arena", "streamed"])
def test_all_compilers_accept_it(streamed: bool, tmp_path: Path):
    check_compiles(delayed(*FIRST, streamed=streamed).bundle(), tmp_path)


def test_what_it_looks_like():
    text = delayed((1, 9, 5, 7), 1, streamed=True).bundle().files["sketch.c"]
    assert "static const uint8_t y_events[18] = {\n    0, 1, 0, 2," in text
    begin = text.index("    for (int32_t event = 0; event < 18; ++event) {")
    block = re.sub(r" */\*.*?\*/\n", "", text[begin : text.index("return MCUGEN_OK;")], flags=re.DOTALL)
    assert block.startswith(
        """    for (int32_t event = 0; event < 18; ++event) {
        switch (y_events[event]) {
        case 0: {
"""
    )
    assert (
        """
            stream_put(&y_params, oldest, put, y);
            break;
        }
        case 1: {
            shift_rows(&window_params_4, window);
"""
        in block
    )
    assert (
        """
            if (read(context, *got, first) != 0) {
                return MCUGEN_ERROR_INPUT;
            }
            *got += 1;
"""
        in block
    )
    assert block.endswith(
        """
            break;
        }
        default:
            break;
        }
    }
    MCUGEN_ON_LAYER(&sketch_model, 0);
    """
    )


def test_many_cases_take_wider_numbers(tmp_path: Path):
    draft = Draft(lambda _: {"y": np.array([44], np.int8)})
    draft.port("y", (1,), Space.OUTPUT)
    draft.emit("stream", ("y", OUT, "y"), events=[299, 300])
    for case in range(301):
        draft.emit("case", case=case)
        draft.emit("fill_rows", ("y", OUT, "y"), first_element=0, count=1, fill_value=case % 128)
        draft.emit("end")
    draft.emit("end")
    bundle = draft.bundle()
    assert "static const uint16_t y_events[2] = {\n    299, 300};" in bundle.files["sketch.c"]
    write(bundle, tmp_path)
    call = 'printf("%d", sketch_selftest(sketch_default_arena()));'
    main = f'#include "sketch.h"\n#include <stdio.h>\nint main(void) {{ {call} }}'
    assert build_and_run(main, tmp_path, *bundle.sources, "sketch_selftest.c") == str(OK)


MAIN = """
#include "sketch.h"
#include <stdio.h>
static const int8_t data[SKETCH_INPUT_BYTES];
static int calls;
static int failing(void *context, int32_t first_row, int8_t *rows)
{
    memcpy(rows, data + first_row * SKETCH_INPUT_ROW_BYTES, SKETCH_INPUT_ROWS * SKETCH_INPUT_ROW_BYTES);
    return ++calls == *(const int *)context;
}
int main(void)
{
    int last = 3;
    void *arena = sketch_default_arena();
    printf("%d ", sketch_run(arena, failing, &last));
    printf("%d ", calls);
    last = 100;
    printf("%d ", sketch_run(arena, failing, &last));
    printf("%d ", calls);
    printf("%d %d", sketch_run(arena, NULL, NULL), sketch_selftest(arena));
    return 0;
}
"""


def test_a_reader_that_fails_ends_the_run(tmp_path: Path):
    bundle = delayed((1, 3, 8, 11), 2, streamed=True, rows=2).bundle()
    write(bundle, tmp_path)
    found = build_and_run(MAIN, tmp_path, *bundle.sources, "sketch_selftest.c")
    assert found.split() == [str(n) for n in (INPUT, 3, OK, 7, NULL, OK)]
    header = bundle.files["sketch.h"]
    assert "#define SKETCH_INPUT_ROWS 2 /* at a time, of 8 */" in header
    assert "#define SKETCH_INPUT_ROW_BYTES 33 /* [3, 11] */" in header
    prose = header.replace("\n * ", " ")
    assert "x, int8 [1, 3, 8, 11]. Row h is what has index h of axis 2: [3, 11] without gaps." in prose
    assert "typedef int (*sketch_read_rows)(void *context, int32_t first_row, int8_t *rows);" in header
    assert "int sketch_run(void *arena, sketch_read_rows read, void *context);" in header
    assert "sketch_input(" not in header


def test_other_inputs_and_states_stay_as_they_are():
    """The state is what the other input was in the call before."""
    draft = delayed((1, 9, 5, 7), 1, streamed=True)
    draft.port("other", (20,), Space.INPUT)
    draft.port("before", (20,), Space.OUTPUT)
    state = draft.buffer("kept", 20, Space.STATE)
    draft.program.states.append(Endpoint("kept", (20,), DType.INT8, None, state))
    draft.copy("kept", "before", 20)
    draft.copy("other", "kept", 20)
    first, rows = np.zeros(20, np.int8), draft.reference
    draft.reference = lambda inputs: {**rows(inputs), "before": first}
    samples, bundle = draft.samples(), draft.bundle()
    found = simulate(bundle, HOST, samples, setup=Setup(sanitize=True)).outputs
    for sample, before, outputs in zip(samples, [first, *(s["other"] for s in samples)], found, strict=False):
        for name, wanted in {**rows(sample), "before": before}.items():
            np.testing.assert_array_equal(outputs[name], wanted, err_msg=name)
    header = bundle.files["sketch.h"]
    assert "int sketch_run(void *arena, sketch_read_rows read, void *context, sketch_state *state);" in header
    assert "int8_t *sketch_input_other(void *arena);" in header
    assert "sketch_input_x(" not in header
    assert "#define SKETCH_NUM_INPUTS 2" in header
    assert "#define SKETCH_INPUT_X_ROW_BYTES 35" in header


# ----------------------------------------------------------------------------------------- sums and means


def means(columns: int, channels: int, ratio: float, x_zero: int, y_zero: int, extreme: int | None = None) -> Draft:
    """The mean of all pixels, taken in two parts."""
    requantize = Requantizer.of(ratio / columns, y_zero, ties_to_even=True)

    def reference(inputs: Arrays) -> Arrays:
        total = inputs["x"].sum(0, dtype=np.int64) - x_zero * columns
        return {"y": requantize(total).astype(np.int8)}

    draft = Draft(reference)
    draft.port("x", (columns, channels), Space.INPUT)
    draft.port("y", (channels,), Space.OUTPUT)
    draft.counter("acc", channels)
    part = columns // 2
    draft.buffer("rest", (columns - part) * channels)
    draft.copy("x", "rest", (columns - part) * channels, x_at=part * channels)
    for name, count in (("x", part), ("rest", columns - part)):
        draft.emit("accumulate_rows_s8", ("x", IN, name), ("acc", INOUT, "acc"), pixels=count, channels=channels)
    high = requantize.for_high_word()
    draft.emit(
        "average_of_sums_s8",
        ("acc", IN, "acc"),
        ("y", OUT, "y"),
        code=MeanOptions.of(high, columns, DType.INT8, DType.INT8).values(),
        **{"channels": channels, "pixels_per_sum": columns, "x_zero_point": x_zero, "y_zero_point": y_zero},
        **{"multiplier": int(high.multiplier[0]), "requantize_offset": high.offset},
    )
    if extreme is not None:
        draft.samples = lambda count=3: [{"x": np.full((columns, channels), extreme, np.int8)}]  # type: ignore[method-assign]
    return draft


MEANS = {
    "some": (25, 64, 0.83, -3, 5),
    "ties": (64, 37, 1.0, 0, 0),
    "ties of many": (2048, 9, 1.0, 7, -1),
    "wide": (1 << 14, 3, 0.77, -128, 3),
    "larger": (6, 23, 3.7, 10, -60),
    "ties, larger": (4, 18, 8.0, 1, 2),
    "steep": (4, 18, 3.1 * 2**20, -9, 2),
    "steeper": (4, 5, 6.1 * 2**20, 11, -7),
    "one": (2, 1, 1.7, -128, -128),
}


def test_all_ways_to_round_are_among_them():
    seen = set()
    for columns, _, ratio, _, y_zero in MEANS.values():
        requantize = Requantizer.of(ratio / columns, y_zero, ties_to_even=True).for_high_word()
        options = MeanOptions.of(requantize, columns, DType.INT8, DType.INT8)
        seen.add((options.uses_upper_word, options.ties_matter))
    assert seen == {(True, False), (True, True), (False, True)}  # what is not scaled may tie


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", MEANS)
def test_means_are_those_of_an_average_pool(kind: str):
    means(*MEANS[kind]).check()


@pytest.mark.parametrize("extreme", [-128, 127])
def test_means_of_the_largest_sums(extreme: int):
    means(1024, 24, 0.9, -extreme // 2, 1, extreme).check()


@pytest.mark.spread(5)
@pytest.mark.parametrize("cpu", CPUS)
def test_the_same_means_on_every_cpu(cpu: str):
    for kind in ("some", "ties", "larger", "one"):
        means(*MEANS[kind]).check(cpu)
    for extreme in (-128, 127):
        means(1024, 24, 0.9, -extreme // 2, 1, extreme).check(cpu)
