# SPDX-License-Identifier: Apache-2.0
"""Damages ONNX's own tests and compiles them: what is not refused in order must run safely and as numpy says.

A mutant is one official test with one to three random changes: attributes, shapes, element types, inputs and outputs,
opset, values that are fixed at compile time. Its name and its seed tell it. Allowed is a refusal (exit code 3, 4 or 5),
or code that runs under the sanitizers on ordinary and on extreme inputs with the results of the numpy reference.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from random import Random
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from bundle_batch import combine, run_or_blame
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper
from onnx_tests import Case, cases, compile_binding

from mcugen.core.board import load_board
from mcugen.core.errors import McugenError
from mcugen.driver.compiled import CompiledModel
from mcugen.simulation import Setup, simulate

ALLOWED_EXITS = (3, 4, 5)
SECONDS = 10
"""For one compilation."""
RUN_SECONDS = 900
"""For building and running a batch."""
MAX_COMPILATION_BYTES = 1 << 30
"""Of memory beyond what the process had, for one compilation."""
ADDRESS_SPACE = 8 << 30
"""A limit to protect the machine."""
BATCH = 30
LARGEST = 1 << 16
"""Bytes of inputs of a test that is taken, elements of a tensor that is damaged one by one."""
MAX_RUN_BYTES = 1 << 21
"""Bytes of arena and weights of a mutant that is run."""
RELATIVE = 1e-4
TAME = 1e4
"""A float below it does not make overflow."""

INTS = (0, 1, -1, 2, 3, -2, 7, 64, 1000, 10**6, 10**9, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, 3.4e38, float("nan"), float("inf"), float("-inf"))
SIZES = (0, 1, 1, 2, 3, 5, 17)
HUGE_SIZES = (5000, 2**25, 2**31, 2**40)
TYPES = (
    *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL),
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.INT4),
)


@dataclass(frozen=True)
class Mutant:
    """A damaged test; `bound` names the inputs that are always fixed at compile time."""

    case: Case
    seed: int
    bound: tuple[str, ...]

    @property
    def label(self) -> str:
        """Return the test's name and the seed, which determine the mutant."""
        return f"{self.case.name}:{self.seed}"


@dataclass(frozen=True)
class Finding:
    """The verdict on a mutant: `refused`, `passed`, or the kind of failure."""

    label: str
    state: str
    reason: str = ""

    @property
    def is_bug(self) -> bool:
        """Return whether the mutant shows a bug."""
        return self.state not in ("refused", "passed")


# ------------------------------------------------------------------------------------------------ mutations


def mutate(case: Case, seed: int, words: Sequence[str]) -> Mutant:
    """Return the mutant of a test for a seed. `words` are the strings that attributes may become."""
    random = Random(f"{case.name}/{seed}")
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    inputs = {name: np.array(array) for name, array in case.inputs.items()}
    _free_outputs(model, random)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(_MUTATIONS)(_Subject(model, inputs, random, words))
    for info in model.graph.input:
        if info.name in inputs:
            _retype(info, inputs[info.name])
    bound = tuple(name for name in inputs if random.random() < 0.15)
    return Mutant(replace(case, model=model, inputs=inputs, outputs={}), seed, bound)


@dataclass
class _Subject:
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    random: Random
    words: Sequence[str]

    def node(self) -> NodeProto:
        """Return a random node, which may be in a subgraph."""
        nodes = list(self.model.graph.node)
        while True:
            node = self.random.choice(nodes)
            inner = [n for a in node.attribute if a.HasField("g") for n in a.g.node]
            if not inner or self.random.random() < 0.5:
                return node
            nodes = inner

    def input(self) -> str:
        """Return the name of a random input; "" if there is none."""
        return self.random.choice([*self.inputs] or [""])


def _free_outputs(model: onnx.ModelProto, random: Random) -> None:
    """Remove most declared output shapes, which a mutation may change; keep some, so that they are wrong."""
    if random.random() < 0.8:
        for value in model.graph.output:
            if random.random() < 0.5:
                value.type.tensor_type.ClearField("shape")
            else:
                value.type.Clear()


def _retype(info: onnx.ValueInfoProto, array: np.ndarray) -> None:
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    info.type.CopyFrom(helper.make_tensor_type_proto(number, array.shape))


def _change_attribute(s: _Subject) -> None:
    node, random = s.node(), s.random
    schema = onnx.defs.get_schema(node.op_type, node.domain) if onnx.defs.has(node.op_type, node.domain) else None
    known = list(schema.attributes.values()) if schema else []
    if known and random.random() < 0.4:
        chosen = random.choice(known)
        present = [a for a in node.attribute if a.name == chosen.name]
        fresh = _fresh_attribute(chosen)
        if not present and fresh is not None:
            node.attribute.append(fresh)
    if not node.attribute:
        return
    attribute = random.choice(list(node.attribute))
    if random.random() < 0.1:
        node.attribute.remove(attribute)
        return
    _damage_attribute(attribute, s)


def _fresh_attribute(schema: Any) -> AttributeProto | None:
    if schema.default_value.name:
        return AttributeProto.FromString(schema.default_value.SerializeToString())
    kinds = {"INT": 1, "INTS": [0], "FLOAT": 1.0, "FLOATS": [1.0], "STRING": "", "STRINGS": ["a"]}
    kind = schema.type.name
    return helper.make_attribute(schema.name, kinds[kind]) if kind in kinds else None


def _damage_attribute(attribute: AttributeProto, s: _Subject) -> None:
    random = s.random
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = _near(attribute.i, random)
    elif kind == AttributeProto.FLOAT:
        attribute.f = random.choice((*FLOATS, -attribute.f))
    elif kind == AttributeProto.STRING:
        attribute.s = random.choice([*s.words, "", attribute.s.decode("utf-8", "replace") + "x"]).encode()
    elif kind == AttributeProto.INTS:
        attribute.ints[:] = _list(list(attribute.ints), lambda v: _near(v, random), random)
    elif kind == AttributeProto.FLOATS:
        attribute.floats[:] = _list(list(attribute.floats), lambda v: random.choice((*FLOATS, -v)), random)
    elif kind == AttributeProto.STRINGS:
        words = [w.encode() for w in s.words]
        attribute.strings[:] = _list(list(attribute.strings), lambda _: random.choice(words), random)
    elif kind == AttributeProto.TENSOR:
        array = _hostile(_reshaped(numpy_helper.to_array(attribute.t), random), random)
        if array.size < LARGEST:
            attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))


def _near(value: int, random: Random) -> int:
    if random.random() < 0.4:
        return max(-(2**63), min(2**63 - 1, random.choice((value + 1, value - 1, -value, 2 * value))))
    return random.choice(INTS)


def _list(items: list[Any], other: Callable[[Any], Any], random: Random) -> list[Any]:
    """Return a changed list: shorter, longer, empty, reordered, or with other elements."""
    kind = random.randrange(7)
    if kind == 0 or not items:
        return [] if items else [other(1)] if random.random() < 0.8 and not isinstance(items, bytes) else []
    place = random.randrange(len(items))
    if kind == 1:
        return items[:place] + items[place + 1 :]
    if kind == 2:
        return [*items[:place], items[place], *items[place:]]
    if kind == 3:
        return random.sample(items, len(items))
    if kind == 4:
        return [other(v) for v in items]
    return [*items[:place], other(items[place]), *items[place + 1 :]]


def _change_shape(s: _Subject) -> None:
    name = s.input()
    if name:
        s.inputs[name] = _reshaped(s.inputs[name], s.random)


def _reshaped(array: np.ndarray, random: Random) -> np.ndarray:
    """Return the elements in another shape; a large shape becomes a view that repeats one element."""
    shape = list(array.shape)
    kind = random.randrange(6)
    axis = random.randrange(len(shape)) if shape else 0
    if kind == 0 or not shape:
        shape.insert(axis, random.choice((1, 1, 2)))
    elif kind == 1:
        del shape[axis]
    elif kind == 2:
        random.shuffle(shape)
    elif kind == 3 and random.random() < 0.3:
        shape[axis] = random.choice(HUGE_SIZES)
    else:
        shape[axis] = random.choice((*SIZES, shape[axis] + 1, max(0, shape[axis] - 1), 2 * shape[axis]))
    count = float(np.prod([float(n) for n in shape]))
    if count > 2.0**60:
        return array
    if count > 1 << 20 or array.size > 1 << 20 or not array.size:
        return np.broadcast_to(np.zeros((), array.dtype), shape)
    return np.resize(array, shape).astype(array.dtype)


def _change_type(s: _Subject) -> None:
    name = s.input()
    if not name:
        return
    old, new = s.inputs[name].dtype, helper.tensor_dtype_to_np_dtype(s.random.choice(TYPES))
    whole = s.random.random() < 0.7  # all inputs and outputs that had this type
    for other, array in s.inputs.items():
        if other == name or (whole and array.dtype == old):
            s.inputs[other] = _cast(array, new)
    number = helper.np_dtype_to_tensor_dtype(old)
    for value in s.model.graph.output:
        if whole and value.type.tensor_type.elem_type == number:
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(new)


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if array.size > LARGEST:
            return np.broadcast_to(np.zeros((), dtype), array.shape)
        return array.astype(np.float32).astype(dtype)


def _change_inputs(s: _Subject) -> None:
    node, random = s.node(), s.random
    kind = random.randrange(4)
    if kind == 0 and node.input:
        node.input[random.randrange(len(node.input))] = ""
    elif kind == 1 and node.input:
        del node.input[-1]
    elif kind == 2 and node.input:
        node.input.append(random.choice(list(node.input)))
    elif node.input:
        node.input[random.randrange(len(node.input))] = random.choice(list(node.input))


def _change_outputs(s: _Subject) -> None:
    node, random, graph = s.node(), s.random, s.model.graph
    if random.random() < 0.5 and len(graph.output) > 1:
        gone = graph.output[random.randrange(len(graph.output))]
        for index, name in enumerate(node.output):
            if name == gone.name and random.random() < 0.7:
                node.output[index] = ""
        graph.output.remove(gone)
    else:
        node.output.append("extra")
        if random.random() < 0.7:
            graph.output.append(helper.make_value_info("extra", onnx.TypeProto()))


def _change_values(s: _Subject) -> None:
    name = s.input()
    if name:
        s.inputs[name] = _hostile(s.inputs[name], s.random)


def _change_opset(s: _Subject) -> None:
    for entry in s.model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = s.random.randint(6, onnx.defs.onnx_opset_version())


_MUTATIONS = (
    *[_change_attribute] * 6,
    *[_change_shape] * 5,
    *[_change_values] * 3,
    *[_change_type] * 2,
    *[_change_inputs] * 2,
    _change_outputs,
    _change_opset,
)


def _hostile(array: np.ndarray, random: Random) -> np.ndarray:
    """Replace some or all elements by extreme ones."""
    if array.size > LARGEST:
        return array
    flat = np.array(array).reshape(-1)
    places = range(len(flat)) if random.random() < 0.3 else random.sample(range(len(flat)), min(len(flat), 2))
    with np.errstate(all="ignore"):
        for place in places:
            flat[place] = _extreme(flat.dtype, random)
    return flat.reshape(array.shape)


def _extreme(dtype: np.dtype, random: Random) -> Any:
    if dtype.kind == "b":
        return random.random() < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return max(int(info.min), min(int(info.max), random.choice((*INTS, int(info.min), int(info.max)))))
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        return np.asarray(random.choice((0, 1))).astype(dtype)
    if dtype.kind in "OSU":
        return random.choice(("", "x", "\0"))
    return np.asarray(random.choice(FLOATS)).astype(dtype)


# ---------------------------------------------------------------------------------------------- compilation


@dataclass(frozen=True)
class Survivor:
    """A mutant that was compiled, and the samples to run it on."""

    mutant: Mutant
    model: CompiledModel
    samples: list[dict[str, np.ndarray]]
    expected: list[dict[str, np.ndarray]]

    @property
    def steps(self) -> int:
        """Return the allowed difference of integers: 1 if the model rounds floats to integers, else 0."""
        return int(any(v.type.dtype.is_float for g in self.model.graph.nested() for v in g.values()))


def _compile(mutant: Mutant, number: int) -> Survivor | Finding:
    warnings.simplefilter("ignore")
    try:
        model, _ = compile_binding(mutant.case.model, mutant.case.inputs, f"m{number}", mutant.bound)
    except McugenError as error:
        state = "refused" if error.exit_code in ALLOWED_EXITS else f"exit {error.exit_code}"
        return Finding(mutant.label, state, str(error))
    except Exception as error:
        return _raised(mutant, "crash", error)
    inside = model.program.arena_size + model.program.weights_size  # inputs and outputs lie in the arena
    if inside > MAX_RUN_BYTES:
        return Finding(mutant.label, "passed", "too large to run")
    samples = _samples(mutant, model)
    try:
        expected = [model.interpret(sample) for sample in samples]
    except Exception as error:
        return _raised(mutant, "reference", error)
    return Survivor(mutant, model, samples, expected)


def _raised(mutant: Mutant, state: str, error: Exception) -> Finding:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Finding(mutant.label, state, f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})")


def _samples(mutant: Mutant, model: CompiledModel) -> list[dict[str, np.ndarray]]:
    """Return three samples: random inputs, the mutated test's own inputs, and extreme inputs."""
    random = Random(mutant.label)
    noise = np.random.default_rng(mutant.seed)
    plain, own, wild = {}, {}, {}
    for e in model.program.inputs:
        dtype = e.dtype.numpy
        given = np.resize(np.asarray(mutant.case.inputs[e.name]).astype(dtype), e.shape)
        own[e.name] = given
        if dtype.kind == "f":
            plain[e.name] = (noise.standard_normal(e.shape) * 2).astype(dtype)
        elif dtype.kind == "b" or e.dtype.value == "bool":
            plain[e.name] = noise.integers(0, 2, e.shape).astype(dtype)
        elif e.dtype.is_narrow_float:
            plain[e.name] = given
        else:
            low, high = e.dtype.limits
            plain[e.name] = noise.integers(max(low, -9), min(high, 9) + 1, e.shape).astype(dtype)
        wild[e.name] = given if e.dtype.value == "bool" else _wild(e, given, random)
    return [plain, own, wild]


def _wild(external: Any, given: np.ndarray, random: Random) -> np.ndarray:
    found = _hostile(given, random)
    return np.clip(found, *external.dtype.limits) if external.dtype.is_integer else found


# -------------------------------------------------------------------------------------------------- running


def _run(survivors: Sequence[Survivor]) -> list[Finding]:
    """Build and run the mutants as one program."""
    names = [s.model.bundle.name for s in survivors]
    batch = [
        {f"{n}/{port}": a for n, s in zip(names, survivors, strict=True) for port, a in s.samples[k].items()}
        for k in range(len(survivors[0].samples))
    ]
    bundle, setup = combine([s.model.bundle for s in survivors]), Setup(sanitize=True, timeout=SECONDS)
    results = simulate(bundle, load_board("host"), batch, measure=False, setup=setup).outputs
    found = []
    for name, survivor in zip(names, survivors, strict=True):
        reason = ""
        for number, (result, expected) in enumerate(zip(results, survivor.expected, strict=True)):
            for port, wanted in expected.items():
                if f"{name}/{port}" in result and (_tame(survivor.samples[number])):
                    different = _difference(result[f"{name}/{port}"], wanted, survivor.steps)
                    reason = reason or (different and f"sample {number}, '{port}': {different}")
        found.append(Finding(survivor.mutant.label, "wrong" if reason else "passed", reason))
    return found


def _tame(sample: Mapping[str, np.ndarray]) -> bool:
    """Return whether all floats are so small that nothing overflows, so that results must equal numpy's."""
    floats = [a.astype(np.float64) for a in sample.values() if a.dtype.kind not in "iub"]
    return all(bool((np.abs(a) < TAME).all()) for a in floats)


def _difference(got: np.ndarray, wanted: np.ndarray, steps: int) -> str:
    """Return how a result differs from the expected one where both are finite; "" if it does not.

    Integers may differ by `steps`, and if that is not 0, as they stem from floats, by rounding of the largest.
    """
    if got.shape != wanted.shape:
        return f"shape {got.shape}, not {wanted.shape}"
    if got.dtype != wanted.dtype:
        return f"{got.dtype}, not {wanted.dtype}"
    if got.dtype.kind in "iub":
        allowed = steps + 1e-6 * float(np.abs(wanted.astype(np.float64)).max(initial=0)) if steps else 0
        off = (
            np.abs(got.astype(np.float64) - wanted.astype(np.float64)) > allowed
            if steps and got.dtype.kind != "b"
            else got != wanted
        )
        return f"{got[off][0]}, not {wanted[off][0]}" if off.any() else ""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    largest = float(np.abs(b[both]).max(initial=0))
    with np.errstate(all="ignore"):
        off = both & (np.abs(a - b) > max(RELATIVE, 4 * _epsilon(got.dtype)) * largest + 1e-7)
    return f"{a[off][0]:.6g}, not {b[off][0]:.6g}" if off.any() else ""


def _epsilon(dtype: np.dtype) -> float:
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype.name, 0.0)


def check(mutants: Sequence[Mutant], tell: Callable[[str, object], None] = lambda kind, what: None) -> list[Finding]:
    """Compile and run mutants in this process. `tell` is called before and after each mutant."""
    findings, survivors = [], []
    for number, mutant in enumerate(mutants):
        tell("compiling", mutant.label)
        result = _compile(mutant, number)
        if isinstance(result, Finding):
            findings.append(result)
            tell("found", result)
        else:
            survivors.append(result)
    tell("running", [s.mutant.label for s in survivors])
    for result in run_or_blame(
        survivors,
        _run,
        lambda s: s.model.bundle.name,
        lambda s, state, error: Finding(s.mutant.label, state, str(error)),
    ):
        findings.append(result)
        tell("found", result)
    return findings


# ------------------------------------------------------------------------------------------------- processes


def check_in_process(mutants: Sequence[Mutant]) -> Iterator[Finding]:
    """Check mutants in a separate process, whose hangs, crashes and use of memory are findings."""
    todo = {m.label: m for m in mutants}
    context = multiprocessing.get_context("fork")
    while todo:
        here, there = context.Pipe()
        child = context.Process(target=_serve, args=(list(todo.values()), there))
        child.start()
        there.close()
        labels, seconds = [next(iter(todo))], float(SECONDS)
        found: list[Finding] = []
        while True:
            try:
                if not here.poll(seconds):
                    found = [Finding(label, "hang", f"{seconds:g} s") for label in labels]
                    break
                kind, what = here.recv()
            except EOFError:
                child.join()
                found = [Finding(label, "death", f"exit code {child.exitcode}") for label in labels if label in todo]
                break
            if kind == "found":
                todo.pop(what.label, None)
                yield what
            elif kind == "done":
                todo.clear()
                break
            else:
                labels = [what] if kind == "compiling" else what
                seconds = SECONDS if kind == "compiling" else RUN_SECONDS
        child.kill()
        child.join()
        for finding in found:
            todo.pop(finding.label, None)
            yield finding


def _serve(mutants: Sequence[Mutant], pipe: Connection) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, limits[1]))
    label = ""

    def tell(kind: str, what: object) -> None:
        nonlocal label, before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if (peak - before) * 1024 > MAX_COMPILATION_BYTES:
            pipe.send(("found", Finding(label, "memory", f"{(peak - before) >> 10} MiB")))
            before = peak
        label = str(what) if kind == "compiling" else label
        if kind == "running":  # the sanitizers reserve much
            resource.setrlimit(resource.RLIMIT_AS, limits)
        pipe.send((kind, what))

    check(mutants, tell)
    pipe.send(("done", None))


def attribute_strings(tests: Sequence[Case]) -> list[str]:
    """Return the strings that the tests have in attributes."""
    found = {a.s for c in tests for n in c.model.graph.node for a in n.attribute if a.type == AttributeProto.STRING}
    return sorted(w.decode("utf-8", "replace") for w in found)


def mutants_of(tests: Sequence[Case], seeds: range) -> Iterator[Mutant]:
    """Yield one mutant of every test for each seed."""
    words = attribute_strings(tests)
    return (mutate(case, seed, words) for seed in seeds for case in tests)


def single_nodes() -> list[Case]:
    """Return the official tests of single nodes that are in scope and not too large."""
    return [c for c in cases(("node",)) if isinstance(c, Case) and sum(a.nbytes for a in c.inputs.values()) < LARGEST]


def main(
    pattern: Annotated[str, typer.Option("--filter", help="regular expression that names must match")] = "",
    first: Annotated[int, typer.Option(help="seed")] = 0,
    seeds: Annotated[int, typer.Option(help="mutants of each test")] = 1,
    every: Annotated[int, typer.Option(help="take one test of so many, others for other seeds")] = 1,
    part: Annotated[str, typer.Option(help="I/N: the I-th of N parts")] = "0/1",
    verbose: Annotated[bool, typer.Option(help="print refusals, too")] = False,
) -> None:
    """Print the mutants that show a bug, and count the verdicts."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    tests = single_nodes()
    words = attribute_strings(tests)
    tests = [c for c in tests if re.search(pattern, c.name)]
    index, parts = map(int, part.split("/"))
    states: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        chosen = [c for i, c in enumerate(tests) if (i + seed) % every == 0][index::parts]
        for start in range(0, len(chosen), BATCH):
            for finding in check_in_process([mutate(c, seed, words) for c in chosen[start : start + BATCH]]):
                states[finding.state] += 1
                if finding.is_bug or verbose:
                    print(f"{finding.state}: {finding.label}: {' '.join(finding.reason.split())[:600]}", flush=True)
    print(", ".join(f"{count} {state}" for state, count in sorted(states.items())))


if __name__ == "__main__":
    typer.run(main)
