# SPDX-License-Identifier: Apache-2.0
"""External data: from the model's folder alone, wherever the tensor is, within bounds, and part of the SHA-256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcugen.core.errors import DoesNotFitError, ModelError
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx import external
from mcugen.frontend.onnx.external import external_tensors
from mcugen.frontend.onnx.load import load, load_model

GOOD, DECOY = np.float32([1, 2, 3, 4]), np.float32([9, 9, 9, 9])
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])


def outside(name: str = "w", *, location: str = "w.bin", shape: tuple[int, ...] = (4,), **entries: str) -> TensorProto:
    """A float32 tensor whose elements lie in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_of(nodes: list[onnx.NodeProto], **parts: object) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "net", [X], [Y], **parts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def initializer(tensor: TensorProto) -> onnx.ModelProto:
    return model_of([helper.make_node("Add", ["x", tensor.name], ["y"])], initializer=[tensor])


def constant(tensor: TensorProto) -> onnx.ModelProto:
    return model_of([helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["x", "w"], ["y"])])


def branches(tensor: TensorProto) -> onnx.ModelProto:
    """One branch has it as an initializer, the other as a Constant's attribute."""
    body = [helper.make_node("Add", ["x", "w"], ["z"])]
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])
    then = helper.make_graph(body, "then", [], [z], initializer=[tensor])
    other = helper.make_graph([helper.make_node("Constant", [], ["w"], value=tensor), *body], "else", [], [z])
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    return model_of([condition, helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)])


def function(tensor: TensorProto) -> onnx.ModelProto:
    body = [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Add", ["a", "w"], ["b"])]
    opset = helper.make_opsetid("", 17)
    model = model_of([helper.make_node("Plus", ["x"], ["y"], domain="own")])
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(helper.make_function("own", "Plus", ["a"], ["b"], body, [opset]))
    return model


def sparse(tensor: TensorProto) -> onnx.ModelProto:
    indices = numpy_helper.from_array(np.arange(4), "indices")
    value = helper.make_sparse_tensor(tensor, indices, [4])
    node = helper.make_node("Constant", [], ["w"], sparse_value=value)
    return model_of([node, helper.make_node("Add", ["x", "w"], ["y"])])


PLACES = [initializer, constant, branches, function, sparse]


def saved(folder: Path, model: onnx.ModelProto, data: bytes | None = GOOD.tobytes()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if data is not None:
        (folder / "w.bin").write_bytes(data)
    return folder / "model.onnx"


@pytest.mark.parametrize("place", PLACES)
def test_it_is_sought_beside_the_model_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[TensorProto], onnx.ModelProto]
):
    path = saved(tmp_path / "models", place(outside()))
    (tmp_path / "w.bin").write_bytes(DECOY.tobytes())
    monkeypatch.chdir(tmp_path)
    model, _ = load_model(path)
    assert not list(external_tensors(model)) and GOOD.tobytes() in model.SerializeToString()
    outputs = compile_model(path).interpret({"x": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(outputs["y"], GOOD)
    (tmp_path / "models" / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"external weights must lie beside the model\. found: .*'w\.bin' is no file"):
        load_model(path)


@pytest.mark.parametrize("place", PLACES)
def test_it_is_part_of_the_hash(tmp_path: Path, place: Callable[[TensorProto], onnx.ModelProto]):
    one, two = (saved(tmp_path / str(i), place(outside()), a.tobytes()) for i, a in enumerate((GOOD, DECOY)))
    assert load_model(one)[1] == load_model(one)[1] != load_model(two)[1]
    assert load_model(one)[1] != hashlib.sha256(one.read_bytes()).hexdigest()


def test_the_banner_has_the_hash_of_both(tmp_path: Path):
    path = saved(tmp_path, initializer(outside()))
    compiled = compile_model(path)
    assert compiled.report.model.sha256 == load(path).sha256
    assert load(path).sha256 in compiled.bundle.files["model.c"]


def test_a_part_of_a_file(tmp_path: Path):
    path = saved(tmp_path, initializer(outside(offset="8", length="16")), bytes(8) + GOOD.tobytes() + bytes(8))
    (tensor,) = load_model(path)[0].graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), GOOD)


@pytest.mark.parametrize("location", ["/etc/hostname", "../secret", "a/../../secret"])
def test_nothing_outside_the_folder_is_read(tmp_path: Path, location: str):
    (tmp_path / "secret").write_bytes(GOOD.tobytes())
    (tmp_path / "models" / "a").mkdir(parents=True)
    path = saved(tmp_path / "models", initializer(outside(location=location)))
    with pytest.raises(ModelError, match="lies outside"):
        load_model(path)


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path):
    (tmp_path / "secret").write_bytes(GOOD.tobytes())
    path = saved(tmp_path / "models", initializer(outside()), None)
    (path.parent / "w.bin").symlink_to("../secret")
    with pytest.raises(ModelError, match=r"'w\.bin' lies outside"):
        load_model(path)


def test_a_link_within_the_folder_is_followed(tmp_path: Path):
    path = saved(tmp_path, initializer(outside()), None)
    (tmp_path / "other.bin").write_bytes(GOOD.tobytes())
    (tmp_path / "w.bin").symlink_to("other.bin")
    assert load_model(path)[0].graph.initializer[0].raw_data == GOOD.tobytes()


def test_model_and_data_may_be_links_into_one_folder(tmp_path: Path):
    """As download caches have them."""
    path = saved(tmp_path / "blobs", initializer(outside()))
    (tmp_path / "snapshot").mkdir()
    for name in ("model.onnx", "w.bin"):
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{name}")
    assert load_model(tmp_path / "snapshot" / "model.onnx")[1] == load_model(path)[1]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"length": "17"}, "has 16 bytes, 0 . 17 are wanted"),
        ({"offset": "17", "length": "0"}, "has 16 bytes"),
        ({"offset": "17"}, "has 16 bytes"),
        ({"offset": "-4"}, "offset '-4'"),
        ({"length": "sixteen"}, "length 'sixteen'"),
        ({"length": "9" * 5000}, "length '999"),
        ({"location": ""}, "is no file there"),
        ({"location": "."}, "is no file there"),
        ({"location": "n" * 5000}, "is no file there"),
        ({"location": "circle"}, "is no file there"),
        ({"location": "pipe"}, "is no file there"),
        ({"location": "nul\0"}, "is no file there"),
    ],
)
def test_wrong_places_are_named(tmp_path: Path, entries: dict[str, str], reason: str):
    path = saved(tmp_path, initializer(outside(**entries)))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(ModelError, match=reason) as error:
        load_model(path)
    assert "tensor 'w'" in str(error.value) and len(str(error.value)) < 600


def test_a_file_of_the_wrong_size_is_refused(tmp_path: Path):
    with pytest.raises(ModelError):
        load_model(saved(tmp_path, initializer(outside()), GOOD.tobytes()[:12]))


def test_a_pointer_in_place_of_the_data_is_named(tmp_path: Path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 16384\n"
    with pytest.raises(ModelError, match=r"git-LFS pointer.*try: fetch the file itself: git lfs pull"):
        load_model(saved(tmp_path, initializer(outside(length="16384")), pointer))


def test_all_of_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Files without blocks claim any size; so do many tensors of one file."""
    path = saved(tmp_path, initializer(outside()))
    os.truncate(tmp_path / "w.bin", 1 << 40)
    with pytest.raises(DoesNotFitError, match="external data must have at most 268,435,456 bytes"):
        load_model(path)
    monkeypatch.setattr(external, "MAX_MODEL_BYTES", 31)
    with pytest.raises(DoesNotFitError, match="external data must have at most 31 bytes"):
        load_model(saved(tmp_path, branches(outside())))


@pytest.mark.parametrize("place", PLACES)
def test_a_model_from_memory_has_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[TensorProto], onnx.ModelProto]
):
    (tmp_path / "w.bin").write_bytes(GOOD.tobytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"must hold its tensors itself\. found: 'w' is external\. try: give the path"):
        compile_model(place(outside()))


def test_tensors_are_found_in_the_order_of_the_file():
    model = branches(outside())
    model.graph.initializer.append(outside("last"))
    assert [tensor.name for tensor in external_tensors(model)] == ["w", "w", "last"]
