# SPDX-License-Identifier: Apache-2.0
"""Static analysis sees every template of C: what tests/lint_variants.py makes takes all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jinja2
import pytest
from jinja2 import meta
from lint_variants import cpu_of, forms

from mcugen.codegen.environment import environment
from mcugen.core.board import load_board
from mcugen.core.resources import resource_dir
from mcugen.kernels.common.declared import kernels_of
from mcugen.kernels.portable import learning
from mcugen.reporting.kernels import declared_kernels

TEMPLATES = resource_dir("templates")
NO_C = {"CMakeLists.txt.j2", "memory.ld.j2", "pack.pdsc.j2"}
ELSEWHERE = ("export", "harness", "report")
"""Folders of what is no generated code of a model: examples for projects, the simulator's program, pages."""


def templates_of_c() -> set[str]:
    names = {str(path.relative_to(TEMPLATES)) for path in TEMPLATES.rglob("*.j2")}
    return {name for name in names if not name.startswith(ELSEWHERE)} - NO_C


def with_parts(names: set[str]) -> Iterator[str]:
    """Templates, and what they include or import."""
    env, todo, seen = environment(), list(names), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        yield name
        assert env.loader is not None
        text, _, _ = env.loader.get_source(env, name)
        todo += [found for found in meta.find_referenced_templates(env.parse(text)) if found is not None]


def own_kernels() -> set[str]:
    """Templates of kernels that `portable_models` and `learning_model` take, as tests/test_portability.py has it."""
    kernels = [*declared_kernels(), *kernels_of(learning)]
    return {f"kernels/{kernel.name}.c.j2" for kernel in kernels if not kernel.library}


def test_templates_of_kernels_are_those_of_declared_ones():
    of_kernels = {name for name in templates_of_c() if name.startswith("kernels/")}
    libraries = {f"kernels/{kernel.name}.c.j2" for kernel in declared_kernels() if kernel.library}
    assert of_kernels <= set(with_parts(own_kernels() | (libraries & of_kernels)))


@pytest.mark.slow
def test_forms_take_all_other_templates(monkeypatch: pytest.MonkeyPatch):
    taken = set[str]()
    get = jinja2.Environment.get_template

    def note(env: jinja2.Environment, name: str, *given: Any, **named: Any) -> jinja2.Template:
        taken.add(name)
        return get(env, name, *given, **named)

    monkeypatch.setattr(jinja2.Environment, "get_template", note)
    for _ in forms():
        pass
    others = {name for name in templates_of_c() if not name.startswith("kernels/")}
    seen = set(with_parts(taken & templates_of_c()))
    assert others <= seen, others - seen


@pytest.mark.parametrize(
    ("board", "cpu"),
    [("rp2040", "m0"), ("stm32f103", "m4"), ("corstone300", "m55"), ("esp32c3", "rv32"), ("host", "plain")],
)
def test_code_is_looked_at_as_its_cpu_sees_it(board: str, cpu: str):
    assert cpu_of(load_board(board)) == cpu
