# SPDX-License-Identifier: Apache-2.0
"""Measures what every kernel costs on each CPU, under QEMU, and writes boards/costs/<cpu>.json.

A model of many layers is compiled once for every kernel that fits some of them. Instructions are fitted to the terms
of mcugen.lir.cost by non-negative least squares of relative errors; code is the size of the kernel's functions.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from elftools.elf.elffile import ELFFile
from onnx import helper, numpy_helper
from rich.console import Console
from scipy.optimize import nnls

from mcugen.board import Board, load_board
from mcugen.compiled import CompiledModel
from mcugen.compiler import compile_model
from mcugen.errors import McugenError, UsageError
from mcugen.hir.graph import Node
from mcugen.hir.types import Array
from mcugen.lir.cost import TERMS, work
from mcugen.options import CompileOptions
from mcugen.simulate import simulate

COSTS = Path(__file__).resolve().parents[1] / "boards" / "costs"
BOARDS = {
    "cortex-m0plus": "rp2040",
    "cortex-m3": "stm32f103",
    "cortex-m4": "nrf52840",
    "cortex-m7": "rt1060",
    "cortex-m33": "nrf5340",
    "cortex-m55": "corstone300",
    "rv32imc": "rv32imc",
    "rv32imafc": "rv32imafc",
}
"""A board by CPU."""

CONVS = (
    # height, width, channels in, out, kernel height, width, stride, groups
    (32, 32, 16, 16, 3, 3, 1, 1),
    (12, 12, 16, 16, 3, 3, 1, 1),
    (16, 16, 32, 32, 3, 3, 1, 1),
    (8, 8, 64, 64, 3, 3, 1, 1),
    (9, 7, 24, 24, 3, 3, 1, 1),
    (14, 14, 8, 8, 3, 3, 1, 1),
    (24, 24, 16, 32, 3, 3, 1, 1),
    (10, 10, 48, 40, 3, 3, 1, 1),
    (6, 6, 64, 96, 3, 3, 1, 1),
    (20, 20, 8, 24, 3, 3, 1, 1),
    (32, 32, 3, 16, 3, 3, 1, 1),
    (48, 48, 3, 8, 3, 3, 2, 1),
    (16, 16, 3, 12, 3, 3, 1, 1),
    (32, 32, 16, 32, 3, 3, 2, 1),
    (16, 16, 32, 64, 3, 3, 2, 1),
    (49, 10, 1, 64, 10, 4, 2, 1),
    (28, 28, 1, 8, 5, 5, 1, 1),
    (12, 12, 8, 16, 5, 5, 1, 1),
    (1, 100, 40, 32, 1, 3, 1, 1),
    (24, 24, 8, 16, 1, 1, 1, 1),
    (48, 48, 8, 16, 1, 1, 1, 1),
    (25, 5, 64, 64, 1, 1, 1, 1),
    (12, 12, 32, 64, 1, 1, 1, 1),
    (24, 24, 32, 32, 1, 1, 1, 1),
    (6, 6, 128, 128, 1, 1, 1, 1),
    (3, 3, 256, 256, 1, 1, 1, 1),
    (3, 3, 128, 256, 1, 1, 1, 1),
    (32, 32, 16, 32, 1, 1, 2, 1),
    (7, 7, 20, 12, 1, 1, 1, 1),
    (1, 1, 64, 10, 1, 1, 1, 1),
    (48, 48, 8, 8, 3, 3, 1, 8),
    (48, 48, 16, 16, 3, 3, 2, 16),
    (25, 5, 64, 64, 3, 3, 1, 64),
    (24, 24, 32, 32, 3, 3, 2, 32),
    (12, 12, 64, 64, 3, 3, 1, 64),
    (6, 6, 128, 128, 3, 3, 1, 128),
    (3, 3, 256, 256, 3, 3, 1, 256),
    (6, 6, 128, 128, 3, 3, 2, 128),
    (12, 12, 64, 64, 3, 3, 2, 64),
    (10, 40, 24, 24, 3, 3, 1, 24),
    (16, 16, 16, 16, 5, 5, 1, 16),
    (7, 7, 24, 24, 7, 7, 1, 24),
    (1, 60, 32, 32, 1, 9, 1, 32),
)
DENSE = ((640, 128), (128, 640), (128, 128), (128, 8), (8, 128), (64, 10), (256, 2), (100, 33), (1000, 16))
PRODUCTS = ((1, 16, 64, 16), (4, 32, 16, 32), (2, 10, 10, 10), (1, 64, 32, 64))
"""Batch, rows, depth and columns of products of two activations."""
IMAGES = ((3, 96, 96), (3, 32, 32), (2, 40, 25), (4, 24, 24), (8, 20, 20), (6, 64, 48))
"""Planes, height and width of transpositions to pixels, and back."""


@dataclass
class _Net:
    """Independent layers, each from an input of its own to an output of its own."""

    kind: str
    """Of activations: float32, int8 or int16."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def constant(self, data: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(data, name))
        return name

    def add(self, op: str, *inputs: str, out: str = "", **attributes: object) -> str:
        out = out or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

    @property
    def is_quantized(self) -> bool:
        return self.kind != "float32"

    def scale(self, scale: float | Array, zero: int = 0) -> tuple[str, str]:
        """Scale and zero point of activations."""
        return self.constant(np.float32(scale)), self.constant(np.full((), zero, self.kind))

    def input(self, shape: Sequence[int]) -> str:
        name = f"x{len(self.inputs)}"
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return self.add("DequantizeLinear", name, *self.scale(0.05)) if self.is_quantized else name

    def weights(self, *shape: int) -> list[str]:
        """Weights, channels first, and a bias: codes as trained ones are spread, with one scale a channel."""
        if not self.is_quantized:
            arrays = self.random.standard_normal(shape), self.random.standard_normal(shape[0])
            return [self.constant(a.astype(np.float32)) for a in arrays]
        codes = self.random.normal(0, 40, shape).round().clip(-127, 127).astype(np.int8)
        scale = self.random.uniform(0.001, 0.003, shape[0]).astype(np.float32)
        zeros = self.constant(np.zeros(shape[0], np.int8))
        w = self.add("DequantizeLinear", self.constant(codes), self.constant(scale), zeros, axis=0)
        bias = self.random.integers(-500, 500, shape[0], np.int32)
        unit = [self.constant(np.float32(0.05) * scale), self.constant(np.zeros(shape[0], np.int32))]
        return [w, self.add("DequantizeLinear", self.constant(bias), *unit, axis=0)]

    def output(self, y: str) -> None:
        """A ReLU and the output, whose codes of 8 bits start at 0.0 like those of any converter."""
        y, zero = self.add("Relu", y), -128 if self.kind == "int8" else 0
        name = f"y{len(self.outputs)}"
        self.add("QuantizeLinear", y, *self.scale(0.05, zero), out=name) if self.is_quantized else self.add(
            "Identity", y, out=name
        )
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        self.outputs.append(helper.make_tensor_value_info(name, dtype, None))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "costs", self.inputs, self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        inferred = onnx.shape_inference.infer_shapes(model)
        for output, found in zip(model.graph.output, inferred.graph.output, strict=True):
            output.CopyFrom(found)
        return model


def convolutions(kind: str, shapes: Sequence[tuple[int, ...]] = CONVS) -> onnx.ModelProto:
    """The convolutions, padded so that stride 1 keeps the size."""
    net = _Net(kind)
    for h, w, c, out, k_h, k_w, stride, groups in shapes:
        pads = [(k_h - 1) // 2, (k_w - 1) // 2, k_h // 2, k_w // 2]
        x = net.input((1, c, h, w))
        net.output(
            net.add("Conv", x, *net.weights(out, c // groups, k_h, k_w), pads=pads, strides=[stride] * 2, group=groups)
        )
    return net.model()


def dense_layers(kind: str) -> onnx.ModelProto:
    """The fully connected layers, on one row."""
    net = _Net(kind)
    for depth, channels in DENSE:
        net.output(net.add("Gemm", net.input((1, depth)), *net.weights(channels, depth), transB=1))
    return net.model()


def products(kind: str) -> onnx.ModelProto:
    """The products of activations."""
    net = _Net(kind)
    for batch, rows, depth, columns in PRODUCTS:
        net.output(net.add("MatMul", net.input((batch, rows, depth)), net.input((batch, depth, columns))))
    return net.model()


def transpositions(kind: str) -> onnx.ModelProto:
    """Images from planes to pixels and back."""
    net = _Net(kind)
    for c, h, w in IMAGES:
        for shape, perm in (((1, c, h, w), (0, 2, 3, 1)), ((1, h, w, c), (0, 3, 1, 2))):
            number, dtype = len(net.inputs), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            net.inputs.append(helper.make_tensor_value_info(f"x{number}", dtype, shape))
            net.add("Transpose", f"x{number}", out=f"y{number}", perm=perm)
            net.outputs.append(helper.make_tensor_value_info(f"y{number}", dtype, None))
    return net.model()


KINDS = ("int8", "int16", "float32")


def models(kind: str) -> list[onnx.ModelProto]:
    """All models of layers with activations of that type."""
    return [make(kind) for make in (convolutions, dense_layers, products, transpositions)]


def roomy(name: str) -> Board:
    """The board, but with memory for many layers at once: costs are those of its CPU."""
    board = load_board(name)
    return replace(
        board,
        memories=tuple(replace(m, size=0x800_0000, origin=i * 0x1000_0000) for i, m in enumerate(board.memories)),
    )


@dataclass(frozen=True)
class Observation:
    """A layer that a kernel computed."""

    terms: tuple[int, ...]
    instructions: int


@dataclass
class Measured:
    """What is known of a kernel."""

    layers: list[Observation] = field(default_factory=list)
    code: list[int] = field(default_factory=list)


def observe(model: bytes, board_name: str, kernel: str) -> tuple[list[Observation], int]:
    """The layers that a kernel computes on a board, and the code of one of its functions."""
    board = roomy(board_name)
    board = replace(board, cflags=(*board.cflags, "-fno-inline-functions-called-once"))  # all functions have a symbol
    compiled = compile_model(onnx.load_from_string(model), board, CompileOptions(name="costs", kernels=(kernel,)))
    sample = random_inputs(compiled)
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(compiled.bundle, board, [sample], per_layer=True, workdir=Path(folder))
        code = _code_bytes(Path(folder) / "model.elf", kernel)
    program, nodes = compiled.program, _nodes_by_output(compiled)
    heads = [program.head(layer) for layer in program.layers()]
    functions = len({i.function_key for i in program.instrs if i.kernel == kernel})
    assert run.layer_instructions is not None
    observations = [
        Observation(work(nodes[head.name], compiled_kernel(nodes[head.name], kernel)), count)
        for head, count in zip(heads, run.layer_instructions, strict=True)
        if head.kernel == kernel
    ]
    return observations, code // max(functions, 1)


def compiled_kernel(node: Node, name: str):
    """The kernel of that name among those of a node."""
    return next(k for k in node.op.kernels if k.name == name)  # type: ignore[attr-defined]


def _nodes_by_output(compiled: CompiledModel) -> dict[str, Node]:
    return {node.outputs[0].name: node for node in compiled.graph.nodes}


def random_inputs(compiled: CompiledModel) -> dict[str, Array]:
    """Of a model's inputs: all codes, or standard normal numbers."""
    rng = np.random.default_rng(1)
    return {p.name: _random(rng, p.shape, p.dtype) for p in compiled.bundle.inputs}


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _code_bytes(elf: Path, kernel: str) -> int:
    """Bytes of all functions whose names begin with the kernel's, or with mcugen_ and a word of it: shared ones."""
    begin = (f"{kernel}_", *(f"mcugen_{word}_" for word in kernel.split("_")))
    with elf.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        symbols = [s for s in table.iter_symbols() if s["st_info"]["type"] == "STT_FUNC"]
    return sum(int(s["st_size"]) for s in symbols if s.name == kernel or s.name.startswith(begin))


def fitted(layers: Sequence[Observation]) -> tuple[dict[str, float], float]:
    """Instructions by term, and the largest relative error."""
    counts = np.array([o.instructions for o in layers], np.float64)
    terms = np.array([o.terms for o in layers], np.float64)
    scaled = terms / counts[:, None]
    size = np.maximum(scaled.max(0), 1e-12)
    found, _ = nnls(scaled / size, np.ones(len(layers)))
    per = found / size
    error = float(np.abs(terms @ per / counts - 1).max())
    return {t: float(f"{p:.4g}") for t, p in zip(TERMS, per, strict=True) if p > 0}, error


def kernels_that_fit(model: onnx.ModelProto, board_name: str) -> list[str]:
    """Names of all kernels that could compute some layer of a model."""
    board = roomy(board_name)
    compiled = compile_model(model, board, CompileOptions(name="costs"))
    offered = [k for n in compiled.graph.nodes for k in getattr(n.op, "kernels", ()) if k.fits(n, board.features)]
    return sorted({k.name for k in offered if k.emit})


def measure(board_name: str, pool: ProcessPoolExecutor, console: Console, only: str) -> dict[str, Measured]:
    """All kernels on a board whose names contain `only`."""
    jobs = [
        (kernel, pool.submit(observe, model.SerializeToString(), board_name, kernel))
        for kind in KINDS
        for model in models(kind)
        for kernel in kernels_that_fit(model, board_name)
        if only in kernel
    ]
    found: dict[str, Measured] = defaultdict(Measured)
    for kernel, job in jobs:
        try:
            layers, code = job.result()
        except McugenError as error:
            console.print(f"[red]{board_name} {kernel}: {error}")
            continue
        found[kernel].layers += layers
        found[kernel].code += [code] if code else []
    return found


def write(cpu: str, found: dict[str, Measured], console: Console) -> None:
    """Renews the table of a CPU; kernels that were not measured stay as they are."""
    path = COSTS / f"{cpu}.json"
    kernels = json.loads(path.read_text("utf-8"))["kernels"] if path.is_file() else {}
    for kernel, measured in found.items():
        if not measured.layers:
            continue
        per, error = fitted(measured.layers)
        code = round(float(np.median(measured.code))) if measured.code else 0
        kernels[kernel] = {"code": code, "instructions": per}
        console.print(f"{cpu} {kernel}: {len(measured.layers)} layers, code {code}, error {error:.0%}, {per}")
    COSTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({"kernels": dict(sorted(kernels.items()))}, indent=1, sort_keys=True) + "\n", "utf-8")


def main(
    cpu: Annotated[list[str] | None, typer.Option(help="only these CPUs")] = None,
    kernel: Annotated[str, typer.Option(help="only kernels whose names contain this")] = "",
) -> None:
    """Measures and writes the tables."""
    console = Console(stderr=True, width=200)
    unknown = sorted(set(cpu or []) - set(BOARDS))
    if unknown:
        raise UsageError("--cpu must be known", ", ".join(unknown), f"one of: {', '.join(BOARDS)}")
    with ProcessPoolExecutor(2) as pool:
        for name in cpu or BOARDS:
            write(name, measure(BOARDS[name], pool, console, kernel), console)


if __name__ == "__main__":
    typer.run(main)
