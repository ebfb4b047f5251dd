# SPDX-License-Identifier: Apache-2.0
"""Pooling of regions of interest: onnxruntime, numpy and C agree; regions that make no sense do no harm."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from checks import check_by_reference, check_model
from onnx_models import Net, c_outputs, imported, random_feeds

from mcugen.core.errors import McugenError

REGIONS = np.asarray([[0.3, 1.2, 7.9, 6.1], [4.0, 2.0, 4.0, 2.0], [-3.0, -2.5, 20.0, 12.0], [5.5, 4.5, 2.0, 1.0]])


def _roi_align(opset: int, **attributes: Any) -> tuple[Net, dict[str, np.ndarray]]:
    net = Net(opset)
    x, rois = net.input("x", 2, 3, 8, 9), net.input("r", 4, 4)
    net.output(net.op("RoiAlign", x, rois, net.input("b", 4, dtype=np.int64), out="y", **attributes))
    feeds = random_feeds(net.model())
    return net, feeds | {"r": REGIONS.astype(np.float32), "b": np.asarray([0, 1, 1, 0])}


def _merged(models: list[tuple[Net, dict[str, np.ndarray]]]) -> tuple[Net, dict[str, np.ndarray]]:
    """The nodes of all, with numbered names."""
    whole, feeds = Net(models[0][0].opset), {}
    for number, (net, arrays) in enumerate(models):
        for name, array in arrays.items():
            whole.input(f"{name}{number}", *array.shape, dtype=array.dtype.type)
            feeds[f"{name}{number}"] = array
        (node,) = net.nodes
        node.input[:] = [f"{name}{number}" for name in node.input]
        node.output[:] = [f"y{number}"]
        node.name = f"node{number}"
        whole.nodes.append(node)
        whole.output(f"y{number}")
    return whole, feeds


def test_roi_align():
    sizes = {"output_height": 3, "output_width": 2, "spatial_scale": 0.7}
    models = [
        _roi_align(16, mode=mode, sampling_ratio=samples, coordinate_transformation_mode=transform, **sizes)
        for mode, samples, transform in itertools.product(("avg", "max"), (0, 2), ("half_pixel", "output_half_pixel"))
    ]
    for _, feeds in models:
        feeds["r"] = feeds["r"][:3]  # of regions from right to left onnxruntime makes nothing
        feeds["b"] = feeds["b"][:3]
    net, feeds = _merged(models)
    check_model(net.model(), feeds)


def test_roi_align_of_old():
    """Until opset 16 there was but one transformation."""
    net, feeds = _roi_align(10, output_height=2, output_width=2, sampling_ratio=1)
    check_model(net.model(), feeds)


def test_roi_align_of_float64():
    net = Net(22)
    x, rois = net.input("x", 1, 2, 8, 9, dtype=np.float64), net.input("r", 2, 4, dtype=np.float64)
    y = net.op("RoiAlign", x, rois, net.input("b", 2, dtype=np.int64), out="y", output_height=2, output_width=2)
    net.output(y, dtype=np.float64)
    check_by_reference(net, {"r": REGIONS[:2], "b": np.zeros(2, np.int64)}, relative=1e-9)


def test_max_roi_pool():
    net = Net(20)
    for number, (shape, scale) in enumerate((((2, 2), 1.0), ((3, 4), 0.6))):
        x, rois = net.input(f"x{number}", 2, 3, 8, 9), net.input(f"r{number}", 4, 5)
        net.output(net.op("MaxRoiPool", x, rois, out=f"y{number}", pooled_shape=shape, spatial_scale=scale))
    model = net.model()
    regions = np.concatenate([[[0], [1], [1], [0]], REGIONS], 1).astype(np.float32)
    check_model(model, random_feeds(model) | {"r0": regions, "r1": regions})


def test_senseless_regions():
    """Batches and corners far outside, infinite or NaN: nothing outside is read."""
    net = Net(22)
    x, rois = net.input("x", 1, 2, 4, 4), net.input("r", 4, 5)
    net.output(net.op("MaxRoiPool", x, rois, out="y", pooled_shape=[2, 2]))
    corners, batch = net.input("c", 4, 4), net.input("b", 4, dtype=np.int64)
    net.output(net.op("RoiAlign", x, corners, batch, out="z", output_height=2, output_width=2))
    far = np.asarray([[9, np.inf, -np.inf, 1, 2], [-5, 1e30, 1e30, -1e30, 0], [np.nan] * 5, [2, -1e9, -1e9, 1e9, 1e9]])
    feeds = {"x": np.ones((1, 2, 4, 4), np.float32), "r": far.astype(np.float32), "c": far[:, 1:].astype(np.float32)}
    feeds["c"][3] = [-900, -900, 900, 900]
    found = c_outputs(net.model(), feeds | {"b": np.asarray([-(2**62), 2**62, 7, -1])})
    for array in found.values():
        assert ((array >= 0) & (array <= 1.0001)).all()


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("RoiAlign", ((1, 2, 4, 4), (3, 5), (3,)), {}),
        ("RoiAlign", ((1, 2, 4, 4), (3, 4), (2,)), {}),
        ("RoiAlign", ((1, 2, 4), (3, 4), (3,)), {}),
        ("RoiAlign", ((1, 2, 4, 4), (3, 4), (3,)), {"mode": "min"}),
        ("RoiAlign", ((1, 2, 4, 4), (3, 4), (3,)), {"output_height": 0}),
        ("RoiAlign", ((1, 2, 4, 4), (3, 4), (3,)), {"sampling_ratio": 2**31}),
        ("RoiAlign", ((1, 2, 4, 4), (3, 4), (3,)), {"spatial_scale": float("nan")}),
        ("MaxRoiPool", ((1, 2, 4, 4), (3, 4)), {"pooled_shape": [2, 2]}),
        ("MaxRoiPool", ((1, 2, 4, 4), (3, 5)), {"pooled_shape": [2]}),
        ("MaxRoiPool", ((1, 2, 4, 4), (3, 5)), {"pooled_shape": [2, -2]}),
    ],
)
def test_what_cannot_be_right(op_type: str, shapes: tuple[tuple[int, ...], ...], attributes: dict[str, Any]):
    net = Net(22)
    dtypes = (np.float32, np.float32, np.int64)
    inputs = [net.input(f"x{i}", *s, dtype=d) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=False))]
    net.op(op_type, *inputs, out="y", **attributes)
    net.output("y", shape=(1, 1, 1, 1))
    with pytest.raises(McugenError) as error:
        imported(net.plain_model())
    assert error.value.exit_code in (3, 4)
