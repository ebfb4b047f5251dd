# SPDX-License-Identifier: Apache-2.0
"""Rules that rewrite an ONNX node for a newer operator set.

A rule exists for each operator set that changes the meaning, the inputs or the attributes of an operator. An operator
without a rule means the same in every version that has it. Rules need no types: where a rank is unknown, they write
nodes that compute the rank, which the importer folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen.core.errors import UnsupportedError
from mcugen.hir.names import Names
from mcugen.hir.types import Array


@dataclass
class NodeUpgrade:
    """The upgrade of one ONNX node to a newer operator set.

    An upgrade rule (a function for one operator and one operator set) changes the node in place, and may add nodes
    before and after it. The added nodes are valid in the operator set of the rule, or in a later one that every model
    is upgraded to.

    Attributes:
        node: The node that is changed.
        types: Known types of tensors, by name.
        names: Tensor names in use, to which new names are added.
        constants: Constants, by name.
        before: Nodes added before the node.
        after: Nodes added after the node.
    """

    node: onnx.NodeProto
    types: Mapping[str, onnx.TypeProto]
    names: Names
    constants: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    before: list[onnx.NodeProto] = field(default_factory=list)
    after: list[onnx.NodeProto] = field(default_factory=list)

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes that replace the original node, in topological order."""
        return [*self.before, self.node, *self.after]

    @property
    def stem(self) -> str:
        """Return the prefix of the names of added tensors: the name of the node's first output."""
        return next((str(name) for name in self.node.output if name), self.node.op_type)

    def dims(self, index: int) -> list[int | None] | None:
        """Return the sizes of input `index`, None for each unknown size.

        The result is None if even the rank is unknown.
        """
        type_ = self.types.get(self.node.input[index])
        if type_ is None or not type_.tensor_type.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else None for d in type_.tensor_type.shape.dim]

    def rank(self, index: int) -> int | None:
        """Return the rank of input `index`; None if it is unknown."""
        dims = self.dims(index)
        return None if dims is None else len(dims)

    def float_dtype(self, index: int) -> np.dtype[Any]:
        """Return the element type of float input `index`; float32 if it is unknown."""
        type_ = self.types.get(self.node.input[index])
        known = onnx.TensorProto.FLOAT if type_ is None else type_.tensor_type.elem_type
        dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(known or onnx.TensorProto.FLOAT)
        return dtype

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or `default` if the node does not have it."""
        attribute = next((a for a in self.node.attribute if a.name == name), None)
        return default if attribute is None else helper.get_attribute_value(attribute)

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a string attribute, or `default` if the node does not have it."""
        value = self.attribute(name)
        return default if value is None else value.decode("utf-8", "replace")

    def remove(self, *names: str) -> None:
        """Remove attributes by name."""
        kept = [a for a in self.node.attribute if a.name not in names]
        del self.node.attribute[:]
        self.node.attribute.extend(kept)

    def pop(self, name: str, default: Any = None) -> Any:
        """Remove an attribute and return its value, or `default` if the node does not have it."""
        value = self.attribute(name, default)
        self.remove(name)
        return value

    def set(self, **attributes: object) -> None:
        """Set attributes, replacing those that the node has already."""
        self.remove(*attributes)
        self.node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())

    def set_inputs(self, *names: str) -> None:
        """Replace the inputs by tensors of these names."""
        del self.node.input[:]
        self.node.input.extend(names)

    def constant(self, value: Array | Sequence[int], suffix: str) -> str:
        """Add a constant before the node and return its name; integers are int64.

        Args:
            value: The elements.
            suffix: End of the constant's name.
        """
        array = np.asarray(value, None if isinstance(value, np.ndarray) else np.int64)
        name = self.names.take(f"{self.stem}.{suffix}")
        self.before.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name)))
        return name

    def add(self, op_type: str, inputs: Sequence[str], suffix: str, **attributes: object) -> str:
        """Add a node before the rewritten one and return the name of its output.

        Args:
            op_type: Operator of the node.
            inputs: Names of the inputs.
            suffix: End of the output's name.
            attributes: Attributes of the node.
        """
        name = self.names.take(f"{self.stem}.{suffix}")
        self.before.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def divert_output(self, index: int, suffix: str) -> tuple[str, str]:
        """Rename an output of the node, so that an added node can write the original name.

        Args:
            index: Position of the output.
            suffix: End of the new name.

        Returns:
            The new name and the original name.
        """
        original = self.node.output[index]
        self.node.output[index] = self.names.take(f"{original}{suffix}")
        return self.node.output[index], original

    def attribute_to_input(self, name: str, index: int) -> None:
        """Turn an attribute that is a list of integers into a constant at input `index`; do nothing if it is absent."""
        values = self.pop(name)
        if values is not None:
            constant = self.constant(values, name)
            self.set_inputs(*self.node.input[:index], *[""] * (index - len(self.node.input)), constant)

    def refusal(self, rule: str, value: str, remedy: str) -> UnsupportedError:
        """Return the error that the node cannot be upgraded.

        Args:
            rule: What must hold.
            value: The value that breaks the rule.
            remedy: An action for the user.
        """
        return UnsupportedError(f"{self.node.op_type} '{self.node.name or self.stem}': {rule}", value, remedy)


Rule = Callable[[NodeUpgrade], None]
"""A function that upgrades one node to the operator set for which `upgrade_rule` registers it."""

_RULES: dict[int, dict[str, Rule]] = {}


def upgrade_rule(opset: int, *op_types: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule that upgrades nodes to operator set `opset`.

    Args:
        opset: First operator set with the changed meaning.
        *op_types: The operators that the rule upgrades.
    """

    def register(function: Rule) -> Rule:
        _RULES.setdefault(opset, {}).update(dict.fromkeys(op_types, function))
        return function

    return register


def rules_between(opset: int, target: int) -> list[Mapping[str, Rule]]:
    """Return the rules to upgrade nodes from one operator set to another, oldest first.

    Args:
        opset: Version of the nodes' operator set.
        target: Version to upgrade to.

    Returns:
        For each operator set in between that has rules: the rule by operator.
    """
    return [rules for number, rules in sorted(_RULES.items()) if opset < number <= target]


# -------------------------------------------------------------------------------------------------- opset 7


@upgrade_rule(7, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Greater", "Less", "Equal")
def _use_numpy_broadcasting(rewrite: NodeUpgrade) -> None:
    """Align the second operand to axis `axis` of the first one by trailing axes of size 1."""
    axis, is_broadcast = rewrite.attribute("axis"), rewrite.attribute("broadcast", 0)
    rewrite.remove("axis", "broadcast")
    if is_broadcast and axis is not None:
        _append_axes(rewrite, axis)


@upgrade_rule(7, "PRelu")
def _align_slope_to_channels(rewrite: NodeUpgrade) -> None:
    """Align a slope of one axis to axis 1."""
    if rewrite.rank(1) in (1, None):
        _append_axes(rewrite, 1)


def _append_axes(rewrite: NodeUpgrade, axis: int) -> None:
    """Append axes of size 1 to the second input, so that its first axis meets axis `axis` of the first input.

    A negative axis counts from the last axis of the first input.
    """
    first, second = rewrite.node.input[:2]
    rank, own = rewrite.rank(0), rewrite.rank(1)
    if own is not None and (rank is not None or axis < 0):
        remaining = -axis if rank is None or axis < 0 else rank - axis
        count = max(remaining - own, 0)
        if count:
            axes = list(range(own, own + count))
            rewrite.node.input[1] = rewrite.add("Unsqueeze", [second], "aligned", axes=axes)
        return
    shape = rewrite.add("Shape", [second], "operand_shape")
    used = rewrite.add("Shape", [shape], "operand_rank")
    remaining_axes = rewrite.constant([abs(axis)], "axis")
    if axis >= 0:
        whole = rewrite.add("Shape", [rewrite.add("Shape", [first], "shape")], "rank")
        remaining_axes = rewrite.add("Sub", [whole, remaining_axes], "remaining")
    excess = rewrite.add("Sub", [remaining_axes, used], "excess")
    missing = rewrite.add("Max", [excess, rewrite.constant([0], "none")], "missing")
    one = numpy_helper.from_array(np.ones(1, np.int64))
    ones = rewrite.add("ConstantOfShape", [missing], "ones", value=one)
    aligned_shape = rewrite.add("Concat", [shape, ones], "aligned_shape", axis=0)
    rewrite.node.input[1] = rewrite.add("Reshape", [second, aligned_shape], "aligned")


@upgrade_rule(7, "Gemm")
def _drop_broadcast(rewrite: NodeUpgrade) -> None:
    """Drop `broadcast`: the third operand of a Gemm broadcasts as in numpy."""
    rewrite.remove("broadcast")


@upgrade_rule(7, "BatchNormalization", "Dropout")
def _drop_test_mode(rewrite: NodeUpgrade) -> None:
    """Drop `is_test`: inference is the only mode of a node with one output."""
    rewrite.remove("is_test")


@upgrade_rule(7, "RNN", "GRU", "LSTM")
def _drop_output_sequence(rewrite: NodeUpgrade) -> None:
    """Drop `output_sequence`: an output that is read has a name."""
    rewrite.remove("output_sequence")


@upgrade_rule(7, "Upsample")
def _join_scales(rewrite: NodeUpgrade) -> None:
    """Write the scales of height and width as a list of all axes."""
    height, width = rewrite.pop("height_scale", 1.0), rewrite.pop("width_scale", 1.0)
    rewrite.set(scales=[1.0, 1.0, height, width])
    if rewrite.text("mode") == "bilinear":
        rewrite.set(mode="linear")


# -------------------------------------------------------------------------------------------------- opset 9


@upgrade_rule(9, "BatchNormalization")
def _normalize_elements(rewrite: NodeUpgrade) -> None:
    """Flatten the elements of a sample to channels where each element has its own statistics (`spatial=0`)."""
    if rewrite.pop("spatial", 1):
        return
    x, *statistics = rewrite.node.input
    elements = rewrite.constant([-1], "elements")
    flat = rewrite.add("Flatten", [x], "flat", axis=1)
    rewrite.set_inputs(flat, *(rewrite.add("Reshape", [s, elements], "statistics") for s in statistics))
    _restore_shape(rewrite, x)


@upgrade_rule(9, "Upsample")
def _pass_scales(rewrite: NodeUpgrade) -> None:
    scales = np.asarray(rewrite.pop("scales"), np.float32)
    rewrite.set_inputs(rewrite.node.input[0], rewrite.constant(scales, "scales"))


@upgrade_rule(9, "Scan")
def _scan_samples(rewrite: NodeUpgrade) -> None:
    """Scan the samples of a batch one by one: Scan of opset 8 takes batches.

    A batch of one is squeezed. Otherwise another Scan, over the axis of the batch, is put around the node.
    """
    node = rewrite.node
    if node.input[0]:
        remedy = "export with opset 9 or later, or without lengths"
        raise rewrite.refusal("there must be no lengths of sequences", f"'{node.input[0]}'", remedy)
    directions = rewrite.pop("directions")
    if directions is not None:
        rewrite.set(scan_input_directions=directions)
    sizes = [rewrite.dims(index) for index in range(1, len(node.input))]
    if all(size is not None and size[:1] == [1] for size in sizes):
        rewrite.set_inputs(*(rewrite.add("Squeeze", [x], "sample", axes=[0]) for x in node.input[1:]))
        for index, name in enumerate(node.output):
            if name:
                sample, original = rewrite.divert_output(index, ".sample")
                rewrite.after.append(helper.make_node("Unsqueeze", [sample], [original], axes=[0]))
        return
    batches = [(name, rewrite.names.take(f"{name}.sample")) for name in node.input[1:]]
    outputs = [(name, rewrite.names.take(f"{name or rewrite.stem}.sample")) for name in node.output]
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    del inner.input[:], inner.output[:]
    inner.input.extend(sample for _, sample in batches)
    inner.output.extend(sample for _, sample in outputs)
    body = helper.make_graph(
        [inner],
        rewrite.names.take(f"{rewrite.stem}.samples"),
        [_sample_info(rewrite, name, sample) for name, sample in batches],
        [_sample_info(rewrite, name, sample) for name, sample in outputs],
    )
    rewrite.set_inputs(*(name for name, _ in batches))
    del node.attribute[:]
    rewrite.set(body=body, num_scan_inputs=len(batches))


def _sample_info(rewrite: NodeUpgrade, name: str, sample: str) -> onnx.ValueInfoProto:
    """Return the declaration of one sample of a batch."""
    info = onnx.ValueInfoProto(name=sample)
    if name in rewrite.types:
        info.type.CopyFrom(rewrite.types[name])
        if info.type.tensor_type.shape.dim:
            del info.type.tensor_type.shape.dim[0]
    return info


# ------------------------------------------------------------------------------------------------- opset 10


@upgrade_rule(10, "Slice")
def _pass_bounds(rewrite: NodeUpgrade) -> None:
    for index, name in enumerate(("starts", "ends", "axes"), start=1):
        rewrite.attribute_to_input(name, index)


@upgrade_rule(10, "TopK")
def _pass_count(rewrite: NodeUpgrade) -> None:
    rewrite.set_inputs(rewrite.node.input[0], rewrite.constant([rewrite.pop("k")], "k"))


@upgrade_rule(10, "Dropout")
def _give_mask_type(rewrite: NodeUpgrade) -> None:
    """Convert the mask to the element type of the data, which it had before it became boolean."""
    if len(rewrite.node.output) > 1 and rewrite.node.output[1]:
        dtype = helper.np_dtype_to_tensor_dtype(rewrite.float_dtype(0))
        mask, original = rewrite.divert_output(1, ".boolean")
        rewrite.after.append(helper.make_node("Cast", [mask], [original], to=dtype))


@upgrade_rule(10, "Upsample")
def _rename_to_resize(rewrite: NodeUpgrade) -> None:
    rewrite.node.op_type = "Resize"


# ------------------------------------------------------------------------------------------------- opset 11


@upgrade_rule(11, "Clip")
def _pass_limits(rewrite: NodeUpgrade) -> None:
    dtype = rewrite.float_dtype(0)
    inputs = [rewrite.node.input[0]]
    for name in ("min", "max"):
        value = rewrite.pop(name)
        inputs.append("" if value is None else rewrite.constant(np.asarray(value, dtype), name))
    rewrite.set_inputs(*inputs)


@upgrade_rule(11, "Pad")
def _pass_padding(rewrite: NodeUpgrade) -> None:
    value = rewrite.pop("value", 0.0)
    rewrite.attribute_to_input("pads", 1)
    if rewrite.text("mode", "constant") == "constant":
        rewrite.node.input.append(rewrite.constant(np.asarray(value, rewrite.float_dtype(0)), "value"))


@upgrade_rule(11, "Scatter")
def _rename_to_scatter_elements(rewrite: NodeUpgrade) -> None:
    rewrite.node.op_type = "ScatterElements"


@upgrade_rule(11, "Resize")
def _resize_asymmetrically(rewrite: NodeUpgrade) -> None:
    """State the computation of positions, which was fixed before opset 11: position = index / scale.

    The nearest element is the element before the position or, on an axis that shrinks, the element behind it. A node of
    opset 11 has one mode of rounding, so another node resizes the shrinking axes first. (ONNX's test
    `resize_downsample_nearest` of opset 10 and ONNX Runtime agree on this; the text of the operator says "floor".)
    """
    x, scales = rewrite.node.input
    rewrite.set(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    known = _known_values(rewrite, scales)
    if rewrite.text("mode", "nearest") == "nearest" and (known is None or (known < 1).any()):
        if known is None:
            one = rewrite.constant(np.ones(1, np.float32), "one")
            shrinking = rewrite.add("Min", [scales, one], "shrinking")
            scales = rewrite.add("Max", [scales, one], "growing")
        else:
            shrinking = rewrite.constant(np.minimum(known, 1), "shrinking")
            scales = rewrite.constant(np.maximum(known, 1), "growing")
        shrunk = rewrite.add(
            "Resize", [x, "", shrinking], "shrunk", coordinate_transformation_mode="asymmetric", nearest_mode="ceil"
        )
        x = shrunk
    rewrite.set_inputs(x, "", scales)


def _known_values(rewrite: NodeUpgrade, name: str) -> Array | None:
    """Return the elements of a constant, or None for a tensor that is computed."""
    tensor = rewrite.constants.get(name)
    return None if tensor is None else numpy_helper.to_array(tensor)


# -------------------------------------------------------------------------------------------- opsets 12, 13


@upgrade_rule(12, "Dropout")
def _drop_ratio(rewrite: NodeUpgrade) -> None:
    """Drop `ratio`, which only training reads."""
    rewrite.remove("ratio")


@upgrade_rule(13, "Softmax", "LogSoftmax", "Hardmax")
def _flatten_to_rows(rewrite: NodeUpgrade) -> None:
    """Flatten the axes from `axis` on to one, over which the result was computed."""
    rank, axis = rewrite.rank(0), rewrite.attribute("axis", 1)
    rewrite.set(axis=-1)
    if rank is not None and axis in (-1, rank - 1):
        return
    x = rewrite.node.input[0]
    rewrite.set_inputs(rewrite.add("Flatten", [x], "flat", axis=axis if rank is None or axis >= 0 else axis + rank))
    _restore_shape(rewrite, x)


def _restore_shape(rewrite: NodeUpgrade, x: str) -> None:
    """Give the first output the shape of a tensor."""
    shape = rewrite.add("Shape", [x], "shape")
    flat, original = rewrite.divert_output(0, "_intermediate")
    rewrite.after.append(helper.make_node("Reshape", [flat, shape], [original]))


@upgrade_rule(13, "ReduceSum", "Squeeze", "Unsqueeze")
@upgrade_rule(
    18,
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)
def _pass_axes(rewrite: NodeUpgrade) -> None:
    rewrite.attribute_to_input("axes", 1)


@upgrade_rule(13, "Split")
def _pass_parts(rewrite: NodeUpgrade) -> None:
    rewrite.attribute_to_input("split", 1)


# ----------------------------------------------------------------------------------------- opsets 16 to 21


@upgrade_rule(16, "RoiAlign")
def _keep_transformation(rewrite: NodeUpgrade) -> None:
    """State the default of `coordinate_transformation_mode`, which changed."""
    if rewrite.attribute("coordinate_transformation_mode") is None:
        rewrite.set(coordinate_transformation_mode="output_half_pixel")


@upgrade_rule(18, "Split")
def _count_parts(rewrite: NodeUpgrade) -> None:
    """State the number of equal parts."""
    if len(rewrite.node.input) < 2 or not rewrite.node.input[1]:
        rewrite.set(num_outputs=len(rewrite.node.output))


@upgrade_rule(20, "GridSample")
def _rename_modes(rewrite: NodeUpgrade) -> None:
    mode = rewrite.text("mode", "bilinear")
    rewrite.set(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@upgrade_rule(20, "DFT")
def _pass_axis(rewrite: NodeUpgrade) -> None:
    axis = rewrite.constant(np.asarray(rewrite.pop("axis", 1), np.int64), "axis")
    x, *length = rewrite.node.input
    rewrite.set_inputs(x, *(length or [""]), axis)


@upgrade_rule(21, "GroupNormalization")
def _repeat_parameters(rewrite: NodeUpgrade) -> None:
    """Repeat the scale and the bias of a group for each of its channels."""
    x, *parameters = rewrite.node.input
    groups = rewrite.constant([int(rewrite.attribute("num_groups", 1))], "groups")
    channels = rewrite.add("Shape", [x], "channels", start=1, end=2)
    size = rewrite.add("Div", [channels, groups], "group_size")
    expanded = rewrite.add("Concat", [groups, size], "expanded_shape", axis=0)
    column, flat = rewrite.constant([-1, 1], "column"), rewrite.constant([-1], "flat")
    repeated = []
    for parameter in parameters:
        by_group = rewrite.add("Reshape", [parameter, column], "by_group")
        by_channel = rewrite.add("Expand", [by_group, expanded], "by_channel")
        repeated.append(rewrite.add("Reshape", [by_channel, flat], "repeated"))
    rewrite.set_inputs(x, *repeated)
