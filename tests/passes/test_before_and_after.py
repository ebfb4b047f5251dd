# SPDX-License-Identifier: Apache-2.0
"""Each pass as text: `text/PASS.txt` is a graph before, the graph after, and what patterns said where they refused.

The first section is the test, written by hand; the others are written by `pytest --update-golden`, and then read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import mcugen.ops  # noqa: F401  (operators are known to the parser once their modules are imported)
from mcugen.backends.cpu.pipeline import PIPELINE
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import interpret
from mcugen.hir.parser import parse_graph
from mcugen.hir.printer import print_graph
from mcugen.hir.verify import verify_graph
from mcugen.hir.window_stream import WindowStream
from mcugen.passes.rewrite import Log, RewriteOutcome, Rewriting, Turns

FOLDER = Path(__file__).parent / "text"
MORE = FOLDER.with_name("more")
"""Further graphs of a pass: `more/PASS.txt`, one behind the other."""
FILES = sorted(FOLDER.glob("*.txt"))
PASSES = {pass_.__name__: pass_ for pass_, _ in PIPELINE}
AFTER, REFUSED = "=== after\n", "=== refused\n"


def graphs_of(name: str) -> Iterator[str]:
    """Yield the graphs that a pass is tried on, as texts."""
    before = (FOLDER / f"{name}.txt").read_text().partition(AFTER)[0]
    yield before[before.index("graph ") :]
    if (MORE / f"{name}.txt").exists():
        yield from ("graph " + text for text in (MORE / f"{name}.txt").read_text().split("graph ")[1:])


def samples(graph: Graph) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {v.name: (random.standard_normal(v.type.shape) * 40).astype(v.type.dtype.numpy) for v in graph.inputs}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_pass(path: Path, golden: Callable[[str, str], None]):
    before = path.read_text().partition(AFTER)[0]
    about, text = before[: before.index("graph ")], before[before.index("graph ") :]
    graph, log = parse_graph(text), Log()
    graph.float16_weights = True  # a wish of the user's, which texts do not hold
    is_stream = path.stem == "stream_window"  # Then the caller passes other inputs: see test_window_stream.py.
    graph.stream = WindowStream(1) if is_stream else None
    assert print_graph(graph) == text
    verify_graph(graph)
    given = samples(graph)
    expected = interpret(graph, given)
    pass_ = PASSES[path.stem]
    assert pass_(graph, log) if isinstance(pass_, Rewriting) else pass_(graph)
    verify_graph(graph)
    for name, array in ({} if is_stream else interpret(graph, given)).items():
        exact = not np.issubdtype(array.dtype, np.floating)
        np.testing.assert_allclose(array, expected[name], *((0, 1) if exact else (1e-4, 1e-4)))
    refusals = "".join(f"{refusal}\n" for refusal in log.refusals(graph))
    golden(str(path), f"{about}{text}{AFTER}{print_graph(graph)}{REFUSED * bool(refusals)}{refusals}")


def test_every_pass_has_its_text():
    assert {path.stem for path in FILES} == PASSES.keys()


LEFT = {
    "clamp_before_rounding": "dequantize",
    "code_integers": "cast",
    "convert_qdq": "dequantize",
    "cut_channels": "affine floor",
    "fold_affine": "dequantize",
    "fold_crop": "conv_transpose",
    "fold_pad": "pad",
    "fold_scale": "mul",
    "fold_frame_padding": "reshape",
    "recognize_bands": "dft reshape",
    "recognize_magnitude": "dft reshape",
    "recognize_power": "mul",
    "recognize_reduced_power": "dft",
    "fold_transpose_into_dense": "reshape",
    "fuse_dense": "dequantize",
    "keep_packed": "dequantize dequantize_blocks",
    "keep_sums": "dequantize",
    "move_as_stored": "dequantize",
    "move_codes": "dequantize",
    "raise_transpose": "reshape",
    "recognize_cache_update": "equal reshape",
    "recognize_cached_attention": "add matmul mul reshape softmax transpose where",
    "recognize_cut": "cast clamp",
    "recognize_groups": "reshape",
    "recognize_mask": "add",
    "recognize_normalization": "reciprocal sqrt",
    "recognize_shifted": "add mul sub",
    "sink_fork": "transpose",
    "sink_reshape": "dequantize",
    "sink_transpose": "transpose",
    "tabulate": "cast+clamp lookup mul",
    "take_equal": "dequantize reshape transpose",
    "turn_channels_last": "transpose",
}
"""Operators that laws leave to the pass once nobody reads them; laws leave none of other operators."""


@pytest.mark.parametrize("path", [p for p in FILES if isinstance(PASSES[p.stem], Rewriting)], ids=lambda p: p.stem)
def test_laws_say_whether_they_rewrite(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each law returns True exactly where it changes the graph's text, and removes what it makes useless."""
    pass_ = PASSES[path.stem]
    passes = pass_.passes if isinstance(pass_, Turns) else (pass_,)
    for pattern in {pattern for one in passes for pattern in one.patterns}:
        monkeypatch.setattr(pattern, "law", _honest(pattern.law))
    for text in graphs_of(path.stem):
        graph = parse_graph(text)
        graph.float16_weights = True
        pass_(graph)


def _honest(law: Callable[[Graph, Node], RewriteOutcome]) -> Callable[[Graph, Node], RewriteOutcome]:
    def checked(graph: Graph, node: Node) -> RewriteOutcome:
        before, useless = print_graph(graph), _useless(graph)
        outcome = law(graph, node)
        assert (outcome is True) == (print_graph(graph) != before), law
        left = {node.op.name for node in _useless(graph) - useless}
        assert left <= set(LEFT.get(law.__name__, "").split()), law
        return outcome

    return checked


def _useless(graph: Graph) -> set[Node]:
    """Return the nodes whose results nobody reads."""
    return {node for node in graph.nodes if not any(v.uses or graph.is_output(v) for v in node.outputs)}
