# SPDX-License-Identifier: Apache-2.0
"""Every layer has one name, which its author knows, and options find a layer by any part of it."""

from __future__ import annotations

import itertools

import pytest

from mcugen.core.errors import UsageError
from mcugen.hir.graph import Graph, Node
from mcugen.hir.layer_names import (
    LayerSource,
    find_layer,
    name_nodes,
    name_results,
    number_names,
    shorten_name,
    shorten_names,
)
from mcugen.hir.types import DType, TensorType
from mcugen.ops.pointwise import Binary


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (LayerSource("t18", ("stem/Conv", "stem/Relu"), "conv"), "stem/Conv"),
        (LayerSource("t18", ("pad/Pad", "stem/Conv", "act/Clip"), "conv"), "stem/Conv"),
        (LayerSource("out", ("fc/Gemm", "fc/Relu"), "dense"), "fc/Gemm"),
        (LayerSource("out", ("head/MatMul", "head/Add"), "dense"), "head/MatMul"),
        (LayerSource("out", ("Pow_7", "Add_10", "Sqrt_11"), "mul+add+sqrt"), "Sqrt_11"),
        (LayerSource("out", ("p", "y"), "dense"), "y"),
        (LayerSource("StatefulPartitionedCall/model/conv/Conv2D:0", (), "conv"), "model/conv/Conv2D:0"),
        (LayerSource("x_quantized", ("x_quantized/QuantizeLinear",), "quantize"), "x_quantized"),
        (LayerSource("t", ("a/Relu;a/BatchNorm;a/Conv2D_prequant", "Relu__901"), "conv"), "a/Relu"),
        (LayerSource("t", ("", "encoder/lstm"), "lstm"), "encoder/lstm"),
    ],
)
def test_a_layer_is_called_like_the_node_that_its_author_knows(source: LayerSource, name: str) -> None:
    """Fused nodes, nodes without names, and what exporters and quantizers add."""
    assert name_results([source]) == {source.result: name}


def test_layers_of_one_node_are_told_apart_by_what_they_compute() -> None:
    sources = [
        LayerSource("x.transpose", ("Conv_1", "Relu_2"), "transpose"),
        LayerSource("y", ("Conv_1", "Relu_2"), "conv"),
        LayerSource("z", ("Conv_1",), "slice"),
        LayerSource("w", ("Conv_1",), "slice"),
    ]
    assert list(name_results(sources).values()) == ["Conv_1.transpose", "Conv_1", "Conv_1.slice", "Conv_1.slice.2"]


@pytest.mark.parametrize("origins", list(itertools.product([("",), ("a",), ("a", "b"), ("b",)], repeat=3)))
def test_names_are_unique_and_depend_on_nothing_else(origins: tuple[tuple[str, ...], ...]) -> None:
    sources = [LayerSource(f"r{op}", origin, op) for origin, op in zip(origins, ("conv", "a", "b"), strict=True)]
    names = name_results(sources)
    assert len(set(names.values())) == len(sources)
    assert names == name_results(list(sources))


def test_parts_of_one_layer_are_numbered() -> None:
    assert number_names(["a", "b", "a", "a.2", "a"]) == ("a", "b", "a.3", "a.2", "a.4")


@pytest.mark.parametrize("length", [1, 2, 5, 16, 40])
def test_long_names_keep_both_ends(length: int) -> None:
    name = "model/block_1/depthwise_conv2d_17/depthwise"
    short = shorten_name(name, length)
    assert len(short) == length
    if length >= 5:
        head, _, tail = short.partition("…")
        assert head and tail and name.startswith(head) and name.endswith(tail)
    assert shorten_name("conv", length) == "conv"[:length] or length < 4


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("/block{}/{}/conv/Conv", 16),
        ("{}/features/inverted_residual/{}", 16),
        ("stage{}.{}", 16),
        ("model/layers.{}/mlp/{}/MatMul", 30),
    ],
)
def test_different_names_stay_different_when_shortened(pattern: str, length: int) -> None:
    names = [pattern.format(block, kind) for block in range(1, 12) for kind in ("depthwise", "pointwise", "expand")]
    short = shorten_names([*names, *names, "conv"], length)
    assert len({*short.values()}) == len(names) + 1
    assert short["conv"] == "conv"
    assert all(len(text) <= length for text in short.values())


def chain(*nodes: str) -> Graph:
    """Return a graph of additions, one behind the other, whose ONNX nodes have these names."""
    graph = Graph("chain")
    value = graph.add_input("x", TensorType((2,), DType.FLOAT32))
    for index, name in enumerate(nodes):
        value = graph.add(Binary("Add"), [value, value], [name], names=[f"t{index}"]).output
    graph.add_output("y", value)
    return graph


NODES = ("model/conv1/Conv", "model/conv10/Conv", "model/conv11/Conv", "head/Gemm", "head_2/Gemm")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((name, name) for name in NODES),
        ("conv1", "model/conv1/Conv"),
        ("conv10", "model/conv10/Conv"),
        ("CONV11/", "model/conv11/Conv"),
        ("head/", "head/Gemm"),
        ("t4", "head_2/Gemm"),
    ],
)
def test_any_part_that_only_one_layer_has_finds_it(text: str, name: str) -> None:
    graph = chain(*NODES)
    assert name_nodes(graph)[find_layer(graph, text, "--layer")] == name


@pytest.mark.parametrize(("text", "candidates"), [("conv", NODES[:3]), ("Gemm", NODES[3:]), ("model", NODES[:3])])
def test_an_ambiguous_part_is_refused_with_its_candidates(text: str, candidates: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        find_layer(chain(*NODES), text, "--layer")
    assert all((f"'{name}'" in refused.value.found) == (name in candidates) for name in NODES)


@pytest.mark.parametrize("text", ["", "nothing", "conv12"])
def test_an_unknown_name_is_refused_with_all_names(text: str) -> None:
    with pytest.raises(UsageError, match="--layer must name a layer of the model") as refused:
        find_layer(chain(*NODES), text, "--layer")
    assert all(name in refused.value.remedy for name in NODES)


def test_only_candidates_count() -> None:
    graph = chain(*NODES)

    def is_head(node: Node) -> bool:
        return node.origin[0].startswith("head")

    assert find_layer(graph, "2", "--train", is_head).origin == ("head_2/Gemm",)
    with pytest.raises(UsageError, match="--train"):
        find_layer(graph, "conv10", "--train", is_head)
