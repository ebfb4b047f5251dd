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

Typed = tuple[TensorType, Expression]
"""The type of a step's result, and its expression."""

MOST_SHARED = 8
"""Most integer constants of a loop that is shared by layers: further ones do not stay in registers, and are loaded for
each element."""

SHORT_LOOP_UNROLL = 4
"""Unroll factor of a short loop."""


class Scalars:
    """Collector of the per-layer constants of expressions as kernel parameters; `features` are those of the CPU."""

    def __init__(self, features: frozenset[str] = frozenset()) -> None:
        self.params: dict[str, Param] = {}
        self.features = features

    def __call__(self, value: Param) -> Parameter:
        """Return the local variable that holds `value` at run time.

        Layers that differ only in such values share their code.
        """
        name = f"k{len(self.params)}"
        self.params[name] = value
        return Parameter(name, value, param_dtype(value))

    def locals_of(self, expressions: Sequence[Expression]) -> list[LoadedParameter]:
        """Return the local variables that these expressions use.

        Parameters are copied to local variables because, as far as C knows, stores through `y` could change what `p`
        points to.
        """
        used = {p.name for e in expressions for p in parameters(e)}
        return [LoadedParameter(name, param_dtype(v).c) for name, v in self.params.items() if name in used]


class ReusedScalars(Scalars):
    """Collector that reuses the variables of another one for equal values before it adds new ones."""

    def __init__(self, scalars: Scalars) -> None:
        super().__init__(scalars.features)
        self.params = scalars.params
        self._spell = scalars

    def __call__(self, value: Param) -> Parameter:
        """Return the variable that holds `value`."""
        same = (name for name, v in self.params.items() if type(v) is type(value) and v == value)
        name = next(same, None)
        return self._spell(value) if name is None else Parameter(name, value, param_dtype(value))


class Literals(Scalars):
    """Collector that writes integers as literals where they are used."""

    def __call__(self, value: Param) -> Parameter:
        """Return a literal if the value is an int32, else a variable."""
        if isinstance(value, float) or not -(2**31) < value < 2**31:
            return super().__call__(value)
        return Parameter(str(value) if value >= 0 else f"({value})", value, DType.INT32)


# ---------------------------------------------------------------------------------------------- declaration


@dataclass(frozen=True)
class LoadedParameter:
    """A local variable that holds a parameter of the same name."""

    name: str
    ctype: str


@dataclass(frozen=True)
class Load:
    """The way in which an input is read: one element per iteration if it `moves`, else one for all iterations.

    `axes` are the outer loops whose iterations move it. `vector` declares a variable of four elements, which `four`
    loads; `few` loads the last ones.
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


@dataclass(frozen=True, kw_only=True)
class LoopParams(Params):
    """Parameters of the loops and the formula."""

    d: Annotated[Mapping[str, int], "trips of this loop"]
    x: Annotated[Mapping[str, int], "elements of this input from trip to trip of this loop"]
    k: Annotated[Mapping[str, Real], "a number of the formula"]


@dataclass(frozen=True, kw_only=True)
class LoopOptions(Options):
    """Template options with the C text of a loop."""

    steps: Annotated[str, "names of the operators, for the comment"]
    rank: Annotated[int, "loops"]
    loads: Annotated[list[Load], "how inputs are read"]
    lines: Annotated[list[str], "declarations, each of what one operator computes"]
    vectors: Annotated[list[str], "the same of four elements by Helium, if all can be"]
    real: Annotated[bool, "whether Helium must have floats"]
    store: Annotated[tuple[str, str], "statements of Helium that store four elements, and the last few"]
    scalars: Annotated[list[LoadedParameter], "parameters that lines use"]
    headers: Annotated[list[str], "of functions that lines call"]
    vector_scalars: Annotated[list[LoadedParameter], "parameters that vectors use"]
    unroll: Annotated[int, "elements at a time"]
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

# ------------------------------------------------------------------------------------------------- lowering


@dataclass(frozen=True)
class Loop:
    """The computation of a loop over a node's inputs, of which `tables` are read as a whole.

    `plain` has the type and expression of each step, of variables v0, v1, … (t1 where input 1 is a table); `helium` has
    the same for four elements (q0, q1, …), if all steps can be vectorized.
    """

    steps: Sequence[str]
    tables: frozenset[int]
    scalar: Scalars
    plain: Sequence[Typed]
    helium: Sequence[Typed] | None

    def name(self, index: int) -> str:
        """Return the role of an input."""
        return f"{'t' if index in self.tables else 'x'}{index}"


def emit_loop(node: Node, builder: Builder, loop: Loop) -> None:
    """Emit the call of a loop over the elements of a node's output.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        loop: The computation.
    """
    out, count = node.output, len(node.inputs)
    streams = [i for i in range(count) if i not in loop.tables]
    dims, strides = collapse(out.type.shape, [node.input(i).type.shape for i in streams])
    walks = dict(zip(streams, strides, strict=True))
    steps = {
        f"{loop.name(i)}_s{axis}": stride
        for i, walk in walks.items()
        for axis, stride in enumerate(walk[:-1])
        if stride
    }
    order = Traversal.forward(out.type.count)
    dense = [i for i in streams if node.input(i).type.count == out.type.count and not node.input(i).is_constant]
    call = Call(
        ELEMENTWISE,
        {**{loop.name(i): builder.buffer(node.input(i)) for i in range(count)}, "y": builder.buffer(out)},
        [LoopParams(d=numbered("d", dims), x=steps, k=loop.scalar.params)],
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
