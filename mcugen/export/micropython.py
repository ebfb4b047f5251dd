# SPDX-License-Identifier: Apache-2.0
"""Package format for MicroPython: a user C module, which is compiled into the firmware."""

from __future__ import annotations

import keyword
import math
from typing import TYPE_CHECKING, Any

from mcugen.codegen.identifiers import comment, identifier, own_names
from mcugen.codegen.install import Files
from mcugen.core.errors import UsageError
from mcugen.export.declaration import Format
from mcugen.hir.names import Names

if TYPE_CHECKING:
    from mcugen.codegen.bundle import Bundle, Port
    from mcugen.export.package import Package
    from mcugen.lir.program import Endpoint

_TYPE_CODES = {
    "float32": "f",
    "float64": "d",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
}
"""Type codes of Python's `array` by element type; elements of other types are passed as bytes."""


def _module_files(package: Package) -> Files:
    """Return the C module and its stub.

    Raises:
        UsageError: The model's name is a keyword of Python, or its run function takes more than tensors and a state.
    """
    bundle = package.bundle
    if keyword.iskeyword(package.name):
        raise UsageError("a Python module must not be called like a keyword", package.name, "another --name")
    _require_plain(bundle)
    names = own_names(("self", *keyword.kwlist))
    program = package.compiled.program
    inputs = [_port_context("input", i, p, program.inputs[i], names) for i, p in enumerate(bundle.inputs)]
    outputs = [_port_context("output", i, p, program.outputs[i], names) for i, p in enumerate(bundle.outputs)]
    arguments = [f"(const {port['ctype']} *)given[{port['index']}]" for port in inputs if port["is_lent"]]
    arguments += [f"self->{port['field']}" for port in outputs if port["is_lent"]]
    arguments += [f"{package.name}_default_weights()"] * (bundle.weights_blob is not None)
    arguments += ["&self->state"] * bundle.has_state
    context = {
        "inputs": inputs,
        "outputs": outputs,
        "lends": any(port.is_lent for port in bundle.inputs),
        "arguments": arguments,
    }
    return {
        f"mod{package.name}.c": package.rendered("micropython/module.c.j2", **context),
        f"{package.name}.pyi": package.rendered("micropython/stub.pyi.j2", **context),
    }


def _require_plain(bundle: Bundle) -> None:
    """Check that the run function takes tensors, weights and a state alone.

    Raises:
        UsageError: It takes more.
    """
    features = {
        "--stream-input": bundle.streamed is not None,
        "sizes known at run time": bool(bundle.symbols),
        "--train": bundle.lesson is not None,
        "--input": bundle.input_code is not None,
    }
    unsupported = ", ".join(name for name, is_used in features.items() if is_used)
    if unsupported:
        raise UsageError("--format micropython is for models that take whole tensors", unsupported, "leave it out")


def _port_context(side: str, index: int, port: Port, endpoint: Endpoint, names: Names) -> dict[str, Any]:
    typecode = _TYPE_CODES.get(port.dtype, "B")
    elements = port.nbytes if port.dtype not in _TYPE_CODES else math.prod(port.shape)
    quant = endpoint.quant
    text = f"{comment(port.name)}, {port.dtype} {list(port.shape)}, array type '{typecode}'"
    if quant is not None and len(quant.scale) == 1:
        text += f", real value = {float(quant.scale[0]):.9g} * (element - {int(quant.zero_point)})"
    return {
        "variable": identifier(port.name, names),
        "index": index,
        "field": f"{side}_{index}",
        "accessor": port.accessor,
        "ctype": port.ctype,
        "typecode": typecode,
        "count": elements,
        "nbytes": port.nbytes,
        "shape": port.shape,
        "is_lent": port.is_lent,
        "text": text.replace("\\", "/").replace('"', "'"),
    }


MICROPYTHON = Format(
    name="micropython",
    tool="MicroPython (1.22 or newer)",
    beside="",
    templates={
        "micropython.mk": "micropython/micropython.mk.j2",
        "micropython.cmake": "micropython/micropython.cmake.j2",
    },
    extra_files=_module_files,
    steps=(
        "Copy this folder as `modules/{name}` beside MicroPython's sources, whose `mpy-cross` and submodules are built "
        "(`make -C mpy-cross`, `make -C ports/PORT submodules`).",
        "Build the firmware: `make -C ports/PORT BOARD=BOARD USER_C_MODULES=.../modules` (ports of make), or "
        "`USER_C_MODULES=.../modules/{name}/micropython.cmake` (rp2, esp32); flash it.",
        "The self-test, at the prompt: `import {name}; {name}.selftest()` raises no error.",
        "`net = {name}.Model(); y = net.run(x)`, where `x` is an `array` or `memoryview`; `{name}.pyi` "
        "is the stub for editors.",
    ),
    testing="the module compiled and run in tests with a stand-in for MicroPython's headers; built once, by hand, with "
    "the unix port of 2026-08-19, and run. CircuitPython has no user C modules",
)
"""Package format for MicroPython: a user C module with a stub."""
