# SPDX-License-Identifier: Apache-2.0
"""Random models, whatever the user wants most: sound plans, the same files each time, and results of numpy's in C.

The C runs under the address and undefined-behaviour sanitizers. The arenas hold garbage before each run, and are as
large as the models say: the bytes around them are guarded. So nothing reads what is not written, and nothing strays.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from bundle_batch import combine
from onnx_models import Feeds, assert_close, onnxruntime_outputs, random_feeds
from random_graphs import FLOAT, INT8, RandomModel, random_model

from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.memory.verify_plan import verify_plan
from mcugen.simulation import Setup, simulate

BATCH = 10
"""Models of a program."""
BATCHES_IN_CI = 1
BATCHES = 20
SAMPLES = 2


def compiled(random: RandomModel) -> CompiledModel:
    """For a random goal; the plan is sound, and compiling again gives the same files."""
    options = CompileOptions(name=f"g{random.seed}", optimize=Random(random.seed).choice(GOALS))
    model, again = (compile_model(random.model, options=options) for _ in range(2))
    verify_plan(model.program)
    assert model.bundle.files == again.bundle.files
    return model


def assert_equal(random: RandomModel, found: Feeds, expected: Feeds, label: str) -> None:
    """To the last bit where all is integers; close where floats are computed, codes of floats by one step."""
    for name, array in expected.items():
        where = f"{label}, {name}"
        if random.kind == INT8 and array.dtype == np.int8:
            np.testing.assert_array_equal(found[name], array, err_msg=where)
        elif array.dtype == np.int8:
            assert np.abs(found[name].astype(int) - array).max(initial=0) <= 1, where
        else:
            assert_close({name: found[name]}, {name: array}, 1e-4)


def check(seeds: range) -> None:
    models = [random_model(seed) for seed in seeds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        programs = [compiled(random) for random in models]
        feeds = [[random_feeds(random.model, seed) for seed in range(SAMPLES)] for random in models]
        expected = [[p.interpret(sample) for sample in samples] for p, samples in zip(programs, feeds, strict=True)]
    joined = [
        {
            f"{p.bundle.name}/{name}": a
            for p, samples in zip(programs, feeds, strict=True)
            for name, a in samples[n].items()
        }
        for n in range(SAMPLES)
    ]
    outputs = simulate(
        combine([p.bundle for p in programs]), programs[0].board, joined, setup=Setup(sanitize=True)
    ).outputs
    for random, program, samples, wanted in zip(models, programs, feeds, expected, strict=True):
        for number in range(SAMPLES):
            found = {name: outputs[number][f"{program.bundle.name}/{name}"] for name in wanted[number]}
            assert_equal(random, found, wanted[number], f"seed {random.seed}, sample {number}")
            if random.kind == FLOAT:
                assert_close(wanted[number], onnxruntime_outputs(random.model, samples[number]), 1e-4)


@pytest.mark.parametrize("batch", range(BATCHES_IN_CI))
def test_random_graphs(batch: int) -> None:
    check(range(batch * BATCH, (batch + 1) * BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES_IN_CI, BATCHES))
def test_more_random_graphs(batch: int) -> None:
    check(range(batch * BATCH, (batch + 1) * BATCH))


@pytest.mark.parametrize("beyond", [0, 1])
def test_what_lies_behind_an_arena_is_guarded(beyond: int) -> None:
    random = random_model(0)
    bundle = compiled(random).bundle
    source, macro = f"{bundle.name}.c", f"{bundle.name.upper()}_ARENA_SIZE"
    head, end, tail = bundle.files[source].rpartition("    return MCUGEN_OK;\n")
    assert end
    stray = f"    ((volatile unsigned char *)arena)[{macro} - 1 + {beyond}] = 1;\n"
    damaged = replace(bundle, files={**bundle.files, source: head + stray + end + tail})
    samples = [{f"{bundle.name}/{name}": array for name, array in random_feeds(random.model).items()}]
    if beyond:
        with pytest.raises(VerificationError, match="use-after-poison"):
            simulate(combine([damaged]), load_board("host"), samples, setup=Setup(sanitize=True))
    else:
        simulate(combine([damaged]), load_board("host"), samples, setup=Setup(sanitize=True))
