# SPDX-License-Identifier: Apache-2.0
"""The table of operators: what `mcugen operators` prints and docs/reference/operators.md shows."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from mcugen.codegen.libraries import LIBRARIES, Library
from mcugen.frontend.onnx.functions import type_name
from mcugen.frontend.onnx.opset_upgrade import OLDEST_OPSET
from mcugen.hir.types import DType
from mcugen.kernels.families import FAMILY_PACKAGES, load_families
from mcugen.ops.onnx_node import BUILT_IN, NO_CODE_TEXT, Registry, Support

IMPORTED_ELSEWHERE = {
    "Constant": "known at compile time",
    "Shape": "known at compile time",
    "Size": "known at compile time",
    "SequenceConstruct": "sequences of known length, within a model",
    "SequenceEmpty": "sequences of known length, within a model",
    "SequenceInsert": "sequences of known length, within a model",
    "SequenceErase": "sequences of known length, within a model",
    "SequenceAt": "sequences of known length, within a model",
    "SequenceLength": "sequences of known length, within a model",
    "SplitToSequence": "sequences of known length, within a model",
    "ConcatFromSequence": "sequences of known length, within a model",
    "Optional": "a tensor that is there, within a model",
    "OptionalGetElement": "a tensor that is there, within a model",
    "OptionalHasElement": "known at compile time",
}
"""Remark for the operator table, by the ONNX operators that the importer handles without a class of their own."""


def operator_table(registry: Registry = BUILT_IN) -> str:
    """Return a Markdown table of all supported operators, with versions, types, kernels and limits."""
    newest = onnx.defs.onnx_opset_version()
    lines = [
        f"Models of opset {OLDEST_OPSET} to {newest} are read. An operator with constant inputs is computed at compile "
        "time, whatever its element type. Floats of 16 bits and less are stored as such and computed as float32. "
        "Beside an operator's kernels, `copy`, `transpose`, `fill`, `move` and `elementwise` may stand for what is "
        "moved, broadcast or converted."
    ]
    domains = sorted({domain for domain, _ in registry.importers} | {""})
    missing = []
    for domain in domains:
        rows = []
        for name, schemas in sorted(_schemas(domain, registry).items()):
            row = _row(domain, name, schemas, registry)
            if row:
                rows.append(row)
            else:
                missing.append(name)
        known = _schemas(domain, registry)
        rows += [
            _foreign_row(n, registry.support[domain, n])
            for d, n in sorted(registry.importers)
            if d == domain and n not in known
        ]
        head = ["", f"### {domain or 'ai.onnx'}", "", "| operator | versions | element types | kernels | limits |"]
        lines += [*head, "|---|---|---|---|---|", *rows]
    lines += ["", "### Not supported", "", ", ".join(missing) + ".", *_unsupported_operators(registry)]
    for library in (library for library in LIBRARIES.values() if library.key in FAMILY_PACKAGES):
        lines += ["", f"### {library.title}", "", *_library_rows(library)]
    return "\n".join(lines) + "\n"


def _unsupported_operators(registry: Registry) -> Iterator[str]:
    """Yield the operators of ONNX Runtime that are not supported, by reason."""
    left = {key: reason for key, reason in registry.left_out.items() if key not in registry.importers}
    yield from ("", "Of ONNX Runtime's own operators on its CPU:", "", "| operator | why not |", "|---|---|")
    for reason in dict.fromkeys(left.values()):
        yield _line(", ".join(sorted(name for (_, name), why in left.items() if why == reason)), reason)


def _library_rows(library: Library) -> Iterator[str]:
    """Yield the layers that a library may compute."""
    yield (
        f"`--kernels {library.key}` takes these kernels wherever they fit, `--kernels auto` where that serves the goal "
        "(docs/how-to/cmsis_nn.md). Layers are those of the graph after optimization (`mcugen inspect`)."
    )
    yield from ("", "| layer | kernel | where |", "|---|---|---|")
    for layer in sorted(load_families(library.key), key=lambda layer: layer.operators):
        for kernel in layer.kernels:
            yield _line(", ".join(layer.operators), kernel.name, kernel.reason.partition("; ")[2])


def _schemas(domain: str, registry: Registry) -> dict[str, list[onnx.defs.OpSchema]]:
    """Return all versions of the operators that are still in force, by name."""
    versions: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            versions.setdefault(schema.name, []).append(schema)
    return {
        name: s for name, s in versions.items() if (domain, name) in registry.importers or not _newest(s).deprecated
    }


def _newest(schemas: list[onnx.defs.OpSchema]) -> onnx.defs.OpSchema:
    return max(schemas, key=lambda s: s.since_version)


def _row(domain: str, name: str, schemas: list[onnx.defs.OpSchema], registry: Registry) -> str:
    """Return a line of the table, or "" for an operator that is not supported."""
    newest = _newest(schemas)
    versions = ", ".join(str(v) for v in sorted(s.since_version for s in schemas))
    if (domain, name) in registry.importers:
        support = registry.support[domain, name]
        return _line(name, versions, _types(newest, support), ", ".join(support.kernels), support.limits)
    if not domain and name in IMPORTED_ELSEWHERE:
        return _line(name, versions, _types(newest, Support()), NO_CODE_TEXT, IMPORTED_ELSEWHERE[name])
    if newest.has_function or newest.has_context_dependent_function:
        return _line(name, versions, _types(newest, Support()), "by its ONNX function body", "")
    return ""


def _foreign_row(name: str, support: Support) -> str:
    """Return a line of the table for an operator that is not ONNX's."""
    types = ", ".join(_short(t) for t in support.types)
    return _line(name, "", types, ", ".join(support.kernels), support.limits)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _types(schema: onnx.defs.OpSchema, support: Support) -> str:
    """Return the element types of the operator's data that both ONNX and the kernels allow."""
    allowed = list(dict.fromkeys(_allowed_types(schema)))
    kept = [t for t in DType if t in allowed and (not support.types or t in support.types or _as_float32(t, support))]
    return ", ".join(map(_short, kept))


def _as_float32(dtype: DType, support: Support) -> bool:
    return dtype.is_narrow_float and DType.FLOAT32 in support.types


def _allowed_types(schema: onnx.defs.OpSchema) -> Iterator[DType]:
    """Yield the types that ONNX allows for the operator's data.

    They are those of the output's type parameter if an input has it, or else of the first input.
    """
    inputs = [i.type_str for i in schema.inputs]
    outputs = [o.type_str for o in schema.outputs]
    type_parameter = next((t for t in outputs[:1] if t in inputs), next(iter(inputs or outputs), ""))
    constraint = next(
        (c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == type_parameter), [type_parameter]
    )
    for text in constraint:
        name = text.removeprefix("seq(").rstrip(")") + ")"
        yield from (dtype for dtype in DType if type_name(dtype) == name)


def _short(dtype: DType) -> str:
    return dtype.value.replace("float", "f").replace("uint", "u").replace("int", "i")
