# SPDX-License-Identifier: Apache-2.0
"""What quantizing one tensor, and nothing else, does to the model's outputs."""

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
from mcugen.frontend.onnx.nodes import reads, rename_inputs
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import Channelwise, Saturating
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization.float_model import FloatModel, all_tensors
from mcugen.quantization.profile import Profile

LEAST_SAMPLES, MOST_SAMPLES = 8, 100
"""That are run for each candidate, spread over all."""

EXTREMES_PER_END, MOST_EXTREME = 4, 64
"""Samples that are run because a tensor reaches its extremes there: of each end of each tensor, and of all tensors."""

MOST_TOGETHER = 32
"""That are run for all groups together."""

PORTION = 4
"""Samples that are run before the noise so far is looked at, as it may be too much already; then twice as many."""

ROUNDED = 1e-9
"""Share by which sums in another order may differ: noise beyond a limit is so whatever the order."""

MOST_KEPT = 2**26
"""Elements of all tensors in all samples that are kept, so that what a group's model reads is not computed again."""

_T = TypeVar("_T")
_Result = TypeVar("_Result")

MOST_MACS = 10**11
"""Of one run for each group of tensors and each sample; large models get fewer samples."""


class OutputNoise:
    """Each group of tensors in turn has a session of its own, of what lies behind it: nothing before it runs again."""

    def __init__(
        self,
        model: FloatModel,
        groups: Sequence[tuple[str, ...]],
        samples: Sequence[Mapping[str, Array]],
        profile: Profile | None = None,
    ) -> None:
        macs = sum(node.op.macs(node.sig) for node in model.graph.nodes) * len(groups)
        num_spread = int(np.clip(MOST_MACS // max(macs, 1), LEAST_SAMPLES, MOST_SAMPLES))
        self.places, self.weights = _stratified(len(samples), num_spread, profile)
        self.samples = [dict(samples[place]) for place in self.places]
        self.model, self.groups, self.outputs = model, groups, judged_tensors(model)
        self.session = Session(all_tensors(model), literal=False, threads=1)
        self.pool = ThreadPoolExecutor(os.cpu_count())
        count = sum(v.type.count for v in model.tensors) * len(self.samples)
        names = dict.fromkeys([*(v.name for v in model.tensors), *self.outputs])
        self._kept = self._run(list(names)) if count <= MOST_KEPT else None
        self.exact = self._exact(self.outputs)
        weighted = list(zip(self.weights, self.exact, strict=True))
        self.powers = {o: max(sum(weight * power(s[o]) for weight, s in weighted), 1e-300) for o in self.outputs}
        self._last: _Tail | None = None
        self._whole: tuple[Session, list[str]] | None = None

    def noise(
        self, group: tuple[str, ...], params: Sequence[QuantParams], dtype: DType, limit: float = np.inf
    ) -> float:
        """Of the outputs relative to the signal, in power: the mean of all outputs. Infinite where one is no number.

        `params` are the integers', or those that each fold of the samples suggests, by which the next one is judged.
        Noise beyond `limit` is infinite, too: it only grows from sample to sample, and the rest of them is not run.
        Those with most noise by the first `params` come first; what was run for the same codes is not run again.
        """
        tail = self._tail(group)
        codes = [_codes(each, dtype) for each in params]
        asked = {index: (index, codes[(self.places[index] + 1) % len(codes)]) for index in tail.order}
        missing, portion = [each for each in asked.values() if each not in tail.found], PORTION
        reached = sum(self._share(each[0], tail.found[each]) for each in asked.values() if each in tail.found)
        while missing:
            if not reached <= limit * (1 + ROUNDED) * len(self.outputs):
                return np.inf
            some, missing, portion = missing[:portion], missing[portion:], 2 * portion
            found = dict(zip(some, self._each(tail.errors, some), strict=True))
            reached += sum(self._share(index, errors) for (index, _), errors in found.items())
            tail.found |= found
        errors = [tail.found[asked[index]] for index in range(len(self.places))]
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
            proto, outputs = behind(self.model, group, self.outputs)
            known = self._exact([i.name for i in proto.graph.input if i.name not in _CODES])
            session = Session(proto, literal=False, threads=1) if outputs else None
            exact = [[sample[name] for name in self.outputs] for sample in self.exact]
            places = {name: self.outputs.index(output) for name, output in outputs.items()}
            self._last = _Tail(group, session, places, known, exact, list(range(len(known))))
        return self._last

    def _exact(self, names: Sequence[str]) -> list[dict[str, Array]]:
        """These tensors of the float model, sample by sample."""
        if self._kept is None:
            return self._run(names)
        pairs = zip(self.samples, self._kept, strict=True)
        return [{n: sample[n] if n in sample else kept[n] for n in names} for sample, kept in pairs]

    def _run(self, names: Sequence[str]) -> list[dict[str, Array]]:
        def run(sample: dict[str, Array]) -> dict[str, Array]:
            found = sample | self.session.run([name for name in names if name not in sample], sample)
            return {name: found[name] for name in names}

        return list(self._each(run, self.samples))

    def _each(self, function: Callable[[_T], _Result], things: Sequence[_T]) -> Iterator[_Result]:
        """Of all things, in order; each thread takes its share of them at once, for a task takes as long as a layer."""
        share = -(-len(things) // (os.cpu_count() or 1))
        parts = [things[at : at + share] for at in range(0, len(things), share)]
        return chain.from_iterable(self.pool.map(lambda part: [function(thing) for thing in part], parts))

    def together(
        self, params: Sequence[Sequence[QuantParams]], dtypes: Sequence[DType], limit: float = np.inf
    ) -> float:
        """The same with all groups quantized at once; `params` by group. By few samples, as all of the model runs."""
        if self._whole is None:
            self._whole = _whole(self.model, self.groups, self.outputs)
        session, names = self._whole
        reached, most = 0.0, limit * (1 + ROUNDED) * len(self.outputs)
        indices = spread(len(self.samples), MOST_TOGETHER)
        signal = {
            o: max(sum(self.weights[index] * power(self.exact[index][o]) for index in indices), 1e-300)
            for o in self.outputs
        }

        def errors(index: int) -> float:
            fold = self.places[index] + 1
            found = {
                f"{name}.{g}": np.asarray(number, np.float32)
                for g, (each, dtype) in enumerate(zip(params, dtypes, strict=True))
                for name, number in zip(_CODES, _codes(each[fold % len(each)], dtype), strict=True)
            }
            arrays = session.run(names, found | self.samples[index])
            exact = self.exact[index]
            with np.errstate(invalid="ignore", over="ignore"):
                return self.weights[index] * sum(
                    power(arrays[name].astype(np.float64) - exact[o]) / signal[o]
                    for name, o in zip(names, self.outputs, strict=True)
                )

        for at in range(0, len(indices), PORTION):
            reached += sum(self._each(errors, indices[at : at + PORTION]))
            if not reached <= most:
                return np.inf
        return reached / max(len(self.outputs), 1)


Codes = tuple[float, float, float]
"""Scale, least and most code of a group."""


@dataclass
class _Tail:
    """What lies behind a group: no `session` if nothing is judged there.

    `outputs`: places of judged tensors by what they are called there. `known`: its inputs, `exact`: all that is judged,
    sample by sample. `found`: errors by sample and codes. `order`: in which samples are run.
    """

    group: tuple[str, ...]
    session: Session | None
    outputs: Mapping[str, int]
    known: Sequence[dict[str, Array]]
    exact: Sequence[Sequence[Array]]
    order: list[int]
    found: dict[tuple[int, Codes], list[float]] = field(default_factory=dict)
    is_unordered: bool = True

    def errors(self, asked: tuple[int, Codes]) -> list[float]:
        """Of a sample with these codes, in power: of each judged tensor, 0 where the group has no part in it."""
        index, codes = asked
        exact, errors = self.exact[index], [0.0] * len(self.exact[index])
        numbers = {name: np.asarray(number, np.float32) for name, number in zip(_CODES, codes, strict=True)}
        found = self.session.run(list(self.outputs), numbers | self.known[index]) if self.session else {}
        with np.errstate(invalid="ignore", over="ignore"):
            for name, array in found.items():
                difference = np.subtract(array, exact[self.outputs[name]], dtype=np.float64)
                errors[self.outputs[name]] = float(np.square(difference, out=difference).sum())
        return errors


def _codes(params: QuantParams, dtype: DType) -> Codes:
    """What says how a group is quantized."""
    least, most = (code - params.zero_point for code in dtype.limits)
    return float(params.scale[0]), least, most


def _stratified(count: int, num_spread: int, profile: Profile | None) -> tuple[list[int], list[float]]:
    """Choose the samples to run and the weight of each: how many of all samples it stands for.

    Clipping errs most on the few samples that hold the extremes of a tensor. They are a stratum of their own, of which
    each sample is run with weight 1; the others are represented by a few that are spread over them. Without this
    stratum the noise of a narrow range is underestimated: for regressions by up to 6 dB.
    """
    if profile is None or count != profile.samples or count <= num_spread:
        places = spread(count, num_spread)
        return places, [1.0] * len(places)
    extreme: Counter[int] = Counter()
    for tensor in profile.tensors.values():
        for ends in (np.asarray(tensor.lows), -np.asarray(tensor.highs)):
            extreme.update(np.argsort(ends, kind="stable")[:EXTREMES_PER_END].tolist())
    chosen = {place for place, _ in extreme.most_common(min(MOST_EXTREME, num_spread))}
    others = [place for place in range(count) if place not in chosen]
    drawn = {others[k] for k in spread(len(others), num_spread)}
    weight = len(others) / max(len(drawn), 1)
    places = sorted(chosen | drawn)
    return places, [1.0 if place in chosen else weight for place in places]


def judged_tensors(model: FloatModel) -> list[str]:
    """The float outputs; of those that saturate, but for masks, what they are computed from."""
    return list(dict.fromkeys(tail[-1] for tail in _tails(model)))


def saturated_tensors(model: FloatModel) -> set[str]:
    """The outputs that saturate, and what is moved to become one: their ends are what they are for."""
    return {name for tail in _tails(model) for name in tail[:-1]}


def _tails(model: FloatModel) -> list[list[str]]:
    """Of each float output: the tensors from it back to the one by which it is judged."""
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
    """Whether each pixel has a probability of its own, which is read as it is: other outputs tell classes apart."""
    return isinstance(node.op, Channelwise) and math.prod(node.outputs[0].type.shape[2:4]) > 1


def behind(model: FloatModel, group: tuple[str, ...], outputs: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """What of the float model follows from a group of tensors, which is quantized as new inputs say.

    Tensors that the group has no part in are inputs. Also, by what they are called there: the `outputs` that it has.
    """
    changed = _computed_from(model, group)
    known = ({v.name for v in model.tensors} | {v.name for v in model.graph.inputs}) - changed
    kept = {name for name in outputs if name in changed or name in group}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(model.proto.graph.node):
        if not (kept - known).isdisjoint(node.output):
            nodes.insert(0, node)
            kept.update(reads(node))
    inputs = (kept & known).difference(*(node.output for node in nodes))
    values = {v.name: v for v in model.graph.values()}
    names = {name: f"{_PREFIX}{name}" for name in group if name in kept and not _follows(values[name], group)}
    proto = _part(model.proto, [values[name] for name in sorted(inputs)], nodes, names, kept)
    found = {names.get(name, name): name for name in outputs if name in changed or name in group}
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in found)
    return proto, found


def _whole(model: FloatModel, groups: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> tuple[Session, list[str]]:
    """The float model with all groups quantized as inputs say, by the group's number; what the outputs are called."""
    values = {v.name: v for v in model.graph.values()}
    free = {n: str(g) for g, group in enumerate(groups) for n in group if not _follows(values[n], group)}
    names = {name: f"{_PREFIX}{name}" for name in free}
    kept = {t.name for t in model.proto.graph.initializer}
    proto = _part(model.proto, model.graph.inputs, model.proto.graph.node, names, kept, free)
    found = [names.get(name, name) for name in outputs]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in found)
    return Session(proto, literal=False, threads=1), found


def _computed_from(model: FloatModel, group: Sequence[str]) -> set[str]:
    """The tensors that some tensor of a group has a part in; of the group those that come of others in it."""
    found: set[str] = set()
    for node in model.proto.graph.node:
        if not found.union(group).isdisjoint(reads(node)):
            found.update(node.output)
    return found


def _part(
    model: onnx.ModelProto,
    inputs: Sequence[Value],
    nodes: Sequence[onnx.NodeProto],
    names: dict[str, str],
    kept: set[str],
    numbers: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """A model of some nodes, with constants that are `kept`; tensors in `names` are quantized, and so called: all by
    the same three inputs, or by those of these `numbers`.
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
        graph.node.extend(_quantized(value.name, names, endings))
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node)
        rename_inputs(copy, names)
        for name in node.output:
            graph.node.extend(_quantized(name, names, endings))
    return proto


_PREFIX = "mcugen.quantized."
_CODES = _SCALE, _LEAST, _MOST = "mcugen.scale", "mcugen.least", "mcugen.most"


def _follows(value: Value, group: Sequence[str]) -> bool:
    """Whether a tensor merely consists of elements of its own group, which are quantized already."""
    node = value.producer
    if node is None or not node.op.moves_data:
        return False
    sources = [v for v in node.inputs if v is not None and v.type.dtype is DType.FLOAT32]
    return all(v.name in group for v in sources)


def _quantized(name: str, names: Mapping[str, str], endings: Mapping[str, str]) -> list[onnx.NodeProto]:
    """`name` → its clipped and rounded twin, if it has one: limits are whole numbers, so that their order is free."""
    if name not in names:
        return []
    scale, least, most = (code + endings[name] for code in _CODES)
    steps = [("Div", scale), ("Clip", least, most), ("Round",), ("Mul", scale)]
    places = [name, *(f"mcugen.{op}.{name}" for op, *_ in steps[:-1]), names[name]]
    return [
        helper.make_node(op, [source, *others], [target])
        for (op, *others), source, target in zip(steps, places[:-1], places[1:], strict=True)
    ]


def power(array: Array) -> float:
    """The sum of squares."""
    with np.errstate(invalid="ignore"):
        return float(np.square(array, dtype=np.float64).sum())
