# SPDX-License-Identifier: Apache-2.0
"""Files of other kinds: the refusal says what they are, and what makes ONNX of them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import onnx
import pytest
from onnx_models import Net

from mcugen.core.errors import McugenError, ModelError
from mcugen.frontend.onnx.load import load_model


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return file.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


MAGIC = 0x1950A86A20F9469CFC6C
"""What old files of PyTorch begin with, pickled."""
GRAPH_DEF = b"\n\x14\n\x01x\x12\x0bPlaceholder" + bytes(8)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BY_CONTENT = {
    "h5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "model.save"),
    "pt": (zipped("net/data.pkl", "net/version"), "torch.export.save"),
    "old pt": (pickle.dumps(MAGIC, 2) + bytes(40), "torch.export.save"),
    "sklearn": (b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x14sklearn.linear_model\x94.", "skl2onnx.to_onnx"),
    "pickle": (pickle.dumps({"a": 1}), "mcugen.compile"),
    "safetensors": (safetensors(), "write a .pt2 file"),
    "saved model": (b"\x08\x01\x12\x20\n\x07\x12\x05serve" + bytes(20), "tf2onnx.convert --saved-model"),
    "graph": (GRAPH_DEF, "tf2onnx.convert --graphdef"),
    "ort": (b"\x10\0\0\0ORTM" + bytes(20), "the ONNX model that it was made from"),
    "pointer": (POINTER, "git lfs pull"),
    "page": (b"\n<!DOCTYPE html>\n<html><body>404</body></html>", "download the file itself"),
    "zip": (zipped("model.onnx"), "unpack it"),
    "gzip": (gzip.compress(b"model"), "unpack it"),
}


@pytest.mark.parametrize("suffix", [".onnx", ".bin"])
@pytest.mark.parametrize(("data", "remedy"), BY_CONTENT.values(), ids=BY_CONTENT)
def test_by_content_whatever_the_name(tmp_path: Path, data: bytes, remedy: str, suffix: str):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(data)
    with pytest.raises(
        ModelError, match=rf"the file must be an ONNX, .tflite, .pt2 or .keras model\. found: .*try: .*{remedy}"
    ) as error:
        load_model(path)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("suffix", "remedy"),
    [
        *((".tflite", "copy or export the file again"), (".h5", "model.save"), (".keras", "model.save")),
        *(
            (".pt", "torch.export.save"),
            (".PTH", "torch.export.save"),
            (".pt2", "torch.export.save"),
            (".pb", "tf2onnx.convert --graphdef"),
        ),
        *((".pkl", "mcugen.compile"), (".joblib", "mcugen.compile"), (".safetensors", "write a .pt2 file")),
        *((".mlmodel", "torch.onnx.export"), (".zip", "unpack it"), (".onnx", "export the model again")),
    ],
)
def test_by_name_where_the_content_says_nothing(tmp_path: Path, suffix: str, remedy: str):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"\xff\xfe" + bytes(range(100)))
    with pytest.raises(ModelError, match=f"try: .*{remedy}"):
        load_model(path)


def test_the_content_is_believed_and_not_the_name(tmp_path: Path):
    path = tmp_path / "model.tflite"
    path.write_bytes(POINTER)
    with pytest.raises(ModelError, match=r"found: a git-LFS pointer"):
        load_model(path)
    net = Net()
    net.output(net.op("Relu", net.input("x", 4)))
    onnx.save(net.model(), path)
    assert load_model(path)[0].graph.node


def test_a_damaged_file_of_tensorflow_lite(tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(24))
    with pytest.raises(ModelError, match=r"the schema must be version 3\. found: 0\. try: copy or export"):
        load_model(path)


def test_a_folder_of_tensorflow(tmp_path: Path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ModelError, match=r"found: a TensorFlow SavedModel\. try: .*--saved-model"):
        load_model(tmp_path)


def test_a_pickle_of_pytorch_is_refused_for_its_danger(tmp_path: Path):
    path = tmp_path / "model.pt"
    path.write_bytes(BY_CONTENT["pt"][0])
    with pytest.raises(ModelError, match=r"a PyTorch pickle, which can run code when it is loaded"):
        load_model(path)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("net/models/model.json", "net/data/weights/weight_0"), r"a \.pt2 |needs the package"),
        (("metadata.json", "config.json", "model.weights.h5"), r"a \.keras file|needs the package"),
    ],
)
def test_an_archive_that_a_framework_wrote_goes_to_its_converter(tmp_path: Path, names: tuple[str, ...], fault: str):
    path = tmp_path / "model.bin"
    path.write_bytes(zipped(*names))
    with pytest.raises(McugenError, match=fault):
        load_model(path)
