# SPDX-License-Identifier: Apache-2.0
"""Sensitivity of the model's outputs to the quantization of single tensors."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from mcugen.evaluation.samples import spread
from mcugen.evaluation.session import Session
from mcugen.frontend.onnx.nodes import rename_inputs, tensors_read
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import Channelwise, Saturating
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.profile import Profile

MIN_CANDIDATE_SAMPLES = 8
"""Smallest number of samples that run for each candidate range, spread over all samples."""

MAX_CANDIDATE_SAMPLES = 100
"""Largest number of samples that run for each candidate range, spread over all samples."""

EXTREMES_PER_END = 4
"""Number of samples that always run because they hold the smallest values of a tensor, and as many for its largest."""

MAX_EXTREME_SAMPLES = 64
"""Largest number of samples that always run because some tensor has extreme values in them."""

MAX_JOINT_SAMPLES = 32
"""Largest number of samples that run if all groups of tensors are quantized at once."""

NUM_FIRST_SAMPLES = 4
"""Number of samples of the first step of a measurement; the number doubles with each further step.

After each step, the noise so far is compared with its limit.
"""

SUMMATION_TOLERANCE = 1e-9
"""Relative tolerance when noise is compared with a limit: the order of summation may change a noise by as much."""

MAX_KEPT_SAMPLE_ELEMENTS = 2**26
"""Largest number of tensor elements, over all samples, for which all float tensors are kept in memory.

With more, they are computed again for each measurement.
"""

_T = TypeVar("_T")
_Result = TypeVar("_Result")

MAX_GROUP_RUN_MACS = 10**11
"""Largest number of multiply-accumulates for running all chosen samples once for each group of tensors.

It limits the number of samples of large models.
"""


class OutputNoise:
    """A measurement of the noise at the model's outputs that quantizing groups of tensors causes.

    Each group has its own ONNX Runtime session, which contains only the nodes that depend on the group. The float
    tensors that these nodes read are computed once.

    Args:
        model: The float model.
        groups: The groups of tensors that share quantization parameters.
        samples: The samples to choose from.
        profile: The profile by which samples with extreme values are chosen; None to spread the samples evenly.
    """

    def __init__(
        self,
        model: FloatModel,
        groups: Sequence[tuple[str, ...]],
        samples: Sequence[Mapping[str, Array]],
        profile: Profile | None = None,
    ) -> None:
        macs = sum(node.op.macs(node.sig) for node in model.graph.nodes) * len(groups)
        num_spread = int(np.clip(MAX_GROUP_RUN_MACS // max(macs, 1), MIN_CANDIDATE_SAMPLES, MAX_CANDIDATE_SAMPLES))
        self.places, self.weights = _choose_samples(len(samples), num_spread, profile)
        self.samples = [dict(samples[place]) for place in self.places]
        self.model, self.groups, self.outputs = model, groups, measured_tensors(model)
        self.session = Session(all_tensors(model), literal=False, threads=1)
        self.pool = ThreadPoolExecutor(os.cpu_count())
        count = sum(v.type.count for v in model.tensors) * len(self.samples)
        names = dict.fromkeys([*(v.name for v in model.tensors), *self.outputs])
        self._kept = self._run(list(names)) if count <= MAX_KEPT_SAMPLE_ELEMENTS else None
        self.exact = self._exact(self.outputs)
        weighted = list(zip(self.weights, self.exact, strict=True))
        self.powers = {
            o: max(sum(weight * sum_of_squares(s[o]) for weight, s in weighted), 1e-300) for o in self.outputs
        }
        self._last: _Tail | None = None
        self._whole: tuple[Session, list[str]] | None = None

    def noise(
        self, group: tuple[str, ...], params: Sequence[QuantParams], dtype: DType, limit: float = np.inf
    ) -> float:
        """Return the noise power of the outputs relative to their signal power, if one group of tensors is quantized.

        The result is the mean over all outputs; it is infinite if an output is not finite. Results for the same
        parameters are reused.

        Args:
            group: The names of the tensors that are quantized.
            params: The quantization parameters; or several sets of them, one for each fold (part) of the samples by
                which they were chosen. A set that one fold chose is then applied to samples of the next fold.
            dtype: The integer type.
            limit: The noise above which the result is infinite. Noise only grows from sample to sample, so the
                remaining samples need not run. Samples with most noise by the first parameters run first.
        """
        tail = self._tail(group)
        codes = [_codes(entry, dtype) for entry in params]
        keys = {index: (index, codes[(self.places[index] + 1) % len(codes)]) for index in tail.order}
        missing, portion = [entry for entry in keys.values() if entry not in tail.cached_errors], NUM_FIRST_SAMPLES
        reached = sum(
            self._share(entry[0], tail.cached_errors[entry]) for entry in keys.values() if entry in tail.cached_errors
        )
        while missing:
            if not reached <= limit * (1 + SUMMATION_TOLERANCE) * len(self.outputs):
                return np.inf
            some, missing, portion = missing[:portion], missing[portion:], 2 * portion
            new_errors = dict(zip(some, self._map(tail.errors, some), strict=True))
            reached += sum(self._share(index, errors) for (index, _), errors in new_errors.items())
            tail.cached_errors |= new_errors
        errors = [tail.cached_errors[keys[index]] for index in range(len(self.places))]
        if tail.is_unordered:
            tail.order.sort(key=lambda index: -self._share(index, errors[index]))
            tail.is_unordered = False
        powers = [float(np.dot(self.weights, column)) for column in zip(*errors, strict=True)]
        noise = float(np.mean(np.divide(powers, list(self.powers.values())))) if self.outputs else 0.0
        return noise if noise <= limit else np.inf

    def _share(self, index: int, errors: Sequence[float]) -> float:
        """Return what the errors of one sample add to the noise, summed over outputs."""
        shares = (error / self.powers[name] for name, error in zip(self.outputs, errors, strict=True))
        return self.weights[index] * sum(shares)

    def _tail(self, group: tuple[str, ...]) -> _Tail:
        if self._last is None or self._last.group != group:
            proto, outputs = dependent_part(self.model, group, self.outputs)
            known = self._exact([i.name for i in proto.graph.input if i.name not in _CODES])
            session = Session(proto, literal=False, threads=1) if outputs else None
            exact = [[sample[name] for name in self.outputs] for sample in self.exact]
            places = {name: self.outputs.index(output) for name, output in outputs.items()}
            self._last = _Tail(group, session, places, known, exact, list(range(len(known))))
        return self._last

    def _exact(self, names: Sequence[str]) -> list[dict[str, Array]]:
        """Return these tensors of the float model, sample by sample."""
        if self._kept is None:
            return self._run(names)
        pairs = zip(self.samples, self._kept, strict=True)
        return [{n: sample[n] if n in sample else kept[n] for n in names} for sample, kept in pairs]

    def _run(self, names: Sequence[str]) -> list[dict[str, Array]]:
        def run(sample: dict[str, Array]) -> dict[str, Array]:
            tensors = sample | self.session.run([name for name in names if name not in sample], sample)
            return {name: tensors[name] for name in names}

        return list(self._map(run, self.samples))

    def _map(self, function: Callable[[_T], _Result], things: Sequence[_T]) -> Iterator[_Result]:
        """Yield the results of a function in the order of its arguments.

        Each thread gets one block of the arguments, because starting a task takes as long as computing a layer.
        """
        share = -(-len(things) // (os.cpu_count() or 1))
        parts = [things[at : at + share] for at in range(0, len(things), share)]
        return chain.from_iterable(self.pool.map(lambda part: [function(thing) for thing in part], parts))

    def joint_noise(
        self, params: Sequence[Sequence[QuantParams]], dtypes: Sequence[DType], limit: float = np.inf
    ) -> float:
        """Return the noise power of the outputs relative to their signal power, if all groups are quantized at once.

        The result is the mean over all outputs; it is infinite if an output is not finite. Only MAX_JOINT_SAMPLES
        samples run, because the whole model runs for each of them.

        Args:
            params: For each group, its quantization parameters; or several sets of them, one for each fold (part) of
                the samples by which they were chosen. A set that one fold chose is then applied to samples of the next
                fold.
            dtypes: The integer type of each group.
            limit: The noise above which the result is infinite.
        """
        if self._whole is None:
            self._whole = _whole(self.model, self.groups, self.outputs)
        session, names = self._whole
        reached, bound = 0.0, limit * (1 + SUMMATION_TOLERANCE) * len(self.outputs)
        indices = spread(len(self.samples), MAX_JOINT_SAMPLES)
        signal = {
            o: max(sum(self.weights[index] * sum_of_squares(self.exact[index][o]) for index in indices), 1e-300)
            for o in self.outputs
        }

        def errors(index: int) -> float:
            fold = self.places[index] + 1
            parameters = {
                f"{name}.{g}": np.asarray(number, np.float32)
                for g, (group_params, dtype) in enumerate(zip(params, dtypes, strict=True))
                for name, number in zip(_CODES, _codes(group_params[fold % len(group_params)], dtype), strict=True)
            }
            arrays = session.run(names, parameters | self.samples[index])
            exact = self.exact[index]
            with np.errstate(invalid="ignore", over="ignore"):
                return self.weights[index] * sum(
                    sum_of_squares(arrays[name].astype(np.float64) - exact[o]) / signal[o]
                    for name, o in zip(names, self.outputs, strict=True)
                )

        for at in range(0, len(indices), NUM_FIRST_SAMPLES):
            reached += sum(self._map(errors, indices[at : at + NUM_FIRST_SAMPLES]))
            if not reached <= bound:
                return np.inf
        return reached / max(len(self.outputs), 1)


ScaleAndLimits = tuple[float, float, float]
"""Scale, smallest integer and largest integer of a group of tensors; the integers are relative to the zero point."""


@dataclass
class _Tail:
    """The part of the model behind a group, and the errors that were measured.

    Attributes:
        group: The tensors that are quantized.
        session: The part of the model; None if no judged tensor depends on the group.
        outputs: The index of each judged tensor, by its name in the part.
        inputs: The inputs of the part, sample by sample.
        exact: All judged tensors of the float model, sample by sample.
        order: The order in which samples run.
        cached_errors: The errors by sample and parameters.
        is_unordered: Whether `order` is still the order of the samples.
    """

    group: tuple[str, ...]
    session: Session | None
    outputs: Mapping[str, int]
    inputs: Sequence[dict[str, Array]]
    exact: Sequence[Sequence[Array]]
    order: list[int]
    cached_errors: dict[tuple[int, ScaleAndLimits], list[float]] = field(default_factory=dict)
    is_unordered: bool = True

    def errors(self, key: tuple[int, ScaleAndLimits]) -> list[float]:
        """Return the error power of each judged tensor for a sample and parameters.

        It is 0 for tensors that do not depend on the group.
        """
        index, codes = key
        exact, errors = self.exact[index], [0.0] * len(self.exact[index])
        numbers = {name: np.asarray(number, np.float32) for name, number in zip(_CODES, codes, strict=True)}
        tensors = self.session.run(list(self.outputs), numbers | self.inputs[index]) if self.session else {}
        with np.errstate(invalid="ignore", over="ignore"):
            for name, array in tensors.items():
                difference = np.asarray(np.subtract(array, exact[self.outputs[name]], dtype=np.float64))
                errors[self.outputs[name]] = float(np.square(difference, out=difference).sum())
        return errors


def _codes(params: QuantParams, dtype: DType) -> ScaleAndLimits:
    """Return the numbers that describe how a group is quantized."""
    min_int, max_int = (code - params.zero_point for code in dtype.limits)
    return float(params.scale[0]), min_int, max_int


def _choose_samples(count: int, num_spread: int, profile: Profile | None) -> tuple[list[int], list[float]]:
    """Choose the samples to run and the weight of each: how many of all samples it stands for.

    Clipping errs most on the few samples that hold the extremes of a tensor. They are a stratum of their own, of which
    each sample is run with weight 1. The others are represented by a few that are spread over them. Without this
    stratum the noise of a narrow range is underestimated: for regressions by up to 6 dB.

    Args:
        count: The number of all samples.
        num_spread: The largest number of samples that are spread over all.
        profile: The profile of all samples; None if it is unknown.

    Returns:
        The places of the samples to run, and their weights.
    """
    if profile is None or count != profile.samples or count <= num_spread:
        places = spread(count, num_spread)
        return places, [1.0] * len(places)
    extreme: Counter[int] = Counter()
    for tensor in profile.tensors.values():
        for ends in (np.asarray(tensor.lows), -np.asarray(tensor.highs)):
            extreme.update(np.argsort(ends, kind="stable")[:EXTREMES_PER_END].tolist())
    chosen = {place for place, _ in extreme.most_common(min(MAX_EXTREME_SAMPLES, num_spread))}
    regular = [place for place in range(count) if place not in chosen]
    drawn = {regular[k] for k in spread(len(regular), num_spread)}
    weight = len(regular) / max(len(drawn), 1)
    places = sorted(chosen | drawn)
    return places, [1.0 if place in chosen else weight for place in places]


def measured_tensors(model: FloatModel) -> list[str]:
    """Return the names of the tensors at which quantization noise is measured.

    They are the float outputs of the model. Instead of an output of a saturating function such as sigmoid, the
    function's input is measured, unless the output is a mask.
    """
    return list(dict.fromkeys(tail[-1] for tail in _tails(model)))


def saturated_tensors(model: FloatModel) -> set[str]:
    """Return the names of the outputs of saturating functions, such as sigmoid.

    Tensors to which only data movement leads from such an output are included.
    """
    return {name for tail in _tails(model) for name in tail[:-1]}


def _tails(model: FloatModel) -> list[list[str]]:
    """Return for each float output the tensors from the output back to the one that it is judged by."""
    graph = model.graph
    written = {name for node in model.proto.graph.node for name in node.output} | {v.name for v in graph.inputs}
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    return [
        _tail(name, value, written) for name, value in outputs if value.type.dtype is DType.FLOAT32 and value.type.count
    ]


def _tail(output: str, value: Value, written: set[str]) -> list[str]:
    names = [output]
    while (node := value.producer) is not None and node.inputs and node.inputs[0] is not None:
        saturates = isinstance(node.op, Saturating) and node.op.saturates
        value = node.inputs[0]
        if not saturates and not (node.op.moves_data and value.type.count == node.outputs[0].type.count):
            break
        if saturates and _is_mask(node):
            return [*names, output]
        if value.name not in written:
            break
        names.append(value.name)
        if saturates:
            return names
    return [output]


def _is_mask(node: Node) -> bool:
    """Return whether each pixel has its own probability, which is used as it is; other outputs tell classes apart."""
    return isinstance(node.op, Channelwise) and math.prod(node.outputs[0].type.shape[2:4]) > 1


def dependent_part(
    model: FloatModel, group: tuple[str, ...], outputs: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the part of the float model that depends on a group of tensors, with QuantizeLinear behind each of them.

    Scales and zero points are inputs of the part.

    Args:
        model: The float model.
        group: The names of the tensors that are quantized.
        outputs: The names of the tensors at which noise is measured.

    Returns:
        The part, whose other inputs are tensors that do not depend on the group; and a dictionary from the name of a
        tensor in the part to the name of the measured tensor.
    """
    changed = _computed_from(model, group)
    known = ({v.name for v in model.tensors} | {v.name for v in model.graph.inputs}) - changed
    kept = {name for name in outputs if name in changed or name in group}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(model.proto.graph.node):
        if not (kept - known).isdisjoint(node.output):
            nodes.insert(0, node)
            kept.update(tensors_read(node))
    inputs = (kept & known).difference(*(node.output for node in nodes))
    values = {v.name: v for v in model.graph.values()}
    names = {name: f"{_PREFIX}{name}" for name in group if name in kept and not _follows(values[name], group)}
    proto = _part(model.proto, [values[name] for name in sorted(inputs)], nodes, names, kept)
    judged_names = {names.get(name, name): name for name in outputs if name in changed or name in group}
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in judged_names)
    return proto, judged_names


def _whole(model: FloatModel, groups: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> tuple[Session, list[str]]:
    """Return a session of the float model with all groups quantized, and the names of the judged tensors in it.

    The parameters of each group are inputs, whose names end with the number of the group.
    """
    values = {v.name: v for v in model.graph.values()}
    free = {n: str(g) for g, group in enumerate(groups) for n in group if not _follows(values[n], group)}
    names = {name: f"{_PREFIX}{name}" for name in free}
    kept = {t.name for t in model.proto.graph.initializer}
    proto = _part(model.proto, model.graph.inputs, model.proto.graph.node, names, kept, free)
    judged_names = [names.get(name, name) for name in outputs]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in judged_names)
    return Session(proto, literal=False, threads=1), judged_names


def _computed_from(model: FloatModel, group: Sequence[str]) -> set[str]:
    """Return the tensors that depend on the group; its own tensors only if they depend on another one of them."""
    dependent: set[str] = set()
    for node in model.proto.graph.node:
        if not dependent.union(group).isdisjoint(tensors_read(node)):
            dependent.update(node.output)
    return dependent


def _part(
    model: onnx.ModelProto,
    inputs: Sequence[Value],
    nodes: Sequence[onnx.NodeProto],
    names: dict[str, str],
    kept: set[str],
    numbers: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Return a model of some nodes in which the tensors in `names` are quantized.

    Args:
        model: The model that the nodes belong to.
        inputs: The inputs of the new model.
        nodes: The nodes to copy.
        names: The new name of each tensor that is quantized.
        kept: The names of the constants to keep.
        numbers: The group of each quantized tensor, if groups have different parameters; None if all have the same.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    graph = proto.graph
    del graph.node[:], graph.input[:], graph.output[:], graph.value_info[:], graph.initializer[:]
    graph.initializer.extend(t for t in model.graph.initializer if t.name in kept)
    types = [(v.name, helper.np_dtype_to_tensor_dtype(np.dtype(v.type.dtype.numpy))) for v in inputs]
    graph.input.extend(helper.make_tensor_value_info(name, dtype, None) for name, dtype in types)
    endings = dict.fromkeys(names, "") if numbers is None else {name: f".{numbers[name]}" for name in names}
    codes = [name + ending for ending in dict.fromkeys(endings.values()) or [""] for name in _CODES]
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, ()) for name in codes)
    for value in inputs:
        graph.node.extend(_quantization_nodes(value.name, names, endings))
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node)
        rename_inputs(copy, names)
        for name in node.output:
            graph.node.extend(_quantization_nodes(name, names, endings))
    return proto


_PREFIX = "mcugen.quantized."
"""Prefix of the names of quantized tensors."""
_CODES = _SCALE, _LOWER_LIMIT, _UPPER_LIMIT = "mcugen.scale", "mcugen.least", "mcugen.most"
"""Names of the inputs that hold the parameters of a group."""


def _follows(value: Value, group: Sequence[str]) -> bool:
    """Return whether a tensor merely consists of elements of its own group, which are quantized already."""
    node = value.producer
    if node is None or not node.op.moves_data:
        return False
    sources = [v for v in node.inputs if v is not None and v.type.dtype is DType.FLOAT32]
    return all(v.name in group for v in sources)


def _quantization_nodes(name: str, names: Mapping[str, str], endings: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Return the nodes that clip and round a tensor; none if it is not quantized.

    The limits are whole numbers, so clipping and rounding may change places.
    """
    if name not in names:
        return []
    scale, lower, upper = (code + endings[name] for code in _CODES)
    steps = [("Div", scale), ("Clip", lower, upper), ("Round",), ("Mul", scale)]
    places = [name, *(f"mcugen.{op}.{name}" for op, *_ in steps[:-1]), names[name]]
    return [
        helper.make_node(op, [source, *parameters], [target])
        for (op, *parameters), source, target in zip(steps, places[:-1], places[1:], strict=True)
    ]


def sum_of_squares(array: Array) -> float:
    """Return the sum of the squares of all elements."""
    with np.errstate(invalid="ignore"):
        return float(np.square(array, dtype=np.float64).sum())
