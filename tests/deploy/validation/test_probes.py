# SPDX-License-Identifier: Apache-2.0
"""RTT and semihosting by pyOCD, whose interface is played here by a program of this computer: there is no probe."""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Done, mcugen
from onnx_models import Net

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.simulation.build import Checks, build_wire_host


class Error(Exception):
    """pyocd.core.exceptions.Error."""


class State(Enum):
    RUNNING = 1
    HALTED = 2


class Console:
    """pyocd.debug.semihost.SemihostIOHandler."""

    agent: Any = None


class Pipes:
    """The firmware; its standard input and output."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def read(self, most: int = 4096) -> bytes:
        ready, _, _ = select.select([self.process.stdout], [], [], 0.0)
        return os.read(self.process.stdout.fileno(), most) if ready else b""  # type: ignore[union-attr]

    def write(self, data: bytes, blocking: bool = False) -> int:
        assert blocking or len(data) == 1
        self.process.stdin.write(data)  # type: ignore[union-attr]
        return len(data)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Target:
    """pyocd.core.target.Target: it halts at each request for a character."""

    State = State

    def __init__(self, pipes: Pipes) -> None:
        self.pipes, self.resumed = pipes, 0

    def get_target_context(self) -> Target:
        return self

    def get_state(self) -> State:
        return State.HALTED

    def resume(self) -> None:
        self.resumed += 1


class Agent:
    """pyocd.debug.semihost.SemihostAgent: it passes requests on to the console."""

    def __init__(self, context: Target, io_handler: object = None, console: Any = None) -> None:
        self.target, self.console = context, console
        console.agent, self.memory = self, b""

    def get_data(self, ptr: int, length: int) -> bytes:
        assert ptr == 0x2000_0000
        return self.memory[:length]

    def check_and_handle_semihost_request(self) -> bool:
        self.memory = self.target.pipes.read(1)
        if self.memory:
            assert self.console.write(1, 0x2000_0000, 1) == 0
        elif (byte := self.console.readc()) >= 0:
            self.target.pipes.write(bytes([byte]))
        return True


@pytest.fixture
def pyocd(monkeypatch: pytest.MonkeyPatch, program: Path) -> Iterator[SimpleNamespace]:
    """Modules of that name; `found` is whether there is a probe."""
    settings = SimpleNamespace(found=True, targets=[])
    pipes = Pipes(program)

    def choose(*, target_override: str | None, **_: object) -> object:
        settings.targets.append(target_override)
        board = SimpleNamespace(target=Target(pipes))
        return SimpleNamespace(open=lambda: None, close=lambda: None, board=board) if settings.found else None

    block = SimpleNamespace(start=lambda: None, up_channels=[pipes], down_channels=[pipes])
    modules = {
        "core.exceptions": {"Error": Error},
        "core.helpers": {"ConnectHelper": SimpleNamespace(session_with_chosen_probe=choose)},
        "core.target": {"Target": Target},
        "debug.rtt": {"RTTControlBlock": SimpleNamespace(from_target=lambda target: block)},
        "debug.semihost": {"SemihostAgent": Agent, "SemihostIOHandler": Console},
    }
    for name in ("", "core", "debug", *modules):
        module = ModuleType(f"pyocd.{name}".rstrip("."))
        module.__dict__.update(modules.get(name, {}))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield settings
    pipes.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = Net()
    weights = net.const(np.random.default_rng(0).integers(-4, 5, (8, 8)) / 8)
    net.output(net.op("Relu", net.op("MatMul", net.input("x", 1, 8), weights), out="y"))
    path = tmp_path_factory.mktemp("probes") / "dense.onnx"
    onnx.save(net.model(), path)
    return path


@pytest.fixture(scope="module")
def program(model: Path) -> Path:
    bundle = compile_model(model, "host", CompileOptions(validation=True)).bundle
    return build_wire_host(bundle, model.parent, Checks.NONE)


def validate(model: Path, port: str) -> Done:
    return mcugen("validate", model, "--board", "host", "--port", port, "--quiet", "--timeout", 30)


@pytest.mark.parametrize(("port", "target"), [("rtt", None), ("rtt:nrf52840", "nrf52840"), ("semihosting", None)])
def test_a_probe_is_a_wire(port: str, target: str | None, model: Path, pyocd: SimpleNamespace):
    done = validate(model, port)
    assert done.code == 0, done.err
    assert "bit-exact" in done.out
    assert pyocd.targets == [target]


def test_without_a_probe(model: Path, pyocd: SimpleNamespace):
    pyocd.found = False
    done = validate(model, "rtt")
    assert done.code == 10
    assert "pyocd list" in done.err


def test_a_target_that_is_a_path(model: Path):
    assert validate(model, "rtt:/etc/passwd").code == 2


@pytest.mark.skipif(importlib.util.find_spec("pyocd") is not None, reason="pyOCD is installed")
def test_without_pyocd_the_command_that_installs_it_is_named(model: Path):
    done = validate(model, "semihosting")
    assert done.code == 8
    assert "pip install pyocd" in done.err
