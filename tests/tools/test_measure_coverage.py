# SPDX-License-Identifier: Apache-2.0
"""Coverage: the tables, and that gcc's counts of programs in folders that are gone are found by kernel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from c_coverage import measure
from measure_coverage import failed, kernel_branches, kernel_table, outcome, python_table
from onnx_models import Net

from mcugen.driver.compiler import compile_model


def test_rooms_and_all(tmp_path: Path):
    def figures(*numbers: int) -> dict[str, dict[str, int]]:
        keys = ("covered_lines", "num_statements", "covered_branches", "num_branches")
        return {"summary": dict(zip(keys, numbers, strict=True))}

    files = {
        "mcugen/memory/plan.py": figures(90, 100, 3, 4),
        "mcugen/memory/order.py": figures(5, 100, 0, 0),
        "mcugen/__main__.py": figures(1, 1000, 0, 0),
    }
    (tmp_path / "report.json").write_text(json.dumps({"files": files}))
    assert python_table(tmp_path / "report.json").splitlines()[2:] == [
        "| memory/ | 200 | 47.5 % | 4 | 75.0 % |",
        "| modules beside them | 1,000 | 0.1 % | 0 | none |",
        "| all | 1,200 | 8.0 % | 4 | 75.0 % |",
    ]


def test_the_kernels_with_most_to_do_come_first():
    found = {
        "full": {("a", 0): True, ("a", 1): True},
        "some": {("a", 0): True, ("a", 1): False},
        "none": {("a", 0): False, ("a", 1): False},
    }
    assert kernel_table(found).splitlines()[2:] == [
        "| `none` | 2 | 0.0 % |",
        "| `some` | 2 | 50.0 % |",
        "| all 3 that were built | 6 | 50.0 % |",
    ]
    assert kernel_table(found, most=1).count("\n") == 3


def test_tests_that_failed_are_named(tmp_path: Path):
    """As pytest itself says it."""
    tests = "import pytest\n@pytest.fixture\ndef broken(): raise KeyError\ndef test_begins(broken): pass\n"
    tests += "@pytest.mark.parametrize('n', range(3))\ndef test_small(n): assert n < 2\n"
    (tmp_path / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert outcome(said).startswith("1 failed, 2 passed, 1 error in ")
    assert sorted(line.split(" - ")[0] for line in failed(said)) == [
        "ERROR test_it.py::test_begins",
        "FAILED test_it.py::test_small[2]",
    ]


@pytest.mark.skipif(shutil.which("gcov") is None, reason="needs gcov")
def test_branches_that_any_program_takes_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A maximum that is the first of its window, and then one that is the last."""
    measure(monkeypatch, tmp_path)
    net = Net()
    net.output(net.op("MaxPool", net.input("x", 1, 2, 4, 4), kernel_shape=[2, 2], out="y"))
    model = compile_model(net.model())
    (kernel,) = (i.kernel for i in model.program.instrs if i.kernel.startswith("max_pool"))
    ramp = np.arange(32, dtype=np.float32).reshape(1, 1, 2, 4, 4)

    def taken(x: np.ndarray) -> int:
        model.run({"x": x}, sanitize=True)
        found = kernel_branches(tmp_path)[kernel]
        assert 0 < sum(found.values()) <= len(found)
        return sum(found.values())

    falling, both = taken(-ramp), taken(ramp)
    assert falling < both
