# SPDX-License-Identifier: Apache-2.0
"""How many small mistakes in the passes and in LIR the tests would find: a mutation score, on a sample.

A mutant is one module with one change (an operator, a constant, a condition, a statement left out). The tests nearest
to the module run first, wider ones only if those pass. Each run is a fork of a process that has the large libraries
loaded, and sees the mutant in the module's place; the files stay as they are.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

from markers import replace_between_markers

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "testing.md"
ROOMS = ("passes", "lir", "memory")
SECONDS = 900
"""Of CPU, after which a mutant is held to hang; that is noticed, too."""

NEAREST = {
    "areas": ("memory/test_place.py", "codegen/test_memory_regions.py"),
    "bounded": ("test_bounded.py",),
    "bounds": ("passes/test_prune.py",),
    "formula": ("test_bounded.py",),
    "lower": ("lir", "passes/test_fuse.py"),
    "moves": ("lir/test_blocks.py",),
    "order": ("memory/test_reorder.py",),
    "printer": ("lir/test_program_printer.py",),
    "overlap": ("memory/test_reorder.py", "ops/test_overlaps_others.py"),
    "peak": ("memory/test_reorder.py", "memory/test_plan.py"),
    "state": ("test_state.py",),
    "traversal": ("ops/test_overlaps.py", "ops/test_overlaps_others.py"),
    "builder": ("lir", "ops/test_pool.py"),
    "traffic": ("memory/test_place.py",),
}
"""Tests of modules that have none of their name; of others that have none, it is all of their room."""

WIDER = {
    "passes": ("passes", "test_random_graphs.py"),
    "lir": ("lir", "test_state.py", "test_streaming.py", "test_random_graphs.py"),
    "memory": ("memory", "test_memory.py", "test_streaming.py", "test_random_graphs.py"),
}

# ------------------------------------------------------------------------------------------------------ mutants

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "first": "last"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    path: Path
    line: int
    change: str
    source: str

    @property
    def module(self) -> str:
        """As it is imported."""
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)

    @property
    def place(self) -> str:
        """Room, file and line."""
        return f"{self.path.parent.name}/{self.path.name}:{self.line}"

    @property
    def tests(self) -> Iterator[tuple[Path, ...]]:
        """What runs, one after the other until something fails."""
        room, name = self.path.parent.name, f"{self.path.parent.name}/test_{self.path.stem}.py"
        own = (name,) if (ROOT / "tests" / name).exists() else NEAREST.get(self.path.stem, (room,))
        for names in (own, WIDER[room]):
            yield tuple(ROOT / "tests" / name for name in names)


Site = tuple[Path, int, int]
"""A module, a node by its number, and which of the changes that it may have."""


def sites(path: Path) -> Iterator[Site]:
    """All places of a module, in the order of its lines."""
    for number, node in enumerate(_code(ast.parse(path.read_text()))):
        yield from ((path, number, variant) for variant, _ in enumerate(_changes(node)))


def mutant(site: Site) -> Mutant:
    """The module with the change."""
    path, number, variant = site
    tree = ast.parse(path.read_text())
    node = list(_code(tree))[number]
    line, before = node.lineno, ast.unparse(node)
    list(_changes(node))[variant]()
    ast.fix_missing_locations(tree)
    return Mutant(path, line, f"`{_short(before)}` → `{_short(ast.unparse(node))}`", ast.unparse(tree))


def _code(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Expressions and statements, without what has no say in results: annotations, messages of errors."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Raise) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, (ast.expr, ast.stmt)):
                yield child
            yield from _code(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[Callable[[], None]]:
    """What may be done to this node in place."""
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


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 60 else line[:57] + "..."


# --------------------------------------------------------------------------------------------------------- runs


class _InPlace(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the mutant in its module's place."""

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
        code: CodeType = compile(self.mutant.source, self.mutant.path, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def preload() -> None:
    """What takes seconds, and is no part of mcugen: forks have it."""
    for name in (
        "pytest",
        "hypothesis",
        "onnx.reference",
        "onnxruntime",
        "ortools.sat.python.cp_model",
        "rich.console",
    ):
        importlib.import_module(name)


def passes(tests: Sequence[Path], mutant: Mutant | None, options: Sequence[str]) -> bool:
    """Whether all tests pass, with the mutant if there is one. pytest is told `options`, too."""
    child = os.fork()
    if child == 0:
        _run_tests(tests, mutant, options)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) in (4, 5):  # of pytest: asked for what is not there
        sys.exit(f"there must be tests: {' '.join(map(str, tests))}")
    return status == 0


def _run_tests(tests: Sequence[Path], mutant: Mutant | None, options: Sequence[str]) -> None:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if mutant:
            sys.meta_path.insert(0, _InPlace(mutant))
        for name in [name for name in sys.modules if name.partition(".")[0] == "mcugen"]:
            del sys.modules[name]
        import pytest

        marks = "not slow and not qemu and not riscv"
        quiet = ("-x", "-q", "-p", "no:cacheprovider", "-m", marks, "--hypothesis-seed=0")
        code = int(pytest.main([*quiet, *options, *map(str, tests)]))
    finally:
        os._exit(code)


@cache
def _sound(tests: Sequence[Path], options: Sequence[str]) -> bool:
    return passes(tests, None, options)


def outcome(mutant: Mutant, options: Sequence[str], only_nearest: bool) -> str:
    """By which tests the mutant was found, or that it survived. Without it they must pass."""
    stages = list(zip(("nearest", "wider"), mutant.tests, strict=True))
    for label, tests in stages[:1] if only_nearest else stages:
        if not _sound(tests, tuple(options)):
            sys.exit(f"without any mutant, a test fails of {' '.join(map(str, tests))}: --deselect it")
        if not passes(tests, mutant, options):
            return label
    return "survived"


# ------------------------------------------------------------------------------------------------------- sample


def sampled(room: str, count: int, seed: int) -> list[Mutant]:
    """So many of a room's mutants, each as likely as any other."""
    found = [site for path in sorted((ROOT / "mcugen" / room).glob("*.py")) for site in sites(path)]
    return [mutant(site) for site in random.Random(seed).sample(found, min(count, len(found)))]


def main() -> None:
    """Prints each mutant's fate; rewrites docs/testing.md if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument("--deselect", action="append", default=[], help="a test that fails without any mutant")
    parser.add_argument("--nearest", action="store_true", help="run no wider tests")
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
    deselected = [f"--deselect={name}" for name in options.deselect]
    fates: dict[str, list[str]] = {room: [] for room in mutants}
    for room, each in mutants.items():
        for one in each:
            fates[room].append(outcome(one, deselected, options.nearest))
            print(f"{fates[room][-1]:9} {one.place}: {one.change}", flush=True)
    text = _table(fates, options.seed)
    print(text)
    if options.write_docs:
        DOCUMENT.write_text(replace_between_markers(DOCUMENT.read_text(), "mutants", text))


def _table(fates: dict[str, list[str]], seed: int) -> str:
    lines = [
        "| room | mutants | found by the nearest tests | by wider ones | survived | score |",
        "|---|---|---|---|---|---|",
    ]
    for room, each in fates.items():
        nearest, wider, survived = (each.count(fate) for fate in ("nearest", "wider", "survived"))
        score = 100 * (nearest + wider) / len(each)
        lines.append(f"| `{room}` | {len(each)} | {nearest} | {wider} | {survived} | {score:.0f} % |")
    return "\n".join(
        [*lines, "", f"(`make mutants`, seed {seed}; Python {sys.version_info.major}.{sys.version_info.minor}.)"]
    )


if __name__ == "__main__":
    main()
