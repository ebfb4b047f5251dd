# SPDX-License-Identifier: Apache-2.0
"""Checks that a kernel's template reads exactly what the kernel declares."""

from __future__ import annotations

import re

import jinja2
from jinja2 import meta

from mcugen.lir.kernel import DeclaredMember, Kernel

TEMPLATE_CONTEXT_NAMES = frozenset({"fn", "p", "signature", "flags", "needs", "types"})
"""Names that every template receives; see mcugen.codegen.render."""

_MEMBER = re.compile(r"\bp(?:->|\.)(\w*)(\{\{|[\"%])?")
"""A member's name in a template, or its beginning if the template composes the name."""


def mismatches(kernel: Kernel, env: jinja2.Environment) -> list[str]:
    """Return the names that a kernel declares but its template does not read, and the other way round, as sentences.

    If the template cannot be read, the result is one sentence that says so. Names that only imported or included
    templates read are not checked; a missing one fails when the template is rendered.

    Args:
        kernel: The kernel.
        env: Environment that finds the kernel's template.
    """
    name = f"kernels/{kernel.name}.c.j2"
    try:
        return _mismatches(kernel, env, name)
    except jinja2.TemplateNotFound as error:
        return [f"there is no template {error.name}"]
    except jinja2.TemplateSyntaxError as error:
        return [f"line {error.lineno} of {name}: {error.message}"]


def _mismatches(kernel: Kernel, env: jinja2.Environment, name: str) -> list[str]:
    own = _source(env, name)
    sources = [own, *(_source(env, other) for other in _imported(env, own))]
    read = {match for source in sources for match in _MEMBER.findall(source)}
    needed = set(_MEMBER.findall(own))
    faults = [
        f"{name} reads p->{text}, which {kernel.name} does not declare"
        for text, goes_on in sorted(needed)
        if not any(_is_meant(member, text, bool(goes_on)) for member in kernel.members)
    ]
    faults += [
        f"{kernel.name} declares the parameter {member.name}, which its template does not read"
        for member in kernel.named_members
        if not any(_is_meant(member, text, bool(goes_on)) for text, goes_on in read)
    ]
    options = {option.name for group in kernel.options for option in group.declared()}
    undeclared = meta.find_undeclared_variables(env.parse(own))
    faults += [
        f"{name} reads {text}, which is no option" for text in sorted(undeclared - options - TEMPLATE_CONTEXT_NAMES)
    ]
    words = {word for source in sources for word in re.findall(r"\w+", source)}
    faults += [f"the option {option} is not read by {name}" for option in sorted(options - words)]
    return faults


def _is_meant(member: DeclaredMember, text: str, goes_on: bool) -> bool:
    """Return whether `p->text` in a template can be the member; with `goes_on`, a computed text follows `text`."""
    if member.many or goes_on:
        return member.name.startswith(text) or text.startswith(member.name)
    return member.name == text


def _source(env: jinja2.Environment, name: str) -> str:
    assert env.loader is not None
    return env.loader.get_source(env, name)[0]


def _imported(env: jinja2.Environment, source: str) -> set[str]:
    """Return the templates that `source` imports or includes, directly or indirectly."""
    templates: set[str] = set()
    todo = [source]
    while todo:
        for name in re.findall(r'\{%-?\s*(?:import|from|include|extends)\s*"([^"]+)"', todo.pop()):
            if name not in templates:
                templates.add(name)
                todo.append(_source(env, name))
    return templates
