# SPDX-License-Identifier: Apache-2.0
"""Models that crash or hang ONNX's own code, or make much of little, are refused at once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcugen.core.errors import DoesNotFitError, McugenError, ModelError, UnsupportedError
from mcugen.driver.compiler import compile_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X = ("x", FLOAT, (1, 1, 4, 4))
BILLION = np.array([10**9], np.int64)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, int, tuple[int, ...]]],
    constants: dict[str, np.ndarray] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
    output: onnx.TypeProto | None = None,
) -> onnx.ModelProto:
    """The model whose output is `y`, of a type that ONNX infers unless it is given."""
    values = [helper.make_tensor_value_info(*i) for i in inputs]
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "net", values, [helper.make_value_info("y", output or onnx.TypeProto())], tensors)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ours", 1), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def refused(proto: onnx.ModelProto, *kinds: type[McugenError]) -> str:
    with pytest.raises(kinds) as caught:
        compile_model(proto)
    return str(caught.value)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("LayerNormalization", ["x", "x"], ["y"], axis=2**31),
        helper.make_node("GatherND", ["x", "x"], ["y"], batch_dims=-(2**31)),
        helper.make_node("ReduceSum", ["x"], ["y"], axes=[2**40]),
        helper.make_node("Split", ["x"], ["y", "z"], axis=0, num_outputs=1),
        helper.make_node("EyeLike", [""], ["y"]),
        helper.make_node("Cast", ["x"], ["y"]),
        helper.make_node("Cast", ["x"], ["y"], to="float"),
        helper.make_node("Einsum", ["x"], ["y"], equation="......->..."),
        helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml"),
    ],
    ids=lambda node: node.op_type,
)
def test_what_crashes_onnx_never_reaches_it(node: onnx.NodeProto) -> None:
    assert "valid ONNX" not in refused(model([node], [X]), ModelError)


def test_an_operator_in_a_function_is_looked_at_too() -> None:
    split = helper.make_node("Split", ["a"], ["b", "c"], axis=0, num_outputs=1)
    function = helper.make_function("ours", "f", ["a"], ["b"], [split], [helper.make_opsetid("", 20)])
    refused(model([helper.make_node("f", ["x"], ["y"], domain="ours")], [X], functions=[function]), ModelError)


def calls(count: int) -> list[onnx.FunctionProto]:
    """Functions of which each calls the one before it twice."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ours", 1)]
    found = [helper.make_function("ours", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)]
    for number in range(1, count):
        inner = f"f{number - 1}"
        nodes = [helper.make_node(inner, [a], [b], domain="ours") for a, b in (("a", "t"), ("t", "b"))]
        found.append(helper.make_function("ours", f"f{number}", ["a"], ["b"], nodes, opsets))
    return found


def test_functions_that_double_are_not_inlined_for_ever() -> None:
    compile_model(model([helper.make_node("f3", ["x"], ["y"], domain="ours")], [X], functions=calls(4)))
    found = refused(
        model([helper.make_node("f39", ["x"], ["y"], domain="ours")], [X], functions=calls(40)), DoesNotFitError
    )
    assert "549,755,813,888" in found


HUGE = {
    "input": ([helper.make_node("Relu", ["x"], ["y"])], [("x", FLOAT, (2**20, 2**20))], {}),
    "expand": ([helper.make_node("Expand", ["c", "n"], ["y"])], [], {"c": np.ones(1, np.float32), "n": BILLION}),
    "tile": ([helper.make_node("Tile", ["c", "n"], ["y"])], [], {"c": np.ones(1, np.float32), "n": BILLION}),
    "one_hot": (
        [helper.make_node("OneHot", ["i", "n", "v"], ["y"])],
        [("i", INT64, (3,))],
        {"n": BILLION, "v": np.array([0, 1], np.float32)},
    ),
    "range": (
        [helper.make_node("Range", ["a", "b", "c"], ["y"])],
        [],
        {"a": np.float32(0), "b": np.float32(1e30), "c": np.float32(1e-30)},
    ),
    "shape": ([helper.make_node("ConstantOfShape", ["n"], ["y"])], [], {"n": BILLION}),
    "pad": (
        [helper.make_node("Pad", ["c", "n"], ["y"])],
        [],
        {"c": np.ones(1, np.float32), "n": np.array([10**9, 0], np.int64)},
    ),
    "resize": (
        [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="cubic")],
        [X],
        {"s": np.array([1, 1, 1e6, 1e6], np.float32)},
    ),
    "resize_constant": (
        [helper.make_node("Resize", ["c", "", "s"], ["y"], mode="linear")],
        [],
        {"c": np.ones((1, 1, 4, 4), np.float32), "s": np.array([1, 1, 1, 1e6], np.float32)},
    ),
    "window": (
        [helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[10**6, 1], pads=[10**6, 0, 10**6, 0])],
        [X],
        {},
    ),
    "product": (
        [helper.make_node("Mul", ["x", "z"], ["y"])],
        [("x", FLOAT, (10**5, 1)), ("z", FLOAT, (1, 10**5))],
        {},
    ),
    "transform": ([helper.make_node("DFT", ["x", "n"], ["y"])], [("x", FLOAT, (1, 8, 1))], {"n": BILLION[0]}),
}


@pytest.mark.parametrize("name", HUGE)
def test_small_files_cannot_make_large_tensors(name: str) -> None:
    nodes, inputs, constants = HUGE[name]
    constants = {key: np.asarray(array) for key, array in constants.items()}
    found = refused(model(nodes, inputs, constants), ModelError, UnsupportedError, DoesNotFitError)
    assert "valid ONNX" not in found


@pytest.mark.parametrize("steps", [2**63 - 1, 10**9])
def test_a_loop_cannot_run_for_ever(steps: int) -> None:
    shape = ("n",)
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["s", "s"], ["t"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, shape),
        ],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("t", FLOAT, shape)],
    )
    loop = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    output = helper.make_tensor_type_proto(FLOAT, shape)
    found = refused(model([loop], [X], {"m": np.array(steps, np.int64)}, output=output), UnsupportedError)
    assert f"{steps:,} operators to run" in found


def test_types_that_onnx_does_not_allow_are_refused() -> None:
    slopes = helper.make_node("PRelu", ["x", "x"], ["y"])
    found = refused(model([slopes], [("x", TensorProto.UINT8, (2, 3))]), UnsupportedError)
    assert "input 0 must be of a type that ONNX allows. found: uint8 of 'x'" in found


def test_a_bias_has_an_element_for_each_channel() -> None:
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    weights = {"w": np.ones((2, 1, 3, 3), np.float32), "b": np.ones(3, np.float32)}
    assert "one element a channel" in refused(model([conv], [X], weights), UnsupportedError)


def test_of_nothing_there_is_no_maximum() -> None:
    refused(model([helper.make_node("ArgMax", ["x"], ["y"])], [("x", FLOAT, (0, 2))]), ModelError, UnsupportedError)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("LabelEncoder", ["u"], ["y"], domain="ai.onnx.ml", keys_int64s=[1], values_int64s=[2]),
        helper.make_node("RegexFullMatch", ["u"], ["y"], pattern="a"),
        helper.make_node("RegexFullMatch", ["u"], ["y"], pattern="a", domain="ai.onnx"),
        helper.make_node("EyeLike", ["u"], ["y"], dtype=7),
    ],
    ids=lambda node: node.op_type,
)
def test_an_input_of_unknown_type_ends_no_process(node: onnx.NodeProto) -> None:
    """ONNX's shape inference does not survive these, where an operator before them is not known to it."""
    refused(model([helper.make_node("Mystery", ["x"], ["u"], domain="ours"), node], [X]), McugenError)
