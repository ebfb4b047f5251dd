# SPDX-License-Identifier: Apache-2.0
"""The C functions of kernels: one for each kernel, set of baked constants, and code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import jinja2

from mcugen.codegen.features import for_features
from mcugen.codegen.folding import break_long_lines
from mcugen.codegen.identifiers import MAX_C_LINE_COLUMNS, comment
from mcugen.codegen.lines import fitted
from mcugen.codegen.literals import c_param, c_param_type
from mcugen.lir.program import Access, Instr


@dataclass(frozen=True)
class KernelSource:
    """The source of the kernels' templates, and the features of the CPU."""

    features: frozenset[str] = frozenset()
    """Features of the CPU (mcugen.core.board) that kernels may use beyond plain C."""
    templates: tuple[Path, ...] = ()
    """Folders with the user's own kernels."""


PLAIN_C = KernelSource()
"""The project's own kernels, for any CPU."""


@dataclass
class KernelFunction:
    """One generated C function: a kernel, specialized by its baked constants and template options."""

    instr: Instr
    """An instruction that calls the function; its kernel and baked constants define the code."""
    name: str
    """C name of the function."""
    is_static: bool = True
    """Whether the function is static in C: only one file calls it."""
    text: str = ""
    """Definition of the function, with everything that it needs, for the CPU of the board."""
    headers: set[str] = field(default_factory=set)
    """Headers that declare the called functions, as listed by the template."""

    @property
    def signature(self) -> str:
        """Return the C function's return type, name and parameter list, without a semicolon or body."""
        instr = self.instr
        parts = [f"const {self.name}_params *p"] if runtime_params(instr) else []
        for operand in instr.operands:
            const = "const " if operand.access is Access.IN else ""
            parts.append(f"{const}{operand.buffer.dtype.c} *{operand.role}")
        return f"{'static ' * self.is_static}{'int' if instr.library else 'void'} {self.name}({', '.join(parts)})"

    def context(self) -> dict[str, object]:
        """Return the template context of the function: its name, struct members, declaration and text."""
        return {
            "function": self.name,
            "members": [line for member in runtime_params(self.instr) for line in _member(*member)],
            "declaration": fitted(f"{self.signature};"),
            "text": break_long_lines(self.text.strip("\n")),
        }


class _Params:
    """A resolver of `p.stride_height` in templates: a literal if the parameter is baked, else a struct member."""

    def __init__(self, instr: Instr) -> None:
        self._instr = instr

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._instr.params[name]
        return c_param(value) if name in self._instr.baked else f"p->{name}"

    def __contains__(self, name: str) -> bool:
        return name in self._instr.params


FunctionKey = tuple[tuple[object, ...], str]
"""Key of a C function: Instr.function_key, and the path of its template."""


class Functions:
    """The registry of the C functions that a program calls; each is rendered once, on first use.

    Args:
        env: Environment of the templates.
        features: Features of the board's CPU.
        name: Function that returns an unused C name for the function of an instruction.
        shared: C functions that the firmware already has and that the program can call, by key.
        is_static: Whether new functions are static.
    """

    def __init__(
        self,
        env: jinja2.Environment,
        features: frozenset[str],
        name: Callable[[Instr], str],
        shared: Mapping[FunctionKey, KernelFunction] = MappingProxyType({}),
        is_static: bool = True,
    ) -> None:
        self._env, self._features, self._name = env, features, name
        self._shared, self._is_static = shared, is_static
        self._own = dict[FunctionKey, KernelFunction]()
        self.names: dict[tuple[object, ...], str] = {}
        """Names of all requested functions, by Instr.function_key."""
        self.used = dict[str, KernelFunction]()
        """Requested functions among the shared ones, by name."""

    def key(self, instr: Instr) -> FunctionKey:
        """Return the key of the C function that an instruction calls; the models of a firmware share equal keys.

        The key contains the template's path, as models may use kernels of the same name from different folders.
        """
        return instr.function_key, str(self._env.get_template(_template(instr)).filename)

    def of(self, instr: Instr) -> KernelFunction:
        """Return the C function that an instruction calls; it is rendered on first use."""
        key = self.key(instr)
        if key in self._shared:
            function = self._shared[key]
            self.used[function.name] = function
        else:
            function = self._own[key] if key in self._own else self._own.setdefault(key, self._rendered(instr))
        self.names[key[0]] = function.name
        return function

    @property
    def own(self) -> list[KernelFunction]:
        """Return the functions that were rendered here, without the shared ones, in order of first use."""
        return list(self._own.values())

    @property
    def uses_math(self) -> bool:
        """Return whether any function, shared ones included, calls mathematical functions of the C library (libm)."""
        return any("math.h" in function.headers for function in (*self.own, *self.used.values()))

    def _rendered(self, instr: Instr) -> KernelFunction:
        function = KernelFunction(instr, self._name(instr), self._is_static)
        text = self._env.get_template(_template(instr)).render(
            fn=function.name,
            p=_Params(instr),
            signature=function.signature,
            flags=instr.code,
            needs=function.headers.update,
            types={o.role: o.buffer.dtype.c for o in instr.operands},
            **instr.code,
        )
        function.text = for_features(_with_literals(text, instr), self._features)
        return function


def _with_literals(text: str, instr: Instr) -> str:
    """Return C code with literals in place of baked parameters, for which templates write `p->batch` as for others."""
    literals = {name: c_param(instr.params[name]) for name in instr.baked}
    return re.sub(r"\bp->(\w+)", lambda found: literals.get(found[1], found[0]), text)


def _template(instr: Instr) -> str:
    return f"kernels/{instr.kernel}.c.j2"


def runtime_params(instr: Instr) -> list[tuple[str, str, str]]:
    """Return the name, C type and description of each parameter of an instruction that is a member of the struct."""
    declaration = instr.declaration
    return [
        (k, c_param_type(v), declaration.meaning(k) if declaration else "")
        for k, v in instr.params.items()
        if k not in instr.baked
    ]


def _member(name: str, ctype: str, meaning: str) -> list[str]:
    """Return the lines that declare a parameter in its struct."""
    line, remark = f"{ctype} {name};", f"/* {comment(meaning, MAX_C_LINE_COLUMNS - 12)} */"
    if not meaning:
        return [line]
    return [f"{line} {remark}"] if len(line) + len(remark) < MAX_C_LINE_COLUMNS - 4 else [remark, line]
