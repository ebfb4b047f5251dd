# SPDX-License-Identifier: Apache-2.0
"""Compiling takes time in proportion to the model: counted in calls of Python functions, which no load changes."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import FrameType, ModuleType

import numpy as np
import onnx
import pytest
from shared_models import MODELS

from mcugen.backends.cpu.pipeline import Pass, _run
from mcugen.core.errors import VerificationError
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph
from mcugen.hir.names import Names
from mcugen.hir.types import TensorType
from mcugen.lir.program import STAGE_WEIGHTS
from mcugen.memory import exact
from mcugen.memory.regions import covered_bytes
from mcugen.memory.spans import bytes_at
from mcugen.ops.pointwise import Unary

ROOT = Path(__file__).resolve().parents[2]
LINEAR = 1.15
"""The exponent that calls may have."""


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_time", ROOT / "tools" / "compile_time.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def calls_of(model: onnx.ModelProto) -> int:
    """How many functions, generators' steps and built-in functions compiling calls."""
    count = 0

    def look(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        compile_model(model)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", ["residual", "chain", "fan_out", "ladder"])
def test_work_grows_linearly(kind: str) -> None:
    make = tool().MODELS[kind]
    compile_model(make(8))  # templates are parsed once
    few, many = calls_of(make(48)), calls_of(make(192))
    assert math.log(many / few) / math.log(4) <= LINEAR


@pytest.mark.parametrize(("arguments", "modules"), [("['--help']", "numpy onnx ortools onnxruntime")])
def test_help_imports_no_compiler(arguments: str, modules: str) -> None:
    code = f"import sys; sys.argv = ['mcugen', *{arguments}]\ntry:\n    from mcugen.cli.app import main; main()\n"
    code += f"finally:\n    assert not set({modules!r}.split()) & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_compiling_imports_no_solver_where_it_needs_none() -> None:
    code = "import sys, mcugen.driver.compiler; assert not {'ortools', 'onnxruntime', 'elftools'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.shared
def test_copies_of_weights_need_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they have room is seen by greedy plans and lower bounds, and the arena stays proven as it was without."""
    monkeypatch.setattr(exact, "_solve_within", lambda *_: pytest.fail("half a second to begin"))
    program = compile_model(MODELS / "resnet8_cifar10_int8_qdq.onnx", "nrf52840").program
    assert any(instr.kernel == STAGE_WEIGHTS for instr in program.instrs)
    assert program.arena_bound == program.arena_size


# ------------------------------------------------------------------------------------------------ verification


def graph_of_two() -> Graph:
    graph = Graph("g")
    exp = graph.add(Unary("Exp"), [graph.add_input("x", TensorType((2, 3)))], names=["e"])
    graph.add_output("y", graph.add(Unary("Neg"), [exp.output], names=["n"]).output)
    return graph


def sound(_graph: Graph) -> bool:
    return False


def wrong_type(graph: Graph) -> bool:
    graph.nodes[0].output.type = TensorType((3, 2))
    return False


def wrong_order(graph: Graph) -> bool:
    graph.nodes = graph.nodes[::-1]
    return False


def forgotten_use(graph: Graph) -> bool:
    graph.nodes[0].output.uses.clear()
    return False


def same_name(graph: Graph) -> bool:
    graph.nodes[0].output.name = "x"
    return False


def wrong_data(graph: Graph) -> bool:
    graph.nodes[1].set_input(0, graph.constant("c", np.zeros((2, 3), np.float32)))
    value = graph.nodes[1].input(0)
    value.data = np.zeros((2, 3), np.int8)
    return False


@pytest.mark.parametrize("corrupt", [wrong_type, wrong_order, forgotten_use, same_name, wrong_data])
def test_a_pass_that_corrupts_the_graph_is_named(corrupt: Pass) -> None:
    """Though it says that it changed nothing, and though others ran before and after it."""
    with pytest.raises(VerificationError, match=f"pass {corrupt.__name__}:"):
        _run(((sound, ""), (corrupt, ""), (sound, "")), graph_of_two())


# -------------------------------------------------------------------------------------------- what it stands on


def test_numbers_of_names_are_the_least_that_are_free() -> None:
    names = Names(["x"])
    assert [names.take("x") for _ in range(3)] == ["x.2", "x.3", "x.4"]
    names.release("x.3")
    assert [names.take("x") for _ in range(2)] == ["x.3", "x.5"]
    names.release("x")
    assert [names.take("x"), names.take("x.2"), names.take("x.2")] == ["x", "x.2.2", "x.2.3"]


@pytest.mark.parametrize("seed", range(50))
def test_bytes_at_each_moment(seed: int) -> None:
    random = np.random.default_rng(seed)
    moments, count = (int(n) for n in random.integers(1, 12, 2))
    spans, lives = {}, {}
    for key in range(count):
        region, start, size = (int(n) for n in random.integers(0, (3, 10, 6)))
        spans[key] = region, start, start + size
        first = int(random.integers(-1, moments + 1))
        lives[key] = first, int(random.integers(first, moments + 1))
    found = bytes_at(spans, lives, moments)
    for moment in range(-1, moments + 1):
        alive = [key for key in spans if lives[key][0] <= moment <= lives[key][1]]
        assert found[moment] == covered_bytes(spans[key] for key in alive)
