# SPDX-License-Identifier: Apache-2.0
"""A user's own Python files: operators, with the same class, registration and templates as built-in ones; metrics."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from mcugen.codegen.declarations import mismatches
from mcugen.codegen.render import template_environment
from mcugen.errors import UsageError
from mcugen.kernels.declared import kernels_of
from mcugen.limits import cpu_seconds
from mcugen.ops.onnx_node import IMPORTERS, SUPPORT, Importer, Support
from mcugen.resources import add_template_dir, template_dirs

_loaded: set[Path] = set()


def load_plugin(file: str | Path) -> None:
    """Runs a Python file, which registers operators by `@onnx_operator`; a file is run once.

    The templates of its kernels are `kernels/<name>.c.j2` beside it. UsageError where it cannot be run, registers
    nothing, or registers an operator that is known already, or where a kernel and its template disagree.
    """
    path = Path(file).resolve()
    if path in _loaded:
        return
    if not path.is_file():
        raise UsageError(f"--plugin {file}: there must be such a file", "none", "check the path")
    before, supported = dict(IMPORTERS), dict(SUPPORT)
    try:
        with cpu_seconds(f"--plugin {file}: running it"):
            disagreements = _disagreements(_run(path), path.parent)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        _restore(before, supported)
        raise UsageError(
            f"--plugin {file}: the file must run", f"{type(error).__name__}: {error}", "repair it"
        ) from error
    taken = [
        f"{op_type} of domain '{domain or 'ai.onnx'}'"
        for (domain, op_type), importer in before.items()
        if IMPORTERS[domain, op_type] is not importer
    ]
    if taken or len(IMPORTERS) == len(before):
        _restore(before, supported)
        found, remedy = (taken[0], "use a domain of your own") if taken else ("none", "mark them by @onnx_operator")
        raise UsageError(f"--plugin {file}: the file must register new operators", found, remedy)
    if disagreements:
        _restore(before, supported)
        rule = f"--plugin {file}: kernels and their templates must read the same names"
        raise UsageError(rule, "; ".join(disagreements[:3]), "repair the declaration or the template")
    add_template_dir(path.parent)
    _loaded.add(path)


def _disagreements(module: ModuleType, folder: Path) -> list[str]:
    """Of the kernels that a plugin declares, with their templates."""
    env = template_environment((*template_dirs(), folder))
    return [sentence for kernel in kernels_of(module) for sentence in mismatches(kernel, env)]


def load_function(file: str | Path, name: str) -> Callable[..., Any]:
    """Runs a Python file and returns its function of that name. UsageError where that cannot be."""
    try:
        with cpu_seconds(f"{file}: running it"):
            function = getattr(_run(Path(file)), name)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{file}: the file must run and have a function '{name}'", reason, "repair it") from error
    if not callable(function):
        raise UsageError(f"{file}: '{name}' must be a function", type(function).__name__, "repair it")
    return cast(Callable[..., Any], function)


def _restore(importers: dict[tuple[str, str], Importer], supported: dict[tuple[str, str], Support]) -> None:
    for registry, content in ((IMPORTERS, importers), (SUPPORT, supported)):
        registry.clear()
        registry.update(content)  # type: ignore[arg-type]


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"mcugen_plugin_{len(_loaded)}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
