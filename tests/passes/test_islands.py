# SPDX-License-Identifier: Apache-2.0
"""What a quantized model computes in float32 between its integer layers is told."""

from __future__ import annotations

import numpy as np
from onnx_models import Net, optimized

from mcugen.driver.compiler import compile_model
from mcugen.hir.parser import parse_graph
from mcugen.passes.islands import float_islands, float_layers


def net_of(*op_types: str, dtype: type = np.int16, ends_real: bool = False) -> Net:
    """Operators in a row between DequantizeLinear and QuantizeLinear."""
    net = Net(opset=21)
    real = net.dequantize(net.input("x", 2, 6, 5, dtype=dtype), 4e-4, 0, dtype)
    for op_type in op_types:
        real = net.op(op_type, real)
    if ends_real:
        net.output(real)
    else:
        net.output(net.quantize(real, 4e-4, 0, dtype, out="y"), dtype=dtype)
    return net


def test_layers_between_conversions_are_named():
    islands = float_islands(optimized(net_of("Round", "Softsign").model()))
    assert len(islands) == 1
    assert next(iter(islands)) == "y"


def test_neither_integer_layers_nor_real_results_are():
    for net in (net_of("Relu"), net_of("Tanh"), net_of("Transpose"), net_of("Round", ends_real=True)):
        assert not float_islands(optimized(net.model()))


def test_the_report_says_so():
    (note,) = compile_model(net_of("Round").model(), "nrf52840").report.notes
    assert note.startswith("computed in float32: 'y'; no integer form")
    assert compile_model(net_of("Relu").model(), "nrf52840").report.notes == ()


def test_islands_begin_and_end_with_conversions():
    """Moves are none, nor what reads the user's reals, nor what nobody quantizes."""
    graph = parse_graph("""graph net {
  input %q : 2x4 int8(0.5, 0)
  input %x : 2x4 float32
  %d = dequantize(%q) : 2x4 float32
  %e = exp(%d) : 2x4 float32
  %r = reshape(%e) {shape=(8,)} : 8 float32
  %n = neg(%r) : 8 float32
  %z = quantize(%n) : 8 int8(0.5, 0)
  %a = exp(%x) : 2x4 float32
  %b = quantize(%a) : 2x4 int8(0.5, 0)
  %c = tanh(%d) : 2x4 float32
  output z = %z
  output b = %b
  output c = %c
}
""")
    assert float_islands(graph) == {"e": "exp", "n": "neg"}


def test_positions_are_no_reals():
    """The position of the largest real chooses what is quantized; only the table is one of reals."""
    graph = parse_graph("""graph net {
  input %q : 1x4 int8(0.5, 0)
  input %table : 4 float32
  %d = dequantize(%q) : 1x4 float32
  %i = arg_max(%d) {axis=1} : 1x1 int64
  %r = gather(%table, %i) : 1x1 float32
  %z = quantize(%r) : 1x1 int8(0.5, 0)
  output z = %z
}
""")
    assert float_islands(graph) == {}


LAYERS = """graph net {
  input %q : 2x4 CODES
  input %x : 2x4 float32
  input %n : 2x4 int32
  const %c : 2x4 float32 = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
  %moved = reshape(%x) {shape=(8,)} : 8 float32
  %alone = exp(%x) : 2x4 float32
  %scaled = mul(%x, %c) : 2x4 float32
  %fixed = neg(%c) : 2x4 float32
  %whole = neg(%n) : 2x4 int32
  %largest = arg_max(%x) {axis=1} : 2x1 int64
  %codes = max(%q, %q) : 2x4 CODES
  output moved = %moved
  output alone = %alone
  output scaled = %scaled
  output fixed = %fixed
  output whole = %whole
  output largest = %largest
  output codes = %codes
}
"""


def test_layers_of_reals_are_those_that_read_and_write_them():
    """Not what moves reals, reads constants alone, or has integers or positions as results."""
    mixed = parse_graph(LAYERS.replace("CODES", "int8(0.5, 0)"))
    assert float_layers(mixed) == {"alone": "exp", "scaled": "mul"}


def test_a_network_without_integers_has_no_layers_of_reals_to_tell():
    assert float_layers(parse_graph(LAYERS.replace("CODES", "int8"))) == {}


def test_layers_that_convert_themselves_compute_with_reals():
    graph = parse_graph("""graph net {
  input %q : 2x4 int8(0.5, 0)
  input %x : 2x4 float32
  const %w : 2x4 int8(0.5, 0) = [1, 2, 3, 4, 5, 6, 7, 8]
  %d = dequantize(%q) : 2x4 float32
  %e = exp(%d) : 2x4 float32
  %z = quantize(%e) : 2x4 int8(0.5, 0)
  %b = dequantize(%w) : 2x4 float32
  %y = add(%x, %b) : 2x4 float32
  output z = %z
  output y = %y
}
""")
    assert float_layers(graph) == {"e": "exp", "y": "add"}
