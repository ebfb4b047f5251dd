# SPDX-License-Identifier: Apache-2.0
"""Sizes known at run time only: one program for a range of sizes, given by the caller."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from compilers import assert_accepted
from onnx_models import Net, assert_close, onnxruntime_outputs

from mcugen.codegen.checks import table_entry
from mcugen.codegen.sizes import CodeTable, SizedParams
from mcugen.core.errors import ModelError, UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel, stack_samples
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import Array
from mcugen.lir.bounded import _require_no_negative
from mcugen.lir.formula import Atom, Fitter, Polynomial, Quotient, Symbol, ValueTable
from mcugen.lir.program import Instr


def compiled(model: onnx.ModelProto, board: str = "host", **dims: int | tuple[int, int]) -> CompiledModel:
    return compile_model(model, board, CompileOptions(dims=dims))


def feeds(model: onnx.ModelProto, sizes: dict[str, int], seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    result = {}
    for info in model.graph.input:
        shape = [sizes.get(d.dim_param, d.dim_value) for d in info.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        normal = random.standard_normal(shape) * (1 if dtype == np.float32 else 60)
        result[info.name] = np.clip(normal, -100, 100).astype(dtype)
    return result


def check_sizes(
    model: onnx.ModelProto, result: CompiledModel, sizes: list[dict[str, int]], relative: float = 1e-5
) -> None:
    """The generated C gives what onnxruntime gives, for every one of the sizes, in one run of the program."""
    samples = [feeds(model, size, seed) for seed, size in enumerate(sizes)]
    found = result.simulate(samples, measure=False, sanitize=result.board.name == "host").outputs
    for sample, outputs in zip(samples, found, strict=True):
        assert_close(outputs, onnxruntime_outputs(model, sample), relative)


def check_compilers(result: CompiledModel, folder: Path) -> None:
    result.write(folder)
    assert_accepted(folder, f"{result.bundle.name}.c", f"{result.bundle.name}_selftest.c")


def sequence_net() -> Net:
    """Operators on x[1, 6, T] and s[1, T, 5], each with an output of its own."""
    random = np.random.default_rng(0)
    net = Net(18)
    x, s = net.input("x", 1, 6, "T"), net.input("s", 1, "T", 5)

    def weights(*shape: int) -> str:
        return net.const(random.standard_normal(shape))

    conv = net.op("Relu", net.op("Conv", x, weights(8, 6, 3), weights(8), pads=[1, 1], strides=[2]))
    deep = net.op("Conv", conv, weights(7, 8, 3), pads=[2, 0], strides=[2], auto_pad="NOTSET")
    separate = net.op("Conv", x, weights(6, 1, 3), weights(6), pads=[1, 1], group=6)
    dense = net.op("Add", net.op("MatMul", s, weights(5, 9)), weights(9))
    scores = net.op("Softmax", net.op("MatMul", s, net.op("Transpose", s, perm=[0, 2, 1])), axis=-1)
    positions = net.op("Slice", weights(1, 40, 5), *ints(net, [0]), net.op("Shape", s, start=1, end=2), *ints(net, [1]))
    outputs = [
        deep,
        net.op("GlobalAveragePool", deep),
        net.op("MaxPool", net.op("Conv", x, weights(8, 6, 3), auto_pad="SAME_UPPER", strides=[2]), kernel_shape=[1]),
        net.op("MaxPool", conv, kernel_shape=[3], pads=[1, 1], strides=[2]),
        separate,
        dense,
        net.op("Softmax", x, axis=2),
        net.op("ReduceMean", s, net.const([1], np.int64), keepdims=0),
        net.op("MatMul", scores, s),
        net.op("Concat", x, weights(1, 6, 4), axis=2),
        net.op("Concat", s, s, axis=1),
        net.op(
            "Mul",
            net.op("Add", x, weights(1, 6, 1)),
            net.op("Sigmoid", net.op("ReduceMax", x, net.const([1], np.int64))),
        ),
        net.op("Add", s, positions),
        net.op("Pad", x, net.const([0, 0, 2, 0, 0, 3], np.int64)),
        net.op("Transpose", x, perm=[2, 0, 1]),
        net.op("ReduceSum", net.op("Mul", x, x), net.const([1, 2], np.int64)),
        net.op("Reshape", s, net.const([1, -1], np.int64)),
        net.op("Mul", x, x),
        net.op("ArgMax", s, axis=1),
        net.op("Neg", s),
        net.op("Resize", x, "", net.const([1.0, 1.0, 2.0]), mode="nearest"),
    ]
    types = {o: np.int64 if net.nodes[i].op_type == "ArgMax" else np.float32 for i, o in node_of(net, outputs)}
    for name, dtype in types.items():
        net.output(name, dtype=dtype)
    return net


def ints(net: Net, *values: list[int]) -> list[str]:
    return [net.const(v, np.int64) for v in values]


def node_of(net: Net, names: list[str]) -> list[tuple[int, str]]:
    return [(i, n) for n in names for i, node in enumerate(net.nodes) if n in node.output]


def test_every_length_gives_what_onnxruntime_gives(tmp_path: Path):
    model = sequence_net().plain_model()
    result = compiled(model, T=(1, 24))
    check_sizes(model, result, [{"T": t} for t in range(1, 25)])
    check_compilers(result, tmp_path / "c")


@pytest.mark.qemu
def test_two_lengths_on_a_cortex_m4(tmp_path: Path):
    model = sequence_net().plain_model()
    check_sizes(model, compiled(model, "nrf52840", T=(1, 24)), [{"T": 24}, {"T": 1}, {"T": 7}])


def exported_net() -> Net:
    """As PyTorch exports with a dynamic batch: flattening asks for the batch at run time."""
    random = np.random.default_rng(0)
    net = Net(17)
    x = net.input("input", "batch_size", 3, 8, 8)
    w = net.const(random.standard_normal((8, 3, 3, 3)))
    y = net.op("Relu", net.op("Conv", x, w, net.const(random.standard_normal(8)), pads=[1, 1, 1, 1], strides=[2, 2]))
    y = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    batch = net.op("Gather", net.op("Shape", y), net.const(0, np.int64))
    shape = net.op("Concat", net.op("Unsqueeze", batch, net.const([0], np.int64)), net.const([-1], np.int64), axis=0)
    weights = net.const(random.standard_normal((5, 32)))
    y = net.op("Gemm", net.op("Reshape", y, shape), weights, net.const(random.standard_normal(5)), transB=1)
    net.output(net.op("Softmax", y, out="output"))
    return net


def test_dynamic_batch_of_an_exported_model():
    model = exported_net().plain_model()
    check_sizes(model, compiled(model, batch_size=(1, 5)), [{"batch_size": n} for n in range(1, 6)])


def test_two_sizes_at_once():
    net = Net(17)
    x = net.input("x", "T", "C")
    product = net.op("MatMul", x, net.op("Transpose", x))
    net.output(product, net.op("Softmax", x, axis=0), net.op("ReduceMean", x), net.op("Concat", x, x, axis=1))
    model = net.plain_model()
    result = compiled(model, T=(1, 6), C=(2, 5))
    check_sizes(model, result, [{"T": t, "C": c} for t in range(1, 7) for c in range(2, 6)])


def test_integer_model_of_any_length():
    random = np.random.default_rng(0)
    net = Net(17)
    x = net.input("x", 1, 4, "T", dtype=np.int8)
    weights = net.dequantize(net.const(random.integers(-127, 128, (6, 4, 3)), np.int8), 0.01)
    y = net.op("Relu", net.op("Conv", net.dequantize(x, 0.05, 3), weights, pads=[1, 1]))
    net.output(net.quantize(y, 0.1, -128), dtype=np.int8)
    model = net.plain_model()
    check_sizes(model, compiled(model, T=(1, 16)), [{"T": t} for t in range(1, 17)])


def small_net() -> Net:
    net = Net(17)
    x = net.input("x", 1, "T", 4)
    net.output(net.op("Softmax", net.op("MatMul", x, net.const(np.ones((4, 3)))), out="y"))
    return net


def test_run_takes_the_size_and_checks_it(tmp_path: Path):
    folder = compiled(small_net().plain_model(), T=(2, 8)).write(tmp_path / "net")
    header = (folder / "net.h").read_text()
    assert "int net_run(void *arena, int32_t t);" in header
    assert "/* x: float32 [1, t, 4] */" in header
    (folder / "main.c").write_text(
        '#include "net.h"\n'
        "int main(void) {\n"
        "    void *a = net_default_arena();\n"
        "    const int32_t shape[NET_INPUT_RANK] = NET_INPUT_SHAPE_FOR(5);\n"
        "    return !(net_run(a, 1) == MCUGEN_ERROR_SIZE && net_run(a, 9) == MCUGEN_ERROR_SIZE\n"
        "        && net_run(a, NET_T_MIN) == MCUGEN_OK && net_run(a, NET_T_MAX) == MCUGEN_OK\n"
        "        && net_run(NULL, 2) == MCUGEN_ERROR_NULL && net_selftest(a) == MCUGEN_OK\n"
        "        && NET_INPUT_COUNT_FOR(5) == 20u && NET_INPUT_COUNT == 32u && NET_OUTPUT_COUNT_FOR(1 + 1) == 6u\n"
        "        && shape[1] == 5);\n"
        "}\n"
    )
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover"]
    subprocess.run(["gcc", *flags, *sorted(folder.glob("*.c")), "-lm"], cwd=folder, check=True)
    subprocess.run([folder / "a.out"], check=True)


def test_code_does_not_depend_on_how_often_it_is_made():
    model = small_net().plain_model()
    assert compiled(model, T=(1, 30)).bundle.files == compiled(model, T=(1, 30)).bundle.files


def test_a_range_of_one_size_is_a_fixed_size():
    model = small_net().plain_model()
    assert compiled(model, T=(3, 3)).bundle.files == compiled(model, T=3).bundle.files


def test_samples_must_have_a_size_of_the_range():
    result = compiled(small_net().plain_model(), T=(2, 8))
    with pytest.raises(UsageError, match="the size of axis 1 must be 2 to 8"):
        result.run({"x": np.zeros((1, 1, 9, 4), np.float32)})
    with pytest.raises(UsageError, match=r"of shape \(1, 3, 4\)"):
        result.run({"x": np.zeros((1, 1, 3, 5), np.float32)})
    assert result.run({"x": np.zeros((2, 1, 3, 4), np.float32)})["y"].shape == (2, 1, 3, 3)
    samples = [{"x": np.zeros((1, t, 4), np.float32)} for t in (2, 3)]
    with pytest.raises(UsageError, match="must have one shape"):
        stack_samples(result.simulate(samples, measure=False).outputs)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("limits", [(0, 4), (5, 4), (1, 5000)])
def test_ranges_that_no_size_can_have(limits: tuple[int, int]):
    with pytest.raises(UsageError, match="a range of sizes from 1 to 4096"):
        compiled(small_net().plain_model(), T=limits)


def test_a_constant_that_depends_on_the_size_is_refused():
    net = Net(17)
    x, one = net.input("x", "T", "T"), onnx.numpy_helper.from_array(np.ones(1, np.float32))
    mask = net.op("Trilu", net.op("ConstantOfShape", net.op("Shape", x), value=one))
    net.output(net.op("Add", net.op("Add", x, net.const(1.0)), net.op("Add", mask, net.op("Exp", mask)), out="y"))
    with pytest.raises(UnsupportedError, match=r"layer 'Add_.*constant that depends on the size.*--dim"):
        compiled(net.plain_model(), T=(1, 8))


def test_layers_that_small_sizes_do_not_need_are_named_with_a_remedy():
    net = Net(17)
    x = net.input("x", "T", 3)
    cut = net.op("Slice", x, *ints(net, [0], [4], [0]))
    net.output(net.op("Mul", net.op("Exp", cut), net.op("ReduceSum", x), out="y"))
    with pytest.raises(UnsupportedError, match=r"T=\d.*begin at 5: T=5\.\.16"):
        compiled(net.plain_model(), T=(1, 16))
    compiled(net.plain_model(), T=(5, 16))


def test_a_size_that_the_model_cannot_have_is_refused():
    net = Net(17)
    net.output(net.op("Conv", net.input("x", 1, 2, "T"), net.const(np.ones((2, 2, 5))), out="y"))
    with pytest.raises(ModelError, match=r"with T=[1-4]: .*kernel must fit"):
        compiled(net.plain_model(), T=(1, 16))
    compiled(net.plain_model(), T=(5, 16))


def test_shapes_that_only_one_size_has_are_refused():
    net = Net(17)
    net.output(net.op("Exp", net.op("Squeeze", net.input("x", 2, "T", 3), out="y")), shape=[2, "T", 3])
    with pytest.raises(UnsupportedError, match=r"T=1.*'y'"):
        compiled(net.plain_model(), T=(1, 8))


# ---------------------------------------------------------------------------------------------- formulas


def fitted(low: int, high: int, values: list[float]) -> object:
    points = [{"n": n} for n in range(high, low - 1, -1)]
    return Fitter([Symbol("n", low, high)], points, points[0]).fit(values[::-1])


def test_formulas_are_found():
    n, half = Atom("n"), Atom("n", 1, 2)
    sizes = range(1, 21)
    assert fitted(1, 20, [3 * s + 5 for s in sizes]) == Polynomial(((5, ()), (3, (n,))))
    assert fitted(1, 20, [4 * ((s + 1) // 2) - 1 for s in sizes]) == Polynomial(((-1, ()), (4, (half,))))
    assert fitted(1, 20, [s * s for s in sizes]) == Polynomial(((1, (n, n)),))
    assert fitted(1, 20, [1 / (3 * s) for s in sizes]) == Quotient(1.0, Polynomial(((3, (n,)),)))
    quotient = fitted(1, 20, [0.7 / s for s in sizes])
    assert isinstance(quotient, Quotient)
    assert quotient.numerator == pytest.approx(0.7)
    squares = [round(s**0.5 * 1000) for s in sizes]
    assert fitted(1, 20, squares) == ValueTable("n", 1, tuple(squares))


def test_too_few_examples_give_no_formula():
    points = [{"n": n} for n in (9, 5, 3)]
    assert Fitter([Symbol("n", 1, 9)], points, points[0]).fit([81, 25, 9]) is None


def test_tables_are_looked_up_in_c():
    table = ValueTable("n", 3, (1, 4, 2))
    kernel = Instr(
        "k", "y", (), {"a": 4, "b": 7, "c": 2**40}, formulas={"a": table, "c": Polynomial(((2**36, (Atom("n"),)),))}
    )
    sized = SizedParams([Symbol("n", 3, 5)], {"n": "n"}, lambda name: name)
    assert sized.members(kernel) == [
        ("a", "int32_t", "n_table[n - 3]"),
        ("b", "int32_t", "7"),
        ("c", "int64_t", "(int64_t)n * INT64_C(68719476736)"),
    ]
    entry = table_entry("n_table", "int32_t", (1, 4, 2))
    assert sized.tables == [CodeTable("n_table", "int32_t", 3, ("1, 4, 2,",), entry)]


def test_state_and_a_size():
    """A chunk of any length renews an average."""
    net = Net(18)
    x, old = net.input("x", "T", 3), net.input("old", 1, 3)
    mean = net.op("ReduceMean", x, net.const([0], np.int64))
    new = net.op("Add", net.op("Mul", old, net.const(0.5)), mean, out="new")
    net.output(net.op("Sub", x, old, out="y"), new)
    options = CompileOptions(dims={"T": (1, 4)}, states={"new": "old"})
    result = compile_model(net.plain_model(), "host", options)
    random = np.random.default_rng(0)
    samples = [{"x": random.standard_normal((t, 3)).astype(np.float32)} for t in (4, 1, 3)]
    kept = np.zeros((1, 3), np.float32)
    for sample, found in zip(samples, result.simulate(samples, measure=False, sanitize=True).outputs, strict=True):
        np.testing.assert_allclose(found["y"], sample["x"] - kept, rtol=1e-5, atol=1e-6)
        kept = kept * 0.5 + sample["x"].mean(0, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 4), (), (0, 1, 3, 4)])
def test_arrays_without_equally_many_samples_are_refused(shape: tuple[int, ...]):
    net = Net()
    net.output(net.op("Add", net.input("a", 1, 4), net.input("b", 1, 4), out="y"))
    given = {"a": np.zeros((2, 1, 4), np.float32), "b": np.zeros(shape, np.float32)}
    with pytest.raises(UsageError, match="a leading axis of equally many samples"):
        compile_model(net.model()).run(given)


BEFORE_THE_LAST = Polynomial(((1, (Atom("n"),)), (-1, ())))
"""n - 1: where an entry is that must be there."""


def test_what_is_no_length_at_a_size_that_was_not_tried_is_refused():
    with pytest.raises(UnsupportedError, match="with n=0 the start would be -1"):
        _require_no_negative("the start", BEFORE_THE_LAST, [0, 1, 2], [{"n": 3}, {"n": 0}])


@pytest.mark.parametrize(
    ("formula", "values", "corners"),
    [
        (BEFORE_THE_LAST, [0, 1, 2], [{"n": 1}, {"n": 3}]),  # 0 is a length
        (BEFORE_THE_LAST, [-1, 0, 1], [{"n": 0}]),  # as it was tried: no length
        (ValueTable("n", 0, (-1.5, 1.0)), [1.0], [{"n": 0}]),  # reals and tables are none
    ],
)
def test_other_parameters_may_be_anything(
    formula: Polynomial | ValueTable, values: list[int], corners: list[dict[str, int]]
):
    _require_no_negative("it", formula, values, corners)
