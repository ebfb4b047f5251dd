# SPDX-License-Identifier: Apache-2.0
"""TOSA graphs in memory and their serialization; operators and attributes are those of TOSA 1.0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from mcugen.backends.npu.ethos_u.tosa.flatbuffer import Field, FlatTable, Scalar, Vector, write_file
from mcugen.hir.types import Array, Shape

TOSA_VERSION = (1, 0, 0)
"""Major, minor and patch number of the TOSA specification that files declare."""

IDENTIFIER = b"TOSA"
"""The four bytes that name the schema of TOSA files."""


class Op(IntEnum):
    """Operators of TOSA that the backend writes; the values are those of the schema.

    The attribute table of an operator has the same number in the schema.
    """

    CONV2D = 3
    DEPTHWISE_CONV2D = 5
    MATMUL = 7
    MAX_POOL2D = 8
    CLAMP = 11
    ADD = 15
    MAXIMUM = 26
    MINIMUM = 27
    MUL = 28
    SUB = 30
    TABLE = 31
    CLZ = 35
    REDUCE_MAX = 51
    REDUCE_MIN = 52
    REDUCE_SUM = 54
    CONCAT = 55
    PAD = 56
    RESHAPE = 57
    SLICE = 59
    TILE = 60
    TRANSPOSE = 61
    RESCALE = 66
    CONST = 67
    CONST_SHAPE = 75


class TosaType(IntEnum):
    """Element types of TOSA; the values are those of the schema."""

    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT48 = 6


TYPES_OF_ARRAYS = {np.dtype(np.int8): TosaType.INT8, np.dtype(np.int16): TosaType.INT16}
TYPES_OF_ARRAYS[np.dtype(np.int32)] = TosaType.INT32


SINGLE_ROUND = Scalar("I", 1)
"""Rounding mode of RESCALE: half of the last bit is added before the shift, so that ties round up."""

IGNORE_NAN = Scalar("I", 2)
"""Mode of comparisons for NaN, which integers do not have; operators need one all the same."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a TOSA graph.

    Attributes:
        name: Name of the tensor, unique in its graph.
        shape: Shape of the tensor.
        dtype: Type of the elements.
        data: Elements of a constant; None for other tensors.
    """

    name: str
    shape: Shape
    dtype: TosaType
    data: Array | None = None


@dataclass(frozen=True, eq=False)
class ShapeConstant:
    """A constant list of sizes, which operators such as RESHAPE read.

    Attributes:
        name: Name of the constant, unique in its graph.
        values: The sizes.
    """

    name: str
    values: tuple[int, ...]


Operand = Tensor | ShapeConstant
"""An input of an operation: a tensor, or a constant list of sizes."""


@dataclass(frozen=True, eq=False)
class TosaOperation:
    """An operation of a TOSA graph.

    Attributes:
        op: The operator.
        inputs: Its inputs.
        output: Its output.
        attributes: Fields of the operator's attribute table, by their number in the schema.
    """

    op: Op
    inputs: tuple[Operand, ...]
    output: Tensor
    attributes: tuple[Field, ...]


@dataclass
class TosaGraph:
    """A TOSA graph, to which operations are added in order.

    Attributes:
        inputs: The graph's inputs.
        outputs: The graph's outputs.
        operations: The operations in order; constants are not among them.
        constants: The constant tensors and lists of sizes.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    operations: list[TosaOperation] = field(default_factory=list)
    constants: list[Operand] = field(default_factory=list)

    def add_input(self, shape: Shape, dtype: TosaType) -> Tensor:
        """Add an input to the graph and return it."""
        self.inputs.append(Tensor(f"input{len(self.inputs)}", shape, dtype))
        return self.inputs[-1]

    def constant(self, data: Array, dtype: TosaType | None = None) -> Tensor:
        """Add a constant tensor and return it.

        Args:
            data: The elements.
            dtype: Type of the elements; None for the type of the array.
        """
        kind = TYPES_OF_ARRAYS[data.dtype] if dtype is None else dtype
        tensor = Tensor(f"const{len(self.constants)}", data.shape, kind, data)
        self.constants.append(tensor)
        return tensor

    def sizes(self, values: Sequence[int]) -> ShapeConstant:
        """Add a constant list of sizes and return it."""
        constant = ShapeConstant(f"sizes{len(self.constants)}", tuple(map(int, values)))
        self.constants.append(constant)
        return constant

    def add(
        self, op: Op, inputs: Sequence[Operand], shape: Shape, dtype: TosaType, attributes: Sequence[Field] = ()
    ) -> Tensor:
        """Add an operation and return its output.

        Args:
            op: The operator.
            inputs: Its inputs.
            shape: Shape of the output.
            dtype: Element type of the output.
            attributes: Fields of the operator's attribute table, by their number in the schema.
        """
        output = Tensor(f"t{len(self.operations)}", shape, dtype)
        self.operations.append(TosaOperation(op, tuple(inputs), output, tuple(attributes)))
        return output

    def serialize(self) -> bytes:
        """Return the graph as a TOSA file; equal graphs give equal bytes."""
        tensors = [*self.inputs, *(o.output for o in self.operations)]
        tensors += [c for c in self.constants if isinstance(c, Tensor)]
        block = FlatTable(
            [
                "main",
                [*map(_constant_operator, self.constants), *map(_operator, self.operations)],
                [_tensor(t) for t in tensors],
                [t.name for t in self.inputs],
                [t.name for t in self.outputs],
                [_shape(c) for c in self.constants if isinstance(c, ShapeConstant)],
            ]
        )
        version = FlatTable([*(Scalar("i", number) for number in TOSA_VERSION), Scalar("?", False)])
        return write_file(FlatTable([version, [FlatTable(["main", [block]])]]), IDENTIFIER)


def _tensor(tensor: Tensor) -> FlatTable:
    data = None if tensor.data is None else Vector("B", _little_endian(tensor))
    shape = Vector.of("i", tensor.shape)
    return FlatTable([tensor.name, shape, Scalar("I", tensor.dtype), data, Scalar("?", False), Scalar("?", False)])


def _little_endian(tensor: Tensor) -> bytes:
    """Return the elements of a constant in the byte order of files; int48 takes six bytes an element."""
    assert tensor.data is not None
    if tensor.dtype is not TosaType.INT48:
        return tensor.data.astype(tensor.data.dtype.newbyteorder("<")).tobytes()
    wide = np.ascontiguousarray(tensor.data.astype("<i8")).reshape(-1)
    return wide.view(np.uint8).reshape(-1, 8)[:, :6].tobytes()


def _shape(constant: ShapeConstant) -> FlatTable:
    rank = len(constant.values)
    data = Vector("B", Vector.of("q", constant.values).data)  # The schema stores int64 as bytes.
    return FlatTable([constant.name, Scalar("I", rank), data])


def _constant_operator(constant: Operand) -> FlatTable:
    op = Op.CONST if isinstance(constant, Tensor) else Op.CONST_SHAPE
    return FlatTable([Scalar("I", op), Scalar("B", op), FlatTable([]), None, [constant.name]])


def _operator(operation: TosaOperation) -> FlatTable:
    attributes = FlatTable(operation.attributes)
    names = [operand.name for operand in operation.inputs]
    return FlatTable([Scalar("I", operation.op), Scalar("B", operation.op), attributes, names, [operation.output.name]])
