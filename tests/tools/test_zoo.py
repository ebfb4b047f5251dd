# SPDX-License-Identifier: Apache-2.0
"""The tool that measures models which nobody tuned for."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import zoo
from benchmark.reasons import excess_reasons
from onnx_models import Net
from shared_models import SHARED

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.core.cache import Store
from mcugen.core.options import CompileOptions
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Quantizing

MODEL = SHARED / "zoo" / "esp_tcn_stream.onnx"


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.qemu
@pytest.mark.skipif(not MODEL.is_file(), reason="../shared/zoo is absent")
def test_a_model_is_measured_as_given_and_quantized_by_a_cluster():
    tasks = list(zoo._wanted([MODEL.stem], ["nrf52840"], ["given", "int8"]))
    work = partial(zoo._measured_of, zoo._files(tasks))
    rows = {task.precision: row for task, (row,) in Workers(1, "local").run_tasks(work, tasks)}
    assert not any(row.failure for row in rows.values())
    assert rows["int8"].arena < rows["given"].arena
    assert all(0 < row.least_arena <= row.arena and row.instructions > row.macs > 0 for row in rows.values())
    assert all(0 <= row.plain < 1 and row.slowest for row in rows.values())
    assert not rows["given"].why and "3 products an output" in rows["int8"].why and "is no product" in rows["int8"].why


@pytest.mark.shared
@pytest.mark.skipif(not MODEL.is_file(), reason="../shared/zoo is absent")
def test_samples_are_spread_around_the_recorded_ones():
    samples = zoo.spread_samples(MODEL)
    recorded = np.load(MODEL.with_suffix(".io.npz"))
    for index, (name, array) in enumerate(samples.items()):
        assert array.shape == (zoo.SAMPLES, *recorded[f"in0_{index}"].shape), name
        assert len(np.unique(array.reshape(zoo.SAMPLES, -1), axis=0)) == zoo.SAMPLES


def test_a_failure_is_a_row():
    row = zoo.Row("net", "given", "rp2040", failure="too large")
    assert row.cells()[-1] == "too large"
    assert len(row.cells()) == len(zoo.HEADINGS)


def test_what_fails_while_it_is_quantized_is_a_row_a_board(tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    rows = zoo._measured(broken, "int8", ["rp2040", "nrf52840"])
    assert [row.board for row in rows] == ["rp2040", "nrf52840"] and all(row.failure for row in rows)


def test_a_run_that_ended_early_goes_on_where_it_was(tmp_path, monkeypatch):
    """Rows are kept under what they follow from; failures are not."""
    model, samples = tmp_path / "net.onnx", tmp_path / "net.io.npz"
    model.write_bytes(b"a model")
    samples.write_bytes(b"samples")
    asked: list[list[str]] = []

    def measured(path, precision, boards):
        asked.append(list(boards))
        return [
            zoo.Row("net", precision, board, failure="none" if board == "rp2040" else "", macs=3) for board in boards
        ]

    monkeypatch.setattr(zoo, "KEPT", Store(tmp_path / "kept"))
    monkeypatch.setattr(zoo, "_measured", measured)
    task = zoo.Task("net", "int8", ("rp2040", "nrf52840"))
    rows = [zoo._measured_of({"net": (model, samples)}, task) for _ in range(2)]
    assert rows[0] == rows[1] and asked == [["rp2040", "nrf52840"], ["rp2040"]]
    model.write_bytes(b"another model")
    zoo._measured_of({"net": (model, samples)}, task)
    assert asked[-1] == ["rp2040", "nrf52840"]


@pytest.mark.qemu
def test_a_peer_stands_beside_a_float_model(monkeypatch):
    """Its program is not there to be had in tests: what is made of its figures is."""
    monkeypatch.setattr(zoo, "_peer", lambda path, board: (200_000, 5_000))
    model = zoo.DOCUMENT.parents[3] / "examples" / "digits" / "digits_f32.onnx"
    (row,) = zoo._measured(model, "given", ["nrf52840"])
    cells = dict(zip(zoo.HEADINGS, row.cells(), strict=True))
    assert cells["instructions, of emx's"] == f"{row.instructions / 200_000:.2f}"
    assert cells["RAM, of emx's"] == f"{row.ram / 5_000:.2f}" and row.ram > row.arena


def test_a_table_keeps_what_was_not_measured_again():
    rows = [zoo.Row("net", "given", board, failure="slow").cells() for board in ("rp2040", "nrf52840")]
    old = zoo.merge_rows("", rows, zoo.HEADINGS)
    new = zoo.merge_rows(old, [zoo.Row("net", "given", "rp2040", failure="fast").cells()], zoo.HEADINGS).splitlines()
    assert [line.split("|")[-2].strip() for line in new[2:]] == ["slow", "fast"]


def test_a_row_that_tells_nothing_any_more_goes():
    old = zoo.merge_rows("", [["net", "int8", "nrf52840", "because."]], zoo.WHY)
    assert "because." in old
    assert len(zoo.merge_rows(old, [["net", "int8", "nrf52840", ""]], zoo.WHY).splitlines()) == 2


@pytest.mark.qemu
def test_what_is_above_the_aims_says_why_by_the_program_itself():
    """An operator without products, few products an output, a loop's steps; nothing of CPUs without such products."""
    net, random = Net(opset=21), np.random.default_rng(0)
    sizes = [random.normal(0, 0.4, shape) for shape in ((1, 24, 6), (1, 24, 8), (1, 48))]
    y, *_ = net.ops("GRU", net.input("x", 20, 1, 6), *map(net.const, sizes), outs=["states"], hidden_size=8)
    net.op("Softmax", net.op("Reshape", y, net.const([20, 8], np.int64)), axis=-1, out="y")
    net.output("y")
    samples = {"x": random.normal(0, 1, (8, 20, 1, 6)).astype(np.float32)}
    made = Compilation(net.model(), load_board("nrf52840"), CompileOptions(), Quantizing(calibration=samples))
    found = excess_reasons(made.compiled, made.report().layers)
    for sentence in (
        r"\d+% is no product \(softmax \d+%: [\d.]+ instructions an element of 160\)\.",
        r"Layers with products take [\d.]+, \d+% of it in \d of \d that have at most 64 products an output\.",
        r"for [\d.]+: a step has 336 products in \d+ operators, and takes \d+ instructions\.",
    ):
        assert re.search(sentence, found), found
    border = Net()
    border.output(border.quantize(border.input("x", 1, 900), 0.03, out="y"), dtype=np.int8)
    made = Compilation(border.model(), load_board("nrf52840"))
    assert not excess_reasons(made.compiled, made.report().layers)  # nothing is multiplied
    plain = Compilation(net.model(), load_board("rp2040"), CompileOptions(), Quantizing(calibration=samples))
    assert not excess_reasons(plain.compiled, plain.report().layers)


@pytest.mark.qemu
def test_what_no_product_takes_is_a_column(monkeypatch):
    monkeypatch.setattr(zoo, "_peer", lambda path, board: None)
    model = zoo.DOCUMENT.parents[3] / "examples" / "digits" / "digits_f32.onnx"
    (row,) = zoo._measured(model, "given", ["nrf52840"])
    assert 0 < row.besides < 1
    assert dict(zip(zoo.HEADINGS, row.cells(), strict=True))["without products"] == f"{row.besides:.0%}"
