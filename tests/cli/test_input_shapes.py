# SPDX-License-Identifier: Apache-2.0
"""Inputs without axes, with one, and without elements, of every element type, in every command that takes samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from mcugen.cli.app import app
from mcugen.core.errors import UsageError
from mcugen.hir.types import Array
from tests.onnx_models import Net

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
FLOATS = ("float32", "float64", "float16", "bfloat16")
SHAPES: Mapping[str, tuple[int, ...]] = {"rank0": (), "rank1": (3,), "one": (1,), "empty": (0,), "empty2": (2, 0)}
COUNT = 3
"""Samples in a file."""


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def all_types(path: Path, shape: tuple[int, ...]) -> dict[str, Array]:
    """Write a model with an input and an output of each element type, and return samples for it."""
    inputs, outputs, nodes = [], [], []
    samples: dict[str, Array] = {}
    draw = np.random.default_rng(0)
    for name in (*FLOATS, *INTEGERS):
        stored = helper.np_dtype_to_tensor_dtype(dtype_of(name))
        inputs.append(helper.make_tensor_value_info(f"x_{name}", stored, shape))
        outputs.append(helper.make_tensor_value_info(f"y_{name}", stored, shape))
        nodes.append(helper.make_node("Neg" if name in FLOATS else "Identity", [f"x_{name}"], [f"y_{name}"]))
        kept = np.float32 if name == "bfloat16" else dtype_of(name)
        samples[f"x_{name}"] = draw.integers(0, 2, (COUNT, *shape)).astype(kept)
    inputs.append(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 2)))
    outputs.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 2)))
    nodes.append(helper.make_node("Relu", ["x"], ["y"]))
    samples["x"] = draw.normal(size=(COUNT, 2, 2)).astype(np.float32)
    graph = helper.make_graph(nodes, "types", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return samples


def command(*arguments: object) -> str:
    """The standard output of a command that must end well."""
    ended = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert ended.exit_code == 0, ended.exception
    return ended.stdout


def parsed(text: str) -> Any:
    """A JSON document, which must be valid: Python's parser takes NaN otherwise."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_type_in_every_command(shape: str, tmp_path: Path):
    """Arrays without elements may be in the file of samples, or be left out."""
    model, data, out = tmp_path / "net.onnx", tmp_path / "data.npz", tmp_path / "out.npz"
    samples = all_types(model, SHAPES[shape])
    np.savez(data, **samples)
    report = parsed(command("report", model, "--board", "host", "--data", data, "--json", "-", "--quiet"))
    assert (report["accuracy"]["samples"], report["accuracy"]["max_abs_error"]) == (COUNT, 0)
    some = {name: array for name, array in samples.items() if array.size}
    np.savez(data, **some)
    command("run", model, "--board", "host", "--inputs", data, "-o", out, "--quiet")
    found = np.load(out)
    for name, array in some.items():
        wanted = np.maximum(array, 0) if name == "x" else -array if name.removeprefix("x_") in FLOATS else array
        output = found[name.replace("x", "y", 1)]
        output = output.view(ml_dtypes.bfloat16).astype(np.float32) if name == "x_bfloat16" else output
        np.testing.assert_array_equal(output, wanted, err_msg=name)
    command("compile", model, "--board", "host", "-o", tmp_path / "net", "--self-test", 2)
    parsed(command("inspect", model, "--json", "-"))


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_calibration(shape: tuple[int, ...], tmp_path: Path):
    """A scalar beside what is quantized, of reals and of integers."""
    net = Net(17)
    x, scale, offset = net.input("x", 1, 4), net.input("scale", *shape), net.input("offset", *shape, dtype=np.int64)
    moved = net.op("Add", net.op("Mul", x, net.op("ReduceMax", scale, keepdims=0)), net.op("Cast", "sum", to=1))
    net.nodes.insert(0, helper.make_node("ReduceSum", [offset], ["sum"], keepdims=0))
    net.output(net.op("MatMul", moved, net.const(np.eye(4)), out="y"), shape=[1, 4])
    model, data = tmp_path / "net.onnx", tmp_path / "data.npz"
    onnx.save(net.plain_model(), model)
    draw = np.random.default_rng(1)
    samples = {
        "x": draw.normal(size=(20, 1, 4)).astype(np.float32),
        "scale": draw.uniform(0.5, 2, (20, *shape)).astype(np.float32),
        "offset": draw.integers(-2, 3, (20, *shape)),
    }
    np.savez(data, **samples)
    command("quantize", model, "--calibration", data, "-o", tmp_path / "q.onnx", "--quiet")
    command("profile", model, "--calibration", data, "-o", tmp_path / "profile.json", "--quiet")
    how = ("--calibration", data, "--data", data, "--json", "-", "--quiet")
    report = parsed(command("report", model, "--board", "host", *how))
    assert report["accuracy"]["sqnr_db"] > 20


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_scalars_in_each_kind_of_file(suffix: str, tmp_path: Path):
    net = Net(17)
    net.output(net.op("Neg", net.input("x"), out="y"), shape=[])
    model, data, folder = tmp_path / "net.onnx", tmp_path / f"data{suffix}", tmp_path / "folder"
    onnx.save(net.plain_model(), model)
    folder.mkdir()
    array = np.float32([1, 2, 3])
    for path, each in ((data, array), *((folder / f"{i}{suffix}", one) for i, one in enumerate(array))):
        np.save(path, each) if suffix == ".npy" else np.savez(path, x=each)
    for source in (data, folder):
        report = parsed(command("report", model, "--board", "host", "--data", source, "--json", "-", "--quiet"))
        assert (report["accuracy"]["samples"], report["accuracy"]["sqnr_db"]) == (COUNT, None)


def special_samples(dtype: type = np.float32) -> Array:
    """Samples of 2 x 3 with NaN and both infinities."""
    x = np.random.default_rng(2).normal(size=(4, 2, 3)).astype(dtype)
    x[0, 0, 0], x[1, 1, 1], x[2, 0, 2] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_numbers_that_are_not_finite(dtype: type, tmp_path: Path):
    """Run and report take them; calibration, and a finite number that the input's type cannot hold, are refused."""
    net = Net(17)
    net.output(net.op("Neg", net.input("x", 2, 3, dtype=dtype), out="y"), shape=[2, 3], dtype=dtype)
    model, data, out = tmp_path / "net.onnx", tmp_path / "data.npz", tmp_path / "out.npz"
    onnx.save(net.plain_model(), model)
    np.savez(data, x=special_samples(dtype))
    report = parsed(command("report", model, "--board", "host", "--data", data, "--json", "-", "--quiet"))
    assert (report["accuracy"]["sqnr_db"], report["accuracy"]["max_abs_error"]) == (None, 0)
    command("run", model, "--board", "host", "--inputs", data, "-o", out, "--quiet")
    np.testing.assert_array_equal(np.load(out)["y"], -special_samples(dtype))
    refused = CliRunner().invoke(app, ["quantize", str(model), "--calibration", str(data), "-o", str(out)])
    assert isinstance(refused.exception, UsageError)
    assert "must be finite" in str(refused.exception)
    if dtype != np.float64:
        np.savez(data, x=np.full((1, 2, 3), 1e300))
        refused = CliRunner().invoke(app, ["run", str(model), "--inputs", str(data), "-o", str(out), "--board", "host"])
        assert isinstance(refused.exception, UsageError)
        assert "must be finite" in str(refused.exception)


def test_a_quantized_model_that_loses_nan(tmp_path: Path):
    """The float model gives NaN, integers cannot: the report says so in valid JSON, and not that all is exact."""
    net = Net(17)
    net.output(net.op("MatMul", net.input("x", 2, 3), net.const(np.eye(3)), out="y"), shape=[2, 3])
    model, data, calibration = tmp_path / "net.onnx", tmp_path / "data.npz", tmp_path / "calibration.npz"
    onnx.save(net.plain_model(), model)
    np.savez(data, x=special_samples())
    np.savez(calibration, x=np.random.default_rng(3).normal(size=(20, 2, 3)).astype(np.float32))
    how = ("--calibration", calibration, "--data", data, "--json", "-", "--quiet")
    accuracy = parsed(command("report", model, "--board", "host", *how))["accuracy"]
    assert accuracy["sqnr_db"] == -999
    assert accuracy["max_abs_error"] > 1e300
