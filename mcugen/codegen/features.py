# SPDX-License-Identifier: Apache-2.0
"""Reduction of a kernel's C code to one board: code for other CPU families is dropped, plain C always stays."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from mcugen.core.board import FEATURES

_THUMB2 = (frozenset({"thumb2"}), frozenset({"dsp"}))
_MACROS: dict[str, tuple[frozenset[str], ...]] = {
    **{f"MCUGEN_{feature.upper()}": (frozenset({feature}),) for feature in FEATURES},
    "MCUGEN_THUMB2": _THUMB2,
    "MCUGEN_FPU": tuple(features | {"fpu"} for features in _THUMB2),  # Arm only: its kernels are assembly.
}
"""Macros that runtime_c/include/mcugen.h defines for CPUs with all features of one of these sets."""

_DIRECTIVE = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*?)\s*(/\*.*|//.*)?")
_TOKEN = re.compile(r"\s*(defined\s*\(\s*\w+\s*\)|defined\s+\w+|&&|\|\||!(?!=)|\(|\))")


def for_features(text: str, features: Collection[str]) -> str:
    """Return C code without the parts for CPU features (of mcugen.core.board) that the board lacks.

    Preprocessor conditions on missing features are resolved. Conditions on features in `features`, and all other
    conditions, stay: the code may also be built for a CPU without these features, which then uses plain C.

    Args:
        text: The C code.
        features: Names of the CPU features that the board has.
    """
    assert FEATURES.issuperset(features)
    absent = {macro for macro, having in _MACROS.items() if not any(f.issubset(features) for f in having)}
    kept: list[str] = []
    groups: list[_Group] = []
    for line in text.split("\n"):
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            if all(group.is_written for group in groups):
                kept.append(line)
            continue
        if directive[1].startswith("if"):
            groups.append(_Group())
        is_reached = all(group.is_written for group in groups[:-1])
        written = groups[-1].written(line, directive, absent)
        if is_reached and written is not None:
            kept.append(written)
        if directive[1] == "endif":
            groups.pop()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept))


@dataclass
class _Group:
    """An open #if directive up to its #endif."""

    is_written: bool = True
    """Whether lines of the present branch are written."""
    is_conditional: bool = False
    """Whether a branch depends on an unknown condition, so that directives are written."""
    is_over: bool = False
    """Whether a branch before is taken always."""

    def written(self, line: str, directive: re.Match[str], absent: Collection[str]) -> str | None:
        """Return the directive to write, or None; enter the branch that it begins."""
        word, expression, remark = directive[1], directive[2], directive[3]
        if word == "endif":
            return line if self.is_conditional else None
        value = True if word == "else" else evaluate_condition(_as_if(word, expression), absent)
        self.is_written = value is not False and not self.is_over
        if not self.is_written:
            return None
        if value is True:
            self.is_over = True
            if not self.is_conditional:
                return None
            return line if word == "else" else "#else"
        begins, self.is_conditional = not self.is_conditional, True
        if value == _as_if(word, expression) and begins == (word != "elif"):
            return line
        return f"#{'if' if begins else 'elif'} {value}{f' {remark}' if remark else ''}"


def _as_if(word: str, expression: str) -> str:
    """Return the condition in the form of #if."""
    return {"ifdef": f"defined({expression})", "ifndef": f"!defined({expression})"}.get(word, expression)


def evaluate_condition(condition: str, absent: Collection[str]) -> bool | str:
    """Evaluate the condition of an #if directive, given macros that are not defined.

    A condition with anything but `defined`, `!`, `&&`, `||` and parentheses is returned unchanged.

    Args:
        condition: Text of the condition.
        absent: Names of the macros that are not defined.

    Returns:
        The truth value if it is known, else the text of the part of the condition that remains.
    """
    tokens = []
    at = 0
    while at < len(condition):
        token = _TOKEN.match(condition, at)
        if token is None:
            return condition
        tokens.append(token[1])
        at = token.end()
    value = _any_of(tokens, absent)
    assert not tokens, f"no end of a condition is at {tokens}"
    return value


def _any_of(tokens: list[str], absent: Collection[str]) -> bool | str:
    values = [_all_of(tokens, absent)]
    while tokens and tokens[0] == "||":
        tokens.pop(0)
        values.append(_all_of(tokens, absent))
    if True in values:
        return True
    return " || ".join(v for v in values if isinstance(v, str)) or False


def _all_of(tokens: list[str], absent: Collection[str]) -> bool | str:
    values = [_single(tokens, absent)]
    while tokens and tokens[0] == "&&":
        tokens.pop(0)
        values.append(_single(tokens, absent))
    if False in values:
        return False
    left = [v for v in values if isinstance(v, str)]
    return " && ".join(f"({v})" if " || " in v and len(left) > 1 else v for v in left) or True


def _single(tokens: list[str], absent: Collection[str]) -> bool | str:
    token = tokens.pop(0)
    if token == "!":
        value = _single(tokens, absent)
        if isinstance(value, bool):
            return not value
        return f"!({value})" if " " in value else f"!{value}"
    if token == "(":
        value = _any_of(tokens, absent)
        assert tokens.pop(0) == ")"
        return value
    name = token.removeprefix("defined").strip(" ()")
    return False if name in absent else f"defined({name})"
