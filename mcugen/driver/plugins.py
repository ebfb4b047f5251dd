# SPDX-License-Identifier: Apache-2.0
"""Python files of the user: operators, with the class, registration and templates of built-in ones, and metrics."""

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

from mcugen.backends.accelerator import Accelerator
from mcugen.codegen.declarations import mismatches
from mcugen.codegen.environment import environment
from mcugen.core.errors import UsageError
from mcugen.core.limits import limit_cpu_seconds, open_regular
from mcugen.core.resources import resource_dir
from mcugen.frontend.tflite import operators as _operators  # noqa: F401 (registers mcugen's own before any plug-in's)
from mcugen.kernels.common.declared import kernels_of
from mcugen.ops.onnx_node import BUILT_IN, Registry, registering

_KERNELS = "kernels"
"""Name of the folder of kernel templates, beside a plug-in and in mcugen."""


def registry_of(files: Sequence[str | Path]) -> Registry:
    """Return the registry of mcugen's own ONNX operators and of those that plug-in files register.

    A plug-in is a Python file that registers ONNX operators by the decorator `@onnx_operator`, or custom operators of
    .tflite files by `@tflite_operator` (mcugen.frontend.tflite.node). Templates of its kernels are the files
    `kernels/<name>.c.j2` in the folder of the plug-in.

    Args:
        files: Paths of the plug-in files.

    Raises:
        UsageError: If a file cannot be run, registers no operator, or registers one that exists already. Also if a
            kernel disagrees with its template, or a template has the name of an existing one.
    """
    if not files:
        return BUILT_IN
    registry = BUILT_IN.copy()
    for path, file in {Path(os.path.realpath(file)): file for file in files}.items():
        if not path.is_file():
            raise UsageError(f"--plugin {file}: there must be such a file", "none", "check the path")
        _require_own_names(path.parent, (resource_dir("templates"), *registry.templates), str(file))
        file_registry, accelerators = _load_plugin(path, path.stat().st_mtime_ns, str(file))
        if not accelerators or file_registry.importers or file_registry.tflite:
            _require_new_operators(file_registry, registry, str(file))
        registry.importers.update(file_registry.importers)
        registry.support.update(file_registry.support)
        registry.tflite.update(file_registry.tflite)
        registry = replace(registry, templates=tuple(dict.fromkeys((*registry.templates, path.parent))))
    return registry


def accelerators_of(files: Sequence[str | Path]) -> list[Accelerator]:
    """Return the accelerators that plug-in files define as variables of their modules, in order."""
    accelerators = list[Accelerator]()
    for file in files:
        path = Path(os.path.realpath(file))
        accelerators += _load_plugin(path, path.stat().st_mtime_ns, str(file))[1]
    return accelerators


def _require_new_operators(file_registry: Registry, registry: Registry, file: str) -> None:
    """Raise UsageError if a plug-in registers no operators, or some that exist already."""
    known = sorted(file_registry.importers.keys() & registry.importers)
    known_custom = sorted(file_registry.tflite.keys() & registry.tflite)
    if known:
        domain, name = known[0]
        first, remedy = f"{name} of domain '{domain or 'ai.onnx'}'", "use a domain of your own"
    elif known_custom:
        first, remedy = f"{known_custom[0]} of .tflite files", "use another name"
    elif not file_registry.importers and not file_registry.tflite:
        first, remedy = "none", "mark them by @onnx_operator or @tflite_operator, or define an Accelerator"
    else:
        return
    raise UsageError(f"--plugin {file}: the file must register new operators", first, remedy)


def _require_own_names(folder: Path, known_folders: Sequence[Path], file: str) -> None:
    """Raise UsageError if a kernel template exists in two folders, as the name of a kernel identifies its template."""
    names = (template.name for template in sorted((folder / _KERNELS).glob("*.c.j2")))
    duplicate = next(
        (name for name in names if any((other / _KERNELS / name).exists() for other in known_folders)), None
    )
    if duplicate is not None and folder not in known_folders:
        rule = f"--plugin {file}: kernels must have names of their own"
        raise UsageError(rule, f"{_KERNELS}/{duplicate} is another's, too", "rename the kernel and its template")


@cache
def _load_plugin(path: Path, _changed: int, file: str) -> tuple[Registry, tuple[Accelerator, ...]]:
    """Return what one file registers, and its accelerators.

    The file runs once, and again if its time of change (`_changed`) differs.
    """
    file_registry = Registry()
    try:
        with limit_cpu_seconds(f"--plugin {file}: running it"), registering(file_registry):
            module = _run(path)
            disagreements = _disagreements(module, path.parent)
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        raise UsageError(
            f"--plugin {file}: the file must run", f"{type(error).__name__}: {error}", "repair it"
        ) from error
    if disagreements:
        rule = f"--plugin {file}: kernels and their templates must read the same names"
        raise UsageError(rule, "; ".join(disagreements[:3]), "repair the declaration or the template")
    return file_registry, tuple(value for value in vars(module).values() if isinstance(value, Accelerator))


def _disagreements(module: ModuleType, folder: Path) -> list[str]:
    """Return the disagreements between a plug-in's kernels and their templates."""
    env = environment((folder,))
    return [sentence for kernel in kernels_of(module) for sentence in mismatches(kernel, env)]


def load_function(file: str | Path, name: str) -> Callable[..., Any]:
    """Run a Python file of the user, and return the function that it defines by the given name.

    Raises:
        UsageError: If the file does not run or has no such function.
    """
    try:
        with limit_cpu_seconds(f"{file}: running it"):
            function = getattr(_run(Path(file)), name)
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{file}: the file must run and have a function '{name}'", reason, "repair it") from error
    if not callable(function):
        raise UsageError(f"{file}: '{name}' must be a function", type(function).__name__, "repair it")
    return cast(Callable[..., Any], function)


_numbers = count()
"""Numbers that make module names unique, since two files may have the same name."""


def _run(path: Path) -> ModuleType:
    """Run a Python file as a module of its own."""
    open_regular(path).close()
    spec = importlib.util.spec_from_file_location(f"mcugen_plugin_{next(_numbers)}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look up their module.
    spec.loader.exec_module(module)
    return module
