# SPDX-License-Identifier: Apache-2.0
"""Results whose size depends on the data: the actual size, the elements, and layers that compute with them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from compilers import assert_accepted
from onnx_models import Feeds, Net, assert_close, numpy_outputs, onnxruntime_outputs

from mcugen.core.errors import McugenError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model


def check(model: onnx.ModelProto, samples: Sequence[Feeds], board: str = "host") -> CompiledModel:
    """C = onnxruntime for all samples, shapes included."""
    compiled = compile_model(model, board)
    found = compiled.simulate(samples, measure=False, sanitize=board == "host").outputs
    for outputs, feeds in zip(found, samples, strict=True):
        assert_close(outputs, onnxruntime_outputs(model, feeds), 1e-5)
    return compiled


def check_compilers(compiled: CompiledModel, folder: Path) -> None:
    compiled.write(folder)
    assert_accepted(folder, f"{compiled.bundle.name}.c", f"{compiled.bundle.name}_selftest.c")
    sources = sorted(folder.glob("*.c"))
    (folder / "main.c").write_text('#include "net.h"\nint main(void) { return net_selftest(net_default_arena()); }\n')
    subprocess.run(["gcc", "-std=c99", *sources, folder / "main.c", "-lm", "-o", folder / "main"], check=True)
    subprocess.run([folder / "main"], check=True)


def outputs(net: Net, dtype: type, *names: str) -> None:
    for name in names:
        net.output(name, dtype=dtype, shape=None)


def shaped(net: Net, name: str, dtype: type, *shape: int | str) -> None:
    net.output(name, dtype=dtype, shape=shape)


def masks(*shape: int) -> list[np.ndarray]:
    """None, all, the first, the last, some."""
    count = int(np.prod(shape))
    some = np.random.default_rng(0).integers(0, 2, (4, count))
    edges = [np.zeros(count), np.ones(count), np.eye(count)[0], np.eye(count)[-1]]
    return [m.reshape(shape) for m in (*edges, *some)]


def nonzero_net() -> Net:
    net = Net(18)
    x, flags = net.input("x", 2, 3, 4), net.input("flags", 5, dtype=np.bool_)
    found = net.op("NonZero", x, out="found")
    rows = net.op("Transpose", found, out="rows")
    picked = net.op("GatherND", x, rows, out="picked")
    shaped(net, "found", np.int64, 3, "n")
    shaped(net, rows, np.int64, "n", 3)
    shaped(net, picked, np.float32, "n")
    shaped(net, net.op("NonZero", flags, out="set"), np.int64, 1, "m")
    shaped(net, net.op("Squeeze", "set", net.const([0], np.int64), out="list"), np.int64, "m")
    return net


def test_nonzero(tmp_path: Path):
    model = nonzero_net().plain_model()
    samples = [
        {"x": (m * 3).astype(np.float32), "flags": f.astype(bool)}
        for m, f in zip(masks(2, 3, 4), masks(5), strict=True)
    ]
    check_compilers(check(model, samples), tmp_path / "c")


def compress_net() -> Net:
    """Entries picked by conditions, then layers over a number of entries known at run time."""
    net = Net(18)
    x, condition = net.input("x", 3, 6, 2), net.input("c", 6, dtype=np.bool_)
    kept = net.op("Compress", x, condition, axis=1, out="kept")
    shaped(net, kept, np.float32, 3, "n", 2)
    shaped(net, net.op("Compress", x, condition, out="flat"), np.float32, "m")
    shaped(net, net.op("Transpose", kept, perm=[1, 2, 0], out="turned"), np.float32, "n", 2, 3)
    shaped(net, net.op("Softmax", kept, axis=1, out="soft"), np.float32, 3, "n", 2)
    shaped(net, net.op("ReduceSum", kept, net.const([1], np.int64), out="sums"), np.float32, 3, 1, 2)
    dense = net.op("MatMul", kept, net.const(np.random.default_rng(0).standard_normal((2, 5))))
    shaped(net, net.op("Relu", dense, out="dense"), np.float32, 3, "n", 5)
    shaped(net, net.op("Concat", kept, net.const(np.ones((3, 2, 2))), axis=1, out="more"), np.float32, 3, "n2", 2)
    shaped(net, net.op("Mul", kept, net.op("Exp", kept), out="product"), np.float32, 3, "n", 2)
    fixed = net.op("Compress", x, net.const([False, True, True], np.bool_), axis=0, out="fixed")
    shaped(net, fixed, np.float32, 2, 6, 2)
    short = net.op("Compress", x, net.input("short", 2, dtype=np.bool_), axis=1, out="begin")
    shaped(net, short, np.float32, 3, "k", 2)
    return net


def compress_samples() -> list[Feeds]:
    random = np.random.default_rng(1)
    return [
        {"x": random.standard_normal((3, 6, 2)).astype(np.float32), "c": m.astype(bool), "short": s.astype(bool)}
        for m, s in zip(masks(6), masks(2), strict=True)
    ]


def test_compress_and_layers_behind_it(tmp_path: Path):
    check_compilers(check(compress_net().plain_model(), compress_samples()), tmp_path / "c")


@pytest.mark.qemu
def test_compress_on_a_cortex_m4():
    check(compress_net().plain_model(), compress_samples()[:3], "nrf52840")


def test_mean_of_a_number_known_at_run_time():
    net = Net(18)
    kept = net.op("Compress", net.input("x", 4, 7), net.input("c", 7, dtype=np.bool_), axis=1)
    shaped(net, net.op("ReduceMean", kept, net.const([1], np.int64), keepdims=0, out="y"), np.float32, 4)
    random = np.random.default_rng(0)
    samples = [{"x": random.standard_normal((4, 7)).astype(np.float32), "c": m.astype(bool)} for m in masks(7)[1:]]
    check(net.plain_model(), samples)


def test_unique(tmp_path: Path):
    net = Net(18)
    x, table = net.input("x", 9), net.input("table", 2, 6, 2)
    codes = net.input("codes", 3, 4, dtype=np.int64)
    cases: list[tuple[str, dict[str, int], type, str]] = [
        (x, {"sorted": 1}, np.float32, "a"),
        (x, {"sorted": 0}, np.float32, "b"),
        (table, {"axis": 1}, np.float32, "c"),
        (table, {"axis": 1, "sorted": 0}, np.float32, "d"),
        (codes, {}, np.int64, "e"),
        (codes, {"axis": 0}, np.int64, "f"),
        (codes, {"axis": -1}, np.int64, "g"),
    ]
    for source, attributes, dtype, name in cases:
        outs = [f"{name}_{part}" for part in ("y", "first", "inverse", "counts")]
        net.ops("Unique", source, outs=outs, **attributes)
        outputs(net, dtype, outs[0])
        outputs(net, np.int64, *outs[1:])
    outputs(net, np.float32, *net.ops("Unique", x, outs=["only"]))
    outputs(net, np.int64, net.ops("Unique", x, outs=["some", "", "", "often"])[3])
    model = net.plain_model()
    model = with_inferred_outputs(model)
    random = np.random.default_rng(0)
    samples = [
        {
            "x": random.integers(0, high, 9).astype(np.float32),
            "table": random.integers(0, high, (2, 6, 2)).astype(np.float32) % 2,
            "codes": random.integers(0, high, (3, 4)),
        }
        for high in (1, 2, 3, 5, 30)
    ]
    check_compilers(check(model, samples), tmp_path / "c")


def with_inferred_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    inferred = onnx.shape_inference.infer_shapes(model)
    for output in inferred.graph.output:
        output.type.tensor_type.shape.SetInParent()
    return inferred


def suppression_net(center: int, thresholds: bool) -> Net:
    net = Net(18)
    boxes, scores = net.input("boxes", 2, 6, 4), net.input("scores", 2, 3, 6)
    if thresholds:
        limits = [net.input("most", 1, dtype=np.int64), net.input("overlap", 1), net.input("least", 1)]
    else:
        limits = [net.const([2], np.int64), net.const([0.4])]
    rows = net.op("NonMaxSuppression", boxes, scores, *limits, center_point_box=center, out="rows")
    shaped(net, rows, np.int64, "n", 3)
    shaped(net, net.op("Slice", rows, *(net.const([v], np.int64) for v in (2, 3, 1)), out="box"), np.int64, "n", 1)
    return net


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("thresholds", [False, True])
def test_non_max_suppression(center: int, thresholds: bool, tmp_path: Path):
    samples = []
    for seed, (most, overlap, least) in enumerate(
        [(2, 0.3, 0.5), (0, 0.3, 0.1), (9, 0.0, 0.0), (3, 0.9, 1.0), (6, 0.5, 0.2)]
    ):
        random = np.random.default_rng(seed)
        feeds: dict[str, np.ndarray] = {"boxes": random.random((2, 6, 4)).astype(np.float32)}
        feeds["scores"] = random.random((2, 3, 6)).astype(np.float32)
        if seed == 2:
            feeds["scores"] = np.round(feeds["scores"])  # ties
        if thresholds:
            feeds["most"] = np.array([most])
            feeds["overlap"], feeds["least"] = (np.array([v], np.float32) for v in (overlap, least))
        samples.append(feeds)
    check_compilers(check(suppression_net(center, thresholds).plain_model(), samples), tmp_path / "c")


def test_numpy_reference_fills_up_to_the_assumed_size():
    net = Net(18)
    outputs(net, np.int64, net.op("NonZero", net.input("x", 2, 2), out="y"))
    feeds = {"x": np.array([[0, 1], [2, 0]], np.float32)}
    found = numpy_outputs(with_inferred_outputs(net.plain_model()), feeds)
    np.testing.assert_array_equal(found["y"], [[0, 1, 0, 0], [1, 0, 0, 0]])
    assert found["y.size"] == [2]


def test_a_size_of_a_size():
    """The entries that are kept depend on how many there are."""
    net = Net(18)
    kept = net.op("Compress", net.input("x", 8), net.input("c", 8, dtype=np.bool_), axis=0)
    again = net.op("NonZero", net.op("Relu", kept), out="again")
    shaped(net, again, np.int64, 1, "n")
    random = np.random.default_rng(0)
    samples = [{"x": random.standard_normal(8).astype(np.float32), "c": m.astype(bool)} for m in masks(8)]
    check(net.plain_model(), samples)


def test_both_kinds_of_sizes():
    net = Net(18)
    x = net.input("x", "T", 3)
    shaped(net, net.op("Transpose", net.op("NonZero", x), out="y"), np.int64, "n", 2)
    model = net.plain_model()
    compiled = compile_model(model, "host", CompileOptions(dims={"T": (1, 6)}))
    random = np.random.default_rng(0)
    samples = [{"x": random.integers(0, 2, (t, 3)).astype(np.float32)} for t in range(1, 7)]
    for sample, found in zip(samples, compiled.simulate(samples, measure=False, sanitize=True).outputs, strict=True):
        assert_close(found, onnxruntime_outputs(model, sample))


def test_sizes_in_the_header(tmp_path: Path):
    net = Net(18)
    shaped(net, net.op("NonZero", net.input("x", 2, 3), out="y"), np.int64, 2, "n")
    compiled = compile_model(net.plain_model())
    header = compiled.bundle.files["net.h"]
    assert "/* y: int64 [2, y] */" in header
    assert "#define NET_OUTPUT_COUNT 12u /* elements at most */" in header
    assert "#define NET_OUTPUT_COUNT_FOR(y) (2u * (uint32_t)(y))" in header
    assert "const int32_t *net_size(const void *arena);" in header
    assert "#define NET_NUM_OUTPUTS 1" in header
    feeds = {"x": np.array([[0, 1, 0], [2, 0, 3]], np.float32)}
    assert set(compiled.run({"x": feeds["x"][None]})) == {"y"}
    with pytest.raises(UsageError, match="must have one shape"):
        compiled.run({"x": np.stack([feeds["x"], np.ones((2, 3), np.float32)])})


def test_layers_that_need_one_size_are_refused():
    net = Net(18)
    kept = net.op("Compress", net.input("x", 6), net.input("c", 6, dtype=np.bool_), axis=0)
    shaped(net, net.op("Add", kept, net.const(np.ones(6)), out="y"), np.float32, "n")
    with pytest.raises(McugenError, match="valid for every size"):
        compile_model(net.plain_model())


def test_hostile_shapes_are_refused():
    net = Net(18)
    shaped(
        net, net.op("NonMaxSuppression", net.input("b", 1, 6, 4), net.input("s", 1, 2, 5), out="y"), np.int64, "n", 3
    )
    with pytest.raises(McugenError, match="boxes must be"):
        compile_model(net.plain_model())


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        ((0, 1), "with t0=0 output 'y' is"),  # the first one: there may be none
        ((-1, 2**31), "with .*t0=0.* would be -1"),  # the last one
        ((0, 2), "t0=2"),
    ],
)
def test_entries_that_there_need_not_be_are_refused(axes: tuple[int, int], found: str):
    net = Net(18)
    kept = net.op("Compress", net.input("x", 6), net.input("c", 6, dtype=np.bool_), axis=0)
    part = net.op("Slice", net.op("Exp", kept), *(net.const([v], np.int64) for v in (*axes, 0)), out="y")
    shaped(net, part, np.float32, "n")
    with pytest.raises(McugenError, match=found):
        compile_model(net.plain_model())


def test_nothing_to_choose_from_is_safe():
    """Where nothing is kept, ONNX itself gives no result: the C gives any, but reads nothing else."""
    net = Net(18)
    kept = net.op("Compress", net.input("x", 6), net.input("c", 6, dtype=np.bool_), axis=0)
    shaped(net, net.op("Gather", kept, net.input("i", 3, dtype=np.int64), out="y"), np.float32, 3)
    shaped(net, net.op("ArgMax", kept, axis=0, out="best"), np.int64, 1)
    compiled = compile_model(net.plain_model())
    indices = np.array([0, 5, -7])
    feeds = [{"x": np.arange(6, dtype=np.float32), "c": m.astype(bool), "i": indices} for m in masks(6)]
    found = compiled.simulate(feeds, measure=False, sanitize=True).outputs
    np.testing.assert_array_equal(found[1]["y"], [0, 5, 0])
