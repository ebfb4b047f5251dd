# SPDX-License-Identifier: Apache-2.0
"""Oracles: independent programs that compute a model's expected outputs, from the model as the user gave it.

ONNX Runtime is tried first, then ONNX's reference evaluator. The form that the compiler imports (opset converted,
functions inlined) is used only if neither runs the model as given, since it would contain errors of the importer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from mcugen.core.errors import VerificationError
from mcugen.evaluation.exact_products import all_nodes
from mcugen.evaluation.legacy_operators import legacy_names, legacy_operators
from mcugen.evaluation.session import Session
from mcugen.hir.types import Array, QuantParams

ONNX_RUNTIME = "ONNX Runtime"
"""Name of ONNX Runtime, which is tried first to compute correct outputs, in messages and reports."""
REFERENCE_EVALUATOR = "ONNX's reference evaluator"
"""Name of ONNX's reference evaluator, which is tried if ONNX Runtime does not run a model, in messages and reports."""

_RULE = "ONNX Runtime must run the model for comparison"
_STANDARD_DOMAINS = ("", "ai.onnx")

Outputs = Mapping[str, Array]
Run = Callable[[Outputs], dict[str, Any]]
"""A function that computes all outputs of a model by name, given its inputs by name, for one sample."""


@dataclass(frozen=True)
class OracleModel:
    """A model as the user gave it, with the data that an independent program needs to run it.

    Attributes:
        given: The model as given, with its external data inside.
        converted: The form that the compiler imports, which is tried second; None if that is the model as given.
        fixed: Inputs by name that are not part of samples: inputs bound to values, and initial states.
        states: For each output that is a new state, the input that gets it in the next call.
        coded: Scale and zero point, and type, of each input and output that the generated code takes or gives
            quantized.
    """

    given: onnx.ModelProto
    converted: onnx.ModelProto | None = None
    fixed: Outputs = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    coded: Mapping[str, tuple[QuantParams, np.dtype[Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class OracleRun:
    """The outputs of an independent program.

    Attributes:
        outputs: Outputs of each sample by name.
        name: Name of the program.
        note: A sentence for the user, unless the program is ONNX Runtime with the model as given; else "".
    """

    outputs: list[dict[str, Array]]
    name: str = ONNX_RUNTIME
    note: str = ""


def run_oracle(
    model: OracleModel, samples: Sequence[Outputs], progress: Callable[[int], None] | None = None
) -> OracleRun:
    """Compute the outputs of a model for samples by the first independent program that runs it.

    Args:
        model: The model.
        samples: The inputs of each sample, by name, as the generated code takes them.
        progress: Gets the number of samples that are done.

    Raises:
        VerificationError: No program runs the model, neither as given nor converted.
    """
    reasons: list[VerificationError] = []
    for name, note, start in _programs(model):
        try:
            outputs = run_samples(model, start(), samples, progress)
        except VerificationError as error:
            reasons.append(error)
            continue
        if not note:
            return OracleRun(outputs)
        note = f"compared with {note}, because {ONNX_RUNTIME} does not run the file as it is: {_reason(reasons[0])}"
        return OracleRun(outputs, name, note)
    raise reasons[0]


def _programs(model: OracleModel) -> Iterator[tuple[str, str, Callable[[], Run]]]:
    """Yield the programs to try, the most trusted one first: name, words for a note, and a function that starts it."""
    yield ONNX_RUNTIME, "", lambda: start_onnx_runtime(model.given, relabels=False)
    yield (
        REFERENCE_EVALUATOR,
        f"{REFERENCE_EVALUATOR} on the file as it is",
        lambda: start_reference_evaluator(model.given),
    )
    older = f"{ONNX_RUNTIME} on the file declared to have an older opset"
    yield ONNX_RUNTIME, older, lambda: start_onnx_runtime(model.given)
    if model.converted is not None:
        converted = model.converted
        note = f"{ONNX_RUNTIME} on the file converted to opset {_opset(converted)}"
        yield f"{ONNX_RUNTIME} (file converted)", note, lambda: start_onnx_runtime(converted)
        note = f"{REFERENCE_EVALUATOR} on the file converted to opset {_opset(converted)}"
        yield f"{REFERENCE_EVALUATOR} (file converted)", note, lambda: start_reference_evaluator(converted)


def _reason(error: VerificationError) -> str:
    """Return what ONNX Runtime says, without the number and the class of its error."""
    return error.found.rpartition(" : ")[2]


def _opset(model: onnx.ModelProto) -> int:
    newest = onnx.defs.onnx_opset_version()
    return next((int(entry.version) for entry in model.opset_import if entry.domain in _STANDARD_DOMAINS), newest)


def start_onnx_runtime(model: onnx.ModelProto, *, relabels: bool = True) -> Run:
    """Return a function that runs a model by ONNX Runtime.

    Args:
        model: The model.
        relabels: Whether a model of an opset that ONNX Runtime has no kernels for is run as one of an older opset.
    """
    session = Session(model, rule=_RULE, relabels=relabels)
    names = session.outputs
    return lambda feeds: session.run(names, feeds)


def start_reference_evaluator(model: onnx.ModelProto) -> Run:
    """Return a function that runs a model by ONNX's reference evaluator, which is written in numpy.

    Raises:
        VerificationError: The evaluator lacks an operator, or has it in another version than the model's.
    """
    from onnx.reference import ReferenceEvaluator  # it brings all of ONNX's operators in numpy

    wrong = _misread_node(model)
    if wrong is not None:
        raise VerificationError(_RULE, f"{REFERENCE_EVALUATOR} has another version of {wrong.op_type}")
    try:
        evaluator = ReferenceEvaluator(model, new_ops=[] if model.functions else legacy_operators(_opset(model)))
    except Exception as error:  # it raises types of its own, without a common base
        raise _failure(error) from error
    names = [output.name for output in model.graph.output]

    def run(feeds: Outputs) -> dict[str, Any]:
        copies = {name: np.array(array) for name, array in feeds.items()}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return dict(zip(names, evaluator.run(names, copies), strict=True))
        except Exception as error:
            raise _failure(error) from error

    return run


def _failure(error: Exception) -> VerificationError:
    return VerificationError(_RULE, f"{REFERENCE_EVALUATOR}: {str(error).split(chr(10))[0][:200]}")


def _misread_node(model: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return the first node that the reference evaluator would compute by the rules of another opset.

    Where the evaluator has one implementation of an operator for all opsets, that follows the newest definition
    (Softmax-13 for Softmax-11, say). The definitions agree if inputs have the same names, attributes that both have the
    same defaults, and the node has no attribute that the newest one lacks.
    """
    bodies = [(model.graph, model.opset_import), *((f, f.opset_import) for f in model.functions)]
    for body, imports in bodies:
        versions = {entry.domain or "": entry.version for entry in imports}
        opset = int(versions.get("", versions.get("ai.onnx", onnx.defs.onnx_opset_version())))
        for node in all_nodes(body):
            is_legacy = not model.functions and node.op_type in legacy_names(opset)
            if node.domain in _STANDARD_DOMAINS and not is_legacy and _is_misread(node, opset):
                return node
    return None


def _is_misread(node: onnx.NodeProto, opset: int) -> bool:
    from onnx.reference.ops import load_op

    try:
        own, newest = onnx.defs.get_schema(node.op_type, opset), onnx.defs.get_schema(node.op_type)
        implementation = load_op("", node.op_type, opset)
    except Exception:  # the evaluator itself says what it lacks
        return False
    name = getattr(implementation, "__name__", "")
    if name.rpartition("_")[2].isdigit() or name == "<lambda>":  # a version of its own, or a body of this opset
        return False
    inputs = [[formal.name.lower() for formal in schema.inputs] for schema in (own, newest)]
    shared = own.attributes.keys() & newest.attributes.keys()
    return (
        inputs[0] != inputs[1][: len(inputs[0])]
        or any(own.attributes[key].default_value != newest.attributes[key].default_value for key in shared)
        or any(attribute.name not in newest.attributes for attribute in node.attribute)
    )


def run_samples(
    model: OracleModel, run: Run, samples: Sequence[Outputs], progress: Callable[[int], None] | None = None
) -> list[dict[str, Array]]:
    """Run samples one after the other, and return their outputs; states are passed from each sample to the next.

    Args:
        model: The model and its options.
        run: Runs one sample.
        samples: Inputs of each sample, as the generated code takes them.
        progress: Called with the number of finished samples.
    """
    types = _declared_types(model.given)
    kept = {**_without_elements(model.given), **model.fixed}
    results = []
    for count, sample in enumerate(samples, 1):
        feeds = {name: array for name, array in {**kept, **sample}.items() if name in types}
        values = run({name: _as_declared(name, array, types[name], model) for name, array in feeds.items()})
        reals = {name: _plain(value) for name, value in values.items()}
        kept |= {target: reals[source] for source, target in model.states.items()}
        results.append({name: _as_coded(name, array, model) for name, array in reals.items()})
        if progress:
            progress(count)
    return results


def _declared_types(model: onnx.ModelProto) -> dict[str, np.dtype[Any]]:
    """Return the element type of each input that is a tensor."""
    tensors = {value.name: value.type.tensor_type for value in model.graph.input if value.type.HasField("tensor_type")}
    return {name: np.dtype(helper.tensor_dtype_to_np_dtype(type_.elem_type)) for name, type_ in tensors.items()}


def _as_declared(name: str, array: Array, dtype: np.dtype[Any], model: OracleModel) -> Array:
    """Return an input in the type that the model declares: quantized values as reals where it takes those."""
    if name in model.coded and dtype.kind == "f" and array.dtype.kind in "iu":
        quant, _ = model.coded[name]
        codes = array.astype(np.int64) - quant.zero_point
        return np.asarray(codes.astype(np.float32) * np.float32(quant.scale[0]), dtype)
    return np.asarray(array, dtype)


def _as_coded(name: str, array: Array, model: OracleModel) -> Array:
    """Return an output as the generated code gives it: quantized values where the model gives their reals."""
    if name not in model.coded or array.dtype.kind != "f":
        return array
    quant, dtype = model.coded[name]
    limits = np.iinfo(dtype)
    codes: Array = np.rint(array.astype(np.float64) / quant.scale[0]) + quant.zero_point
    codes = np.clip(np.nan_to_num(codes), limits.min, limits.max)
    return np.asarray(codes, dtype)


def _without_elements(model: onnx.ModelProto) -> dict[str, Array]:
    """Return the inputs that no sample has, because they have no elements; constants are not among them."""
    empty, constants = {}, {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if value.name not in constants and any(
            dim.HasField("dim_value") and dim.dim_value == 0 for dim in tensor.shape.dim
        ):
            shape = [dim.dim_value for dim in tensor.shape.dim]
            empty[value.name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return empty


def _plain(value: Any) -> Array:
    """Return an output as an array; dictionaries by class (ZipMap) become rows of numbers."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.asarray([list(row.values()) for row in value])
    return np.asarray(value)
