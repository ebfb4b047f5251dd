# SPDX-License-Identifier: Apache-2.0
"""The MicroPython module of a package: compiled with a stand-in for MicroPython's headers, and called."""

from __future__ import annotations

import ast
import ctypes
import re
import subprocess
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from export_packages import export, files_of, need, tiny
from model_variants import PATH, stateful
from onnx_models import Net

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model

STAND_IN = Path(__file__).parent / "micropython"
FLAGS = ("-std=gnu99", "-Wall", "-Wextra", "-Wpointer-arith", "-Wdouble-promotion", "-Wfloat-conversion", "-Werror")
"""Flags by which ports of MicroPython compile modules."""


def two() -> Net:
    """Return a network with two inputs, one of which is called like a keyword, and two outputs."""
    net = Net()
    a, b = net.input("self", 1, 4), net.input("b/lambda", 1, 6, dtype=np.int8)
    net.output(net.op("Mul", a, net.const([2.0])), net.op("Mul", net.op("Cast", b, to=1), net.const([0.5])))
    return net


FORMS = {
    "two": (two, CompileOptions("two")),
    "lent": (two, CompileOptions("lent", external_io=True)),
    "blob": (two, CompileOptions("blob", weights_blob=True)),
    "keeps": (stateful, CompileOptions("keeps", states={"after": f"{PATH}/state"})),
}
"""Networks and options by name."""


@cache
def compiled(form: str) -> CompiledModel:
    make, options = FORMS[form]
    return compile_model(make().model(), "host", options)


class Module:
    """An exported module in this process; arguments are arrays, bytes or integers, and views become lists."""

    def __init__(self, form: str, folder: Path, compiler: str) -> None:
        need(compiler)
        package = export(compiled(form), "micropython", folder / form)
        source = package / f"mod{form}.c"
        (folder / "py").mkdir()
        for header in re.findall(r'"(py/\w+\.h)"', source.read_text()):
            (folder / header).write_text('#include "stand_in.h"\n')
        names = sorted(set(re.findall(r"MP_QSTR_(\w+)", source.read_text())))
        qstrs = "".join(f'#define MP_QSTR_{name} "{name}"\n' for name in names)
        (folder / "stand_in.h").write_text((STAND_IN / "stand_in.h").read_text() + qstrs)
        command = [
            compiler,
            *FLAGS,
            "-Wno-gnu",
            "-shared",
            "-fPIC",
            f'-DMODULE="{source}"',
            "-I.",
            f"-I{package / 'src'}",
        ]
        sources = [*sorted((package / "src").glob("*.c")), STAND_IN / "interpreter.c"]
        subprocess.run([*command, *map(str, sources), "-lm", "-o", "module.so"], cwd=folder, check=True)
        self.library = ctypes.CDLL(str(folder / "module.so"))
        for function in ("lookup", "method", "create", "buffer", "call"):
            getattr(self.library, function).restype = ctypes.c_void_p
        self.library.last_error.restype = ctypes.c_char_p
        self.kept: list[object] = []

    def constant(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.library.lookup(None, name.encode()))

    def object(self, value: object) -> int | None:
        """Return the object of an array, bytes, or an integer."""
        if isinstance(value, int):
            return 2 * value + 1
        code = ord(value.typecode) if isinstance(value, array) else 1
        data = ctypes.create_string_buffer(bytes(value), len(bytes(value)) + 1)
        self.kept.append(data)
        return self.library.buffer(data, ctypes.c_size_t(len(bytes(value))), code)

    def checked(self, result: int | None) -> ctypes.c_void_p:
        if result is None:
            raise RuntimeError(self.library.last_error().decode())
        return ctypes.c_void_p(result)

    def model(self, *arguments: object) -> ctypes.c_void_p:
        values = (ctypes.c_void_p * 3)(*map(self.object, arguments))
        return self.checked(self.library.create(self.constant("Model"), ctypes.c_size_t(len(arguments)), values))

    def call(self, function: int | None, *arguments: object) -> ctypes.c_void_p:
        assert function
        given = [a.value if isinstance(a, ctypes.c_void_p) else self.object(a) for a in arguments]
        values = (ctypes.c_void_p * 8)(*given)
        return self.checked(self.library.call(ctypes.c_void_p(function), ctypes.c_size_t(len(given)), values))

    def run(self, model: ctypes.c_void_p, *arguments: object) -> list[list[float]]:
        """Return the elements of all outputs of a run."""
        result = self.call(self.library.method(model, b"run"), model, *arguments)
        views = self.items(result) if self.library.is_tuple(result) else [result]
        return [self.view(view).tolist() for view in views]

    @staticmethod
    def items(address: ctypes.c_void_p) -> list[ctypes.c_void_p]:
        words = ctypes.cast(address, ctypes.POINTER(ctypes.c_size_t))
        return [ctypes.c_void_p(words[2 + i]) for i in range(words[1])]

    @staticmethod
    def view(address: ctypes.c_void_p) -> np.ndarray:
        """Return the elements of a memoryview, without a copy."""
        words = ctypes.cast(address, ctypes.POINTER(ctypes.c_size_t))
        dtype = np.dtype(chr(words[3] & 0x7F))
        data = (ctypes.c_char * (words[2] * dtype.itemsize)).from_address(words[1])
        return np.frombuffer(data, dtype)


COMPILERS = pytest.mark.parametrize("compiler", ["gcc", "clang"])
A, B = array("f", [1, 2, 3, 4]), array("b", [1, -2, 3, 4, 5, 6])
RESULTS = [[2, 4, 6, 8], [0.5, -1, 1.5, 2, 2.5, 3]]


@COMPILERS
@pytest.mark.parametrize("form", ["two", "lent", "blob"])
def test_arrays_are_run(form: str, compiler: str, tmp_path: Path) -> None:
    module = Module(form, tmp_path, compiler)
    module.call(module.constant("selftest").value)
    model = module.model()
    assert module.run(model, A, B) == RESULTS
    assert module.run(model, bytes(A), bytearray(B)) == RESULTS
    output = module.library.method(model, b"output")
    assert module.view(module.call(output, model, 1)).tolist() == RESULTS[1]
    assert module.view(module.call(output, model)).tolist() == RESULTS[0]
    kinds = [Module.items(kind) for side in ("INPUTS", "OUTPUTS") for kind in Module.items(module.constant(side))]
    codes = [ctypes.string_at(code.value or 0).decode() for code, _ in kinds]
    shapes = [[(size.value or 0) >> 1 for size in Module.items(shape)] for _, shape in kinds]
    assert (codes, shapes) == (["f", "b", "f", "f"], [[1, 4], [1, 6], [1, 4], [1, 6]])


def test_inputs_in_the_arena_are_not_copied(tmp_path: Path) -> None:
    module = Module("two", tmp_path, "gcc")
    model = module.model()
    for index, values in enumerate((A, B)):
        view = module.view(module.call(module.library.method(model, b"input"), model, index))
        view[:] = values
    assert module.run(model) == RESULTS


def test_buffers_of_the_caller_are_read_in_place(tmp_path: Path) -> None:
    module = Module("lent", tmp_path, "gcc")
    first, second = module.model(), module.model()
    result = module.call(module.library.method(first, b"run"), first, A, B)
    module.run(second, array("f", [9] * 4), B)
    assert module.view(module.items(result)[0]).tolist() == RESULTS[0], "each model has outputs of its own"
    data = ctypes.create_string_buffer(bytes(32))
    address = ctypes.addressof(data)
    crooked = module.library.buffer(ctypes.c_void_p(address + 1 + address % 2), ctypes.c_size_t(16), ord("f"))
    with pytest.raises(RuntimeError, match="ValueError: buffer is not aligned"):
        module.run(first, ctypes.c_void_p(crooked), B)


WRONG: dict[str, tuple[Sequence[object], str]] = {
    "type code": ((array("h", range(8)), B), "TypeError: input 0: array of 'f' needed"),
    "type code of the second": ((A, array("f", [1, 2, 3, 4, 5, 6])), "TypeError: input 1: array of 'b' needed"),
    "too few": ((array("f", [1]), B), "ValueError: input 0: 16 bytes needed, not 4"),
    "too many bytes": ((A, bytes(7)), "ValueError: input 1: 6 bytes needed, not 7"),
    "nothing": ((A, b""), "ValueError: input 1: 6 bytes needed, not 0"),
    "a number": ((A, 5), "TypeError: object with buffer protocol required"),
    "one of two": ((A,), "TypeError: all inputs needed, or none"),
    "three of two": ((A, B, B), "TypeError: wrong number of arguments"),
}


def test_wrong_arguments_raise_exceptions(tmp_path: Path) -> None:
    module = Module("two", tmp_path, "gcc")
    model = module.model()
    for name, (arguments, text) in WRONG.items():
        with pytest.raises(RuntimeError, match=re.escape(text)):
            module.run(model, *arguments)
        assert module.run(model, A, B) == RESULTS, name
    for name in ("input", "output"):
        for index in (2, -1):
            with pytest.raises(RuntimeError, match=f"IndexError: no such {name}"):
                module.call(module.library.method(model, name.encode()), model, index)
    with pytest.raises(RuntimeError, match="TypeError: wrong number"):
        module.model(1)


@COMPILERS
def test_models_have_states_of_their_own(compiler: str, tmp_path: Path) -> None:
    module = Module("keeps", tmp_path, compiler)
    module.call(module.constant("selftest").value)
    one = array("f", [1] * 4)
    first, second = module.model(), module.model()
    assert [module.run(first, one)[0][0] for _ in range(3)] == [3, 4.5, 5.25]
    assert module.run(second, one)[0][0] == 3
    module.call(module.library.method(first, b"reset"), first)
    assert module.run(first, one)[0][0] == 3


@pytest.mark.parametrize("form", FORMS)
def test_the_stub_documents_what_the_module_has(form: str) -> None:
    files = files_of(compiled(form), "micropython")
    stub = ast.parse(str(files[f"{form}.pyi"]))
    (model,) = (node for node in stub.body if isinstance(node, ast.ClassDef))
    methods = {node.name for node in model.body if isinstance(node, ast.FunctionDef)} - {"__init__"}
    names = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {
        node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    module = str(files[f"mod{form}.c"])
    tables = re.findall(r"mp_rom_map_elem_t (\w+)\[\] = \{(.*?)\n\};", module, re.S)
    found = {name: set(re.findall(r"\{MP_ROM_QSTR\(MP_QSTR_(\w+)\)", text)) for name, text in tables}
    assert methods == found["model_locals_table"]
    assert names == found["module_globals_table"] - {"__name__"}
    assert all(
        ast.get_docstring(node) for node in model.body if isinstance(node, ast.FunctionDef) and node.name != "__init__"
    )


def test_build_files_name_every_source() -> None:
    files = files_of(tiny(), "micropython")
    sources = {path for path in files if path.endswith(".c")}
    for name, place in (("micropython.mk", "$(USERMOD_DIR)/"), ("micropython.cmake", "${CMAKE_CURRENT_LIST_DIR}/")):
        text = str(files[name])
        assert {path for path in sources if place + path in text} == sources
        assert "-O2" in text


def test_models_that_take_more_than_tensors_are_refused() -> None:
    streamed = Net()
    streamed.output(streamed.op("Relu", streamed.input("x", "n", 4)))
    model = compile_model(streamed.model(), "host", CompileOptions("net", dims={"n": (1, 8)}))
    with pytest.raises(UsageError, match=r"whole tensors.*sizes known at run time"):
        files_of(model, "micropython")
    with pytest.raises(UsageError, match=r"like a keyword.*lambda"):
        files_of(tiny(name="lambda"), "micropython")
