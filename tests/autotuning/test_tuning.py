# SPDX-License-Identifier: Apache-2.0
"""`--tune`: what is measured decides, is kept, and never makes a program worse."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from onnx_models import Net

import mcugen.autotuning.measured_kernels as tuning
from mcugen.core.cache import Store
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions, LayerTimes
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.layer_names import name_results_of
from mcugen.search.trace import SearchTrace

BOARD = "stm32l4r5"


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """A convolution and a dense layer of int8, both with a choice of kernels."""
    net, random = Net(), np.random.default_rng(0)
    x = net.dequantize(net.input("x", 1, 8, 8, 8, dtype=np.int8), 0.05)
    weights = net.dequantize(net.const(random.integers(-127, 128, (16, 8, 3, 3)), np.int8), 0.002)
    x = net.fake(net.op("Relu", net.op("Conv", x, weights, pads=[1, 1, 1, 1], out="conv")), 0.05)
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    weights = net.dequantize(net.const(random.integers(-127, 128, (16, 10)), np.int8), 0.002)
    net.output(net.quantize(net.op("MatMul", net.fake(x, 0.05), weights), 0.05, out="y"), dtype=np.int8)
    return net.model()


def tuned(
    model: onnx.ModelProto, store: Store, board: str = BOARD, trace: SearchTrace | None = None, **options: object
) -> CompiledModel:
    asked = CompileOptions(optimize="speed", tune=3, **options)  # type: ignore[arg-type]
    return tuning.tune_kernels(asked, partial(compile_model, model, board), store, trace)


def kernels(compiled: CompiledModel) -> dict[str, str]:
    """Return the kernel of each layer, by the name of the layer's result."""
    names = name_results_of(compiled.graph)
    by_name = {layer.name: layer.kernel for layer in compiled.report.layers}
    return {result: by_name[name] for result, name in names.items() if name in by_name}


def test_measured_cycles_choose(model: onnx.ModelProto) -> None:
    """Whatever the fits say."""
    options = CompileOptions(optimize="speed")
    free = compile_model(model, BOARD, options)
    (conv,) = (node for node in free.graph.nodes if node.op.name.startswith("conv"))
    name = conv.outputs[0].name
    fitting = [k.name for k in tuning.fitting_kernels(conv, tuning.target_of(free.board, options).features, False)]
    assert len(fitting) > 2
    for wanted in fitting[:3]:
        times = {(name, kernel): LayerTimes(*[10 + 10 * (kernel != wanted)] * 2) for kernel in fitting}
        assert kernels(compile_model(model, BOARD, replace(options, times=times)))[name] == wanted


@pytest.mark.qemu
def test_what_was_measured_is_kept(model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    found = tuned(model, store)
    figures = found.report.tuning
    assert figures is not None and figures.candidates >= 8
    assert figures.cycles_estimate <= figures.fits_cycles_estimate
    monkeypatch.setattr("mcugen.simulation.simulate", lambda *_, **__: pytest.fail("runs again"))
    again = tuned(model, store)
    assert again.report.tuning == figures and again.bundle.files == found.bundle.files
    for file in tmp_path.iterdir():
        file.write_text("{")
    with pytest.raises(pytest.fail.Exception):
        tuned(model, store)


@pytest.mark.parametrize("measured", [(100, 200), (200, 100)])
def test_the_better_program_as_both_ran_is_taken(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: tuple[int, int]
) -> None:
    """Layers side by side may take other times than in their place."""
    wholes = iter(measured)

    def run(bundle: object, *_: object) -> tuple[int, list[int]]:
        layers = len(bundle.layers)  # type: ignore[attr-defined]
        return (0, list(range(layers, 0, -1))) if bundle.name == "candidates" else (next(wholes), [])  # type: ignore[attr-defined]

    monkeypatch.setattr(tuning, "_run", run)
    trace = SearchTrace()
    figures = tuned(model, Store(tmp_path), trace=trace).report.tuning
    assert [entry.metrics.cycles for entry in trace.entries] == list(measured)
    assert [entry.is_chosen for entry in trace.entries] == [cycles == min(measured) for cycles in measured]
    assert figures is not None
    assert (figures.fits_cycles_estimate, figures.cycles_estimate) == (measured[0], min(measured))
    assert bool(figures.layers) == (measured[1] < measured[0])


@pytest.mark.parametrize(
    ("board", "options", "said"),
    [
        ("host", {}, "is not simulated"),
        (BOARD, {"max_cycles": 1000}, "a deadline"),
        (BOARD, {"weights_reader": True}, "--weights-reader"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    model: onnx.ModelProto, tmp_path: Path, board: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        tuned(model, Store(tmp_path), board, **options)


def test_a_number_of_kernels_is_positive(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "net.onnx")
    done = mcugen("compile", tmp_path / "net.onnx", "--board", BOARD, "--tune", "-1", "-o", tmp_path / "net")
    assert done.code == 2 and "--tune" in done.err


@pytest.mark.qemu
def test_the_command_tells_what_it_gained(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(model, tmp_path / "net.onnx")
    done = mcugen(
        "report", tmp_path / "net.onnx", "--board", BOARD, "--tune", "2", "--optimize", "speed", "--json", "-"
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["tuning"]["cycles_estimate"] == told["cycles_estimate"] <= told["tuning"]["fits_cycles_estimate"]
