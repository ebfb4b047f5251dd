# SPDX-License-Identifier: Apache-2.0
"""Differential test of random graphs (ops/mixed_graphs), also over run-time lengths (ops/sized_graphs), by seed.

The graphs are compiled and run under the sanitizers. numpy's result on the compiled graph must equal ONNX Runtime's if
all is float, and C's result always. A model that shows a fault is reduced and kept. Run by `make fuzz`, or by
PYTHONPATH=tests:tests/ops:tools python tests/fuzz_graphs.py --help
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import onnx
import typer
from bundle_batch import combine
from mixed_graphs import mixed_model
from onnx_models import Feeds, assert_close, onnxruntime_outputs, random_feeds
from random_graphs import FLOAT, RandomModel
from reduce_model import reduced
from sized_graphs import LENGTHS, sized_model

from mcugen.core.board import load_board
from mcugen.core.errors import McugenError, UnsupportedError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.memory.verify_plan import verify_plan
from mcugen.simulation import Setup, simulate

BATCH = 10
"""Number of models that one C program contains."""
RELATIVE = 1e-4
"""Largest accepted difference, relative to the largest magnitude of a tensor."""


@dataclass(frozen=True)
class Finding:
    """A fault of the model of a seed: the step that failed, and the message."""

    seed: int
    step: str
    reason: str

    def is_like(self, other: Finding | None) -> bool:
        """Return whether another finding is probably the same fault: only numbers and names may differ."""
        return other is not None and (self.step, _kind(self.reason)) == (other.step, _kind(other.reason))


def _kind(reason: str) -> str:
    return reason.partition(":")[0]


@dataclass(frozen=True)
class _Compiled:
    random: RandomModel
    model: CompiledModel
    feeds: Feeds
    expected: Feeds


def findings(models: Sequence[RandomModel]) -> list[Finding]:
    """Compile and run models with distinct names, and return the faults that they show."""
    found = [_compile(random) for random in models]
    good = [entry for entry in found if isinstance(entry, _Compiled)]
    bad = [entry for entry in found if isinstance(entry, Finding)]
    return bad + [f for start in range(0, len(good), BATCH) for f in _run(good[start : start + BATCH])]


def _compile(random: RandomModel) -> _Compiled | Finding:
    """For a goal by the seed."""
    proto, goal = random.model, Random(random.seed).choice(GOALS)
    step = f"compile for {goal}"
    try:
        model = compile_model(
            proto, options=CompileOptions(f"g{random.seed}", optimize=goal, external_io=random.seed % 3 == 0)
        )
        verify_plan(model.program)
        feeds, step = random_feeds(proto, random.seed), "numpy"
        found = model.interpret(feeds)
        expected = {output.name: found[output.name] for output in proto.graph.output}
        if random.kind == FLOAT:
            step = "ONNX Runtime"
            assert_close(expected, onnxruntime_outputs(proto, feeds), RELATIVE)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Finding(random.seed, step, f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})")
    return _Compiled(random, model, feeds, expected)


def _run(compiled: Sequence[_Compiled]) -> list[Finding]:
    """As one program; where that fails, halves tell which is at fault."""
    sample = {f"{c.model.bundle.name}/{name}": array for c in compiled for name, array in c.feeds.items()}
    try:
        bundle = combine([c.model.bundle for c in compiled])
        found = simulate(bundle, load_board("host"), [sample], setup=Setup(sanitize=True)).outputs[0]
    except McugenError as error:
        if len(compiled) == 1:
            return [Finding(compiled[0].random.seed, "run", str(error))]
        half = len(compiled) // 2
        return _run(compiled[:half]) + _run(compiled[half:])
    return [f for c in compiled for f in _compare(c, found)]


def _compare(compiled: _Compiled, found: Mapping[str, np.ndarray]) -> list[Finding]:
    """Codes of floats may differ by one step."""
    for name, wanted in compiled.expected.items():
        got = found[f"{compiled.model.bundle.name}/{name}"]
        if wanted.dtype == np.int8 and np.abs(got.astype(int) - wanted).max(initial=0) <= 1:
            continue
        try:
            assert_close({name: got}, {name: wanted}, RELATIVE)
        except AssertionError as error:
            return [Finding(compiled.random.seed, "C", f"{name}: {' '.join(str(error).split())}")]
    return []


def sized_finding(seed: int) -> Finding | None:
    """Return the fault of the model over a run-time length of a seed, or None.

    It is no fault that one program cannot serve all lengths.
    """
    model, step = sized_model(seed), "compile for lengths"
    lengths = (*LENGTHS, Random(seed).randint(*LENGTHS))
    channels = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    numbers = np.random.default_rng(seed)
    samples = [{"x": numbers.standard_normal((1, channels, n)).astype(np.float32)} for n in lengths]
    try:
        goal = Random(seed).choice(GOALS)
        compiled = compile_model(
            model, options=CompileOptions(f"g{seed}", {"T": LENGTHS}, optimize=goal, external_io=seed % 3 == 0)
        )
        step = "C of lengths"
        outputs = compiled.simulate(samples, measure=False, sanitize=True).outputs
        for sample, found in zip(samples, outputs, strict=True):
            assert_close(found, onnxruntime_outputs(model, sample), RELATIVE)
    except UnsupportedError:
        return None
    except Exception as error:
        return Finding(seed, step, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return None


def smallest(random: RandomModel, finding: Finding) -> onnx.ModelProto:
    """Return the smallest reduction of a model that shows the same fault."""

    def fails(model: onnx.ModelProto) -> bool:
        return any(finding.is_like(f) for f in findings([RandomModel(model, random.kind, random.seed)]))

    return reduced(random.model, fails)


def main(
    first: Annotated[int, typer.Option(help="seed")] = 0,
    seeds: Annotated[int, typer.Option(help="how many; a tenth as many models over a length besides")] = 100,
    keep: Annotated[Path, typer.Option(help="folder for models that show a fault, made small")] = Path("build/fuzz"),
) -> None:
    """Test random models, and print what fails; the exit code is 1 if anything does."""
    warnings.simplefilter("ignore")
    count = 0
    for start in range(first, first + seeds, BATCH):
        models = {seed: mixed_model(seed) for seed in range(start, min(start + BATCH, first + seeds))}
        for finding in findings(list(models.values())):
            count += 1
            small = smallest(models[finding.seed], finding)
            keep.mkdir(parents=True, exist_ok=True)
            onnx.save(small, keep / f"mixed{finding.seed}.onnx")
            nodes = ", ".join(node.op_type for node in small.graph.node)
            print(f"seed {finding.seed}, {finding.step}: {finding.reason[:600]}\n    {nodes}", flush=True)
        sized = sized_finding(start // BATCH)
        if sized is not None:
            count += 1
            print(f"model over a length, seed {sized.seed}, {sized.step}: {sized.reason[:600]}", flush=True)
    print(f"{seeds} graphs from seed {first}, {count} of them wrong")
    raise typer.Exit(int(count > 0))


if __name__ == "__main__":
    typer.run(main)
