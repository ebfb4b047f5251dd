# SPDX-License-Identifier: Apache-2.0
"""Parameters that exceed flash are refused before the work, and only those."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples
from onnx_models import Net, imported
from shared_models import MODELS

from mcugen.backends.cpu.pipeline import optimize
from mcugen.core.board import load_board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import CMSIS_NN, OWN, CompileOptions, Places
from mcugen.driver import compiler, parameters
from mcugen.driver.compiler import compile_model
from mcugen.driver.parameters import min_weight_bytes, require_room_quantized
from mcugen.frontend.onnx.load import load
from mcugen.quantization.quantize import import_float_model
from mcugen.quantization.scheme import Scheme

RANDOM = np.random.default_rng(0)
SMALL = load_board("stm32f103")
"""Of 64 KiB of flash."""


def dense(rows: int, columns: int) -> onnx.ModelProto:
    net = Net()
    net.output(net.op("MatMul", net.input("x", 1, rows), net.const(RANDOM.random((rows, columns)), name="w")))
    return net.model()


def never(*arguments: object, **options: object) -> None:
    raise AssertionError("the work was begun")


def test_float_weights_are_refused_before_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "search_program", never)
    with pytest.raises(DoesNotFitError) as error:
        compile_model(dense(128, 512), SMALL)
    assert error.value.rule == "the weights must fit in one flash memory of board 'stm32f103'"
    assert error.value.found.startswith("262,144 bytes of parameters alone, 196,608 more than there are; largest: 'w")
    quantize, boards = error.value.remedy.split("; or ")
    assert quantize == "quantize it: --calibration SAMPLES.npz makes 65,536 bytes of them, or fewer"
    assert boards.startswith("a board with room: ")
    assert {"nrf52840", "rt1060"} < set(boards[19:].split(", ")).difference({"stm32f103", "host"})


def test_what_no_board_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "chip_names", lambda: ["stm32f103"])
    with pytest.raises(DoesNotFitError, match="a smaller model: no board has room"):
        compile_model(dense(128, 512), SMALL)


def test_place_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "search_program", never)
    with pytest.raises(DoesNotFitError, match="the weights must fit in memory 'flash' of board 'stm32f103'"):
        compile_model(dense(128, 512), SMALL, CompileOptions(place=Places(weights="flash")))


def thrifty() -> onnx.ModelProto:
    """Reads some of its constants once, twice, turned, not at all, or only in what is computed at compile time."""
    net, w = Net(), RANDOM.random((48, 48)).astype(np.float32)
    net.const(RANDOM.random((300, 300)), name="unused")
    first, same, turned = net.const(w), net.const(w), net.const(w.T)
    x = net.op("MatMul", net.input("x", 1, 48), first)
    x = net.op("MatMul", net.op("Relu", x), same)
    x = net.op("Gemm", net.op("Relu", x), turned, transB=1)
    folded = net.op("MatMul", net.const(RANDOM.random((48, 500))), net.const(RANDOM.random((500, 4))))
    net.output(net.op("MatMul", net.op("Tanh", x), folded))
    return net.model()


def test_only_what_is_stored_is_counted() -> None:
    model, generous = thrifty(), CompileOptions(max_flash=1 << 30)
    budget = compile_model(model, "nrf52840", generous).report.budget
    assert budget is not None
    stored = sum(np.prod(t.dims) * 4 for t in model.graph.initializer)
    assert stored > 10 * budget.flash_estimate
    compile_model(model, "nrf52840", CompileOptions(max_flash=budget.flash_estimate))


@pytest.mark.spread(2)
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "family"),
    [
        *(("resnet8_cifar10_int8_qdq", OWN), ("resnet8_cifar10_int8_qdq", CMSIS_NN), ("ds_cnn_kws_w8_f32_nhwc", OWN)),
        *(("mobilenet_v1_025_vww_int8_qdq", OWN), ("streaming_wakeword_int8_qdq", CMSIS_NN)),
        *(("autoencoder_ad_f32", OWN), ("pt_bilstm_dynamo", OWN)),
    ],
)
def test_the_bound_is_never_above_the_weights(name: str, family: str) -> None:
    options = CompileOptions(family=family)
    model = load(MODELS / f"{name}.onnx").proto
    compiled = compile_model(model, "corstone300", options)
    graph = imported(model)
    optimize(graph)
    assert 0 < min_weight_bytes(graph, options) <= compiled.program.weights_size


class BegunError(Exception):
    """Where a test wants to be."""


def test_a_budget_of_the_users_is_refused_by_its_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which alone can tell the least flash that there is."""

    def ladder(*arguments: object, **options: object) -> None:
        raise BegunError

    monkeypatch.setattr(compiler, "search_program", ladder)
    with pytest.raises(BegunError):
        compile_model(dense(16, 32), SMALL, CompileOptions(max_flash=1000))


# -------------------------------------------------------------------------------------------------- quantization


def check_quantized(model: onnx.ModelProto, max_flash: int) -> None:
    source, options = load(model), CompileOptions(max_flash=max_flash)
    fused = import_float_model(source, options, Scheme())
    require_room_quantized(source, fused, Scheme(), normal_samples(model), None, SMALL, options)


def test_a_byte_a_parameter_is_counted() -> None:
    """By a draft, of whose weights a tenth may yet become needless."""
    check_quantized(dense(64, 100), 6400)
    check_quantized(dense(64, 100), 5800)
    with pytest.raises(DoesNotFitError, match=r"must fit --max-flash 5,700\. found: 5,760 bytes of parameters alone"):
        check_quantized(dense(64, 100), 5700)


def test_nothing_is_drafted_where_all_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "create_quantizer", never)
    check_quantized(conv_net(), 10_000)


def test_channels_that_are_constant_are_not_counted() -> None:
    """Most of a trained network's may be: without the draft it would be refused, though it fits."""
    net = Net()
    x = net.input("x", 1, 8, 6, 6)
    bias = np.where(np.arange(64) < 8, 0.0, -1000.0)
    y = net.op("Conv", x, net.const(RANDOM.standard_normal((64, 8, 3, 3))), net.const(bias))
    y = net.op("Conv", net.op("Relu", y), net.const(RANDOM.standard_normal((8, 64, 3, 3))), net.const(np.zeros(8)))
    net.output(y)
    assert sum(np.prod(t.dims) for t in net.constants) > 9000
    check_quantized(net.model(), 2000)
    with pytest.raises(DoesNotFitError):
        check_quantized(net.model(), 500)
