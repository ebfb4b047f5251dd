# SPDX-License-Identifier: Apache-2.0
"""Loading: whatever the file holds, either a valid model or a ModelError that says what is wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import Net

from mcugen.core.errors import McugenError, ModelError
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.load import load_model, prepare_model
from mcugen.frontend.onnx.opset_upgrade import IMPORTED_OPSET, OLDEST_OPSET

NEWEST_OPSET = onnx.defs.onnx_opset_version()


def small_net(opset: int = 17) -> Net:
    net = Net(opset)
    x = net.op("Conv", net.input("x", 1, 2, 5, 5), net.const(np.ones((3, 2, 3, 3))), strides=[2, 1])
    net.output(net.op("Reshape", net.op("Relu", x), net.const([1, -1], np.int64)))
    return net


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def test_a_good_file_gives_the_model_and_the_hash_of_its_bytes(tmp_path: Path):
    data = small_net().model().SerializeToString()
    model, digest = load_model(saved(tmp_path, data))
    assert len(model.graph.node) == 3
    assert digest == hashlib.sha256(data).hexdigest()


GOOD = small_net().model().SerializeToString()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no graph in it"),
        (b"this is a text file\nof two lines\n", "must be an ONNX, .tflite, .pt2 or .keras model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "must be an ONNX, .tflite, .pt2 or .keras model"),
        (GOOD[: len(GOOD) // 2], "must be"),
        (GOOD[:-1], "must be"),
        (GOOD + b"\xff", "must be"),
    ],
    ids=["empty", "text", "image", "first half", "without the last byte", "with a byte more"],
)
def test_a_file_that_is_no_model(tmp_path: Path, data: bytes, message: str):
    path = saved(tmp_path, data)
    with pytest.raises(ModelError, match=message) as error:
        load_model(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("name", "reason"), [(".", "Is a directory"), ("none.onnx", "No such file")])
def test_a_path_that_is_no_file(tmp_path: Path, name: str, reason: str):
    with pytest.raises(ModelError, match=rf"the model must be a readable file\. found: {reason}"):
        load_model(tmp_path / name)


@pytest.mark.parametrize("opset", [1, OLDEST_OPSET - 1, NEWEST_OPSET + 1, 10**6])
def test_an_opset_out_of_range_names_the_range(opset: int):
    with pytest.raises(ModelError, match=rf"the opset must be {OLDEST_OPSET} to {NEWEST_OPSET}\. found: opset {opset}"):
        prepare_model(small_net(opset).plain_model(), "model.onnx")


def test_a_model_without_an_opset():
    model = small_net().model()
    del model.opset_import[:]
    with pytest.raises(ModelError, match="the opset must be"):
        prepare_model(model, "model.onnx")


@pytest.mark.parametrize("opset", [OLDEST_OPSET, IMPORTED_OPSET - 1, IMPORTED_OPSET, NEWEST_OPSET])
def test_old_opsets_are_converted(opset: int):
    model = prepare_model(small_net(opset).model(), "model.onnx")
    assert model.opset_import[0].version == max(opset, IMPORTED_OPSET)


def test_local_functions_are_inlined():
    body = [helper.make_node("Mul", ["a", "a"], ["b"]), helper.make_node("Exp", ["b"], ["c"])]
    function = helper.make_function("own", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 17)])
    net = Net()
    net.op("Twice", net.input("x", 3), out="y", domain="own")
    net.output("y", shape=[3])
    model = net.plain_model()
    model.opset_import[-1].domain = "own"
    model.functions.append(function)
    compiled = compile_model(model)
    assert [node.op.name for node in compiled.graph.nodes] == ["mul+exp"]


def test_invalid_graph_is_refused_with_the_checkers_reason():
    model = small_net().model()
    model.graph.node[0].input[0] = "nothing"
    with pytest.raises(ModelError, match=r"the model must be valid ONNX\. found: .*nothing"):
        prepare_model(model, "model.onnx")


def test_missing_external_weights_are_named(tmp_path: Path):
    model = small_net().model()
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    assert load_model(tmp_path / "model.onnx")[0].graph.initializer
    (tmp_path / "w.data").unlink()
    with pytest.raises(ModelError, match="external weights must lie beside the model"):
        load_model(tmp_path / "model.onnx")


def test_external_weights_outside_the_folder_are_not_read(tmp_path: Path):
    (tmp_path / "secret").write_bytes(bytes(4 * 54))
    folder = tmp_path / "inner"
    folder.mkdir()
    model = small_net().model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    with pytest.raises(ModelError):
        load_model(saved(folder, model.SerializeToString()))


def test_too_little_data_for_an_initializer(tmp_path: Path):
    model = small_net().model()
    model.graph.initializer[0].raw_data = b"123"
    with pytest.raises(ModelError):
        compile_model(saved(tmp_path, model.SerializeToString()))


FUZZED = [small_net(opset).model().SerializeToString() for opset in (9, 17)]


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    which=st.sampled_from(range(len(FUZZED))),
    flips=st.lists(st.tuples(st.integers(0, len(FUZZED[0]) - 1), st.integers(1, 255)), min_size=1, max_size=4),
)
@example(which=0, flips=[(0, 255)])
def test_flipped_bytes_raise_nothing_but_our_errors(tmp_path: Path, which: int, flips: list[tuple[int, int]]):
    data = bytearray(FUZZED[which])
    for position, mask in flips:
        data[position % len(data)] ^= mask
    try:
        compile_model(saved(tmp_path, bytes(data)))
    except McugenError as error:
        assert error.exit_code != 1, error
