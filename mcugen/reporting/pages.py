# SPDX-License-Identifier: Apache-2.0
"""Pages and pictures of a report: templates whose every text is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from mcugen.core.errors import printable
from mcugen.core.resources import resource_dir


def render_template(template: str, **context: Any) -> str:
    """Return a rendered template of `templates/report`.

    Text that is no Markup is escaped, and has no control characters.
    """
    return _environment().get_template(template).render(context)


def standalone(template: str, scripts: Mapping[str, str], **context: Any) -> str:
    """Return a self-contained page; `scripts` are files of the template folder, or texts, by the names of their places.

    A browser runs no other scripts than these, because the page states their digests.
    """
    texts = {name: Markup(source(text) if text.endswith(".js") else text) for name, text in scripts.items()}
    policy = " ".join(f"'sha256-{_digest(text)}'" for text in texts.values())
    return render_template(template, **context, scripts=texts, policy=policy)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def source(name: str) -> str:
    """Return a file of `templates/report` as it is."""
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
