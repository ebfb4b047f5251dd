# SPDX-License-Identifier: Apache-2.0
"""The Python side of tokens.h: vocabulary, sampler and token loop, with the same integers.

Usage: python examples/language_model/tokens.py FOLDER [--prompt TEXT] [--count N] [--temperature T] [--top-k K]
continues a text with FOLDER/model.onnx, by ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from mcugen.evaluation.session import Session

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""Characters that are tokens; tokens of several characters follow them in a vocabulary."""

LOG2_E = np.float32(256 / np.log(2))
"""Number of steps of 1 / 256 octave for each unit of a logit."""
MAX_STEPS = 17 << 8
"""Steps below the highest logit from which on a token has no share."""


@dataclass(frozen=True)
class Vocabulary:
    """Pieces of text that tokens stand for: characters, then pairs of earlier pieces (byte-pair encoding).

    Attributes:
        merges: For each token behind the characters, the two tokens that it joins.
    """

    merges: tuple[tuple[int, int], ...]

    @staticmethod
    def of(text: str, size: int) -> Vocabulary:
        """Return a vocabulary of `size` tokens: it joins the most frequent pair of a text, again and again."""
        tokens, merges = _characters(text), list[tuple[int, int]]()
        while len(CHARACTERS) + len(merges) < size:
            pairs = np.bincount(tokens[:-1] * size + tokens[1:], minlength=size * size)
            first, second = divmod(int(pairs.argmax()), size)
            merges.append((first, second))
            tokens = _merged(tokens, first, second, len(CHARACTERS) + len(merges) - 1)
        return Vocabulary(tuple(merges))

    @property
    def pieces(self) -> list[str]:
        """Return the text of each token."""
        pieces = list(CHARACTERS)
        for first, second in self.merges:
            pieces.append(pieces[first] + pieces[second])
        return pieces

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; characters that are no tokens are left out."""
        tokens = _characters(text)
        for number, (first, second) in enumerate(self.merges):
            tokens = _merged(tokens, first, second, len(CHARACTERS) + number)
        return [int(token) for token in tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        pieces = self.pieces
        return "".join(pieces[token] for token in tokens)

    def to_c(self) -> str:
        """Return a C header with the vocabulary, `vocabulary`, for tokens.h."""
        pieces = self.pieces
        ends = np.cumsum([0, *map(len, pieces)]).tolist()
        text = "".join(pieces)
        rows = [text[i : i + 24] for i in range(0, len(text), 24)]
        quoted = "\n".join(f"    {json.dumps(row)}" for row in rows)
        return f"""/* SPDX-License-Identifier: 0BSD */
/* A vocabulary of {len(pieces)} tokens, written by make_model.py. */
#include "tokens.h"

static const char vocabulary_text[] =
{quoted};
static const uint16_t vocabulary_ends[{len(ends)}] = {{
{_columns(ends)}}};
static const uint16_t vocabulary_merges[{2 * len(self.merges)}] = {{
{_columns([token for pair in self.merges for token in pair])}}};
static const tokens_vocabulary vocabulary = {{
    {len(CHARACTERS)}, {len(pieces)}, vocabulary_text, vocabulary_ends, vocabulary_merges}};
"""


def _characters(text: str) -> np.ndarray:
    known = {character: number for number, character in enumerate(CHARACTERS)}
    return np.array([known[c] for c in text if c in known], np.int64)


def _merged(tokens: np.ndarray, first: int, second: int, token: int) -> np.ndarray:
    """Return tokens in which a token replaces each pair, from left to right."""
    places = np.flatnonzero((tokens[:-1] == first) & (tokens[1:] == second))
    if first == second and len(places):
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        places = np.concatenate([run[::2] for run in runs])
    result = tokens.copy()
    result[places] = token
    return np.delete(result, places + 1)


def _columns(numbers: Sequence[int]) -> str:
    rows = (numbers[i : i + 16] for i in range(0, len(numbers), 16))
    return "".join(f"    {', '.join(map(str, row))},\n" for row in rows)


@dataclass
class Sampler:
    """Choose tokens as tokens.h does.

    Attributes:
        seed: State of the random numbers (xorshift32), not 0.
        temperature: Divisor of the logits; 0 chooses the most likely token.
        top_k: Number of tokens to choose from, at most 64; 0 for all.
    """

    seed: int = 1
    temperature: float = 0.0
    top_k: int = 0

    def draw(self, total: int) -> int:
        """Return a random integer from 0 to before `total`."""
        x = self.seed
        x ^= x << 13 & 0xFFFFFFFF
        x ^= x >> 17
        x ^= x << 5 & 0xFFFFFFFF
        self.seed = x
        return (x * total) >> 32

    def __call__(self, logits: np.ndarray) -> int:
        """Return a token, by float32 logits of all tokens."""
        best = int(logits.argmax())
        if self.temperature <= 0:
            return best
        lowest = np.sort(logits)[-min(self.top_k, logits.size)] if self.top_k else -np.inf
        below = (logits[best] - logits) * (LOG2_E / np.float32(self.temperature))
        steps = np.minimum(below, np.float32(MAX_STEPS)).astype(np.int64)
        shares = np.where(logits >= lowest, power_of_half(steps), 0)
        return int(np.searchsorted(shares.cumsum(), self.draw(int(shares.sum())), side="right"))


def power_of_half(steps: np.ndarray) -> np.ndarray:
    """Return 2^(16 − steps / 256), rounded down, by a polynomial with errors below 0.02 %."""
    t = steps & 255
    return (65536 - ((45343 - (((15206 - ((2636 * t) >> 8)) * t) >> 8)) * t >> 8)) >> (steps >> 8)


Step = Callable[[int, int], np.ndarray]
"""A function that takes a token and its position, and returns the logits of the next token."""


def generate(step: Step, sampler: Sampler, prompt: Sequence[int], count: int) -> Iterator[int]:
    """Yield `count` tokens that continue a prompt, which must not be empty."""
    for position, token in enumerate(prompt):
        logits = step(token, position)
    for position in range(len(prompt), len(prompt) + count):
        token = sampler(logits)
        yield token
        if position + 1 < len(prompt) + count:
            logits = step(token, position)


def model_step(path: Path) -> Step:
    """Return a function that runs a step of an ONNX model in ONNX Runtime, and keeps its caches."""
    model = onnx.load(path)
    session, outputs = Session(model), [value.name for value in model.graph.output]
    states = {v.name: _zeros(v) for v in model.graph.input if v.name not in ("token", "pos")}

    def step(token: int, position: int) -> np.ndarray:
        results = session.run(outputs, {"token": np.array([token]), "pos": np.array([position]), **states})
        states.update({name: results[f"{name}_out"] for name in states})
        return np.asarray(results["logits"]).reshape(-1)

    return step


def _zeros(value: onnx.ValueInfoProto) -> np.ndarray:
    tensor = value.type.tensor_type
    return np.zeros([dim.dim_value for dim in tensor.shape.dim], onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def main() -> None:
    """Continue a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="model.onnx")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    options = parser.parse_args()
    vocabulary = Vocabulary(tuple(map(tuple, json.loads((options.folder / "vocabulary.json").read_text()))))
    sampler = Sampler(options.seed, options.temperature, options.top_k)
    prompt = vocabulary.encode(options.prompt)
    tokens = generate(model_step(options.folder / options.model), sampler, prompt, options.count)
    print(options.prompt + vocabulary.decode(list(tokens)))


if __name__ == "__main__":
    main()
