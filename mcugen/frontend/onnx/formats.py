# SPDX-License-Identifier: Apache-2.0
"""Recognition of files that are no ONNX or .tflite models, by content or else by name, and how to convert them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mcugen.core.limits import open_regular


@dataclass(frozen=True)
class ModelFormat:
    """A file format of neural networks that mcugen does not read.

    Attributes:
        name: Name of the format.
        remedy: Advice for the user on how to get a model that mcugen reads from such a file.
        framework: The package that converts such a file (mcugen.frontend.conversion); "" if mcugen refuses it.
    """

    name: str
    remedy: str
    framework: str = ""


_KERAS = ModelFormat("a .keras file", 'save it again by model.save("model.keras")', framework="keras")
_KERAS_H5 = ModelFormat(
    "a Keras model or its weights in the old HDF5 format", 'load it in Keras and call model.save("model.keras")'
)
_PT2 = ModelFormat("a .pt2 file", "write it again by torch.export.save", framework="torch")
_TORCH = ModelFormat(
    "a PyTorch pickle, which can run code when it is loaded",
    "load it in PyTorch, and write a .pt2 file without a pickle: "
    'torch.export.save(torch.export.export(module.eval(), example_inputs), "model.pt2")',
)
_SKLEARN = ModelFormat(
    "a scikit-learn pickle, which can run code when it is loaded",
    "load it in Python and call mcugen.compile(model, …), or write ONNX by skl2onnx.to_onnx(model, samples)",
)
_PICKLE = ModelFormat(
    "a Python pickle, which can run code when it is loaded",
    "load it in Python and call mcugen.compile(model, …), which takes PyTorch, Keras and scikit-learn models",
)
_SAVED_MODEL = ModelFormat(
    "a TensorFlow SavedModel", "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx, with its folder"
)
_GRAPH_DEF = ModelFormat(
    "a TensorFlow graph",
    "python -m tf2onnx.convert --graphdef FILE --inputs NAME:0 --outputs NAME:0 --output model.onnx",
)
_TFLITE = ModelFormat("a damaged TensorFlow Lite model, without its identifier", "copy or export the file again")
_SAFETENSORS = ModelFormat(
    "weights without a network (safetensors)",
    "load them into their PyTorch module, and compile it in Python or write a .pt2 file",
)
_CORE_ML = ModelFormat(
    "a Core ML model", "export the network from where it was trained: torch.onnx.export, tf2onnx, skl2onnx"
)
_ORT = ModelFormat("a model in ONNX Runtime's own format", "give the ONNX model that it was made from")
_POINTER = ModelFormat("a git-LFS pointer in place of the file", "fetch the file itself: git lfs pull")
_PAGE = ModelFormat("a web page", "download the file itself, not the page about it")
_ZIPPED = ModelFormat("a compressed file", "unpack it, and give the .onnx file that is in it")

_BEGINNINGS = {
    rb"version https://git-lfs": _POINTER,
    rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype html|html|head|\?xml)": _PAGE,
    rb"....ORTM": _ORT,
    rb"\x89HDF\r\n\x1a\n": _KERAS_H5,
    rb"PK\x03\x04.*/models/model\.json": _PT2,
    rb"PK\x03\x04.*(/data\.pkl|/constants\.pkl)": _TORCH,
    rb"PK\x03\x04.*(model\.weights\.h5)": _KERAS,
    rb"PK\x03\x04|\x1f\x8b|BZh|\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|\x28\xb5\x2f\xfd|Rar!": _ZIPPED,
    rb"\x80[\x02-\x05].*(torch|\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19)": _TORCH,
    rb"\x80[\x02-\x05].*sklearn": _SKLEARN,
    rb"\x80[\x02-\x05]": _PICKLE,
    rb".{6}\x00\x00\{": _SAFETENSORS,
    rb"\x08\x01\x12.*(saved_model|serve|tensorflow)": _SAVED_MODEL,
    rb"\n.*\x12[\x04\x05\x0b](Placeholder|Const|NoOp)": _GRAPH_DEF,
}
"""Formats by a pattern of the first bytes of a file; the first match counts."""

_SUFFIXES = {
    ".tflite": _TFLITE,
    **dict.fromkeys((".h5", ".hdf5"), _KERAS_H5),
    ".keras": _KERAS,
    ".pt2": _PT2,
    **dict.fromkeys((".pt", ".pth", ".ckpt"), _TORCH),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), _PICKLE),
    ".pb": _GRAPH_DEF,
    ".safetensors": _SAFETENSORS,
    **dict.fromkeys((".mlmodel", ".mlpackage"), _CORE_ML),
    ".ort": _ORT,
    **dict.fromkeys((".zip", ".gz", ".tgz", ".xz", ".bz2", ".zst", ".7z", ".rar"), _ZIPPED),
}

_LOOKED_AT = 1 << 16
"""Number of bytes at the beginning and at the end of a file that are compared with the patterns."""


def recognize_format(path: Path) -> ModelFormat | None:
    """Recognize the format of a file or folder that is not an ONNX model; return None if it is unknown.

    Raises:
        OSError: The file cannot be read.
    """
    if path.is_dir():
        return _SAVED_MODEL if (path / "saved_model.pb").is_file() else _SUFFIXES.get(path.suffix.lower())
    with open_regular(path) as file:
        content = file.read(_LOOKED_AT)
        file.seek(max(path.stat().st_size - _LOOKED_AT, file.tell()))
        content += file.read(_LOOKED_AT)
    for beginning, file_format in _BEGINNINGS.items():
        if re.match(beginning, content, re.DOTALL):
            return file_format
    return _SUFFIXES.get(path.suffix.lower())
