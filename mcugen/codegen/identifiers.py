# SPDX-License-Identifier: Apache-2.0
"""Names from models (untrusted text) → C identifiers and comments. Nothing reaches C but through here."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mcugen.hir.names import Names

_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const
    constexpr continue decltype default delete do double else enum explicit export extern false float
    for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or
    or_eq private protected public register reinterpret_cast restrict return short signed sizeof static
    static_assert struct switch template this throw true try typedef typeid typename union unsigned
    using virtual void volatile wchar_t while xor xor_eq p arena main base default_arena
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t size_t ptrdiff_t
    linux unix i386 arm mips errno stdin stdout stderr signgam near far interrupt typeof fortran
    assert complex ctype endian features fenv inttypes iso646 limits locale math memory reent setjmp
    signal stdarg stdbool stddef stdint stdio stdlib string strings tgmath time wchar wctype
    """.split()  # noqa: SIM905
)
"""Words of C, C++ and their dialects, names that the templates use, and headers that a model must not hide."""

_TAKEN = ("mcugen", "arm_", "cmsis_nn")
"""What names of the runtime, and of the library that generated code may call, begin with."""

_LONGEST = 40
"""Characters of a name that are kept: long exporter names differ in their ends."""


_ROLE = re.compile(r"\.[a-z]+$")
_NOISE = re.compile(r"(_?output_\d+|_?(de)?quantizelinear|_raw_output_*\d*|_prequant|_dequant|_output)+", re.IGNORECASE)


def tensor_name(text: str) -> str:
    """What a reader calls a tensor: of fused exporter names the first, without the exporter's own endings."""
    role = _ROLE.search(text)
    name = text[: role.start()] if role else text
    first = name.split(";")[0] or name
    return (_NOISE.sub("", first) or first) + (role.group() if role else "")


def identifier(text: str, taken: Names | None = None) -> str:
    """A lower-case C identifier that recalls `text`; unique in `taken`, to which it is added."""
    word = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    if len(word) > _LONGEST:
        word = word[-_LONGEST:]
        word = word[word.find("_") + 1 :] if "_" in word[: _LONGEST // 2] else word
    if not word or word[0].isdigit() or word in _RESERVED or word.startswith(_TAKEN):
        word = f"t_{word}".rstrip("_")
    return word if taken is None else taken.take(word)


def own_names(taken: Iterable[str] = ()) -> Names:
    """Names that are taken, where identifiers go."""
    return Names(taken, "_")


def comment(text: str, longest: int = 120) -> str:
    """Text that is harmless inside a C comment: printable ASCII without comment marks, escapes or trigraphs."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    plain = plain.replace("\\", "/").replace("*/", "* /").replace("/*", "/ *")
    while "??" in plain:
        plain = plain.replace("??", "?")
    return plain if len(plain) <= longest else plain[: longest - 3] + "..."
