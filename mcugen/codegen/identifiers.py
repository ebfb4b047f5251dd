# SPDX-License-Identifier: Apache-2.0
"""C identifiers and comments from names in models, which are untrusted text. All texts reach C through this module."""

from __future__ import annotations

import re
import textwrap
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
"""Prefixes of names of the runtime, and of the library that generated code may call."""

_LONGEST = 40
"""Largest number of characters of a name and its role, without the number that makes the name unique."""

_LONGEST_OF_TWO = 64
"""Largest length of a name together with the model's prefix."""

MAX_C_LINE_COLUMNS = 120
"""Largest number of columns of a line of generated C."""

_NUMBERED = re.compile(r"_\d+$")
_WORD_ENDS = re.compile(r"( +)|(?<=;)")
"""Positions at which comments may be broken; exporters join names of nodes by semicolons."""


def identifier(text: str, used_names: Names | None = None, role: str = "", prefix: str = "") -> str:
    """Return a lower-case C identifier made from untrusted text.

    Args:
        text: The text, which may be shortened.
        used_names: Names that must not be returned; the identifier is added to them.
        role: Suffix, which keeps up to half of the characters.
        prefix: Prefix that the caller puts before the identifier; it counts for the length limit.
    """
    longest = min(_LONGEST, max(_LONGEST_OF_TWO - len(prefix), _LONGEST // 2))
    ending = _shortened(_word(role), longest // 2)
    word = "_".join(part for part in (_shortened(_word(text), longest - len(ending) - bool(ending)), ending) if part)
    if not word or word[0].isdigit() or word in _RESERVED or word.startswith(_TAKEN):
        word = f"t_{word}".rstrip("_")
    return word if used_names is None else used_names.take(word)


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _shortened(word: str, longest: int) -> str:
    """Return a word of at most `longest` characters.

    Names begin with a place and end with an operation, so words in the middle are dropped, words without numbers first.
    """
    text = word if len(word) <= 10 * longest else f"{word[: 5 * longest]}_{word[-5 * longest :]}"
    words = re.findall(r"[^_]+(?:_\d+)*(?=_|$)", text)
    while len("_".join(words)) > longest and len(words) > 2:
        middle = (len(words) - 1) / 2
        del words[min(range(1, len(words) - 1), key=lambda i: (bool(_NUMBERED.search(words[i])), abs(i - middle)))]
    left = "_".join(words)
    if len(left) <= longest:
        return left
    head = longest // 3
    return f"{left[:head].rstrip('_')}_{left[head + 1 - longest :].lstrip('_')}"


def own_names(used_names: Iterable[str] = ()) -> Names:
    """Return a new collection of used C names, which `identifier` extends; it contains `used_names`."""
    return Names(used_names, "_")


def comment(text: str, longest: int = 120) -> str:
    """Return a text that is safe in a C comment: printable ASCII without comment marks, escapes or trigraphs.

    In a text of more than `longest` characters, the middle is left out.
    """
    return _cut(_harmless(text).replace("//", "/ /").replace("//", "/ /"), longest)


def _harmless(text: str) -> str:
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    plain = plain.replace("\\", "/").replace("*/", "* /").replace("/*", "/ *")
    while "??" in plain:
        plain = plain.replace("??", "?")
    return plain


def _cut(plain: str, longest: int) -> str:
    if len(plain) <= longest:
        return plain
    head = (longest - 3) // 2
    return f"{plain[:head]}...{plain[len(plain) - (longest - 3 - head) :]}"


def comment_lines(text: str, indent: int = 0, longest: int = 4000) -> str:
    """Return a text that is safe in a C comment, wrapped to lines that are indented by `indent` columns.

    In a text of more than `longest` characters, the middle is left out.
    """
    wrapper = textwrap.TextWrapper(
        MAX_C_LINE_COLUMNS - indent - 6, break_on_hyphens=False
    )  # Room for "/* " or " * ", and " */".
    wrapper.wordsep_simple_re = _WORD_ENDS
    return f"\n{' ' * indent} * ".join(wrapper.wrap(comment(text, longest)))


def c_string(text: str) -> str:
    """Return a C string literal of untrusted text: printable ASCII of at most 120 characters."""
    return '"' + _cut(_harmless(text), 120).replace('"', "'") + '"'
