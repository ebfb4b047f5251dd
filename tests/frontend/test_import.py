# SPDX-License-Identifier: Apache-2.0
"""Import: dimensions, inputs, refusals of all nodes at once, and every opset."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import Net, assert_close, imported, numpy_outputs, onnxruntime_outputs, random_feeds

from mcugen.core.errors import DoesNotFitError, McugenError, ModelError, UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.opset_upgrade import OLDEST_OPSET
from mcugen.hir.types import DType
from mcugen.ops.onnx_node import BUILT_IN

NEWEST_OPSET = onnx.defs.onnx_opset_version()
MICROSOFT = "com.microsoft"


# ----------------------------------------------------------------------------------------------- refusals


def test_all_unsupported_nodes_are_listed_at_once():
    net = Net()
    x = net.op("Relu", net.input("x", 3, 4))
    first = net.op("RandomNormalLike", net.op("Unsqueeze", x, net.const([0], np.int64)), out="first")
    follower = net.op("Exp", first, out="follower")
    second = net.op("Dropout", x, net.const(0.5), net.const(True, bool), out="second")
    third = net.op("Pad", x, net.input("pads", 4, dtype=np.int64), mode="edge", out="third")
    net.output(follower, second, third)
    with pytest.raises(UnsupportedError) as error:
        imported(net.model())
    text = str(error.value)
    lines = text.splitlines()
    assert error.value.exit_code == 4
    assert lines[0] == "every operator must be supported; 3 nodes are not:"
    assert [line.split(": ")[0] for line in lines[1:]] == [
        "  - RandomNormalLike 'RandomNormalLike_first'",
        "  - Dropout 'Dropout_second'",
        "  - Pad 'Pad_third'",
    ]
    for line in lines[1:]:
        assert "found: " in line
        assert "try: " in line
    assert "follower" not in text
    assert "opset 17" in lines[1]


def test_unknown_domain_is_named():
    net = Net()
    net.op("FusedThing", net.input("x", 3), out="y", domain=MICROSOFT)
    net.output("y", shape=[3])
    with pytest.raises(UnsupportedError, match=r"FusedThing.*operator not supported\. found: domain 'com.microsoft'"):
        imported(net.model())


def test_one_node_is_singular():
    net = Net()
    net.output(net.op("RandomNormalLike", net.input("x", 3, 3)))
    with pytest.raises(UnsupportedError, match="1 node is not:"):
        imported(net.model())


def test_unsupported_input_type_is_named():
    net = Net()
    net.output(net.op("Identity", net.input("x", 3)))
    model = net.plain_model()
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.COMPLEX64
    with pytest.raises(UnsupportedError, match=r"input 'x': unsupported element type\. found: COMPLEX64"):
        imported(model)


def test_weights_of_an_unknown_type_are_named():
    net = Net()
    net.constants.append(helper.make_tensor("w", onnx.TensorProto.COMPLEX64, [3], [1.0, 2.0, 3.0]))
    wide = net.op("Cast", "w", to=1)
    net.output(net.op("Add", net.input("x", 3), wide))
    with pytest.raises(UnsupportedError, match=r"Cast 'Cast_t0': .*found: 'w' is complex64"):
        imported(net.model())


def test_half_precision_weights_are_widened():
    net = Net()
    half = net.const([1.5, 2.0, 3.0], np.float16)
    net.output(net.op("Add", net.input("x", 3), net.op("Cast", half, to=1)))
    model = net.model()
    feeds = random_feeds(model)
    assert_close(numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds))


def test_an_output_that_the_operator_does_not_give_here(monkeypatch: pytest.MonkeyPatch):
    """The mask of a Dropout, read by another node, if its importer forgets it."""
    monkeypatch.setitem(BUILT_IN.importers, ("", "Dropout"), lambda node: [node.input(0)])
    net = Net()
    _, mask = net.ops("Dropout", net.input("x", 3), outs=["y", "mask"])
    net.output(net.op("Not", mask), dtype=bool)
    with pytest.raises(UnsupportedError, match=r"Not 'Not_t1': .*found: 'mask' is not"):
        imported(net.model())


def test_a_node_of_a_foreign_domain_without_name_or_outputs():
    net = Net()
    net.output(net.op("Relu", net.input("x", 3)))
    net.nodes.append(helper.make_node("Print", ["x"], [], domain=MICROSOFT))
    with pytest.raises(McugenError) as error:
        imported(net.model())
    assert error.value.exit_code in (3, 4)


# --------------------------------------------------------------------------------------------- dimensions


def symbolic_net() -> Net:
    net = Net()
    x = net.input("x", "N", 4)
    net.input("y", "N", "width")
    net.output(net.op("Concat", x, "y", axis=1))
    return net


def test_unsupported_nodes_behind_others_and_in_both_branches_are_listed():
    def branch(op_type: str) -> onnx.GraphProto:
        nodes = [helper.make_node(op_type, ["x"], ["y"], f"in_{op_type}"), helper.make_node("Relu", ["y"], ["z"])]
        result = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 4])
        return helper.make_graph(nodes, op_type, [], [result])

    branches = {"then_branch": branch("RandomNormalLike"), "else_branch": branch("RandomUniformLike")}
    for unknown in (False, True):
        net = Net()
        net.input("x", 1, 4)
        cond = net.op("Exp", net.op("NoSuchOperator", "x", domain=MICROSOFT)) if unknown else net.input("c", 1)
        taken = net.op("If", net.op("Cast", cond, to=onnx.TensorProto.BOOL), **branches)
        net.output(net.op("Multinomial", taken, sample_size=3), dtype=np.int32, shape=(1, 3))
        with pytest.raises(UnsupportedError) as error:
            imported(net.plain_model())
        listed = [line.split()[1] for line in str(error.value).splitlines()[1:]]
        also = "NoSuchOperator" if unknown else "If"  # an If with such branches is refused, too
        assert sorted(listed) == sorted([also, "Multinomial", "RandomNormalLike", "RandomUniformLike"])


def free_net(*shapes: tuple[int | str, ...]) -> onnx.ModelProto:
    """Inputs of these shapes, and their sum over all axes as outputs; "" is a dimension without a name."""
    net = Net()
    for index, shape in enumerate(shapes):
        x = net.input(f"x{index}", *shape)
        net.output(net.op("ReduceSum", x, keepdims=0), shape=())
    model = net.plain_model()
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and not dim.dim_param:
                dim.Clear()
    return model


def test_unbound_dimensions_are_all_named_with_the_option():
    with pytest.raises(ModelError, match=r"'T', 'width' unbound\. try: .*--dim T=1 --dim width=1") as error:
        imported(free_net(("T", 4), ("N", "width")))
    assert error.value.exit_code == 3


@pytest.mark.parametrize("name", ["batch", "N", "unk__120", "s0", "batch_size", "batch_x_time", "None", "samples", ""])
def test_a_leading_dimension_is_one_sample(name: str):
    graph = imported(free_net((name, 4)))
    assert graph.inputs[0].type.shape == (1, 4)
    given = name or "x0:0"
    assert graph.notes == [f"dimension '{given}' of input 'x0' is taken as 1: --dim {given}=SIZE makes it another"]
    fixed = imported(free_net((name, 4)), **{given: 3})
    assert fixed.inputs[0].type.shape == (3, 4) and fixed.notes == []


@pytest.mark.parametrize(
    "name", ["T", "seq", "sequence_length", "time", "frames", "num_tokens", "L", "width", "SeqLen"]
)
def test_a_leading_dimension_that_counts_no_samples_is_asked_for(name: str):
    with pytest.raises(ModelError, match=rf"found: '{name}' unbound\. try: .*--dim {name}=1"):
        imported(free_net((name, 4)))


@pytest.mark.parametrize("shape", [(2, "N"), ("N", "N"), (1, "", 3)])
def test_other_dimensions_are_asked_for(shape: tuple[int | str, ...]):
    with pytest.raises(ModelError, match="unbound"):
        imported(free_net(shape))


def test_one_symbol_has_one_size_in_all_inputs():
    """The state of a recurrent layer has the samples second."""
    graph = imported(free_net(("N", 4), ("N", 3), (2, "N", 5), ("M", 1)))
    assert [v.type.shape for v in graph.inputs] == [(1, 4), (1, 3), (2, 1, 5), (1, 1)]
    assert graph.notes == [
        "dimension 'N' of input 'x0' and 1 more is taken as 1: --dim N=SIZE makes it another",
        "dimension 'M' of input 'x3' is taken as 1: --dim M=SIZE makes it another",
    ]


def test_a_bound_input_frees_no_dimension():
    graph = import_model(free_net(("N", 2), (3, 4)), "net", bound={"x0": np.zeros((5, 2))})
    assert [v.type.shape for v in graph.inputs] == [(3, 4)] and graph.notes == []


def test_the_note_reaches_the_report():
    notes = compile_model(free_net(("N", 4))).report.notes
    assert len(notes) == 1 and "--dim N=SIZE" in notes[0]


def test_some_unbound_dimensions():
    with pytest.raises(ModelError, match=r"found: 'width' unbound"):
        imported(symbolic_net().model(), N=2)


def test_bound_dimensions():
    graph = imported(symbolic_net().model(), N=2, width=3)
    assert [value.type.shape for value in graph.inputs] == [(2, 4), (2, 3)]
    assert graph.outputs[0].type.shape == (2, 7)


def test_unknown_dimension_names_those_there_are():
    with pytest.raises(UsageError, match=r"found: 'batch'\. try: one of: N, width"):
        imported(symbolic_net().model(), N=1, width=1, batch=1)


@pytest.mark.parametrize("dim", ["N", "x:0"])
def test_a_fixed_dimension_cannot_be_bound(dim: str):
    net = Net()
    net.output(net.op("Relu", net.input("x", 3, 4)))
    with pytest.raises(UsageError, match=f"found: '{dim}'"):
        imported(net.model(), **{dim: 7})


def test_a_nameless_dimension_is_bound_by_its_position():
    net = Net()
    net.output(net.op("Relu", net.input("x", 3, 4)))
    model = net.model()
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    with pytest.raises(ModelError, match="--dim x:1=1"):
        imported(model)
    assert imported(model, **{"x:1": 5}).inputs[0].type.shape == (3, 5)


@pytest.mark.parametrize("free", [-1, "?"])
def test_free_sizes_as_paddle_writes_them(free: int | str):
    """-1, or the same name on all axes that is none: each is given by its position, the first is one sample."""
    model = free_net((free, 3, free, free))
    with pytest.raises(ModelError, match=r"'x0:2', 'x0:3' unbound\. try: .*--dim x0:2=1 --dim x0:3=1"):
        imported(model)
    graph = imported(model, **{"x0:2": 48, "x0:3": 192})
    assert graph.inputs[0].type.shape == (1, 3, 48, 192)


def test_one_axis_of_a_symbol_that_stands_for_several():
    graph = imported(free_net((3, "N", "N"), ("N", 2)), N=4, **{"x0:2": 5})
    assert [v.type.shape for v in graph.inputs] == [(3, 4, 5), (4, 2)]


def test_a_negative_dimension():
    net = Net()
    net.op("Relu", net.input("x", 3, -1), out="y")
    net.output("y", shape=[3, 1])
    with pytest.raises(ModelError, match="every input dimension must be known"):
        imported(net.plain_model())


def test_dims_reach_the_banner():
    net = symbolic_net()
    compiled = compile_model(net.model(), options=CompileOptions(dims={"N": 2, "width": 3}))
    assert "dims N=2, width=3" in compiled.bundle.files["net.c"]


def test_an_enormous_input_is_refused():
    net = Net()
    net.op("Relu", net.input("x", 2**20, 2**20), out="y")
    net.output("y", shape=[2**20, 2**20])
    with pytest.raises(McugenError) as error:
        compile_model(net.plain_model())
    assert error.value.exit_code in (3, 4, 5)


# ------------------------------------------------------------------------------------------ inputs, outputs


def test_model_without_inputs_is_its_constants():
    net = Net()
    net.output(net.op("Identity", net.const([1.0])))
    (output,) = imported(net.model()).outputs
    assert output.data is not None
    assert output.data.tolist() == [1.0]


def test_initializers_listed_as_inputs_are_constants():
    net = Net(opset=7, ir_version=3)
    weights = net.const(np.ones((4, 2)), name="w")
    net.output(net.op("MatMul", net.input("x", 3, 4), weights))
    net.input("w", 4, 2)
    graph = imported(net.model())
    assert [value.name for value in graph.inputs] == ["x"]


def test_inputs_that_nobody_reads_stay():
    net = Net()
    net.input("unused", 2)
    net.output(net.op("Relu", net.input("x", 3)))
    compiled = compile_model(net.model())
    assert [port.name for port in compiled.bundle.inputs] == ["unused", "x"]


def test_types_and_order_of_endpoints():
    net = Net()
    net.input("b", 2, dtype=np.int8)
    net.input("a", 3)
    net.output(net.op("Relu", "a", out="z"))
    net.output(net.op("Identity", "b", out="y"), dtype=np.int8)
    graph = imported(net.model())
    assert [(v.name, v.type.dtype) for v in graph.inputs] == [("b", DType.INT8), ("a", DType.FLOAT32)]
    assert graph.output_names == ["z", "y"]


def test_outputs_without_a_shape():
    """The checker asks for one; exporters leave it out where it depends on the values of inputs."""
    net = Net()
    net.output(net.op("ReduceSum", net.input("x", 2, 3), net.input("axes", "k", dtype=np.int64)))
    axes = {"axes": np.asarray([1])}
    assert compile_model(net.plain_model(), options=CompileOptions(bound=axes)).graph.outputs[0].type.shape == (2, 1)


@pytest.mark.parametrize("value", [[1.5], [np.nan], [1e30], [2**63]])
def test_bound_values_must_be_of_the_inputs_type(value: list[float]):
    net = Net()
    net.output(net.op("ReduceSum", net.input("x", 2, 3), net.input("axes", 1, dtype=np.int64)), shape=(2, 1))
    with pytest.raises(UsageError, match="'axes': the value must be of type int64"):
        compile_model(net.plain_model(), options=CompileOptions(bound={"axes": np.asarray(value)}))


# ------------------------------------------------------------------------------------------------ opsets


def conv_net(opset: int) -> Net:
    """conv → batch normalization → relu → reshape → gemm → clip, as exporters of that opset write it."""
    random = np.random.default_rng(1)
    net = Net(opset, ir_version=3 if opset < 9 else 10)
    net.input("x", 1, 2, 6, 6)
    conv = net.op("Conv", "x", net.const(random.standard_normal((4, 2, 3, 3))), pads=[1, 1, 1, 1])
    statistics = [net.const(random.uniform(0.5, 1.5, 4)) for _ in range(4)]
    relu = net.op("Relu", net.op("BatchNormalization", conv, *statistics, epsilon=1e-3))
    flat = net.op("Reshape", relu, net.const([1, -1], np.int64))
    bias = net.const(random.standard_normal(5))
    gemm = net.op("Gemm", flat, net.const(random.standard_normal((5, 144)) / 20), bias, transB=1, alpha=0.5)
    if opset < 11:
        net.output(net.op("Clip", gemm, min=-1.0, max=2.0, out="y"))
    else:
        net.output(net.op("Clip", gemm, net.const(-1.0), net.const(2.0), out="y"))
    if net.ir_version < 4:
        net.inputs += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in net.constants]
    return net


@pytest.mark.parametrize("opset", range(OLDEST_OPSET, NEWEST_OPSET + 1))
def test_every_opset(opset: int):
    model = conv_net(opset).model()
    feeds = {"x": np.random.default_rng(2).standard_normal((1, 2, 6, 6)).astype(np.float32)}
    found = numpy_outputs(model, feeds)
    # the meaning of these operators does not change: onnxruntime knows fewer opsets than onnx
    assert_close(found, onnxruntime_outputs(conv_net(min(max(opset, 7), 20)).model(), feeds))
    assert not np.all(found["y"] == found["y"][0, 0])


def test_an_intermediate_tensor_that_is_too_large_is_refused() -> None:
    """The result of this MaxUnpool is small; what it is cut out of is not."""
    net = Net()
    x, at = net.input("x", 1, 1, 2, 2), net.input("at", 1, 1, 2, 2, dtype=np.int64)
    size = net.const([1, 1, 2, 2], np.int64)
    net.op("MaxUnpool", x, at, size, kernel_shape=[50000, 50000], strides=[1, 1], out="y")
    net.output("y")
    with pytest.raises(DoesNotFitError, match=r"2,500,100,001 in 'y\.placed'"):
        imported(net.plain_model())


def test_a_model_must_have_outputs():
    model = Net().plain_model()
    with pytest.raises(ModelError, match="a model must have outputs"):
        import_model(model, "net")
