# SPDX-License-Identifier: Apache-2.0
"""Each operator of TensorFlow Lite computes what TensorFlow's own interpreters compute, up to one quantized step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx_models import numpy_outputs, onnxruntime_outputs, optimized
from tflite_cases import CASES, Case, expected_outputs, interpreted
from tflite_models import converted

from mcugen.driver.compiler import compile_model
from mcugen.frontend.tflite.schema import STATES_KEY
from mcugen.hir.graph import Value
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import BUILT_IN

EXPECTED = expected_outputs()


Run = Callable[[onnx.ModelProto, Mapping[str, Array]], Mapping[str, Array]]


def outputs_of(made: Case, run: Run) -> list[Array]:
    """Return the outputs of the last run; states pass from run to run."""
    model = converted(made.data)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    states = json.loads(properties.get(STATES_KEY, "{}"))
    given, inputs = iter(made.feeds), optimized(model).inputs if states else []
    kept = {value.name: first_state(value) for value in inputs if value.name in states.values()}
    feeds = {info.name: kept[info.name] if info.name in kept else next(given) for info in model.graph.input}
    for _ in range(made.runs):
        outputs = run(model, feeds)
        feeds |= {target: outputs[source] for source, target in states.items()}
    return [array for name, array in outputs.items() if name not in states]


def generated_outputs(made: Case) -> list[Array]:
    """Return the outputs of the last run of the C code, which keeps states itself."""
    compiled = compile_model(converted(made.data))
    kept = compiled.options.states
    inputs = [value.name for value in compiled.graph.inputs if value.name not in kept.values()]
    feeds = {name: np.stack([array] * made.runs) for name, array in zip(inputs, made.feeds, strict=True)}
    return [array[-1] for name, array in compiled.run(feeds, sanitize=True).items() if name not in kept]


def first_state(state: Value) -> Array:
    """Return zeros as a state stores them."""
    quant = state.type.quant
    return np.full(state.type.shape, quant.zero_point if quant else 0, state.type.dtype.numpy)


def assert_alike(found: Sequence[Array], expected: Sequence[Array], made: Case) -> None:
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=made.share, atol=made.share * max(np.abs(want).max(), 1))
        elif want.dtype.kind == "b" or want.dtype.itemsize > 2:
            np.testing.assert_array_equal(got, want)
        else:
            assert np.abs(got.astype(int) - want).max() <= made.steps, f"{got}\n{want}"


@pytest.mark.parametrize("name", CASES)
def test_operator_as_tensorflow_computes_it(name: str) -> None:
    made = CASES[name]()
    assert_alike(outputs_of(made, numpy_outputs), EXPECTED[name], made)


def is_beyond_onnx(model: onnx.ModelProto) -> bool:
    """Return whether a model has operators of mcugen's own, or an inverse DFT to real numbers."""
    flags = [{a.name for a in node.attribute if a.i} for node in model.graph.node if node.op_type == "DFT"]
    return len(model.opset_import) > 1 or {"inverse", "onesided"} in flags


@pytest.mark.parametrize("name", CASES)
def test_onnx_of_operator_as_tensorflow_computes_it(name: str) -> None:
    made = CASES[name]()
    if is_beyond_onnx(converted(made.data)):
        pytest.skip("ONNX Runtime lacks the operator; the numpy reference is compared")
    assert_alike(outputs_of(made, onnxruntime_outputs), EXPECTED[name], made)


@pytest.mark.spread(8)
@pytest.mark.parametrize("name", CASES)
def test_generated_code_as_numpy_computes_it(name: str) -> None:
    made = CASES[name]()
    for got, want in zip(generated_outputs(made), outputs_of(made, numpy_outputs), strict=True):
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", CASES)
def test_expected_outputs_are_those_of_the_interpreters(name: str) -> None:
    _, outputs = interpreted(CASES[name]())
    for got, want in zip(outputs, EXPECTED[name], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_each_operator_has_a_case() -> None:
    used = {operator for name in CASES for operator in operators_of(CASES[name]().data)}
    assert set(BUILT_IN.tflite) - used == set()


def operators_of(data: bytes) -> set[str]:
    from mcugen.frontend.tflite.model import read_model

    return {operator.kind for graph in read_model(data, "model").graphs for operator in graph.operators}
