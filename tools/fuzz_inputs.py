# SPDX-License-Identifier: Apache-2.0
"""Feeds mcugen damaged and made-up input of every kind: no traceback, no crash, no hang, whatever it reads.

Each seed is one command line with the files that it names. The kind follows from the seed: models (bytes, messages and
nodes), .npz, .npy, PNG, boards, profiles, values to bind, options, and the files of `fuzz_files`. `--first` and
`--count` choose seeds.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import onnx
import onnx.parser
import typer
from fuzz_files import FILES, WITHIN
from fuzz_values import DIGITS, FLOATS, INTS, WORDS, Maker, change_bytes
from google.protobuf.message import Message
from onnx import TensorProto, helper
from sandbox import Command, Outcome, run_all, run_mcugen

from mcugen.core.resources import resource_dir
from mcugen.quantization.profile import RANGE_HISTOGRAM_BINS

BATCH = 500
"""Commands of one process: it is forked anew for the next ones."""

_HEAD = '<ir_version: 10, opset_import: ["": {}, "com.microsoft": 1, "ai.onnx.ml": 3, "own": 1]>'

TEXTS = (
    "g (float[1,6] x) => (float[1,4] y) <float[6,2] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[2] b = {1,2}> "
    "{ h = MatMul(x, w) i = Add(h, b) j = Tanh(i) y = Concat<axis=1>(i, j) }",
    "g (float[1,2,6,6] x) => (float[1,3,3,3] y) <float[3,2,1,1] w = {1,2,3,4,5,6}, float[3] b = {0,1,2}> "
    "{ c = Conv<pads=[0,0,0,0]>(x, w, b) r = Clip(c) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) }",
    "g (float[1,4] x) => (float[1,4] y) <float s = {0.1}, int8 z = {3}, int8[4,4] w = "
    "{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float t = {0.2}, int8 o = {0}> { q = QuantizeLinear(x, s, z) "
    "d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, t, o) m = MatMul(d, v) r = QuantizeLinear(m, t, z) "
    "y = DequantizeLinear(r, t, z) }",
    "g (float[3,1,2] x) => (float[3,1,1,2] y, float[1,1,2] h) <float[1,8,2] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, "
    "float[1,8,2] r = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> { y, h = LSTM<hidden_size=2>(x, w, r) }",
    "g (float[4] x, bool c) => (float[4] y) { y = If<then_branch = t () => (float[4] a) { a = Neg(x) }, "
    "else_branch = e () => (float[4] b) { b = Relu(x) }>(c) }",
    "g (float[2] x) => (float[2] y, float[3,2] z) <int64 n = {3}, bool c = {1}> "
    "{ y, z = Loop<body = b (int64 i, bool p, float[2] s) => (bool q, float[2] t, float[2] u) "
    "{ q = Identity(p) t = Add(s, s) u = Neg(t) }>(n, c, x) }",
    "g (float[N,4] x) => (float[N,2] y, int64[K] k) <int64[2] s = {2,2}> "
    "{ a, b = Split<axis=1>(x, s) y = Mul(a, b) k0 = NonZero(y) k1 = Flatten(k0) k = Size(k1) }",
    "g (uint8[1,3,3,1] x) => (float[1,9] y) <int64[2] s = {1,9}, int64[4] p = {0,3,1,2}> "
    "{ c = Cast<to=1>(x) t = Transpose<perm=[0,3,1,2]>(c) r = Reshape(t, s) y = Softmax<axis=1>(r) }",
    "g (float[1,4] x) => (float[1,4] y) { a = own.f(x) y = own.f(a) } "
    '<domain: "own", opset_import: ["": 17]> f (p) => (q) { r = Relu(p) q = Add(r, p) }',
    "g (float[1,4] x) => (float[1,4] y) <float[4] g = {1,2,3,4}> "
    "{ a = com.microsoft.FusedMatMul<alpha=0.5>(x, g) b = LayerNormalization(x, g) c = HardSwish(b) y = Add(c, b) }",
    "g (float[1,4] x) => (float[1,4] y, float4e2m1[1,4] n) <float8e4m3fn[4] w = {1, 2, 56, 126}, float s = {0.5}, "
    "float8e5m2 z = {0}> { v = Cast<to=1>(w) a = Mul(x, v) q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z) "
    "n = Cast<to=23>(a) }",
    "g (float16[1,6] x) => (float16[1,2] y) <float16[6,2] w = {1,2,3,4,5,6,7,8,9,1,2,3}, bfloat16[1,2] b = {1,2}> "
    "{ h = MatMul(x, w) c = Cast<to=10>(b) y = Add(h, c) }",
    'g (float[1,3] x) => (int64[1] y) { n = ai.onnx.ml.Normalizer<norm="L2">(x) y = ArgMax<axis=1, keepdims=0>(n) }',
)
"""Small models that reach many parts of the compiler."""

# --------------------------------------------------------------------------------------------------- models


@functools.cache
def models() -> tuple[onnx.ModelProto, ...]:
    """Return the models of TEXTS, some of them with an older or a newer opset."""
    opsets = {1: 9, 10: 23}
    return tuple(onnx.parser.parse_model(_HEAD.format(opsets.get(n, 17)) + text) for n, text in enumerate(TEXTS))


def model_bytes(make: Maker) -> tuple[str, ...]:
    """Return a command with a model file whose bytes are damaged."""
    data = make.random.choice(models()).SerializeToString()
    return _compiled(make, make.write(".onnx", make.damaged(data)))


def model_messages(make: Maker) -> tuple[str, ...]:
    """Return a command with a model in which some protobuf messages are changed."""
    model = onnx.ModelProto()
    model.CopyFrom(make.random.choice(models()))
    for _ in range(make.random.choice((1, 1, 2, 3))):
        damage_message(model, make.random)
    return _compiled(make, make.write(".onnx", model.SerializeToString()))


def _compiled(make: Maker, model: str) -> tuple[str, ...]:
    options = make.random.choice(((), (), ("--dim", "N=2"), ("-b", "rt1060"), ("--optimize", "ram"), ("--ir", "lir")))
    return ("inspect", model, *options)


def damage_message(root: Message, random: Random) -> None:
    """Change a field of a random message in the tree."""
    message = root
    while True:
        inner = [m for field, value in message.ListFields() if field.message_type for m in _items(value)]
        if not inner or random.random() < 0.25:
            break
        message = random.choice(inner)
    field = random.choice(list(message.DESCRIPTOR.fields))
    if random.random() < 0.7 and message.ListFields():
        field = random.choice(message.ListFields())[0]
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        _damage_list(message, field, random)
    elif field.message_type:
        random.choice((message.ClearField, lambda name: getattr(message, name).SetInParent()))(field.name)
    elif random.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), random))


def _items(value: Any) -> list[Any]:
    return [value] if isinstance(value, Message) else list(value)


def _damage_list(message: Message, field: Any, random: Random) -> None:
    items = getattr(message, field.name)
    kind = random.randrange(5)
    at = random.randrange(len(items)) if items else 0
    if kind == 0 and items:
        del items[at]
    elif kind == 1 and items:
        for _ in range(random.choice((1, 1, 3, 500))):
            items.append(items[at]) if not field.message_type else items.add().CopyFrom(items[at])
    elif kind == 2:
        message.ClearField(field.name)
    elif field.message_type:
        if len(items) > 1:
            other = random.randrange(len(items))
            copy = type(items[at])()
            copy.CopyFrom(items[at])
            items[at].CopyFrom(items[other])
            items[other].CopyFrom(copy)
    elif items:
        items[at] = _scalar(field, items[at], random)
    else:
        items.append(_scalar(field, "", random))


def _scalar(field: Any, old: Any, random: Random) -> Any:
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return random.choice(FLOATS)
    if field.type == field.TYPE_STRING:
        return random.choice((*WORDS, *OPERATORS, f"{old}x"))
    if field.type == field.TYPE_BYTES:
        data = bytearray(old or b"")
        change_bytes(data, random)
        return bytes(data)
    if field.type == field.TYPE_ENUM:
        return random.choice([v.number for v in field.enum_type.values])
    low, high = (0, 2**64 - 1) if field.type == field.TYPE_UINT64 else (-(2**63), 2**63 - 1)
    if field.type == field.TYPE_INT32:
        low, high = -(2**31), 2**31 - 1
    value = random.choice((*INTS, *range(30), int(old or 0) + 1, int(old or 0) - 1))
    return max(low, min(high, value))


SCHEMAS = sorted(
    (s for s in onnx.defs.get_all_schemas() if not s.deprecated and s.domain in ("", "ai.onnx.ml")),
    key=lambda s: (s.domain, s.name),
)
OPERATORS = tuple(s.name for s in SCHEMAS)


def model_nodes(make: Maker) -> tuple[str, ...]:
    """Return a command with a model of random operators, inputs and attributes."""
    random = make.random
    kinds = (
        *(TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8),
        *(TensorProto.BOOL, random.choice(_NARROW)),
    )
    shapes = ((1, 4), (4,), (2, 3), (1, 2, 4, 4), (), (1, 3, 5), (0, 2))
    inputs = [helper.make_tensor_value_info(f"x{i}", random.choice(kinds), random.choice(shapes)) for i in range(3)]
    constants = [_constant(f"c{i}", random) for i in range(4)]
    names, nodes = [v.name for v in inputs] + [c.name for c in constants], []
    for number in range(random.choice((1, 1, 2, 4))):
        schema = random.choice(SCHEMAS)
        most = min(schema.max_input, max(schema.min_input, 1) + 3)
        count = random.randint(min(schema.min_input, most), most)
        results = [
            f"r{number}_{i}" for i in range(random.randint(max(schema.min_output, 1), min(schema.max_output, 3)) or 1)
        ]
        given = [random.choice(names) if random.random() < 0.95 else "" for _ in range(count)]
        attributes = {
            n: v
            for n, a in schema.attributes.items()
            if a.required or random.random() < 0.3
            for v in [_attribute(a, random)]
        }
        node = helper.make_node(schema.name, given, results, f"n{number}", domain=schema.domain)
        node.attribute.extend(helper.make_attribute(n, v) for n, v in attributes.items() if v is not None)
        nodes.append(node)
        names += results
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opset = random.choice((7, 11, 13, 17, 21, onnx.defs.onnx_opset_version()))
    model = helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    )
    return _compiled(make, make.write(".onnx", model.SerializeToString()))


_NARROW = tuple(
    number
    for name, number in TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT4", "FLOAT6", "FLOAT16", "BFLOAT16", "INT4", "UINT4", "INT2", "UINT2"))
)


def _constant(name: str, random: Random) -> TensorProto:
    kind = random.randrange(5)
    shape = random.choice(((), (1,), (2,), (4,), (4, 2), (3, 2, 1, 1)))
    count = int(np.prod(shape))
    if kind == 4:  # narrow ones, of any bits, mostly as many as there should be
        data = random.randbytes(random.choice((count, count, 2 * count, (count + 1) // 2, 0)))
        return TensorProto(name=name, data_type=random.choice(_NARROW), dims=shape, raw_data=data)
    if kind == 0:
        return helper.make_tensor(name, TensorProto.INT64, shape, [random.choice(INTS) for _ in range(count)])
    if kind == 1:
        return helper.make_tensor(name, TensorProto.INT64, shape, [random.randrange(-1, 5) for _ in range(count)])
    if kind == 2:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, [random.choice(FLOATS) for _ in range(count)])
    return helper.make_tensor(name, TensorProto.INT8, shape, [random.randrange(-128, 128) for _ in range(count)])


def _attribute(schema: Any, random: Random) -> Any:
    ints = [random.choice((*INTS, 1, 1, 2, 0)) for _ in range(random.randrange(1, 5))]
    values: dict[str, Any] = {
        "INT": ints[0],
        "INTS": ints,
        "FLOAT": random.choice(FLOATS),
        "FLOATS": [random.choice(FLOATS) for _ in ints],
        "STRING": random.choice((*WORDS[:4], "SAME_UPPER", "linear", "constant", "ij,jk->ik", "LEAF", "add")),
        "STRINGS": [random.choice(WORDS[:4]) for _ in ints],
        "TENSOR": _constant("t", random),
        "GRAPH": random.choice(models()).graph,
    }
    return values.get(schema.type.name)


# -------------------------------------------------------------------------------------------------- samples


@functools.cache
def _smallest() -> bytes:
    """Write the smallest model, for commands in which another file is damaged."""
    return onnx.parser.parse_model(
        _HEAD.format(17) + "g (float[1,6] x) => (float[1,6] y) { y = Relu(x) }"
    ).SerializeToString()


def _profiled(make: Maker, samples: str, model: bytes = b"", *options: str) -> tuple[str, ...]:
    file = make.write(".onnx", model or _smallest())
    return ("profile", file, "--calibration", samples, "-o", f"{make.name}.json", *options)


def _header(make: Maker) -> bytes:
    """Return a .npy file with a random header."""
    random = make.random
    kind = random.choice(
        ("<f4", "<f8", "|u1", "|b1", "<i8", ">f4", "|O", "<U5", "|S0", "|V4", "<M8[s]", "<c8", "?", "<f16")
    )
    shape = tuple(random.choice((*INTS, 1, 1, 2, 6, 6)) for _ in range(random.randrange(5)))
    text = random.choice(
        (
            repr({"descr": kind, "fortran_order": random.random() < 0.3, "shape": shape}),
            repr({"descr": [("a", kind), ("b", kind)], "fortran_order": False, "shape": shape}),
            "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "(" * 3000 + ")}",
            "{" * 500,
            repr({"descr": kind, "shape": shape}),
        )
    )
    version = random.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text) % 65536)
    return b"\x93NUMPY" + version + length + text.encode() + random.randbytes(random.choice((0, 24, 48, 240)))


def _array(make: Maker) -> bytes:
    random = make.random
    file = io.BytesIO()
    shape = random.choice(((5, 1, 6), (5, 6), (0, 1, 6), (1, 6), (), (6, 5, 1), (2, 1, 6), (1, 1, 1, 6)))
    kind = random.choice(
        (np.float32, np.float32, np.float64, np.uint8, np.int64, np.bool_, np.complex64, "U3", "V3", np.float16)
    )
    data = np.full(shape, random.choice(FLOATS)).astype(np.float32)
    with np.errstate(all="ignore"):
        np.save(file, data.astype(kind) if random.random() < 0.5 else np.ones(shape, np.float32))
    return file.getvalue()


def npy(make: Maker) -> tuple[str, ...]:
    """Return a command with a damaged .npy file."""
    data = make.random.choice((_header, _array, lambda m: m.damaged(_array(m))))(make)
    return _profiled(make, make.write(".npy", data))


def npz(make: Maker) -> tuple[str, ...]:
    """Return a command with a damaged .npz archive."""
    random, file = make.random, io.BytesIO()
    kind = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(file, "w") as archive:
        for _ in range(random.randrange(4)):
            name = random.choice(("x.npy", "x.npy", "x_uint8.npy", "labels.npy", "y.npy", "x", "../x.npy", "z" * 300))
            data = random.choice((_array, _array, _header, lambda m: m.damaged(_array(m)), lambda m: b"no array"))(make)
            if name not in archive.namelist():
                archive.writestr(zipfile.ZipInfo(name), data, kind)  # without the time of day
    data = file.getvalue()
    return _profiled(make, make.write(".npz", data if random.random() < 0.5 else make.damaged(data)))


def png(make: Maker) -> tuple[str, ...]:
    """Return a command with a damaged picture in a folder."""
    random = make.random
    width, height = (random.choice((1, 2, 3, 3, 0, 5000, 2**31 - 1)) if random.random() < 0.3 else 3 for _ in range(2))
    depth, color = random.choice(((8, 0), (8, 2), (8, 6), (1, 0), (16, 0), (16, 2), (4, 3), (8, 3), (8, 4), (3, 7)))
    pixels = zlib.compress(bytes(random.choice((12, 30, 48, 4096, 1 << 20))))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, random.choice((0, 0, 1))))]
    if random.random() < 0.4:
        bomb = zlib.compress(bytes(1 << 22))
        extra = (
            (b"PLTE", bytes(12)),
            (b"tRNS", bytes(3)),
            (b"zTXt", b"a\0\0" + bomb),
            (b"iCCP", b"a\0\0" + bomb),
            (b"IDAT", b""),
        )
        chunks.append(random.choice(extra))
    chunks += [(b"IDAT", pixels), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    folder = make.folder / make.name
    folder.mkdir(exist_ok=True)
    (folder / "a.png").write_bytes(data if random.random() < 0.6 else make.damaged(data))
    steps = random.choice(((), ("--preprocess", "resize=3x3"), ("--preprocess", "gray, scale=1/255")))
    return _profiled(make, make.name, models()[7].SerializeToString(), *steps)


# ------------------------------------------------------------------------------------- boards and profiles


def board(make: Maker) -> tuple[str, ...]:
    """Return a command with a damaged board file."""
    random = make.random
    files = sorted(resource_dir("boards").glob("*.toml"))
    lines = random.choice(files).read_text().splitlines()
    for _ in range(random.choice((1, 2, 3))):
        at = random.randrange(len(lines))
        key = lines[at].partition("=")[0] or "key "
        lines[at] = random.choice(
            (*_TOML, f"{key}= {random.choice(_TOML_VALUES)}", f"{key}= {random.choice(_TOML_VALUES)}")
        )
    data = "\n".join(lines).encode()
    file = make.write(".toml", data if random.random() < 0.7 else make.damaged(data))
    if random.random() < 0.7:
        return ("boards", "show", file)
    return ("inspect", make.write(".onnx", _smallest()), "-b", file)


_TOML_VALUES = (
    *("1", "-1", "0", '""', '"rp2040"', "true", "[]", "[1]", '["dsp"]', '["fpu64", "mve"]', "{}", "[[]]"),
    *("1e400", "nan"),
    *("9" * 5000, "0x" + "f" * 5000, "[" * 5000, "[" * 3000 + "]" * 3000, "{a=" * 3000, '"' + "a" * 5000 + '"'),
    *("1979-05-27T07:32:00Z", "4294967295", "4294967296", "0xffffffff", '"\\u001b[31m"', "a.b.c"),
    "99999999999999999999",
)
_TOML = (
    *("", "[[memories]]", "[memories]", "x = 1", "inherits = 'self'", "abstract = true", "a." * 2000 + "b = 1"),
    "[" * 3000,
)


def profile(make: Maker) -> tuple[str, ...]:
    """Return a command with a damaged profile of ranges."""
    random = make.random
    tensor = {"lows": [-1.0], "highs": [1.0], "means": [0.0] * 2, "histogram": [1] * RANGE_HISTOGRAM_BINS}
    document: dict[str, Any] = {"version": 1, "sha256": "0" * 64, "samples": 1, "tensors": {"x": tensor, "y": tensor}}
    values = (
        *(None, True, -1, 0, 2**64, 1e39, float("nan"), "", "x" * 3000, [], [[]], {}, {"x": None}),
        [1] * RANGE_HISTOGRAM_BINS,
    )
    place = random.choice((document, document["tensors"], tensor))
    place[random.choice([*place, "other"])] = random.choice(values)
    data = json.dumps(document).encode()
    whole = (
        *(b"[" * 100_000, b"", b"null", b'{"version": 1' * 3000, b"1" * 10_000, b'"' + b"\\u" * 99, b"{}" * 9),
        b"\xff\xfe",
    )
    chosen = random.choice((data, make.damaged(data), random.choice(whole)))
    return (
        "quantize",
        make.write(".onnx", _smallest()),
        "--profile",
        make.write(".json", chosen),
        "-o",
        f"{make.name}.q",
    )


# -------------------------------------------------------------------------------------------------- options


def bind(make: Maker) -> tuple[str, ...]:
    """Return a command that binds an input to a random value."""
    random = make.random
    if random.random() < 0.5:
        value = make.write(
            ".npy", random.choice((_header, _array, lambda m: m.damaged(_array(m)), lambda m: b""))(make)
        )
    else:
        texts = (
            *("[" * 3000, "[" * 900 + "]" * 900, "9" * 5000, "[1e400]", "NaN", "{}", '"x"', "[[1], [1, 2]]"),
            *("null", "[[1,2,3,4,5,6]]", "true", "[]", "1e5", "[1,", ""),
        )
        value = random.choice(texts)
    return ("inspect", make.write(".onnx", _smallest()), "--bind", f"{random.choice(('x', 'x', 'w', ''))}={value}")


def options(make: Maker) -> tuple[str, ...]:
    """Return a command with random options and values."""
    random = make.random
    command = random.choice(
        ("inspect", "inspect", "compile", "profile", "quantize", "boards", "operators", "version", "x" * 3000)
    )
    model = models()[random.choice((0, 6, 5))].SerializeToString()
    given = [command, make.write(".onnx", model)][: 1 if command in ("boards", "operators", "version") else 2]
    if command in ("compile", "profile", "quantize"):
        given += ["-o", random.choice((f"{make.name}.out", f"{make.name}.out", "o" * 300))]
    if command == "compile":
        given += ["-b", random.choice(("host", "rt1060", "b" * 5000, "x/y", ".toml", "cortex-m4", "nrf52840"))]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        given += random.choice(_OPTIONS)(random)
    return tuple(text.replace("\0", "") for text in given)


def _pair(name: str, separator: str = "=") -> Callable[[Random], list[str]]:
    words = (*WORDS, "N", "K", "T", "x", "arena", "weights", "hot-weights", "Tanh", "auto")
    values = (
        *WORDS,
        *DIGITS,
        *("1..4", "4..1", f"1..{'9' * 5000}", "int8", "dtcm", "dtcm:9", f"dtcm:{'9' * 5000}", "float32"),
    )
    return lambda r: [name, r.choice((r.choice(words), f"{r.choice(words)}{separator}{r.choice(values)}"))]


def _plain(name: str, *values: str) -> Callable[[Random], list[str]]:
    return lambda r: [name, r.choice((*values, *values, *WORDS, *DIGITS))]


_OPTIONS: tuple[Callable[[Random], list[str]], ...] = (
    *(_pair("--dim"), _pair("--layer"), _pair("--place"), _pair("--state", ":"), _pair("--bind")),
    *(_plain("--max-ram", "20KB", "1 M", "99999999999M"), _plain("--max-flash", "1K"), _plain("--optimize", "ram")),
    *(_plain("--name", "main", "mcugen"), _plain("--kernel", "conv2d_s8"), _plain("--kernels", "auto", "cmsis-nn")),
    *(_plain("--preprocess", "resize=3x3", "scale=1/0", "mean=1;2"), _plain("--pixel-scale", "0.5")),
    *(_plain("--precision", "int8", "auto"), _plain("--method", "minmax"), _plain("--without", "rounding")),
    *(_plain("--metric", "top1", "x.py:f"), _plain("--min-sqnr", "20"), _plain("--max-accuracy-drop", "1")),
    *(
        _plain("--dump-after", "all"),
        _plain("--plugin", "missing.py"),
        _plain("--json", "-"),
        _plain("--data", "none.npz"),
    ),
    *(_plain("--cmsis-nn-lib", "/"), _plain("--ir", "hir"), _plain("--svg", "s.svg"), lambda _: ["--memory"]),
    *(_plain("--cores", "1", "2"), _plain("--train", "last:1", "bias"), _plain("--loss", "mae")),
    *(_plain("--cluster", "local:", "tcp://"), _plain("--lesson", "none.npz"), lambda _: ["--float16-weights"]),
    *(lambda _: ["--stream-input"], lambda _: ["--weights-blob"], lambda r: [f"--{r.choice(WORDS)}"]),
)


MAKERS: tuple[Callable[[Maker], tuple[str, ...]], ...] = (
    *(model_bytes, model_messages, model_nodes, npz, npy, png, board, profile, bind, options, *FILES),
)
"""By the seed, in turn."""


def command(seed: int, folder: Path) -> Command:
    """Return the command line of a seed, and write its files into `folder`."""
    maker = Maker(Random(f"input {seed}"), folder, f"i{seed}")
    make = MAKERS[seed % len(MAKERS)]
    return Command(f"{seed} {make.__name__}", make(maker), within=maker.name if make in WITHIN else "")


def check(seeds: Sequence[int], folder: Path) -> list[Outcome]:
    """Run the command lines of some seeds."""
    return list(run_all([command(seed, folder) for seed in seeds], folder))


def warm_up() -> None:
    """Load what all commands need: templates, tables and ONNX's function bodies. Processes are forked later."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "m.onnx"
        file.write_bytes(_smallest())
        run_mcugen(("compile", str(file), "-q", "-b", "rt1060", "-o", str(Path(name) / "out")))


def fuzz(
    first: Annotated[int, typer.Option(help="seed")] = 0,
    count: Annotated[int, typer.Option(help="of seeds")] = 1000,
    only: Annotated[str, typer.Option(help="one kind of input, by its name in MAKERS")] = "",
    keep: Annotated[Path | None, typer.Option(help="folder for the files of what goes wrong")] = None,
    verbose: Annotated[bool, typer.Option(help="print every outcome")] = False,
) -> None:
    """Print the command lines that fail; exit code 1 if there are any."""
    warm_up()
    codes: Counter[tuple[str, int]] = Counter()
    bad, start = 0, time.monotonic()
    seeds = [s for s in range(first, first + count) if not only or MAKERS[s % len(MAKERS)].__name__ == only]
    for at in range(0, len(seeds), BATCH):
        with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
            for outcome in check(seeds[at : at + BATCH], Path(name)):
                codes[outcome.name.split()[1], outcome.code] += 1
                if outcome.wrong:
                    bad += 1
                    print(f"{outcome.name}: {outcome.wrong}: {outcome.message[:600]}", flush=True)
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        print("   ", command(int(outcome.name.split()[0]), keep).arguments)
                elif verbose:
                    print(f"{outcome.name}: {outcome.code} {outcome.seconds:.2f} s {outcome.message[:200]}")
    for (kind, code), number in sorted(codes.items()):
        print(f"{kind:16} exit {code:3}: {number:7,}")
    print(f"seeds {first} to {first + count - 1}: {bad} wrong, {time.monotonic() - start:.0f} s")
    raise typer.Exit(int(bad > 0))


if __name__ == "__main__":
    typer.run(fuzz)
