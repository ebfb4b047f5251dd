# SPDX-License-Identifier: Apache-2.0
"""A drawing of a network as given and as compiled, side by side, like the commit graph of a version control log.

Each node has a row, in order of execution. Each live tensor has a lane: a vertical line from its producer to its last
reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from mcugen.hir.graph import Graph
from mcugen.hir.layer_names import name_nodes
from mcugen.lir.program import Program
from mcugen.reporting.pages import standalone

ROW_PIXELS, LANE_PIXELS, MAX_LANES = 44, 14, 12
"""Height of a row and width of a lane in pixels, and the largest number of lanes; more tensors share the last."""


@dataclass(frozen=True)
class Box:
    """A node (operator, input or output) in the drawing of a network.

    Attributes:
        op: Operator of the node.
        name: Name of the node.
        reads: Names of the tensors that the node reads.
        makes: Names of the node's results.
        type: Type of the result, as text.
        kernel: Name of the node's kernel; "" for a node of the ONNX model.
        origin: Names of the ONNX nodes that the node comes from.
    """

    op: str
    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    type: str
    kernel: str = ""
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeRow:
    """A row of a drawing of a network.

    Attributes:
        box: The node.
        lane: Number of the lane (column) in which the node's dot stands.
    """

    box: Box
    lane: int


@dataclass(frozen=True)
class Drawing:
    """A drawing of a network with a row for each node.

    A lane is a column in which the line of a tensor runs from the node that computes it to its readers.

    Attributes:
        title: The title.
        rows: The nodes in order.
        lines: The lines of tensors, as SVG paths.
        lanes: Number of lanes.
    """

    title: str
    rows: list[NodeRow]
    lines: list[str]
    lanes: int

    @property
    def width(self) -> int:
        """Return the width of all lanes in pixels."""
        return LANE_PIXELS * (self.lanes + 1)

    @property
    def height(self) -> int:
        """Return the height of all rows in pixels."""
        return ROW_PIXELS * len(self.rows)

    @property
    def dots(self) -> list[tuple[int, int]]:
        """Return the center (x, y) of each row's dot in pixels."""
        return [(_x(row.lane), _y(index)) for index, row in enumerate(self.rows)]


def network_page(model: onnx.ModelProto, graph: Graph, program: Program, board: str) -> str:
    """Return an HTML page with two drawings of a network: the ONNX model as given, and the compiled model.

    A selected node highlights its counterparts in the other drawing.

    Args:
        model: The ONNX model.
        graph: The graph after all passes.
        program: The program of the graph.
        board: Name of the board.
    """
    drawings = [drawn("ONNX", onnx_boxes(model)), drawn(f"compiled for {board}", compiled_boxes(graph, program))]
    return standalone("network.html.j2", {"own": "network.js"}, title=program.name, drawings=drawings, row=ROW_PIXELS)


def onnx_boxes(model: onnx.ModelProto) -> list[Box]:
    """Return the nodes to draw of an ONNX model: inputs, nodes and outputs, without nodes that read only constants."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    known = {v.name: _onnx_type(v) for v in (*graph.input, *graph.value_info, *graph.output)}
    constants = {initializer.name for initializer in graph.initializer}
    inputs = [Box("input", v.name, (), (v.name,), known[v.name]) for v in graph.input if v.name not in constants]
    nodes = []
    for node in graph.node:
        reads = tuple(name for name in node.input if name and name not in constants)
        if not reads and not _subgraphs(node):
            constants.update(node.output)
            continue
        types = ", ".join(filter(None, (known.get(name, "") for name in node.output)))
        nodes.append(
            Box(node.op_type, node.name, reads, tuple(node.output), types, origin=(node.name or node.output[0],))
        )
    return [*inputs, *nodes, *(Box("output", v.name, (v.name,), (), known[v.name]) for v in graph.output)]


def _subgraphs(node: onnx.NodeProto) -> bool:
    """Return whether a node may read tensors of the graph around it."""
    return any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)


def _onnx_type(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    if not tensor.elem_type:
        return ""
    sizes = [d.dim_param or str(d.dim_value) for d in tensor.shape.dim]
    return f"{'x'.join(sizes) or 'scalar'} {onnx.TensorProto.DataType.Name(tensor.elem_type).lower()}"


def compiled_boxes(graph: Graph, program: Program) -> list[Box]:
    """Return the nodes to draw of a compiled model: the graph after all passes, with the kernel of each node."""
    names = name_nodes(graph)
    by_name = {instr.name: instr.kernel for instr in program.instrs if instr.kernel}
    inputs = [Box("input", v.name, (), (v.name,), str(v.type)) for v in graph.inputs]
    nodes = [
        Box(
            node.op.name,
            names[node],
            tuple(v.name for v in node.inputs if v is not None and not v.is_constant),
            tuple(v.name for v in node.outputs),
            ", ".join(str(v.type) for v in node.outputs),
            by_name.get(node.outputs[0].name, ""),
            node.origin,
        )
        for node in graph.nodes
    ]
    ends = zip(graph.output_names, graph.outputs, strict=True)
    return [*inputs, *nodes, *(Box("output", name, (v.name,), (), str(v.type)) for name, v in ends)]


def drawn(title: str, boxes: Sequence[Box]) -> Drawing:
    """Return the drawing of a network; a tensor keeps its lane from its producer to its last reader.

    Args:
        title: The title of the drawing.
        boxes: The nodes in order.
    """
    last = {name: index for index, box in enumerate(boxes) for name in box.reads}
    lane_of: dict[str, int] = {}
    place_of: dict[str, tuple[int, int]] = {}
    rows: list[NodeRow] = []
    lines: list[str] = []
    for index, box in enumerate(boxes):
        reads = [name for name in dict.fromkeys(box.reads) if name in lane_of]
        ends = [name for name in reads if last[name] == index]
        lane = min((lane_of[name] for name in ends), default=_free(lane_of))
        lines += [_line(*place_of[name], lane_of[name], index, lane) for name in reads]
        for name in ends:
            del lane_of[name]
        rows.append(NodeRow(box, lane))
        for name in box.makes:
            if name in last:
                lane_of[name] = lane if lane not in lane_of.values() else _free(lane_of)
                place_of[name] = index, lane
    lanes = 1 + max((row.lane for row in rows), default=0)
    return Drawing(title, rows, lines, min(lanes, MAX_LANES))


def _free(lane_of: Mapping[str, int]) -> int:
    used = set(lane_of.values())
    return next(lane for lane in range(len(used) + 1) if lane not in used)


def _x(lane: int) -> int:
    return LANE_PIXELS * (min(lane, MAX_LANES - 1) + 1)


def _y(index: int) -> int:
    return ROW_PIXELS * index + ROW_PIXELS // 2


def _line(start: int, start_lane: int, lane: int, end: int, end_lane: int) -> str:
    """Return a path from a dot down a lane to another dot; it changes lanes within one row of each dot."""
    return " ".join(_steps(start, start_lane, lane, end, end_lane))


def _steps(start: int, start_lane: int, lane: int, end: int, end_lane: int) -> Iterator[str]:
    yield f"M{_x(start_lane)} {_y(start)}"
    x, y = _x(start_lane), _y(start)
    stops = [(_x(lane), _y(start) + ROW_PIXELS)] if end - start > 1 else []
    stops += [(_x(lane), _y(end) - ROW_PIXELS)] if end - start > 2 else []
    for to_x, to_y in (*stops, (_x(end_lane), _y(end))):
        middle = (y + to_y) // 2
        yield f"V{to_y}" if to_x == x else f"C{x} {middle} {to_x} {middle} {to_x} {to_y}"
        x, y = to_x, to_y
