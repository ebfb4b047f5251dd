# SPDX-License-Identifier: Apache-2.0
"""Models of a minimal network behind an input pipeline."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from onnx_models import Net

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import Array
from mcugen.pipelines import Feed, bind_pipeline

CODES = (0.03, 3)
"""Scale and zero point of int8 inputs."""


def fed(pipeline: str, *shape: int, coded: bool = False) -> CompiledModel:
    """Return a model whose input the pipeline computes, as float32 or (`coded`) as int8."""
    net = Net()
    x = net.dequantize(net.input("x", *shape, dtype=np.int8), *CODES) if coded else net.input("x", *shape)
    net.output(net.op("ReduceMax", x, keepdims=0, out="y"))
    return compile_model(net.model(), options=CompileOptions("net", input_pipeline=pipeline))


def feed_of(model: CompiledModel) -> Feed:
    """Return the pipeline of a model."""
    return bind_pipeline(model.options.input_pipeline, model.program.inputs)


def assert_same_bits(model: CompiledModel, raws: Sequence[Array]) -> None:
    """Check that the generated C converts raw data to the same bits as numpy, under the sanitizers."""
    feed = feed_of(model)
    expected = [zlib.crc32(np.ascontiguousarray(feed.sample("raw", raw)).tobytes()) for raw in raws]
    given = [{"x": feed.stages.stored(raw)} for raw in raws]
    assert list(model.simulate(given, measure=False, sanitize=True).crcs) == expected
    assert len(set(expected)) > 1 or len(raws) == 1
