# SPDX-License-Identifier: Apache-2.0
"""Differential test of random structured networks, by seed: family, batch, opset, quantization, options and board.

Four programs compute each network: ONNX Runtime (the file as it was written, node by node), the numpy reference of the
compiled graph, the C code on this computer under the sanitizers, and the C code for a board under QEMU. numpy must be
as near to ONNX Runtime as rounding explains; the others must agree with numpy: integers exactly, floats nearly.

`make fuzz-networks`, or PYTHONPATH=tests:tests/ops:tools python tests/fuzz_networks.py --help
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import onnx
import typer
from bundle_batch import combine
from dynamic_chains import EXACT, TRANSCENDENTAL, dynamic_chain
from fuzz_graphs import Finding
from network_styles import CALIBRATION_SAMPLES, OWN, STYLES, noisy
from onnx import numpy_helper
from onnx_models import Feeds, random_feeds
from reduce_model import reduced
from sized_graphs import LENGTHS, sized_model
from structured_networks import NEWEST_OPSET, OLDEST_OPSET, Network, network_of, structured_network
from two_core_boards import two_cores

from mcugen.api.compilation import Compilation
from mcugen.core.board import Board, load_board
from mcugen.core.errors import DoesNotFitError, McugenError, UnsupportedError, UsageError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.memory.verify_plan import verify_plan
from mcugen.quantization.quantize import Quantization
from mcugen.simulation import Setup, simulate

BATCH = 8
"""Number of networks that one C program contains."""
SAMPLES = 3
"""Number of samples that each network runs on."""
CHAIN = "dynamic chain"
"""Name of the family of networks that are quantized at run time; no quantizer changes them."""
BOARDS = ("nrf52840", "corstone300", "rp2040", "rt1060", "rv32imc", "rv32imafc", "stm32f746", "sam3x8e")
"""Names of the boards that cases are compiled for."""
ARM_CORES = ("rp2040", "rp2350")
OWN_PRECISIONS = ("int8", "int8", "int16x8", "w4a8")
FLOAT_ERROR = 1e-4
"""Largest difference between two float programs, relative to the largest magnitude of a tensor."""
HALF_ERROR = 2e-2
"""Largest relative difference between two programs of which one computes in float16."""
HALF_STEP = float(np.finfo(np.float16).eps)
"""Relative distance between neighbouring float16 numbers: two float32 sums may round to either of two neighbours."""
EARLY_STEPS = ("compile", "numpy", "ONNX Runtime")
"""Steps of a check that need no C code."""
MOVEMENTS = ("Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Gather")
NOISE_RUNS = 3
"""Number of runs of ONNX Runtime with rounding noise; their largest effect is the accepted difference."""
MAX_NOISE_RUNS = 24
"""Number of runs with rounding noise if an element differs by more than in the first NOISE_RUNS.

The largest effect of a run varies by a factor of 3 in networks of 16-bit activations (seed 120170: 0.0026 to 0.0078 in
20 runs).
"""


@dataclass(frozen=True)
class Case:
    """A network as a file, with the quantization, options, board and samples that it is tested with."""

    network: Network
    style: str
    model: onnx.ModelProto
    options: CompileOptions
    board: str
    """A board's name, with "+" behind it for two cores; empty for this computer alone."""
    samples: Sequence[Feeds]
    share_of_ram: float = 0.0
    """RAM limit as a share of the RAM that the network takes without a limit; 0 for no limit."""
    quantization: Quantization | None = None

    @property
    def seed(self) -> int:
        return self.network.seed

    def describe(self) -> str:
        """Return a description of the case for messages."""
        opset = next(o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx"))
        parts = [self.network.family, self.style, f"opset {opset}", self.options.describe(), self.board or "host"]
        return ", ".join([*parts, *([f"{self.share_of_ram:g} of its RAM"] if self.share_of_ram else [])])


def case_of(seed: int, style: str = "", family: str = "") -> Case:
    """Return the case of a seed; style and family are random unless they are given."""
    random = Random(f"case {seed}")
    style = style or random.choice([*STYLES, *STYLES, f"{OWN} {random.choice(OWN_PRECISIONS)}", "float32", "dynamic"])
    network = _network(seed, style, family, random)
    known = [_feeds(network, 1000 + i) for i in range(CALIBRATION_SAMPLES)]
    samples = [_feeds(network, seed + i) for i in range(SAMPLES)]
    states = network.states if random.random() < 0.8 else {}
    board = random.choice(BOARDS) if random.random() < 0.6 else ""
    if board and random.random() < 0.25:
        board = f"{random.choice(ARM_CORES)}+"
    is_integer = style.startswith(("QDQ", OWN))
    image = network.model.graph.input[0]
    can_stream = len(network.model.graph.input) == 1 and len(image.type.tensor_type.shape.dim) == 4
    options = CompileOptions(
        f"n{seed}",
        network.dims,
        states=states,
        optimize=random.choice(GOALS),
        external_io=random.random() < 0.2,
        steps=random.random() < 0.2,
        integer_io=is_integer and random.random() < 0.4,
        stream_input=can_stream and random.random() < 0.3,
        cores=2 if board.endswith("+") else 1,
    )
    share = random.choice((0.6, 0.8)) if random.random() < 0.15 else 0.0
    if style.startswith(OWN):
        quantized = _quantized(network, style.split()[1], known, options)
        return Case(network, style, quantized.proto, options, board, _without(samples, states), share, quantized)
    model = network.model if network.family == CHAIN else STYLES[style](network, known, random)
    return Case(network, style, model, options, board, _without(_typed(model, samples), states), share)


def _typed(model: onnx.ModelProto, samples: Sequence[Feeds]) -> list[Feeds]:
    """Samples in the element types that a file declares."""
    types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    return [{name: array.astype(types[name]) for name, array in sample.items()} for sample in samples]


def _network(seed: int, style: str, family: str, random: Random) -> Network:
    """Return a float network of an opset that the style can write, or one over a length.

    Calibration samples of mcugen's quantizer have one length.
    """
    if family == "sized" or (not family and not style.startswith(OWN) and random.random() < 0.08):
        return Network(seed, "sized", sized_model(seed), dims={"T": LENGTHS})
    if family == CHAIN or (not family and style == "dynamic" and random.random() < 0.3):
        chain = dynamic_chain(seed, (*EXACT, *TRANSCENDENTAL))
        return Network(seed, CHAIN, chain.model, chain.states, {"T": (chain.low, chain.high)})
    oldest = 13 if style.startswith("QDQ") else 11 if style.startswith(("QOperator", "dynamic")) else OLDEST_OPSET
    opset = random.randint(oldest, NEWEST_OPSET if style in ("float32", "MatMulNBits") else 21)
    return network_of(seed, family, opset) if family else structured_network(seed, opset)


def _feeds(network: Network, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; free dimensions get random sizes, the smallest and the largest among them."""
    random = Random(seed)
    model = onnx.ModelProto.FromString(network.model.SerializeToString())
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in network.dims:
                low, high = network.dims[dim.dim_param]
                dim.dim_value = random.choice((low, high, random.randint(low, high)))
    return random_feeds(model, seed, spread=random.choice((0.7, 1.0, 1.5)))


def _without(samples: Sequence[Feeds], states: Mapping[str, str]) -> list[Feeds]:
    return [{name: array for name, array in s.items() if name not in states.values()} for s in samples]


def _quantized(network: Network, precision: str, known: Sequence[Feeds], options: CompileOptions) -> Quantization:
    arrays = {name: np.stack([s[name] for s in known]) for name in known[0] if name not in options.states.values()}
    how = Quantizing(precision=precision, calibration=arrays)
    return Compilation(network.model, "host", options, how).quantized


# ------------------------------------------------------------------------------------------------------- checks


@dataclass(frozen=True)
class Compiled:
    """A compiled case, its inputs as the code takes them, and the outputs of the numpy reference."""

    case: Case
    model: CompiledModel
    feeds: Sequence[Feeds]
    expected: Sequence[Feeds]
    limits: Mapping[str, float]
    """Largest difference of each output of a quantized network that rounding alone explains."""


@dataclass
class Outcome:
    """Findings, refusals and counts of some cases."""

    findings: list[Finding] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        """Add the findings and counts of other cases."""
        self.findings += other.findings
        self.refused += other.refused
        self.counts += other.counts


def check(cases: Sequence[Case], runs_c: bool = True) -> Outcome:
    """Compile the cases, run them, and compare the results.

    Args:
        cases: The cases.
        runs_c: Whether the C code runs, in addition to numpy and ONNX Runtime.
    """
    outcome = Outcome()
    good = []
    for case in cases:
        outcome.counts[case.style] += 1
        found = compile_case(case)
        if isinstance(found, Compiled):
            good.append(found)
        elif isinstance(found, Finding):
            outcome.findings.append(found)
        else:
            outcome.refused[found] += 1
    if not runs_c:
        return outcome
    outcome.findings += run(good, "C on host", "host")
    for board in dict.fromkeys(c.case.board for c in good if c.case.board):
        parts = []
        for compiled in (c for c in good if c.case.board == board):
            found = compile_for_board(compiled)
            if isinstance(found, Compiled):
                parts.append(found)
            elif isinstance(found, Finding):
                outcome.findings.append(found)
            else:
                outcome.refused[found] += 1
        outcome.findings += run(parts, f"C on {board}", board.rstrip("+"))
    return outcome


def compile_case(case: Case) -> Compiled | Finding | str:
    """Compile a case for this computer, and compare numpy with ONNX Runtime.

    Returns:
        The compiled case, the fault that it shows, or the reason why it was refused.
    """
    step = "compile"
    try:
        model = compile_here(case)
        verify_plan(model.program)
        step = "numpy"
        feeds = feeds_of(case, model)
        expected = interpret_stream(model, feeds)
        step = "ONNX Runtime"
        limits = compare_with_onnxruntime(case, model.first_states, feeds, expected)
    except (UnsupportedError, UsageError, DoesNotFitError) as error:
        return _rule(error)
    except Exception as error:
        return _failure(case.seed, step, error)
    return Compiled(case, model, feeds, expected, limits)


def compile_here(case: Case) -> CompiledModel:
    """Compile a case for this computer, within the case's share of RAM."""
    return compile_within_share(case, "host", replace(case.options, cores=1))


def compile_within_share(case: Case, board: str | Board, options: CompileOptions) -> CompiledModel:
    """Compile a case, and if it has a share of RAM, compile it again within that share.

    The share is of the RAM that the first program takes. If no program fits it, the first program is returned.

    Args:
        case: The case.
        board: The board, or its name.
        options: The options of the compilation.
    """
    source = case.quantization or case.model
    model = compile_model(source, board, options)
    if not case.share_of_ram:
        return model
    limit = int(case.share_of_ram * model.program.arena_size)
    try:
        return compile_model(source, board, replace(options, max_ram=limit))
    except DoesNotFitError:
        return model


def feeds_of(case: Case, model: CompiledModel) -> list[dict[str, np.ndarray]]:
    """Return the samples as the generated code takes them."""
    dtypes = {e.name: e.dtype.value for e in model.program.inputs}
    return [{n: _as_given(case, n, a, dtypes[n]) for n, a in sample.items()} for sample in case.samples]


def _rule(error: McugenError) -> str:
    """What a refusal says, without the figures of this model."""
    return re.sub(r"[\d,]+", "N", " ".join(str(error).split("found:")[0].split()))[:100]


def _failure(seed: int, step: str, error: Exception) -> Finding:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Finding(
        seed, step, f"{type(error).__name__}: {' '.join(str(error).split())} ({last.filename}:{last.lineno})"
    )


def interpret_stream(model: CompiledModel, feeds: Sequence[Feeds]) -> list[dict[str, np.ndarray]]:
    """Return the outputs of the numpy reference, whose states pass from each sample to the next."""
    kept, results = model.first_states, []
    for sample in feeds:
        found = model.interpret({**kept, **sample})
        kept = {target: found[source] for source, target in model.options.states.items()}
        results.append({name: array for name, array in found.items() if name not in model.options.states})
    return results


def compare_with_onnxruntime(
    case: Case, first: Feeds, feeds: Sequence[Feeds], expected: Sequence[Feeds]
) -> dict[str, float]:
    """Raise AssertionError where numpy differs from ONNX Runtime by more than rounding explains.

    ONNX Runtime rounds at each QuantizeLinear, and mcugen may round one step otherwise. So ONNX Runtime also runs the
    file with a random error of up to one step at each of them: neither the largest difference nor the root of the mean
    square may be larger than these errors cause. Measured over 100 networks, both are at most 0.6 times as large.

    Args:
        first: What inputs that hold states are at first: 0, or the code of 0.
        feeds: The samples as the generated code takes them.
        expected: What numpy makes of them.

    Returns:
        The largest difference that rounding explains, by output; 0 of networks that round nothing.
    """
    given = [{name: _as_declared(case, name, array) for name, array in sample.items()} for sample in feeds]
    found = [{name: _as_declared(case, name, array) for name, array in sample.items()} for sample in expected]

    def outputs(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
        return run_onnxruntime(model, given, fixed=first, states=case.options.states)

    wanted = outputs(case.model)
    is_exact = case.style in ("float32", "float16", "MatMulNBits")
    relative = HALF_ERROR if case.style == "float16" else FLOAT_ERROR
    runs: list[list[dict[str, np.ndarray]]] = []

    def noise_of(name: str, count: int) -> list[np.ndarray]:
        """Return what the noise of `count` runs does to an output."""
        runs.extend(outputs(noisy(case.model, seed)) for seed in range(len(runs), 0 if is_exact else count))
        return [_differences(run, wanted, name) for run in runs]

    limits = {}
    for name in found[0]:
        noise = noise_of(name, NOISE_RUNS)
        error = _differences(found, wanted, name)
        if np.abs(error).max(initial=0) > max((np.abs(n).max(initial=0) for n in noise), default=np.inf):
            noise = noise_of(name, MAX_NOISE_RUNS)
        limits[name] = max((float(np.abs(n).max(initial=0)) for n in noise), default=0.0)
        for number, (got, clean) in enumerate(zip(found, wanted, strict=True)):
            _assert_near(got[name], clean[name], relative, limits[name], f"sample {number}, {name}")
        largest = max(float(np.nan_to_num(np.abs(w[name].astype(np.float64))).max(initial=1e-6)) for w in wanted)
        spread = max((_root_mean_square(n) for n in noise[:NOISE_RUNS]), default=float("inf")) + relative * largest
        mean = _root_mean_square(error)
        assert mean <= spread, f"{name}: differs by {mean:.6g} in the mean, rounding explains {spread:.6g}"
    return limits


def _differences(run: Sequence[Feeds], other: Sequence[Feeds], name: str) -> np.ndarray:
    """Of all samples, one after the other; 0 where one is not finite."""
    with np.errstate(all="ignore"):
        parts = [(a[name].astype(np.float64) - b[name]).reshape(-1) for a, b in zip(run, other, strict=True)]
    return np.nan_to_num(np.concatenate(parts), posinf=0, neginf=0)


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _as_declared(case: Case, name: str, stored: np.ndarray) -> np.ndarray:
    """An input or output as the model's file declares it: reals where --integer-io has codes."""
    if not case.options.integer_io or stored.dtype.kind not in "iu":
        return stored
    border = border_quantization(case.model, name)
    if border is None:
        ends = {v.name: v.type.tensor_type.elem_type for v in (*case.model.graph.input, *case.model.graph.output)}
        is_real = onnx.helper.tensor_dtype_to_np_dtype(ends[name]).kind == "f"
        assert not is_real, f"{name}: {stored.dtype} in the program, and the file has no conversion before it"
        return stored
    scale, zero = border
    return ((stored.astype(np.int64) - int(zero)).astype(np.float32) * np.float32(scale)).astype(np.float32)


def _as_given(case: Case, name: str, real: np.ndarray, dtype: str) -> np.ndarray:
    """An input as the generated code takes it."""
    if real.dtype.kind != "f" or np.dtype(dtype).kind == "f":
        return real
    border = border_quantization(case.model, name)
    assert border is not None, f"{name}: {dtype} in the program, and the file has no conversion behind it"
    scale, zero = border
    limits = np.iinfo(dtype)
    return np.clip(np.rint(real / np.float32(scale)) + int(zero), limits.min, limits.max).astype(dtype)


def border_quantization(model: onnx.ModelProto, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale and zero point of the conversion behind an input, or before an output, of a file.

    Movements may lie between the input or output and the conversion.
    """
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    makers = {out: node for node in model.graph.node for out in node.output}

    def moved(value: str) -> str:
        """Return the value that movements alone turn into this one."""
        while value in makers and makers[value].op_type in MOVEMENTS:
            value = makers[value].input[0]
        return value

    for node in model.graph.node:
        is_behind = node.op_type == "QuantizeLinear" and moved(node.input[0]) == name
        if is_behind or (node.op_type == "DequantizeLinear" and node.output[0] == moved(name)):
            zero = constants[node.input[2]] if len(node.input) > 2 else np.zeros((), np.int8)
            return constants[node.input[1]], zero
    return None


def _assert_near(found: np.ndarray, wanted: np.ndarray, relative: float, absolute: float, where: str) -> None:
    """Within `relative` of the largest magnitude and `absolute` more; not-a-number only where it is wanted."""
    assert found.shape == wanted.shape, f"{where}: shape {found.shape}, not {wanted.shape}"
    if wanted.dtype.kind == "b":
        assert np.array_equal(found, wanted), f"{where}: differs"
        return
    got, want = found.astype(np.float64), wanted.astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(want)), f"{where}: NaN in other places"
    finite = np.isfinite(want) & np.isfinite(got)
    assert np.array_equal(got[~finite], want[~finite], equal_nan=True), f"{where}: infinite in other places"
    limit = absolute + relative * np.abs(want[finite]).max(initial=1e-6)
    worst = np.abs(got - want)[finite].max(initial=0)
    assert worst <= limit, f"{where}: differs by {worst:.6g}, allowed are {limit:.6g}"


def compile_for_board(compiled: Compiled) -> Compiled | Finding | str:
    """Compile a case for its board, within the share of RAM there; the expected outputs stay."""
    case = compiled.case
    board = two_cores(case.board[:-1]) if case.board.endswith("+") else load_board(case.board)
    try:
        model = compile_within_share(case, board, case.options)
        verify_plan(model.program)
    except (UnsupportedError, UsageError, DoesNotFitError) as error:
        return f"{case.board}: {_rule(error)}"
    except Exception as error:
        return _failure(case.seed, f"compile for {case.board}", error)
    return replace(compiled, model=model)


def run(compiled: Sequence[Compiled], step: str, board: str) -> list[Finding]:
    """Run C code, several cases in one program if possible, and return the differences from the expected outputs."""
    alone = [c for c in compiled if not _can_join(c.model)]
    joined = [c for c in compiled if _can_join(c.model)]
    found = [f for c in alone for f in _run_alone(c, step, board)]
    return found + [f for n in range(0, len(joined), BATCH) for f in _run_joined(joined[n : n + BATCH], step, board)]


def _can_join(model: CompiledModel) -> bool:
    bundle = model.bundle
    return not (bundle.arguments or bundle.streamed or bundle.libraries or len(bundle.arena_sizes) > 1)


def _run_alone(compiled: Compiled, step: str, board: str) -> list[Finding]:
    try:
        setup = Setup(sanitize=board == "host")
        outputs = simulate(compiled.model.bundle, load_board(board), compiled.feeds, measure=False, setup=setup).outputs
    except McugenError as error:
        return [Finding(compiled.case.seed, step, str(error))]
    return compare_outputs(compiled, outputs, step)


def _run_joined(compiled: Sequence[Compiled], step: str, board: str) -> list[Finding]:
    """As one program; where it fails, halves tell which network is at fault."""
    samples = [
        {f"{c.model.bundle.name}/{name}": a for c in compiled for name, a in c.feeds[n].items()} for n in range(SAMPLES)
    ]
    try:
        bundle = combine([c.model.bundle for c in compiled])
        setup = Setup(sanitize=board == "host")
        outputs = simulate(bundle, load_board(board), samples, measure=False, setup=setup).outputs
    except McugenError as error:
        if len(compiled) == 1:
            return [Finding(compiled[0].case.seed, step, str(error))]
        half = len(compiled) // 2
        return _run_joined(compiled[:half], step, board) + _run_joined(compiled[half:], step, board)
    found = []
    for c in compiled:
        prefix = f"{c.model.bundle.name}/"
        found += compare_outputs(
            c, [{n.removeprefix(prefix): a for n, a in o.items() if n.startswith(prefix)} for o in outputs], step
        )
    return found


def compare_outputs(compiled: Compiled, outputs: Sequence[Feeds], step: str) -> list[Finding]:
    """Return the differences between outputs of the C code and the expected outputs.

    Outputs of networks that compute in integers only must be equal. Else a result may round to the neighbouring
    integer.
    """
    has_floats = is_mixed(compiled.model)
    for number, (got, wanted) in enumerate(zip(outputs, compiled.expected, strict=True)):
        for name, array in wanted.items():
            where = f"sample {number}, {name}"
            try:
                if array.dtype.kind in "iu":
                    steps = np.abs(got[name].astype(np.int64) - array).max(initial=0)
                    allowed = most_steps(compiled, name, array.dtype) if has_floats else 0
                    assert steps <= allowed, f"{where}: differs by {steps} steps"
                else:
                    limit = compiled.limits[name] if has_floats else 0.0
                    relative = FLOAT_ERROR + HALF_STEP * (compiled.case.style == "float16") if has_floats else 1e-6
                    _assert_near(got[name], array, relative, limit, where)
            except AssertionError as error:
                return [Finding(compiled.case.seed, step, f"AssertionError: {error}")]
    return []


def most_steps(compiled: Compiled, name: str, dtype: np.dtype) -> float:
    """Return how many steps the codes of two programs may differ by at an output of a network that has floats too."""
    border = border_quantization(compiled.case.model, name) if compiled.case.options.integer_io else None
    explained = compiled.limits[name] / (float(border[0]) if border else 1.0)
    return 1 + FLOAT_ERROR * np.iinfo(dtype).max + explained


def is_mixed(model: CompiledModel) -> bool:
    """Return whether any layer computes in floats, apart from conversions at inputs and outputs."""
    graph = model.graph
    for part in graph.nested():
        for node in part.nodes:
            if node.op.name in ("quantize", "dequantize"):
                continue
            if any(v is not None and v.type.dtype.is_float and v.data is None for v in (*node.inputs, *node.outputs)):
                return True
    return False


def smallest(case: Case, finding: Finding) -> onnx.ModelProto:
    """Return the smallest reduction of a model that shows the same fault."""

    def fails(model: onnx.ModelProto) -> bool:
        names = {info.name for info in model.graph.input}
        outputs = {info.name for info in model.graph.output}
        states = {o: i for o, i in case.options.states.items() if o in outputs and i in names}
        feeds = [
            random_feeds(model, case.seed + n) | {k: v for k, v in s.items() if k in names}
            for n, s in enumerate(case.samples)
        ]
        options = replace(case.options, states=states)
        smaller = replace(case, model=model, options=options, samples=_without(feeds, states), quantization=None)
        return any(finding.is_like(f) for f in check([smaller], finding.step not in EARLY_STEPS).findings)

    try:
        return reduced(case.model, fails)
    except Exception:
        return case.model


def cases_of(seeds: range, style: str = "", family: str = "") -> Iterator[Case | Finding]:
    """Yield the cases of some seeds, without those that a quantizer refuses."""
    for seed in seeds:
        try:
            yield case_of(seed, style, family)
        except McugenError as error:
            yield Finding(seed, "quantize", str(error))


def main(
    first: Annotated[int, typer.Option(help="seed")] = 0,
    seeds: Annotated[int, typer.Option(help="how many networks")] = 100,
    style: Annotated[str, typer.Option(help="of quantization; all of them unless given")] = "",
    family: Annotated[str, typer.Option(help="of networks; all of them unless given")] = "",
    keep: Annotated[Path, typer.Option(help="folder for models that show a fault, made small")] = Path("build/fuzz"),
    runs_c: Annotated[bool, typer.Option("--c/--no-c", help="build and run the C code, not numpy alone")] = True,
    reduce: Annotated[bool, typer.Option(help="make models that show a fault small")] = True,
) -> None:
    """Test random networks, and print what fails; the exit code is 1 if anything does."""
    warnings.simplefilter("ignore")
    total = Outcome()
    for start in range(first, first + seeds, BATCH):
        found = list(cases_of(range(start, min(start + BATCH, first + seeds)), style, family))
        cases = {c.seed: c for c in found if isinstance(c, Case)}
        outcome = check(list(cases.values()), runs_c)
        outcome.findings += [f for f in found if isinstance(f, Finding)]
        total.add(outcome)
        for finding in outcome.findings:
            case = cases.get(finding.seed)
            print(
                f"seed {finding.seed}, {case.describe() if case else ''}\n    {finding.step}: {finding.reason[:600]}",
                flush=True,
            )
            if case:
                small = smallest(case, finding) if reduce else case.model
                keep.mkdir(parents=True, exist_ok=True)
                onnx.save(small, keep / f"network{finding.seed}.onnx")
                print(f"    {', '.join(node.op_type for node in small.graph.node)}", flush=True)
    for reason, count in total.refused.most_common():
        print(f"refused {count}: {reason}")
    print(f"{seeds} networks from seed {first}, {len(total.findings)} findings: {dict(total.counts)}")
    raise typer.Exit(int(bool(total.findings)))


if __name__ == "__main__":
    typer.run(main)
