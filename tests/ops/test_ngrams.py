# SPDX-License-Identifier: Apache-2.0
"""TfIdfVectorizer of integers: onnxruntime, numpy and C agree."""

from __future__ import annotations

import numpy as np
import pytest
from checks import check_c
from onnx_models import Net, assert_close, imported, onnxruntime_outputs

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

POOL = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 8, 6, 2, 2]
"""Four single items, then five pairs."""


def attributes(**changes: object) -> dict[str, object]:
    usual = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0}
    pool = {"ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 8, 5, 6, 7, 4], "pool_int64s": POOL}
    return usual | pool | changes


def test_counts():
    """Rows and lone vectors; items of 32 and 64 bits; skips; weights."""
    net = Net(13)
    weights = [float(i) for i in range(1, 10)]
    variants = [{}, {"max_skip_count": 3}, {"min_gram_length": 2, "max_skip_count": 1}, {"max_gram_length": 1}]
    variants += [{"mode": mode, "weights": w} for mode in ("IDF", "TFIDF") for w in (weights, [])]
    feeds = {}
    random = np.random.default_rng(2)
    for number, changes in enumerate(variants):
        dtype = (np.int64, np.int32)[number % 2]
        shape = [(3, 12), (7,), (2, 1)][number % 3]
        given = {key: value for key, value in attributes(**changes).items() if value != []}
        x = net.input(f"x{number}", *shape, dtype=dtype)
        feeds[x] = random.integers(2, 9, shape).astype(dtype)
        net.output(net.op("TfIdfVectorizer", x, out=f"y{number}", **given), shape=(*shape[:-1], 9))
    model = net.plain_model()
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds))
    check_c(compiled, feeds, found)


def test_long_grams():
    net = Net(13)
    given = attributes(ngram_counts=[0, 0, 0], ngram_indexes=[1, 0], pool_int64s=[1, 2, 3, 3, 2, 1], max_gram_length=3)
    x = net.input("x", 12, dtype=np.int64)
    net.output(net.op("TfIdfVectorizer", x, out="y", **given | {"max_skip_count": 20}), shape=(2,))
    feeds = {"x": np.asarray([1, 2, 3, 3, 2, 1, 1, 1, 2, 2, 3, 3])}
    compiled = compile_model(net.plain_model())
    expected = onnxruntime_outputs(net.plain_model(), feeds)
    assert_close(interpret(compiled.graph, feeds), expected)
    check_c(compiled, feeds, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"ngram_counts": [0, 5]},
        {"ngram_counts": [0, 99]},
        {"ngram_counts": [4, 0]},
        {"ngram_counts": [-1, 4]},
        {"ngram_indexes": [0, 1]},
        {"ngram_indexes": [0, 1, 2, 3, 8, 5, 6, 7, -4]},
        {"ngram_indexes": [0, 1, 2, 3, 8, 5, 6, 7, 2**40]},
        {"mode": "BM25"},
        {"mode": "IDF", "weights": [1.0]},
    ],
)
def test_refused(changes: dict[str, object]):
    net = Net(13)
    given = attributes(**changes)
    net.output(net.op("TfIdfVectorizer", net.input("x", 4, dtype=np.int64), out="y", **given), shape=(9,))
    with pytest.raises(McugenError):
        imported(net.plain_model())


def test_a_pool_without_lengths_is_refused():
    net = Net(13)
    net.output(net.op("TfIdfVectorizer", net.input("x", 4, dtype=np.int64), out="y", **attributes()), shape=(9,))
    model = net.plain_model()
    counts = next(a for a in model.graph.node[0].attribute if a.name == "ngram_counts")
    counts.ClearField("ints")
    with pytest.raises(McugenError, match="every n-gram must have a column"):
        imported(model)


def test_strings_are_refused():
    net = Net(13)
    given = attributes(pool_strings=["a"], ngram_counts=[0], ngram_indexes=[0])
    del given["pool_int64s"]
    net.output(net.op("TfIdfVectorizer", net.input("x", 4, dtype=np.int64), out="y", **given), shape=(1,))
    with pytest.raises(McugenError):
        imported(net.plain_model())
