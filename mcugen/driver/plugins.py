# SPDX-License-Identifier: Apache-2.0
"""A user's own Python files: operators, with the same class, registration and templates as built-in ones; metrics."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from mcugen.codegen.declarations import mismatches
from mcugen.codegen.environment import environment
from mcugen.core.errors import UsageError
from mcugen.core.limits import cpu_seconds, open_regular
from mcugen.core.resources import resource_dir
from mcugen.kernels.common.declared import kernels_of
from mcugen.ops.onnx_node import BUILT_IN, Registry, registering

_KERNELS = "kernels"
"""The folder of templates of kernels, beside a plug-in and in mcugen."""


def registry_of(files: Sequence[str | Path]) -> Registry:
    """The operators of mcugen and those that Python files register by `@onnx_operator`.

    The templates of their kernels are `kernels/<name>.c.j2` beside them. UsageError where a file cannot be run,
    registers nothing, or registers an operator that is known already, or where a kernel and its template disagree.
    So is one whose template is called like another that is known.
    """
    if not files:
        return BUILT_IN
    found = BUILT_IN.copy()
    for path, file in {Path(os.path.realpath(file)): file for file in files}.items():
        if not path.is_file():
            raise UsageError(f"--plugin {file}: there must be such a file", "none", "check the path")
        _require_own_names(path.parent, (resource_dir("templates"), *found.templates), str(file))
        own = _registered(path, path.stat().st_mtime_ns, str(file))
        taken = [f"{name} of domain '{domain or 'ai.onnx'}'" for domain, name in own.importers.keys() & found.importers]
        if taken or not own.importers:
            first, remedy = (taken[0], "use a domain of your own") if taken else ("none", "mark them by @onnx_operator")
            raise UsageError(f"--plugin {file}: the file must register new operators", first, remedy)
        found.importers.update(own.importers)
        found.support.update(own.support)
        found = replace(found, templates=tuple(dict.fromkeys((*found.templates, path.parent))))
    return found


def _require_own_names(folder: Path, others: Sequence[Path], file: str) -> None:
    """UsageError for a kernel's template that lies in two folders: a kernel's name says which it is."""
    names = (template.name for template in sorted((folder / _KERNELS).glob("*.c.j2")))
    taken = next((name for name in names if any((other / _KERNELS / name).exists() for other in others)), None)
    if taken is not None and folder not in others:
        rule = f"--plugin {file}: kernels must have names of their own"
        raise UsageError(rule, f"{_KERNELS}/{taken} is another's, too", "rename the kernel and its template")


@cache
def _registered(path: Path, _changed: int, file: str) -> Registry:
    """What one file registers; it is run once, unless it has `_changed`."""
    own = Registry()
    try:
        with cpu_seconds(f"--plugin {file}: running it"), registering(own):
            disagreements = _disagreements(_run(path), path.parent)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UsageError(
            f"--plugin {file}: the file must run", f"{type(error).__name__}: {error}", "repair it"
        ) from error
    if disagreements:
        rule = f"--plugin {file}: kernels and their templates must read the same names"
        raise UsageError(rule, "; ".join(disagreements[:3]), "repair the declaration or the template")
    return own


def _disagreements(module: ModuleType, folder: Path) -> list[str]:
    """Of the kernels that a plugin declares, with their templates."""
    env = environment((folder,))
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


_numbers = count()
"""Of what was run: modules of the same name are different ones."""


def _run(path: Path) -> ModuleType:
    open_regular(path).close()
    spec = importlib.util.spec_from_file_location(f"mcugen_plugin_{next(_numbers)}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
