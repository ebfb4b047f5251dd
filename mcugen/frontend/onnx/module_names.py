# SPDX-License-Identifier: Apache-2.0
"""Node names of models that PyTorch exported: the modules that the nodes stem from, as `block1.conv`.

`torch.onnx.export` numbers nodes (`node_Conv_24`) and writes the path of their modules to the metadata of each node.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence

import onnx

from mcugen.hir.names import Names

SCOPES_KEY = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_REWRITTEN = "pkg.onnxscript.rewriter.rule_name"
"""Keys of metadata: names of the nested modules and of the operation; their classes; rules that fused nodes."""

_LIBRARY_PREFIXES = ("torch.nn.modules.", "keras.src.layers.")
"""Beginnings of the classes of PyTorch's and Keras' own layers: the layer alone names its operation."""

_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Operators that a quantizer adds; they belong to no module."""

_NUMBERED_QUANTIZERS = ("node_quantize_per_", "node_dequantize_per_")
"""Beginnings of the names that PyTorch gives to these nodes."""

_NUMBER = re.compile(r"(?<=[a-z])_\d+$")
"""Number of an operation among all operations of its kind in a model: `add_1`."""

MAX_SCOPES_CHARACTERS = 4096
"""Largest number of characters of metadata that is parsed: real metadata has a few hundred."""


def name_by_modules(model: onnx.ModelProto) -> None:
    """Name the nodes that PyTorch exported after their modules; the model is changed in place.

    A name ends with the operator, as `block1.conv:Conv`, and a number if there are several (`attention:Mul_2`);
    `mcugen.hir.layer_names` shows it without these.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name for value in model.graph.input}
    nodes = [node for node in model.graph.node if node.op_type not in _QUANTIZERS]
    for node in model.graph.node:
        if node.op_type in _QUANTIZERS and node.name.startswith(_NUMBERED_QUANTIZERS):
            node.name = f"{node.input[0]}_quantized" if node.input[0] in inputs else ""
    places = [_place(node, weights) for node in nodes]
    paths = [".".join(filter(None, place)) for place in places]
    plain = [".".join(filter(None, (module, _NUMBER.sub("", operation)))) for module, operation in places]
    occurrences = Counter(zip(plain, (node.op_type for node in nodes), strict=True))
    used = Names((node.name for node in model.graph.node), separator="_")
    for node, path, short in zip(nodes, paths, plain, strict=True):
        if path and f":{node.op_type}" not in node.name:
            node.name = used.take(f"{short if occurrences[short, node.op_type] == 1 else path}:{node.op_type}")


def _place(node: onnx.NodeProto, weights: set[str]) -> tuple[str, str]:
    """Return the path of the module that a node stems from, and the operation in it if the module alone is not enough.

    Both are "" if they are unknown.
    """
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    scopes, classes = _texts(metadata.get(SCOPES_KEY, "")), _texts(metadata.get(_CLASSES, ""))
    if len(scopes) < 2:
        return "", ""
    if _REWRITTEN in metadata:  # The weights' names tell which of the fused modules gave the operator.
        owners = [name.rpartition(".")[0] for name in node.input if name in weights and name.endswith(".weight")]
        if owners:
            return str(owners[0]), ""
    module, operation = scopes[-2], scopes[-1]
    is_library_layer = len(classes) == len(scopes) and classes[-2].startswith(_LIBRARY_PREFIXES)
    return (module, "") if module and is_library_layer else (module, operation)


def _texts(text: str) -> Sequence[str]:
    """Return the list of texts that metadata holds as a Python literal; nothing if it is anything else."""
    if len(text) > MAX_SCOPES_CHARACTERS:
        return ()
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else ()
