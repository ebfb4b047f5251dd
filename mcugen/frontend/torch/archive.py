# SPDX-License-Identifier: Apache-2.0
"""Safe loading of .pt2 files, the archives of `torch.export.save`.

`torch.export.load` (PyTorch 2.13) runs code that a hostile archive holds: it unpickles weights, constants and example
inputs without restriction, evaluates the texts of symbolic sizes, and looks operators up by name anywhere in `torch`.
So this module reads the archive itself, checks that only tensors, known operators and plain sizes are in it, and gives
PyTorch a new archive with what was checked.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.pt2_archive import PT2ArchiveWriter
from torch.export.pt2_archive._package import load_pt2

from mcugen.core.errors import DoesNotFitError, ModelError, shortened
from mcugen.core.limits import MAX_MODEL_BYTES

_SAVE_REMEDY = 'write it by torch.export.save(torch.export.export(module, example_inputs), "model.pt2")'
_REFUSED_REMEDY = "if you trust the file, load it by torch.export.load in Python and call mcugen.compile(program, …)"

_PROGRAM = "models/model.json"
_PAYLOADS = ("data/weights/", "data/constants/")
_CONFIGURATIONS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_EXAMPLE_INPUTS = "data/sample_inputs/model.pt"
_COPIED = ("archive_format", "archive_version", "byteorder")
"""Names of entries in the archive, after the folder that all entries are in."""

_OPERATORS = re.compile(
    r"torch\.ops\.(aten|prims|quantized_decomposed)\.\w+(\.\w+)?"
    r"|torch\.ops\.higher_order\.(cond|while_loop|scan|map_impl|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|torch\.sym_(int|float|max|min|not|ite|sum)"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_)"
    r"|math\.(ceil|floor|trunc|sqrt|prod)"
)
"""Operators that a program may call: functions of tensors and sizes that touch no file."""
_FILE_OPERATORS = re.compile(r"torch\.ops\.aten\.from_file(\..*)?")

_SIZE = re.compile(r"(?!.*\*\*)(?:[suz]\d{1,6}|\d{1,18}|Max|Min|Mod|FloorDiv|True|False|[-+*/(), <>=])+")
"""Texts of sizes that are arithmetic on whole numbers and symbols such as `s77`."""

_CONTAINERS = frozenset({None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
"""Types of the nested inputs and outputs; PyTorch imports a module by name for some others."""

_KEPT_METADATA = "nn_module_stack"
"""Metadata of a node from which layer names are made."""


def load_program(path: Path) -> torch.export.ExportedProgram:
    """Return the exported program in a .pt2 file; no code of the file runs.

    Raises:
        ModelError: The file is not an archive of `torch.export.save`, or holds more than a program and its tensors.
        DoesNotFitError: The file is too large.
    """
    checked = _rebuilt(_entries(path), path)
    try:
        _register_quantizers()
        return load_pt2(checked).exported_programs["model"]
    except Exception as error:  # PyTorch raises any type for an inconsistent program.
        fault = shortened(f"{type(error).__name__}: {error}".splitlines()[0], 300)
        raise ModelError(
            f"{path}: the program must be valid for PyTorch {torch.__version__}", fault, _SAVE_REMEDY
        ) from error


def _register_quantizers() -> None:
    """Register the operators of PyTorch's quantizers with PyTorch, if this version has them."""
    with contextlib.suppress(ImportError):
        import torch.ao.quantization.fx._decomposed  # noqa: F401 - the import registers them.


def _entries(path: Path) -> dict[str, bytes]:
    """Return the entries of an archive by their names without the folder that they share."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > MAX_MODEL_BYTES:
                raise DoesNotFitError(
                    f"{path}: a model must have at most {MAX_MODEL_BYTES:,} bytes", f"{size:,} unpacked"
                )
            return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ModelError(f"{path}: the file must be a .pt2 archive", str(error), _SAVE_REMEDY) from error


def _rebuilt(entries: Mapping[str, bytes], path: Path) -> io.BytesIO:
    """Return an archive with the checked program, its tensors, and no example inputs."""
    program = _object(entries, _PROGRAM, path)
    configurations = {name: _object(entries, name, path) for name in _CONFIGURATIONS}
    for refused_part in (*_refused_parts(program), *map(_refused_payload, configurations.values())):
        if refused_part:
            rule = f"{path}: a .pt2 file must hold only a program and its tensors"
            raise ModelError(rule, refused_part, _REFUSED_REMEDY)
    program |= {"guards_code": []}
    program["graph_module"]["treespec_namedtuple_fields"] = {}
    for node in _nodes(program):
        metadata = node["metadata"]
        node["metadata"] = {key: metadata[key] for key in (_KEPT_METADATA,) if isinstance(metadata.get(key), str)}
    buffer = io.BytesIO()
    with PT2ArchiveWriter(buffer) as writer:
        for name, value in {_PROGRAM: program, **configurations}.items():
            writer.write_string(name, json.dumps(value))
        for name, data in entries.items():
            if name in _COPIED or (name.startswith(_PAYLOADS) and name not in _CONFIGURATIONS):
                writer.write_bytes(name, data)
        writer.write_bytes(_EXAMPLE_INPUTS, b"")
    buffer.seek(0)
    return buffer


def _object(entries: Mapping[str, bytes], name: str, path: Path) -> dict[str, Any]:
    """Return an entry that is a JSON object."""
    try:
        value = json.loads(entries[name])
    except (KeyError, ValueError, RecursionError) as error:
        fault = f"no valid {name} in it"
        raise ModelError(f"{path}: the file must be a .pt2 archive", fault, _SAVE_REMEDY) from error
    if not isinstance(value, dict) or (name == _PROGRAM and not isinstance(value.get("graph_module"), dict)):
        raise ModelError(f"{path}: the file must be a .pt2 archive", f"no valid {name} in it", _SAVE_REMEDY)
    return value


def _refused_payload(configuration: Mapping[str, Any]) -> str:
    """Return what a table of weights or constants holds other than plain tensors; "" for nothing."""
    table = configuration.get("config")
    payloads = table.values() if isinstance(table, dict) else [None]
    plain = [
        isinstance(p, dict) and p.get("use_pickle") is False and _is_tensor_name(p.get("path_name")) for p in payloads
    ]
    sizes = next(_refused_parts(configuration), "")
    return sizes if all(plain) else "a pickle, which runs code when it is loaded"


def _is_tensor_name(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"(weight|tensor)_\d+", name) is not None


def _refused_parts(value: Any) -> Iterator[str]:
    """Yield the operators, sizes and containers in a JSON value that may run code."""
    for holder in _objects(value):
        for key in ("target", "as_operator"):
            name = holder.get(key)
            if isinstance(name, str) and (not _OPERATORS.fullmatch(name) or _FILE_OPERATORS.fullmatch(name)):
                yield f"the operator {name}"
        text = holder.get("expr_str", "0")
        if not isinstance(text, str) or not _SIZE.fullmatch(text):
            yield f"the size {text!r}"
        for key in ("in_spec", "out_spec"):
            if holder.get(key):
                yield from _refused_containers(holder[key])


def _refused_containers(text: Any) -> Iterator[str]:
    """Yield the types of nested inputs or outputs, written as JSON in a text, that are not plain containers."""
    try:
        specification = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        yield f"the container {text!r}"
        return
    for holder in _objects(specification):
        kind = holder.get("type")
        if kind not in _CONTAINERS:
            yield f"the container {kind!r}"


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a JSON value, without recursion."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            yield item
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def _nodes(program: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a program and of its nested graphs."""
    return (item for item in _objects(program) if "target" in item and isinstance(item.get("metadata"), dict))
