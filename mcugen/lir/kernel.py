# SPDX-License-Identifier: Apache-2.0
"""Declaration of kernels, from which emission, templates, documents and tests follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from mcugen.core.errors import VerificationError
from mcugen.hir.graph import Node
from mcugen.hir.interpreter import Reference
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Access, Buffer, Double, Gathered, Instr, Operand, Overlap, Param, Wide
from mcugen.lir.spec import spec_of

if TYPE_CHECKING:
    from mcugen.lir.builder import Builder


UPDATABLE = "updatable"
"""Tuning flag: no code may depend on weights. Kernels that pack weights by their values lack it."""

HALVES = "float16-weights"
"""Tuning flag: weights that float16 represents are stored as float16 by all layers that have kernels for it."""

PAIRED_LOADS = "paired-loads"
"""Tuning flag: load a word beside each product instead of many at once, for CPUs that issue both in a cycle."""

WORD_WEIGHTS = "word-weights"
"""Tuning flag: load int8 weights by words, since each load stalls."""

SEPARATE_SUMS = "separate-sums"
"""Tuning flag: add float products by separate instructions, where that takes less time."""

HALF_SEPARATE_SUMS = "half-separate-sums"
"""Tuning flag: add every second float product separately, for half the time saved and half the instructions."""

SHORT_LOOPS = "short-loops"
"""Tuning flag: unroll long loops only a few times, to save code."""

SPENDING = "spending"
"""Tuning flag: spend flash and working memory on time. Without it, kernels that do so are used only by name."""

CHECKED = "checked-indices"
"""Tuning flag: the code checks every constant that determines an address or the end of a loop."""


@dataclass(frozen=True)
class Declared:
    """A member of a parameter struct or an option of a template, as its class declares it.

    `kind` is int (int32_t in C), Wide (int64_t), float, Double, or object for one whose value brings its type: float
    or Double as the kernel computes, and numbers of an expression. With `many` the value is a mapping of several
    members by name, which begin with the field's name.
    """

    name: str
    kind: type
    meaning: str
    many: bool = False
    is_trained: bool = False
    """Whether it follows from scales, zero points or weights: another training gives another."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """A group of members of a kernel's parameter struct; subclasses annotate each with its meaning and unit.

    A member is an int, Wide, float, Double or Real; `| None` where some variants of the kernel lack it; a mapping of
    names to numbers where their count depends on the layer (an axis each, say). A name that is a word of Python ends
    with an underscore, which C does not see.
    """

    by_place: ClassVar[bool] = False
    """Whether assembly reads them by where they lie, and no C by their names."""

    @classmethod
    def declared(cls) -> tuple[Declared, ...]:
        """Return the members in order."""
        return _declared(cls)  # type: ignore[arg-type]  # classes can be hashed

    def values(self) -> dict[str, Param]:
        """Return the members of this variant, each in its C type.

        Raises:
            VerificationError: An int needs more than 32 bits; whether it fits must not depend on a layer's values.
        """
        found: dict[str, Param] = {}
        for f, member in zip(fields(self), self.declared(), strict=True):
            value = getattr(self, f.name)
            if value is None:
                continue
            for name, number in value.items() if member.many else ((member.name, value),):
                found[name] = _typed(name, member.kind, number)
        return found


@dataclass(frozen=True, kw_only=True)
class Options:
    """Values that only a kernel's template sees: flags, C types, texts. Subclasses annotate each with its meaning.

    Equal options and equal baked parameters share one C function.
    """

    @classmethod
    def declared(cls) -> tuple[Declared, ...]:
        """Return the options in order."""
        return _declared(cls)  # type: ignore[arg-type]  # classes can be hashed

    def values(self) -> dict[str, object]:
        """Return the options by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


class ExpressionParams(Params):
    """A group whose members are not named by a template, but by expressions that are among its options."""


class ByAxis(Params):
    """A group whose members are told axis by axis: d0, x_s0, d1, x_s1; those without a number come first."""

    def values(self) -> dict[str, Param]:
        """Return the members by the axis numbers at the ends of their names, and within an axis as declared."""
        return dict(sorted(super().values().items(), key=lambda member: _axis(member[0])))


def _axis(name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else -1


Real = Annotated[float, "real"]
"""float or Double: as the kernel computes, see mcugen.lir.program.real_param."""

Trained = Annotated[int, "trained"]
"""An int that follows from scales, zero points or weights, as all floats and all Wide ones do."""


@cache
def _declared(cls: type) -> tuple[Declared, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_member(f.name.rstrip("_"), hints[f.name]) for f in fields(cls))


def _member(name: str, hint: Any) -> Declared:
    assert get_origin(hint) is Annotated, f"{name} needs a meaning: Annotated[…, meaning]"
    *marks, meaning = hint.__metadata__
    hint = hint.__origin__
    if get_origin(hint) in (UnionType, Union):
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    many = get_origin(hint) is not None and issubclass(get_origin(hint), Mapping)
    if many:
        hint = get_args(hint)[1]
    if get_origin(hint) is Annotated:
        marks, hint = list(hint.__metadata__), hint.__origin__
    kind = object if "real" in marks or hint not in (int, Wide, float, Double) else hint
    return Declared(name, kind, meaning, many, kind is not int or "trained" in marks)


def _typed(name: str, kind: type, value: Any) -> Param:
    if kind is object:
        return value  # type: ignore[no-any-return]
    if kind is int and not -(2**31) <= value < 2**31:
        raise VerificationError(f"parameter {name} must fit 32 bits", f"{value}", "report this as a bug of mcugen")
    return kind(value)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Role:
    """An operand of a kernel: its name is the C parameter's.

    `types` are the elements that it may have, () if any; `several` stands for operands whose names begin so: x0, x1, …
    """

    name: str
    access: Access
    meaning: str
    types: tuple[DType, ...] = ()
    optional: bool = False
    several: bool = False

    def takes(self, name: str) -> bool:
        """Whether an operand of that name is meant."""
        return name.startswith(self.name) if self.several else name == self.name


def reads(name: str, meaning: str, *types: DType, optional: bool = False, several: bool = False) -> Role:
    """Declare an operand that is read."""
    return Role(name, Access.IN, meaning, types, optional, several)


def writes(name: str, meaning: str, *types: DType, optional: bool = False, several: bool = False) -> Role:
    """Declare an operand that is written, whatever it held before."""
    return Role(name, Access.OUT, meaning, types, optional, several)


def updates(name: str, meaning: str, *types: DType, optional: bool = False, several: bool = False) -> Role:
    """Declare an operand that is read and written."""
    return Role(name, Access.INOUT, meaning, types, optional, several)


def scratch(name: str, meaning: str, *types: DType, optional: bool = False, several: bool = False) -> Role:
    """Working memory."""
    return Role(name, Access.SCRATCH, meaning, types, optional, several)


@dataclass(frozen=True)
class Kernel:
    """A way to compute a layer, named like its template `kernels/<name>.c.j2` and its C function.

    `what` says in a sentence what it computes, and how. `operands`, `params` and `options` are what the template
    reads, and nothing else, but for `without`: parameters of its groups that it has no use for. `optional` are groups
    that some of its variants lack, `baked` parameters that become literals in a copy of the function, `uniform` those
    that become so where all layers that share the function agree on them: no condition depends on these alone.

    `needs` are CPU features, `lacks` those with which it is not to be taken. `when` are conditions on the layer that
    must all hold; their docstrings' first lines say why the kernel was taken. `emit` makes its instruction (or several)
    at a site; None: the operator does. `extra` counts what its instructions grow with besides the terms of
    mcugen.kernels.cost; `way` names which of several ways it takes, whose costs are apart; `slowdown` is how many times
    that a layer takes which is cut otherwise than those that were measured; `code` are the bytes of its function, where
    these follow from the layer, as of what is written out. All of these take the operator's spec of
    the layer (mcugen.lir.spec). `any_size`: its parameters are polynomials of the sizes, so that these may be known at
    run time only.

    `varies` says why control flow depends on data, where it does; that of all others depends on sizes alone. `rounds`
    is what no loop of an instruction exceeds in a run that goes round as data says: 0 if only branches do; None: not
    known.

    `spends`: it takes more flash and working memory for less time than others want where memory is scarce (SPENDING).

    `loads` is how often it loads a word of constants while each element of these serves one product: 0.25 where a load
    serves four results, 4 where each product loads a byte, 0 where weights stay in registers while results go by.
    Where a word is loaded several times before others are, `sweeps` is how often it goes through all of them, at most.

    `products` is how many multiplications a multiply-accumulate of the layer takes.

    `stalls` are, by core, the cycles that a unit of `extra` takes beyond the instructions that were measured: loads of
    several words, and what waits for them; less than none where a core has loops of its own that issue two at once.

    A kernel of a `library` calls its functions: the C function returns a status, as what is linked may not fit.
    `evaluate` is for kernels that round otherwise than the operator's own reference; where it computes a node of a
    body, the operator's own would stand, so those are for nodes outside of bodies. `example` is a small model in ONNX's
    text form that takes the kernel, for tests, where ONNX has none that do.
    """

    name: str
    _: KW_ONLY
    what: str = ""
    operands: tuple[Role, ...] = ()
    params: tuple[type[Params], ...] = ()
    optional: tuple[type[Params], ...] = ()
    options: tuple[type[Options], ...] = ()
    baked: frozenset[str] = frozenset()
    uniform: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    when: tuple[Callable[[Any], bool], ...] = ()
    emit: Callable[[Any, Site], Call | list[Call]] | None = None
    extra: Callable[[Any], int] | None = None
    way: Callable[[Any], str] | None = None
    slowdown: Callable[[Any], float] | None = None
    code: Callable[[Any], int] | None = None
    any_size: bool = False
    spends: bool = False
    loads: float = 0.25
    products: float = 1.0
    sweeps: float = 1.0
    stalls: Mapping[str, float] = field(default_factory=dict, hash=False)
    library: str = ""
    varies: str = ""
    rounds: Callable[[Instr], int | None] | None = None
    evaluate: Reference | None = None
    example: str = ""

    def runs_on(self, features: frozenset[str]) -> bool:
        """Whether the CPU allows it, and what is asked for besides."""
        return self.needs <= features and not self.lacks & features

    def fits(self, node: Node, features: frozenset[str]) -> bool:
        """Whether the CPU, the shapes and the constants allow it."""
        if not self.runs_on(features):
            return False
        layer = spec_of(node)
        return all(holds(layer) for holds in self.when)

    def emitted(self, node: Node, builder: Builder) -> list[Call]:
        """Return the kernel's instructions for a node, usually one."""
        assert self.emit is not None, f"{self.name} has no way to be emitted"
        made = self.emit(spec_of(node), Site(builder, node, self))
        return made if isinstance(made, list) else [made]

    def extra_of(self, node: Node) -> int:
        """Return the additional cost term of a node; 0 if there is none."""
        return self.extra(spec_of(node)) if self.extra else 0

    def way_of(self, node: Node) -> str:
        """Return which of its variants the kernel uses for a node; "" if it has only one."""
        return self.way(spec_of(node)) if self.way else ""

    def slowdown_of(self, node: Node) -> float:
        """Return the factor of the instructions that the cost terms give."""
        return self.slowdown(spec_of(node)) if self.slowdown else 1.0

    def code_of(self, node: Node) -> int | None:
        """Bytes of its function, where they follow from the layer."""
        return self.code(spec_of(node)) if self.code else None

    @property
    def reason(self) -> str:
        """Why this kernel and not another, for the report."""
        reasons = ((holds.__doc__ or holds.__name__).strip().split("\n")[0] for holds in self.when)
        library = [self.library] * bool(self.library)
        return "; ".join([*library, *sorted(self.needs), *reasons]) or "portable C"

    def member(self, name: str) -> Declared | None:
        """Return the declaration of a member of the struct, or None.

        A declaration of several members has the names that begin with its own, unless another declaration has a
        longer part of the name, or all of it: `d` has d0, `d_s` has d_s0, and neither has `depth`.
        """
        exact = next((m for m in self.members if m.name == name and not m.many), None)
        prefixes = [m for m in self.members if m.many and name.startswith(m.name)]
        return exact or max(prefixes, key=lambda m: len(m.name), default=None)

    def meaning(self, name: str) -> str:
        """Return the meaning of a struct member; "" if it is not declared."""
        found = self.member(name)
        return found.meaning if found else ""

    def role(self, name: str) -> Role:
        """Return the declaration of an operand.

        Raises:
            VerificationError: The kernel has no such operand.
        """
        found = next((role for role in self.operands if role.takes(name)), None)
        if found is None:
            declared = ", ".join(role.name for role in self.operands)
            raise VerificationError(f"kernel {self.name} has no operand {name}", declared, "declare it")
        return found

    def place(self, name: str) -> int:
        """Return the position of an operand. Adjacent roles of several operands may be interleaved: x0, t1, x2."""
        at = self.operands.index(self.role(name))
        while at and self.operands[at].several and self.operands[at - 1].several:
            at -= 1
        return at

    @property
    def named_members(self) -> tuple[Declared, ...]:
        """Return the members that the template reads by name."""
        by_place = {m.name for group in self.params if group.by_place for m in group.declared()}
        return tuple(member for member in self.members if member.name not in by_place)

    @property
    def members(self) -> tuple[Declared, ...]:
        """Return the members of the parameter struct, in order."""
        return tuple(m for group in self.params for m in group.declared() if m.name not in self.without)


def no_rounds(instr: Instr) -> int:
    """Return 0: for kernels in which data decide branches, but no loop's end."""
    return 0


@dataclass(frozen=True)
class Call:
    """One instruction to be: a kernel on buffers by role, in the order of its C parameters.

    `params` and `options` are instances of the kernel's groups, in their order. `access` is of operands that are used
    otherwise than declared: a part of a larger result is INOUT. `overlaps` say how far its output may lie over inputs,
    `inplace` are pairs (output role, input role) that may begin at one address; `baked` are parameters that are
    literals besides the kernel's; `variant` is what the C function's name tells besides, `note` what the listing says
    (by default: the types); `gathers` is that of Instr.
    """

    kernel: Kernel
    operands: Mapping[str, Buffer]
    params: Sequence[Params] = ()
    options: Sequence[Options] = ()
    access: Mapping[str, Access] = field(default_factory=dict)
    overlaps: Sequence[Overlap] = ()
    inplace: Sequence[tuple[str, str]] = ()
    baked: frozenset[str] = frozenset()
    variant: str = ""
    note: str = ""
    gathers: Gathered | None = None

    def __post_init__(self) -> None:
        """VerificationError unless this is what the kernel declares."""
        kernel = self.kernel
        options, params = ([type(group) for group in given] for given in (self.options, self.params))
        if tuple(options) != kernel.options:
            self._refuse(f"{[t.__name__ for t in options]} for {[d.__name__ for d in kernel.options]}")
        if params != [group for group in kernel.params if group in params or group not in kernel.optional]:
            self._refuse(f"{[t.__name__ for t in params]} for {[d.__name__ for d in kernel.params]}")
        places = [kernel.place(name) for name in self.operands]
        missing = [r for r in kernel.operands if not r.optional and not any(map(r.takes, self.operands))]
        if places != sorted(places) or missing:
            self._refuse(f"operands {', '.join(self.operands)}")
        for name, buffer in self.operands.items():
            types = kernel.role(name).types
            if types and buffer.dtype not in types:
                self._refuse(f"{name} of {buffer.dtype.value}")

    def _refuse(self, found: str) -> None:
        raise VerificationError(f"kernel {self.kernel.name} must be called as declared", found, "report this as a bug")

    def operand_list(self) -> tuple[Operand, ...]:
        """Return the operands with their access."""
        return tuple(
            Operand(name, self.access.get(name, self.kernel.role(name).access), buffer)
            for name, buffer in self.operands.items()
        )

    def scalars(self) -> dict[str, Param]:
        """Return the members of the parameter struct, and those baked into the code."""
        found = {name: value for group in self.params for name, value in group.values().items()}
        return {name: value for name, value in found.items() if name not in self.kernel.without}

    def template_options(self) -> dict[str, object]:
        """Return the options of the template."""
        return {name: value for group in self.options for name, value in group.values().items()}


@dataclass(frozen=True)
class Site:
    """The context in which a kernel emits a node's instruction: its buffers, and new ones named after it."""

    builder: Builder
    node: Node
    kernel: Kernel

    @property
    def x(self) -> Buffer:
        """The first input's."""
        return self.input(0)

    @property
    def y(self) -> Buffer:
        """The first output's."""
        return self.output(0)

    def input(self, index: int) -> Buffer:
        """Return the buffer of an input that is present."""
        return self.builder.buffer(self.node.input(index))

    def output(self, index: int) -> Buffer:
        """Return the buffer of an output."""
        return self.builder.buffer(self.node.outputs[index])

    def const(self, name: str, data: Array) -> Buffer:
        """Return a constant in flash; identical ones are stored once."""
        return self.builder.const(self._called(name), data)

    def growing_const(self, name: str, data: Array) -> Buffer:
        """One that may go on behind its end; see Builder."""
        return self.builder.growing_const(self._called(name), data)

    def scratch(self, name: str, dtype: DType, count: int) -> Buffer:
        """Working memory of the instruction."""
        return self.builder.scratch(self._called(name), dtype, count)

    def call(
        self,
        operands: Mapping[str, Buffer],
        params: Sequence[Params] = (),
        options: Sequence[Options] = (),
        *,
        overlaps: Sequence[Overlap] = (),
        inplace: Sequence[tuple[str, str]] = (),
        variant: str = "",
        gathers: Gathered | None = None,
    ) -> Call:
        """Return the kernel's instruction."""
        return Call(
            self.kernel,
            operands,
            params,
            options,
            overlaps=overlaps,
            inplace=inplace,
            variant=variant,
            gathers=gathers,
        )

    @property
    def features(self) -> frozenset[str]:
        """Return the features of the CPU."""
        return self.builder.features

    @property
    def any_size(self) -> bool:
        """Whether it must be the same instruction at all sizes, but for parameters."""
        return self.builder.any_size

    def _called(self, name: str) -> str:
        return f"{self.node.outputs[0].name}.{name}"
