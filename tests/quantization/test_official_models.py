# SPDX-License-Identifier: Apache-2.0
"""ONNX's own tests, quantized: refused in order, or the same numbers in ONNX Runtime and in our reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from onnx_tests import Case, cases

from mcugen.core.errors import DoesNotFitError, UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import Array
from mcugen.quantization.quantize import Quantization, create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

Sample = dict[str, Array]

PARTS = 6

DIFFERENT = {
    "BatchNormalization",  # in training mode, ONNX Runtime takes the variance of another formula
    "MaxUnpool",  # with output_shape, ONNX Runtime places elements otherwise than ONNX
    "Attention",  # ONNX Runtime computes it as a whole, without the rounding in between
}
"""Operators whose results in ONNX Runtime are not ours even in float32, or not step by step."""


def float_cases() -> list[Case]:
    """Of each operator the shortest-named test of it alone, if it reads float32."""
    chosen: dict[str, Case] = {}
    for case in sorted(filter(lambda c: isinstance(c, Case), cases(("node",))), key=lambda c: (len(c.name), c.name)):
        if len(case.model.graph.node) == 1 and any(a.dtype == np.float32 for a in case.inputs.values()):
            chosen.setdefault(case.operators[0], case)
    return [case for operator, case in chosen.items() if operator not in DIFFERENT]


def samples_like(case: Case) -> list[Sample]:
    """The test's own float inputs, and three more around them."""
    random = np.random.default_rng(0)
    own = {name: array for name, array in case.inputs.items() if array.dtype == np.float32}
    near = [
        {n: np.asarray(a + 0.1 * np.std(a) * random.standard_normal(a.shape), np.float32) for n, a in own.items()}
        for _ in range(3)
    ]
    return [own, *near]


def quantized(case: Case, samples: Sequence[Sample]) -> Quantization:
    source, scheme = load(case.model), Scheme()
    bound = {name: array for name, array in case.inputs.items() if array.dtype != np.float32}
    return create_quantizer(
        source, import_float_model(source, CompileOptions(bound=bound), scheme), scheme, samples
    ).quantize()


def steps_apart(result: Quantization, sample: Sample) -> float:
    """The largest difference of an output, in steps of its codes, or of a thousandth of its range."""
    left = {value.name for value in result.proto.graph.input}  # nothing is read of what has no elements
    (wanted,) = run_onnxruntime(result.proto, [{name: a for name, a in sample.items() if name in left}])
    found = compile_model(result).interpret(sample)
    worst = 0.0
    for name, array in wanted.items():
        stored = result.plan.activations.get(name)
        step = stored.quant.scale[0] if stored else max(1e-3 * float(np.abs(array).max(initial=0.0)), 1e-30)
        apart = np.abs(array.astype(np.float64) - found[name].reshape(array.shape))
        worst = max(worst, float((apart[np.isfinite(apart)] / step).max(initial=0.0)))
    return worst


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of means of nothing, and the like
@pytest.mark.spread(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_one_case_an_operator(part: int) -> None:
    kinds: Counter[str] = Counter()
    for case in float_cases()[part::PARTS]:
        samples = samples_like(case)
        try:
            result = quantized(case, samples)
        except (UnsupportedError, UsageError, DoesNotFitError) as error:
            assert "found: " in str(error) and "try: " in str(error), case.name
            kinds["refused"] += 1
            continue
        assert steps_apart(result, samples[1]) <= 1.01, case.name
        kinds["integer" if result.plan.activations else "float"] += 1
    # single functions of one tensor stay float: converting them would cost more than it saves
    assert kinds["integer"] * PARTS >= 6 and kinds["float"] * PARTS >= 80, kinds
