# SPDX-License-Identifier: Apache-2.0
"""Every operator between quantized tensors of every type: right by arithmetic on reals, in numpy and in C."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import outputs_in_c
from quantized_cells import (
    CALCULATIONS,
    CHANGES,
    DTYPES,
    MOVEMENTS,
    Expected,
    Matrix,
    Quantization,
    output_of,
    product,
    quantization,
)

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array
from mcugen.passes.islands import float_islands

GROUPS = {"movements": MOVEMENTS, "calculations": CALCULATIONS}


NEAR_TIE = 0.02
"""Distance from a tie, in steps, at which float32 may round to either neighbour. Over all 60 matrices of calculations,
C and numpy differ in 69 results, each less than 0.007 from a tie: sums of up to 65535 steps are rounded at 2⁻²⁴."""


def check(cells: str, x: Quantization, y: Quantization) -> None:
    """Assert that numpy is right, and that C gives the same integers, but for ties in float cells."""
    matrix = Matrix(GROUPS[cells], x, y)
    compiled = compile_model(matrix.model)
    found = interpret(compiled.graph, matrix.feeds)
    in_c, floats = outputs_in_c(compiled, matrix.feeds), cells_with_floats(compiled.graph)
    for name, expected in matrix.expected().items():
        expected.assert_met(found[name], name, exactly=cells == "movements" and x == y)
        assert_same(in_c[name], found[name], name, expected if name.partition(".")[0] in floats else None)


def assert_same(in_c: Array, found: Array, name: str, reals: Expected | None) -> None:
    """Assert that two programs give the same integers; those of reals next to a tie may be neighbours."""
    steps = np.abs(in_c.astype(int) - found.astype(int))
    if reals is not None:
        steps -= np.abs(reals.steps - np.floor(reals.steps) - 0.5) < NEAR_TIE
    assert steps.max(initial=0) <= 0, name


def cells_with_floats(graph: Graph) -> set[str]:
    """Return the cells that are computed in float32: C and numpy may round their results differently."""
    names = [value.name for value in graph.values() if value.type.dtype.is_float]
    return {name.partition(".")[0] for name in (*names, *float_islands(graph))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_movements_keep_codes(dtype: str):
    """Borders are zero points or quantized constants; a border never wins a maximum."""
    x = quantization(dtype, "odd")
    check("movements", x, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_calculations_round_to_the_nearest_step(dtype: str):
    x = quantization(dtype)
    check("calculations", x, output_of(x, "scale"))


@pytest.mark.slow
@pytest.mark.parametrize("cells", GROUPS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("zero", ["middle", "odd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_quantizations(dtype: str, zero: str, change: str, cells: str):
    x = quantization(dtype, zero)
    check(cells, x, output_of(x, change))


@pytest.mark.parametrize("dtype", ["int8", "uint4"])
@pytest.mark.parametrize("layer", ["conv", "depthwise", "convtranspose", "gemm", "matmul"])
def test_a_bias_is_not_rounded_to_coarse_sums(layer: str, dtype: str):
    """The unit of int8 · int4 products is a multiple of an int16 step: a bias in it would be steps off."""
    name = f"{layer}_{dtype}"
    cells = {"layer": product(layer, dtype, "float", 0), "tensor": product(layer, dtype, "float", None)}
    matrix = Matrix(cells, quantization("int8"), quantization("int16"))
    compiled = compile_model(matrix.model)
    found = interpret(compiled.graph, matrix.feeds)
    in_c = outputs_in_c(compiled, matrix.feeds)
    for output, expected in matrix.expected().items():
        expected.assert_met(found[output], f"{name}: {output}")
        assert_same(in_c[output], found[output], f"{name}: {output}", expected)


SUBSET = ("pad_value", "pad_five_axes", "concat_scales", "max_pool_padded", "reduce_max", "top_k", "resize_nearest")
BOARDS = [
    *(pytest.param(board, marks=pytest.mark.qemu) for board in ("nrf52840", "corstone300", "rp2040")),
    pytest.param("rv32imc", marks=pytest.mark.riscv),
]


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("dtype", ["uint16", pytest.param("int16", marks=pytest.mark.slow), "uint8"])
def test_boards_give_the_codes_of_numpy(dtype: str, board: str):
    x = quantization(dtype)
    matrix = Matrix({name: MOVEMENTS[name] for name in SUBSET}, x, x)
    compiled = compile_model(matrix.model, load_board(board), CompileOptions())
    (found,) = compiled.simulate([matrix.feeds], measure=False).outputs
    for name, expected in matrix.expected().items():
        expected.assert_met(found[name].reshape(expected.steps.shape), name, exactly=True)
