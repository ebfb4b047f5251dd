# SPDX-License-Identifier: Apache-2.0
"""What was seen of each tensor while a model ran on calibration samples: independent of any quantization scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from mcugen.hir.graph import Node
from mcugen.hir.interpreter import interpret
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array
from mcugen.quant.float_model import FloatModel
from mcugen.report.accuracy import run_onnxruntime


@dataclass(frozen=True)
class TensorProfile:
    """`lows`, `highs`: extremes of each sample, in order; `histogram`: counts in equal bins over all of them.

    `means`: of each index of axis 1 (or of the last axis of a matrix), over samples and all other axes.
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]
    histogram: tuple[int, ...]
    means: tuple[float, ...]

    @property
    def low(self) -> float:
        """The least value."""
        return min(self.lows)

    @property
    def high(self) -> float:
        """The greatest value."""
        return max(self.highs)


@dataclass(frozen=True)
class Profile:
    """Of the model with this SHA-256, on so many samples."""

    sha256: str
    samples: int
    tensors: Mapping[str, TensorProfile]


def profile_model(
    model: FloatModel, samples: Sequence[Mapping[str, Array]], progress: Callable[[int, int], None], sha256: str
) -> Profile:
    """Stand-in: extremes alone."""
    instrumented = onnx.ModelProto()
    instrumented.CopyFrom(model.proto)
    present = {o.name for o in instrumented.graph.output} | {v.name for v in model.graph.inputs}
    for tensor in (t for t in model.tensors if t.name not in present):
        info = onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, tensor.type.shape)
        instrumented.graph.output.append(info)
    lows: dict[str, list[float]] = {}
    highs: dict[str, list[float]] = {}
    results = run_onnxruntime(instrumented, samples, lambda done: progress(done, len(samples)))
    for sample, outputs in zip(samples, results, strict=True):
        for name, array in {**sample, **outputs}.items():
            lows.setdefault(name, []).append(float(array.min()))
            highs.setdefault(name, []).append(float(array.max()))
    for sample in samples:
        for name, array in internal_tensors(model, sample).items():
            lows.setdefault(name, []).append(float(array.min()))
            highs.setdefault(name, []).append(float(array.max()))
    return Profile(sha256, len(samples), {n: TensorProfile(tuple(lows[n]), tuple(highs[n]), (), ()) for n in lows})


def internal_tensors(model: FloatModel, sample: Mapping[str, Array]) -> dict[str, Array]:
    """What layers compute within (`Operator.internals`), as `<first output>.<role>`: known to no runtime but ours."""
    found: dict[str, Array] = {}

    def observe(node: Node, arrays: list[Array]) -> None:
        inner = node.op.internals(node.sig, *arrays)
        found.update({f"{node.outputs[0].name}.{role}": array for role, array in inner.items()})

    if any(type(node.op).internals is not Operator.internals for node in model.graph.nodes):
        interpret(model.graph, sample, observe)
    return found


def read_profile(path: Path, sha256: str) -> Profile:
    """Stand-in."""
    raise NotImplementedError(path)
