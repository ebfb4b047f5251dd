# SPDX-License-Identifier: Apache-2.0
"""Skips tests whose tools or data are absent, and says which."""

from __future__ import annotations

import difflib
import gc
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from c_coverage import VARIABLE, measure
from hypothesis import settings
from object_cache import cached
from resume import Passed, leave_out
from shards import parse_shard
from threadpoolctl import threadpool_limits

from mcugen.simulation.toolchain import ARM, RISCV, Compiler, Toolchain

settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")  # what is random goes by seeds that are told: `make fuzz`

_SHARED = Path(__file__).resolve().parents[2] / "shared"
_GOLDEN = Path(__file__).parent / "golden"
_TOOLCHAINS = {"qemu": ARM, "riscv": RISCV}
"""What tests with a marker need."""
_COMPILE = Compiler._compile
_QUICK = ("gcc", "-fuse-ld=gold", "-fno-use-linker-plugin", "--param", "asan-instrumentation-with-call-threshold=0")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the test files of other shards."""
    shard = config.getoption("--shard")
    return True if shard and not shard.takes(collection_path, Path(__file__).parent) else None


@pytest.hookimpl(tryfirst=True)  # before what -m asks for is chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark most cases of tests with `spread(n)` as slow: `make test` runs every n-th of them."""
    met: Counter[str] = Counter()
    for item in items:
        spread = item.get_closest_marker("spread")
        if spread is None:
            continue
        test = item.nodeid.partition("[")[0]
        if met[test] % spread.args[0]:
            item.add_marker(pytest.mark.slow)
        met[test] += 1
    if file := config.getoption("--resume"):
        config.hook.pytest_deselected(items=leave_out(items, file))


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection, which would examine them again and again."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Register the plug-in of `--resume` in the main process."""
    file = config.getoption("--resume")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passed(file))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose tools or data are absent."""
    for marker, toolchain in _TOOLCHAINS.items():
        if item.get_closest_marker(marker):
            _skip_without(toolchain)
    if item.get_closest_marker("shared") and not _SHARED.is_dir():
        pytest.skip(f"needs the models and data of {_SHARED}")


def _skip_without(toolchain: Toolchain) -> None:
    missing = [tool for tool in toolchain.packages if shutil.which(tool) is None]
    if missing:
        packages = " ".join(toolchain.packages[tool] for tool in missing)
        pytest.skip(f"needs {', '.join(missing)}: sudo apt-get install {packages}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options of this test suite."""
    parser.addoption("--resume", type=Path, metavar="FILE", help="leave out what FILE lists, and add what passes")
    parser.addoption("--shard", type=parse_shard, metavar="K/N", help="run the K-th of N parts of the test files")
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code gives now")


@pytest.fixture(scope="session", autouse=True)
def objects_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cache object files for all tests of a run (object_cache)."""
    if VARIABLE in os.environ:
        with pytest.MonkeyPatch.context() as patch:
            measure(patch, Path(os.environ[VARIABLE]))
            yield
        return
    base = tmp_path_factory.getbasetemp()
    store = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "objects"  # of all workers
    store.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiler, "_compile", cached(_COMPILE, store))
        yield


@pytest.fixture(scope="session", autouse=True)
def the_quickest_compiler_is_taken() -> Iterator[None]:
    """Use gcc with its faster linker, if it is installed, and with function calls for address checks.

    The plain linker takes 50 ms longer for each program with sanitizers. Inline checks take gcc a quarter longer and
    check the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not {"CC", VARIABLE} & os.environ.keys() and shutil.which("gcc") and shutil.which("ld.gold"):
            patch.setenv("CC", " ".join(_QUICK))
        yield


@pytest.fixture(scope="session", autouse=True)
def numpy_takes_one_thread() -> Iterator[None]:
    """Limit numpy to one thread: each core has a worker of pytest already, and waiting threads take CPU time."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def objects_are_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the cache of object files off, for tests of the compiler's behavior on equal sources."""
    monkeypatch.setattr(Compiler, "_compile", _COMPILE)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares a text with a file in tests/golden, and shows the difference.

    The function takes the name of the file and the text.
    """

    def compare(name: str, text: str) -> None:
        path = _GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        expected = path.read_text() if path.is_file() else ""
        lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="")
        difference = "\n".join(lines)
        if difference:
            pytest.fail(f"{difference}\nif that is meant: pytest --update-golden", pytrace=False)

    return compare
