# SPDX-License-Identifier: Apache-2.0
"""Labels and normalization of TensorFlow Lite metadata; damaged metadata count as absent."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from tflite_models import Content, LiteModel, Number, Numbers, converted, f32, flatbuffer, i8

from mcugen.core.errors import McugenError, ModelError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.load import load

LABELS = b"cat\nd\xc3\xb6g\r\nbird\n\n"
AXIS_LABELS, VALUE_LABELS = 2, 3


def archive(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    return stream.getvalue()


def described(
    *,
    kind: int = AXIS_LABELS,
    name: str = "labels.txt",
    mean: Sequence[float] = (127.5,),
    std: Sequence[float] = (127.5,),
) -> bytes:
    """Return metadata of a model with one input and one output."""
    options: dict[int, Content] = {0: Numbers("f", mean), 1: Numbers("f", std)}
    given: dict[int, Content] = {0: "image", 4: [{0: Number("B", 1), 1: options}]}
    result: dict[int, Content] = {0: "scores", 6: [{0: name, 2: i8(kind)}]}
    return flatbuffer({0: "classifier", 3: [{2: [given], 3: [result]}]}, b"M001")


def classifier(metadata: bytes | None = None, files: bytes = b"") -> bytes:
    """Return a model of images of 2 x 2 pixels with three classes."""
    model = LiteModel()
    x, flat = model.graph.input(1, 2, 2, 3, name="image"), model.graph.tensor(1, 12)
    model.graph.op("RESHAPE", [x], [flat])
    logits, scores = model.graph.tensor(1, 3), model.graph.tensor(1, 3, name="scores")
    weights = model.graph.const(np.random.default_rng(0).normal(size=(3, 12)))
    model.graph.op("FULLY_CONNECTED", [flat, weights, -1], [logits], 8, {})
    model.graph.op("SOFTMAX", [logits], [scores], 9, {0: f32(1.0)})
    model.graph.output(scores)
    if metadata is not None:
        model.metadata = {"min_runtime_version": b"1.5.0\0", "TFLITE_METADATA": metadata}
    return model.data() + files


def known(data: bytes) -> dict[str, str]:
    return {entry.key: entry.value for entry in converted(data).metadata_props}


def test_labels_and_normalization_are_read():
    data = classifier(described(), archive({"labels.txt": LABELS}))
    assert known(data) == {
        "mcugen.labels": '["cat", "d\\u00f6g", "bird"]',
        "mcugen.preprocess": "mean=127.5, std=127.5",
    }


def test_a_file_without_metadata_has_none():
    assert known(classifier()) == {}


def test_helpers_have_the_labels(tmp_path: Path):
    model = tmp_path / "net.tflite"
    model.write_bytes(classifier(described(), archive({"labels.txt": LABELS})))
    for options, has_labels in (((), False), (("--helpers",), True)):
        done = mcugen("compile", model, "-b", "host", "-q", "-o", tmp_path / "net", "--force", *options)
        assert done.code == 0, done.err
        assert any("bird" in file.read_text() for file in (tmp_path / "net").glob("*.[ch]")) == has_labels


def test_a_quantized_model_keeps_labels_normalization_and_states(tmp_path: Path):
    path, quantized = tmp_path / "model.tflite", tmp_path / "quantized.onnx"
    path.write_bytes(classifier(described(), archive({"labels.txt": LABELS})))
    np.savez(tmp_path / "samples.npz", image=np.random.default_rng(0).uniform(-1, 1, (20, 1, 2, 2, 3)).astype("f"))
    mcugen("quantize", path, "--calibration", tmp_path / "samples.npz", "-o", quantized)
    source = load(quantized)
    assert source.labels == ("cat", "dög", "bird")
    assert source.preprocess == "mean=127.5, std=127.5"
    compiled = compile_model(quantized, options=CompileOptions(helpers=True))
    assert "bird" in compiled.bundle.files["quantized.h"] + compiled.bundle.files["quantized.c"]


def test_a_quantized_model_keeps_its_states(tmp_path: Path):
    model = LiteModel()
    x, total, y = model.graph.input(1, 4, name="x"), model.graph.tensor(1, 4), model.graph.tensor(1, 4, name="y")
    handle = model.graph.tensor(dtype="resource")
    model.graph.op("VAR_HANDLE", [], [handle], 111, {1: "total"})
    model.graph.op("READ_VARIABLE", [handle], [total], 112, {})
    weights = model.graph.const(np.random.default_rng(0).normal(size=(4, 4)) / 4)
    mixed = model.graph.tensor(1, 4)
    model.graph.op("FULLY_CONNECTED", [total, weights, -1], [mixed], 8, {})
    model.graph.op("ADD", [x, mixed], [y], 11, {})
    model.graph.op("ASSIGN_VARIABLE", [handle, y], [], 113, {})
    model.graph.output(y)
    path, quantized = tmp_path / "model.tflite", tmp_path / "quantized.onnx"
    path.write_bytes(model.data())
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).uniform(-1, 1, (20, 1, 4)).astype("f"))
    mcugen("quantize", path, "--calibration", tmp_path / "samples.npz", "-o", quantized)
    assert load(quantized).states == load(path).states != {}
    assert compile_model(quantized).program.states


def test_labels_of_the_user_come_first():
    model = converted(classifier(described(), archive({"labels.txt": LABELS})))
    compiled = compile_model(model, options=CompileOptions(helpers=True, labels=("a", "b", "c")))
    assert compiled.options.labels == ("a", "b", "c")


def test_the_word_preprocess_stands_for_the_normalization(tmp_path: Path):
    model = tmp_path / "net.tflite"
    model.write_bytes(classifier(described(mean=(1.0, 2.0, 3.0), std=(4.0,))))
    done = mcugen(
        *("compile", model, "-b", "host", "-o", tmp_path / "net", "--input-pipeline", "image=rgb888, rgb, preprocess")
    )
    assert done.code == 0, done.err
    assert (tmp_path / "net" / "net_input.c").is_file()
    assert "mean=1;2;3, std=4" in (tmp_path / "net" / "net_input.h").read_text() + done.out


def test_the_word_preprocess_needs_a_normalization(tmp_path: Path):
    model = tmp_path / "net.tflite"
    model.write_bytes(classifier())
    done = mcugen(
        "compile", model, "-b", "host", "-o", tmp_path / "net", "--input-pipeline", "image=rgb888, preprocess"
    )
    assert done.code == 2
    assert "'preprocess' must be given once, with --preprocess" in done.err


NAMES = {"labels.txt": LABELS}


@pytest.mark.parametrize(
    ("metadata", "files"),
    [
        pytest.param(described(), b"", id="no archive"),
        pytest.param(described(), archive({"other.txt": LABELS}), id="another file"),
        pytest.param(described(kind=VALUE_LABELS), archive(NAMES), id="another kind of labels"),
        pytest.param(described(name="../labels.txt"), archive(NAMES), id="a path"),
        pytest.param(described(name="/etc/passwd"), archive(NAMES), id="a path of the system"),
        pytest.param(described(), archive(NAMES)[:-9], id="a truncated archive"),
        pytest.param(described(), archive(NAMES, zipfile.ZIP_STORED).replace(b"cat", b"cow"), id="another checksum"),
        pytest.param(described(), archive(NAMES, zipfile.ZIP_LZMA), id="another compression"),
        pytest.param(described(), archive({"labels.txt": b"cat\ndog\n"}), id="too few"),
        pytest.param(described(), archive({"labels.txt": b"\n\n\n"}), id="empty ones"),
        pytest.param(described(), archive({"labels.txt": b"a\nb\n" + b"c" * 300}), id="a long one"),
        pytest.param(described(), archive({"labels.txt": b"a\nb\n\xff"}), id="no UTF-8"),
        pytest.param(described(), archive({"labels.txt": b"\n" * 10_000_000}), id="a huge file"),
        pytest.param(described()[:40], archive(NAMES), id="truncated metadata"),
        pytest.param(b"", archive(NAMES), id="empty metadata"),
        pytest.param(b"\xff" * 64, archive(NAMES), id="no metadata"),
    ],
)
def test_damaged_labels_count_as_absent(metadata: bytes, files: bytes):
    assert "mcugen.labels" not in known(classifier(metadata, files))


@pytest.mark.parametrize(
    ("mean", "std"),
    [((1.0,), (0.0,)), ((float("nan"),), (1.0,)), ((), (1.0,)), ((1.0,) * 5, (1.0,)), ((1.0,), (-1.0,))],
)
def test_a_wrong_normalization_counts_as_absent(mean: Sequence[float], std: Sequence[float]):
    assert "mcugen.preprocess" not in known(classifier(described(mean=mean, std=std)))


def test_each_number_of_the_metadata_at_its_extremes():
    metadata, files = described(), archive(NAMES)
    for place in range(0, len(metadata) - 4, 2):
        for number in (0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(metadata), place):
            changed = metadata[:place] + struct.pack("<I", number) + metadata[place + 4 :]
            known(classifier(changed, files))


def test_each_byte_of_the_archive():
    metadata, files = described(), archive(NAMES)
    for place in range(len(files)):
        for number in (0, 255, files[place] ^ 1):
            known(classifier(metadata, files[:place] + bytes([number]) + files[place + 1 :]))


@pytest.mark.parametrize("text", ["[", "{}", "[1]", '["\\ud800"]', f'["{"x" * 300}"]'])
def test_wrong_labels_of_an_onnx_file_are_refused(text: str):
    model = converted(classifier())
    onnx.helper.set_model_props(model, {"mcugen.labels": text})
    with pytest.raises(ModelError, match=r"metadata 'mcugen.labels'"):
        _ = load(model).labels
    with pytest.raises(McugenError):
        compile_model(model, options=CompileOptions(helpers=True))
