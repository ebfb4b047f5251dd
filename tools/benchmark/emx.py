# SPDX-License-Identifier: Apache-2.0
"""emx-onnx-cgen, a peer that also writes C: its code in mcugen's harness."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import onnx

from benchmark.subjects import ports
from mcugen.codegen.bundle import Bundle, Port
from mcugen.core.errors import ToolMissingError, VerificationError
from mcugen.simulation.toolchain import first_lines

EMX = "emx-onnx-cgen"
EMX_OPTIONS = (
    *("--color", "never"),
    "--emit-data-file",  # weights in a file of their own, where the harness can size them
    *("--large-weight-threshold", "0"),  # in C, not in a binary file to be loaded at run time
    # Its default takes these buffers from the heap, all before the first layer: as many bytes, more instructions.
    *("--large-temp-threshold", "0"),
)


def emx_bundle(path: Path, name: str, folder: Path) -> Bundle:
    """Run emx-onnx-cgen on a model, and wrap its code in a bundle."""
    code = folder / f"{name}_emx.c"
    folder.mkdir(parents=True, exist_ok=True)
    run([emx_program(), "compile", str(path), str(code), "--model-name", f"{name}_emx", *EMX_OPTIONS])
    data = code.with_name(f"{name}_emx_data.c").read_text()
    inputs, outputs = ports(onnx.load(path), name)
    return wrap_emx(name, code.read_text(), data, inputs=inputs, outputs=outputs)


def wrap_emx(name: str, code: str, data: str, *, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> Bundle:
    """Return a bundle whose arena holds inputs and outputs only; emx keeps its other buffers on the stack."""
    tensors = (*inputs, *outputs)
    parameters = emx_parameters(code, f"{name}_emx")
    if len(parameters) != len(tensors):
        raise VerificationError(f"the entry of {EMX}'s code must take inputs and outputs", ", ".join(parameters))
    *offsets, size = accumulate((_aligned(port.nbytes) for port in tensors), initial=0)
    accessors = [
        f"{_signature(port, port in outputs)} {{ return ({'const ' if port in outputs else ''}char *)arena + {at}; }}"
        for port, at in zip(tensors, offsets, strict=True)
    ]
    arguments = ", ".join(f"(void *)((char *)arena + {at})" for at in offsets)
    # Its code is included as a system header: the harness's warnings are errors, and not meant for it.
    files = {
        f"{name}.h": "\n".join(
            (
                f"#define {name.upper()}_ARENA_SIZE {size}u",
                f"#define {name.upper()}_ARENA_ALIGN 16u",
                *(f"{_signature(port, port in outputs)};" for port in tensors),
                f"int {name}_run(void *arena);\n",
            )
        ),
        f"{name}.c": "\n".join(
            (
                f'#include "{name}.h"',
                f'#include "{name}_emx.h"',
                *accessors,
                f"int {name}_run(void *arena) {{ {name}_emx({arguments}); return 0; }}\n",
            )
        ),
        f"{name}_emx.h": f"#pragma GCC system_header\n{code}",
        f"{name}_emx_data.h": f"#pragma GCC system_header\n{data}",
        f"{name}_weights.c": f'#include "{name}_emx_data.h"\n',
    }
    return Bundle(name, files, size, inputs, outputs, layers=())


def emx_parameters(code: str, entry: str) -> list[str]:
    """Return the parameters of the model's entry function, inputs before outputs."""
    found = re.search(rf"^void {re.escape(entry)}\((.*)\) \{{$", code, re.MULTILINE)
    if not found:
        raise VerificationError(f"{EMX} must define the function it was asked for", f"no '{entry}'")
    return [parameter.strip() for parameter in found[1].split(",")]


def _signature(port: Port, output: bool) -> str:
    const = "const " if output else ""
    return f"{const}void *{port.accessor}({const}void *arena)"


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def emx_program() -> str:
    """Return the path of the program, beside this Python or on the PATH."""
    beside = Path(sys.executable).with_name(EMX)
    found = str(beside) if beside.is_file() else shutil.which(EMX)
    if found is None:
        raise ToolMissingError(f"'{EMX}' must be installed", "no such program", "pip install -e '.[bench]'")
    return found


def run(command: Sequence[str]) -> str:
    """Run a command and return its output.

    Raises:
        VerificationError: The command fails.
    """
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise VerificationError(f"{Path(command[0]).name} must succeed", first_lines(done.stdout))
    return done.stdout
