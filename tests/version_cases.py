# SPDX-License-Identifier: Apache-2.0
"""Models of one operator in every version of ONNX's operator sets, with inputs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_models import Feeds, Net
from onnx_tests import Case, cases

from mcugen.backends.cpu.pipeline import optimize
from mcugen.core.errors import McugenError
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import prepare_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array

OLDEST, NEWEST = 6, onnx.defs.onnx_opset_version()
_Option = onnx.defs.OpSchema.FormalParameterOption
_AttributeType = onnx.defs.OpSchema.AttrType


@dataclass(frozen=True)
class Version:
    """An operator as one version of ONNX's operator set defines it."""

    op_type: str
    since: int
    opset: int
    """Oldest operator set with this definition, from 7 on, which ONNX Runtime reads; else 6."""

    def __str__(self) -> str:
        return f"{self.op_type}-{self.since}"

    @property
    def schema(self) -> onnx.defs.OpSchema:
        """Return ONNX's schema of this version."""
        return onnx.defs.get_schema(self.op_type, self.opset)


@cache
def versions() -> list[Version]:
    """Return every version of an operator of ONNX's own domain that an operator set from 6 on has."""
    starts: dict[str, list[int]] = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            starts[schema.name].append(schema.since_version)
    found = []
    for op_type, known in sorted(starts.items()):
        since = sorted(known)
        for start, following in zip(since, [*since[1:], NEWEST + 1], strict=True):
            version = Version(op_type, start, min(max(start, 7), following - 1))
            if version.opset >= OLDEST and not version.schema.deprecated:
                found.append(version)
    return found


@dataclass
class VersionCase:
    """A model with one node of interest, and inputs.

    `expected` holds the outputs, computed by numpy, if no runtime can compute them.
    """

    name: str
    model: onnx.ModelProto
    feeds: Feeds
    expected: Feeds | None = None
    is_plain: bool = False
    """Whether all attributes have their defaults."""


# -------------------------------------------------------------------------------------------- official tests


@cache
def _official() -> dict[str, list[Case]]:
    """Return ONNX's tests of one node, by operator."""
    found: dict[str, list[Case]] = defaultdict(list)
    for case in cases(("node",)):
        if isinstance(case, Case):
            nodes = [node for node in case.model.graph.node if node.op_type != "Constant"]
            if len(nodes) == 1 and not nodes[0].domain:
                found[nodes[0].op_type].append(case)
    return found


def official_cases(version: Version) -> list[VersionCase]:
    """Return ONNX's tests, rewritten for a version of the operator; those with most attributes set come first.

    Only the models and inputs of the tests are used: what an older version computes may differ.
    """
    found = [rewritten for case in _official()[version.op_type] if (rewritten := _rewritten(case, version))]
    return [case for _, case in sorted(found, key=lambda each: -each[0])]


def _rewritten(case: Case, version: Version) -> tuple[int, VersionCase] | None:
    """Return a test in an older version and how many attributes are not at their defaults; None where it has no form.

    Inputs become attributes of the same name where the version has those; attributes at their defaults are left out.
    """
    schema, graph = version.schema, case.model.graph
    (node,) = (n for n in graph.node if n.op_type != "Constant")
    stored = {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in graph.node if n.op_type == "Constant"}
    newer = onnx.defs.get_schema(version.op_type, next(e.version for e in case.model.opset_import if not e.domain))
    values = {**case.inputs, **stored}
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.name in schema.attributes:
            attributes[attribute.name] = value
        elif attribute.name not in newer.attributes or default_of(newer, attribute.name) != value:
            return None
    inputs = []
    formals = [formal.name for formal in schema.inputs]
    for index, name in enumerate(node.input):
        formal = newer.inputs[min(index, len(newer.inputs) - 1)].name
        if name and formal in schema.attributes and formal not in formals:
            attributes[formal] = _as_attribute(values[name], schema.attributes[formal].type)
        else:
            inputs.append(name)
    while inputs and not inputs[-1]:
        inputs.pop()
    lacks = any(a.required and name not in attributes for name, a in schema.attributes.items())
    fits = schema.min_input <= len(inputs) <= schema.max_input and len(node.output) <= schema.max_output
    if lacks or not fits or None in attributes.values() or [] in attributes.values():
        return None
    for index, name in enumerate(inputs):
        if not name and index < len(schema.inputs) and schema.inputs[index].option == _Option.Single:
            inputs[index] = f"absent{index}"  # once a required input, which an empty tensor left out
            stored[inputs[index]] = values[inputs[index]] = np.zeros(0, np.float32)
    if not all(name not in values or _is_allowed(schema, i, values[name]) for i, name in enumerate(inputs)):
        return None
    used = {name: values[name] for name in inputs if name in values}
    model = one_node(version, inputs, list(node.output), used, stored, attributes)
    for output, known in ((o, k) for o in model.graph.output for k in graph.output if o.name == k.name):
        if not output.type.tensor_type.elem_type:
            output.type.tensor_type.elem_type = known.type.tensor_type.elem_type
    changed = sum(default_of(schema, name) != value for name, value in attributes.items())
    feeds = {name: array for name, array in used.items() if name not in stored}
    return changed, VersionCase(case.name, model, feeds, is_plain=not changed)


def one_node(
    version: Version,
    inputs: Sequence[str],
    outputs: Sequence[str],
    values: Feeds,
    stored: Mapping[str, Array],
    attributes: Mapping[str, object],
) -> onnx.ModelProto:
    """Return a model of one node; inputs among `stored` are constants."""
    net = Net(version.opset)
    for name, array in values.items():
        if name in stored:
            net.const(array, array.dtype.type, name)
        else:
            net.inputs.append(_info(name, array))
    net.ops(version.op_type, *inputs, outs=list(outputs), **attributes)
    model = net.plain_model()
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name)
    inferred = onnx.shape_inference.infer_shapes(model).graph.output
    for output, known in zip(model.graph.output, inferred, strict=True):
        output.CopyFrom(known)
    return model


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def default_of(schema: onnx.defs.OpSchema, name: str) -> object:
    """Return the default value of an attribute, or None."""
    default = schema.attributes[name].default_value
    return helper.get_attribute_value(default) if default.name else None


def _as_attribute(array: Array, kind: onnx.defs.OpSchema.AttrType) -> object:
    """Return an input's value as an attribute of a kind; None where it cannot be one."""
    numbers = array.reshape(-1).tolist()
    if kind in (_AttributeType.INTS, _AttributeType.FLOATS):
        return numbers
    if len(numbers) != 1:
        return None
    return float(numbers[0]) if kind == _AttributeType.FLOAT else numbers[0]


def _is_allowed(schema: onnx.defs.OpSchema, index: int, array: Array) -> bool:
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    return f"tensor({onnx.TensorProto.DataType.Name(number).lower()})" in formal.types


# ------------------------------------------------------------------------------------------------- execution


def run_imported(model: onnx.ModelProto, feeds: Feeds) -> tuple[dict[str, Array], onnx.ModelProto, dict[str, Array]]:
    """Return the outputs of the imported and optimized graph, with the model and the inputs that were used.

    Inputs that mcugen requires to be constant become constants, one after the other.
    """
    left = dict(feeds)
    while True:
        try:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            graph = import_model(prepare_model(copy, "versions"), "versions")
            optimize(graph)
            return interpret(graph, left), model, left
        except McugenError as error:
            wanted = [name for name in re.findall(r"--bind '([^']*)=", str(error)) if name in left]
            if not wanted:
                raise
            model = _with_constants(model, {name: left.pop(name) for name in dict.fromkeys(wanted)})


def _with_constants(model: onnx.ModelProto, values: Feeds) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [info for info in copy.graph.input if info.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    return copy


# --------------------------------------------------------------------------------- what has no official test

Builder = Callable[[Version], Iterator[VersionCase]]
"""A function that yields models of one version of an operator."""
_BUILDERS: dict[str, list[Builder]] = defaultdict(list)
_RANDOM = np.random.default_rng(0)


def own_cases(version: Version) -> list[VersionCase]:
    """Return mcugen's own test models for a version of an operator."""
    return [case for build in _BUILDERS[version.op_type] for case in build(version)]


def _builds(*op_types: str) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        for op_type in op_types:
            _BUILDERS[op_type].append(build)
        return build

    return register


def _real(*shape: int) -> Array:
    return np.asarray(_RANDOM.standard_normal(shape), np.float32)


@dataclass
class _Node:
    """The parts of a model of one node."""

    version: Version
    operands: Sequence[Array | None]
    stored: Sequence[int] = ()
    """Which operands are constants of the model."""
    outputs: int = 1
    attributes: Mapping[str, object] = field(default_factory=dict)

    def case(self, expected: Sequence[Array] | None = None) -> VersionCase:
        names = ["" if array is None else f"x{i}" for i, array in enumerate(self.operands)]
        values = {name: np.asarray(a) for name, a in zip(names, self.operands, strict=True) if name}
        stored = {f"x{i}": values[f"x{i}"] for i in self.stored}
        outs = [f"y{i}" for i in range(self.outputs)]
        model = one_node(self.version, names, outs, values, stored, self.attributes)
        feeds = {name: array for name, array in values.items() if name not in stored}
        wanted = None if expected is None else {f"y{i}": np.asarray(a) for i, a in enumerate(expected)}
        for info, array in zip(model.graph.output, wanted.values() if wanted else (), strict=False):
            info.CopyFrom(_info(info.name, array))
        return VersionCase(f"own {self.version} {self.attributes}", model, feeds, wanted)


_ARITHMETIC: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Greater": np.greater,
    "Less": np.less,
    "Equal": np.equal,
}


@_builds(*_ARITHMETIC)
def _aligned(version: Version) -> Iterator[VersionCase]:
    """Opset 6: the axes of the second operand are those of the first one from `axis` on."""
    if version.opset < 7:
        dtype = np.bool_ if version.op_type in ("And", "Or", "Xor") else np.float32
        dtype = np.int32 if version.op_type == "Equal" else dtype
        a = np.asarray(_RANDOM.integers(0, 3, (2, 2, 3)) + (dtype is np.float32) * 0.5, dtype)
        b = np.asarray([1, 0] if dtype is np.bool_ else [1, 2], dtype)
        expected = np.empty(a.shape, _ARITHMETIC[version.op_type](a[0, 0], a[0, 0]).dtype)
        for i, j, k in np.ndindex(*a.shape):
            expected[i, j, k] = _ARITHMETIC[version.op_type](a[i, j, k], b[j])
        yield _Node(version, [a, b], attributes={"broadcast": 1, "axis": 1}).case([expected])


@_builds("PRelu")
def _slopes(version: Version) -> Iterator[VersionCase]:
    if version.opset < 7:
        x, slopes = _real(2, 3, 4), _real(3)
        expected = np.where(x < 0, x * slopes[:, None], x)
        yield _Node(version, [x, slopes]).case([expected])


@_builds("Gemm")
def _product(version: Version) -> Iterator[VersionCase]:
    if version.opset < 7:
        a, b, c = _real(4, 3), _real(5, 4), _real(5)
        attributes = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0, "broadcast": 1}
        yield _Node(version, [a, b, c], attributes=attributes).case([0.5 * (a.T @ b.T) + 2 * c])


@_builds("BatchNormalization")
def _normalized(version: Version) -> Iterator[VersionCase]:
    """Statistics of channels or, below opset 9, of the elements of a sample."""
    for spatial in (1, 0) if version.opset < 9 else ():
        shape = (3,) if spatial else (3, 2, 2)
        x, scale, bias, mean, variance = _real(2, 3, 2, 2), *(_real(*shape) for _ in range(3)), np.abs(_real(*shape))
        parts = [p.reshape(3, 1, 1) if spatial else p for p in (scale, bias, mean, variance)]
        expected = (x - parts[2]) / np.sqrt(parts[3] + np.float32(0.1)) * parts[0] + parts[1]
        attributes = {"epsilon": 0.1, "spatial": spatial} | ({"is_test": 1} if version.opset < 7 else {})
        yield _Node(version, [x, scale, bias, mean, variance], range(1, 5), attributes=attributes).case([expected])


@_builds("Dropout")
def _undropped(version: Version) -> Iterator[VersionCase]:
    if version.opset < 7:
        x = _real(2, 3)
        yield _Node(version, [x], attributes={"ratio": 0.3, "is_test": 1}).case([x])


@_builds("AveragePool")
def _averages(version: Version) -> Iterator[VersionCase]:
    """Elements of the padding do not count."""
    if version.opset < 7:
        x = _real(1, 1, 4)
        expected = np.asarray([[[x[0, 0, :2].mean(), x[0, 0, 1:].mean()]]])
        yield _Node(version, [x], attributes={"kernel_shape": [3], "strides": [2], "pads": [1, 0]}).case([expected])


@_builds("RNN")
def _recurrence(version: Version) -> Iterator[VersionCase]:
    if version.opset < 7:
        x, w, r = _real(3, 1, 2), _real(1, 2, 2), _real(1, 2, 2)
        h, steps = np.zeros(2, np.float32), np.empty((3, 1, 1, 2), np.float32)
        for step in (2, 1, 0):
            h = steps[step, 0, 0] = np.tanh(w[0] @ x[step, 0] + r[0] @ h)
        attributes = {"hidden_size": 2, "direction": "reverse", "output_sequence": 1}
        yield _Node(version, [x, w, r], (1, 2), 2, attributes).case([steps, h.reshape(1, 1, 2)])


@_builds("Upsample")
def _enlarged(version: Version) -> Iterator[VersionCase]:
    x, scales = _real(1, 1, 2, 3), [1.0, 1.0, 2.0, 3.0]
    if version.opset < 7:
        expected = x.repeat(2, axis=2).repeat(3, axis=3)
        yield _Node(version, [x], attributes={"height_scale": 2.0, "width_scale": 3.0}).case([expected])
    elif version.since < 9:
        yield _Node(version, [x], attributes={"scales": scales, "mode": "linear"}).case()
    else:
        yield _Node(version, [x, np.asarray(scales, np.float32)], [1], attributes={"mode": "linear"}).case()


@_builds("Resize")
def _resized(version: Version) -> Iterator[VersionCase]:
    for mode in ("nearest", "linear") if version.since < 11 else ():
        scales = np.asarray([1, 1, 0.6, 2.5], np.float32)
        yield _Node(version, [_real(1, 2, 5, 4), scales], [1], attributes={"mode": mode}).case()


@_builds("Pad")
def _padded(version: Version) -> Iterator[VersionCase]:
    if version.since < 11:
        yield _Node(version, [_real(2, 3)], attributes={"pads": [1, 0, -1, 2], "value": 1.5}).case()
        yield _Node(version, [_real(2, 3)], attributes={"pads": [1, 2, 0, 1], "mode": "reflect"}).case()


@_builds("TopK")
def _largest(version: Version) -> Iterator[VersionCase]:
    if version.since < 10:
        yield _Node(version, [_real(3, 4)], outputs=2, attributes={"k": 2, "axis": 0}).case()


@_builds("GlobalLpPool")
def _norms(version: Version) -> Iterator[VersionCase]:
    yield _Node(version, [_real(1, 2, 3, 4)], attributes={"p": 1}).case()


@_builds("MaxRoiPool")
def _regions(version: Version) -> Iterator[VersionCase]:
    rois = np.asarray([[0, 0, 0, 5, 5], [0, 2, 2, 7, 7]], np.float32)
    attributes = {"pooled_shape": [2, 2], "spatial_scale": 0.5}
    yield _Node(version, [_real(1, 2, 4, 4), rois], attributes=attributes).case()


@_builds("MeanVarianceNormalization")
def _standardized(version: Version) -> Iterator[VersionCase]:
    yield _Node(version, [_real(2, 3, 4)], attributes={"axes": [0, 2]}).case()


@_builds("Swish")
def _swish(version: Version) -> Iterator[VersionCase]:
    yield _Node(version, [_real(2, 3)], attributes={"alpha": 0.5}).case()


@_builds("STFT")
def _spectrum(version: Version) -> Iterator[VersionCase]:
    step, length = np.asarray(2), np.asarray(4)
    operands = [_real(1, 16, 1), step, None, length]
    yield _Node(version, operands, (1, 3), attributes={"onesided": 0}).case()


@_builds("MelWeightMatrix")
def _mel(version: Version) -> Iterator[VersionCase]:
    operands = [np.asarray(v) for v in (4, 16, 8192)] + [np.asarray(v, np.float32) for v in (0, 4096)]
    yield _Node(version, operands, range(5), attributes={"output_datatype": 11}).case()


@_builds("Range")
def _range(version: Version) -> Iterator[VersionCase]:
    if version.since >= 27:
        operands = [np.asarray(v, np.float16) for v in (1, 5, 1)]
        yield _Node(version, operands, range(3), attributes={"stash_type": 10}).case()


@_builds("QuantizeLinear")
def _quantized(version: Version) -> Iterator[VersionCase]:
    if version.since >= 13:
        operands = [_real(2, 3), np.asarray([0.1, 0.2], np.float32), np.asarray([3, 4], np.int8)]
        yield _Node(version, operands, (1, 2), attributes={"axis": 0}).case()


@_builds("DequantizeLinear")
def _dequantized(version: Version) -> Iterator[VersionCase]:
    if version.since >= 13:
        codes = np.asarray(_RANDOM.integers(-9, 9, (2, 3)), np.int8)
        operands = [codes, np.asarray([0.1, 0.2], np.float32), np.asarray([3, 4], np.int8)]
        yield _Node(version, operands, (1, 2), attributes={"axis": 0}).case()


@_builds("QLinearConv")
def _convolved(version: Version) -> Iterator[VersionCase]:
    unit, zero = np.asarray(0.1, np.float32), np.asarray(3, np.uint8)
    x, w = (np.asarray(_RANDOM.integers(0, 9, s), np.uint8) for s in ((1, 2, 5, 5), (2, 1, 3, 3)))
    operands = [x, unit, zero, w, unit, zero, np.asarray(0.2, np.float32), zero]
    attributes = {"group": 2, "pads": [1, 0, 1, 0], "strides": [2, 1]}
    yield _Node(version, operands, range(1, 8), attributes=attributes).case()


@_builds("NonMaxSuppression")
def _suppressed(version: Version) -> Iterator[VersionCase]:
    boxes = np.asarray([[[0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [3, 3, 1, 1]]], np.float32)
    scores = np.asarray([[[0.9, 0.8, 0.7]]], np.float32)
    operands = [boxes, scores, np.asarray([2]), np.asarray([0.5], np.float32), np.asarray([0.1], np.float32)]
    yield _Node(version, operands, (2, 3, 4), attributes={"center_point_box": 1}).case()


@_builds("Constant")
def _constants(version: Version) -> Iterator[VersionCase]:
    attributes: dict[str, object] = {"value": numpy_helper.from_array(_real(2, 3))}
    if version.since >= 12:
        attributes = {"value_floats": [0.5, 1.5, -2.0]}
    net = Net(version.opset)
    net.output(net.op("Add", net.input("x", 2, 3), net.op("Constant", **attributes), out="y"), shape=[2, 3])
    yield VersionCase(f"own {version}", net.plain_model(), {"x": _real(2, 3)})


@_builds("Loop")
def _loop(version: Version) -> Iterator[VersionCase]:
    """Three steps with a state and a scan output."""
    body = Net(version.opset, prefix="b.")
    body.input("step", dtype=np.int64)
    body.input("before", dtype=np.bool_)
    state = body.op("Mul", body.input("state", 2), "x", out="b.state")
    body.output(body.op("Identity", "before", out="b.go"), dtype=np.bool_, shape=[])
    body.output(state, shape=[2])
    body.output(body.op("Neg", state, out="b.row"), shape=[2])
    net = Net(version.opset)
    x = net.input("x", 2)
    net.output(*net.ops("Loop", net.const(3, np.int64), "", x, outs=["y", "rows"], body=body.graph("body")))
    yield VersionCase(f"own {version}", net.plain_model(), {"x": _real(2)})


@_builds(
    "SequenceConstruct",
    "SequenceInsert",
    "SequenceErase",
    "SequenceAt",
    "SequenceLength",
    "SequenceEmpty",
    "ConcatFromSequence",
    "SplitToSequence",
)
def _sequence(version: Version) -> Iterator[VersionCase]:
    """Every operator on sequences, one after the other."""
    net = Net(version.opset)
    x = net.input("x", 4, 3)
    parts = net.op("SplitToSequence", x, net.const([1, 3], np.int64), axis=0)
    first = net.op("SequenceAt", parts, net.const(0, np.int64))
    made = net.op("SequenceConstruct", first, x)
    made = net.op(
        "SequenceErase", net.op("SequenceInsert", made, first, net.const(1, np.int64)), net.const(0, np.int64)
    )
    whole = net.op("ConcatFromSequence", made, axis=0)
    empty = net.op("SequenceLength", net.op("SequenceEmpty", dtype=1))
    count = net.op("Cast", net.op("Add", net.op("SequenceLength", made), empty), to=1)
    net.output(net.op("Mul", whole, count, out="y"), shape=[5, 3])
    yield VersionCase(f"own {version}", net.plain_model(), {"x": _real(4, 3)})


@_builds("SequenceMap")
def _mapped(version: Version) -> Iterator[VersionCase]:
    body = Net(version.opset, prefix="b.")
    body.output(body.op("Neg", body.input("item", 2, 3), out="b.negative"), shape=[2, 3])
    net = Net(version.opset)
    made = net.op("SequenceConstruct", net.input("x", 2, 3), "x")
    made = net.op("SequenceMap", made, body=body.graph("body"))
    net.output(net.op("ConcatFromSequence", made, axis=0, out="y"), shape=[4, 3])
    yield VersionCase(f"own {version}", net.plain_model(), {"x": _real(2, 3)})


@_builds("Optional", "OptionalHasElement", "OptionalGetElement")
def _optional(version: Version) -> Iterator[VersionCase]:
    net = Net(version.opset)
    made = net.op("Optional", net.input("x", 2, 3))
    net.output(net.op("OptionalHasElement", made, out="given"), dtype=np.bool_, shape=[])
    net.output(net.op("OptionalGetElement", made, out="y"), shape=[2, 3])
    yield VersionCase(f"own {version}", net.plain_model(), {"x": _real(2, 3)})


@_builds("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
def _random(version: Version) -> Iterator[VersionCase]:
    net = Net(version.opset)
    is_free = version.op_type in ("RandomNormal", "RandomUniform")
    inputs, shape = ([], {"shape": [2, 3]}) if is_free else ([net.input("x", 2, 3)], {})
    drawn = net.op(version.op_type, *inputs, seed=1.0, **shape)
    net.output(net.op("Cast", drawn, to=1, out="y"), shape=None)
    yield VersionCase(f"own {version}", net.plain_model(), {} if is_free else {"x": np.abs(_real(2, 3))})
