# SPDX-License-Identifier: Apache-2.0
"""Generate text under QEMU on several boards, beside the Python reference, with estimated tokens a second.

Usage: python examples/language_model/simulate.py FOLDER [--model MODEL.onnx] [--boards rp2350,nrf52840,corstone300]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from tokens import Sampler, Step, Vocabulary, generate

from mcugen.codegen.bundle import Port
from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.simulation import simulate
from mcugen.simulation.simulation import Execution

FOLDER = Path(__file__).parent
PROMPT_SIZE, MAX_TOKENS = 64, 128
"""Sizes of the arrays in loop.c."""


@dataclass(frozen=True)
class Request:
    """A text to continue.

    Attributes:
        text: The prompt.
        count: Number of new tokens.
        sampler: How tokens are chosen.
    """

    text: str
    count: int
    sampler: Sampler

    def sample(self) -> dict[str, np.ndarray]:
        """Return the inputs of loop.c."""
        text = np.zeros(PROMPT_SIZE, np.uint8)
        text[: len(self.text)] = np.frombuffer(self.text.encode(), np.uint8)
        options = np.array([self.sampler.seed, self.sampler.top_k, self.count], np.int32)
        return {"text": text, "options": options, "temperature": np.array([self.sampler.temperature], np.float32)}


def compile_step(model: onnx.ModelProto, board: str, **options: object) -> CompiledModel:
    """Compile a step whose caches are states: each input NAME but token and position has an output NAME_out."""
    names = [v.name for v in model.graph.input if v.name not in ("token", "pos")]
    states = {f"{name}_out": name for name in names}
    return compile_model(model, board, CompileOptions(name="language_model", states=states, **options))  # type: ignore[arg-type]


def run_loop(compiled: CompiledModel, vocabulary: Vocabulary, board: str, requests: Sequence[Request]) -> Execution:
    """Run the token loop for each request, and measure the first one."""
    bundle = compiled.bundle
    header = f"""#include "language_model.h"
#define LOOP_ARENA_SIZE {bundle.arena_size}u
#define LOOP_ARENA_ALIGN LANGUAGE_MODEL_ARENA_ALIGN
int loop_run(void *arena);
uint8_t *loop_text(void *arena);
int32_t *loop_options(void *arena);
float *loop_temperature(void *arena);
const int32_t *loop_generated(const void *arena);
"""
    files = {name: (FOLDER / name).read_text() for name in ("loop.c", "tokens.h")}
    files |= {"loop.h": header, "vocabulary.h": vocabulary.to_c(), "loop_weights.c": "typedef int none;\n"}
    inputs = (
        Port("text", "loop_text", "uint8", (PROMPT_SIZE,), PROMPT_SIZE),
        Port("options", "loop_options", "int32", (3,), 12),
        Port("temperature", "loop_temperature", "float32", (1,), 4),
    )
    outputs = (Port("generated", "loop_generated", "int32", (MAX_TOKENS + 1,), 4 * MAX_TOKENS + 4),)
    loop = replace(
        bundle, name="loop", files=bundle.files | files, inputs=inputs, outputs=outputs, layers=(), has_state=False
    )
    return simulate(loop, load_board(board), [request.sample() for request in requests], cycles=board != "host")


def tokens_of(execution: Execution) -> list[list[int]]:
    """Return the tokens that the loop generated for each request."""
    arrays = [outputs["generated"] for outputs in execution.outputs]
    return [array[1 : 1 + array[0]].tolist() for array in arrays]


def reference_step(compiled: CompiledModel) -> Step:
    """Return a function that runs a step in numpy, bit by bit as the C code does."""
    states = dict(compiled.first_states)

    def step(token: int, position: int) -> np.ndarray:
        feeds = {"token": np.array([token]), "pos": np.array([position]), **states}
        results = interpret(compiled.graph, feeds)
        states.update({name: results[f"{name}_out"] for name in states})
        return np.asarray(results["logits"]).reshape(-1)

    return step


def expected_tokens(compiled: CompiledModel, vocabulary: Vocabulary, request: Request) -> list[int]:
    """Return the tokens that the Python reference generates."""
    prompt = vocabulary.encode(request.text)
    return list(generate(reference_step(compiled), replace(request.sampler), prompt, request.count))


HEADINGS = ("board", "CPU", "tokens/s", "instructions", "cycles", "RAM", "flash", "µJ")
"""Columns of a table; all but the board's are averages of the steps of a run, or bytes."""


def figures(compiled: CompiledModel, execution: Execution, steps: int) -> tuple[str, ...]:
    """Return the cells of a table for a run of some steps; "" for what is not known.

    RAM is the arena, the caches and the stack; the text and the vocabulary are part of the flash.
    """
    board, sizes, program = compiled.board, execution.sizes, compiled.program
    if execution.instructions is None or sizes is None or execution.stack is None:
        return (f"`{board.name}`", board.cpu, *[""] * 6)
    cycles = execution.cycles.total if execution.cycles else None
    speed, count, energy = "", "", ""
    if cycles is not None:
        count = f"{cycles // steps:,}"
        speed = f"{board.clock_hz * steps / cycles:,.0f}" if board.clock_hz else ""
        energy = f"{board.energy.microjoules(cycles / steps):,.0f}" if board.energy else ""
    ram = compiled.bundle.arena_size + program.state_size + execution.stack
    instructions, flash = execution.instructions // steps, sizes.code + sizes.weights
    return (f"`{board.name}`", board.cpu, speed, f"{instructions:,}", count, f"{ram:,}", f"{flash:,}", energy)


def main() -> None:
    """Run the loop on the boards, and print the texts and a table of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="model_int8.onnx")
    parser.add_argument("--boards", default="rp2350,nrf52840,corstone300")
    parser.add_argument("--prompt", default="The value of the ")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    options = parser.parse_args()
    vocabulary = Vocabulary(tuple(map(tuple, json.loads((options.folder / "vocabulary.json").read_text()))))
    request = Request(options.prompt, options.count, Sampler(1, options.temperature, options.top_k))
    rows = [HEADINGS, ("---", "---", *["---:"] * 6)]
    for name in options.boards.split(","):
        compiled = compile_step(onnx.load(options.folder / options.model), name)
        execution = run_loop(compiled, vocabulary, name, [request])
        (tokens,) = tokens_of(execution)
        if tokens != expected_tokens(compiled, vocabulary, request):
            raise SystemExit(f"{name}: the tokens differ from those of the Python reference")
        print(f"{name}: {options.prompt + vocabulary.decode(tokens)!r}")
        rows.append(figures(compiled, execution, len(vocabulary.encode(options.prompt)) + len(tokens) - 1))
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
