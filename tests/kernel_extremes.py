# SPDX-License-Identifier: Apache-2.0
"""Models that use every declared kernel, with extreme values of its parameters.

Neither kernels nor parameters are listed here. The small models of `portable_models` use each kernel. Their zero
points, scales, weights, sizes and inputs are set to both ends of their ranges. The kernel's declaration says which
members of its parameter struct follow from these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper
from onnx_models import Feeds, random_feeds
from portable_models import Portable

from mcugen.core.errors import McugenError
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import Array
from mcugen.lir.program import Param

SCALES = (1e-7, 1e5)
"""Extreme scales of results: with the first all results saturate, with the second all equal the zero point."""
TINY, HUGE = 1e-40, 1e30
"""Reals: a denormal one, and one whose products with weights are numbers yet."""


@dataclass(frozen=True)
class End:
    """A set of extreme values: of zero points, and optionally of scales of results or of weights."""

    high: bool
    scale: float | None = None
    weights: bool = False

    def zero(self, dtype: np.dtype) -> int:
        """Return the extreme zero point of a tensor of an 8-bit type; 0 for other types."""
        limits = np.iinfo(dtype)
        return (limits.max if self.high else limits.min) if dtype.itemsize == 1 else 0

    def code(self, dtype: np.dtype) -> int:
        """Return the extreme quantized weight of a type."""
        limits = np.iinfo(dtype)
        return int(limits.max if self.high else limits.min)


ENDS = (
    End(False),
    End(True),
    End(False, SCALES[0]),
    End(True, SCALES[1]),
    End(False, weights=True),
    End(True, weights=True),
)
"""All sets of extreme values that kernels are tested with."""


def extremes_of(portable: Portable) -> list[CompiledModel]:
    """Return models like `portable`, one for each set of extreme values, as small as its kernels allow.

    Models without quantized tensors are returned unchanged. The models are compiled as one, except if layers are
    computed row by row, which would happen for one of them only.
    """
    model, made = portable.model.model, portable.model
    if not any(node.op_type.endswith("eLinear") for node in model.graph.node):
        return [made]
    models = [*(_at(model, end) for end in ENDS), _least(made)]
    joined = models if made.options.optimize == "ram" else [_side_by_side(models)]
    named = {f"{portable.name}_{number}": model for number, model in enumerate(joined)}
    return [compile_model(model, made.board, replace(made.options, name=name)) for name, model in named.items()]


def samples_of(portable: Portable, model: CompiledModel) -> list[Feeds]:
    """Return the samples of a model: its own or random inputs, then inputs at both ends of their types."""
    feeds = portable.feeds if model is portable.model else random_feeds(model.model)
    ends = {name: _ends(array) for name, array in feeds.items()}
    return [feeds, *({name: found[number] for name, found in ends.items()} for number in range(3))]


def trained_values(models: Sequence[CompiledModel]) -> Mapping[str, Mapping[str, set[Param]]]:
    """Return the integers that followed from extreme scales, zero points and weights, by kernel and parameter."""
    found: dict[str, dict[str, set[Param]]] = defaultdict(lambda: defaultdict(set))
    for instr in (instr for model in models for instr in model.program.instrs if instr.declaration):
        members = [m for group in instr.declaration.params for m in group.declared() if m.is_trained]
        for name in (m.name for m in members if issubclass(m.kind, int) and m.name in instr.params):
            found[instr.kernel][name].add(instr.params[name])
    return found


def _ends(array: Array) -> list[Array]:
    """Return three arrays of the shape and type, at the ends of the type."""
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        return [np.full_like(array, number) for number in (limits.min, limits.max, limits.max // 2)]
    if array.dtype.kind == "b":
        return [np.full_like(array, number) for number in (False, True, True)]
    is_wide = array.dtype.kind == "f" and array.dtype.itemsize >= 4
    return [np.full_like(array, number) for number in (TINY, HUGE, -HUGE)] if is_wide else [array] * 3


def _at(model: onnx.ModelProto, end: End) -> onnx.ModelProto:
    """Return the model with the zero points, scales and weights of an end."""
    moved = _copy(model)
    constants = {tensor.name: tensor for tensor in moved.graph.initializer}
    results = {output.name for output in moved.graph.output}

    def fill(name: str, number: Callable[[np.dtype], float]) -> None:
        """What is computed stays as it is."""
        if name in constants:
            array = numpy_helper.to_array(constants[name])
            constants[name].CopyFrom(numpy_helper.from_array(np.full_like(array, number(array.dtype)), name))

    for node in (node for node in moved.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")):
        what, scale, *zeros = node.input
        if what not in constants:
            for zero in zeros:
                fill(zero, end.zero)
        elif end.weights and constants[what].data_type == onnx.TensorProto.INT8:
            fill(what, end.code)
        if end.scale is not None and node.output[0] in results:
            fill(scale, lambda _: end.scale)
    return moved


def _least(made: CompiledModel) -> onnx.ModelProto:
    """Return the model with input axes as short as its kernels accept them, one axis after the other."""
    least, kernels = made.model, _kernels(made)
    for port, info in enumerate(made.model.graph.input):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            for size in range(1, min(dim.dim_value, 4)):
                smaller = _copy(least)
                smaller.graph.input[port].type.tensor_type.shape.dim[axis].dim_value = size
                if kernels <= _kernels_of(smaller, made):
                    least = smaller
                    break
    return least


def _kernels_of(model: onnx.ModelProto, made: CompiledModel) -> set[str]:
    """Those of a model that is compiled as another was; none if there is no such model."""
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        return _kernels(compile_model(model, made.board, made.options))
    except McugenError:
        return set()


def _kernels(model: CompiledModel) -> set[str]:
    return {instr.kernel for instr in model.program.instrs}


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _side_by_side(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """One model of them all; names begin with the number of each."""
    joined = _copy(models[0])
    joined.graph.Clear()
    joined.graph.name = "all"
    for number, model in enumerate(models):
        own = onnx.compose.add_prefix(model, f"e{number} ").graph
        for part in ("node", "initializer", "input", "output"):
            getattr(joined.graph, part).extend(getattr(own, part))
    return joined
