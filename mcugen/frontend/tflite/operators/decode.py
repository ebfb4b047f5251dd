# SPDX-License-Identifier: Apache-2.0
"""Compressed weights of TensorFlow Lite Micro (its custom operator TFLM_DECODE), which become constants.

The second tensor of each pair of inputs begins with 16 bytes: the kind of compression, a version, and at byte 4 the
values of the kind. Tables follow. Bits are read from the highest of a byte on.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from mcugen.frontend.tflite.model import TfliteTensor
from mcugen.frontend.tflite.node import TfliteNode, tflite_operator
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Refusal

_HEADER_BYTES = 16


class Compression(IntEnum):
    """Kinds of compression."""

    TABLE = 0
    HUFFMAN = 1
    PRUNED = 2


@tflite_operator("TFLM_DECODE", becomes="a constant", limits="no custom compression")
def _build_decode(node: TfliteNode) -> None:
    node.require(len(node.operator.inputs) == 2 * len(node.operator.outputs), "inputs that are no pairs")
    for index in range(len(node.operator.outputs)):
        data, header = (_bytes(node.constant_input(2 * index + n)) for n in (0, 1))
        node.require(len(header) >= _HEADER_BYTES and header[1] == header[4] == 1, "another version of compression")
        if header[0] not in {*Compression}:
            raise Refusal("weights must have a known compression", f"kind {header[0]}", "compress them otherwise")
        decode = _DECODERS[Compression(header[0])]
        array = decode(node, node.output(index), data, header)
        node.make_constant(array, index)


def _bytes(tensor: TfliteTensor) -> Array:
    assert tensor.content is not None
    return np.frombuffer(tensor.content, np.uint8)


def _channels(node: TfliteNode, tensor: TfliteTensor) -> Array:
    """Return the number of the channel of each element; 0 if the tensor has one scale."""
    scales = tensor.quantization
    count = len(scales.scales) if scales is not None else 1
    if scales is None or count == 1:
        return np.zeros(tensor.count, np.int64)
    node.require(scales.axis in (0, len(tensor.shape) - 1), f"axis {scales.axis} of channels")
    if scales.axis:
        return np.arange(tensor.count) % count
    return np.arange(tensor.count) // (tensor.count // count)


def _table(node: TfliteNode, tensor: TfliteTensor, data: Array, header: Array) -> Array:
    """Return the elements whose places in a table of their channel are stored."""
    width, stride, kind = int(header[5]) & 7, int(header[6]), tensor.type.array
    node.require(width > 0 and tensor.count * width <= 8 * len(data), "too few bits")
    bits = np.unpackbits(data, count=tensor.count * width).reshape(-1, width)
    places = bits @ (1 << np.arange(width - 1, -1, -1))
    places = places + stride * _channels(node, tensor)
    values = _values(header, kind)
    node.require(not len(places) or int(places.max()) < len(values), "a place behind the table")
    array: Array = values[places]
    return array


def _values(header: Array, kind: np.dtype) -> Array:
    """Return the numbers behind the header."""
    values = header[_HEADER_BYTES:]
    return values[: len(values) // kind.itemsize * kind.itemsize].copy().view(kind.newbyteorder("<")).astype(kind)


def _pruned(node: TfliteNode, tensor: TfliteTensor, data: Array, header: Array) -> Array:
    """Return the elements of which those that are not zero are stored, and a bit for each."""
    node.require(tensor.count <= 8 * len(data), "too few bits")
    is_stored = np.unpackbits(data, count=tensor.count).astype(bool)
    values = _values(header, tensor.type.array)
    node.require(int(is_stored.sum()) <= len(values), "too few values")
    zeros = np.asarray(tensor.quantization.zero_points if tensor.quantization is not None else (0,))
    array = zeros[_channels(node, tensor)].astype(tensor.type.array)
    array[is_stored] = values[: is_stored.sum()]
    return array


def _huffman(node: TfliteNode, tensor: TfliteTensor, data: Array, header: Array) -> Array:
    """Return the elements whose code words are stored, by tables of the bits that come next.

    An entry of a table is a symbol, with the number of bits that belong to it, or leads to a further table, with the
    number of bits less 1 that choose one of its entries. The highest bit tells which, the next four are the number.
    """
    size = 32 if header[5] & 1 else 16
    table = _values(header, np.dtype(f"uint{size}")).tolist()
    is_symbol, low = 1 << (size - 1), size - 5
    bits = _BitReader(bytes(data))
    symbols = np.zeros(tensor.count, np.int64)
    for n in range(tensor.count):
        begin, width = bits.place, (int(header[5]) >> 4) + 1
        place = bits.take(width)
        entry = table[place] if place < len(table) else 0
        while not entry & is_symbol:
            width = (entry >> low & 15) + 1
            place += (entry & (1 << low) - 1) + bits.take(width)
            node.require(place < len(table) and bits.place <= bits.end, "a code word without a symbol")
            entry = table[place]
        bits.place -= max(width - (entry >> low & 15), 0)
        node.require(begin < bits.place <= bits.end, "code words behind the end")
        symbols[n] = entry & (1 << low) - 1
    return symbols.astype(tensor.type.array)


class _BitReader:
    """Bits of a text of bytes, the highest of a byte first; further bits are 0."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.end = 8 * len(data)

    def take(self, count: int) -> int:
        """Return the next bits, at most 16, as a number."""
        part = self.data[self.place // 8 : self.place // 8 + 4].ljust(4, b"\0")
        value = int.from_bytes(part, "big") >> (32 - self.place % 8 - count)
        self.place += count
        return value & (1 << count) - 1


_DECODERS = {Compression.TABLE: _table, Compression.PRUNED: _pruned, Compression.HUFFMAN: _huffman}
