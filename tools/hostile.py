# SPDX-License-Identifier: Apache-2.0
"""The corpus of hostile input: some 2,300 files and command lines, made by this script, the same each time.

Each must end within 30 s of CPU and 2 GB of memory, with a message and an exit code that says whose fault it is.
`--write FOLDER` writes the files and prints the command lines; else they are run and judged. Run with PYTHONPATH=tests.
"""

from __future__ import annotations

import io
import itertools
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnx.parser
import typer
from fuzz_inputs import models, warm_up
from onnx import TensorProto, helper, numpy_helper
from sandbox import Command, Outcome, run_all
from tflite_models import LiteModel, Number, Numbers, flatbuffer, i8, i32

MODEL, UNSUPPORTED, SIZE, USAGE, DONE = 3, 4, 5, 2, 0
JUDGED = (DONE, USAGE, MODEL, UNSUPPORTED, SIZE)
"""Of a model of which it does not matter whether it is taken."""
REFUSED = (MODEL, UNSUPPORTED, SIZE)

GROUPS: dict[str, Callable[[Path], Iterator[Command]]] = {}


@dataclass(frozen=True)
class _Files:
    """Writer of the files of a group into a folder."""

    folder: Path
    group: str

    def write(self, name: str, data: bytes) -> str:
        file = f"{self.group}_{name}"
        (self.folder / file).write_bytes(data)
        return file

    def model(
        self, name: str, model: onnx.ModelProto | bytes, exits: tuple[int, ...] = JUDGED, *options: str
    ) -> Command:
        """Return a command that inspects a model."""
        data = model if isinstance(model, bytes) else model.SerializeToString()
        return Command(f"{self.group}/{name}", ("inspect", self.write(f"{name}.onnx", data), *options), exits)

    def tiny(self) -> str:
        """Write a valid model."""
        return self.write("tiny.onnx", models()[0].SerializeToString())


def _group(make: Callable[[_Files], Iterator[Command]]) -> Callable[[_Files], Iterator[Command]]:
    GROUPS[make.__name__] = lambda folder: make(_Files(folder, make.__name__))
    return make


def _parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "own": 1, "com.microsoft": 1, "ai.onnx.ml": 3]> {text}'
    )


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any] | None = None,
    constants: dict[str, Any] | None = None,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model with float inputs of the given shapes, and constants of the given values."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (inputs or {"x": (1, 4)}).items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            v if isinstance(v, TensorProto) else numpy_helper.from_array(np.asarray(v), n)
            for n, v in (constants or {}).items()
        ],
    )
    opsets = [("", opset), ("own", 1), ("com.microsoft", 1), ("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], ir_version=10)


def _node(op: str, *inputs: str, out: str = "y", domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [out], op, domain=domain, **attributes)


def _copy(index: int = 0) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(models()[index])
    return model


def _sparse(size: int) -> onnx.SparseTensorProto:
    """Return a sparse tensor of `size` elements with one value, at index 1."""
    values = helper.make_tensor("sparse", TensorProto.DOUBLE, [1], [1.0])
    return helper.make_sparse_tensor(values, helper.make_tensor("", TensorProto.INT64, [1], [1]), [size])


# ------------------------------------------------------------------------------------------------ structure


@_group
def structure(files: _Files) -> Iterator[Command]:
    """Yield models that are not valid graphs: damaged files, missing parts, wrong links, deep nesting."""
    for name, data in {
        "empty": b"",
        "zeros": bytes(1000),
        "text": b"import torch\n" * 100,
        "ones": b"\xff" * 4096,
        "zip": b"PK\x03\x04" + bytes(100),
        "elf": b"\x7fELF" + bytes(100),
        "deep_groups": b"\x3a\xff\xff\xff\xff\x0f" * 50,
        "huge_length": b"\x3a\xff\xff\xff\xff\x07" + bytes(100),
        "varints": b"\x80" * 5000,
    }.items():
        yield files.model(name, data, (MODEL,))
    yield Command("structure/missing", ("inspect", "no_such.onnx"), (MODEL,))
    yield Command("structure/folder", ("inspect", "."), (MODEL,))
    yield Command("structure/long_path", ("inspect", "p" * 5000 + ".onnx"), (USAGE, MODEL))
    for name, change in _CHANGES.items():
        model = _copy()
        change(model)
        yield files.model(name, model)
    for depth in (2, 11, 13, 20, 30):
        yield files.model(f"nested_if_{depth}", _nested(depth))
    for depth in (33, 100, 5000):
        yield files.model(f"nested_messages_{depth}", _nested_bytes(depth), (MODEL,))
    operators = (
        "Conv MatMul LSTM If Loop Scan Reshape Concat Split Gather Einsum Resize TopK Pad Slice Where Cast "
        "CastLike QuantizeLinear DequantizeLinear Softmax SequenceAt StringNormalizer NonMaxSuppression "
        "Constant ConstantOfShape Optional"
    )
    for op in operators.split():
        yield files.model(f"no_inputs_{op}", _model([helper.make_node(op, [], ["y"])]), REFUSED)
        yield files.model(f"many_inputs_{op}", _model([helper.make_node(op, ["x"] * 40, ["y"])]))
        yield files.model(f"no_outputs_{op}", _model([helper.make_node(op, ["x", "x"], []), _node("Relu", "x")]))


def _nested(depth: int) -> onnx.ModelProto:
    body = helper.make_graph([_node("Relu", "x", out="b")], "b", [], [onnx.ValueInfoProto(name="b")])
    for level in range(depth):
        name = f"l{level}"
        node = helper.make_node("If", ["c"], [name], then_branch=body, else_branch=body if level < 6 else _small())
        body = helper.make_graph([node], name, [], [onnx.ValueInfoProto(name=name)])
    graph = helper.make_graph(
        list(body.node),
        "g",
        [helper.make_tensor_value_info("x", 1, (1, 4)), helper.make_tensor_value_info("c", TensorProto.BOOL, ())],
        [onnx.ValueInfoProto(name=body.node[0].output[0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _nested_bytes(depth: int) -> bytes:
    """Return a model with graphs in attributes of nodes of graphs, too deep for any library to write."""
    body = b""
    for _ in range(depth):
        for field in (6, 5, 1):  # g, attribute, node
            body = bytes([field << 3 | 2]) + _varint(len(body)) + body
    return b"\x3a" + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _small() -> onnx.GraphProto:
    return helper.make_graph([_node("Neg", "x", out="s")], "s", [], [onnx.ValueInfoProto(name="s")])


def _set_opset(version: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return change


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = model.graph.node[-1].output[0]


def _swap(model: onnx.ModelProto) -> None:
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))


_CHANGES: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "no_graph": lambda m: m.ClearField("graph"),
    "no_opset": lambda m: m.ClearField("opset_import"),
    "no_nodes": lambda m: m.graph.ClearField("node"),
    "no_outputs": lambda m: m.graph.ClearField("output"),
    "no_inputs": lambda m: m.graph.ClearField("input"),
    "no_initializers": lambda m: m.graph.ClearField("initializer"),
    "no_graph_name": lambda m: m.graph.ClearField("name"),
    "no_ir_version": lambda m: m.ClearField("ir_version"),
    "ir_version_0": lambda m: setattr(m, "ir_version", 0),
    "ir_version_huge": lambda m: setattr(m, "ir_version", 2**62),
    "ir_version_negative": lambda m: setattr(m, "ir_version", -1),
    "opset_0": _set_opset(0),
    "opset_negative": _set_opset(-(2**63)),
    "opset_huge": _set_opset(2**62),
    "opset_5": _set_opset(5),
    "opset_6": _set_opset(6),
    "opset_twice": lambda m: m.opset_import.append(helper.make_opsetid("", 3)),
    "cycle": _cycle,
    "reversed": _swap,
    "self_loop": lambda m: m.graph.node[0].input.__setitem__(0, m.graph.node[0].output[0]),
    "unknown_input": lambda m: m.graph.node[0].input.__setitem__(0, "nothing"),
    "empty_input": lambda m: m.graph.node[0].input.__setitem__(0, ""),
    "empty_output": lambda m: m.graph.node[0].output.__setitem__(0, ""),
    "output_twice": lambda m: m.graph.output.append(m.graph.output[0]),
    "output_unknown": lambda m: m.graph.output.append(onnx.ValueInfoProto(name="nothing")),
    "output_nameless": lambda m: m.graph.output.append(onnx.ValueInfoProto()),
    "output_is_input": lambda m: m.graph.output.append(m.graph.input[0]),
    "output_is_constant": lambda m: m.graph.output.append(onnx.ValueInfoProto(name="w")),
    "input_twice": lambda m: m.graph.input.append(m.graph.input[0]),
    "input_nameless": lambda m: m.graph.input.append(onnx.ValueInfoProto()),
    "input_typeless": lambda m: m.graph.input[0].ClearField("type"),
    "input_shapeless": lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"),
    "input_is_sequence": lambda m: m.graph.input[0].type.sequence_type.elem_type.tensor_type.SetInParent(),
    "input_is_map": lambda m: m.graph.input[0].type.map_type.SetInParent(),
    "input_is_optional": lambda m: m.graph.input[0].type.optional_type.SetInParent(),
    "input_is_sparse": lambda m: m.graph.input[0].type.sparse_tensor_type.SetInParent(),
    "initializer_twice": lambda m: m.graph.initializer.append(m.graph.initializer[0]),
    "initializer_nameless": lambda m: m.graph.initializer[0].ClearField("name"),
    "initializer_is_input": lambda m: setattr(m.graph.initializer[0], "name", "x"),
    "initializer_is_result": lambda m: setattr(m.graph.initializer[0], "name", "h"),
    "node_twice": lambda m: m.graph.node.append(m.graph.node[0]),
    "node_typeless": lambda m: m.graph.node[0].ClearField("op_type"),
    "unknown_operator": lambda m: setattr(m.graph.node[0], "op_type", "Frobnicate"),
    "unknown_domain": lambda m: setattr(m.graph.node[0], "domain", "org.example"),
    "domain_ai_onnx": lambda m: setattr(m.graph.node[0], "domain", "ai.onnx"),
    "sparse_initializer": lambda m: m.graph.sparse_initializer.add(),
    "sparse_initializers_of_tebibytes": lambda m: m.graph.sparse_initializer.extend([_sparse(1 << 40)] * 3),
    "sparse_initializers_of_gibibytes": lambda m: m.graph.sparse_initializer.extend([_sparse(1 << 22)] * 999),
    "sparse_initializer_beyond_its_end": lambda m: m.graph.sparse_initializer.append(_sparse(1)),
    "training_info": lambda m: m.training_info.add().initialization.CopyFrom(_copy().graph),
    "attribute_typeless": lambda m: m.graph.node[3].attribute[0].ClearField("type"),
    "attribute_twice": lambda m: m.graph.node[3].attribute.append(m.graph.node[3].attribute[0]),
    "attribute_reference": lambda m: setattr(m.graph.node[3].attribute[0], "ref_attr_name", "axis"),
    "attribute_graph": lambda m: m.graph.node[3].attribute[0].g.CopyFrom(_copy().graph),
    "attribute_unknown": lambda m: m.graph.node[0].attribute.append(helper.make_attribute("zap", [1, 2])),
    "value_info_lies": lambda m: m.graph.value_info.append(helper.make_tensor_value_info("h", 7, (9, 9))),
    "output_lies": lambda m: m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 7, (9, 9))),
    "quantization_annotation": lambda m: m.graph.quantization_annotation.add(tensor_name="zip"),
    "metadata": lambda m: m.metadata_props.add(key="k" * 5000, value="v" * 5000),
    "data_twice": lambda m: m.graph.initializer[0].__setattr__("raw_data", bytes(48)),
    "data_short": lambda m: m.graph.initializer[0].float_data.pop(),
    "data_long": lambda m: m.graph.initializer[0].float_data.append(1.0),
    "data_none": lambda m: m.graph.initializer[0].ClearField("float_data"),
    "data_segment": lambda m: m.graph.initializer[0].segment.SetInParent(),
}


# ---------------------------------------------------------------------------------------------------- names

_NAMES = {
    "escape": "\x1b[2J\x1b[31m",
    "markup": "[bold red]x[/][link=http://x]",
    "comment": "*/ int main(void) { /* \\\n ??/",
    "path": "../../../../etc/passwd",
    "format": "%s%n{0}{{x}}{% raw %}",
    "long": "n" * 4000,
    "longer": "n" * 100_000,
    "unicode": "\u202egnp.exe \U0001f600\u0000x",
    "keyword": "int",
    "digits": "0" * 300,
    "spaces": " \t\r\n ",
    "nothing": "",
    "dots": ".".join("ab" * 500),
}


@_group
def names(files: _Files) -> Iterator[Command]:
    """Yield models with hostile text in every place of a name."""
    for label, text in _NAMES.items():
        for place, change in _PLACES.items():
            model = _copy(8 if place.startswith("function") else 6 if place == "dimension" else 0)
            change(model, text)
            yield files.model(f"{place}_{label}", model)
    yield files.model("dim_bound", _symbolic("N" * 3000))
    yield files.model("many_dims", _symbolic(*(f"N{i}" * 40 for i in range(100))))


def _symbolic(*symbols: str) -> onnx.ModelProto:
    model = _model([_node("Relu", "x0")], {f"x{i}": (s, 2) for i, s in enumerate(symbols)})
    return model


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        for items in (node.input, node.output):
            items[:] = [new if item == old else item for item in items]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = new if value.name == old else value.name


def _rename_dimension(model: onnx.ModelProto, text: str) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text


_PLACES: dict[str, Callable[[onnx.ModelProto, str], Any]] = {
    "input": lambda m, t: _rename(m, "x", t),
    "output": lambda m, t: _rename(m, "y", t),
    "initializer": lambda m, t: _rename(m, "w", t),
    "result": lambda m, t: _rename(m, "h", t),
    "node": lambda m, t: setattr(m.graph.node[0], "name", t),
    "operator": lambda m, t: setattr(m.graph.node[0], "op_type", t),
    "domain": lambda m, t: setattr(m.graph.node[0], "domain", t),
    "attribute": lambda m, t: setattr(m.graph.node[3].attribute[0], "name", t),
    "graph": lambda m, t: setattr(m.graph, "name", t),
    "dimension": _rename_dimension,
    "producer": lambda m, t: setattr(m, "producer_name", t),
    "function": lambda m, t: setattr(m.functions[0], "name", t),
    "function_input": lambda m, t: m.functions[0].input.__setitem__(0, t),
}


# ---------------------------------------------------------------------------------------------------- sizes

_SIZES = (0, -1, 2**22 + 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))


@_group
def sizes(files: _Files) -> Iterator[Command]:
    """Yield models with impossible shapes and counts."""
    for size in _SIZES:
        yield files.model(f"input_{size}", _model([_node("Relu", "x")], {"x": (1, size)}))
        yield files.model(f"square_{size}", _model([_node("Relu", "x")], {"x": (size, size, size)}))
        tensor = helper.make_tensor("w", TensorProto.FLOAT, (1,), [1.0])
        tensor.dims[:] = [size]
        yield files.model(f"initializer_{size}", _model([_node("Add", "x", "w")], None, {"w": tensor}))
        short = TensorProto(name="w", data_type=1, dims=[size, size])
        yield files.model(f"no_data_{size}", _model([_node("Add", "x", "w")], None, {"w": short}))
        for name, make in _SIZED.items():
            with suppress(OverflowError, ValueError):
                yield files.model(f"{name}_{size}", make(size))
    yield files.model("rank_200", _model([_node("Relu", "x")], {"x": (1,) * 200}))
    yield files.model("rank_5000", _model([_node("Relu", "x")], {"x": (1,) * 5000}))
    yield files.model("transposed_33", _model([_node("Transpose", "x", perm=list(range(33))[::-1])], {"x": (1,) * 33}))
    yield files.model(
        "large_convolution",
        _model([_node("Conv", "x", "w")], {"x": (1, 1, 2040, 2040)}, {"w": np.ones((1, 1, 512, 512), np.float32)}),
    )
    yield files.model("large_product", _model([_node("MatMul", "x", "x")], {"x": (2048, 2048)}))
    yield files.model("products", _chain("MatMul", 60, (2000, 2000)))


def _chain(op: str, count: int, shape: tuple[int, ...]) -> onnx.ModelProto:
    nodes = [_node(op, f"t{i}" if i else "x", f"t{i}" if i else "x", out=f"t{i + 1}") for i in range(count)]
    return _model(nodes, {"x": shape}, outputs=(f"t{count}",))


def _by_constant(
    op: str, *more: Any, dtype: type = np.int64, first: bool = False, **attributes: Any
) -> Callable[[int], onnx.ModelProto]:
    """Return a maker of models whose operator reads the size from a constant: its second input, or the first."""

    def make(size: int) -> onnx.ModelProto:
        constants = {"n": np.asarray([size], dtype)} | {f"c{i}": v for i, v in enumerate(more)}
        given = [*([] if first else ["x"]), *constants]
        return _model([_node(op, *given, out="z", **attributes), _node("Identity", "z")], {"x": (4,)}, constants)

    return make


def _by_attribute(
    op: str, shape: tuple[int, ...], name: str, as_list: int = 0, *constants: Any, **more: Any
) -> Callable[[int], onnx.ModelProto]:
    """Return a maker of models whose operator has the size as an attribute."""

    def make(size: int) -> onnx.ModelProto:
        attributes = more | {name: [size] * as_list if as_list else size}
        known = {f"c{i}": np.asarray(v, np.float32) for i, v in enumerate(constants)}
        return _model([_node(op, "x", *known, **attributes)], {"x": shape}, known)

    return make


_IMAGE = (1, 1, 4, 4)
_KERNEL = np.ones((1, 1, 1, 1))
_SIZED: dict[str, Callable[[int], onnx.ModelProto]] = {
    "expand": _by_constant("Expand"),
    "tile": _by_constant("Tile"),
    "reshape": _by_constant("Reshape"),
    "constant_of_shape": _by_constant("ConstantOfShape", first=True),
    "range": _by_constant("Range", np.asarray(0), np.asarray(1), first=True),
    "range_down": _by_constant("Range", np.asarray(-(2**40)), np.asarray(-1), first=True),
    "gather": _by_constant("Gather"),
    "top_k": _by_constant("TopK"),
    "slice": _by_constant("Slice", np.asarray([2**62])),
    "pad": lambda n: (
        _by_constant("Pad")(n) if n < 0 else _model([_node("Pad", "x", "n")], {"x": (4,)}, {"n": np.asarray([n, n])})
    ),
    "one_hot": lambda n: _model(
        [_node("OneHot", "i", "n", "v")],
        {"x": (4,)},
        {"i": np.asarray([1, 2]), "n": np.asarray([n]), "v": np.asarray([0.0, 1.0], np.float32)},
    ),
    "squeeze": _by_constant("Squeeze"),
    "unsqueeze": _by_constant("Unsqueeze"),
    "cumsum": _by_constant("CumSum"),
    "split": _by_constant("Split"),
    "resize": lambda n: _model([_node("Resize", "x", "", "", "n")], {"x": (4,)}, {"n": np.asarray([n])}),
    "resize_scale": lambda n: _model([_node("Resize", "x", "", "n")], {"x": (4,)}, {"n": np.asarray([n], np.float32)}),
    "kernel_shape": _by_attribute("MaxPool", _IMAGE, "kernel_shape", 2),
    "pool_pads": _by_attribute("AveragePool", _IMAGE, "pads", 4, kernel_shape=[2, 2]),
    "pool_strides": _by_attribute("MaxPool", _IMAGE, "strides", 2, kernel_shape=[2, 2]),
    "dilations": _by_attribute("Conv", _IMAGE, "dilations", 2, _KERNEL),
    "conv_pads": _by_attribute("Conv", _IMAGE, "pads", 4, _KERNEL),
    "conv_strides": _by_attribute("Conv", _IMAGE, "strides", 2, _KERNEL),
    "group": _by_attribute("Conv", _IMAGE, "group", 0, _KERNEL),
    "transposed_strides": _by_attribute("ConvTranspose", _IMAGE, "strides", 2, _KERNEL),
    "transposed_output": _by_attribute("ConvTranspose", _IMAGE, "output_shape", 2, _KERNEL),
    "depth_to_space": _by_attribute("DepthToSpace", _IMAGE, "blocksize"),
    "space_to_depth": _by_attribute("SpaceToDepth", _IMAGE, "blocksize"),
    "hidden_size": _by_attribute("LSTM", (1, 1, 1), "hidden_size", 0, np.ones((1, 4, 1)), np.ones((1, 4, 1))),
    "axis": _by_attribute("Softmax", _IMAGE, "axis"),
    "concat_axis": _by_attribute("Concat", _IMAGE, "axis"),
    "flatten_axis": _by_attribute("Flatten", _IMAGE, "axis"),
    "perm": _by_attribute("Transpose", _IMAGE, "perm", 4),
    "size": _by_attribute("LRN", _IMAGE, "size"),
    "eye_like": _by_attribute("EyeLike", (4, 4), "k"),
    "window": lambda n: _by_constant("HannWindow", first=True)(n),
    "mel": lambda n: _by_constant(
        "MelWeightMatrix",
        *(np.asarray(v) for v in (64, 8000)),
        np.asarray(0.0, np.float32),
        np.asarray(4000.0, np.float32),
        first=True,
    )(n),
    "dft": lambda n: _model([_node("DFT", "x", "n")], {"x": (1, 4, 1)}, {"n": np.asarray(n)}),
    "upsample": lambda n: _model(
        [_node("Upsample", "x", "n")], {"x": (4,)}, {"n": np.asarray([n], np.float32)}, opset=9
    ),
}


# ---------------------------------------------------------------------------------------------------- types


@_group
def types(files: _Files) -> Iterator[Command]:
    """Yield models with known and unknown element types in every place of a type."""
    for number in (*range(-1, 30), 99, 255, 2**31 - 1, -(2**31)):
        model = _copy()
        model.graph.input[0].type.tensor_type.elem_type = number
        yield files.model(f"input_{number}", model)
        model = _copy()
        model.graph.initializer[0].data_type = number
        yield files.model(f"initializer_{number}", model)
        yield files.model(f"cast_{number}", _model([_node("Cast", "x", to=number)]))
        model = _model([_node("CastLike", "x", "like")])
        model.graph.input.append(helper.make_tensor_value_info("like", 1, (1,)))
        model.graph.input[1].type.tensor_type.elem_type = number
        yield files.model(f"cast_like_{number}", model)
        unknown = TensorProto(name="like", data_type=number, dims=[1], raw_data=bytes(8))
        yield files.model(
            f"cast_like_constant_{number}", _model([_node("CastLike", "x", "like")], None, {"like": unknown})
        )
        model = _copy()
        model.graph.output[0].type.tensor_type.elem_type = number
        yield files.model(f"output_{number}", model)
        value = TensorProto(data_type=number, dims=[1], raw_data=bytes(4))
        fill = _model(
            [_node("ConstantOfShape", "n", out="f", value=value), _node("Add", "x", "f")], None, {"n": np.asarray([4])}
        )
        yield files.model(f"fill_{number}", fill)
        yield files.model(
            f"constant_{number}", _model([_node("Constant", out="c", value=value), _node("Add", "x", "c")])
        )


# -------------------------------------------------------------------------------------------- external data


@_group
def external(files: _Files) -> Iterator[Command]:
    """Yield models with external weights: present, missing, and in files that must not be read."""
    files.write("weights.data", bytes(48))
    good = {"location": "external_weights.data"}
    for name, entries in {
        "good": good,
        "missing": {"location": "no_such.data"},
        "absolute": {"location": "/etc/passwd"},
        "device": {"location": "/dev/zero"},
        "above": {"location": "../../../../../../etc/passwd"},
        "folder": {"location": "."},
        "no_location": {},
        "empty_location": {"location": ""},
        "long_location": {"location": "d" * 5000},
        "nul_location": {"location": "a\0b"},
        "negative_offset": good | {"offset": "-1"},
        "huge_offset": good | {"offset": str(2**62)},
        "offset_behind": good | {"offset": "47"},
        "huge_length": good | {"length": str(2**62)},
        "negative_length": good | {"length": "-8"},
        "short_length": good | {"length": "4"},
        "digits": good | {"length": "9" * 5000},
        "no_number": good | {"offset": "x"},
    }.items():
        for place in ("initializer", "constant", "body"):
            tensor = TensorProto(name="w", data_type=1, dims=[12], data_location=TensorProto.EXTERNAL)
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
            yield files.model(f"{place}_{name}", _with_tensor(place, tensor))


def _with_tensor(place: str, tensor: TensorProto) -> onnx.ModelProto:
    if place == "initializer":
        return _model([_node("Add", "x", "w")], {"x": (12,)}, {"w": tensor})
    if place == "constant":
        return _model([_node("Constant", out="w", value=tensor), _node("Add", "x", "w")], {"x": (12,)})
    add = helper.make_graph([_node("Add", "x", "w", out="a")], "a", [], [onnx.ValueInfoProto(name="a")], [tensor])
    model = _model([helper.make_node("If", ["c"], ["y"], then_branch=add, else_branch=_small())], {"x": (12,)})
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, ()))
    return model


# ------------------------------------------------------------------------------------------ functions, loops


@_group
def functions(files: _Files) -> Iterator[Command]:
    """Yield models whose functions call themselves, grow, or lack something."""

    def of(name: str, body: str, more: str = "") -> onnx.ModelProto:
        head = '<domain: "own", opset_import: ["": 17, "own": 1]>'
        return _parsed(
            f"g (float[1,4] x) => (float[1,4] y) {{ y = own.{name}(x) }} {head} {name} (p) => (q) {{ {body} }} {more}"
        )

    head = '<domain: "own", opset_import: ["": 17, "own": 1]>'
    yield files.model("itself", of("f", "q = own.f(p)"), (MODEL,))
    yield files.model("each_other", of("f", "q = own.h(p)", f"{head} h (p) => (q) {{ q = own.f(p) }}"), (MODEL,))
    yield files.model("unknown", of("f", "q = own.nothing(p)"), REFUSED)
    yield files.model("no_output", of("f", "z = Relu(p)"))
    yield files.model("reads_outside", of("f", "q = Add(p, x)"))
    for depth in (4, 12, 16, 17, 40, 63, 100):
        more = " ".join(
            f"{head} f{i} (p) => (q) {{ a = own.f{i + 1}(p) q = own.f{i + 1}(a) }}" for i in range(1, depth)
        )
        last = f"{head} f{depth} (p) => (q) {{ q = Relu(p) }}"
        model = of("f0", "a = own.f1(p) q = own.f1(a)", f"{more} {last}")
        yield files.model(f"doubling_{depth}", model, JUDGED if depth <= 12 else REFUSED)
        line = " ".join(f"{head} f{i} (p) => (q) {{ q = own.f{i + 1}(p) }}" for i in range(1, depth))
        yield files.model(f"line_{depth}", of("f0", "q = own.f1(p)", f"{line} {last}"))
    for name, change in {
        "twice": lambda m: m.functions.append(m.functions[0]),
        "no_opset": lambda m: m.functions[0].ClearField("opset_import"),
        "other_opset": lambda m: setattr(m.functions[0].opset_import[0], "version", 9),
        "huge_opset": lambda m: setattr(m.functions[0].opset_import[0], "version", 2**40),
        "no_inputs": lambda m: m.functions[0].ClearField("input"),
        "no_outputs": lambda m: m.functions[0].ClearField("output"),
        "no_nodes": lambda m: m.functions[0].ClearField("node"),
        "input_twice": lambda m: m.functions[0].input.append("p"),
        "hides_standard": lambda m: (setattr(m.functions[0], "domain", ""), setattr(m.functions[0], "name", "Relu")),
        "overload": lambda m: setattr(m.functions[0], "overload", "o"),
        "attribute_absent": lambda m: m.functions[0].attribute.append("needed"),
    }.items():
        model = _copy(8)
        change(model)
        yield files.model(name, model)


@_group
def loops(files: _Files) -> Iterator[Command]:
    """Yield models with endless, huge and nested loops."""
    body = (
        "(int64 i, bool p, float[2] s) => (bool q, float[2] t, float[2] u) { q = Identity(p) t = Add(s, s) u = Neg(t) }"
    )
    for count in (0, -1, 1, 129, 100_000, 2**31, 2**62, -(2**63)):
        known = f"<int64 n = {{{count}}}, bool c = {{1}}>"
        text = f"g (float[2] x) => (float[2] y, float[K,2] z) {known} {{ y, z = Loop<body = b {body}>(n, c, x) }}"
        yield files.model(f"count_{count}", _parsed(text))
        growing = (
            body.replace("float[2] t, float[2] u", "float[M] t, float[2] u")
            .replace("Add(s, s)", "Concat<axis=0>(s, s)")
            .replace("Neg(t)", "Neg(s)")
        )
        yield files.model(f"growing_{count}", _parsed(text.replace(body, growing)))
    unknown = (
        f"g (float[2] x, int64 n, bool c) => (float[2] y, float[K,2] z) {{ y, z = Loop<body = b {body}>(n, c, x) }}"
    )
    yield files.model("unknown_count", _parsed(unknown), REFUSED)
    yield files.model("no_count", _parsed(unknown.replace("(n, c, x)", '("", c, x)').replace('""', "")))
    for depth in (2, 3, 5, 9, 14):
        yield files.model(f"nested_{depth}", _nested_loops(depth, 100))
        yield files.model(f"nested_growing_{depth}", _nested_loops(depth, 100, "Concat"))
    for steps in (1, 2, 4_000_000):
        step = "b (float[2] a, float[2] r) => (float[2] c, float[2] d) { c = Add(a, r) d = Neg(c) }"
        head = f"g (float[{steps},2] x, float[2] s) => (float[2] y, float[{steps},2] z)"
        scan = f"{head} {{ y, z = Scan<num_scan_inputs=1, body = {step}>(s, x) }}"
        yield files.model(f"scan_{steps}", _parsed(scan))
        for count in (0, 2, -1, 2**62):
            yield files.model(f"scan_{steps}_inputs_{count}", _parsed(scan.replace("inputs=1", f"inputs={count}")))


def _nested_loops(depth: int, count: int, op: str = "Add") -> onnx.ModelProto:
    def info(name: str, kind: int, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    attributes: dict[str, Any] = {"axis": 0} if op == "Concat" else {}
    nodes = [_node("Identity", "p0", out="q0"), _node(op, "s0", "s0", out="t0", **attributes)]
    for level in range(depth):
        state = onnx.ValueInfoProto(name=f"t{level}") if op == "Concat" else info(f"t{level}", 1, (2,))
        given = [info(f"i{level}", 7, ()), info(f"p{level}", 9, ()), info(f"s{level}", 1, (2,))]
        if op == "Concat":
            given[2] = helper.make_tensor_value_info(f"s{level}", 1, ("M",))
        graph = helper.make_graph(nodes, "b", given, [info(f"q{level}", 9, ()), state])
        outer = level + 1
        loop = helper.make_node("Loop", ["n", "", f"s{outer}"], [f"t{outer}"], body=graph)
        nodes = [_node("Identity", f"p{outer}", out=f"q{outer}"), loop]
    nodes = nodes[1:]
    nodes[0].input[2], nodes[0].output[0] = "x", "y"
    return _model(nodes, {"x": (2,)}, {"n": np.asarray(count)})


# ------------------------------------------------------------------------------------------------- quantized


@_group
def quantization(files: _Files) -> Iterator[Command]:
    """Yield models with invalid scales and zero points."""
    f = np.float32
    scales = {"0": 0.0, "nan": np.nan, "inf": np.inf, "negative": -1.0, "tiny": 1e-45, "small": 1e-30, "huge": 3e38}
    for name, scale in scales.items():
        s, z = np.asarray(scale, f), np.asarray(1, np.int8)
        nodes = [_node("QuantizeLinear", "x", "s", "z", out="q"), _node("DequantizeLinear", "q", "s", "z")]
        yield files.model(f"pair_{name}", _model(nodes, None, {"s": s, "z": z}))
        w = np.ones((4, 4), np.int8)
        nodes = [
            *(_node("QuantizeLinear", "x", "t", "z", out="q"), _node("DequantizeLinear", "q", "t", "z", out="d")),
            *(_node("DequantizeLinear", "w", "s", "z", out="v"), _node("MatMul", "d", "v", out="m")),
            *(_node("QuantizeLinear", "m", "s", "z", out="r"), _node("DequantizeLinear", "r", "s", "z")),
        ]
        yield files.model(f"dense_{name}", _model(nodes, None, {"s": s, "z": z, "t": f(0.1), "w": w}))
        for op, zero in itertools.product(("QLinearMatMul", "QLinearConv", "QLinearAdd"), (0, 127)):
            yield files.model(f"{op}_{name}_{zero}", _qlinear(op, s, zero))
        yield files.model(
            f"weights_{name}",
            _model([_node("DequantizeLinear", "w", "s", out="v"), _node("MatMul", "x", "v")], None, {"w": w, "s": s}),
        )
    for name, (s, z, attributes) in {
        "axis_9": (np.ones(4, f), np.zeros(4, np.int8), {"axis": 9}),
        "axis_negative": (np.ones(4, f), np.zeros(4, np.int8), {"axis": -9}),
        "length": (np.ones(3, f), np.zeros(3, np.int8), {"axis": 1}),
        "length_0": (np.ones(0, f), np.zeros(0, np.int8), {"axis": 1}),
        "lengths": (np.ones(4, f), np.zeros(3, np.int8), {"axis": 1}),
        "rank": (np.ones((2, 2), f), np.zeros((2, 2), np.int8), {}),
        "float_zero": (np.ones((), f), np.zeros((), f), {}),
        "int32_zero": (np.ones((), f), np.zeros((), np.int32), {}),
        "int64_zero": (np.ones((), f), np.zeros((), np.int64), {}),
        "int16_zero": (np.ones((), f), np.asarray(-32768, np.int16), {}),
        "integer_scale": (np.ones((), np.int8), np.zeros((), np.int8), {}),
        "double_scale": (np.ones((), np.float64), np.zeros((), np.int8), {}),
        "block": (np.ones((1, 2), f), np.zeros((1, 2), np.int8), {"block_size": 2}),
        "block_negative": (np.ones((1, 2), f), np.zeros((1, 2), np.int8), {"block_size": -2}),
        "block_huge": (np.ones((1, 2), f), np.zeros((1, 2), np.int8), {"block_size": 2**40}),
        "output_dtype": (np.ones((), f), np.zeros((), np.int8), {"output_dtype": 99}),
        "saturate": (np.ones((), f), np.zeros((), np.int8), {"saturate": 2**40}),
    }.items():
        for op in ("QuantizeLinear", "DequantizeLinear"):
            first = "x" if op == "QuantizeLinear" else "w"
            constants = {"s": s, "z": z, "w": np.ones((1, 4), z.dtype)}
            yield files.model(
                f"{op}_{name}", _model([_node(op, first, "s", "z", **attributes)], None, constants, opset=21)
            )
    yield files.model("unknown_scale", _model([_node("QuantizeLinear", "x", "s")], {"x": (1, 4), "s": ()}))
    yield files.model("no_scale", _model([_node("QuantizeLinear", "x", "")]), REFUSED)
    yield files.model("dynamic", _model([_node("DynamicQuantizeLinear", "x")], {"x": (0,)}))


def _qlinear(op: str, scale: Any, zero: int) -> onnx.ModelProto:
    """Return a model with a QLinear operator between QuantizeLinear and DequantizeLinear."""
    z, image = np.asarray(zero, np.int8), op == "QLinearConv"
    w = np.ones((1, 1, 2, 2) if image else (4, 4), np.int8)
    given = ["q", "s", "z", "w", "s", "z", "s", "z"]
    domain = "com.microsoft" if op == "QLinearAdd" else ""
    nodes = [_node("QuantizeLinear", "x", "s", "z", out="q"), _node(op, *given, out="r", domain=domain)]
    nodes.append(_node("DequantizeLinear", "r", "s", "z"))
    return _model(nodes, {"x": (1, 1, 4, 4) if image else (4, 4)}, {"s": scale, "z": z, "w": w})


@_group
def truncations(files: _Files) -> Iterator[Command]:
    """Yield model files that end too early, or have additional bytes."""
    for number, model in enumerate(models()):
        data = model.SerializeToString()
        for part in range(1, 9):
            yield files.model(f"{number}_{part}", data[: len(data) * part // 9])
        yield files.model(f"{number}_more", data + b"\x3a")
        yield files.model(f"{number}_twice", data + data)


# --------------------------------------------------------------------------------------------------- growth


@_group
def growth(files: _Files) -> Iterator[Command]:
    """Yield graphs that are long, wide or both: above and just below the limits."""
    for count in (1_000, 100_000):
        yield files.model(f"chain_{count}", _unary(count), (DONE, SIZE))
        yield files.model(f"ladder_{count // 50}", _ladder(count // 50), (DONE, SIZE))
    for count in (500, 5_000):
        nodes = [_node("Relu", "x", out=f"r{i}") for i in range(count)]
        yield files.model(
            f"fan_out_{count}", _model([*nodes, _node("Sum", *(f"r{i}" for i in range(count)))]), (DONE, SIZE)
        )
    for count in (900, 10_000):
        inputs = {f"x{i}": (2,) for i in range(count)}
        yield files.model(f"inputs_{count}", _model([_node("Sum", *inputs)], inputs), (DONE, SIZE))
        names = tuple(f"r{i}" for i in range(count))
        yield files.model(
            f"outputs_{count}", _model([_node("Relu", "x", out=n) for n in names], outputs=names), (DONE, SIZE)
        )
        parts = [helper.make_node("Split", ["x"], list(names), axis=0), _node("Concat", *names, axis=0)]
        yield files.model(f"parts_{count}", _model(parts, {"x": (count,)}), (DONE, MODEL, UNSUPPORTED, SIZE))
    unused = {f"w{i}": np.ones(1, np.float32) for i in range(120_000)}
    yield files.model("initializers", _model([_node("Relu", "x")], None, unused), (SIZE,))
    wide = [helper.make_node("Sum", ["x"] * 1900, [f"s{i}"]) for i in range(60)]
    yield files.model("links", _model([*wide, _node("Relu", "s0")]), (SIZE,))
    head = '<domain: "own", opset_import: ["": 17]>'
    for calls, length in ((10, 100), (65, 1000)):
        body = " ".join(f"t{i + 1} = Relu(t{i})" for i in range(length))
        line = " ".join(f"s{i + 1} = own.f(s{i})" for i in range(calls))
        text = f"g (float[1,4] s0) => (float[1,4] s{calls}) {{ {line} }} {head} f (t0) => (t{length}) {{ {body} }}"
        yield files.model(f"inlined_{calls * length}", _parsed(text), (DONE, SIZE))
    yield files.model(
        "refusals",
        _model([_node("Nothing", "x", out=f"r{i}", domain="own") for i in range(5_000)], outputs=("r0",)),
        REFUSED,
    )


def _unary(count: int) -> onnx.ModelProto:
    nodes = [_node("Relu" if i % 2 else "Neg", f"t{i}" if i else "x", out=f"t{i + 1}") for i in range(count)]
    return _model(nodes, outputs=(f"t{count}",))


def _ladder(count: int) -> onnx.ModelProto:
    """Return a chain of sums, each of which reads the two results before it."""
    nodes = [_node("Add", f"t{max(i - 1, 0)}", f"t{i}", out=f"t{i + 1}") for i in range(count)]
    return _model([_node("Relu", "x", out="t0"), *nodes], outputs=(f"t{count}",))


# --------------------------------------------------------------------------------- samples, boards and others


@_group
def samples(files: _Files) -> Iterator[Command]:
    """Yield commands with arrays and pictures that claim more than they contain."""
    tiny, good = files.tiny(), _saved(np.ones((3, 1, 6), np.float32))

    def given(name: str, data: bytes, suffix: str = ".npz", exits: tuple[int, ...] = (USAGE,)) -> Command:
        file = files.write(name + suffix, data)
        return Command(f"samples/{name}", ("profile", tiny, "--calibration", file, "-o", f"{name}.json"), exits)

    yield given("good", _zipped({"x.npy": good}), exits=(DONE,))
    yield given("unneeded_bomb", _zipped({"x.npy": good, "z.npy": _claimed((2**30,), "<f8", 1 << 20)}), exits=(DONE,))
    yield given("unneeded_member", _zipped({"x.npy": good, "readme.txt": b"no array"}), exits=(DONE,))
    yield given("member", _zipped({"x.npy": b"no array"}))
    yield given("member_of_text", _zipped({"x": b"no array"}))
    yield given("claims_8_gib", _zipped({"x.npy": _claimed((2**30,), "<f8", 8 << 20)}))
    yield given("zeros_64_mib", _bomb(64 << 20))
    yield given("no_members", _zipped({}))
    yield given("many_members", _zipped({f"{i}.npy": b"" for i in range(20_000)}))
    yield given("encrypted", _encrypted(_zipped({"x.npy": good})))
    yield given("truncated", _zipped({"x.npy": good})[:-40])
    yield given("empty", b"")
    yield given("npy_as_npz", good)
    yield given("good_npy", good, ".npy", (DONE,))
    yield given("empty_npy", b"", ".npy")
    yield given("npz_as_npy", _zipped({"x.npy": good}), ".npy")
    for shape in ((2**52,), (2**62, 2**62), (-1, 6), (-1, -6), (0, 2**62), (3,) * 70, (), ("6",), (6.0,), (True,)):
        yield given(
            f"shape_{len(shape)}_{abs(hash(str(shape))) % 10**6}"
            if len(shape) > 9
            else f"shape_{shape}".replace(" ", ""),
            _claimed(shape, "<f4", 72),
            ".npy",
        )
    for kind in ("|O", "<U3", "|V4", "<M8[s]", "<c8", "<f16", "|S0", "f4,f4", "nonsense", "<f3", "|b1"):
        yield given(
            f"type_{kind}".replace("|", "_").replace("<", "_"), _claimed((3, 1, 6), kind, 400), ".npy", (USAGE, DONE)
        )
    for name, text in {
        "deep": "(" * 5000,
        "braces": "{" * 5000,
        "code": "__import__('os').abort()",
        "digits": "{'shape': (" + "9" * 9000 + ",)}",
        "nul": "\0" * 99,
    }.items():
        yield given(f"header_{name}", _headed(text), ".npy")
    yield from _pictures(files)


def _pictures(files: _Files) -> Iterator[Command]:
    image = files.write("image.onnx", models()[7].SerializeToString())
    for name, (width, height, extra) in {
        "good": (3, 3, b""),
        "bomb": (60_000, 60_000, b""),
        "wide": (2**31 - 1, 1, b""),
        "nothing": (0, 0, b""),
        "text_bomb": (3, 3, _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 27)))),
        "profile_bomb": (3, 3, _chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1 << 27)))),
        "chunks": (3, 3, _chunk(b"tEXt", b"a\0b") * 20_000),
    }.items():
        folder = files.folder / f"pictures_{name}"
        folder.mkdir(exist_ok=True)
        head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        body = _chunk(b"IDAT", zlib.compress(bytes(min(height, 4000) * (min(width, 4000) + 1))))
        (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + extra + body + _chunk(b"IEND", b""))
        exits = (DONE,) if name == "good" else (DONE, USAGE)
        yield Command(
            f"samples/png_{name}", ("profile", image, "--calibration", folder.name, "-o", f"{name}.json"), exits
        )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _headed(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def _claimed(shape: tuple[Any, ...], kind: str, size: int) -> bytes:
    """Return a .npy file of `size` zeros whose header claims another shape."""
    return _headed(repr({"descr": kind, "fortran_order": False, "shape": shape})) + bytes(size)


def _zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _bomb(size: int) -> bytes:
    """Return a .npz archive that inflates to an array of `size` zeros."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(zipfile.ZipInfo("x.npy"), _claimed((size // 4,), "<f4", size), zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _encrypted(data: bytes) -> bytes:
    """Return the archive with the flag of encrypted members."""
    changed = bytearray(data)
    changed[6] |= 1
    at = data.rindex(b"PK\x01\x02")
    changed[at + 8] |= 1
    return bytes(changed)


@_group
def boards(files: _Files) -> Iterator[Command]:
    """Yield commands with hostile board files and board names."""
    tiny = files.tiny()
    good = (
        'description = "d"\ncpu = "cortex-m4"\nfeatures = ["dsp"]\nclock_hz = 1\ncflags = []\nqemu = ""\n'
        'toolchain = ""\narena_memory = "a"\nweights_memory = "f"\n[[memories]]\nname = "a"\nkind = "ram"\n'
        'origin = 536870912\nsize = 4096\nspeed = 1\n[[memories]]\nname = "f"\nkind = "flash"\n'
        "origin = 0\nsize = 4096\nspeed = 1\n"
    )
    for name, text in {
        "nested": good.replace("cflags = []", "cflags = " + "[" * 5000 + "]" * 5000),
        "nested_open": "x = " + "[" * 5000,
        "nested_tables": "x = " + "{a=" * 5000,
        "nested_keys": ".".join("a" * 5000) + " = 1",
        "digits": good.replace("clock_hz = 1", "clock_hz = " + "9" * 5000),
        "hexadecimal": good.replace("size = 4096", "size = 0x" + "f" * 5000),
        "exponent": good.replace("clock_hz = 1", "clock_hz = 1e999"),
        "negative": good.replace("size = 4096", "size = -1"),
        "long_text": good.replace('"d"', '"' + "d" * 5000 + '"'),
        "long_key": "k" * 5000 + " = 1\n" + good,
        "long_file": good + "# " + "x" * (1 << 20),
        "binary": "\0\1\2",
        "empty": "",
        "inherits_itself": 'inherits = "boards_inherits_itself"',
        "inherits_nothing": 'inherits = "' + "n" * 5000 + '"',
        "inherits_path": 'inherits = "../../etc/passwd"',
        "memory_wraps": good.replace("origin = 536870912", "origin = 4294967295"),
        "memories_many": good
        + "".join(
            f'[[memories]]\nname = "m{i}"\nkind = "ram"\norigin = {2**30 + 16 * i}\nsize = 16\nspeed = 1\n'
            for i in range(3000)
        ),
    }.items():
        file = files.write(f"{name}.toml", text.encode())
        exits = (DONE, USAGE) if name in ("long_text", "memories_many") else (USAGE,)
        yield Command(f"boards/{name}", ("boards", "show", file), exits)
        yield Command(f"boards/for_{name}", ("inspect", tiny, "-b", file), (*exits, SIZE))
    for name, board in {
        "long": "b" * 5000,
        "none": "no-such",
        "path": "../x",
        "empty": "",
        "toml": ".toml",
        "long_toml": "b" * 5000 + ".toml",
        "device": "/dev/zero/x.toml",
    }.items():
        yield Command(f"boards/called_{name}", ("compile", tiny, "-b", board), (USAGE,))
        yield Command(f"boards/show_{name}", ("boards", "show", board), (USAGE,))


@_group
def bind(files: _Files) -> Iterator[Command]:
    """Yield commands with hostile values for bound inputs."""
    tiny, good = files.tiny(), _saved(np.ones((1, 6), np.float32))
    for name, data in {
        "good": good,
        "empty": b"",
        "zipped": _zipped({"x.npy": good}),
        "pebibytes": _claimed((2**50,), "<f4", 100),
        "deep": _headed("(" * 20_000),
        "pickled": _saved(np.asarray([None])),
        "text": _saved(np.asarray(["a"])),
        "not_a_number": _saved(np.full((1, 6), np.nan, np.float32)),
    }.items():
        file = files.write(f"{name}.npy", data)
        exits = (DONE, SIZE) if name in ("good", "not_a_number") else (USAGE,)
        yield Command(f"bind/{name}", ("inspect", tiny, "--bind", f"x={file}"), (*exits, MODEL, UNSUPPORTED))
    for name, text in {
        "json_deep": "[" * 50_000,
        "json_nested": "[" * 900 + "]" * 900,
        "json_digits": "9" * 5000,
        "json_float": "1e400",
        "json_nan": "NaN",
        "json_text": '"x"',
        "json_ragged": "[[1], [1, 2]]",
        "json_object": "{}",
        "json_empty": "",
        "json_long": "[" + "1," * 40_000 + "1]",
        "no_file": "no_such.npy",
        "long_file": "f" * 5000 + ".npy",
        "folder": "/.npy",
    }.items():
        yield Command(
            f"bind/{name}",
            ("inspect", tiny, "--bind", f"x={text}"),
            (USAGE,) if name != "json_nan" else (*REFUSED, USAGE),
        )


@_group
def profiles(files: _Files) -> Iterator[Command]:
    """Yield commands with invalid profiles."""
    tiny = files.tiny()
    for name, data in {
        "empty": b"",
        "deep": b"[" * 200_000,
        "deep_objects": b'{"a":' * 100_000,
        "null": b"null",
        "digits": b'{"version": ' + b"9" * 9000 + b"}",
        "version": b'{"version": ' + b"9" * 4000 + b"}",
        "infinity": b'{"version": 1, "sha256": "", "samples": 1e999, "tensors": {}}',
        "samples": b'{"version": 1, "sha256": "", "samples": 99999999999999999999, "tensors": {}}',
        "types": b'{"version": 1, "sha256": [], "samples": "", "tensors": 3}',
        "tensor": b'{"version": 1, "sha256": "", "samples": 1, "tensors": {"x": {"lows": [[]], "highs": {}}}}',
        "long_name": b'{"version": 1, "sha256": "", "samples": 1, "tensors": {"' + b"x" * 600_000 + b'": 1}}',
        "many": b'{"version": 1, "sha256": "", "samples": 1, "tensors": [' + b"[]," * 1_000_000 + b"1]}",
        "huge": b" " * (100 << 20),
        "binary": bytes(range(256)),
        "utf16": "{}".encode("utf-16"),
    }.items():
        file = files.write(f"{name}.json", data)
        yield Command(f"profiles/{name}", ("quantize", tiny, "--profile", file, "-o", "q.onnx"), (USAGE,))


@_group
def plugins(files: _Files) -> Iterator[Command]:
    """Yield commands with plug-ins and metrics that raise, exit or hang."""
    tiny = files.tiny()
    head = "from mcugen.ops.onnx_node import onnx_operator\n"
    operator = '@onnx_operator("Relu", domain="of_{}")\ndef relu(node):\n    {}\n'
    for name, text in {
        "exit_0": "import sys\nsys.exit(0)\n",
        "exit_1": "raise SystemExit(1)\n",
        "raises": "1 / 0\n",
        "raises_long": 'raise ValueError("x" * 600_000)\n',
        "recursion": "def f():\n    f()\nf()\n",
        "memory": "raise MemoryError\n",
        "greedy": "x = bytearray(1 << 40)\n",
        "swallows": "while True:\n    try:\n        while True: pass\n    except Exception: pass\n",
        "eof": "raise EOFError\n",
        "syntax": "def (:\n",
        "nested": "(" * 5000 + ")" * 5000,
        "nothing": "",
        "binary": "\0\1",
    }.items():
        file = files.write(f"{name}.py", text.encode())
        yield Command(f"plugins/{name}", ("compile", tiny, "-b", "host", "--plugin", file, "-o", "out"), (USAGE,))
        if name != "swallows":  # takes its time once
            metric = ("report", tiny, "-b", "host", "--metric", f"{file}:f")
            yield Command(f"plugins/metric_{name}", metric, (USAGE,))
    for name, (body, code) in {
        "exits": ("raise SystemExit(0)", 1),
        "ends": ("raise EOFError", 1),
        "interrupts": ("raise KeyboardInterrupt", 130),
        "gives": ("return 3", MODEL),
        "raises": ("1 / 0", MODEL),
        "greedy": ("bytearray(1 << 40)", SIZE),
    }.items():
        file = files.write(f"operator_{name}.py", (head + operator.format(name, body)).encode())
        model = _model([_node("Relu", "x", domain=f"of_{name}")])
        model.opset_import.append(helper.make_opsetid(f"of_{name}", 1))
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4)))
        uses = files.write(f"operator_{name}.onnx", model.SerializeToString())
        arguments = ("compile", uses, "-b", "host", "--plugin", file, "-o", "out")
        yield Command(f"plugins/operator_{name}", arguments, (code, 1))


@_group
def options(files: _Files) -> Iterator[Command]:
    """Yield commands with option values that are too long, too large or invalid."""
    symbolic = files.write("symbolic.onnx", models()[6].SerializeToString())
    tiny, digits = files.tiny(), "9" * 5000
    for name, (model, *given) in {
        "dim": (symbolic, "--dim", f"N={digits}"),
        "dim_range": (symbolic, "--dim", f"N=1..{digits}"),
        "dim_64_bits": (symbolic, "--dim", f"N={2**62}"),
        "dim_large": (symbolic, "--dim", "N=2000000"),
        "dim_superscript": (symbolic, "--dim", "N=²"),
        "dim_name": (symbolic, "--dim", "N" * 5000 + "=1"),
        "max_ram": (tiny, "--max-ram", digits),
        "max_flash": (tiny, "--max-flash", digits + "MB"),
        "max_ram_name": (tiny, "--max-ram", "x" * 5000),
        "place": (tiny, "--place", f"hot-weights=dtcm:{digits}"),
        "place_name": (tiny, "--place", "arena=" + "+".join("m" * 2000)),
        "place_what": (tiny, "--place", "w" * 5000),
        "state": (tiny, "--state", "s" * 5000 + ":" + "t" * 5000),
        "layer": (tiny, "--layer", "l" * 5000 + "=int8"),
        "layer_precision": (tiny, "--layer", "l=" + digits),
        "kernel": (tiny, "--kernel", "k" * 5000),
        "kernels": (tiny, "--kernels", "k" * 5000),
        "optimize": (tiny, "--optimize", "o" * 5000),
        "precision": (tiny, "--precision", "p" * 5000),
        "method": (tiny, "--method", "m" * 5000),
        "metric": (tiny, "--metric", "m" * 5000),
        "metric_file": (tiny, "--metric", "m" * 5000 + ".py:f"),
        "plugin": (tiny, "--plugin", "p" * 5000 + ".py"),
        "preprocess": (tiny, "--preprocess", "scale=" + digits),
        "preprocess_long": (tiny, "--preprocess", "gray," * 2000),
        "pixel_scale": (tiny, "--pixel-scale", digits + "x"),
        "pixel_scale_infinite": (tiny, "--pixel-scale", digits),
        "min_sqnr": (tiny, "--min-sqnr", "nan"),
        "dump_after": (tiny, "--dump-after", "d" * 5000),
        "json": (tiny, "--json", "j" * 5000),
        "svg": (tiny, "--svg", "s" * 300),
        "unknown": (tiny, "--" + "u" * 5000),
        "cmsis": (tiny, "--cmsis-nn-lib", "c" * 5000),
    }.items():
        yield Command(f"options/{name}", ("inspect", model, *given), (DONE, *JUDGED, 9))
    yield Command("options/name", ("compile", tiny, "-b", "host", "--name", "n" * 5000, "-o", "named"), (DONE,))
    yield Command("options/output", ("compile", tiny, "-b", "host", "-o", "o" * 300), (USAGE, 9))
    yield Command("options/output_deep", ("compile", tiny, "-b", "host", "-o", "d/" * 3000), (USAGE, 9))
    yield Command("options/output_file", ("compile", tiny, "-b", "host", "-o", tiny), (USAGE, 9))
    yield Command("options/command", ("c" * 5000,), (USAGE,))
    yield Command("options/command_option", ("--" + "c" * 5000,), (USAGE,))
    yield Command("options/samples", ("profile", tiny, "--calibration", "s" * 5000, "-o", "p"), (USAGE,))
    yield Command("options/profile", ("quantize", tiny, "--profile", "s" * 5000, "-o", "p"), (USAGE,))


@_group
def settings(files: _Files) -> Iterator[Command]:
    """Yield commands in a folder with a hostile mcugen.toml, which must start nothing and write nothing."""
    model = models()[0].SerializeToString()
    for name, (text, *exits) in {
        "empty": (b"", USAGE, DONE),
        "binary": (bytes(range(256)), USAGE),
        "utf16": ('model = "net.onnx"'.encode("utf-16"), USAGE),
        "mark": (b"\xef\xbb\xbfmodel = 'net.onnx'", USAGE, DONE),
        "deep": (b"dim = " + b"[" * 20_000, USAGE),
        "closed": (b"dim = " + b"[" * 5000 + b"]" * 5000, USAGE),
        "dotted": (b"a." * 5000 + b"b = 1", USAGE),
        "tables": (b"[[model]]\n" * 5000, USAGE),
        "long": (b"#" * (1 << 22), USAGE),
        "digits": (b"cores = " + b"9" * 5000, USAGE),
        "hexadecimal": (b"cores = 0x" + b"f" * 5000, USAGE),
        "infinite": (b"min-sqnr = inf\nmodel = 'net.onnx'", USAGE, DONE),
        "no_number": (b"min-sqnr = nan\nmodel = 'net.onnx'", USAGE, DONE),
        "hexadecimals": (b"dim = [0x" + b"f" * 5000 + b"]", USAGE),
        "date": (b"name = 1979-05-27T07:32:00Z", USAGE),
        "twice": (b"cores = 1\ncores = 2", USAGE),
        "escape": (b'name = "\\u001b[31m"', USAGE),
        "null": (b'model = "net.onnx\\u0000"', USAGE),
        "key_escape": (b'"\\u001b[2J" = 1', USAGE),
        "key_long": (b"k" * 60_000 + b" = 1", USAGE),
        "key_empty": (b'"" = 1', USAGE),
        "key_help": (b"help = true", USAGE),
        "key_output": (b'output = "/tmp"', USAGE),
        "key_json": (b'json = "/etc/passwd"', USAGE),
        "key_force": (b"force = true", USAGE),
        "plugin": (b'plugin = ["evil.py"]', USAGE),
        "metric": (b'metric = "evil.py:f"', USAGE),
        "cluster": (b'cluster = "tcp://127.0.0.1:1"', USAGE),
        "library": (b'cmsis-nn-lib = "evil.a"', USAGE),
        "model_missing": (b'model = "../../../no/such"', MODEL),
        "model_option": (b'model = "--help"', MODEL),
        "model_device": (b'model = "/dev/zero"', USAGE, MODEL),
        "model_itself": (b'model = "mcugen.toml"', MODEL),
        "model_folder": (b'model = "."', MODEL),
        "model_long": (b'model = "' + b"m" * 50_000 + b'"', USAGE, MODEL),
        "board_option": (b"model = 'net.onnx'\nboard = '--plugin=evil.py'", USAGE),
        "board_device": (b"model = 'net.onnx'\nboard = '/dev/zero.toml'", USAGE),
        "board_itself": (b"model = 'net.onnx'\nboard = 'mcugen.toml'", USAGE),
        "bind_option": (b"model = 'net.onnx'\nbind = ['--plugin=evil.py']", USAGE),
        "bind_device": (b"model = 'net.onnx'\nbind = ['x=/dev/zero.npy']", USAGE),
        "many": (b"model = 'net.onnx'\ndim = [" + b"'N=1'," * 10_000 + b"]", USAGE, DONE),
        "places": (b"model = 'net.onnx'\nplace = [" + b"'a=b'," * 10_000 + b"]", USAGE),
        "training": (b"model = 'net.onnx'\ntrain = '" + b"h," * 20_000 + b"'", USAGE, DONE),
    }.items():
        folder = f"settings_{name}"
        (files.folder / folder).mkdir()
        (files.folder / folder / "net.onnx").write_bytes(model)
        (files.folder / folder / "evil.py").write_text("open('was_run', 'w')\n")
        (files.folder / folder / "mcugen.toml").write_bytes(text)
        yield Command(f"settings/{name}", ("inspect",), tuple(exits), folder)
        yield Command(f"settings/{name}_beside_a_model", ("inspect", "net.onnx"), (USAGE, DONE), folder)
        yield Command(f"settings/{name}_of_init", ("init", "net.onnx", "-b", "host"), (USAGE,), folder)
        yield Command(f"settings/{name}_left_out", ("--no-settings", "inspect", "net.onnx"), (DONE,), folder)


_LAYERS: dict[str, tuple[tuple[int, ...], tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "Conv": ((1, 8, 8, 8), ((8, 8, 3, 3), (8,)), {}),
    "ConvTranspose": ((1, 8, 4, 4), ((8, 2, 2, 2), (2,)), {"strides": [2, 2]}),
    "Gemm": ((1, 8), ((4, 8), (4,)), {"transB": 1}),
    "MatMul": ((2, 8), ((8, 4),), {}),
    "LSTM": ((2, 1, 3), ((1, 8, 3), (1, 8, 2)), {"hidden_size": 2}),
    "GRU": ((2, 1, 3), ((1, 6, 3), (1, 6, 2)), {"hidden_size": 2}),
    "BatchNormalization": ((1, 3, 4), ((3,), (3,), (3,), (3,)), {}),
    "LayerNormalization": ((1, 4), ((4,), (4,)), {}),
    "PRelu": ((1, 4), ((4,),), {}),
    "Clip": ((1, 4), ((), ()), {}),
    "Pow": ((1, 4), ((),), {}),
    "Div": ((1, 4), ((4,),), {}),
    "QuantizeLinear": ((1, 4), ((),), {}),
}
"""Operators with constants: shapes of input and constants, attributes."""


@_group
def numbers(files: _Files) -> Iterator[Command]:
    """Yield models whose constants are NaN, infinite or extreme, for each operator that packs constants."""
    boards = itertools.cycle(("host", "rp2040", "nrf52840", "corstone300", "esp32c3"))
    for op, (shape, constants, attributes) in _LAYERS.items():
        for name, value in _NUMBERS.items():
            arrays = {f"c{i}": np.ones(s, np.float32) for i, s in enumerate(constants)}
            arrays["c0"].reshape(-1)[0] = value
            node = _node(op, "x", *arrays, **attributes)
            file = files.write(f"{op}_{name}.onnx", _model([node], {"x": shape}, arrays).SerializeToString())
            command = ("compile", file, "-q", "-b", next(boards), "-o", f"numbers_{op}_{name}")
            yield Command(f"numbers/{op}_{name}", command, JUDGED)


_NUMBERS = {"nan": np.nan, "inf": np.inf, "minus": -np.inf, "most": 3.4e38, "least": 1e-45, "zero": -0.0}

_WIDTHS = {"FLOAT8E4M3FN": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8, "FLOAT4E2M1": 4, "FLOAT16": 16, "BFLOAT16": 16}


@_group
def narrow(files: _Files) -> Iterator[Command]:
    """Yield models with floats of at most 16 bits, wrongly stored or in unsuitable places."""
    for kind, bits in _WIDTHS.items():
        number = TensorProto.DataType.Value(kind)
        most = 5 * bits // 8 + (bits == 4)
        for name, change in {
            "exact": {"raw_data": bytes(most)},
            "ones": {"raw_data": b"\xff" * most},  # not a number, or the largest
            "short": {"raw_data": bytes(most - 1)},
            "long": {"raw_data": bytes(most + 1)},
            "none": {},
            "codes": {"int32_data": [0, 1, 2, 3, 4]},
            "codes_short": {"int32_data": [1]},
            "codes_wide": {"int32_data": [-(2**31), 2**31 - 1, 2**16, -1, 256]},
            "floats": {"float_data": [1.0] * 5},
            "texts": {"string_data": [b"1"] * 5},
            "claimed": {"raw_data": bytes(most), "dims": [2**40]},
            "negative": {"raw_data": bytes(most), "dims": [-5]},
        }.items():
            tensor = TensorProto(name="w", data_type=number, **{"dims": [5], **change})
            for use, nodes in {
                "cast": [_node("Cast", "w", to=1, out="v"), _node("Add", "x", "v")],
                "added": [_node("Add", "x", "w")],
                "dequantized": [_node("DequantizeLinear", "w", "s", out="v"), _node("Mul", "x", "v")],
                "zero_point": [_node("QuantizeLinear", "x", "s", "w", out="q"), _node("Identity", "q")],
            }.items():
                constants = {"w": tensor, "s": np.float32(0.5)}
                yield files.model(f"{kind}_{name}_{use}", _model(nodes, {"x": (1, 5)}, constants, opset=23))
        for op in ("MatMul", "Conv", "LSTM", "Softmax", "TopK", "Resize", "ArgMax", "Relu", "Concat", "Gather", "Pad"):
            model = _model([_node(op, "x", "x")], {"x": (1, 4)}, opset=23)
            model.graph.input[0].type.tensor_type.elem_type = number
            yield files.model(f"{kind}_of_{op}", model)


@_group
def training(files: _Files) -> Iterator[Command]:
    """Yield commands with hostile options of training on the device and of several cores."""
    dense, convolution, tiny = (files.write(f"{n}.onnx", models()[n].SerializeToString()) for n in (0, 1, 10))
    digits = "9" * 5000
    for name, (model, *given) in {
        "layers_negative": (dense, "--train", "last:-1"),
        "layers_none": (dense, "--train", "last:0"),
        "layers_many": (dense, "--train", f"last:{digits}"),
        "layers_superscript": (dense, "--train", "last:²"),
        "layer_twice": (dense, "--train", "h,h"),
        "layer_long": (dense, "--train", "l" * 50_000),
        "layers_long": (dense, "--train", "h," * 20_000),
        "layer_escape": (dense, "--train", "\x1b[31m"),
        "channels_long": (dense, "--train", "h[" + "1;" * 20_000 + "1]"),
        "channels_none": (dense, "--train", "h[]"),
        "train_weights": (dense, "--train", "last:1", "--train-weights", "w" * 50_000),
        "no_layer": (tiny, "--train", "last:1"),
        "loss": (dense, "--train", "last:1", "--loss", "l" * 50_000),
        "loss_alone": (dense, "--loss", "mae"),
        "optimizer": (dense, "--train", "last:1", "--optimizer", "o" * 50_000),
        "cores": (dense, "--cores", digits),
        "cores_none": (dense, "--cores", "0"),
        "cores_negative": (dense, "--cores", "-1"),
        "cores_three": (dense, "--cores", "3"),
        "cores_training": (dense, "--cores", "2", "--train", "last:1"),
        "convolution": (convolution, "--train", "last:1", "--loss", "mse"),
        "bias": (convolution, "--train", "bias", "--optimizer", "adam", "--loss", "huber"),
    }.items():
        command = ("compile", model, "-q", "-b", "rp2040", "-o", f"training_{name}", *given)
        yield Command(f"training/{name}", command, (DONE, USAGE, MODEL, UNSUPPORTED))
    data = files.write("unlabelled.npz", _zipped({"x.npy": _saved(np.ones((3, 1, 6), np.float32))}))
    for name, samples in {
        "missing": "no_such.npz",
        "empty": files.write("empty.npz", b""),
        "unlabelled": data,
        "labels": files.write(
            "labels.npz",
            _zipped(
                {"x.npy": _saved(np.ones((3, 1, 6), np.float32)), "labels.npy": _saved(np.asarray([2**62, -1, 9]))}
            ),
        ),
    }.items():
        lesson = ("report", dense, "-q", "-b", "rp2040", "--train", "last:1", "--lesson", samples)
        yield Command(f"training/lesson_{name}", lesson, (USAGE, MODEL))
    for name, address in {
        "nothing": "",
        "word": "c" * 5000,
        "scheme": "file:///etc/passwd",
        "port": f"tcp://127.0.0.1:{digits}",
        "escape": "tcp://\x1b[31m:1",
    }.items():
        shared = ("report", dense, "-q", "-b", "rp2040", "--data", data, "--cluster", address)
        yield Command(f"training/cluster_{name}", shared, (USAGE, 8) if address else (DONE, USAGE))


def _lite(kind: str = "ABS", count: int = 1, union: int = 0, **tensor: Any) -> LiteModel:
    """Return a .tflite model with operators in a row, each of one tensor; `tensor` says what their results are."""
    model = LiteModel()
    x = model.graph.input(4, name="x")
    for _ in range(count):
        y = model.graph.tensor(4, **tensor)
        model.graph.op(kind, [x], [y], union, {})
        x = y
    model.graph.output(x)
    return model


def _lite_changed(change: Callable[[LiteModel], object]) -> bytes:
    model = _lite()
    change(model)
    return model.data()


def _lite_loop() -> bytes:
    """Return a loop without an end."""
    model = LiteModel()
    judge, body = model.subgraph(), model.subgraph()
    first = judge.input(dtype="int32")
    goes_on = judge.tensor(dtype="bool")
    judge.op("LESS", [first, judge.const(2**31 - 1, "int32")], [goes_on])
    judge.output(goes_on)
    body.output(body.input(dtype="int32"))
    y = model.graph.tensor(dtype="int32")
    model.graph.op("WHILE", [model.graph.const(0, "int32")], [y], 93, {0: i32(1), 1: i32(2)})
    model.graph.output(y)
    return model.data()


def _lite_nested(depth: int) -> bytes:
    """Return bodies of control flow within one another, each with two uses of the next one."""
    model = LiteModel()
    graphs = [model.graph, *(model.subgraph() for _ in range(depth))]
    for number, graph in enumerate(graphs):
        condition, x = graph.input(dtype="bool"), graph.input(2)
        y = graph.tensor(2)
        if number < depth:
            graph.op("IF", [condition, condition, x], [y], 92, {0: i32(number + 1), 1: i32(number + 1)})
        else:
            graph.op("ABS", [x], [y])
        graph.output(y)
    return model.data()


def _lite_labels(name: str, files: bytes) -> bytes:
    """Return a model whose metadata name a file of labels, with an archive behind it."""
    model = _lite()
    output: dict[int, Any] = {6: [{0: name, 2: i8(2)}]}
    model.metadata = {"TFLITE_METADATA": flatbuffer({3: [{3: [output]}]}, b"M001")}
    return model.data() + files


@_group
def tflite(files: _Files) -> Iterator[Command]:
    """Yield .tflite files that are damaged, inconsistent or huge, or whose names and metadata are hostile."""
    small, shared = _lite().data(), _lite().graph.operators[0]
    for name, data in {
        "header": b"\x20\0\0\0TFL3",
        "ones": b"\xff\xff\xff\xffTFL3" + b"\xff" * 64,
        "zeros": b"\0\0\0\0TFL3" + bytes(4096),
        "half": small[: len(small) // 2],
        "version": small.replace((3).to_bytes(4, "little"), (4).to_bytes(4, "little"), 1),
        "unknown": _lite("STABLEHLO_ADD").data(),
        "custom": _lite("*/\x1b[31m" + "c" * 50_000).data(),
        "names": _lite(name="*/\n#error\x1b[31m\0" + "n" * 50_000).data(),
        "type": _lite(_1=i8(99)).data(),
        "scale_nan": _lite(scale=float("nan")).data(),
        "scale_zero": _lite(dtype="int8", scale=0.0).data(),
        "zero_point": _lite(dtype="int8", scale=1.0, zero=2**40).data(),
        "options": _lite(union=9).data(),
        "huge": _lite(_0=Numbers("i", [2**31 - 1] * 8)).data(),
        "negative": _lite(_0=Numbers("i", [-4])).data(),
        "rank": _lite(_0=Numbers("i", [1] * 10_000)).data(),
        "deep": _lite(count=5000).data(),
        "many": _lite(count=30_000).data(),
        "shared": _lite_changed(lambda m: setattr(m.graph, "operators", [shared] * 50_000)),
        "wide": _lite_changed(lambda m: m.graph.operators[0].update({1: Numbers("i", [0] * 500_000)})),
        "input": _lite_changed(lambda m: m.graph.operators[0].update({1: Numbers("i", [77])})),
        "code": _lite_changed(lambda m: m.graph.operators[0].update({0: Number("I", 2**32 - 1)})),
        "cycle": _lite_changed(lambda m: m.graph.operators[0].update({1: Numbers("i", [1])})),
        "endless": _lite_loop(),
        **{f"nested_{depth}": _lite_nested(depth) for depth in (2, 11, 40)},
        "labels_missing": _lite_labels("labels.txt", b""),
        "labels_path": _lite_labels("../../../etc/passwd", _zipped({"../../../etc/passwd": b"a\nb\nc\nd"})),
        "labels_bomb": _lite_labels("l", _zipped({"l": b"\n" * (1 << 28)})),
        "labels_escape": _lite_labels("l", _zipped({"l": b'\x1b[31m\n*/\n"\n??/'})),
        "labels_entries": _lite_labels("l", _zipped({str(n): b"" for n in range(60_000)})),
    }.items():
        path = files.write(f"{name}.tflite", data)
        yield Command(f"tflite/{name}", ("inspect", path), JUDGED)
        command = ("compile", path, "-q", "-b", "host", "--helpers", "-o", f"tflite_{name}")
        yield Command(f"tflite/{name}_compiled", command, JUDGED)


def corpus(folder: Path, groups: tuple[str, ...] = ()) -> list[Command]:
    """Return the commands of all groups, or of some, and write their files into `folder`."""
    return [case for name, make in GROUPS.items() if not groups or name in groups for case in make(folder)]


def main(
    group: Annotated[list[str] | None, typer.Option(help="only this one; may be given again")] = None,
    write: Annotated[Path | None, typer.Option(help="writes the files here, and runs nothing")] = None,
    pattern: Annotated[str, typer.Option("--filter", help="part of the names")] = "",
    slowest: Annotated[int, typer.Option(help="so many are listed")] = 10,
    verbose: Annotated[bool, typer.Option(help="print every outcome")] = False,
) -> None:
    """Print the commands that behave wrongly; exit code 1 if there are any."""
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for case in corpus(write, tuple(group or ())):
            print(case.name, *case.arguments)
        return
    warm_up()
    start = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        cases = [c for c in corpus(Path(name), tuple(group or ())) if pattern in c.name]
        for outcome in run_all(cases, Path(name)):
            outcomes.append(outcome)
            if outcome.wrong or verbose:
                state = outcome.wrong or outcome.code
                print(f"{outcome.name}: {state}, {outcome.seconds:.1f} s: {outcome.message[:300]}", flush=True)
    for outcome in sorted(outcomes, key=lambda o: -o.seconds)[:slowest]:
        print(f"{outcome.seconds:6.1f} s  {outcome.name}: exit {outcome.code}")
    bad = sum(bool(o.wrong) for o in outcomes)
    seconds = sum(o.seconds for o in outcomes)
    print(f"{len(outcomes)} cases, {bad} wrong, {time.monotonic() - start:.0f} s, {seconds:.0f} s of CPU")
    raise typer.Exit(int(bad > 0))


if __name__ == "__main__":
    typer.run(main)
