# SPDX-License-Identifier: Apache-2.0
"""The language model of the examples: training, quantization, and a token loop in C that is equal to Python's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from codegen.c_programs import build_and_run, write
from compilers import assert_accepted

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import DType
from mcugen.quantization.quantize import Quantization, create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

EXAMPLE = Path(__file__).parents[1] / "examples" / "language_model"
MODULES = ("tokens", "make_model", "simulate")
STEPS = 30
"""Steps of training: enough for logits that differ."""


@dataclass(frozen=True)
class Example:
    """The modules of the example, a network that was trained a little, its vocabulary, and tokens of a text."""

    make: ModuleType
    simulate: ModuleType
    model: onnx.ModelProto
    vocabulary: Any
    text: np.ndarray

    @property
    def states(self) -> dict[str, str]:
        return {f"{name}{i}_out": f"{name}{i}" for i in range(self.make.LAYERS) for name in "kv"}

    def samples(self, count: int) -> list[dict[str, np.ndarray]]:
        stream = self.make.stream(self.text, count)
        return [{"token": token, "pos": pos} for token, pos in zip(stream["token"], stream["pos"], strict=True)]

    def quantized(self, scheme: Scheme, count: int = 128) -> Quantization:
        source = load(self.model)
        model = import_float_model(source, CompileOptions(name="language_model", states=self.states), scheme)
        return create_quantizer(source, model, scheme, self.samples(1)[:count]).quantize()


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(EXAMPLE))
    yield {name: import_module(name) for name in MODULES}
    sys.path.remove(str(EXAMPLE))
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def example(modules: dict[str, ModuleType]) -> Example:
    make = modules["make_model"]
    characters = make.reference_text()[:20000]
    vocabulary = modules["tokens"].Vocabulary.of(characters, make.VOCABULARY)
    text = np.array(vocabulary.encode(characters), np.int64)
    return Example(make, modules["simulate"], make.step_model(make.train(text, STEPS)), vocabulary, text)


@pytest.fixture(scope="module")
def int8(example: Example) -> Quantization:
    return example.quantized(Scheme())


def test_gradients_are_those_of_the_loss(modules: dict[str, ModuleType]) -> None:
    make, random = modules["make_model"], np.random.default_rng(0)
    weights = {name: array.astype(np.float64) for name, array in make.initial_weights().items()}
    tokens = random.integers(0, make.VOCABULARY, (1, make.POSITIONS + 1))
    _, gradients = make.loss_and_gradients(weights, tokens)
    for name, array in weights.items():
        direction = random.standard_normal(array.shape)
        ends = []
        for sign in (-1e-6, 1e-6):
            loss, _ = make.loss_and_gradients(weights | {name: array + sign * direction}, tokens)
            ends.append(loss)
        assert (ends[1] - ends[0]) / 2e-6 == pytest.approx((gradients[name] * direction).sum(), rel=1e-3, abs=1e-6)


def test_the_text_has_a_licence_that_is_named() -> None:
    assert "PSF" in (EXAMPLE / "README.md").read_text() and "PSF-2.0" in (EXAMPLE / "make_model.py").read_text()


def test_steps_give_the_loss_of_the_training(example: Example) -> None:
    """One step a token, with caches, gives the logits of the network that sees the whole text."""
    make, samples = example.make, example.samples(1)
    weights = make.initial_weights()
    first = {
        name: np.zeros((1, make.KEY_HEADS, make.POSITIONS, make.SIZE), np.float32) for name in example.states.values()
    }
    outputs = run_onnxruntime(make.step_model(weights), samples, fixed=first, states=example.states)
    logits = np.concatenate([output["logits"] for output in outputs]).astype(np.float64)
    tokens = np.array([*(int(sample["token"][0]) for sample in samples), 0])
    entropy = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), tokens[1:]]
    assert make.loss_and_gradients(weights, tokens[None])[0] == pytest.approx(entropy.mean(), rel=1e-4)


# ------------------------------------------------------------------------------------------------ tokens and sampler

PROGRAM = """#include <stdio.h>
#include "vocabulary.h"
#include "logits.h"

int main(void)
{{
    static const char text[] = {text};
    static uint16_t tokens[sizeof text];
    static tokens_sampler sampler = {{{seed}u, {temperature}f, {top_k}, {{0.0f}}}};
    const int32_t count = tokens_encode(&vocabulary, text, (int32_t)sizeof text - 1, tokens, {capacity});
    int32_t i, length;
    for (i = 0; i < count; ++i) {{
        const char *piece = tokens_decode(&vocabulary, tokens[i], &length);
        printf("%d %.*s|", (int)tokens[i], (int)length, piece);
    }}
    printf("\\n=");
    for (i = 0; i < 200; ++i) {{
        printf(" %d", (int)tokens_sample(&sampler, logits, (int32_t)(sizeof logits / sizeof *logits)));
    }}
    return 0;
}}
"""


def ran(example: Example, folder: Path, logits: np.ndarray, sampler: Any, text: str = "a", capacity: int = 1) -> str:
    """Return what a C program prints that encodes a text and samples 200 tokens."""
    numbers = ", ".join(
        f"{x:.9e}f" if np.isfinite(x) else {"nan": "NAN"}.get(str(x), f"{x}").replace("inf", "INFINITY") for x in logits
    )
    (folder / "tokens.h").write_text((EXAMPLE / "tokens.h").read_text())
    (folder / "vocabulary.h").write_text(example.vocabulary.to_c())
    (folder / "logits.h").write_text(f"#include <math.h>\nstatic const float logits[] = {{{numbers}}};\n")
    quoted = '"' + "".join(f"\\{ord(c):03o}" if ord(c) < 256 else "\\377" for c in text) + '"'
    settings = {"seed": sampler.seed, "temperature": f"{sampler.temperature:.9e}", "top_k": sampler.top_k}
    return build_and_run(PROGRAM.format(text=quoted, capacity=capacity, **settings), folder)


TEXTS = [
    "The value of the string",
    "aaaaaaa",
    "eeee  \n\n\n~",
    "\x00\x7f\xe9 \u20ac?x",
    "",
    "names.; see also see also",
]


def test_tokenizers_are_equal(example: Example, modules: dict[str, ModuleType], tmp_path: Path) -> None:
    """Also of characters that are no tokens, and of texts that are longer than there is room for tokens."""
    sampler = modules["tokens"].Sampler()
    for number, text in enumerate(TEXTS):
        for capacity in (len(text) + 1, 3):
            folder = tmp_path / f"{number}.{capacity}"
            folder.mkdir(exist_ok=True)
            printed = ran(example, folder, np.zeros(2, np.float32), sampler, text, capacity).rpartition("\n=")[0]
            known = [c for c in text if c in modules["tokens"].CHARACTERS][:capacity]
            tokens = example.vocabulary.encode("".join(known))
            assert printed == "".join(f"{t} {example.vocabulary.pieces[t]}|" for t in tokens)
            assert example.vocabulary.decode(tokens) == "".join(known)


SAMPLERS = [(1, 0.0, 0), (1, 1.0, 0), (7, 0.3, 5), (2**32 - 1, 2.5, 64), (3, 1e-30, 0), (3, 1e30, 1), (9, 1.0, 300)]


@pytest.mark.parametrize("kind", ["random", "ties", "extremes", "one"])
def test_samplers_are_equal(kind: str, example: Example, modules: dict[str, ModuleType], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    logits = {
        "random": random.standard_normal(200) * 3,
        "ties": random.integers(-2, 3, 100),
        "extremes": np.array([-np.inf, 3e38, -3e38, 0.0, 3e38, -1e-40]),
        "one": np.array([0.5]),
    }[kind].astype(np.float32)
    for number, (seed, temperature, top_k) in enumerate(SAMPLERS):
        folder = tmp_path / str(number)
        folder.mkdir()
        sampler = modules["tokens"].Sampler(seed, float(np.float32(temperature)), min(top_k, 64))
        printed = ran(example, folder, logits, sampler).rpartition("\n=")[2].split()
        with np.errstate(over="ignore", invalid="ignore"):
            assert [int(token) for token in printed] == [sampler(logits) for _ in range(200)]


def test_shares_of_samples_are_those_of_the_softmax(modules: dict[str, ModuleType]) -> None:
    logits = np.array([0.0, 1.0, 2.0, -1.0, 1.5], np.float32)
    for top_k in (0, 3):
        sampler = modules["tokens"].Sampler(5, 0.8, top_k)
        counts = np.bincount([sampler(logits) for _ in range(5000)], minlength=5) / 5000
        e = np.exp(logits / 0.8) * (logits >= np.sort(logits)[-top_k])
        assert np.abs(counts - e / e.sum()).max() < 0.025


def test_the_power_of_one_half(modules: dict[str, ModuleType]) -> None:
    steps = np.arange(18 << 8)
    found = modules["tokens"].power_of_half(steps)
    assert (np.abs(found - 2 ** (16 - steps / 256)) <= 1 + 2e-4 * 2 ** (16 - steps / 256)).all()
    assert found[0] == 65536 and (np.diff(found) <= 0).all()


# ------------------------------------------------------------------------------------------------------ the token loop


def requests(example: Example, sampler: type, count: int) -> list[Any]:
    """Greedy, by temperature, by the most likely ones, and longer than the caches."""
    ways = [sampler(1, 0.0, 0), sampler(7, 1.0, 0), sampler(9, 0.7, 8)]
    return [example.simulate.Request("The value of", count, way) for way in ways]


def assert_loop_equals_reference(
    example: Example, compiled: CompiledModel, board: str, all_requests: list[Any]
) -> None:
    execution = example.simulate.run_loop(compiled, example.vocabulary, board, all_requests)
    expected = [example.simulate.expected_tokens(compiled, example.vocabulary, one) for one in all_requests]
    assert example.simulate.tokens_of(execution) == expected
    cells = example.simulate.figures(compiled, execution, 10)
    assert len(cells) == len(example.simulate.HEADINGS) and all(cells[:7]) == (board != "host")


@pytest.mark.parametrize(
    "board", ["host", *(pytest.param(b, marks=pytest.mark.qemu) for b in ("rp2350", "nrf52840", "corstone300"))]
)
def test_the_loop_in_integers_equals_the_reference(
    board: str, example: Example, int8: Quantization, modules: dict[str, ModuleType]
) -> None:
    compiled = example.simulate.compile_step(int8.proto, board)
    assert {state.dtype for state in compiled.program.states} == {DType.INT8}
    assert "cached_attention" in {node.op.name for node in compiled.graph.nodes}
    count = 40 if board == "host" else 8
    assert_loop_equals_reference(example, compiled, board, requests(example, modules["tokens"].Sampler, count))


def test_the_loop_with_weights_of_four_bits(example: Example, modules: dict[str, ModuleType]) -> None:
    compiled = example.simulate.compile_step(example.quantized(Scheme(weights=DType.INT4), 16).proto, "host")
    assert_loop_equals_reference(example, compiled, "host", requests(example, modules["tokens"].Sampler, 20))


def test_the_loop_in_floats_chooses_as_onnxruntime(
    example: Example, modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    compiled = example.simulate.compile_step(example.model, "host")
    onnx.save(example.model, tmp_path / "model.onnx")
    request = example.simulate.Request("The value of", 30, modules["tokens"].Sampler())
    found = example.simulate.tokens_of(example.simulate.run_loop(compiled, example.vocabulary, "host", [request]))
    tokens = modules["tokens"]
    prompt = example.vocabulary.encode(request.text)
    assert found == [list(tokens.generate(tokens.model_step(tmp_path / "model.onnx"), tokens.Sampler(), prompt, 30))]


def test_the_loop_ends_where_the_caches_are_full(
    example: Example, int8: Quantization, modules: dict[str, ModuleType]
) -> None:
    compiled = example.simulate.compile_step(int8.proto, "host")
    request = example.simulate.Request("The value of", 1000, modules["tokens"].Sampler())
    (found,) = example.simulate.tokens_of(example.simulate.run_loop(compiled, example.vocabulary, "host", [request]))
    assert len(found) == example.make.POSITIONS - len(example.vocabulary.encode(request.text)) + 1


def test_calibration_runs_the_token_loop(example: Example, int8: Quantization) -> None:
    """The caches are warm: their ranges are those of keys and values, and logits of a stream are near the real ones."""
    real, given = example.samples(2), int8.proto
    first = {
        v.name: np.zeros([d.dim_value for d in v.type.tensor_type.shape.dim], np.int8) for v in given.graph.input[2:]
    }
    found = run_onnxruntime(given, real, fixed=first, states=example.states)
    zeros = {name: np.zeros(array.shape, np.float32) for name, array in first.items()}
    wanted = run_onnxruntime(example.model, real, fixed=zeros, states=example.states)
    pairs = [(a["logits"].astype(float), b["logits"].astype(float)) for a, b in zip(wanted, found, strict=True)]
    noise = sum(((a - b) ** 2).sum() for a, b in pairs)
    assert 10 * np.log10(sum((a**2).sum() for a, _ in pairs) / noise) >= 25


def test_the_program_for_a_computer(example: Example, int8: Quantization, tmp_path: Path) -> None:
    compiled = example.simulate.compile_step(int8.proto, "host")
    folder = write(compiled.bundle, tmp_path)
    for name in ("main.c", "tokens.h"):
        (folder / name).write_text((EXAMPLE / name).read_text())
    (folder / "vocabulary.h").write_text(example.vocabulary.to_c())
    assert_accepted(folder, "main.c", by=("gcc", "clang"))
    printed = build_and_run((EXAMPLE / "main.c").read_text(), folder, *compiled.bundle.sources)
    assert printed.startswith("The ") and len(printed) > 100
