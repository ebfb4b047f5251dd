# SPDX-License-Identifier: Apache-2.0
"""Declaration of kernels: their operands, parameters, conditions and costs.

Instructions, templates, documents and tests are derived from the declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from mcugen.core.errors import VerificationError
from mcugen.core.frozen import FrozenByName
from mcugen.hir.graph import Node
from mcugen.hir.interpreter import Reference
from mcugen.hir.types import Array, DType, Rounding
from mcugen.lir.program import Access, Buffer, Double, Gathered, Instr, Operand, Overlap, Param, Wide
from mcugen.lir.spec import spec_of

if TYPE_CHECKING:
    from mcugen.lir.builder import Builder


UPDATABLE = "updatable"
"""Tuning flag: weights may be replaced later, so no code may depend on their values.

Kernels that pack weights by their values exclude this flag (Kernel.lacks).
"""

FLOAT16_WEIGHTS = "float16-weights"
"""Tuning flag: weights that float16 represents are stored as float16 by all layers that have kernels for it."""

PAIRED_LOADS = "paired-loads"
"""Tuning flag: pair each product with the load of one word, for CPUs that issue both in one cycle."""

WORD_WEIGHTS = "word-weights"
"""Tuning flag: load four int8 weights as one word, for memories on which each load stalls."""

SEPARATE_SUMS = "separate-sums"
"""Tuning flag: add float products by separate instructions, for cores on which a fused multiply-add is slower."""

HALF_SEPARATE_SUMS = "half-separate-sums"
"""Tuning flag: add every second float product separately; saves half the time of SEPARATE_SUMS for half its code."""

SHORT_LOOPS = "short-loops"
"""Tuning flag: unroll long loops only a few times, to save code."""

MEMORY_FOR_SPEED = "spending"
"""Tuning flag: allow kernels that take more flash or scratch memory to save time (Kernel.spends).

Without the flag, such kernels are used only if the user names them.
"""

HARD_FLOATS = "hard-floats"
"""Tuning flag: the compiler uses an FPU, even if kernels are in plain C alone and may not."""

CHECKED = "checked-indices"
"""Tuning flag: the code checks every constant that determines an address or the end of a loop."""


@dataclass(frozen=True)
class DeclaredMember:
    """A member of a kernel's parameter struct, or a template option, as its Params or Options class declares it.

    Attributes:
        name: Name of the member, or the beginning of the names if the declaration stands for several members.
        kind: Type of the member: int (int32_t in C), Wide (int64_t), float or Double; object if the type varies by
            layer.
        meaning: Description of the member's meaning, with the unit.
        many: Whether the declaration stands for several members with numbered names: the value is a mapping of names
            that begin with `name` to numbers.
        is_trained: Whether the value follows from scales, zero points or weights, so that training the model again
            changes it.
    """

    name: str
    kind: type
    meaning: str
    many: bool = False
    is_trained: bool = False


class Declaration(FrozenByName):
    """Base class of groups of names that a kernel declares: struct members (Params) or template options (Options).

    Subclasses annotate each name with its type and its meaning.
    """

    @classmethod
    def declared(cls) -> tuple[DeclaredMember, ...]:
        """Return the declarations of the group's members, in the order of the annotations and of the C struct."""
        return _members(cls)  # type: ignore[arg-type]  # classes can be hashed


class Params(Declaration):
    """Base class of groups of members of a kernel's parameter struct; subclasses annotate each with meaning and unit.

    A member is an int, Wide, float, Double or Real; `| None` if some variants of the kernel lack the member; a mapping
    of names to numbers if the number of members depends on the layer, for example one for each axis. A member whose C
    name is a Python keyword has a trailing underscore, which is removed in C.

    Attributes:
        by_place: Whether assembly reads the members by their offsets in the struct, and no C code by their names.
    """

    by_place: ClassVar[bool] = False

    def values(self) -> dict[str, Param]:
        """Return the values of the group's members by name, each in its C type.

        Members that the layer lacks are absent.

        Raises:
            VerificationError: An int needs more than 32 bits; whether it fits must not depend on a layer's values.
        """
        values: dict[str, Param] = {}
        for f, member in zip(fields(self), self.declared(), strict=True):
            value = getattr(self, f.name)
            if value is None:
                continue
            for name, number in value.items() if member.many else ((member.name, value),):
                values[name] = _convert(name, member.kind, number)
        return values


class Options(Declaration):
    """Base class of groups of values that only a kernel's template sees: flags, C types, texts.

    Subclasses annotate each with its meaning. Layers with equal options and equal baked parameters (literals in the
    code) share one C function.
    """

    def values(self) -> dict[str, object]:
        """Return the values of the group's options for one layer, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


class ExpressionParams(Params):
    """Base class of kernel parameters that the text of a template never names.

    They are read by C expressions that the template inserts as options. Examples are the constants of an activation
    function whose C text is an option.
    """


class ByAxis(Params):
    """Parameters with one value per axis, whose names end with the axis number: count0, x_stride0, count1.

    Members without a number come first.
    """

    def values(self) -> dict[str, Param]:
        """Return the values of the members by name, sorted by the axis numbers at the ends of their names.

        Members of one axis are in the order in which they are declared.
        """
        return dict(sorted(super().values().items(), key=lambda member: _axis(member[0])))


def _axis(name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else -1


Real = Annotated[float, "real"]
"""Type of a member that is float or Double in C, as the kernel computes (mcugen.lir.program.real_param)."""

Trained = Annotated[int, "trained"]
"""Type of an int member that follows from scales, zero points or weights, as all float and Wide members do."""


def _requirement(condition: Callable[[Any], bool]) -> str:
    """Return what a condition requires, from its docstring's first line "Require …."; any other first line is kept."""
    summary = (condition.__doc__ or condition.__name__).strip().split("\n")[0]
    if not summary.startswith("Require "):
        return summary
    return summary.removeprefix("Require ").removeprefix("that ").removesuffix(".")


@cache
def _members(cls: type) -> tuple[DeclaredMember, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_member(f.name.rstrip("_"), hints[f.name]) for f in fields(cls))


def _member(name: str, hint: Any) -> DeclaredMember:
    assert get_origin(hint) is Annotated, f"{name} needs a meaning: Annotated[…, meaning]"
    *marks, meaning = hint.__metadata__
    hint = hint.__origin__
    if get_origin(hint) in (UnionType, Union):
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    origin = get_origin(hint)  # Annotated is no class from Python 3.13 on.
    many = isinstance(origin, type) and issubclass(origin, Mapping)
    if many:
        hint = get_args(hint)[1]
    if get_origin(hint) is Annotated:
        marks, hint = list(hint.__metadata__), hint.__origin__
    kind = object if "real" in marks or hint not in (int, Wide, float, Double) else hint
    return DeclaredMember(name, kind, meaning, many, kind is not int or "trained" in marks)


def _convert(name: str, kind: type, value: Any) -> Param:
    if kind is object:
        return value  # type: ignore[no-any-return]
    if kind is int and not -(2**31) <= value < 2**31:
        raise VerificationError(f"parameter {name} must fit 32 bits", f"{value}", "report this as a bug of mcugen")
    return kind(value)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Role:
    """The declaration of one operand of a kernel, which is a parameter of its C function.

    Attributes:
        name: Name of the C parameter; with `several`, the beginning of the names x0, x1, …
        access: Whether the kernel reads or writes the operand, or uses it as working memory.
        meaning: Description of the operand for documentation.
        types: Allowed element types; an empty tuple allows all types.
        optional: Whether some layers lack the operand.
        several: Whether the role stands for any number of operands.
        holds: Indices of the node's inputs whose constants the operand contains, as they are or packed.
    """

    name: str
    access: Access
    meaning: str
    types: tuple[DType, ...] = ()
    optional: bool = False
    several: bool = False
    holds: tuple[int, ...] = ()

    def takes(self, name: str) -> bool:
        """Return whether this role declares an operand with the given name: the role's own name, or a numbered one."""
        return name.startswith(self.name) if self.several else name == self.name


def reads(
    name: str,
    meaning: str,
    *types: DType,
    optional: bool = False,
    several: bool = False,
    holds: tuple[int, ...] = (),
) -> Role:
    """Declare an operand that a kernel only reads; the arguments are the attributes of Role."""
    return Role(name, Access.IN, meaning, types, optional, several, holds)


def writes(name: str, meaning: str, *types: DType, optional: bool = False, several: bool = False) -> Role:
    """Declare an operand that a kernel only writes; the arguments are the attributes of Role."""
    return Role(name, Access.OUT, meaning, types, optional, several)


def updates(name: str, meaning: str, *types: DType, optional: bool = False, several: bool = False) -> Role:
    """Declare an operand that a kernel reads and writes; the arguments are the attributes of Role."""
    return Role(name, Access.INOUT, meaning, types, optional, several)


def scratch(name: str, meaning: str, *types: DType, optional: bool = False, several: bool = False) -> Role:
    """Declare a scratch operand (working memory) of a kernel; the arguments are the attributes of Role."""
    return Role(name, Access.SCRATCH, meaning, types, optional, several)


def _rounds_as_tflite(node: Node) -> bool:
    """Return whether a node rounds its results, and must do so as TensorFlow Lite's kernels do."""
    quants = (value.type.quant for value in node.outputs if not node.op.moves_data)
    return any(quant is not None and quant.rounding is Rounding.TFLITE for quant in quants)


@dataclass(frozen=True)
class Kernel:
    """A declaration of one way to compute a layer: operands, parameters, conditions and costs of a C function.

    Attributes that are functions take the operator's specification of the layer (mcugen.lir.spec), unless noted.

    Attributes:
        name: Name of the kernel, its template `kernels/<name>.c.j2`, and its C function.
        what: Sentence on what the kernel computes, and how.
        operands: Operands that the template reads; with `params` and `options`, they are all that the template reads.
        params: Groups of parameters.
        optional: Groups of parameters that some variants lack.
        options: Groups of template options.
        baked: Parameters that become literals in a copy of the function.
        uniform: Parameters that become literals if all layers that share the function agree on them. No condition of
            the template depends on these alone.
        without: Parameters of the groups that the template does not use.
        needs: Names of CPU features that the kernel needs, and of tuning flags (which select variants of kernels).
        lacks: CPU features and tuning flags with which the kernel must not be used.
        when: Conditions on the layer, all of which must hold. The first line of a condition's docstring reads "Require
            …."; the report shows what is required as a reason for the kernel.
        emit: Function of the specification and the Site that returns the kernel's call, or several; None if the
            operator emits its own instructions.
        extra: Function that counts the layer's work in a unit of the kernel's own, such as inner-loop steps, as a
            further term of the linear cost model (mcugen.kernels.cost).
        way: Function that returns the name of the kernel's variant for a layer, if variants have separate costs.
        slowdown: Function that returns the factor by which a layer costs more than its cost terms say, because of an
            unusual shape.
        code: Function that returns the bytes of the C function, if they depend on the layer, as in unrolled code.
        any_size: Whether the parameters are polynomials of the sizes, so that sizes may be known at run time only.
        spends: Whether the kernel takes more flash and scratch memory to save time, which is refused where memory is
            scarce (MEMORY_FOR_SPEED).
        loads: Number of times that the kernel loads each word of constants for every product that an element of the
            word takes part in. It is 0.25 if a load serves four results, 4 if each product loads a byte, and 0 if
            weights stay in registers.
        products: Multiplications for each multiply-accumulate of the layer.
        sweeps: Upper limit of `loads` in the estimate of cache misses, below `loads` if the kernel loads a word several
            times before it loads other words: only the first load can then miss the cache.
        stalls: Cycles per unit of `extra`, by core, beyond the measured instructions: loads of several words, and
            stalls on them. They are negative if a core has its own loops that issue two instructions at once.
        library: Name of the library whose functions the kernel calls. The C function then returns a status, as the
            linked library may not fit.
        varies: Reason why control flow depends on data; "" if it depends on sizes alone.
        rounds: Function of an instruction that returns the largest number of iterations of its data-dependent loops in
            one run; 0 if only branches depend on data, None if unknown.
        as_tflite: Whether the kernel also computes layers whose result must have the bits of TensorFlow Lite's kernels
            (Rounding.TFLITE).
        evaluate: Function of the node and its input arrays that returns the kernel's results, for a kernel that rounds
            differently than its operator. Such kernels are not used in bodies, where the operator's own reference is
            evaluated.
        example: Model in ONNX's text form that uses the kernel, for tests, if ONNX has none.
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
    as_tflite: bool = False
    evaluate: Reference | None = None
    example: str = ""

    def runs_on(self, features: frozenset[str]) -> bool:
        """Return whether the kernel may be used with the CPU features and tuning flags in `features`.

        Tuning flags are names that select variants of kernels. All names in `needs` must be given, and none in `lacks`.
        """
        return self.needs <= features and not self.lacks & features

    def fits(self, node: Node, features: frozenset[str]) -> bool:
        """Return whether the kernel can compute a node: the CPU features and all conditions on the layer allow it."""
        if not self.runs_on(features) or (_rounds_as_tflite(node) and not self.as_tflite):
            return False
        layer = spec_of(node)
        return all(holds(layer) for holds in self.when)

    def emitted(self, node: Node, builder: Builder) -> list[Call]:
        """Return the calls of C functions by which the kernel computes a node, usually one.

        Args:
            node: The node.
            builder: Creates the buffers that the calls use.
        """
        assert self.emit is not None, f"{self.name} has no way to be emitted"
        calls = self.emit(spec_of(node), Site(builder, node, self))
        return calls if isinstance(calls, list) else [calls]

    def extra_of(self, node: Node) -> int:
        """Return the node's work in the kernel's own unit (`Kernel.extra`), such as inner-loop steps; 0 if none.

        The cost model multiplies the count by a measured cost per unit.
        """
        return self.extra(spec_of(node)) if self.extra else 0

    def way_of(self, node: Node) -> str:
        """Return the name of the kernel variant (`Kernel.way`) that computes a node; "" if there is only one.

        Each variant has separately measured costs.
        """
        return self.way(spec_of(node)) if self.way else ""

    def slowdown_of(self, node: Node) -> float:
        """Return the ratio of a node's true cost to the cost that the kernel's measured cost terms predict.

        It is 1.0 unless the kernel declares another ratio for layers of an unusual shape (Kernel.slowdown).
        """
        return self.slowdown(spec_of(node)) if self.slowdown else 1.0

    def code_of(self, node: Node) -> int | None:
        """Return the size in bytes of the kernel's C function for a node; None if it does not depend on the layer."""
        return self.code(spec_of(node)) if self.code else None

    @property
    def reason(self) -> str:
        """Return the text in reports on what the kernel requires: its library, CPU features and conditions."""
        conditions = [_requirement(holds) for holds in self.when]
        library = [self.library] * bool(self.library)
        return "; ".join([*library, *sorted(self.needs), *conditions]) or "portable C"

    def member(self, name: str) -> DeclaredMember | None:
        """Return the declaration of a member of the parameter struct; None if the kernel declares no such member.

        A declaration of several members (DeclaredMember.many) applies to all names that begin with its name, unless
        another declaration matches a longer part of the name: `d` declares d0, `d_s` declares d_s0, and `depth` needs
        its own declaration.
        """
        exact = next((m for m in self.members if m.name == name and not m.many), None)
        prefixes = [m for m in self.members if m.many and name.startswith(m.name)]
        return exact or max(prefixes, key=lambda m: len(m.name), default=None)

    def meaning(self, name: str) -> str:
        """Return the documented meaning of a member of the parameter struct; "" if it is not declared."""
        member = self.member(name)
        return member.meaning if member else ""

    def role(self, name: str) -> Role:
        """Return the declaration of the operand with this name.

        Raises:
            VerificationError: The kernel has no such operand.
        """
        declared_role = next((role for role in self.operands if role.takes(name)), None)
        if declared_role is None:
            declared = ", ".join(role.name for role in self.operands)
            raise VerificationError(f"kernel {self.name} has no operand {name}", declared, "declare it")
        return declared_role

    def place(self, name: str) -> int:
        """Return the position by which the operand with this name is sorted in the C function's parameter list.

        It is the index, from 0, of the operand's declaration in `operands`. Adjacent declarations that each stand for
        any number of operands (Role.several) share the first index, so that their operands may be interleaved: x0, t1,
        x2.
        """
        at = self.operands.index(self.role(name))
        while at and self.operands[at].several and self.operands[at - 1].several:
            at -= 1
        return at

    @property
    def named_members(self) -> tuple[DeclaredMember, ...]:
        """Return the declarations of the struct's members, except those that assembly reads by their offsets."""
        by_place = {m.name for group in self.params if group.by_place for m in group.declared()}
        return tuple(member for member in self.members if member.name not in by_place)

    @property
    def members(self) -> tuple[DeclaredMember, ...]:
        """Return the declarations of the members of the parameter struct, in order."""
        return tuple(m for group in self.params for m in group.declared() if m.name not in self.without)


def no_rounds(instr: Instr) -> int:
    """Return 0 iterations, as a value for `Kernel.rounds`: only branches depend on data, but no loop does."""
    return 0


@dataclass(frozen=True)
class Call:
    """A call of a kernel's C function, from which the builder makes an instruction.

    Attributes:
        kernel: The kernel.
        operands: Buffers by role (name of the kernel's operand), in the order of the C parameters.
        params: Instances of the kernel's groups of parameters, in order.
        options: Instances of the kernel's groups of options, in order.
        access: Access of operands for which it differs from the declaration: an output of which the call writes only a
            part is INOUT.
        overlaps: How far outputs may overlap inputs in memory.
        inplace: Pairs of output role and input role that may begin at the same address.
        baked: Names of parameters that become literals in addition to those of `Kernel.baked`.
        variant: Suffix of the C function's name; "" for none.
        note: Text for the listing of the program; "" for the element types.
        gathers: Access pattern of an image that is read channel block by channel block (Instr.gathers); else None.
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
        """Raise VerificationError unless operands, options and parameters are as the kernel declares."""
        kernel = self.kernel
        options, params = ([type(group) for group in groups] for groups in (self.options, self.params))
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

    def _refuse(self, fault: str) -> None:
        raise VerificationError(f"kernel {self.kernel.name} must be called as declared", fault, "report this as a bug")

    def operand_list(self) -> tuple[Operand, ...]:
        """Return the operands of the call with their access, in the order of the C parameters."""
        return tuple(
            Operand(name, self.access.get(name, self.kernel.role(name).access), buffer)
            for name, buffer in self.operands.items()
        )

    def scalars(self) -> dict[str, Param]:
        """Return the values of all parameters by name: struct members, and parameters that are literals in the code."""
        members = {name: value for group in self.params for name, value in group.values().items()}
        return {name: value for name, value in members.items() if name not in self.kernel.without}

    def template_options(self) -> dict[str, object]:
        """Return the values of the template's options by name."""
        return {name: value for group in self.options for name, value in group.values().items()}


@dataclass(frozen=True)
class Site:
    """The place where a kernel's instructions are emitted, with the means to create buffers and calls.

    Attributes:
        builder: Builder of the program.
        node: The node that the kernel computes.
        kernel: The kernel.
    """

    builder: Builder
    node: Node
    kernel: Kernel

    @property
    def x(self) -> Buffer:
        """Return the buffer of the node's first input."""
        return self.input(0)

    @property
    def y(self) -> Buffer:
        """Return the buffer of the node's first output."""
        return self.output(0)

    def input(self, index: int) -> Buffer:
        """Return the buffer of input number `index` of the node, which must be present."""
        return self.builder.buffer(self.node.input(index))

    def output(self, index: int) -> Buffer:
        """Return the buffer of output number `index` of the node."""
        return self.builder.buffer(self.node.outputs[index])

    def const(self, name: str, data: Array, row_size: int = 0) -> Buffer:
        """Return the buffer in flash of a constant; equal constants share one buffer. See Builder.const."""
        return self.builder.const(self._called(name), data, row_size)

    def growing_const(self, name: str, data: Array) -> Buffer:
        """Return the buffer in flash of a constant that may be longer at other run-time sizes (Builder.growing_const).

        Constants of which one is a prefix of the other share a buffer.
        """
        return self.builder.growing_const(self._called(name), data)

    def scratch(self, name: str, dtype: DType, count: int) -> Buffer:
        """Return a new scratch buffer of `count` elements of type `dtype`, which only one instruction uses."""
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
        """Return a call of the kernel; the arguments are attributes of Call."""
        return Call(
            self.kernel, operands, params, options, overlaps=overlaps, inplace=inplace, variant=variant, gathers=gathers
        )

    @property
    def features(self) -> frozenset[str]:
        """Return the names of the program's CPU features, and of its tuning flags, which select variants of kernels."""
        return self.builder.features

    @property
    def any_size(self) -> bool:
        """Return whether instructions for different run-time sizes must differ in parameters only."""
        return self.builder.any_size

    def _called(self, name: str) -> str:
        return f"{self.node.outputs[0].name}.{name}"
