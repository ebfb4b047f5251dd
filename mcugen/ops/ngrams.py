# SPDX-License-Identifier: Apache-2.0
"""Counts of n-grams of integers (TfIdfVectorizer)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import ClassVar

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.ngrams import NGRAMS, NgramsOptions, NgramsParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.ops.movement import Reshape
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


class Ngrams(Operator):
    """y[row][columns[g]] = the number of times that n-gram g occurs in a row of x, optionally weighted.

    x is [rows, items]. The optional second input holds one weight per column of y.

    Attributes:
        grams: The items of each n-gram, sorted by length.
        columns: Column of y for each n-gram.
        width: Number of columns of y.
        skips: Largest number of items between successive items of an n-gram.
        binary: Whether a count is at most 1.
    """

    mnemonic: ClassVar[str] = "ngrams"
    grams: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    columns: tuple[int, ...] = field(default=(), repr=False)
    width: int = 0
    skips: int = 0
    binary: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: [rows, width]."""
        (x,) = required(inputs[:1])
        return (TensorType((x.shape[0], self.width)),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Count n-grams by comparing each of them at each position."""
        x, *weights = arrays
        y = np.zeros(sig.output.shape, np.float32)
        for gram, column in zip(self.grams, self.columns, strict=True):
            for step in range(1, 2 + (self.skips if len(gram) > 1 else 0)):
                places = x.shape[1] - step * (len(gram) - 1)
                if places > 0:
                    windows = [x[:, i * step : i * step + places] == item for i, item in enumerate(gram)]
                    y[:, column] += np.logical_and.reduce(windows).sum(1)
        y = np.minimum(y, 1) if self.binary else y
        return (y * weights[0] if weights else y,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel with two tables: the items of all n-grams, and the end of the n-grams of each length."""
        x = node.input(0).type
        longest = max(map(len, self.grams), default=0)
        counts = [sum(len(g) <= n for g in self.grams) for n in range(1, longest + 1)]
        params = NgramsParams(
            rows=x.shape[0],
            row_items=x.shape[1],
            out_columns=self.width,
            max_distance=self.skips + 1,
            max_length=longest,
            num_ngrams=len(self.grams),
            pool_items=sum(map(len, self.grams)),
        )
        tables = {
            "pool": np.asarray([item for gram in self.grams for item in gram] or [0], x.dtype.numpy),
            "columns": np.asarray(self.columns or (0,), np.int32),
            "ends": np.asarray(counts or (0,), np.int32),
        }
        weighted = len(node.inputs) > 1
        operands = {
            "x": builder.buffer(node.input(0)),
            **{role: builder.const(f"{node.output.name}.{role}", table) for role, table in tables.items()},
            **({"weights": builder.buffer(node.input(1))} if weighted else {}),
            "y": builder.buffer(node.output),
        }
        options = NgramsOptions(t=x.dtype.c, binary=self.binary, weighted=weighted)
        builder.call(node, Call(NGRAMS, operands, [params], [options], variant=x.dtype.tag))


# --------------------------------------------------------------------------------------------------- import


def _grams(pool: Sequence[int], starts: Sequence[int]) -> list[tuple[int, ...]]:
    """Split the pool into n-grams: those of length n + 1 begin at starts[n]."""
    grams: list[tuple[int, ...]] = []
    for length, (start, end) in enumerate(pairwise((*starts, len(pool))), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            span = f"{start} to {end} of {len(pool)}"
            raise Refusal(f"TfIdfVectorizer: the pool must hold whole {length}-grams", span, "repair the model")
        grams += [tuple(pool[i : i + length]) for i in range(start, end, length)]
    return grams


@onnx_operator("TfIdfVectorizer", types=(DType.INT32, DType.INT64), kernels=("ngrams",), limits="no strings")
def _import_tfidf(node: OnnxNode) -> list[Value]:
    x, mode = node.input(0), node.attr("mode", "TF")
    pool, columns = (list(node.attr(key, ())) for key in ("pool_int64s", "ngram_indexes"))
    if node.attr("pool_strings", None) or x.type.rank not in (1, 2) or mode not in ("TF", "IDF", "TFIDF"):
        mismatch = f"shape {x.type.shape}, mode '{mode}'"
        raise Refusal("TfIdfVectorizer: vectors of integers, and a known mode", mismatch, "use pool_int64s")
    grams = _grams(pool, list(node.attr("ngram_counts", ())))
    if len(grams) != len(columns) or not columns or not 0 <= min(columns) <= max(columns) < 2**24:
        mismatch = f"{len(columns)} for {len(grams)}"
        raise Refusal("TfIdfVectorizer: every n-gram must have a column", mismatch, "repair the model")
    lengths = range(int(node.attr("min_gram_length", 1)), int(node.attr("max_gram_length", 1)) + 1)
    limits = x.type.dtype.limits  # what no element can be is never found
    kept = [g for g in zip(grams, columns, strict=True) if len(g[0]) in lengths and _within(g[0], limits)]
    inputs = [node.emit(Reshape((1, *x.type.shape)), x, suffix="row") if x.type.rank == 1 else x]
    weights, width = np.asarray(node.attr("weights", ()), np.float32), max(columns) + 1
    if mode != "TF" and weights.size:
        if weights.size != len(columns):
            mismatch = f"{weights.size} for {len(columns)}"
            raise Refusal("TfIdfVectorizer: every n-gram must have a weight", mismatch, "repair the model")
        by_column = np.ones(width, np.float32)
        by_column[columns] = weights
        inputs.append(node.constant("weights", by_column))
    skips = min(max(int(node.attr("max_skip_count", 0)), 0), x.type.shape[-1])
    op = Ngrams(tuple(g for g, _ in kept), tuple(c for _, c in kept), width, skips, mode == "IDF")
    y = node.emit(op, *inputs, suffix="rows" if x.type.rank == 1 else "")
    return [node.emit(Reshape((width,)), y) if x.type.rank == 1 else y]


def _within(gram: Sequence[int], limits: tuple[int, int]) -> bool:
    return all(limits[0] <= item <= limits[1] for item in gram)
