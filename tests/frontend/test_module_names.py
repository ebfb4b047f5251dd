# SPDX-License-Identifier: Apache-2.0
"""Layers of models that PyTorch exported are called after their modules."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx_models import Net

from mcugen.core.board import load_board
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.module_names import MAX_SCOPES_CHARACTERS, name_by_modules
from mcugen.hir.layer_names import LayerSource, main_node, tensor_name


def scopes(*names: str, classes: tuple[str, ...] = (), rule: str = "") -> dict[str, str]:
    known = {"name_scopes": str(["", *names]), "class_hierarchy": str(["m.Net", *classes, "aten.op"])}
    fused = {"pkg.onnxscript.rewriter.rule_name": rule} if rule else {}
    return {f"pkg.torch.onnx.{key}": value for key, value in known.items()} | fused


def annotate(node: onnx.NodeProto, metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        node.metadata_props.add(key=key, value=value)


def model(*metadata: Mapping[str, str]) -> onnx.ModelProto:
    """Return a convolution, a ReLU and a sum, with metadata for each."""
    net = Net(18)
    x = net.input("x", 1, 2, 4, 4)
    y = net.op("Conv", x, net.const(np.ones((2, 2, 3, 3), np.float32)), pads=[1] * 4)
    net.output(net.op("Add", net.op("Relu", y), x))
    proto = net.model()
    weights = proto.graph.initializer[0]
    proto.graph.node[0].input[1] = weights.name = "block.conv.weight"
    for node, entries in zip(proto.graph.node, metadata, strict=False):
        annotate(node, entries)
    return proto


CONV = scopes("block", "block.conv", "conv2d", classes=("m.Block", "torch.nn.modules.conv.Conv2d"))
RELU = scopes("block", "block.act", "relu_3", classes=("m.Block", "torch.nn.modules.activation.ReLU"))
ADD = scopes("block", "add_7", classes=("m.Block",))


def names(proto: onnx.ModelProto) -> list[str]:
    name_by_modules(proto)
    return [node.name for node in proto.graph.node]


def test_layers_of_the_library_have_the_path_and_operations_a_name_in_their_module() -> None:
    assert names(model(CONV, RELU, ADD)) == ["block.conv:Conv", "block.act:Relu", "block.add:Add"]


def test_the_number_of_a_module_stays() -> None:
    conv = scopes("block", "block.conv_1", "conv2d_4", classes=("m.Block", "torch.nn.modules.conv.Conv2d"))
    total = scopes("stage_2", "add_7", classes=("m.Stage",))
    assert names(model(conv, RELU, total)) == ["block.conv_1:Conv", "block.act:Relu", "stage_2.add:Add"]


def test_names_are_made_once() -> None:
    proto = model(CONV, RELU, ADD)
    assert names(proto) == names(proto)


def test_a_fused_batch_normalization_leaves_the_name_to_the_convolution() -> None:
    fused = scopes(
        "block", "block.bn", "native", classes=("m.Block", "torch.nn.modules.batchnorm.BatchNorm2d"), rule="Fuse"
    )
    assert names(model(fused))[0] == "block.conv:Conv"


def test_several_operations_of_a_name_keep_their_numbers() -> None:
    proto = model(CONV, scopes("block", "add", classes=("m.Block",)), ADD)
    proto.graph.node[1].op_type = "Add"
    proto.graph.node[1].input.append("x")
    assert names(proto)[1:] == ["block.add:Add", "block.add_7:Add"]


def test_metadata_that_is_something_else_changes_nothing() -> None:
    for text in ("[1, 2]", "['a'", "__import__('os')", "[" * 2000, f"['{'a' * MAX_SCOPES_CHARACTERS}', 'b']"):
        proto = model({"pkg.torch.onnx.name_scopes": text})
        before = [node.name for node in proto.graph.node]
        assert names(proto) == before


def test_the_name_of_a_module_says_nothing_about_the_operator() -> None:
    assert main_node(LayerSource("y", ("conv.0:Conv", "conv.2:Clip"), "conv")) == "conv.0:Conv"
    assert tensor_name("features.0:Conv_2") == "features.0"


def test_reports_show_modules() -> None:
    layers = compile_model(model(CONV, RELU, ADD), load_board("host")).report.layers
    assert {"block.conv", "block.add"} <= {layer.name for layer in layers}
