# SPDX-License-Identifier: Apache-2.0
"""Nothing is unbounded: what is larger than any real model is refused before it costs time or memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from mcugen.core import limits
from mcugen.core.errors import DoesNotFitError, McugenError, ModelError, UsageError
from mcugen.core.limits import (
    MAX_CONNECTIONS,
    MAX_MODEL_PORTS,
    MAX_NAME_CHARACTERS,
    MAX_NODE_PORTS,
    MAX_NODES,
    MAX_READERS,
    limit_cpu_seconds,
    read_bounded,
    restart_time_limit,
)
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.hazards import check_hazards
from mcugen.frontend.onnx.load import prepare_model


def busy() -> None:
    while True:
        pass


def swallowing() -> None:
    while True:
        with suppress(Exception):
            busy()


@pytest.mark.parametrize("work", [busy, swallowing])
def test_work_that_does_not_end_is_ended(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MCUGEN_SECONDS", "1")
    message = r"thinking must take at most 1 s of CPU.*MCUGEN_SECONDS=10 "
    with (
        pytest.raises(DoesNotFitError, match=message),
        limit_cpu_seconds("thinking"),
        limit_cpu_seconds("thinking about it"),
    ):
        work()


def test_time_that_is_not_used_up_is_not_charged_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MCUGEN_SECONDS", "1")
    with limit_cpu_seconds("nothing"):
        restart_time_limit()
    restart_time_limit()
    sum(range(30_000_000))  # more than a second would be needed to be stopped: no timer runs any more


def test_errors_pass_through():
    with pytest.raises(UsageError), limit_cpu_seconds("failing"):
        raise UsageError("a rule")
    with limit_cpu_seconds("again"):
        pass


def test_other_threads_are_not_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MCUGEN_SECONDS", "1")
    done = []

    def work() -> None:
        with limit_cpu_seconds("a thread"):
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


@pytest.mark.parametrize("text", ["", "soon", "nan", "-3", "9" * 5000, "²"])
def test_a_strange_limit_is_none(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MCUGEN_SECONDS", text)
    with limit_cpu_seconds("nothing"):
        pass


def test_a_file_is_read_up_to_its_limit(tmp_path: Path):
    (tmp_path / "f").write_bytes(bytes(11))
    assert len(read_bounded(tmp_path / "f", 11)) == 11
    with pytest.raises(UsageError, match="at most 10 bytes"):
        read_bounded(tmp_path / "f", 10)


# --------------------------------------------------------------------------------------------------- models


def model(nodes: list[onnx.NodeProto], inputs: int = 1, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    xs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, (1, 4)) for i in range(inputs)]
    graph = helper.make_graph(nodes, "g", xs, [onnx.ValueInfoProto(name=name) for name in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def relus(names: list[str]) -> list[onnx.NodeProto]:
    return [helper.make_node("Relu", ["x0"], [name]) for name in names]


@pytest.mark.parametrize(
    ("proto", "found"),
    [
        (model(relus(["y"] * (MAX_NODES + 1))), "nodes"),
        (model(relus([f"y{i}" for i in range(MAX_READERS + 1)])), "readers of a tensor. found: 2,001 .'x0'"),
        (model(relus(["y"]), inputs=MAX_MODEL_PORTS + 1), "1,000 inputs"),
        (model(relus(["y"]), outputs=("y",) * (MAX_MODEL_PORTS + 1)), "1,000 outputs"),
        (model(relus(["y" * (MAX_NAME_CHARACTERS + 1)])), "characters in a name"),
        (
            model([helper.make_node("Split", ["x0"], [f"y{i}" for i in range(MAX_NODE_PORTS + 1)])]),
            "of a node.*'Split'",
        ),
        (
            model([helper.make_node("Sum", ["x0"] * 1000, ["y"])] * (MAX_CONNECTIONS // 1000)),
            "inputs and outputs of nodes",
        ),
    ],
)
def test_graphs_beyond_the_budget(proto: onnx.ModelProto, found: str):
    with pytest.raises(DoesNotFitError, match=found):
        check_hazards(proto, "m.onnx")


def test_graphs_within_the_budget():
    chain = [helper.make_node("Relu", [f"t{i}" if i else "x0"], [f"t{i + 1}"]) for i in range(MAX_NODES)]
    check_hazards(model(chain), "m.onnx")
    check_hazards(model(relus(["y"]), inputs=MAX_MODEL_PORTS), "m.onnx")


def test_function_bodies_count_as_often_as_they_are_used(monkeypatch: pytest.MonkeyPatch):
    """ONNX's own composite operators are bodies of some nodes each."""
    proto = prepare_model(model([helper.make_node("HardSwish", ["x0"], ["y"])]), "m")
    import_model(proto, "m")
    monkeypatch.setattr("mcugen.frontend.onnx.scope.MAX_NODES", 1)
    with pytest.raises(McugenError, match="at most 1 nodes"):
        import_model(proto, "m")


@pytest.mark.parametrize("version", [-1, 2**31, 2**62])
def test_versions_that_no_domain_has(version: int):
    proto = model(relus(["y"]))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    proto.opset_import[1].version = version
    with pytest.raises(ModelError, match="opsets must have a version"):
        check_hazards(proto, "m")


def test_operators_on_maps_never_reach_shape_inference():
    """It reads the type of a map where there is none, and dies."""
    proto = model([helper.make_node("DictVectorizer", ["x0"], ["y"], domain="ai.onnx.ml", string_vocabulary=["w"])])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(ModelError, match="maps must be tensors"):
        prepare_model(proto, "m")


def with_stored_codes(node: str, rows: int) -> onnx.ModelProto:
    """A node that reads `x`, and `v`: real numbers of so many rows of ten codes."""
    graph = "g (float[1,10] x) => (float[A,B] y) <float s = {0.1}, int64[2] r = {1, 1000}>"
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17]> {graph} {{ v = DequantizeLinear(w, s) y = {node} }}'
    )
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.INT8, (rows, 10), [1] * 10 * rows))
    return proto


def test_weights_may_have_more_elements_than_what_is_computed(monkeypatch: pytest.MonkeyPatch):
    """Codes lie in flash, and a layer reads them: only a tensor that is computed needs room in RAM."""
    monkeypatch.setattr(limits, "MAX_ELEMENTS", 100)
    assert import_model(with_stored_codes("Gemm<transB=1>(x, v)", 20), "m").outputs
    for node, rows, found in (("Gemm<transB=1>(x, v)", 200, "200 in 'y'"), ("Tile(v, r)", 20, "200,000 in 'y")):
        with pytest.raises(DoesNotFitError, match=found):
            import_model(with_stored_codes(node, rows), "m")
