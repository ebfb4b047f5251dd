# SPDX-License-Identifier: Apache-2.0
"""What ONNX's checker refuses and ONNX Runtime takes: operators below their opset, domains that nobody imports."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import (
    MICROSOFT,
    Net,
    assert_close,
    c_outputs,
    imported,
    numpy_outputs,
    onnxruntime_outputs,
    random_feeds,
)
from shared_models import SHARED

from mcugen.core.errors import ModelError, UnsupportedError
from mcugen.driver.compiler import compile_model

CCT = SHARED / "zoo" / "deeploy_cct_1_32.onnx"


def without_imports(model: onnx.ModelProto, *domains: str) -> onnx.ModelProto:
    kept = [entry for entry in model.opset_import if entry.domain not in domains]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def layer_norm(opset: int) -> onnx.ModelProto:
    net = Net(opset)
    x = net.op("Relu", net.input("x", 2, 3, 8))
    y = net.op("LayerNormalization", x, net.const(np.arange(8)), net.const(np.ones(8)), axis=-1, epsilon=1e-3)
    net.output(net.op("Sigmoid", y, out="y"), shape=(2, 3, 8))
    return net.plain_model()


@pytest.mark.parametrize("opset", [9, 11, 13, 16])
def test_a_normalization_below_its_opset_is_that_of_its_first_opset(opset: int) -> None:
    model = layer_norm(opset)
    feeds = random_feeds(model)
    assert_close(numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds))
    notes = imported(model).notes
    assert notes == ["LayerNormalization is of a later opset than the model: taken as opset 17 defines it"]


def test_at_its_opset_nothing_is_told() -> None:
    assert not imported(layer_norm(17)).notes


@pytest.mark.parametrize(
    ("op_type", "first", "shapes", "attributes"),
    [
        ("HardSwish", 14, [(2, 4)], {}),
        ("Mish", 18, [(2, 4)], {}),
        ("Gelu", 20, [(2, 4)], {"approximate": "tanh"}),
        ("GroupNormalization", 21, [(2, 4, 3, 3), (4,), (4,)], {"num_groups": 2}),
        ("RMSNormalization", 23, [(2, 4), (4,)], {}),
        ("CenterCropPad", 18, [(2, 4)], {}),
    ],
)
def test_operators_below_their_opset(
    op_type: str, first: int, shapes: list[tuple[int, ...]], attributes: dict[str, object]
) -> None:
    """What they compute there is what they compute at the opset that has them."""

    def model(opset: int) -> onnx.ModelProto:
        net = Net(opset)
        inputs = [net.input(f"x{i}", *shape) for i, shape in enumerate(shapes)]
        more = [net.const([1, 6], np.int64)] if op_type == "CenterCropPad" else []
        net.output(net.op(op_type, *inputs, *more, out="y", **attributes), shape=None)
        return net.plain_model()

    feeds = random_feeds(model(13))
    assert_close(numpy_outputs(model(13), feeds), numpy_outputs(model(first), feeds))


@pytest.mark.parametrize(
    ("op_type", "attributes"), [("ThresholdedRelu", {"alpha": 0.5}), ("MeanVarianceNormalization", {})]
)
def test_what_onnx_took_up_later(op_type: str, attributes: dict[str, object]) -> None:
    net = Net(8)
    net.output(net.op(op_type, net.input("x", 2, 3, 4, 4), out="y", **attributes), shape=None)
    model = net.plain_model()
    feeds = random_feeds(model)
    assert_close(numpy_outputs(model, feeds), onnxruntime_outputs(model, feeds))


def test_what_the_first_definition_has_not_is_refused() -> None:
    net = Net(8)
    net.output(net.op("MeanVarianceNormalization", net.input("x", 2, 3, 4, 4), out="y", across_channels=1), shape=None)
    with pytest.raises(UnsupportedError, match=r"opset 9 defines it.*'across_channels'"):
        imported(net.plain_model())


def test_in_a_function_and_in_a_body() -> None:
    """Where the checker would find it, too (ONNX Runtime 1.31 crashes on functions like this one)."""

    def model(opset: int) -> onnx.ModelProto:
        norm = helper.make_node("LayerNormalization", ["a", "s"], ["b"])
        body = helper.make_graph(
            [helper.make_node("LayerNormalization", ["t", "s"], ["inner"])],
            "body",
            [],
            [helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, (2, 8))],
        )
        net = Net(opset)
        x, scale, flag = net.input("x", 2, 8), net.const(np.arange(8), name="s"), net.input("flag", dtype=bool)
        net.nodes += [
            helper.make_node("Norm", [x, scale], ["t"], domain="local"),
            helper.make_node("If", [flag], ["y"], then_branch=body, else_branch=body),
        ]
        net.output("y", shape=(2, 8))
        made = without_imports(net.plain_model(), MICROSOFT)
        made.opset_import.append(helper.make_opsetid("local", 1))
        made.functions.append(
            helper.make_function("local", "Norm", ["a", "s"], ["b"], [norm], [helper.make_opsetid("", opset)], [])
        )
        return made

    feeds = random_feeds(model(13))
    assert_close(numpy_outputs(model(13), feeds), numpy_outputs(model(17), feeds))


def test_an_operator_that_nobody_knows_is_still_refused() -> None:
    net = Net(13)
    net.output(net.op("NeverHeardOf", net.input("x", 3), out="y"), shape=(3,))
    with pytest.raises(ModelError, match="NeverHeardOf"):
        imported(net.plain_model())


def test_a_domain_without_an_import_points_to_plugins() -> None:
    net = Net()
    net.output(net.op("Magic", net.input("x", 3), out="y", domain="my.domain"), shape=(3,))
    model = without_imports(net.plain_model(), MICROSOFT)
    with pytest.raises(UnsupportedError, match=r"domain 'my.domain'.*--plugin") as error:
        imported(model)
    assert error.value.exit_code == 4


def test_an_unknown_domain_points_to_plugins() -> None:
    net = Net()
    net.output(net.op("Magic", net.input("x", 3), out="y", domain="my.domain"), shape=(3,))
    model = net.plain_model()
    model.opset_import.append(helper.make_opsetid("my.domain", 3))
    with pytest.raises(UnsupportedError, match=r"domain 'my.domain', opset 3.*--plugin"):
        imported(model)


def test_microsofts_domain_needs_no_import() -> None:
    """ONNX Runtime supplies it, too."""
    net = Net()
    net.output(net.op("Gelu", net.input("x", 3), out="y", domain=MICROSOFT), shape=(3,))
    model = without_imports(net.plain_model(), MICROSOFT)
    feeds = random_feeds(model)
    assert_close(c_outputs(model, feeds), onnxruntime_outputs(model, feeds))


@pytest.mark.shared
def test_a_vision_transformer_of_opset_12() -> None:
    """LayerNormalization at opset 12: its recorded answers, by the generated code."""
    if not CCT.is_file():
        pytest.skip(f"needs {CCT}")
    recorded = np.load(CCT.with_suffix(".io.npz"))
    samples, wanted = (np.stack([recorded[f"{side}{i}_0"] for i in range(3)]) for side in ("in", "out"))
    found = compile_model(CCT).run({"input": samples})["output"]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
