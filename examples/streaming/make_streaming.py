# SPDX-License-Identifier: Apache-2.0
"""Turns a network that looks at a window of frames into one that takes a frame a call.

    python make_streaming.py WINDOW.onnx STREAM.onnx --axis 2

Each convolution along the time axis keeps the last k - 1 frames it saw: a state input and a state output, which
`mcugen compile --state` pairs (the script prints the options). From the first full window on, the outputs are those
of the windowed network, at a fraction of its work: no frame is convolved twice.

The network must have one input, and along the time axis only convolutions without padding and with stride 1, and
operators that treat each frame alike; by the end, one frame must be left.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

States = dict[str, str]


def make_streaming(window: onnx.ModelProto, axis: int) -> tuple[onnx.ModelProto, States]:
    """The network for one frame, and its states (output → input). `axis` is the time axis of the input, NCHW."""
    inferred = shape_inference.infer_shapes(window)
    infos = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    types = {v.name: v.type.tensor_type for v in infos}
    producers = {name: node for node in window.graph.node for name in node.output}
    model = onnx.ModelProto()
    model.CopyFrom(window)
    graph, states = model.graph, {}
    nodes = list(graph.node)
    del graph.node[:], graph.value_info[:]
    for node in nodes:
        span = frames(node, axis, graph)
        if span > 1:
            source = stored(node.input[0], producers)
            if f"{source}.past" not in states.values():
                states[f"{source}.past_next"] = remember(graph, source, types[source], axis, span)
            read_recent(graph, node, source)
        graph.node.append(node)
    (entry,) = [v for v in graph.input if v.name not in states.values()]
    entry.type.tensor_type.shape.dim[axis].dim_value = 1
    drop_unread(graph)
    onnx.checker.check_model(model)
    return model, states


def frames(node: onnx.NodeProto, axis: int, graph: onnx.GraphProto) -> int:
    """How many frames one output frame depends on."""
    if node.op_type != "Conv":
        return 1
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kernel, spatial = attributes["kernel_shape"], axis - 2
    pads = attributes.get("pads", [0] * 2 * len(kernel))
    if pads[spatial] or pads[spatial + len(kernel)] or attributes.get("strides", [1] * len(kernel))[spatial] != 1:
        raise SystemExit(f"{node.name}: must have stride 1 and no padding along the time axis")
    return int((kernel[spatial] - 1) * attributes.get("dilations", [1] * len(kernel))[spatial] + 1)


def stored(name: str, producers: dict[str, onnx.NodeProto]) -> str:
    """The tensor as it is stored: before DequantizeLinear, if it is quantized."""
    producer = producers.get(name)
    return producer.input[0] if producer is not None and producer.op_type == "DequantizeLinear" else name


def remember(graph: onnx.GraphProto, source: str, type_: onnx.TypeProto.Tensor, axis: int, span: int) -> str:
    """`source.recent` = the frames kept and the new one; all but its first are kept for the next call."""
    shape = [d.dim_value for d in type_.shape.dim]
    shape[axis] = span - 1
    past, recent = f"{source}.past", f"{source}.recent"
    graph.input.append(helper.make_tensor_value_info(past, type_.elem_type, shape))
    graph.output.append(helper.make_tensor_value_info(f"{past}_next", type_.elem_type, shape))
    for name, value in (("starts", 1), ("ends", span), ("axes", axis)):
        graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), f"{past}_{name}"))
    graph.node.append(helper.make_node("Concat", [past, source], [recent], f"{recent}_concat", axis=axis))
    slice_inputs = [recent, *(f"{past}_{name}" for name in ("starts", "ends", "axes"))]
    graph.node.append(helper.make_node("Slice", slice_inputs, [f"{past}_next"], f"{past}_shift"))
    return past


def read_recent(graph: onnx.GraphProto, node: onnx.NodeProto, source: str) -> None:
    """Lets a convolution read `source.recent`, through a DequantizeLinear of its own if it had one."""
    recent = f"{source}.recent"
    if node.input[0] != source:
        (dequantize,) = [n for n in graph.node if node.input[0] in n.output]
        twin = onnx.NodeProto()
        twin.CopyFrom(dequantize)
        twin.name, twin.input[0], twin.output[0] = f"{recent}_dequantize", recent, f"{recent}_real"
        graph.node.append(twin)
        recent = twin.output[0]
    node.input[0] = recent


def drop_unread(graph: onnx.GraphProto) -> None:
    """Without the nodes whose results nobody reads any more."""
    read, kept = {v.name for v in graph.output}, []
    for node in reversed(graph.node):
        if read & set(node.output):
            read |= set(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("window", type=Path)
    parser.add_argument("stream", type=Path)
    parser.add_argument("--axis", type=int, default=2, help="the time axis of the input (default 2, of NCTF)")
    arguments = parser.parse_args()
    model, states = make_streaming(onnx.load(arguments.window), arguments.axis)
    onnx.save(model, arguments.stream)
    print(" ".join(f"--state {output}:{kept}" for output, kept in states.items()))


if __name__ == "__main__":
    main()
