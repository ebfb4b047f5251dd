# SPDX-License-Identifier: Apache-2.0
"""Quantization of all weights, by what each layer reads once all layers before it compute in integers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_samples
from mcugen.hir.traits import Cell, Weighted, bias_input, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.numerics.fixedpoint import fake_quantize
from mcugen.numerics.threads import one_thread
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.moments import Moments
from mcugen.quantization.plan import Plan, QuantizedWeights
from mcugen.quantization.profile import Profile
from mcugen.quantization.rounding import (
    best_scales,
    choose_scales,
    fit_group_scales,
    fit_scales,
    quadratic_error,
    round_weights,
)
from mcugen.quantization.samples import distinct_samples
from mcugen.quantization.scheme import WEIGHT_LIMITS, Scheme
from mcugen.quantization.sensitivity import measured_tensors, sum_of_squares
from mcugen.quantization.weights import effective_weights, layer_bias, layer_weights, plain_codes, real_weights

SharedWeightsKey = tuple[int, DType]
"""Key of a set of layers with the same quantized weights (`Plan.shares`): the set's number, and a type."""

MAX_INT8_REFINEMENT_SAMPLES = 48
"""Largest number of samples that decide how 8-bit weights are rounded."""

MAX_COMPENSATION_SAMPLES = 128
"""Largest number of samples that decide how 8-bit weights are rounded if they cancel errors of earlier layers."""

MAX_COARSE_REFINEMENT_SAMPLES = 256
"""Largest number of samples that decide how weights of fewer than 8 bits are rounded.

It is larger than for 8 bits, because coarse weights gain most from being rounded for the actual inputs.
"""

COMPENSATED_ERROR_SHARE = 0.5
"""Share of the error in a layer's input, caused by earlier layers, that the layer's weights are chosen to cancel.

It applies to models with 4-bit weights, and to models with bad outputs in int8 (rescue.py). Full compensation overfits
the samples. On the held-out quarters of three folds of the calibration samples, ResNet8 had 19.1 dB without, 22.4 dB
with a half, and 19.6 dB with all; DS-CNN had 27.0, 27.2 and 27.4 dB.
"""

TRIED_SCALE_FACTORS = (1.0, 0.85, 1.15)
"""Factors of a weight's scale that are tried for rounding to least error; 1 is best for rounding to nearest."""

MAX_IM2COL_ELEMENTS = 2**23
"""Largest number of elements of a layer's im2col matrix that is kept in memory instead of computed anew."""

MAX_REFINEMENT_ELEMENTS = 2**26
"""Largest number of elements of a model's largest tensor over all samples that round its weights.

Large models use fewer samples, to save memory.
"""


def quantize_weights(
    model: FloatModel,
    plan: Plan,
    samples: Sequence[Mapping[str, Array]],
    profile: Profile,
    progress: Callable[[int, int], None],
) -> Plan:
    """Return the plan with quantized weights for every integer layer.

    The options of the scheme decide whether weights are rounded to least error on the samples, and whether biases
    correct the mean error. For weights of fewer than 8 bits, the plan also gets the noise that remains. Without
    samples, weights are rounded to nearest, and biases are corrected by the means in the profile.

    Args:
        model: The float model.
        plan: The plan without weights.
        samples: The calibration samples; may be empty.
        profile: The profile of the model's tensors.
        progress: Called with the number of finished nodes, and with their total.
    """
    plan = replace(plan, layers={}, moments={})
    layers = [n for n in model.graph.nodes if weight_axes(n.op) and plan.precision_of(n) is not DType.FLOAT32]
    cells = [n for n in model.graph.nodes if isinstance(n.op, Cell) and n.outputs[0].name in plan.few_bits]
    if samples and (layers or cells) and (plan.scheme.correct_bias or plan.scheme.optimize_rounding):
        with one_thread():
            max_samples = MAX_COMPENSATION_SAMPLES if plan.compensates else MAX_INT8_REFINEMENT_SAMPLES
            chosen = _spread(
                model.graph, distinct_samples(samples), MAX_COARSE_REFINEMENT_SAMPLES if plan.is_coarse else max_samples
            )
            sums = _Gathering(model, plan, chosen).gather(layers) if plan.shared else {}
            _Walk(model, plan, chosen, sums).run(layers, cells, progress)
        return plan
    for node in layers:
        sharing_layers = [n for n in layers if plan.shares(n) == plan.shares(node) is not None] or [node]
        moments = _profiled_means(sharing_layers, profile) if plan.scheme.correct_bias else None
        codes = _plain_codes(node, plan, _living(node, plan, moments is not None))
        plan.layers[node.output.name] = codes if moments is None else _correct_bias(node, codes, moments)
    return plan


def _spread(graph: Graph, samples: Sequence[Mapping[str, Array]], max_samples: int) -> Sequence[Mapping[str, Array]]:
    """Return at most `max_samples` samples, as many as fit in memory, evenly spread."""
    largest = max(v.type.count for v in graph.values() if not v.is_constant)
    count = min(len(samples), max_samples, max(MAX_REFINEMENT_ELEMENTS // max(largest, 1), 8))
    return [samples[i * len(samples) // count] for i in range(count)]


class _Walk:
    """A walk through the graph with all samples together: values of the float model and of the quantized one."""

    def __init__(
        self,
        model: FloatModel,
        plan: Plan,
        samples: Sequence[Mapping[str, Array]],
        sums: Mapping[SharedWeightsKey, Moments],
    ) -> None:
        graph = self.graph = model.graph
        self.plan, self._sums = plan, sums
        self._common: dict[SharedWeightsKey, QuantizedWeights] = {}
        self.real = {v: [np.asarray(s[v.name]).reshape(v.type.shape) for s in samples] for v in graph.inputs}
        self.seen = dict(self.real)
        """Values in the quantized model, as integer layers store them; `_read` converts them for other precisions."""
        self._types: dict[Value, DType] = {}
        """Types that the values in `seen` are stored in."""
        self._unread = Counter(v for node in graph.nodes for v in node.inputs if v is not None)
        names = set(measured_tensors(model)) if plan.is_coarse else set[str]()
        self._judged = [v for v in graph.values() if v.name in names]
        self._unread.update(self._judged)

    def run(self, layers: Sequence[Node], cells: Sequence[Node], progress: Callable[[int, int], None]) -> None:
        """Compute all nodes up to the last layer and to the judged tensors.

        Args:
            layers: The layers whose weights are quantized.
            cells: The recurrent layers whose moments are noted.
            progress: Called with the number of finished nodes, and with their total.
        """
        weighted, noted = set(layers), set(cells)
        last = weighted | noted | {v.producer for v in self._judged}
        total = max(i for i, node in enumerate(self.graph.nodes, 1) if node in last)
        for number, node in enumerate(self.graph.nodes[:total], 1):
            unfolded = self._im2col_of_both(node) if node in weighted else None
            if node in weighted:
                self.plan.layers[node.output.name] = self._codes(node, unfolded)
            if node in noted:
                self.plan.moments[node.outputs[0].name] = self._moments(node)
            self._evaluate(node, unfolded)
            self._forget(node)
            progress(number, total)
        self.plan.noise = self._noise() if not noted else None

    def _noise(self) -> float | None:
        """Return the mean noise power of the judged tensors relative to their signal."""
        shares = []
        for value in self._judged:
            real, seen = self.real[value], self.seen[value]
            noise = sum(sum_of_squares(x - y.astype(np.float64)) for x, y in zip(real, seen, strict=True))
            shares.append(noise / max(sum(map(sum_of_squares, real)), 1e-300))
        return sum(shares) / len(shares) if shares else None

    def _im2col_of_both(self, node: Node) -> tuple[_Unfolded, _Unfolded] | None:
        """Return the im2col rows of a layer in both models; None if it is no plain product."""
        x = node.input(0)
        if _im2col_rows(node, self.real[x][0]) is None:
            return None
        return _Unfolded(node, self.real[x]), _Unfolded(node, self._read(x, node))

    def _codes(self, node: Node, unfolded: tuple[_Unfolded, _Unfolded] | None) -> QuantizedWeights:
        """Return the quantized weights of a layer, which layers of the same set share."""
        shares = self.plan.shares(node)
        if shares is None:
            return self._own_codes(node, unfolded, None)
        if shares not in self._common:
            self._common[shares] = self._own_codes(node, unfolded, self._sums.get(shares))
        return self._common[shares]

    def _own_codes(
        self, node: Node, unfolded: tuple[_Unfolded, _Unfolded] | None, moments: Moments | None
    ) -> QuantizedWeights:
        """Return the quantized weights by the moments of the layer's inputs.

        Operators that are no plain product are rounded to nearest. `moments` are known for layers that share weights.
        """
        plan, can_correct = self.plan, _can_correct(node, self.plan)
        living = _living(node, plan, unfolded is not None and can_correct)
        codes = _plain_codes(node, plan, living)
        if unfolded is None:
            return codes
        moments = moments or self._add_moments(Moments(crossed=plan.compensates), unfolded)
        if plan.scheme.optimize_rounding and codes.dtype is not DType.INT16:
            compensation = COMPENSATED_ERROR_SHARE * moments.compensation(can_correct) if plan.compensates else None
            codes = _round_weights(living, codes, moments.gram(can_correct), plan.scheme, compensation)
        return _correct_bias(node, codes, moments) if can_correct else codes

    def _add_moments(self, moments: Moments, unfolded: tuple[_Unfolded, _Unfolded]) -> Moments:
        """Add all rows that a layer reads to the moments."""
        for real, seen in zip(*unfolded, strict=True):
            moments.add(real, seen)
        return moments

    def _moments(self, node: Node) -> dict[str, Array]:
        """Return the second moments of what a recurrent layer reads and keeps, by role."""
        assert isinstance(node.op, Cell)
        by_role: dict[str, Moments] = defaultdict(Moments)
        samples = list(zip(*self._operands(node), strict=True))
        for arrays, (_, inner) in zip(samples, node.op.evaluate_batch(node.sig, samples), strict=True):
            for role, array in {"x": arrays[0], **inner}.items():
                rows = array.reshape(1, -1, array.shape[-1])
                by_role[role].add(rows, rows)
        return {role: moments.gram(centred=False) for role, moments in by_role.items()}

    def _operands(self, node: Node) -> list[list[Array]]:
        """Return the float model's values of each input, for all samples."""
        operands = [v for v in node.inputs if v is not None]
        return [self.real[v] if v.data is None else [v.data] * self._count for v in operands]

    def _evaluate(self, node: Node, unfolded: tuple[_Unfolded, _Unfolded] | None) -> None:
        """Compute a node in both models, for all samples."""
        operands, real = [v for v in node.inputs if v is not None], self._operands(node)
        seen = [self._constant(v, node) if v.is_constant else self._read(v, node) for v in operands]
        for values, inputs, rows in zip((self.real, self.seen), (real, seen), unfolded or (None, None), strict=True):
            arguments = inputs if rows is None else [rows, *inputs[1:]]
            reference = None if rows is None else _of_unfolded
            results = evaluate_samples(node, list(zip(*arguments, strict=True)), reference)
            values.update(zip(node.outputs, map(list, zip(*results, strict=True)), strict=True))
        if self.plan.precision_of(node) is not DType.FLOAT32:
            for v in (v for v in node.outputs if v.name in self.plan.activations):
                dtype = self.plan.activations[v.name].dtype
                self.seen[v], self._types[v] = self._quantized_values(v, dtype), dtype

    @property
    def _count(self) -> int:
        return len(next(iter(self.real.values())))

    def _read(self, value: Value, node: Node) -> list[Array]:
        """Return what a node reads of a tensor in the quantized model."""
        dtype = self.plan.precision_of(node)
        is_converted = value.name in self.plan.activations and dtype not in (DType.FLOAT32, self._types.get(value))
        return self._quantized_values(value, dtype) if is_converted else self.seen[value]

    def _quantized_values(self, value: Value, dtype: DType) -> list[Array]:
        quant = self.plan.quant(value.name, dtype)
        return [fake_quantize(x, quant, dtype) for x in self.seen[value]]

    def _constant(self, value: Value, node: Node) -> list[Array]:
        assert value.data is not None
        codes = self.plan.layers.get(node.outputs[0].name)
        index = node.inputs.index(value)
        if codes is not None and index in weight_axes(node.op):
            return [real_weights(codes)] * self._count
        if codes is not None and index == bias_input(node.op) and codes.bias is not None:
            return [codes.bias] * self._count
        return [value.data] * self._count

    def _forget(self, node: Node) -> None:
        """Delete the values that no later node reads."""
        for value in (v for v in node.inputs if v is not None and not v.is_constant):
            self._unread[value] -= 1
            if not self._unread[value]:
                del self.real[value], self.seen[value]


class _Gathering(_Walk):
    """An earlier walk with weights rounded to nearest, which collects what layers that share weights read together."""

    def __init__(self, model: FloatModel, plan: Plan, samples: Sequence[Mapping[str, Array]]) -> None:
        super().__init__(model, replace(plan, layers={}), samples, {})
        self._found: dict[SharedWeightsKey, Moments] = {}

    def gather(self, layers: Sequence[Node]) -> Mapping[SharedWeightsKey, Moments]:
        """Return the moments of each set of layers that share weights."""
        last = max(i for i, node in enumerate(layers) if self.plan.shares(node) is not None)
        self._judged = []
        self.run(layers[: last + 1], [], lambda _done, _total: None)
        return self._found

    def _codes(self, node: Node, unfolded: tuple[_Unfolded, _Unfolded] | None) -> QuantizedWeights:
        shares = self.plan.shares(node)
        if shares is not None and unfolded is not None:
            self._add_moments(self._found.setdefault(shares, Moments(crossed=self.plan.compensates)), unfolded)
        return _plain_codes(node, self.plan, None)


class _Unfolded:
    """The im2col rows of a plain product, sample by sample. They are read twice, and some are kept."""

    def __init__(self, node: Node, arrays: Sequence[Array]) -> None:
        self._node, self._arrays = node, arrays
        self._kept: dict[int, Array] = {}

    def __iter__(self) -> Iterator[Array]:
        """Yield the rows of each sample, and keep as many for the next pass as there is room for."""
        room = MAX_IM2COL_ELEMENTS
        for index, x in enumerate(self._arrays):
            rows = self._kept.pop(index) if index in self._kept else _im2col_rows(self._node, x)
            assert rows is not None
            room -= rows.size
            if room >= 0:
                self._kept[index] = rows
            yield rows


def _of_unfolded(node: Node, arrays: Sequence[Array]) -> tuple[Array]:
    """Compute a plain product from its im2col rows."""
    assert isinstance(node.op, Weighted)
    return (node.op.of_unfolded(node.sig, *arrays),)


def _plain_codes(node: Node, plan: Plan, living: Array | None) -> QuantizedWeights:
    """Return weights rounded to nearest, in the type and size of the plan."""
    return plain_codes(node, plan.scheme, plan.weights_of(node), living, plan.code_bits_of(node))


def _living(node: Node, plan: Plan, can_correct: bool) -> Array:
    """Return the weights that have an effect, with 0 for the others.

    All weights are kept if no bias can take up the mean of the others, or if several layers share them.
    """
    is_free = can_correct and plan.shares(node) is None
    return effective_weights(node, plan.constants) if is_free else layer_weights(node)[0]


def _round_weights(
    living: Array, codes: QuantizedWeights, gram: Array, scheme: Scheme, compensation: Array | None
) -> QuantizedWeights:
    """Return weights of least error that also compensate errors of the input.

    Weights of fewer bits also get scales that may clip, unless the scales are fixed.

    Args:
        living: The real weights.
        codes: The weights rounded to nearest.
        gram: The second moments of the inputs, [groups, depth, depth].
        scheme: The quantization scheme.
        compensation: The matrix by which the weights compensate errors of the input; None without compensation.
    """
    limits = WEIGHT_LIMITS[codes.dtype]
    if codes.group:
        return _rounded_by_group(living, codes, gram, scheme, compensation)
    weights, scales = _group_weights(living, codes, len(gram))
    weights = weights if compensation is None else weights + weights @ compensation
    if codes.dtype is DType.INT8 or scheme.power_of_two or len(codes.scales) != scales.size:
        return replace(codes, weights=round_weights(weights, scales, gram, limits).reshape(codes.weights.shape))
    scales = best_scales(weights, scales, gram, limits)
    rounded, scales = choose_scales(
        [(scales * share).astype(np.float32).astype(np.float64) for share in TRIED_SCALE_FACTORS], weights, gram, limits
    )
    fitted = fit_scales(weights, rounded, scales, gram)
    rounded, scales = choose_scales([scales, fitted], weights, gram, limits)
    return replace(codes, weights=rounded.reshape(codes.weights.shape), scales=scales.reshape(codes.scales.shape))


def _rounded_by_group(
    living: Array, codes: QuantizedWeights, gram: Array, scheme: Scheme, compensation: Array | None
) -> QuantizedWeights:
    """Choose scales that may clip, group by group, then the weights of least error of all inputs together.

    The arguments are those of `_round_weights`.
    """
    weights, size, limits = living.astype(np.float64), codes.group, WEIGHT_LIMITS[codes.dtype]
    weights = weights if compensation is None else weights + weights @ compensation[0]
    missing = -weights.shape[1] % size
    parts = np.pad(weights, ((0, 0), (0, missing))).reshape(len(weights), -1, size).swapaxes(0, 1)
    padded = np.pad(gram[0], (0, missing))
    grams = np.stack([padded[at : at + size, at : at + size] for at in range(0, len(padded), size)])
    scales = codes.scales if scheme.power_of_two else best_scales(parts, codes.scales.T, grams, limits).T
    first = _of_steps(weights, replace(codes, scales=scales), gram, limits)
    if scheme.power_of_two:
        return first
    fitted = fit_group_scales(weights, first.weights, first.scales, gram[0], size)
    second = _of_steps(weights, replace(codes, scales=fitted), gram, limits)
    errors = [quadratic_error(weights[None], c.weights[None], c.steps[None], gram)[0] for c in (first, second)]
    better = (errors[1] < errors[0])[:, None]
    return replace(
        codes,
        weights=np.where(better, second.weights, first.weights),
        scales=np.where(better, second.scales, first.scales),
    )


def _of_steps(weights: Array, codes: QuantizedWeights, gram: Array, limits: tuple[int, int]) -> QuantizedWeights:
    """Return the weights of least error for given scales."""
    steps = np.broadcast_to(codes.steps, weights.shape)
    return replace(codes, weights=round_weights(weights[None], steps[None], gram, limits)[0])


def _can_correct(node: Node, plan: Plan) -> bool:
    return plan.scheme.correct_bias and layer_bias(node) is not None


def _correct_bias(node: Node, codes: QuantizedWeights, moments: Moments) -> QuantizedWeights:
    """Return the weights with a bias that restores the float mean of each output channel.

    The correction is reduced as far as the means are uncertain (`Moments.trust`).
    """
    real = layer_weights(node)[0]
    weights = real.reshape(len(moments.float_mean), -1, moments.float_mean.shape[-1]).astype(np.float64)
    seen = (codes.weights * codes.steps).reshape(weights.shape)
    error = weights @ moments.float_mean[..., None] - seen @ moments.quantized_mean[..., None]
    bias, mended = layer_bias(node), moments.trust * error
    return codes if bias is None else replace(codes, bias=(bias + mended.reshape(bias.shape)).astype(np.float32))


def _group_weights(weights: Array, codes: QuantizedWeights, groups: int) -> tuple[Array, Array]:
    """Return real weights as [groups, outputs of a group, depth], and their scales as [groups, outputs]."""
    scales = np.broadcast_to(codes.scales, len(weights)).reshape(groups, -1)
    return weights.reshape(*scales.shape, -1).astype(np.float64), scales


def _profiled_means(nodes: Sequence[Node], profile: Profile) -> Moments | None:
    """Return the means of what layers that share weights read, one number per channel.

    The result is None if the profile lacks them.
    """
    moments = Moments()
    for node in nodes:
        rows = _mean_rows(node, profile)
        if rows is None:
            return None
        moments.add(rows, rows, profile.distinct)
    return moments


def _mean_rows(node: Node, profile: Profile) -> Array | None:
    x = node.input(0)
    known = profile.tensors.get(x.name)
    axis = 1 if x.type.rank > 2 else x.type.rank - 1
    if known is None or len(known.means) != x.type.shape[axis] or layer_bias(node) is None:
        return None
    shape = [-1 if a == axis else 1 for a in range(x.type.rank)]
    means = np.broadcast_to(np.asarray(known.means, np.float32).reshape(shape), x.type.shape)
    return _im2col_rows(node, means)


def _im2col_rows(node: Node, x: Array) -> Array | None:
    """Return the input of a layer as im2col rows; None if the layer is no plain product."""
    return node.op.unfolded(node.sig, x) if isinstance(node.op, Weighted) else None
