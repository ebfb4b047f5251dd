# SPDX-License-Identifier: Apache-2.0
"""Writes mcugen/api/keyword_types.py, the types of the keywords of mcugen.compile and mcugen.quantize."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from mcugen.options.keywords import keyword_help, keyword_options
from mcugen.options.option import Option

FILE = Path(__file__).resolve().parents[1] / "mcugen" / "api" / "keyword_types.py"

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Types of the keywords of the Python interface, which tools/keyword_types.py writes from the option table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from mcugen.evaluation.python_samples import SampleInput

FileName: TypeAlias = str | os.PathLike[str]
"""Type of a path."""
'''

TYPES = {
    **{bool: "bool", int: "int", float: "float", str: "str", Path: "FileName"},
    **{list[str]: "str | Sequence[str]", list[Path]: "FileName | Sequence[FileName]"},
}
"""Types of keywords, by the type of the option."""


def keyword_types() -> str:
    """Return the text of the module."""
    return "\n\n".join([HEAD, *map(_class, ("compile", "quantize"))])


def _class(command: str) -> str:
    fields = [_field(keyword, option) for keyword, option in keyword_options(command).items()]
    summary = f'    """Keywords of `mcugen.{command}`; None stands for an option that is not given."""\n'
    return "\n".join([f"class {command.title()}Keywords(TypedDict, total=False):", summary, *fields])


def _field(keyword: str, option: Option) -> str:
    text = fill(f'"""{keyword_help(option)}."""', 116, initial_indent="    ", subsequent_indent="    ")
    return f"    {keyword}: {_type(option)} | None\n{text}\n"


def _type(option: Option) -> str:
    if option.kind is Path and option.name != "labels" and option.from_python is not None:
        return "SampleInput"
    kind = TYPES[option.kind]
    if option.kind is str and option.parse is not None:
        return "str | float"
    if option.name == "input-pipeline":
        return "FileName"
    if option.from_python is not None:
        return f"{kind} | {'Sequence[str]' if option.kind is Path else 'Mapping[str, Any]'}"
    return kind


def main() -> None:
    """Write the module."""
    FILE.write_text(keyword_types())


if __name__ == "__main__":
    main()
