# SPDX-License-Identifier: Apache-2.0
"""Conversion of a PyTorch module or an exported program to ONNX by PyTorch's exporter."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from mcugen.core.errors import UsageError, shortened
from mcugen.core.packages import optional_package
from mcugen.frontend.conversion import conversion_error, require_no_examples

_EXPORT_REMEDY = (
    "call torch.export.export(module, example_inputs), which names the line of code that cannot be exported"
)

_BRANCH_REMEDY = "choose between results by torch.where, or between functions by torch.cond, instead of by `if`"

_EXPORTER_LOGGERS = ("torch.onnx", "torch.export", "torch.fx", "onnxscript")
"""Loggers that are silent during an export: they tell of missing packages and of their own code."""

_KEPT_METADATA = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "pkg.onnxscript.rewriter.rule_name")
"""Metadata of nodes from which layer names are made; the exporter also writes paths of this computer."""


def convert(model: Any, example_inputs: Any = None) -> onnx.ModelProto:
    """Return a PyTorch module or exported program as ONNX.

    A module is exported as for evaluation, whatever its mode. The mode of each of its parts stays.

    Args:
        model: A `torch.nn.Module`, or a `torch.export.ExportedProgram`.
        example_inputs: The arguments of `forward` for one inference; only for modules.

    Raises:
        UsageError: The object is neither, or a module has no example inputs.
        ModelError: PyTorch cannot export the model.
        ToolMissingError: The package onnxscript is not installed.
    """
    import torch

    from mcugen.frontend.torch.prepared import converted_module

    if isinstance(model, torch.export.ExportedProgram):
        require_no_examples(example_inputs, "a torch.export.ExportedProgram")
        return export_module(model, (), {}, "model")
    if not isinstance(model, torch.nn.Module):
        fault = f"{shortened(repr(model), 80)}, which is of type {type(model).__name__}"
        raise UsageError("a PyTorch model must be a torch.nn.Module or a torch.export.ExportedProgram", fault)
    model = converted_module(model)
    args, kwargs = _arguments(example_inputs, model)
    with _evaluation_mode(model):
        return export_module(model, args, kwargs, snake_case(type(model).__name__))


def convert_file(path: Path) -> onnx.ModelProto:
    """Return the program in a .pt2 file as ONNX.

    Raises:
        ModelError: The file is not an archive of torch.export.save, may run code, or cannot be exported.
        ToolMissingError: PyTorch or onnxscript is not installed.
    """
    with optional_package("torch", f"{path}: a PyTorch program"):
        from mcugen.frontend.torch.archive import load_program
    return export_module(load_program(path), (), {}, path.stem)


def _arguments(example_inputs: Any, module: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments of `forward` as tensors on the module's device."""
    import torch

    if example_inputs is None:
        rule = "a torch.nn.Module needs example inputs, which give the shapes"
        raise UsageError(rule, "none", "example_inputs=(torch.zeros(1, 3, 32, 32),), with the shape of your input")
    parameter = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    if parameter.device.type == "meta":
        rule = "a torch.nn.Module must hold the values of its weights"
        raise UsageError(rule, "weights on the device 'meta', which has none", "load the weights: load_state_dict")
    place = partial(_tensor, like=parameter)
    if isinstance(example_inputs, Mapping):
        return (), {str(name): _map_tensors(place, value) for name, value in example_inputs.items()}
    if isinstance(example_inputs, tuple | list):
        return tuple(_map_tensors(place, value) for value in example_inputs), {}
    return (place(example_inputs),), {}


def _map_tensors(place: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples, lists and dictionaries with each array or tensor in them replaced."""
    if isinstance(value, Mapping):
        return {name: _map_tensors(place, item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_map_tensors(place, item) for item in value)
    return place(value)


def _tensor(value: Any, like: Any) -> Any:
    """Return an array or a tensor as a tensor of its own; other values stay.

    NumPy's float64 becomes float32, unless the module computes in float64. PyTorch takes two inputs for one if they are
    the same tensor.

    Args:
        value: The array, the tensor or another value.
        like: A parameter of the module, which gives the device and the type for NumPy's float64.
    """
    import torch

    if isinstance(value, np.ndarray | np.generic):
        array = torch.from_numpy(np.array(value))
        is_narrowed = array.dtype == torch.float64 and like.dtype != torch.float64
        return array.to(like.device, torch.float32 if is_narrowed else array.dtype)
    return value.detach().to(like.device, copy=True) if isinstance(value, torch.Tensor) else value


@contextmanager
def _evaluation_mode(module: Any) -> Iterator[None]:
    """Set all parts of a module to evaluation; exported modules have no method `eval`."""
    modes = {part: part.training for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, is_training in modes.items():
            part.training = is_training


def export_module(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> onnx.ModelProto:
    """Return a module or an exported program as ONNX.

    Args:
        model: The module, in evaluation mode, or the program.
        args: Positional arguments of `forward`.
        kwargs: Named arguments of `forward`.
        name: Name of the graph.

    Raises:
        ModelError: PyTorch cannot export the model.
        ToolMissingError: The package onnxscript is not installed.
    """
    import torch

    with optional_package("torch", "a PyTorch model"):
        import onnxscript  # noqa: F401 - torch.onnx imports it, with another message if it is missing.
    from mcugen.frontend.torch.quantized_weights import OPSET, with_explicit_weights
    from mcugen.frontend.torch.translations import integer_operators

    try:
        with quiet_exporter():
            explicit = with_explicit_weights(model)
            program = torch.onnx.export(
                explicit,
                (*args, {}) if args and isinstance(args[-1], dict) else args,  # A last dictionary would name arguments.
                kwargs=kwargs or None,
                dynamo=True,
                verbose=False,
                opset_version=None if explicit is model else OPSET,
                custom_translation_table=integer_operators(),
            )
    except Exception as error:  # The exporter and the module's own code raise any type.
        remedy = _BRANCH_REMEDY if "data-dependent" in str(error) else _EXPORT_REMEDY
        raise conversion_error("a PyTorch model", error, remedy) from error
    proto: onnx.ModelProto = program.model_proto
    proto.graph.name = name
    tidy_export(proto)
    return proto


def tidy_export(proto: onnx.ModelProto) -> None:
    """Remove what PyTorch's exporter tells about this computer, and give the outputs plain names."""
    _strip_metadata(proto)
    name_outputs(proto.graph)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Hide what the exporter prints: warnings on packages and on its own code, and graphs that it could not export."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in _EXPORTER_LOGGERS}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _strip_metadata(proto: onnx.ModelProto) -> None:
    """Remove what the exporter tells about the computer: source files, their lines and stack traces."""
    for graph in (proto.graph, *proto.functions):
        for node in graph.node:
            kept = [entry for entry in node.metadata_props if entry.key in _KEPT_METADATA]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
    del proto.graph.metadata_props[:]


def name_outputs(graph: onnx.GraphProto) -> None:
    """Name the outputs "output", or "output_0" and so on, in place of the last operations of the module."""
    known = {name for node in graph.node for name in (*node.input, *node.output)} | {i.name for i in graph.input}
    names = ["output"] if len(graph.output) == 1 else [f"output_{i}" for i in range(len(graph.output))]
    computed = {name for node in graph.node for name in node.output}
    old = [output.name for output in graph.output]
    if known.intersection(names) or len(set(old)) < len(old) or not computed.issuperset(old):
        return
    renamed = dict(zip(old, names, strict=True))
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for value in (*graph.output, *graph.value_info):
        value.name = renamed.get(value.name, value.name)


def snake_case(name: str) -> str:
    """Return the name of a class as words in lower case with underscores."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
