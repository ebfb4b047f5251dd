# SPDX-License-Identifier: Apache-2.0
"""Checked loading of a valid ONNX model of a supported opset from the bytes of any ONNX or .tflite file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx.checker
import onnx.inliner
import onnx.shape_inference
from google.protobuf.message import DecodeError, Message

from mcugen.core.errors import ModelError, UsageError
from mcugen.core.limits import MAX_LABEL_CHARACTERS, MAX_MODEL_BYTES, limit_cpu_seconds, read_bounded
from mcugen.frontend.conversion import convert_file
from mcugen.frontend.onnx.borders import with_input_types
from mcugen.frontend.onnx.external import load_external_data, require_internal
from mcugen.frontend.onnx.foreign import hide_operators, import_domains, reveal_operators
from mcugen.frontend.onnx.formats import recognize_format
from mcugen.frontend.onnx.hazards import check_hazards
from mcugen.frontend.onnx.lost_constants import require_constants
from mcugen.frontend.onnx.module_names import name_by_modules
from mcugen.frontend.onnx.opset_upgrade import IMPORTED_OPSET, OLDEST_OPSET, tag_functions, upgrade
from mcugen.frontend.onnx.order import sort_nodes
from mcugen.frontend.onnx.sparse import make_dense
from mcugen.frontend.tflite.convert import convert_tflite, is_tflite
from mcugen.frontend.tflite.schema import (
    AS_DEFINED,
    LABELS_KEY,
    NOTES_KEY,
    PREPROCESS_KEY,
    ROUNDING_KEY,
    STATES_KEY,
    TfliteReading,
)
from mcugen.hir.types import Rounding
from mcugen.ops.onnx_node import BUILT_IN, Registry

_CONTAINER = b"PK\x03\x04"
"""First bytes of the files of other frameworks that mcugen converts: a zip archive."""


def load_model(path: Path, registry: Registry = BUILT_IN) -> tuple[onnx.ModelProto, str]:
    """Load and check a model file.

    Args:
        path: The file.
        registry: The operators that the model may use.

    Returns:
        The model, and the SHA-256 of its file and its external data.

    Raises:
        ModelError: The file cannot be read, or is neither valid ONNX nor a valid .tflite model.
    """
    model, sha256 = _read_model(path, registry, AS_DEFINED)
    return prepare_model(model, str(path), registry), sha256


def _read_model(path: Path, registry: Registry, reading: TfliteReading) -> tuple[onnx.ModelProto, str]:
    """Return the unchanged model with its external data inside, and the SHA-256 of all bytes."""
    try:
        data = read_bounded(path, MAX_MODEL_BYTES)
    except OSError as error:
        known = recognize_format(path) if path.is_dir() else None
        rule, remedy = f"{path}: the model must be a readable file", known.remedy if known else "check the path"
        raise ModelError(rule, known.name if known else str(error.strerror), remedy) from error
    if not is_tflite(data):
        _require_no_wishes(reading, str(path))
    framework = _framework(path, data)
    if framework:
        return convert_file(path, framework), hashlib.sha256(data).hexdigest()
    model = parse_model(data, path, registry, reading)
    external = load_external_data(model, path)
    return model, hashlib.sha256(data + external).hexdigest()


def _framework(path: Path, data: bytes) -> str:
    """Return the package that converts a file which is no ONNX model; "" for all other files."""
    known = recognize_format(path) if data.startswith(_CONTAINER) else None
    return known.framework if known else ""


def _require_no_wishes(reading: TfliteReading, place: str) -> None:
    """Raise UsageError if the user gave an option of .tflite files for another model."""
    if reading.rounding is not Rounding.EXACT:
        rule = f"--match {reading.rounding.value} is for .tflite models, whose operators have reference kernels"
        raise UsageError(rule, place, "leave it out, or give the .tflite file")
    if reading.keeps_states:
        rule = "--keep-states is for .tflite models, which declare the states of their layers"
        raise UsageError(rule, place, "leave it out, or use --state OUTPUT:INPUT")
    if reading.signature:
        rule = "--signature is for .tflite models, whose signatures name subgraphs"
        raise UsageError(rule, place, "leave it out, or give the .tflite file")


def parse_model(
    data: bytes, place: Path, registry: Registry = BUILT_IN, reading: TfliteReading = AS_DEFINED
) -> onnx.ModelProto:
    """Return the model in the bytes of an ONNX or .tflite file; it is not checked yet.

    Args:
        data: The bytes.
        place: The file, or a name for messages.
        registry: The operators that the model may use.
        reading: What the user asks of the reader of .tflite files.

    Raises:
        ModelError: The bytes are neither an ONNX nor a .tflite model.
        UnsupportedError: A .tflite model has operators that cannot be compiled.
        DoesNotFitError: A .tflite model exceeds a limit of `core.limits`.
    """
    if is_tflite(data):
        return convert_tflite(data, str(place), registry, reading)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise _no_model(place, "bytes that are no ONNX protobuf") from error
    if not model.HasField("graph"):
        raise _no_model(place, "no graph in it")
    return model


def _no_model(path: Path, fault: str) -> ModelError:
    known = recognize_format(path) if path.is_file() else None
    remedy = known.remedy if known else "export the model again"
    return ModelError(
        f"{path}: the file must be an ONNX, .tflite, .pt2 or .keras model", known.name if known else fault, remedy
    )


@dataclass(frozen=True)
class LoadedModel:
    """A checked ONNX model.

    Attributes:
        proto: The model after checks, inlining of functions and upgrades of old operator sets.
        given: The model as the user gave it, which other programs run to compute outputs for comparison.
        sha256: SHA-256 of the bytes of the model, in hex.
        file: Name of the file without the folder.
        registry: The operators that the model may use.
    """

    proto: onnx.ModelProto
    given: onnx.ModelProto
    sha256: str
    file: str
    registry: Registry = BUILT_IN

    @property
    def states(self) -> dict[str, str]:
        """Return the states that the model itself declares: the input that takes a state, by the output that gives it.

        Variables of .tflite files become such inputs and outputs.
        """
        states = self._property(STATES_KEY, {})
        if not isinstance(states, dict) or not all(isinstance(name, str) for name in states.values()):
            raise ModelError(f"{self.file}: metadata '{STATES_KEY}' must name states", "other text", "remove it")
        return states

    def states_with(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Return the states that the model declares and those of options, which come first."""
        return {**self.states, **chosen}

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of an output's classes that the model itself has; () if it has none."""
        labels = self._property(LABELS_KEY, [])
        if not isinstance(labels, list) or not all(isinstance(label, str) and _is_label(label) for label in labels):
            raise ModelError(
                f"{self.file}: metadata '{LABELS_KEY}' must be a list of labels", "other text", "remove it"
            )
        return tuple(labels)

    @property
    def preprocess(self) -> str:
        """Return the normalization of the input that the model itself has, as the text of `--preprocess`, or ""."""
        return next((entry.value for entry in self.given.metadata_props if entry.key == PREPROCESS_KEY), "")

    def copy_metadata(self, model: onnx.ModelProto) -> None:
        """Let a model that was made from this one have its states, labels and normalization, too."""
        known = (STATES_KEY, NOTES_KEY, LABELS_KEY, PREPROCESS_KEY)
        model.metadata_props.extend(entry for entry in self.given.metadata_props if entry.key in known)

    def _property(self, key: str, absent: object) -> object:
        """Return the JSON value of a key of the model's metadata; None if it is no JSON."""
        entries = [entry.value for entry in self.given.metadata_props if entry.key == key]
        try:
            return json.loads(entries[0]) if entries else absent
        except (ValueError, RecursionError):
            return None


def rounding_of(model: onnx.ModelProto) -> Rounding:
    """Return how the integer operators of a model round, by its metadata."""
    named = next((entry.value for entry in model.metadata_props if entry.key == ROUNDING_KEY), "")
    return next((rounding for rounding in Rounding if rounding.value == named), Rounding.EXACT)


def _is_label(text: str) -> bool:
    """Return whether a text is short, and has no halves of surrogate pairs, which JSON allows."""
    return len(text) <= MAX_LABEL_CHARACTERS and not any(0xD800 <= ord(character) < 0xE000 for character in text)


def load(
    model: str | Path | onnx.ModelProto,
    registry: Registry = BUILT_IN,
    input_types: Mapping[str, str] = MappingProxyType({}),
    reading: TfliteReading = AS_DEFINED,
) -> LoadedModel:
    """Load a model from a file or from memory, with other element types for some inputs.

    Args:
        model: The file (ONNX or .tflite), or the model in memory, which is not changed.
        registry: The operators that the model may use.
        input_types: Element types by the names of float inputs, for which the caller passes whole numbers.
        reading: What the user asks of the reader of .tflite files.

    Raises:
        ModelError: The model cannot be read, or is not valid ONNX.
        UsageError: An input type is not possible, or `reading` does not fit the format of the model.
    """
    loaded = _loaded(model, registry, reading)
    return replace(loaded, proto=with_input_types(loaded.proto, input_types)) if input_types else loaded


def _loaded(model: str | Path | onnx.ModelProto, registry: Registry, reading: TfliteReading) -> LoadedModel:
    if not isinstance(model, onnx.ModelProto):
        source, sha256 = _read_model(Path(model), registry, reading)
        return LoadedModel(
            prepare_model(_copied(source), str(model), registry), source, sha256, Path(model).name, registry
        )
    source, name = _copied(model), model.graph.name or "model"
    if reading != TfliteReading(rounding_of(model)):
        _require_no_wishes(reading, name)
    digest = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    return LoadedModel(prepare_model(_copied(model), name, registry), source, digest, f"{name}.onnx", registry)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def prepare_model(model: onnx.ModelProto, place: str, registry: Registry = BUILT_IN) -> onnx.ModelProto:
    """Check a model that holds all its tensors itself, inline its local functions, and upgrade old operator sets.

    Args:
        model: The model, changed in place.
        place: The file or name of the model, for messages.
        registry: The operators that the model may use.

    Returns:
        The prepared model.

    Raises:
        DoesNotFitError: The model exceeds a limit of `core.limits`.
        ModelError: The model is not valid ONNX.
        UnsupportedError: An operator cannot be upgraded.
    """
    require_internal(model, place)
    _check_text(model, place)
    opset = _opset(model, place)
    with limit_cpu_seconds(f"{place}: expanding sparse tensors"):
        make_dense(model, place)
    check_hazards(model, place)
    require_constants(model.graph, place)
    sort_nodes(model)
    name_by_modules(model)
    with limit_cpu_seconds(f"{place}: ONNX's checks"):
        return _checked(model, opset, place, registry)


def _checked(model: onnx.ModelProto, opset: int, place: str, registry: Registry) -> onnx.ModelProto:
    """Check a model by ONNX's own code, inline its functions and upgrade it."""
    import_domains(model)
    hidden = hide_operators(model, registry)
    tag_functions(model, opset, place)
    try:
        inferred = onnx.shape_inference.infer_shapes(model)  # Exporters omit shapes of outputs.
        onnx.checker.check_model(_with_output_shapes(inferred))
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # ONNX raises about a dozen exception types without a common base.
        reason = str(error).strip().split("\n")[0][:300]
        if reason.startswith("No Op registered for "):
            remedy = "replace it by supported operators (see docs/reference/operators.md), or register it with --plugin"
            if model.producer_name == "tf2onnx":
                remedy = (
                    f"tf2onnx left TensorFlow's operator as it was: export with Keras' PyTorch backend, or {remedy}"
                )
            raise ModelError(f"{place}: every operator must be one of ONNX's, or registered", reason, remedy) from error
        raise ModelError(f"{place}: the model must be valid ONNX", reason, "export the model again") from error
    model = upgrade(model, IMPORTED_OPSET, place)
    if hidden:
        reveal_operators(model)
    return model


def _with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with an empty shape for each output without one, changed in place.

    Only the checker needs these shapes. Exporters omit shapes that depend on the values of inputs.
    """
    for output in model.graph.output:
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.SetInParent()
    return model


def _check_text(message: Message, place: str) -> None:
    """Raise ModelError for strings that are not UTF-8, which protobuf returns as bytes: the file is corrupt."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for item in [value] if isinstance(value, str | bytes | Message) else value:
            if isinstance(item, bytes):
                raise ModelError(f"{place}: names must be UTF-8", repr(item[:40]), "export the model again")
            if isinstance(item, Message):
                _check_text(item, place)


def _opset(model: onnx.ModelProto, place: str) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    if not versions and model.opset_import:  # The model imports other domains only.
        return int(newest)
    if not versions or not OLDEST_OPSET <= versions[0] <= newest:
        version_text = f"opset {versions[0]}" if versions else "none"
        raise ModelError(
            f"{place}: the opset must be {OLDEST_OPSET} to {newest}", version_text, "export with another opset"
        )
    return int(versions[0])
