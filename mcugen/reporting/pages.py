# SPDX-License-Identifier: Apache-2.0
"""Rendering of HTML and SVG templates with escaped text."""

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
    """Render a template of `templates/report`.

    Text that is not Markup is escaped, and its control characters are removed.
    """
    return _environment().get_template(template).render(context)


def standalone(template: str, scripts: Mapping[str, str], **context: Any) -> str:
    """Return a self-contained HTML page.

    A browser runs only the given scripts, since the page's content security policy states their digests.

    Args:
        template: Name of a template in `templates/report`.
        scripts: By the name of the template's place for a script: the name of a .js file in that folder, or the script
            itself.
        **context: Variables of the template.
    """
    texts = {name: Markup(source(text) if text.endswith(".js") else text) for name, text in scripts.items()}
    policy = " ".join(f"'sha256-{_digest(text)}'" for text in texts.values())
    return render_template(template, **context, scripts=texts, policy=policy)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def source(name: str) -> str:
    """Return the text of a script or style sheet in the folder `templates/report`."""
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
