# SPDX-License-Identifier: Apache-2.0
"""Pages and pictures of a report: templates whose every text is escaped."""

from __future__ import annotations

from typing import Any

import jinja2

from mcugen.errors import printable
from mcugen.resources import resource_dir


def rendered(template: str, **context: Any) -> str:
    """A template of `templates/report`. Text that is no Markup is escaped and has no control characters."""
    return _environment().get_template(template).render(context)


def source(name: str) -> str:
    """A file of `templates/report` as it is."""
    return (resource_dir("templates") / "report" / name).read_text()


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_dir("templates") / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
