# SPDX-License-Identifier: Apache-2.0
"""The kernel of n-gram counting."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, reads, writes


class NgramsParams(Params):
    """Kernel parameters of n-gram counting (TfIdfVectorizer): sizes of rows of items, and of the pool of n-grams.

    An n-gram is a sequence of n items; the pool is all n-grams whose occurrences in a row of x are counted.
    """

    rows: Annotated[int, "rows of x"]
    row_items: Annotated[int, "items of a row"]
    out_columns: Annotated[int, "columns of y"]
    max_distance: Annotated[int, "largest distance between items of an n-gram that is tried, from 1 on"]
    max_length: Annotated[int, "items of the longest n-gram"]
    num_ngrams: Annotated[int, "n-grams of the pool"]
    pool_items: Annotated[int, "items of the pool"]


class NgramsOptions(Options):
    """Template options of n-gram counting (TfIdfVectorizer): item type, binary counts, weights.

    Each column of y counts the occurrences of an n-gram (a sequence of n items) in a row of x, perhaps times a weight.
    """

    t: Annotated[str, "C type of the items"]
    binary: Annotated[bool, "whether a count is at most 1"]
    weighted: Annotated[bool, "whether columns have weights"]


NGRAMS = Kernel(
    "ngrams",
    varies="items are compared until they differ",
    what="how often each n-gram of a pool occurs in a row, perhaps with skipped items between its items",
    operands=(
        reads("x", "rows of items", DType.INT32, DType.INT64),
        reads("pool", "the n-grams one after the other, short ones first", DType.INT32, DType.INT64),
        reads("columns", "column of y of each n-gram", DType.INT32),
        reads("ends", "number of n-grams of each length or less", DType.INT32),
        reads("weights", "weights of columns", DType.FLOAT32, optional=True),
        writes("y", "counts", DType.FLOAT32),
    ),
    params=(NgramsParams,),
    options=(NgramsOptions,),
)
"""Kernel that computes the ONNX operator TfIdfVectorizer."""
