# SPDX-License-Identifier: Apache-2.0
"""The kernel of elementwise operators: one loop with broadcasting that computes several operators in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from mcugen.expressions import mve
from mcugen.expressions.c import c_value
from mcugen.expressions.cost import is_short
from mcugen.expressions.nodes import Expression, Parameter
from mcugen.expressions.parts import headers, parameters
from mcugen.hir.graph import Node
from mcugen.hir.types import DType, TensorType
from mcugen.kernels.common.strided_loops import numbered
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, Kernel, Options, Params, Real, reads, writes
from mcugen.lir.program import Param, param_dtype
from mcugen.lir.traversal import Traversal, collapse, overlap
from mcugen.numerics.fixedpoint import is_quantized

TypedExpression = tuple[TensorType, Expression]
"""The element type of an elementwise step's result, and the expression that computes one element."""

MAX_SHARED_CONSTANTS = 8
"""Largest number of integer constants in a loop whose C function several layers share, with the constants as
parameters. More constants do not stay in registers, and would be loaded for each element."""

SHORT_LOOP_UNROLL = 4
"""Unroll factor, in elements, of an elementwise loop with a short body."""


class Scalars:
    """Callable that turns the constants of elementwise expressions into kernel parameters, and collects these.

    A call with a constant adds a parameter k0, k1, … with this value, and returns the C variable that stands for the
    constant in the expression. Layers that differ only in constants then share one C function.

    Attributes:
        params: The collected parameters, by name.
        features: CPU features, and tuning flags (names that select variants of kernels).
    """

    def __init__(self, features: frozenset[str] = frozenset()) -> None:
        self.params: dict[str, Param] = {}
        self.features = features

    def __call__(self, value: Param) -> Parameter:
        """Add a parameter with this value, and return the C variable that holds the value at run time.

        Layers that differ only in such values share their code.
        """
        name = f"k{len(self.params)}"
        self.params[name] = value
        return Parameter(name, value, param_dtype(value))

    def locals_of(self, expressions: Sequence[Expression]) -> list[LoadedParameter]:
        """Return the collected parameters that some expressions use, as declarations of local variables of a loop.

        A kernel copies these parameters to local variables, because a C compiler must assume that stores to `y` change
        the parameters.

        Args:
            expressions: The expressions of a loop body.
        """
        used = {p.name for e in expressions for p in parameters(e)}
        return [LoadedParameter(name, param_dtype(v).c) for name, v in self.params.items() if name in used]


class ReusedScalars(Scalars):
    """Callable that turns the constants of expressions into kernel parameters, and reuses those of another Scalars.

    A constant that equals an existing parameter gets the C variable of that parameter; other constants add one. The
    vectorized form of a loop thus shares the parameters of the plain form.
    """

    def __init__(self, scalars: Scalars) -> None:
        super().__init__(scalars.features)
        self.params = scalars.params
        self._spell = scalars

    def __call__(self, value: Param) -> Parameter:
        """Return the C variable that holds `value`, a new one if no parameter has this value."""
        same = (name for name, v in self.params.items() if type(v) is type(value) and v == value)
        name = next(same, None)
        return self._spell(value) if name is None else Parameter(name, value, param_dtype(value))


class Literals(Scalars):
    """Callable that turns the int32 constants of elementwise expressions into C literals.

    It is for loops with many constants, which would not stay in registers as parameters. Other numbers still become
    kernel parameters.
    """

    def __call__(self, value: Param) -> Parameter:
        """Return a C literal if the value is an int32, else a variable."""
        if isinstance(value, float) or not -(2**31) < value < 2**31:
            return super().__call__(value)
        return Parameter(str(value) if value >= 0 else f"({value})", value, DType.INT32)


# ---------------------------------------------------------------------------------------------- declaration


@dataclass(frozen=True)
class LoadedParameter:
    """A local C variable of an elementwise kernel that holds the kernel parameter of the same name.

    Attributes:
        name: Name of the local variable and of the kernel parameter.
        ctype: C type of the local variable.
    """

    name: str
    ctype: str


@dataclass(frozen=True)
class Load:
    """The C text with which the innermost loop of an elementwise kernel reads one input.

    Attributes:
        role: Operand role of the input.
        value: Name of the variable that holds an element.
        ctype: C type of the input's elements.
        value_ctype: C type of the variable that holds an element.
        moves: Whether each iteration of the innermost loop reads another element; if False, all iterations read the
            same one.
        axes: Numbers of the outer loops whose iterations advance the input's position.
        vector: Declaration of a Helium variable of four elements; empty if the loop is not vectorized.
        four: C expression that loads four elements to a Helium vector.
        few: C expression that loads the last elements (up to four) of a loop, with a Helium predicate.
    """

    role: str
    value: str
    ctype: str
    value_ctype: str
    moves: bool
    axes: tuple[int, ...]
    vector: str = ""
    four: str = ""
    few: str = ""


class LoopParams(Params):
    """Kernel parameters of an elementwise loop: sizes and strides of the loops, and constants of the expressions."""

    count: Annotated[Mapping[str, int], "trip count of this loop"]
    x: Annotated[Mapping[str, int], "stride of this input in this loop, in elements"]
    k: Annotated[Mapping[str, Real], "a constant of the formula"]


class LoopOptions(Options):
    """Template options with the C text of an elementwise loop, which computes one or several operators per element.

    `lines` compute one element in plain C, `vectors` compute four elements with Helium. `scalars` and `vector_scalars`
    are the kernel parameters that they use, each copied to a local variable.
    """

    steps: Annotated[str, "names of the operators, for the comment"]
    rank: Annotated[int, "loops"]
    loads: Annotated[list[Load], "how inputs are read"]
    lines: Annotated[list[str], "C declarations, each with the result of one operator"]
    vectors: Annotated[
        list[str], "declarations for four elements with Helium; empty if some operator cannot be vectorized"
    ]
    real: Annotated[bool, "whether vectors have floats, which needs Helium with floating point"]
    store: Annotated[tuple[str, str], "statements of Helium that store four elements, and the last few"]
    scalars: Annotated[list[LoadedParameter], "parameters that lines use"]
    headers: Annotated[list[str], "C headers of the functions that lines call"]
    vector_scalars: Annotated[list[LoadedParameter], "parameters that vectors use"]
    unroll: Annotated[int, "unroll factor of the innermost loop"]
    result: Annotated[str, "variable of the result"]


ELEMENTWISE = Kernel(
    "elementwise",
    what="elementwise operators, several in a row in one loop, with broadcasting; four elements at a time with Helium",
    operands=(
        reads("x", "inputs, by number", several=True),
        reads("t", "tables, by number", several=True, optional=True),
        writes("y", "output"),
    ),
    params=(LoopParams,),
    options=(LoopOptions,),
)
"""Kernel of elementwise operators: one loop computes a single operator, or several consecutive ones."""

# ------------------------------------------------------------------------------------------------- lowering


@dataclass(frozen=True)
class Loop:
    """The computation of an elementwise loop, as expressions over the elements of a node's inputs.

    Attributes:
        steps: Names of the operators that the loop computes, in order.
        tables: Numbers of the inputs that are lookup tables, which every iteration may read as a whole.
        scalar: Collector of the constants in the expressions, which become kernel parameters.
        plain: Type and expression of the result of each operator, over the variables v0, v1, … of the inputs and of
            earlier results (t1 if input 1 is a table).
        helium: Type and expression of the result of each operator for four elements, over q0, q1, …; None if an
            operator cannot be vectorized.
    """

    steps: Sequence[str]
    tables: frozenset[int]
    scalar: Scalars
    plain: Sequence[TypedExpression]
    helium: Sequence[TypedExpression] | None

    def name(self, index: int) -> str:
        """Return the kernel's operand role of input `index`: x and its number, or t and its number for a table."""
        return f"{'t' if index in self.tables else 'x'}{index}"


def emit_loop(node: Node, builder: Builder, loop: Loop) -> None:
    """Emit an elementwise loop over all elements of a node's output, with broadcasting of the inputs.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        loop: The computation of one element.
    """
    out, count = node.output, len(node.inputs)
    streams = [i for i in range(count) if i not in loop.tables]
    dims, strides = collapse(out.type.shape, [node.input(i).type.shape for i in streams])
    walks = dict(zip(streams, strides, strict=True))
    steps = {
        f"{loop.name(i)}_stride{axis}": stride
        for i, walk in walks.items()
        for axis, stride in enumerate(walk[:-1])
        if stride
    }
    order = Traversal.forward(out.type.count)
    dense = [i for i in streams if node.input(i).type.count == out.type.count and not node.input(i).is_constant]
    call = Call(
        ELEMENTWISE,
        {**{loop.name(i): builder.buffer(node.input(i)) for i in range(count)}, "y": builder.buffer(out)},
        [LoopParams(count=numbered("count", dims), x=steps, k=loop.scalar.params)],
        [_options(node, loop, walks, is_small=builder.optimize == "flash")],
        overlaps=[
            allowed for i in dense for allowed in overlap(node.input(i).type, out.type, order, into=loop.name(i))
        ],
        variant="_".join(loop.steps),
    )
    builder.call(node, call)


def _options(node: Node, loop: Loop, walks: Mapping[int, Sequence[int]], is_small: bool) -> LoopOptions:
    """Return the template options; `walks` are strides by input, one for each loop."""
    first, out = len(node.inputs), node.output.type
    last = first + len(loop.steps) - 1
    plain, helium = [e for _, e in loop.plain], loop.helium or ()
    vectors = [f"const {mve.TYPES[t.dtype]} q{i} = {mve.helium_text(e)};" for i, (t, e) in enumerate(helium, first)]
    return LoopOptions(
        steps=" ".join(loop.steps),
        rank=len(next(iter(walks.values()))),
        loads=[_load(loop.name(i), i, node.input(i).type, walk, bool(vectors)) for i, walk in walks.items()],
        lines=[
            f"const {out.dtype.c if i == last else _computed_in(t)} v{i} = {c_value(e)};"
            for i, (t, e) in enumerate(loop.plain, first)
        ],
        vectors=vectors,
        real=DType.FLOAT32 in (out.dtype, *(node.input(i).type.dtype for i in walks)),
        store=mve.store(out.dtype, "y", f"q{last}") if vectors else ("", ""),
        scalars=loop.scalar.locals_of(plain),
        headers=sorted({h for e in plain for h in headers(e)}),
        vector_scalars=loop.scalar.locals_of([e for _, e in helium]),
        unroll=SHORT_LOOP_UNROLL if is_short(plain) and not is_small else 1,
        result=f"v{last}",
    )


def _load(role: str, index: int, tensor: TensorType, walk: Sequence[int], has_vectors: bool) -> Load:
    moves, dtype, value = walk[-1] != 0, tensor.dtype, f"v{index}"
    load = Load(
        role=role,
        value=value,
        ctype=dtype.c,
        value_ctype=_computed_in(tensor),
        moves=moves,
        axes=tuple(axis for axis, stride in enumerate(walk[:-1]) if stride),
    )
    if not has_vectors:
        return load
    four, few = mve.load(dtype, f"a{role}"), mve.load_few(dtype, f"a{role}")
    if not moves:
        four = few = mve.spread(dtype, value)
    return replace(load, vector=f"{mve.TYPES[dtype]} q{index}", four=four, few=few)


def _computed_in(tensor: TensorType) -> str:
    """Return the C type of a variable for an element; 32 bits for quantized values, whatever the width of int."""
    return DType.INT32.c if is_quantized(tensor) else tensor.dtype.c
