# SPDX-License-Identifier: Apache-2.0
"""The real models of ../shared: outputs, layer by layer and end to end, on the host and on every CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from _pytest.mark import ParameterSet
from compilers import OTHERS, command, run
from onnx_models import random_feeds
from shared_models import (
    DATASETS,
    FLOAT,
    MODELS,
    NAMES,
    QUANTIZED,
    dataset,
    integer_graph,
    layer_results,
    options,
    recorded,
    roomy,
    tensors_of_onnxruntime,
)

from mcugen.backends.cpu.pipeline import convert_integers, optimize
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import compare, run_onnxruntime
from mcugen.evaluation.samples import load_samples
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import load_model
from mcugen.hir.interpreter import interpret

pytestmark = pytest.mark.shared

CPUS = ("rp2040", "stm32f103", "stm32f411", "rt1060", "rt685", "corstone300")
"""Cortex-M0+, M3, M4, M7, M33 and M55."""

RISCV = ("esp32c3", "gd32vf103", "rv32imafc")
"""Without an FPU, with atomic instructions besides, with an FPU."""

QUICK = ("autoencoder_ad_int8_qdq", "ds_cnn_kws_ortq_u8s8_qdq", "streaming_wakeword_f32", "pt_mlp_dynbatch_dynamo")
"""Models that every CPU runs whenever the others are tested; what else is marked as slow is for the long sweep."""

FLOAT_CPUS = ("rp2040", "rt1060", "corstone300")
"""Without an FPU, with one, with Helium: the other CPUs take the float kernels of one of these."""


def is_twin(name: str) -> bool:
    """Whether the network is there with its channels first, or by another exporter, too: its kernels are the same."""
    ends = {"_nhwc": "", "_legacy": "_dynamo", "_opset8_original": ""}
    return any(name.endswith(end) and name.removesuffix(end) + other in NAMES for end, other in ends.items())


TOP1_OF_QDQ = {
    "resnet8_cifar10_int8_qdq": 0.86375,
    "ds_cnn_kws_int8_qdq": 0.9050,
    "streaming_wakeword_int8_qdq": 14 / 15,
    "resnet8_cifar10_ortq_s8s8_perchannel_qdq": 0.86125,
    "ds_cnn_kws_ortq_u8s8_qdq": 0.9050,
}
"""Accuracy on the evaluation split, from ../shared/models/README.md."""


@cache
def compiled(name: str, board: str = "host") -> CompiledModel:
    return compile_model(MODELS / f"{name}.onnx", roomy(board), options(name))


@pytest.mark.spread(7)
@pytest.mark.parametrize("name", NAMES)
def test_host_build_gives_the_recorded_outputs_without_undefined_behaviour(name: str) -> None:
    model = compiled(name)
    inputs, expected = recorded(name, model)
    outputs = model.simulate(inputs, measure=False, sanitize=True).outputs
    for found, wanted in zip(outputs, expected, strict=True):
        for endpoint in model.program.outputs:
            error = np.abs(found[endpoint.name].astype(np.float64) - wanted[endpoint.name]).max()
            if name in FLOAT:
                assert error <= 1e-4 * np.ptp(wanted[endpoint.name])
            else:
                assert found[endpoint.name].argmax() == wanted[endpoint.name].argmax()


@pytest.mark.spread(6)
@pytest.mark.parametrize("compiler", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_generated_code_compiles_without_a_warning(name: str, compiler: str, tmp_path: Path) -> None:
    """gcc, for the host and for Arm, sees it in the other tests, under the same flags."""
    folder = compiled(name).write(tmp_path / "model")
    run([*command(compiler), "-fsyntax-only", *(source.name for source in folder.glob("*.c"))], folder)


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", QUANTIZED)
def test_each_integer_layer_is_within_one_step_of_onnxruntime_on_the_same_inputs(name: str) -> None:
    model, _ = load_model(MODELS / f"{name}.onnx")
    graph, given = integer_graph(model), onnx.load(MODELS / f"{name}.onnx")
    samples = load_samples(dataset(name), compiled(name).program.inputs).inputs[:60]
    counts: dict[str, list[int]] = {}
    for start in range(0, len(samples), 10):
        for tensors in tensors_of_onnxruntime(given, samples[start : start + 10]):
            for node, (found, wanted) in layer_results(graph, tensors).items():
                difference = np.abs(found.astype(np.int16) - wanted)
                assert difference.max() <= 1, node.place
                total = counts.setdefault(node.place, [0, 0])
                total[0] += int((difference > 0).sum())
                total[1] += difference.size
    assert len(counts) >= 10
    shares = {place: wrong / size for place, (wrong, size) in counts.items()}
    assert max(shares.values()) < 0.005, max(shares, key=lambda place: shares[place])


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", [n for n in QUANTIZED if n.startswith(tuple(DATASETS))])
def test_int8_agrees_with_onnxruntime_end_to_end(name: str) -> None:
    model = compiled(name)
    samples = load_samples(dataset(name), model.program.inputs)
    run = model.simulate(samples.inputs, measure=False)
    reference = run_onnxruntime(model.given, samples.inputs)
    accuracy = compare(model.program.outputs, run.outputs, reference, samples.labels)
    assert accuracy.samples == len(samples.inputs)
    assert accuracy.agreement >= 0.98
    wanted = TOP1_OF_QDQ.get(name.removesuffix("_nhwc"))
    if wanted is not None:
        assert accuracy.target is not None and accuracy.target >= wanted - 0.003


def quick_or_slow(names: Sequence[str], is_quick: Callable[[str], bool]) -> list[ParameterSet]:
    return [pytest.param(name, marks=() if is_quick(name) else pytest.mark.slow) for name in names]


@pytest.mark.qemu
@pytest.mark.parametrize("name", quick_or_slow(QUANTIZED, lambda name: name == "ds_cnn_kws_int8_qdq"))
def test_int8_outputs_are_the_same_bytes_on_every_cpu(name: str) -> None:
    assert_same_bytes(name, CPUS)


def assert_same_bytes(name: str, boards: Sequence[str]) -> None:
    """On boards as on this computer."""
    host = compiled(name)
    inputs, _ = recorded(name, host)
    wanted = host.simulate(inputs, measure=False).outputs
    for board in boards:
        outputs = compiled(name, board).simulate(inputs, measure=False).outputs
        for found, expected in zip(outputs, wanted, strict=True):
            for key, array in expected.items():
                assert found[key].tobytes() == array.tobytes(), f"{board}: {key}"


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("board", "name"),
    [
        pytest.param(board, *each.values, marks=each.marks)
        for board in CPUS
        for each in quick_or_slow(FLOAT, lambda n, b=board: n in QUICK or (b in FLOAT_CPUS and not is_twin(n)))
    ],
)
def test_float_outputs_are_near_the_recorded_ones_on_every_cpu(name: str, board: str) -> None:
    assert_near(name, board)


def assert_near(name: str, board: str) -> None:
    """What is recorded, within a ten-thousandth of its range."""
    model = compiled(name, board)
    inputs, expected = recorded(name, model)
    # without an FPU a float MAC costs some 90 instructions: one sample says enough there
    count = 3 if "fpu" in model.board.features else 1
    outputs = model.simulate(inputs[:count], measure=False).outputs
    for found, wanted in zip(outputs, expected, strict=False):
        for key, array in wanted.items():
            assert np.abs(found[key] - array).max() <= 1e-4 * np.ptp(array)


@pytest.mark.spread(2)
@pytest.mark.riscv
@pytest.mark.parametrize("name", quick_or_slow(QUANTIZED, QUICK.__contains__))
def test_int8_outputs_are_the_same_bytes_on_riscv(name: str) -> None:
    assert_same_bytes(name, RISCV)


@pytest.mark.spread(2)
@pytest.mark.riscv
@pytest.mark.parametrize("name", quick_or_slow(FLOAT, QUICK.__contains__))
@pytest.mark.parametrize("board", RISCV)
def test_float_outputs_are_near_the_recorded_ones_on_riscv(name: str, board: str) -> None:
    assert_near(name, board)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", QUANTIZED)
def test_channels_that_need_not_be_computed_change_no_output(name: str) -> None:
    """Of the visual wake words models, half of all multiply-accumulates need not be; fillers take some of them."""
    model, _ = load_model(MODELS / f"{name}.onnx")
    plain, graph = (import_model(model, "net") for _ in range(2))
    convert_integers(plain)
    optimize(graph)
    for seed in range(3):
        feeds = random_feeds(model, seed)
        for output, expected in interpret(plain, feeds).items():
            np.testing.assert_array_equal(interpret(graph, feeds)[output], expected)
    macs = sum(node.op.macs(node.sig) for node in graph.nodes)
    assert (graph.dropped.macs >= 0.48 * (macs + graph.dropped.macs)) == name.startswith("mobilenet")
