# SPDX-License-Identifier: Apache-2.0
"""Plug-ins that import custom operators of .tflite files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite_models import LiteModel, flexbuffer

import mcugen
from mcugen.core.errors import ModelError, UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.plugins import registry_of

PLUGIN = """
from mcugen.frontend.tflite.node import tflite_operator


@tflite_operator("Affine", becomes="Mul, Add")
def build_affine(node):
    factor = node.constant(node.custom_number("factor"), "factor")
    product = node.emit("Mul", node.real(0), factor)
    node.finish(node.emit("Add", product, node.constant(float(node.custom_integer("offset", 1)), "offset")))
"""


def affine(path: Path, options: bytes, name: str = "Affine") -> Path:
    """Write a model with one custom operator."""
    model = LiteModel()
    x, y = model.graph.input(2, 3, name="x"), model.graph.tensor(2, 3, name="y")
    model.graph.op(name, [x], [y], _5=options)
    model.graph.output(y)
    path.write_bytes(model.data())
    return path


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "affine.py"
    path.write_text(PLUGIN)
    return path


def test_a_custom_operator_with_options(plugin: Path, tmp_path: Path):
    model = affine(tmp_path / "model.tflite", flexbuffer({"factor": 2.5, "offset": -3}))
    xs = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    compiled = compile_model(model, options=CompileOptions(plugins=(plugin,)))
    np.testing.assert_allclose(compiled.run({"x": xs}, sanitize=True)["y"], 2.5 * xs - 3)


def test_bytes_of_a_model(plugin: Path, tmp_path: Path):
    model = affine(tmp_path / "model.tflite", flexbuffer({"factor": 2.0})).read_bytes()
    assert mcugen.compile(model, board="host", plugin=[plugin]).report()


def test_the_message_without_a_plugin_names_it(tmp_path: Path):
    model = affine(tmp_path / "model.tflite", b"")
    with pytest.raises(UnsupportedError, match=r"(?s)operator 0, Affine 'y': operator not supported.*--plugin"):
        compile_model(model)


@pytest.mark.parametrize(
    ("options", "fault"),
    [(b"", "option 'factor' is None"), (b"\x01", "custom options of operator"), (b"\x05\x04\x01", "without names")],
)
def test_wrong_options(plugin: Path, tmp_path: Path, options: bytes, fault: str):
    model = affine(tmp_path / "model.tflite", options)
    with pytest.raises(ModelError, match=fault):
        compile_model(model, options=CompileOptions(plugins=(plugin,)))


def test_operators_that_exist_already(tmp_path: Path):
    path = tmp_path / "own.py"
    path.write_text(PLUGIN.replace("Affine", "SignalWindow"))
    with pytest.raises(UsageError, match=r"must register new operators\. found: SignalWindow of \.tflite files"):
        registry_of([path])


def test_a_custom_operator_with_the_name_of_a_builtin_one(tmp_path: Path):
    model = LiteModel()
    x, y = model.graph.input(2, name="x"), model.graph.tensor(2, name="y")
    model.codes.append("ABS ")
    model.graph.op("ABS ", [x], [y])
    model.graph.output(y)
    path = tmp_path / "model.tflite"
    path.write_bytes(model.data().replace(b"ABS ", b"ABS\0"))
    with pytest.raises(UnsupportedError, match="not supported"):
        compile_model(path)
