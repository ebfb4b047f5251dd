# SPDX-License-Identifier: Apache-2.0
"""Puts ONNX's own tests (onnx.backend.test) through mcugen: compile, build, run, compare with what they expect.

An input on which shapes depend (axes, sizes, k, ...) is fixed at compile time to the test's value, as a user does
with `mcugen compile --bind`; such tests are marked.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from bundle_batch import combine, run_or_blame
from markers import rewrite_passage
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from rich.console import Console
from rich.progress import track

from mcugen.core.board import load_board
from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.simulation import Setup, simulate

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
BATCH = 40
"""Models in one build."""
MAX_BOUND_INPUTS = 12
"""Inputs that may be fixed at compile time, one after the other."""

_ALIEN_TYPES = {
    TensorProto.STRING: "strings",
    TensorProto.COMPLEX64: "complex numbers",
    TensorProto.COMPLEX128: "complex numbers",
}
_ALIEN_VALUES = {"sequence_type": "sequences", "optional_type": "optional", "map_type": "maps"}
_ALIEN_OPERATORS = {
    "ImageDecoder": "image files",
    "Bernoulli": "random numbers",
    "RandomUniformLike": "random numbers",
    "RandomNormalLike": "random numbers",
    "RandomUniform": "random numbers",
    "RandomNormal": "random numbers",
    "Multinomial": "random numbers",
    "StringNormalizer": "strings",
}
_CAUSES = {
    r"attention.*_(bf16|fp16)": "the expected result is rounded to 16 bits after every operator; mcugen computes in "
    "float32 and rounds once, at the end",
    r"dft_inverse": "where the exact result is 0, rounding errors of numpy (up to 2e-7) are expected, within 1e-7",
    r"test_not_": "opset 1; models of opset 6 and later are read",
}
"""Why tests fail that we leave as they are."""
_ALIEN_DOMAINS = {"ai.onnx.training": "training"}


@dataclass(frozen=True)
class Case:
    """An official test: a model with inputs and expected outputs by name."""

    name: str
    kind: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    rtol: float
    atol: float

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the operator types of the model's nodes."""
        return tuple(dict.fromkeys(n.op_type for n in self.model.graph.node))


@dataclass(frozen=True)
class Outcome:
    """The result of a test: passed, failed or out of scope, the reason, and the inputs fixed at compile time."""

    name: str
    kind: str
    operators: tuple[str, ...]
    state: str
    reason: str = ""
    bound: tuple[str, ...] = ()


# ----------------------------------------------------------------------------------------------- the suite


def cases(kinds: Iterable[str] = KINDS, pattern: str = "") -> Iterator[Case | Outcome]:
    """Yield the official tests whose name matches `pattern`; tests that are out of scope as outcomes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = [(kind, test) for kind in kinds for test in load_model_tests(kind=kind)]
    for kind, test in tests:
        if not re.search(pattern, test.name):
            continue
        model = test.model or onnx.load(Path(test.model_dir) / "model.onnx")
        operators = tuple(dict.fromkeys(n.op_type for n in model.graph.node))
        reason = out_of_scope_reason(model) or ("random numbers" if _drops_at_random(test, model) else "")
        if reason:
            yield Outcome(test.name, kind, operators, "out of scope", reason)
            continue
        inputs, outputs = test.data_sets[0] if test.data_sets else _stored_data(Path(test.model_dir), model)
        yield Case(
            test.name,
            kind,
            model,
            {v.name: _array(a) for v, a in zip(_real_inputs(model), inputs, strict=False)},
            {v.name: _array(a) for v, a in zip(model.graph.output, outputs, strict=True)},
            test.rtol,
            test.atol,
        )


def _drops_at_random(test: TestCase, model: onnx.ModelProto) -> bool:
    """Return whether a Dropout runs in training mode with a rate other than 0."""
    (node, *_), inputs = model.graph.node, (test.data_sets or [([], [])])[0][0]
    training = node.op_type == "Dropout" and len(inputs) == 3 and bool(inputs[2])
    return training and float(inputs[1]) > 0


def _array(data: object) -> np.ndarray:
    return numpy_helper.to_array(data) if isinstance(data, TensorProto) else np.asarray(data)


def _real_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in constants]


def _stored_data(folder: Path, model: onnx.ModelProto) -> tuple[list[np.ndarray], list[np.ndarray]]:
    def load(side: str, count: int) -> list[np.ndarray]:
        files = [folder / "test_data_set_0" / f"{side}_{i}.pb" for i in range(count)]
        return [numpy_helper.to_array(onnx.load_tensor(str(f))) for f in files if f.exists()]

    return load("input", len(model.graph.input)), load("output", len(model.graph.output))


def out_of_scope_reason(model: onnx.ModelProto) -> str:
    """Return why a model is out of scope for a microcontroller; "" if it is not."""
    for node in model.graph.node:
        if node.domain in _ALIEN_DOMAINS:
            return _ALIEN_DOMAINS[node.domain]
        if node.op_type in _ALIEN_OPERATORS:
            return _ALIEN_OPERATORS[node.op_type]
        for attribute in node.attribute:
            if attribute.t.data_type in _ALIEN_TYPES:
                return _ALIEN_TYPES[attribute.t.data_type]
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return _ALIEN_VALUES.get(kind, str(kind))
        number = value.type.tensor_type.elem_type
        if number in _ALIEN_TYPES:
            return _ALIEN_TYPES[number]
    return ""


# --------------------------------------------------------------------------------------------- compilation


@dataclass(frozen=True)
class Compiled:
    """A test with its compiled model."""

    case: Case
    model: CompiledModel
    bound: tuple[str, ...]

    def sample(self) -> dict[str, np.ndarray]:
        """Return the inputs that were not fixed at compile time."""
        return {
            e.name: self.case.inputs[e.name].astype(e.dtype.numpy).reshape(e.shape) for e in self.model.program.inputs
        }


def compile_case(case: Case, number: int, board: str = "host", optimize: str = "balanced") -> Compiled | Outcome:
    """Compile a test for a board."""
    model = _with_known_shapes(case)
    try:
        return Compiled(case, *compile_binding(model, case.inputs, f"m{number}", board=board, optimize=optimize))
    except McugenError as error:
        return outcome(case, str(error))
    except Exception as error:  # a crash of the compiler is a finding, too
        return outcome(case, f"crash: {type(error).__name__}: {error}")


def compile_binding(
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    name: str,
    first: Sequence[str] = (),
    board: str = "host",
    optimize: str = "balanced",
) -> tuple[CompiledModel, tuple[str, ...]]:
    """Compile a model, and fix inputs at compile time until the compiler asks for no more.

    The inputs in `first` are fixed in any case.
    """
    bound = list(first)
    while True:
        options = CompileOptions(name=name, optimize=optimize, bound={n: inputs[n] for n in bound})
        try:
            return compile_model(model, board, options), tuple(bound)
        except McugenError as error:
            wanted = [n for n in re.findall(r"--bind '([^']*)=", str(error)) if n in inputs]
            wanted = [n for n in dict.fromkeys(wanted) if n not in bound]
            if not wanted or len(bound) > MAX_BOUND_INPUTS:
                raise
            bound += wanted


def outcome(case: Case, reason: str, bound: Sequence[str] = ()) -> Outcome:
    """Return the outcome of a test: failed with a reason, or passed without."""
    text = " ".join(reason.split())
    return Outcome(case.name, case.kind, case.operators, "failed" if text else "passed", text, tuple(bound))


def _with_known_shapes(case: Case) -> onnx.ModelProto:
    """Return the model with the test's input and output shapes in place of symbols."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for values, arrays in ((model.graph.input, case.inputs), (model.graph.output, case.outputs)):
        for value in values:
            if value.name in arrays:
                shape = value.type.tensor_type.shape
                shape.Clear()
                for size in arrays[value.name].shape:
                    shape.dim.add().dim_value = size
                value.type.tensor_type.shape.SetInParent()
    return model


# ----------------------------------------------------------------------------------------------- execution


def run_together(compiled: Sequence[Compiled], board: str = "host") -> list[Outcome]:
    """Build and run compiled tests as one program; if that fails, find the tests at fault."""
    return run_or_blame(
        compiled,
        lambda some: _run(some, board),
        lambda c: c.model.bundle.name,
        lambda c, _, error: outcome(c.case, str(error), c.bound),
    )


def _run(compiled: Sequence[Compiled], board: str) -> list[Outcome]:
    bundle = combine([c.model.bundle for c in compiled])
    sample = {f"{c.model.bundle.name}/{n}": a for c in compiled for n, a in c.sample().items()}
    target = load_board(board)
    (outputs,) = simulate(bundle, target, [sample], measure=False, setup=Setup(sanitize=not target.qemu)).outputs
    each = ({n: outputs[f"{c.model.bundle.name}/{n}"] for n in c.case.outputs} for c in compiled)
    return [outcome(c.case, difference(c.case, found), c.bound) for c, found in zip(compiled, each, strict=True)]


def difference(case: Case, found: dict[str, np.ndarray]) -> str:
    """Return how outputs differ from the expected ones; "" if they agree within the test's tolerance."""
    for name, wanted in case.outputs.items():
        got = found[name]
        if got.shape != wanted.shape:
            return f"wrong result: '{name}' has shape {got.shape}, not {wanted.shape}"
        if _byte_dtype(wanted) != got.dtype:
            return f"wrong result: '{name}' is {got.dtype}, not {wanted.dtype}"
        if not np.allclose(_wide(got), _wide(wanted), case.rtol, case.atol, equal_nan=True):
            with np.errstate(all="ignore"):
                worst = np.nanmax(np.abs(_wide(got).astype(np.float64) - _wide(wanted).astype(np.float64)))
            return f"wrong result: '{name}' differs by up to {worst:.3g}"
    return ""


def _byte_dtype(array: np.ndarray) -> np.dtype:
    return np.dtype(
        {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}.get(array.dtype.name, array.dtype)
    )


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.itemsize <= 2 else array


def run_suite(
    found: Sequence[Case | Outcome], board: str = "host", jobs: int = 2, quiet: bool = False
) -> list[Outcome]:
    """Run all tests; return their outcomes in order of kind and name."""
    todo = [c for c in found if isinstance(c, Case)]
    done = [c for c in found if isinstance(c, Outcome)]
    chunks = [(todo[i : i + BATCH], i, board) for i in range(0, len(todo), BATCH)]
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(_run_chunk, chunks)
        watched = results if quiet else track(results, "running", len(chunks), console=Console(stderr=True))
        for outcomes in watched:
            done += outcomes
    return sorted(done, key=lambda o: (KINDS.index(o.kind), o.name))


def _run_chunk(chunk: tuple[list[Case], int, str]) -> list[Outcome]:
    tests, first, board = chunk
    compiled = [compile_case(case, first + number, board) for number, case in enumerate(tests)]
    refused = [c for c in compiled if isinstance(c, Outcome)]
    return refused + run_together([c for c in compiled if isinstance(c, Compiled)], board)


# -------------------------------------------------------------------------------------------------- report


def summary(outcomes: Sequence[Outcome], simulated: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the text of docs/reference/onnx_coverage.md: outcomes on the host and, for passed tests, on boards."""
    lines = [
        f"onnx {onnx.__version__}, opset {onnx.defs.onnx_opset_version()}; `make onnx-tests`.",
        "",
        "| tests | in all | passed | failed | out of scope |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        lines.append(_row(kind, [o for o in outcomes if o.kind == kind]))
    lines.append(_row("**all**", outcomes))
    passed = [o for o in outcomes if o.state == "passed"]
    bound = [o for o in passed if o.bound]
    lines += [
        "",
        f"Of those that passed, {len(passed) - len(bound)} ran as they are; in {len(bound)} an input on which shapes "
        "or code depend was fixed at compile time (`--bind`), to the test's value.",
        "",
        "The same tests, compiled for boards and run under QEMU:",
        "",
        "| board | CPU | passed | do not fit its memory | failed |",
        "|---|---|---|---|---|",
        *(_board_row(name, results) for name, results in simulated.items()),
        "",
        "## Out of scope",
        "",
        "| reason | tests |",
        "|---|---|",
    ]
    reasons = Counter(o.reason for o in outcomes if o.state == "out of scope")
    lines += [f"| {reason} | {count} |" for reason, count in sorted(reasons.items())]
    lines += ["", "## Failed", "", "| test | cause |", "|---|---|"]
    lines += [f"| {o.name} | {_cell(_cause(o))} |" for o in outcomes if o.state == "failed"]
    lines += ["", "## By operator", "", "| operator | passed | failed | out of scope |", "|---|---|---|---|"]
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    for result in outcomes:
        for operator in result.operators:
            by_operator[operator][result.state] += 1
    for operator, states in sorted(by_operator.items()):
        lines.append(f"| {operator} | {states['passed']} | {states['failed']} | {states['out of scope']} |")
    return "\n".join(lines)


def _board_row(board: str, outcomes: Sequence[Outcome]) -> str:
    states = Counter("large" if "must fit" in o.reason else o.state for o in outcomes)
    return f"| {board} | {load_board(board).cpu} | {states['passed']} | {states['large']} | {states['failed']} |"


def _cause(result: Outcome) -> str:
    causes = [why for pattern, why in _CAUSES.items() if re.search(pattern, result.name)]
    return ": ".join([result.reason, *causes])


def _row(kind: str, outcomes: Sequence[Outcome]) -> str:
    states = Counter(o.state for o in outcomes)
    return f"| {kind} | {len(outcomes)} | {states['passed']} | {states['failed']} | {states['out of scope']} |"


def _cell(text: str, longest: int = 240) -> str:
    short = re.sub(r"^every operator must be supported; \d+ nodes? (is|are) not: - ", "", text)
    short = short if len(short) <= longest else short[: longest - 3] + "..."
    return short.replace("|", "\\|").replace("<", "&lt;")


def main(
    pattern: Annotated[str, typer.Option("--filter", help="regular expression that names must match")] = "",
    board: Annotated[str, typer.Option(help="`host`, or a board to run under QEMU")] = "host",
    jobs: Annotated[int, typer.Option(help="processes")] = 2,
    also: Annotated[list[str] | None, typer.Option(help="boards to run what passed on")] = None,
    write_docs: Annotated[Path | None, typer.Option(help="document whose table to rewrite")] = None,
) -> None:
    """Run the tests and print the failures; write the document on request."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    found = list(cases(KINDS, pattern))
    outcomes = run_suite(found, board, jobs)
    _print(board, outcomes)
    passed = {o.name for o in outcomes if o.state == "passed"}
    simulated = {name: run_suite([c for c in found if c.name in passed], name, jobs) for name in also or ()}
    for name, results in simulated.items():
        _print(name, results)
    if write_docs:
        rewrite_passage(write_docs, "coverage", summary(outcomes, simulated))


def _print(board: str, outcomes: Sequence[Outcome]) -> None:
    for result in outcomes:
        if result.state == "failed":
            print(f"{result.name}: {result.reason}")
    counts = sorted(Counter(o.state for o in outcomes).items())
    print(f"{board}: " + ", ".join(f"{count} {state}" for state, count in counts))


if __name__ == "__main__":
    typer.run(main)
