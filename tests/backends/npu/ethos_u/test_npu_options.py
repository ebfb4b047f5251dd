# SPDX-License-Identifier: Apache-2.0
"""An NPU together with other options: the code computes the outputs of the specification, or one error says why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import Net
from segments import conv, dense
from test_recurrent_flash import Network
from test_training import convolutional, lessons
from two_core_boards import two_cores

from mcugen.api.compilation import Compilation
from mcugen.backends.npu.ethos_u import vela
from mcugen.core.board import Board, Energy, load_board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions, Places, Training
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

pytestmark = pytest.mark.skipif(not vela.is_installed(), reason="needs ethos-u-vela (pip install 'mcugen[ethos-u]')")


def network() -> onnx.ModelProto:
    """Return two convolutions, the first of which the NPU takes, around an average pool that stays on the CPU."""
    net = Net()
    x = net.dequantize(net.input("x", 1, 8, 16, 16, dtype=np.int8), 0.05, 3)
    first = net.fake(conv(24, (3, 3), channels=8, pads=[1, 1, 1, 1], relu=True)(net, x), 0.4, -128)
    pooled = net.fake(net.op("AveragePool", first, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]), 0.4, -128)
    second = conv(16, (3, 3), channels=24, pads=[1, 1, 1, 1])(net, pooled)
    net.output(net.quantize(second, 4.0, 0, out="y"), dtype=np.int8)
    return net.model()


def on_this_computer(name: str) -> Board:
    """Return a board whose code runs on this computer, which takes less time than QEMU."""
    return replace(load_board(name), qemu="")


def invocations(compiled: CompiledModel) -> int:
    return sum(instr.is_offloaded for instr in compiled.program.instrs)


def assert_right(compiled: CompiledModel, **run: Any) -> None:
    """Assert that the code computes the outputs of the specification, in two calls."""
    random = np.random.default_rng(0)
    shapes = {value.name: value.type for value in compiled.graph.inputs}
    inputs = [{n: random.integers(-128, 128, t.shape).astype(t.dtype.numpy) for n, t in shapes.items()} for _ in "ab"]
    found = compiled.simulate(inputs, **run).outputs
    for ours, expected in zip(found, compiled.interpret_samples(inputs), strict=True):
        for name, array in expected.items():
            np.testing.assert_array_equal(ours[name], array)


WORKS: Mapping[str, CompileOptions] = {
    "weights in a file": CompileOptions(weights_blob=True),
    "weights that can be replaced": CompileOptions(weights_blob=True, updatable=True),
    "steps": CompileOptions(steps=True),
    "inputs and outputs of the caller": CompileOptions(external_io=True),
    "checked weights": CompileOptions(check_weights=True),
    "checked arena": CompileOptions(checked_arena=True),
    "checked indices": CompileOptions(checked_indices=True),
    "speed": CompileOptions(optimize="speed"),
    "weights in RAM": CompileOptions(place=Places(weights="sram")),
    "arena in a further memory of the NPU": CompileOptions(place=Places(arena=("ddr4",))),
    "placement by mcugen": CompileOptions(place=Places(arena=("auto",))),
    "a budget that is met": CompileOptions(max_ram=60_000, max_flash=100_000),
    "integer inputs and outputs": CompileOptions(integer_io=True),
    "steps of limited time": CompileOptions(steps=True, max_step_cycles=200_000, max_cycles=300_000),
    "checked steps": CompileOptions(steps=True, checked_steps=True),
    "validation on the device": CompileOptions(validation=True),
    "a self-test": CompileOptions(self_test=2),
    "portable C": CompileOptions(family="portable"),
    "functions for inputs and outputs": CompileOptions(helpers=True),
    "float16 weights": CompileOptions(float16_weights=True),
}
"""Options beside `--npu auto`, by what they are for."""


@pytest.mark.parametrize("case", WORKS)
def test_what_goes_together(case: str):
    compiled = compile_model(network(), on_this_computer("corstone300"), replace(WORKS[case], npu="auto"))
    assert invocations(compiled) == 2
    assert_right(compiled, sanitize=True)


def test_layers_by_rows_stay_on_the_cpu():
    options = CompileOptions(npu="auto", by_rows=frozenset({"y"}))
    compiled = compile_model(network(), on_this_computer("corstone300"), options)
    assert invocations(compiled) == 1
    assert_right(compiled, sanitize=True)


def test_training_of_layers_behind_those_on_the_npu():
    options = CompileOptions(npu="only", training=Training("last:1"))
    compiled = compile_model(convolutional(quantized=True), on_this_computer("corstone300"), options)
    assert invocations(compiled) == 1
    given = lessons(compiled, 3)
    for here, there in zip(compiled.simulate(given).outputs, compiled.reference(given), strict=True):
        np.testing.assert_allclose(here["loss"], there["loss"], rtol=1e-3)


@pytest.mark.parametrize("use", ["auto", "only", "exact"])
def test_streams_of_steps(use: str):
    net = Net()
    x = net.dequantize(net.input("x", 1, 3, 32, dtype=np.int8), 0.05, 3)
    first = net.fake(conv(8, (3,), channels=3, pads=[2, 0], relu=True)(net, x), 0.4, -128)
    second = conv(4, (3,), channels=8, pads=[4, 0], dilations=[2])(net, first)
    net.output(net.quantize(second, 2.0, 0, out="y"), dtype=np.int8)
    compiled = compile_model(net.model(), on_this_computer("corstone300"), CompileOptions(npu=use, stream_steps=4))
    assert invocations(compiled) >= (use == "only")
    inputs = [{"x": x} for x in np.random.default_rng(1).integers(-128, 128, (3, 1, 3, 4)).astype(np.int8)]
    for found, expected in zip(compiled.simulate(inputs).outputs, compiled.interpret_samples(inputs), strict=True):
        np.testing.assert_equal(found, {name: expected[name] for name in found})


@pytest.mark.parametrize("steps", [False, True])
def test_recurrent_layers_by_steps_or_at_once(steps: bool):
    model = Network("LSTM", 8, 12).quantized()
    compiled = compile_model(model, on_this_computer("corstone300"), CompileOptions(npu="only", steps=steps))
    inputs = [{"x": x} for x in np.random.default_rng(7).standard_normal((2, 6, 1, 8)).astype(np.float32)]
    np.testing.assert_equal(compiled.simulate(inputs).outputs, compiled.interpret_samples(inputs))


@pytest.mark.qemu
def test_the_bound_of_the_stack_leaves_out_the_driver():
    report = Compilation(network(), "corstone300", CompileOptions(npu="auto", stack_bound=True)).report()
    bound = report.stack_bound
    assert bound is not None and bound.bytes is not None and 100 < bound.bytes < 1000
    assert "functions of the caller's take, which ethos_u_invoke calls" in bound.note


@pytest.mark.parametrize("goal", ["ram", "flash"])
def test_a_program_for_little_memory_has_no_more_than_without_the_npu(goal: str):
    with_npu, plain = (
        compile_model(network(), "corstone300", CompileOptions(npu=use, optimize=goal)) for use in ("auto", "off")
    )
    ours, theirs = (c.program.arena_size if goal == "ram" else c.program.weights_size for c in (with_npu, plain))
    assert ours <= theirs


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (CompileOptions(place=Places(weights="sram")), "weights from 'flash', not from copies"),
        (CompileOptions(place=Places(arena=("ddr4",))), "that of an arena in 'sram', not in 'ddr4'"),
        (CompileOptions(), "the current of the CPU alone"),
    ],
)
def test_notes_on_what_is_not_as_asked(options: CompileOptions, note: str):
    board = replace(on_this_computer("corstone300"), energy=Energy(100.0, 3300))
    compiled = compile_model(network(), board, replace(options, npu="auto"))
    assert any(note in text for text in compiled.report.notes)
    plain = compile_model(network(), board, options)
    assert not any(note in text for text in plain.report.notes)


@pytest.mark.qemu
def test_energy_is_that_of_the_cpu_alone():
    board = replace(load_board("corstone300"), energy=Energy(100.0, 3300))
    joules = list[float | None]()
    for use in ("off", "auto"):
        joules.append(Compilation(network(), board, CompileOptions(npu=use)).report().microjoules_estimate)
    assert joules[0] and joules[1] is None


def test_two_cores():
    board = replace(two_cores("corstone300"), qemu="")
    compiled = compile_model(network(), board, CompileOptions(npu="auto", cores=2))
    assert invocations(compiled) == 2
    assert_right(compiled)


def test_a_range_of_sizes_stays_on_the_cpu():
    net = Net()
    x = net.dequantize(net.input("x", "N", 64, dtype=np.int8), 0.05, 3)
    net.output(net.quantize(dense(16, 64)(net, x), 0.5, 0, out="y"), dtype=np.int8)
    compiled = compile_model(net.model(), "corstone300", CompileOptions(npu="only", dims={"N": (1, 8)}))
    assert invocations(compiled) == 0
    assert any("no layer runs there" in note for note in compiled.report.notes)


FAILS: Mapping[str, tuple[CompileOptions, type[Exception], str]] = {
    "weights that are read": (CompileOptions(weights_reader=True), UsageError, "reads weights where they lie"),
    "an arena out of reach": (CompileOptions(place=Places(arena=("dtcm",))), UsageError, "--place arena=sram"),
    "little memory": (CompileOptions(max_ram=1000), DoesNotFitError, "--max-ram"),
    "inputs by rows": (CompileOptions(stream_input=True), UsageError, "row by row is computed by the CPU"),
    "one core": (CompileOptions(throughput=True), UsageError, "--cores"),
    "no such memory": (CompileOptions(place=Places(arena=("dtcm1",))), UsageError, "dtcm1"),
}
"""Options beside `--npu auto` that are refused, with a part of the message."""


@pytest.mark.parametrize("case", FAILS)
def test_what_does_not_go_together(case: str):
    options, error, message = FAILS[case]
    with pytest.raises(error, match=message):
        compile_model(network(), "corstone300", replace(options, npu="auto"))


@pytest.mark.parametrize("use", ["auto", "exact", "only"])
def test_boards_without_an_npu(use: str):
    with pytest.raises(UsageError, match=f"--npu {use} needs a board file with a table"):
        compile_model(network(), "nrf52840", CompileOptions(npu=use))


def test_only_keeps_what_the_npu_does_not_take_on_the_cpu():
    compiled = compile_model(network(), on_this_computer("corstone300"), CompileOptions(npu="only"))
    figures = compiled.report.accelerator
    assert figures is not None
    on_cpu = {p.operator: p.reason for p in figures.placements if p.runs_on == "CPU"}
    assert on_cpu == {"average_pool": "windows with different numbers of elements"}
    assert_right(compiled)
