# SPDX-License-Identifier: Apache-2.0
"""Measure how many small mistakes the tests find: a mutation score for each room, on a sample.

A mutant is one module with one change: an operator, a constant or a condition is another, a statement is left out.
The tests of a room run once to record which of them reach which lines. Each mutant is then shown to the tests that
reach its line, quickest first, in a fork of the process that collected them. Files are never changed.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import random
import resource
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from markers import rewrite_passage
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "tests.md"
SECONDS = 20
"""CPU seconds beyond ten times the recorded time of the tests, after which a mutant is found because it hangs."""

TESTS = {
    "passes": ("passes", "test_random_graphs.py"),
    "lir": ("lir", "memory/test_regions.py", "lir/test_bounded.py", "lir/test_state.py", "test_streaming.py"),
    "memory": ("memory", "codegen/test_memory_regions.py", "lir/test_blocks.py", "test_memory.py", "test_streaming.py"),
    "quantization": ("quantization",),
    "numerics": ("numerics", "expressions/test_expressions.py"),
}
"""The tests that mutants of a room are shown to, below tests/."""

SLOW_TESTS = (
    "quantization/test_code_bits.py",
    "quantization/test_same_quantization.py",
    "quantization/test_official_models.py",
)
"""Files that take minutes and are left out of them."""

ROOMS = tuple(TESTS)
MARKS = "not slow and not qemu and not riscv"

# ------------------------------------------------------------------------------------------------------ mutants


def _both_ways(*pairs: tuple[type[ast.AST], type[ast.AST]]) -> dict[type[ast.AST], type[ast.AST]]:
    return dict([*pairs, *((b, a) for a, b in pairs)])


_COMPARISONS = _both_ways(
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)
)
_ARITHMETIC = {
    **_both_ways((ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)),
    **{ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv},
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "first": "last"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    path: Path
    line: int
    last_line: int
    change: str
    tree: ast.Module
    function: str | None
    """Qualified name of the function or method that holds the change; None if it takes effect at import."""

    @property
    def module(self) -> str:
        """Return the name under which the module is imported."""
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)

    @property
    def place(self) -> str:
        """Return room, file and line."""
        return f"{self.path.parent.name}/{self.path.name}:{self.line}"

    @property
    def source(self) -> str:
        """Return the text of the module."""
        return ast.unparse(self.tree)

    @property
    def code(self) -> CodeType:
        """Return the compiled module, with the line numbers of the file."""
        code: CodeType = compile(self.tree, self.path, "exec", dont_inherit=True)
        return code


Site = tuple[Path, int, int]
"""A module, a node by its number, and the number of one of the changes that it may have."""


def sites(path: Path) -> Iterator[Site]:
    """Yield all places of a module, in the order of its lines."""
    for number, node in enumerate(_code(ast.parse(path.read_text()))):
        yield from ((path, number, variant) for variant, _ in enumerate(_changes(node)))


def mutant(site: Site) -> Mutant:
    """Return the module with the change."""
    path, number, variant = site
    tree = ast.parse(path.read_text())
    node = list(_code(tree))[number]
    line, before = node.lineno, ast.unparse(node)
    whole = node.test if isinstance(node, (ast.If, ast.While)) else node
    last_line = whole.end_lineno or line
    function = _enclosing_function(tree, node)
    list(_changes(node))[variant]()
    tree = ast.fix_missing_locations(_Simplified().visit(tree))
    change = f"`{_short(before)}` → `{_short(ast.unparse(node))}`"
    return Mutant(path, line, last_line, change, tree, function)


def _enclosing_function(scope: ast.Module | ast.ClassDef, node: ast.AST, prefix: str = "") -> str | None:
    for child in scope.body:
        if isinstance(child, ast.ClassDef):
            if found := _enclosing_function(child, node, f"{prefix}{child.name}."):
                return found
        elif isinstance(child, ast.FunctionDef) and any(n is node for s in child.body for n in ast.walk(s)):
            return prefix + child.name
    return None


def _code(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield expressions and statements that have a say in results.

    Annotations and messages of errors have none, nor has `strict` of zip, which only asserts that lengths agree.
    """
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Raise) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, (ast.expr, ast.stmt)):
                yield child
            yield from _code(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[Callable[[], None]]:
    """Yield what may be done to this node in place."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            yield lambda: node.ops.__setitem__(0, _COMPARISONS[type(op)]())
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield lambda: setattr(node, "op", _ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield lambda: setattr(node, "op", ast.Or() if isinstance(op, ast.And) else ast.And())
            yield lambda: node.values.pop()
        case ast.UnaryOp(op=ast.Not()):
            yield lambda: setattr(node, "op", ast.UAdd()) or setattr(node, "operand", _call("bool", node.operand))
        case ast.Constant(value=bool(value)):
            yield lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield lambda: setattr(node, "value", value + 1)
        case ast.Name(id=name) if name in _NAMES and isinstance(node.ctx, ast.Load):
            yield lambda: setattr(node, "id", _NAMES[name])
        case ast.If() | ast.IfExp() | ast.While():
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.Expr(value=ast.Call()):
            yield lambda: setattr(node, "value", ast.Constant(None))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield lambda: setattr(node, "value", ast.Constant(None))


class _Simplified(ast.NodeTransformer):
    """A transformer that replaces an `and` or `or` with one operand by the operand."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        return node if len(node.values) > 1 else node.values[0]


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 60 else line[:57] + "..."


# ------------------------------------------------------------------------------------------------------- sample


def sampled(room: str, count: int, seed: int) -> list[Mutant]:
    """Return so many of a room's mutants, each as likely as any other."""
    places = [site for path in sorted((ROOT / "mcugen" / room).glob("*.py")) for site in sites(path)]
    return [mutant(site) for site in random.Random(seed).sample(places, min(count, len(places)))]


# -------------------------------------------------------------------------------------------------------- reach


@dataclass(frozen=True)
class Reached:
    """The CPU seconds of a test, and the lines of the room that it runs, by file."""

    seconds: float
    lines: Mapping[str, Sequence[int]]

    def meets(self, mutant: Mutant) -> bool:
        """Return whether the test runs the mutant's line; a change at import meets all that use the module."""
        lines = self.lines.get(str(mutant.path.relative_to(ROOT)), ())
        return any(mutant.line <= line <= mutant.last_line for line in lines) if mutant.function else bool(lines)


class Tracer:
    """A context manager that records which lines of a folder run."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}{os.sep}"
        self.unseen: dict[CodeType, set[int]] = {}
        self.lines: defaultdict[str, list[int]] = defaultdict(list)

    def __enter__(self) -> Tracer:
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _enter_function(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self.unseen:
            is_traced = code.co_filename.startswith(self.folder)
            self.unseen[code] = {line for *_, line in code.co_lines() if line} if is_traced else set()
        return self._run_line if self.unseen[code] else None

    def _run_line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        code, line = frame.f_code, frame.f_lineno
        if line in self.unseen[code]:
            self.unseen[code].discard(line)
            self.lines[str(Path(code.co_filename).relative_to(ROOT))].append(line)
        return self._run_line if self.unseen[code] else None


# --------------------------------------------------------------------------------------------------------- runs


def in_fork(work: Callable[[], Any], seconds: float = math.inf, *, is_quiet: bool = True) -> Any:
    """Return what `work` returns (as JSON has it) in a fork of this process; None if that dies or takes too long."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if math.isfinite(seconds):
                resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds),) * 2)
            if is_quiet:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
            text = json.dumps(work())
            with os.fdopen(sink, "w") as file:
                file.write(text)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


class Trial:
    """A pytest plug-in that collects the tests of a room once, and runs them on each mutant."""

    def __init__(self, room: str, mutants: Sequence[Mutant], seconds: float, known: Path | None) -> None:
        self.folder = ROOT / "mcugen" / room
        self.mutants = mutants
        self.seconds = seconds
        self.known = known
        self.reached: dict[str, Reached] = {}
        self.fates: dict[int, str] = {}
        """What became of each mutant, by its number; those are absent that take effect at import."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record which test reaches which line; then try the mutants."""
        items = {item.nodeid: item for item in session.items}
        self.reached = self._record(items)
        functions, caches = self._functions()
        for number, mutant in enumerate(self.mutants):
            targets = functions[str(mutant.path), mutant.function]
            if len(targets) == 1:
                self.fates[number] = self._fate(mutant, targets[0], caches, items)
                print(f"{self.fates[number]}: {mutant.place}: {mutant.change}", flush=True)
        return True

    def _record(self, items: Mapping[str, pytest.Item]) -> dict[str, Reached]:
        known = json.loads(self.known.read_text()) if self.known and self.known.exists() else {}
        new = [item for name, item in items.items() if name not in known]
        known |= in_fork(lambda: {item.nodeid: _reach(item, following, self.folder) for item, following in _pairs(new)})
        if self.known:
            self.known.write_text(json.dumps(known))
        for name in items:
            if known[name] is None:
                print(f"left out, as it fails without a mutant: {name}", flush=True)
        return {name: Reached(*known[name]) for name in items if known[name]}

    def _functions(self) -> tuple[Mapping[tuple[str, str | None], list[FunctionType]], list[Any]]:
        """Return the functions of the room by file and name, and all caches of functions."""
        gc.unfreeze()
        objects = gc.get_objects()
        functions: defaultdict[tuple[str, str | None], list[FunctionType]] = defaultdict(list)
        for value in objects:
            if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(str(self.folder)):
                functions[value.__code__.co_filename, value.__code__.co_qualname].append(value)
        caches = [value for value in objects if isinstance(value, functools._lru_cache_wrapper)]
        gc.freeze()
        return functions, caches

    def _fate(self, mutant: Mutant, function: FunctionType, caches: Sequence[Any], items: Mapping[str, Any]) -> str:
        names = reaching(mutant, self.reached, self.seconds)
        code = function_code(mutant, function.__code__)

        def first_failure() -> str:
            function.__code__ = code
            for cache in caches:
                cache.cache_clear()
            pairs = _pairs([items[name] for name in names])
            return next((item.nodeid for item, following in pairs if not _passes(item, following)), "")

        return _tried(first_failure, [self.reached[name] for name in names])


def _tried(first_failure: Callable[[], str], tests: Sequence[Reached]) -> str:
    """Return what becomes of a mutant that these tests meet."""
    limit = SECONDS + 10 * sum(test.seconds for test in tests)
    return fate(len(tests), in_fork(first_failure, limit) if tests else "")


def fate(tests: int, failed: str | None) -> str:
    """Return what became of a mutant: how many tests it met, and which failed (None: they did not end)."""
    if failed is None:
        return "found (hangs or crashes)"
    return f"found by {failed}" if failed else f"SURVIVED {tests} tests" if tests else "NOT REACHED"


def reaching(mutant: Mutant, reached: Mapping[str, Reached], seconds: float) -> list[str]:
    """Return the tests that meet the mutant, quickest first, as many as take so many CPU seconds together."""
    names = sorted((name for name, each in reached.items() if each.meets(mutant)), key=lambda n: reached[n].seconds)
    total = list(accumulate(reached[name].seconds for name in names))
    return [name for name, sum_so_far in zip(names, total, strict=True) if sum_so_far <= seconds or name == names[0]]


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Yield each test and the one that follows, whose fixtures stay."""
    return zip(items, [*items[1:], None], strict=bool(items))


def _reach(item: pytest.Item, following: pytest.Item | None, folder: Path) -> tuple[float, dict[str, list[int]]] | None:
    start = sum(os.times()[:4])
    with Tracer(folder) as tracer:
        passed = _passes(item, following)
    return (sum(os.times()[:4]) - start, tracer.lines) if passed else None


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def function_code(mutant: Mutant, before: CodeType) -> CodeType:
    """Return the code of the mutant's function."""
    codes = [mutant.code]
    while codes:
        code = codes.pop()
        if (code.co_qualname, code.co_firstlineno) == (before.co_qualname, before.co_firstlineno):
            return code
        codes += [value for value in code.co_consts if isinstance(value, CodeType)]
    raise LookupError(mutant.place)


class _InPlace(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An importer that imports the mutant in its module's place."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.mutant.path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.mutant.code, module.__dict__)


def imported_fate(mutant: Mutant, reached: Mapping[str, Reached], seconds: float) -> str:
    """Return what becomes of a mutant that takes effect when its module is imported."""
    names = reaching(mutant, reached, seconds)

    def first_failure() -> str:
        sys.meta_path.insert(0, _InPlace(mutant))
        return "" if run_pytest(names) == 0 else "a test"

    return _tried(first_failure, [reached[name] for name in names])


def run_pytest(tests: Sequence[str], *plugins: object) -> int:
    """Return the exit code of pytest for these tests."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcugen"]:
        del sys.modules[name]
    quiet = ("-x", "-q", "-s", "-p", "no:cacheprovider", "-m", MARKS, "--hypothesis-seed=0")
    return int(pytest.main([*quiet, *tests], plugins=[*plugins]))


def fates(room: str, mutants: Sequence[Mutant], seconds: float, known: Path | None) -> list[str]:
    """Return what became of each mutant of a room."""
    trial = Trial(room, mutants, seconds, known)

    def work() -> tuple[Any, Any]:
        left_out = [f"--ignore=tests/{name}" for name in SLOW_TESTS]
        run_pytest([*left_out, *(f"tests/{name}" for name in TESTS[room])], trial)
        return trial.fates, {name: (each.seconds, each.lines) for name, each in trial.reached.items()}

    tried, reached = in_fork(work, is_quiet=False)
    tests = {name: Reached(*each) for name, each in reached.items()}
    for number, each in enumerate(mutants):
        if str(number) not in tried:
            tried[str(number)] = imported_fate(each, tests, seconds)
            print(f"{tried[str(number)]}: {each.place}: {each.change}", flush=True)
    return [tried[str(number)] for number in range(len(mutants))]


def preload() -> None:
    """Import what takes seconds and is no part of mcugen, so that forks have it."""
    for name in ("hypothesis", "onnx.reference", "onnxruntime", "ortools.sat.python.cp_model", "rich.console"):
        importlib.import_module(name)


def main() -> None:
    """Print each mutant's fate; rewrite docs/reference/figures/tests.md if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds of tests that a mutant is shown to")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument("--known", type=Path, help="a file that keeps which test reaches which lines, for one room")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    mutants = {room: sampled(room, options.sample, options.seed) for room in options.rooms}
    if options.list:
        print("\n".join(f"{m.place}: {m.change}" for each in mutants.values() for m in each))
        return
    preload()
    sys.dont_write_bytecode = False  # forks need not compile each module again
    results = {room: fates(room, each, options.seconds, options.known) for room, each in mutants.items()}
    text = _table(results, options.seed)
    print(text)
    if options.write_docs:
        rewrite_passage(DOCUMENT, "mutants", text)


def _table(results: Mapping[str, Sequence[str]], seed: int) -> str:
    lines = [
        "| room | mutants | found | survived | not reached | score | 95 % interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for room, each in results.items():
        found, survived, missed = (
            sum(fate.startswith(start) for fate in each) for start in ("found", "SURVIVED", "NOT REACHED")
        )
        low, high = interval(found, len(each))
        score = f"{100 * found / len(each):.0f} % | {100 * low:.0f} to {100 * high:.0f} %"
        lines.append(f"| `{room}` | {len(each)} | {found} | {survived} | {missed} | {score} |")
    return "\n".join(
        [*lines, "", f"(`make mutants`, seed {seed}; Python {sys.version_info.major}.{sys.version_info.minor}.)"]
    )


def interval(found: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    ends = binomtest(found, total).proportion_ci(method="wilson")
    return float(ends.low), float(ends.high)


if __name__ == "__main__":
    main()
