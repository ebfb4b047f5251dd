# SPDX-License-Identifier: Apache-2.0
"""Drafts: programs without a search, which serve the goal of the options."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples
from shared_models import MODELS

from mcugen import Compilation, CompileOptions, Judging, Quantizing, load_board
from mcugen.core.options import GOALS, MIXED, THROUGHPUT
from mcugen.driver.drafts import draft_float_program
from mcugen.frontend.onnx.load import load
from mcugen.lir.program import Program


def draft(goal: str) -> Program:
    """Return the draft of an integer model for a goal, on a board with two cores."""
    model = load(MODELS / "ds_cnn_kws_int8_qdq.onnx")
    return draft_float_program(model, load_board("rp2350"), CompileOptions(cores=2, optimize=goal))


def samples_of(model: onnx.ModelProto, count: int) -> dict[str, np.ndarray]:
    """Return random samples, stacked by input."""
    samples = normal_samples(model, count)
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


@pytest.mark.shared
def test_a_draft_for_throughput_has_the_kernels_and_cycles_of_balanced() -> None:
    throughput, balanced = draft(THROUGHPUT), draft(GOALS[0])
    kernels = [[instr.kernel for instr in program.instrs] for program in (throughput, balanced)]
    assert kernels[0] == kernels[1]
    assert throughput.cycles_estimate == balanced.cycles_estimate is not None


@pytest.mark.parametrize("goal", [THROUGHPUT, GOALS[0]])
def test_precisions_are_searched_for_two_cores(goal: str) -> None:
    model = conv_net()
    quantizing = Quantizing(MIXED, calibration=samples_of(model, 12))
    options, judging = CompileOptions(cores=2, optimize=goal), Judging(min_sqnr=20)
    net = Compilation(model, "rp2040", options, quantizing, judging)
    one_core = Compilation(model, "rp2040", CompileOptions(), quantizing, judging)
    assert net.quantized.assignment.precision == one_core.quantized.assignment.precision
    assert net.compiled.options.cores == 2
