# SPDX-License-Identifier: Apache-2.0
"""A user's own Python files: operators, with the same class, registration and templates as built-in ones; metrics."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from mcugen.errors import UsageError
from mcugen.limits import cpu_seconds
from mcugen.ops.onnx_node import BUILT_IN, Registry, registering


def registry_of(files: Sequence[str | Path]) -> Registry:
    """The operators of mcugen and those that Python files register by `@onnx_operator`.

    Their kernels are `kernels/<name>.c.j2` beside them. UsageError where a file cannot be run, registers nothing, or
    registers an operator that is known already.
    """
    if not files:
        return BUILT_IN
    found = BUILT_IN.copy()
    for path, file in {Path(file).resolve(): file for file in files}.items():
        if not path.is_file():
            raise UsageError(f"--plugin {file}: there must be such a file", "none", "check the path")
        own = _registered(path, path.stat().st_mtime_ns, str(file))
        taken = [f"{name} of domain '{domain or 'ai.onnx'}'" for domain, name in own.importers.keys() & found.importers]
        if taken or not own.importers:
            first, remedy = (taken[0], "use a domain of your own") if taken else ("none", "mark them by @onnx_operator")
            raise UsageError(f"--plugin {file}: the file must register new operators", first, remedy)
        found.importers.update(own.importers)
        found.support.update(own.support)
        found = replace(found, templates=tuple(dict.fromkeys((*found.templates, path.parent))))
    return found


@cache
def _registered(path: Path, _changed: int, file: str) -> Registry:
    """What one file registers; it is run once, unless it has `_changed`."""
    own = Registry()
    try:
        with cpu_seconds(f"--plugin {file}: running it"), registering(own):
            _run(path)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise UsageError(
            f"--plugin {file}: the file must run", f"{type(error).__name__}: {error}", "repair it"
        ) from error
    return own


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
    spec = importlib.util.spec_from_file_location(f"mcugen_plugin_{next(_numbers)}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
