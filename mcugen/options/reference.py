# SPDX-License-Identifier: Apache-2.0
"""Generation of docs/reference/options.md, the reference of all options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mcugen.driver.option_conflicts import CONFLICTS
from mcugen.options.keywords import keyword_options
from mcugen.options.option import REQUIRED, Option
from mcugen.options.table import CODE, OPTIONS, QUANTIZE, READ, RUN

_GROUPS = {"read a model": READ, "compile": RUN, "quantize": QUANTIZE, "write code": CODE}
"""Groups of commands by what they do; a group comes before those that it contains."""
_KINDS = {str: " TEXT", int: " INTEGER", float: " NUMBER", Path: " PATH", bool: "", list: " TEXT …"}
_KEYWORDS = [option for command in ("compile", "quantize") for option in keyword_options(command).values()]
"""The options that are keywords of the Python interface."""
_COLUMNS = ("option", "what it does", "default", "commands", "Python", "file")


def option_reference() -> str:
    """Return the option reference as Markdown.

    It has a table of options for each panel, and a table of the options that exclude each other.
    """
    groups = "".join(f"- that {title}: {', '.join(sorted(group))}\n" for title, group in _GROUPS.items())
    tables = [_table(title, _COLUMNS, [_row(option) for option in options]) for title, options in _panels()]
    conflicts = [(c.option, ", ".join(c.others), c.rule, c.remedy) for c in CONFLICTS]
    excluding = _table("Options that exclude each other", ("option", "not with", "why", "what to do"), conflicts)
    return "\n".join([groups, *tables, excluding])


def _panels() -> Iterator[tuple[str, list[Option]]]:
    """Yield the titles and options of the tables: frequent options first, options of single commands last."""
    yield "Needed most", [option for option in OPTIONS if not option.panel and option.field]
    for panel in filter(None, dict.fromkeys(option.panel for option in OPTIONS)):
        yield panel, [option for option in OPTIONS if option.panel == panel]
    yield "Particular to commands", [option for option in OPTIONS if not option.panel and not option.field]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(cell.replace("|", "/") for cell in row) for row in (columns, ["---"] * len(columns), *rows)]
    return f"## {title}\n\n" + "".join(f"| {line} |\n" for line in lines)


def _row(option: Option) -> Sequence[str]:
    flags = f"`{', '.join(option.flags.split())}{_KINDS.get(option.base, ' WORD')}`"
    is_told = option.show_default and option.default not in (None, REQUIRED) and option.kind is not bool
    default = f"`{option.default}`" if is_told else "required" * (option.default is REQUIRED)
    keyword = f"`{option.parameter_name}`" * (option in _KEYWORDS)
    return flags, option.description, default, _commands(option), keyword, "✓" * option.is_in_settings


def _commands(option: Option) -> str:
    """Return the commands that have an option, with groups by their titles."""
    titles = [title for title, group in _GROUPS.items() if set(group) <= set(option.commands)][:1]
    single = [command for command in option.commands if not any(command in _GROUPS[title] for title in titles)]
    return ", ".join([f"that {title}" for title in titles] + single)
