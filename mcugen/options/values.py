# SPDX-License-Identifier: Apache-2.0
"""Parsers of option values: from texts of the command line to the values that the compiler takes.

Each parser takes the name of the option (`flag`, for messages) and the value. It raises UsageError if the value is
invalid.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mcugen.codegen.libraries import LIBRARIES
from mcugen.core.errors import UsageError, shortened
from mcugen.core.limits import MAX_DIGITS, MAX_LABEL_CHARACTERS, open_regular
from mcugen.core.options import (
    AUTO_PLACE,
    CMSIS_NN,
    FOUR_BIT_GROUP_SIZES,
    INPUT_TYPES,
    INT16_WEIGHT_PRECISIONS,
    PRECISIONS,
    RANGE_METHODS,
    SAMPLES,
    TWO_BIT_GROUP_SIZES,
    LibraryFiles,
    Places,
)

if TYPE_CHECKING:
    from mcugen.hir.types import Array

T = TypeVar("T")
"""Type of the values of a repeated option."""

TECHNIQUES = {"equalization": "equalize", "bias-correction": "correct_bias", "rounding": "optimize_rounding"}
"""Values of `--without` (techniques of quantization), each with the boolean field of Scheme that it turns off."""


def cpus(flag: str, jobs: int) -> int:
    """Return the number of processes for the value of `--jobs`: the value or, if it is 0, the number of CPUs."""
    return jobs or os.cpu_count() or 1


def negated(flag: str, is_given: bool) -> bool:
    """Return the value of a Boolean field that a flag turns off: False if the flag is given, else True."""
    return not is_given


def as_tuple(flag: str, files: list[T]) -> tuple[T, ...]:
    """Return the values of a repeated option as a tuple.

    `flag` is not used: each option is parsed by a function that takes its flag, for messages, and its value.
    """
    return tuple(files)


def method(flag: str, text: str) -> str:
    """Check that a text names a method that chooses quantization ranges (RANGE_METHODS), and return the text.

    "" is allowed, and stands for the method of least measured error.
    """
    _one_of(flag, text, ("", *RANGE_METHODS))
    return text


def techniques(flag: str, without: list[str]) -> dict[str, bool]:
    """Return the boolean fields of Scheme for `--without`: False for each technique that is left out, else True."""
    for technique in without:
        _one_of(flag, technique, tuple(TECHNIQUES))
    return {field: name not in without for name, field in TECHNIQUES.items()}


def _named(flag: str, texts: Sequence[str], form: str, example: str, read: Callable[[str], T | None]) -> dict[str, T]:
    """Return the values by name, from texts such as NAME=VALUE.

    Args:
        flag: The option.
        texts: The texts.
        form: The form of a text, for messages; its first character that is no letter separates name and value.
        example: Remedy for a wrong text.
        read: Returns the value of a text, or None if the text is wrong.

    Raises:
        UsageError: A text is wrong, or a name is given twice.
    """
    separator = next(character for character in form if not character.isalpha())
    pairs = []
    for text in texts:
        name, _, value_text = text.rpartition(separator)
        value = read(value_text)
        if not name or value is None:
            raise UsageError(f"{flag} must read {form}", f"'{shortened(text, 200)}'", example)
        pairs.append((name, value))
    return named_once(flag, pairs)


def layers(flag: str, texts: list[str]) -> dict[str, str]:
    """Parse texts NAME=PRECISION of `--layer`; return the precision of each named layer."""
    few = {key: "int4" for key, group in FOUR_BIT_GROUP_SIZES.items() if group == 0}
    known = PRECISIONS | INT16_WEIGHT_PRECISIONS | few | dict.fromkeys(TWO_BIT_GROUP_SIZES, "int2")
    return _named(flag, texts, "NAME=PRECISION", f"a precision is one of: {', '.join(known)}", known.get)


def dims(flag: str, texts: list[str]) -> dict[str, int | tuple[int, int]]:
    """Parse texts NAME=SIZE or NAME=LOW..HIGH of `--dim`; return the size or range of each symbolic dimension."""
    form = "NAME=SIZE or NAME=LOW..HIGH with positive sizes"
    return _named(flag, texts, form, "e.g. --dim batch=1, or --dim T=1..64", _sizes)


def _sizes(text: str) -> int | tuple[int, int] | None:
    """Return a size or a range of sizes; None for other texts."""
    match [_positive(end) for end in text.split("..")]:
        case [int(size)]:
            return size
        case [int(low), int(high)]:
            return low, high
    return None


def plausible(flag: str, texts: list[str]) -> dict[str, tuple[float, float]]:
    """Parse texts NAME=LOW..HIGH of `--plausible`; return the plausible range (low, high) of each output, by name.

    The text `samples` asks for ranges that are measured on the samples. It is returned as the key SAMPLES with the
    unused range (0, 0).
    """
    spelled = [f"{SAMPLES}=0..0" if text == SAMPLES else text for text in texts]
    form = "NAME=LOW..HIGH with LOW not above HIGH"
    return _named(flag, spelled, form, "e.g. --plausible y=-1.5..2, or --plausible samples", _range)


def _range(text: str) -> tuple[float, float] | None:
    """Return a range of numbers LOW..HIGH; None for other texts."""
    low, _, high = (_number(end) for end in text.partition(".."))
    return None if low is None or high is None or low > high else (low, high)


def input_types(flag: str, texts: list[str]) -> dict[str, str]:
    """Parse texts NAME=TYPE of `--input-type`; return the type of each named input."""
    form, types = f"NAME=TYPE, of {', '.join(INPUT_TYPES)}", {name: name for name in INPUT_TYPES}
    return _named(flag, texts, form, "e.g. --input-type image=uint8", types.get)


def states(flag: str, texts: list[str]) -> dict[str, str]:
    """Parse texts OUTPUT:INPUT of `--state`; return, by output, the input that gets its value in the next call."""
    return _named(flag, texts, "OUTPUT:INPUT", "e.g. --state h_out:h_in", lambda kept: kept or None)


_MOST_LABEL_BYTES = 10**6


def labels(flag: str, source: Path | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names of classes, in the order of class numbers; empty if `source` is None.

    Args:
        flag: The option, for messages.
        source: The names, or a file with one name in each line; empty lines at its end are ignored.

    Raises:
        UsageError: There are no names, or a name is too long.
    """
    if source is None:
        return ()
    lines = source if isinstance(source, tuple) else _lines(flag, source)
    place = f"'{source}': " if isinstance(source, Path) else ""
    if not any(line.strip() for line in lines) or any(len(line) > MAX_LABEL_CHARACTERS for line in lines):
        is_long = any(line.strip() for line in lines)
        fault = f"a line of more than {MAX_LABEL_CHARACTERS} characters" if is_long else "nothing"
        raise UsageError(f"{flag} must name a class a line", f"{place}{fault}", "e.g. cat, a line below it dog")
    return lines


def _lines(flag: str, path: Path) -> tuple[str, ...]:
    """Return the lines of a text file without empty lines at its end.

    Raises:
        UsageError: The file is too large, or not text in UTF-8.
    """
    with open_regular(path) as file:
        data = file.read(_MOST_LABEL_BYTES + 1)
    rule = f"{flag} must be a text file in UTF-8 of at most {_MOST_LABEL_BYTES:,} bytes"
    if len(data) > _MOST_LABEL_BYTES:
        raise UsageError(rule, f"'{path}': more", "give a name a line")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(rule, f"'{path}': {error.reason} at byte {error.start}", "save it as UTF-8") from error
    return tuple(line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n"))


def texts_of_pairs(values: Mapping[str, object]) -> list[str]:
    """Return a Python caller's dictionary as the texts NAME=VALUE that the command line would give."""
    return [f"{name}={value}" for name, value in values.items()]


def texts_of_states(values: Mapping[str, str]) -> list[str]:
    """Return a Python caller's dictionary from outputs to inputs as the texts OUTPUT:INPUT of `--state`."""
    return [f"{output}:{target}" for output, target in values.items()]


def texts_of_ranges(values: Mapping[str, object]) -> list[str]:
    """Return a Python caller's dictionary as the texts NAME=NUMBER or NAME=LOW..HIGH that the command line would give.

    Args:
        values: A number, or a pair of the smallest and the largest number, by name.
    """
    return [f"{name}={'..'.join(map(str, _ends(value)))}" for name, value in values.items()]


def _ends(value: Any) -> Sequence[int | float]:
    """Return the numbers of a range, or a single number, as Python writes them without loss."""
    ends = value if isinstance(value, tuple | list) else (value,)
    return [int(end) if end == int(end) else float(end) for end in ends]


def texts_of_arrays(values: Mapping[str, object]) -> list[str]:
    """Return a Python caller's dictionary from names to arrays, lists or numbers as the texts NAME=JSON of `--bind`."""
    import numpy as np

    return [f"{name}={json.dumps(np.asarray(value).tolist())}" for name, value in values.items()]


def samples(value: object) -> object:
    """Return samples that a Python caller gives as a value of `--calibration`, `--data` or `--lesson`.

    Args:
        value: A path, an array, a dictionary of arrays by input name, a list with one such dictionary for each sample,
            or a tuple of any of these but a path, and of the labels.

    Returns:
        The path, or a dictionary of arrays by name.

    Raises:
        UsageError: The samples have another form, or differ in shape.
    """
    from mcugen.evaluation.python_samples import sample_source

    return sample_source(value)


def listed_names(flag: str, texts: list[str]) -> tuple[str, ...]:
    """Parse texts NAME,NAME; return the names without duplicates.

    Raises:
        UsageError: A name is empty.
    """
    listed = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))
    if not all(listed):
        raise UsageError(f"{flag} must read NAME,NAME", f"'{shortened(','.join(texts), 200)}'", "leave out a comma")
    return listed


def names(values: Iterable[str]) -> tuple[str, ...]:
    """Return names of classes, which a Python caller gives in place of a file, as a tuple.

    The contents of the names are not checked.

    Raises:
        TypeError: A name is not a text.
    """
    texts = tuple(values)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    return texts


def _number(text: str) -> float | None:
    """Return the finite number of a text; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def bound(flag: str, texts: list[str]) -> dict[str, Array]:
    """Parse texts NAME=VALUE of `--bind`, which fix inputs; VALUE is numbers in JSON or the name of a .npy file.

    Returns:
        The array of each input, by name.
    """
    from mcugen.evaluation.array_files import read_npy

    values = []
    for text in texts:
        name, _, value = text.partition("=")
        array = read_npy(Path(value)) if value.endswith(".npy") else _json_array(text, value)
        if not name or array.dtype.kind not in "fiub":
            raise UsageError("--bind must read NAME=VALUE with numbers", f"'{text}'", 'e.g. --bind "axes=[1, 2]"')
        values.append((name, array))
    return named_once(flag, values)


def _json_array(text: str, value: str) -> Array:
    """Return the array of numbers in JSON; `text` is the option's text for messages."""
    import numpy as np

    try:
        return np.asarray(json.loads(value))
    except RecursionError as error:
        reason = f"'{shortened(text, 80)}': lists within lists within lists"
        raise UsageError("--bind must read NAME=VALUE, a value as JSON or a .npy file", reason) from error
    except (ValueError, OverflowError) as error:
        reason = f"'{shortened(text, 200)}': {str(error)[:80]}"
        raise UsageError("--bind must read NAME=VALUE, a value as JSON or a .npy file", reason) from error


def _positive(text: str) -> int | None:
    """Return the positive whole number of a text; None for other texts and for more than MAX_DIGITS digits."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return (int(text) or None) if is_number else None


_SIZE = re.compile(r"([0-9]+) ?(?:([KM])(?:i?B)?)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def size(flag: str, text: str) -> int | None:
    """Parse a number of bytes such as 20000 or 20KB (1 KB is 1024 bytes); None for an empty text."""
    match = _SIZE.fullmatch(text)
    number = _positive(match[1]) if match else None
    if text and number is None:
        raise UsageError(f"{flag} must be a positive number of bytes", f"'{text}'", "e.g. 20000, or 20KB")
    return number * _UNITS[(match[2] or "").upper()] if match and number else None


_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%")


def share(flag: str, text: str) -> float | None:
    """Parse a percentage such as 60%; return the share from 0 to 1, or None for an empty text."""
    match = _PERCENT.fullmatch(text)
    if text and (match is None or not 0 < float(match[1]) <= 100):
        raise UsageError(f"{flag} must be a share of at most 100 %", f"'{text}'", "e.g. 60%")
    return float(match[1]) / 100 if match else None


_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(us|µs|ms|s)")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def seconds(flag: str, text: str) -> float | None:
    """Parse a time with its unit such as 20ms; return seconds, or None for an empty text."""
    match = _TIME.fullmatch(text)
    if text and (match is None or not float(match[1])):
        raise UsageError(f"{flag} must be a positive time with its unit", f"'{text}'", "e.g. 20ms, 500us or 1.5s")
    return float(match[1]) * _SECONDS[match[2]] if match else None


def cycles(flag: str, text: str) -> int | None:
    """Parse a positive number of cycles; None for an empty text."""
    if text and _positive(text) is None:
        raise UsageError(f"{flag} must be a positive number of cycles", f"'{text}'", "e.g. 1500000")
    return _positive(text)


def library_files(include: Path | None, archive: Path | None) -> LibraryFiles | None:
    """Return the headers and the archive of a built kernel library (CMSIS-NN), or None if neither is given.

    Args:
        include: Folder of the library's headers.
        archive: File of the compiled library.

    Raises:
        UsageError: Only one of them is given.
    """
    if include is not None and archive is not None:
        return LibraryFiles(include, archive)
    if include is not None or archive is not None:
        present, missing = LIBRARIES[CMSIS_NN].options if archive is None else reversed(LIBRARIES[CMSIS_NN].options)
        raise UsageError(f"{present} and {missing} must be given together", f"no {missing}", f"give {missing} too")
    return None


def places(flag: str, texts: list[str]) -> Places:
    """Parse texts of `--place`, such as "arena=dtcm+ocram,weights=flash,hot-weights=dtcm:32768", or "auto".

    Each text has one or more parts WHAT=MEMORY, separated by commas. WHAT is arena, weights or hot-weights.
    """
    pairs = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        what, _, where = ("arena", "", part) if part == AUTO_PLACE else part.partition("=")
        if what not in ("arena", "weights", "hot-weights") or not all(where.split("+")):
            examples = "e.g. --place auto, or --place arena=dtcm,weights=flash,hot-weights=dtcm:32768"
            raise UsageError("--place must read WHAT=MEMORY of arena, weights and hot-weights", f"'{part}'", examples)
        pairs.append((what, where))
    named = named_once(flag, pairs)
    hot = tuple(_hot_weights(text) for text in named.get("hot-weights", "").split("+") if text)
    arena = tuple(named["arena"].split("+")) if "arena" in named else ()
    return Places(arena, named.get("weights", ""), hot)


def _hot_weights(text: str) -> tuple[str, int]:
    memory, _, size = text.rpartition(":")
    nbytes = _positive(size)
    if not memory or not nbytes:
        rule = "--place hot-weights must read MEMORY:BYTES, of several with + between them"
        raise UsageError(rule, f"'{text}'", "e.g. hot-weights=dtcm:32768")
    return memory, nbytes


def _one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(f"{option} must be known", f"'{value}'", f"one of: {', '.join(filter(None, allowed))}")


def several_of(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Parse values separated by commas; return them without duplicates.

    Args:
        option: The name of the option, for messages.
        text: The value of the option.
        allowed: The allowed values.

    Raises:
        UsageError: A value is not allowed, or there is none.
    """
    values = tuple(dict.fromkeys(value.strip() for value in text.split(",")))
    for value in values:
        _one_of(option, value, allowed)
    return values


def named_once(flag: str, pairs: Sequence[tuple[str, T]]) -> dict[str, T]:
    """Return the NAME=VALUE pairs of a repeated option as a dictionary.

    Raises:
        UsageError: The option is given twice for one name.
    """
    named = dict(pairs)
    if len(named) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{flag} must be given once for each name", f"'{twice}' twice", "leave one out")
    return named
