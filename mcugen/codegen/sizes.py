# SPDX-License-Identifier: Apache-2.0
"""C code of sizes known at run time only: names, expressions, arguments of the run function, macros of the header."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcugen.codegen.checks import CheckedData, table_entry
from mcugen.codegen.identifiers import comment, identifier
from mcugen.codegen.lines import filled_rows
from mcugen.codegen.literals import c_int, c_param, c_param_type
from mcugen.hir.names import Names
from mcugen.lir.formula import Atom, Formula, Polynomial, Symbol, ValueTable
from mcugen.lir.program import Endpoint, Instr, Param

Expressions = Mapping[str, str]
"""The C expression of each run-time size, by symbol name; each can be used without parentheses."""


def symbol_names(symbols: Sequence[Symbol], used_names: Names) -> dict[str, str]:
    """Return a C identifier for each run-time size, by symbol name, and add the identifiers to `used_names`."""
    return {s.name: identifier(s.name, used_names) for s in symbols}


def c_polynomial(formula: Polynomial, names: Expressions, cast: str = "") -> str:
    """Return a polynomial of run-time sizes as a C expression.

    Args:
        formula: The polynomial.
        names: C expressions of the sizes.
        cast: A cast such as `(int64_t)`, in whose type the expression is computed; "" for int32_t.
    """
    if not cast and len(formula.terms) == 1 and formula.terms[0][0] == 1 and len(formula.terms[0][1]) == 1:
        return _quotient(formula.terms[0][1][0], names)  # A single quotient needs no parentheses.
    parts = [_term(factor, [_atom(a, names, cast) for a in atoms]) for factor, atoms in _sorted(formula)]
    text = " + ".join(parts) or "0"
    return text.replace("+ -", "- ")


def _sorted(formula: Polynomial) -> list[tuple[int, tuple[Atom, ...]]]:
    """Return the terms with the constant last and negative terms after positive ones."""
    return sorted(formula.terms, key=lambda term: (not term[1], term[0] < 0))


def _term(factor: int, atoms: list[str]) -> str:
    if not atoms:
        return c_int(factor)
    scale = "" if factor in (1, -1) else f" * {c_int(abs(factor))}"
    return ("-" if factor < 0 else "") + " * ".join(atoms) + scale


def _atom(atom: Atom, names: Expressions, cast: str) -> str:
    text = _quotient(atom, names)
    return cast + (text if text == names[atom.symbol] else f"({text})")


def _quotient(atom: Atom, names: Expressions) -> str:
    if atom.divide == 1:
        return f"{names[atom.symbol]} + {atom.add}" if atom.add else names[atom.symbol]
    shifted = f"({names[atom.symbol]} + {atom.add})" if atom.add else names[atom.symbol]
    return f"{shifted} / {atom.divide}"


@dataclass(frozen=True)
class CodeTable:
    """A constant table in a model's C file.

    Attributes:
        name: C name of the table.
        ctype: C type of the elements.
        count: Number of elements.
        rows: Lines of the table's initializer; empty if another model of the firmware defines the table.
    """

    name: str
    ctype: str
    count: int
    rows: tuple[str, ...] = ()
    entry: CheckedData | None = None
    """Entry of the checksum table for this table; None if it is not checked."""


class SizedParams:
    """Collects kernel parameters that depend on run-time sizes, as C expressions, and the tables they need."""

    def __init__(
        self,
        symbols: Sequence[Symbol],
        names: Expressions,
        name_table: Callable[[str], str],
        place: Callable[[Instr, str], str] = lambda instr, key: "",
    ) -> None:
        """Store the names and bounds of run-time sizes.

        Args:
            symbols: The sizes that are known at run time only.
            names: C names of the expressions of sizes.
            name_table: Returns a unique C name for a table.
            place: Returns the C expression of a parameter that is read from the file of weights, else "".
        """
        self.names = names
        self._place = place
        self.tables: list[CodeTable] = []
        self._highest = {s.name: s.high for s in symbols}
        self._name_table = name_table
        self._known: dict[tuple[str, ValueTable], str] = {}

    def members(self, instr: Instr) -> list[tuple[str, str, str]]:
        """Return the name, C type and C expression of each run-time parameter of an instruction."""
        return [
            (
                key,
                c_param_type(value),
                self._text(instr.formulas[key], value)
                if key in instr.formulas
                else self._place(instr, key) or c_param(value),
            )
            for key, value in instr.params.items()
            if key not in instr.baked
        ]

    def is_known(self, instr: Instr) -> bool:
        """Return whether all parameters of an instruction are known at compile time."""
        return not instr.formulas and not any(self._place(instr, key) for key in instr.params)

    def _text(self, formula: Formula, example: Param) -> str:
        ctype = c_param_type(example)
        if isinstance(formula, ValueTable):
            return self._lookup(formula, ctype)
        if isinstance(formula, Polynomial):
            wide = formula.magnitude(self._highest) >= 2**31
            text = c_polynomial(formula, self.names, "(int64_t)" if wide else "")
            return f"(int32_t)({text})" if wide and ctype == "int32_t" else text
        below = c_polynomial(formula.denominator, self.names)
        return f"{c_param(formula.numerator)} / ({ctype}){below if below.isidentifier() else f'({below})'}"

    def _lookup(self, table: ValueTable, ctype: str) -> str:
        key = (ctype, table)
        if key not in self._known:
            self._known[key] = self._name_table(f"{table.symbol}_table")
            rows = filled_rows([c_param(v) for v in table.values])
            entry = table_entry(self._known[key], ctype, table.values)
            self.tables.append(CodeTable(self._known[key], ctype, len(table.values), tuple(rows), entry))
        return f"{self._known[key]}[{self.names[table.symbol]} - {table.low}]"


def arguments(symbols: Sequence[Symbol], names: Expressions) -> list[dict[str, object]]:
    """Return the template variables of the run-time sizes that the caller of the run function passes."""
    return [
        {"name": names[s.name], "low": s.low, "high": s.high, "onnx_name": comment(s.name)}
        for s in symbols
        if not s.output
    ]


def sized_tensor(endpoint: Endpoint, names: Expressions) -> dict[str, object]:
    """Return the template variables of an input's or output's shape, with C macros of the sizes that it depends on."""
    used = {a.symbol for f in endpoint.sizes.values() for _, atoms in f.terms for a in atoms}
    parameters = [name for symbol, name in names.items() if symbol in used]
    in_macro = {symbol: f"({name})" for symbol, name in names.items()}
    fixed = math.prod(size for axis, size in enumerate(endpoint.shape) if axis not in endpoint.sizes)
    sized = [_in_parentheses(c_polynomial(formula, in_macro)) for formula in endpoint.sizes.values()]

    def axes(expressions: Expressions) -> list[str]:
        return [
            c_polynomial(endpoint.sizes[axis], expressions) if axis in endpoint.sizes else str(size)
            for axis, size in enumerate(endpoint.shape)
        ]

    return {
        "parameters": parameters,
        "symbolic_shape": axes(names),
        "axes_for": axes(in_macro),
        "count_for": " * ".join([*([f"{fixed}u"] if fixed > 1 else []), *(f"(uint32_t){text}" for text in sized)]),
    }


def _in_parentheses(text: str) -> str:
    return text if re.fullmatch(r"\(\w+\)", text) else f"({text})"
