# SPDX-License-Identifier: Apache-2.0
"""Derivatives of elementwise operators, computed symbolically from their expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import ClassVar

from mcugen.expressions import functions as fn
from mcugen.expressions.derivative import NoDerivative, derivative, substituted
from mcugen.expressions.nodes import Argument, Constant, Expression, call
from mcugen.expressions.parts import parts
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, TensorType
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.lir.program import real_param
from mcugen.ops.conversion import Cast
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.gradient.rule import Backward, Parts, derivative_of
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.pointwise import Binary, Unary


def _sigmoid(x: Expression) -> Expression:
    return 1 / (1 + call(fn.EXP, -x))


def _of_sigmoid(x: Expression) -> Expression:
    return _sigmoid(x) * (1 - _sigmoid(x))


def _of_swish(x: Expression, a: Expression) -> Expression:
    return _sigmoid(a * x) * (1 + a * x * (1 - _sigmoid(a * x)))


_STABLE: Mapping[str, Callable[..., Expression]] = {"Sigmoid": _of_sigmoid, "Swish": _of_swish, "Softplus": _sigmoid}
"""Derivatives of functions whose derivative by rule would be ∞/∞ or discontinuous for some numbers."""


class Slope(Elementwise):
    """y = gradient · ∂f/∂x[index]: the gradient of an elementwise operator f with respect to one input.

    The inputs are the gradient of f's result, then those inputs of f that the derivative depends on.

    Attributes:
        of: The operator f.
        index: Index of the input of f with respect to which f is differentiated.
        dtypes: Element types of all inputs of f.
        reads: Indices of the inputs of f that are operands here.
    """

    mnemonic: ClassVar[str] = "slope"
    of: Elementwise = field(default_factory=Elementwise)
    index: int = 0
    dtypes: tuple[DType, ...] = ()
    reads: tuple[int, ...] = ()

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: the gradient's type."""
        return dtypes[0]

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the expression of the gradient times the derivative."""
        slope = self.slope(dict(zip(self.reads, args[1:], strict=True)), scalar)
        return args[0] * (Constant(0, args[0].dtype) if slope is None else slope)

    def slope(self, elements: Mapping[int, Expression], scalar: Scalars) -> Expression | None:
        """Return the derivative ∂f/∂x[index] as an expression; None if it is 0 everywhere.

        Args:
            elements: Elements of f's inputs, by input index.
            scalar: Adds a number as a parameter of the kernel, and returns the C variable that holds it.

        Raises:
            NoDerivative: f has no derivative in this input.
        """
        args = [elements.get(i, formal(i, dtype)) for i, dtype in enumerate(self.dtypes)]
        x = args[self.index]
        if isinstance(self.of, Unary) and self.of.function in _STABLE:
            return _STABLE[self.of.function](x, *(scalar(real_param(c, x.dtype)) for c in self.of.constants))
        by = Argument("by", x.dtype)  # the same tensor may be read as another input, too
        args[self.index] = by
        types = tuple(TensorType((), dtype) for dtype in self.dtypes)
        value = self.of.expression(Signature(types, self.of.infer(*types)), args, scalar)
        slope = derivative(value, by)
        return None if slope is None else substituted(slope, {by: x})


def formal(index: int, dtype: DType) -> Argument:
    """Return the variable that stands for an element of input `index` in a derivative."""
    return Argument(f"x{index}", dtype)


@derivative_of(Elementwise)
def _of_elementwise(back: Backward, op: Elementwise, node: Node, gradient: Value) -> Parts:
    """Return the gradients with respect to each input."""
    if op.tables or any(v is not None and v.type.quant is not None for v in (*node.inputs, *node.outputs)):
        raise Refusal("only operators on floats can be differentiated", node.place, "train only the layers after it")
    return {i: partial(_by_input, back, node, gradient, i) for i in range(len(node.inputs))}


def _by_input(back: Backward, node: Node, gradient: Value, index: int) -> Value | None:
    x, op = node.input(index), node.op
    assert isinstance(op, Elementwise)
    dtypes = tuple(node.input(i).type.dtype for i in range(len(node.inputs)))
    slope = Slope(op, index, dtypes)
    expression = _found(slope, node)
    if expression is None:
        return None
    read = set(parts(expression))
    reads = tuple(i for i, dtype in enumerate(dtypes) if formal(i, dtype) in read)
    if expression == Constant(1, expression.dtype):
        by = gradient
    elif len(reads) == 1 and expression == formal(reads[0], dtypes[reads[0]]):
        by = back.emit(Binary("Mul"), gradient, node.input(reads[0]))
    else:
        by = back.emit(replace(slope, reads=reads), gradient, *(node.input(i) for i in reads))
    by = by if by.type.dtype is x.type.dtype else back.emit(Cast(x.type.dtype), by)
    return back.summed_to(by, x.type.shape)


def _found(slope: Slope, node: Node) -> Expression | None:
    """Return the slope's expression; None if it is 0.

    Raises:
        Refusal: The function has no derivative rule.
    """
    try:
        return slope.slope({}, Scalars())
    except NoDerivative as error:
        rule, remedy = "an operator on the way must have a derivative", "train only the layers after it"
        raise Refusal(rule, f"{node.place}, which computes {error}", remedy) from error
