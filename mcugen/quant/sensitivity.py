# SPDX-License-Identifier: Apache-2.0
"""What quantizing one tensor, and nothing else, does to the model's outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
from onnx import TensorProto, helper

from mcugen.evaluation.session import Session
from mcugen.hir.graph import Value
from mcugen.hir.traits import Saturating
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.importer.nodes import rename_inputs
from mcugen.quant.float_model import FloatModel

LEAST_SAMPLES, MOST_SAMPLES = 8, 100
"""That are run for each candidate, spread over all."""

MOST_MACS = 10**11
"""Of one run for each group of tensors and each sample; large models get fewer samples."""

_NONE = -1
"""The group that nobody is in."""


class OutputNoise:
    """The model with a switch behind each tensor of `groups`, in ONE session: a candidate costs nothing but runs."""

    def __init__(
        self, model: FloatModel, groups: Sequence[tuple[str, ...]], samples: Sequence[Mapping[str, Array]]
    ) -> None:
        macs = sum(node.op.macs(node.sig) for node in model.graph.nodes) * len(groups)
        self.places = _spread(len(samples), int(np.clip(MOST_MACS // max(macs, 1), LEAST_SAMPLES, MOST_SAMPLES)))
        self.samples = [dict(samples[place]) for place in self.places]
        self.groups = {group: index for index, group in enumerate(groups)}
        self.outputs = judged_tensors(model)
        proto = switched(model, groups, self.outputs)
        self.outputs = [o.name for o in proto.graph.output]
        self.session = Session(proto, literal=False, threads=1)
        self.pool = ThreadPoolExecutor(os.cpu_count())
        self.exact = self._run(_NONE, [QuantParams((1.0,), 0)], DType.INT8)
        self.powers = [max(sum(power(sample[i]) for sample in self.exact), 1e-300) for i in range(len(self.outputs))]

    def noise(self, group: tuple[str, ...], params: Sequence[QuantParams], dtype: DType) -> float:
        """Of the outputs relative to the signal, in power: the mean of all outputs. Infinite where one is no number.

        `params` are the integers', or those that each fold of the samples suggests, by which the next one is judged.
        """
        found = self._run(self.groups[group], params, dtype)
        powers = np.zeros(len(self.outputs))
        for arrays, wanted in zip(found, self.exact, strict=True):
            powers += [power(a.astype(np.float64) - b) for a, b in zip(arrays, wanted, strict=True)]
        noise = float((powers / self.powers).mean()) if self.outputs else 0.0
        return noise if np.isfinite(noise) else np.inf

    def _run(self, group: int, params: Sequence[QuantParams], dtype: DType) -> list[list[Array]]:
        """The judged tensors, sample by sample."""
        switches = [_switches(group, each, dtype) for each in params]

        def run(place: int, sample: dict[str, Array]) -> list[Array]:
            return list(self.session.run(self.outputs, sample | switches[(place + 1) % len(switches)]).values())

        return list(self.pool.map(run, self.places, self.samples))


def _switches(group: int, params: QuantParams, dtype: DType) -> dict[str, Array]:
    """The inputs that quantize a group."""
    least, most = (code - params.zero_point for code in dtype.limits)
    numbers = {_SCALE: float(params.scale[0]), _LEAST: least, _MOST: most}
    return {_GROUP: np.asarray(group, np.int64)} | {n: np.asarray(v, np.float32) for n, v in numbers.items()}


def judged_tensors(model: FloatModel) -> list[str]:
    """The float outputs; of those that saturate, what they are computed from."""
    return list(dict.fromkeys(tail[-1] for tail in _tails(model)))


def saturated_tensors(model: FloatModel) -> set[str]:
    """The outputs that saturate, and what is moved to become one: their ends are what they are for."""
    return {name for tail in _tails(model) for name in tail[:-1]}


def _tails(model: FloatModel) -> list[list[str]]:
    """Of each float output: the tensors from it back to the one by which it is judged."""
    graph = model.graph
    written = {name for node in model.proto.graph.node for name in node.output} | {v.name for v in graph.inputs}
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    return [_tail(name, value, written) for name, value in outputs if value.type.dtype is DType.FLOAT32]


def _tail(output: str, value: Value, written: set[str]) -> list[str]:
    names = [output]
    while (node := value.producer) is not None and node.inputs and node.inputs[0] is not None:
        saturates = isinstance(node.op, Saturating) and node.op.saturates
        value = node.inputs[0]
        if not saturates and not (node.op.moves_data and value.type.count == node.outputs[0].type.count):
            break
        if value.name not in written:
            break
        names.append(value.name)
        if saturates:
            return names
    return [output]


def switched(model: FloatModel, groups: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> onnx.ModelProto:
    """The float model with new inputs that say which group of tensors is quantized, and how; and with `outputs`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    members = {name: index for index, group in enumerate(groups) for name in group}
    values = {v.name: v for v in model.graph.values()}
    names = {name: f"{name}{_SUFFIX}" for name in members if not _follows(values[name], members)}
    nodes: list[onnx.NodeProto] = []
    for name in (i.name for i in graph.input):
        nodes += _switch(name, members[name]) if name in names else ()
    for node in model.proto.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        rename_inputs(copy, names)
        nodes.append(copy)
        for name in node.output:
            nodes += _switch(name, members[name]) if name in names else ()
    del graph.node[:], graph.output[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.output.extend(helper.make_empty_tensor_value_info(names.get(name, name)) for name in outputs)
    graph.input.append(helper.make_tensor_value_info(_GROUP, TensorProto.INT64, ()))
    graph.input.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, ()) for n in (_SCALE, _LEAST, _MOST))
    return proto


_PREFIX = "mcugen.switch."
_GROUP, _SCALE, _LEAST, _MOST = (f"{_PREFIX}{what}" for what in ("group", "scale", "least", "most"))
_SUFFIX = ".switched"


def _follows(value: Value, members: Mapping[str, int]) -> bool:
    """Whether a tensor merely consists of elements of its own group, which are quantized already."""
    node = value.producer
    if node is None or not node.op.moves_data:
        return False
    sources = [v for v in node.inputs if v is not None and v.type.dtype is DType.FLOAT32]
    return all(members.get(v.name) == members[value.name] for v in sources)


def _switch(name: str, group: int) -> list[onnx.NodeProto]:
    """`name` → its rounded and clipped twin if that group is on. A branch, as nearly all are off in each run."""
    wanted, number = f"{name}.on", f"{name}.group"
    result = helper.make_empty_tensor_value_info
    steps = [("Div", name, _SCALE), ("Round", f"{name}.0"), ("Max", f"{name}.1", _LEAST), ("Min", f"{name}.2", _MOST)]
    steps.append(("Mul", f"{name}.3", _SCALE))
    codes = [helper.make_node(op, inputs, [f"{name}.{i}"]) for i, (op, *inputs) in enumerate(steps)]
    same = [helper.make_node("Identity", [name], [f"{name}.same"])]
    branches = {
        "then_branch": helper.make_graph(codes, "quantized", [], [result(f"{name}.4")]),
        "else_branch": helper.make_graph(same, "real", [], [result(f"{name}.same")]),
    }
    return [
        helper.make_node("Constant", [], [number], value_int=group),
        helper.make_node("Equal", [_GROUP, number], [wanted]),
        helper.make_node("If", [wanted], [f"{name}{_SUFFIX}"], **branches),
    ]


def spread(samples: Sequence[Mapping[str, Array]], most: int) -> list[dict[str, Array]]:
    """At most so many, evenly from first to last."""
    return [dict(samples[place]) for place in _spread(len(samples), most)]


def _spread(count: int, most: int) -> list[int]:
    places: list[int] = np.linspace(0, count - 1, min(most, count)).round().astype(int).tolist()
    return places


def power(array: Array) -> float:
    """The sum of squares."""
    with np.errstate(invalid="ignore"):
        return float(np.square(array, dtype=np.float64).sum())
