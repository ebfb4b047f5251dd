# SPDX-License-Identifier: Apache-2.0
"""Flipped bits of constants and states: wrong numbers at worst, no access out of bounds, no run without an end."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx.parser
import pytest
from flip_constants import BAD, campaign, flips_of
from onnx import helper
from onnx_models import Net
from portable_models import portable_models
from shared_models import MODELS as FOLDER

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.lir.kernel import CHECKED
from mcugen.reporting.kernels import declared_kernels


def resized(mode: str, **attributes: object) -> Net:
    net = Net()
    scales = net.const([1, 1, 1.7, 2.3])
    net.op("Resize", net.input("x", 1, 3, 5, 6), "", scales, mode=mode, out="y", **attributes)
    net.output("y")
    return net


def gathered() -> Net:
    net = Net()
    net.op("Gather", net.input("x", 3, 50), net.const([0, 49, 7, 3, 3, 11], np.int64), axis=1, out="y")
    net.output("y")
    return net


def padded() -> Net:
    net = Net()
    net.op("Pad", net.input("x", 4, 9), net.const([1, 3, 2, 4], np.int64), mode="reflect", out="y")
    net.output("y")
    return net


def depthwise() -> Net:
    """In int8: on Helium a table tells where taps lie."""
    net = Net()
    scale, zero = net.const(0.02), net.const(0, np.int8)
    x = net.op("DequantizeLinear", net.input("x", 1, 8, 5, 6, dtype=np.int8), scale, zero)
    w = net.op("DequantizeLinear", net.const(np.arange(72).reshape(8, 1, 3, 3) - 36, np.int8), scale, zero)
    net.op("QuantizeLinear", net.op("Conv", x, w, group=8), net.const(0.3), zero, out="y")
    net.output("y", dtype=np.int8)
    return net


def forest(draw: np.random.Generator, targets: int) -> onnx.ModelProto:
    """Trees of seven nodes and eight leaves each; leaves have one to three weights if there are several targets."""
    nodes = {key: [] for key in ("treeids", "nodeids", "featureids", "values", "truenodeids", "falsenodeids", "modes")}
    leaves: dict[str, list] = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(6):
        for node in range(15):
            is_leaf = node >= 7
            row = (tree, node, int(draw.integers(9)), float(draw.normal()), 2 * node + 1, 2 * node + 2)
            row = (*row[:4], 0, 0, "LEAF") if is_leaf else (*row, "BRANCH_LEQ" if tree % 2 else "BRANCH_GT")
            for key, value in zip(nodes, row, strict=True):
                nodes[key].append(value)
            for target in draw.permutation(targets)[: 1 + node % min(targets, 3)] if is_leaf else ():
                for key, value in zip(leaves, (tree, node, int(target), float(draw.normal())), strict=True):
                    leaves[key].append(value)
    attributes = {f"nodes_{key}": value for key, value in nodes.items()}
    attributes |= {f"target_{key}": value for key, value in leaves.items()}
    made = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=targets, **attributes)
    x, y = (helper.make_tensor_value_info(n, 1, shape) for n, shape in (("x", [4, 9]), ("y", [4, targets])))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([made], "net", [x], [y]), opset_imports=opsets, ir_version=10)


MODELS = {
    "nearest": lambda: resized("nearest").model(),
    "linear": lambda: resized("linear").model(),
    "cubic": lambda: resized("cubic").model(),
    "gather": lambda: gathered().model(),
    "pad": lambda: padded().model(),
    "taps": lambda: depthwise().model(),
    "trees": lambda: forest(np.random.default_rng(0), 1),
    "trees of several scores": lambda: forest(np.random.default_rng(1), 4),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", MODELS)
def test_no_flip_of_an_index_leads_astray(kind: str):
    """Each bit of tables is flipped in turn, as far as they are small."""
    options = CompileOptions(name="net", checked_indices="trees" in kind)
    board = "corstone300" if kind == "taps" else "host"
    compiled = compile_model(MODELS[kind](), load_board(board), options)
    found = campaign(compiled, 60)
    assert found.count("d") > 0, "the flips must be seen"
    assert found.count(BAD) == 0, found.bad_arrays


@pytest.mark.slow
def test_no_flip_leads_a_kernel_astray():
    """But kernels that `--checked-indices` leaves out, and trees, which look at nothing without it."""
    unchecked = {kernel.name for kernel in declared_kernels() if CHECKED in kernel.lacks} | {"trees_table"}
    portable = [p for p in portable_models() if p.model.bundle.constants and not p.kernels & unchecked]
    led = {p.name: found.bad_arrays for p in portable if (found := campaign(p.model, 4)).count(BAD)}
    assert led == {}


def test_no_flip_of_a_state_leads_astray():
    """As if a damaged one was loaded: an index that is read by, one that is written to, and a condition."""
    text = """<ir_version: 9, opset_import: ["": 19]>
    net (float[4] x, int64[1] place, bool flag) => (float[1] y, int64[1] next, bool after, float[4] z)
    <float[9] table = {1,2,3,4,5,6,7,8,9}, int64[1] one = {1}, int64[1] nine = {9}, float[1] f = {1}> {
        y = Gather(table, place)
        sum = Add(place, one)
        next = Mod(sum, nine)
        after = Not(flag)
        z = ScatterElements<axis = 0>(x, place, f)
    }"""
    options = CompileOptions(name="net", states={"next": "place", "after": "flag"})
    compiled = compile_model(onnx.parser.parse_model(text), options=options)
    found = campaign(compiled, 30)
    of_state = [end for _, flips, end in found.ended if found.arrays[flips.places[0][0]] == "state"]
    assert len(of_state) == 60
    assert "d" in of_state, "the flips must be seen"
    assert found.count(BAD) == 0, found.bad_arrays


def test_the_campaign_sees_what_goes_wrong():
    """Of code whose check of a table is taken out."""
    compiled = compile_model(MODELS["nearest"](), options=CompileOptions(name="net"))
    files = dict(compiled.bundle.files)
    before = files["net_kernels.h"]
    files["net_kernels.h"] = before.replace(">= (uint32_t)p->places", ">= 256u + (uint32_t)p->places")
    assert files["net_kernels.h"] != before
    blind = dataclasses.replace(compiled, given_bundle=dataclasses.replace(compiled.bundle, files=files))
    found = campaign(blind, 60)
    assert found.count("o") > 0
    assert set(found.bad_arrays) <= {name for name in found.arrays if "index" in name}


def test_flips_are_of_all_kinds_and_within_the_arrays():
    flips = list(flips_of([1, 40], 4, 0))
    assert {kind for kind, _ in flips} == {"single", "double", "burst"}
    for _, flip in flips:
        assert all(at < (1, 40)[array] and 0 < mask < 256 for array, at, mask in flip.places)


@pytest.mark.shared
def test_a_real_model():
    found = campaign(compile_model(FOLDER / "pt_yolo_head_dynamo.onnx"), 2)
    assert found.count(BAD) == 0, found.bad_arrays
