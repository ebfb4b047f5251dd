# SPDX-License-Identifier: Apache-2.0
"""Exploring boards, precisions and goals: what is found, what is kept, and what survives a lost process."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from browser import needs_chromium, opened
from command_line import mcugen
from onnx_models import Net
from process_work import dies, refuses, squares_and_dies_once, write_often
from rich.console import Console

from mcugen.api.compilation import Compilation
from mcugen.codegen.write import write_text
from mcugen.core.board import load_board
from mcugen.core.cache import Store
from mcugen.core.errors import ConstraintError, DoesNotFitError
from mcugen.core.options import CompileOptions
from mcugen.distributed.sharing import Workers
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.evaluation.metrics import METRICS
from mcugen.explore import search
from mcugen.explore.demands import Demands, Prices, outcomes_on_front
from mcugen.explore.fingerprint import fingerprint
from mcugen.explore.fits import board_fits, print_fits, require_fit
from mcugen.explore.page import explored_page
from mcugen.explore.point import AccuracyBaseline, Figures, Outcome, Point, PointFailure
from mcugen.explore.prepare import ExplorationSubject, prepare_model
from mcugen.explore.search import Exploration, Explored, combinations

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    net = Net()
    x = net.input("x", 1, 1, 8, 8)
    h = net.op("Conv", x, net.const(random.normal(size=(4, 1, 3, 3))), pads=[1, 1, 1, 1])
    h = net.op("Flatten", net.op("Relu", h, out=HOSTILE))
    net.output(net.op("MatMul", h, net.const(random.normal(size=(256, 3))), out="y"))
    folder = tmp_path_factory.mktemp("explore")
    proto = net.model()
    next(node for node in proto.graph.node if node.op_type == "Conv").name = HOSTILE  # the name of the layer
    onnx.save(proto, folder / "small.onnx")
    np.savez(folder / "samples.npz", x=random.normal(size=(8, 1, 8, 8)).astype(np.float32))
    return folder / "small.onnx"


def asked(model: Path, *precisions: str, options: CompileOptions | None = None) -> ExplorationSubject:
    samples = model.with_name("samples.npz")
    quantizing = {p: Quantizing() if p == "float32" else Quantizing(p, calibration=samples) for p in precisions}
    return ExplorationSubject(model, options or CompileOptions(), quantizing, Judging())


def exploration(model: Path, folder: Path, boards: list[str], *precisions: str, **more: object) -> Exploration:
    points = combinations(boards, precisions, ["balanced"])
    settings: dict[str, object] = {"simulate": False, "store": Store(folder), **more}
    return Exploration(asked(model, *precisions), points, **settings)  # type: ignore[arg-type]


def outcome(board: str, ms: float | None, ram: int, accuracy: float = 0.9, flash: int = 1000) -> Outcome:
    figures = Figures(accuracy, ms, ram, flash, None, False)
    return Outcome(Point(board, "int8", "balanced"), figures, None, None, AccuracyBaseline("top1", 0.95, 100), False)


# ------------------------------------------------------------------------------------------------ which is the best


def test_front_holds_what_no_other_beats() -> None:
    fast, small, worse = outcome("rp2040", 1.0, 900), outcome("stm32f446", 2.0, 500), outcome("rt1060", 2.0, 900)
    exact = outcome("samd21", 9.0, 999, accuracy=0.95)
    refused = Outcome(Point("samd51", "int8", "ram"), None, None, PointFailure("DoesNotFitError", "no"), None, False)
    assert outcomes_on_front([worse, fast, small, exact, refused], METRICS["top1"]) == [fast, small, exact]


def test_twins_are_both_on_the_front() -> None:
    twins = [outcome("rp2040", 1.0, 900), outcome("stm32f446", 1.0, 900)]
    assert outcomes_on_front(twins, METRICS["top1"]) == twins


@pytest.mark.parametrize(
    ("demands", "missed"),
    [
        (Demands(), []),
        (Demands(ms=1.9), ["ms"]),
        (Demands(cycles=100), ["ms"]),
        (Demands(ram=500, flash=1000), ["RAM"]),
        (Demands(microjoules=1.0), ["energy"]),
        (Demands(accuracy=0.9), []),
        (Demands(accuracy=0.91), ["accuracy"]),
        (Demands(drop=5.0), []),
        (Demands(drop=4.9), ["accuracy"]),
    ],
)
def test_what_a_combination_misses(demands: Demands, missed: list[str]) -> None:
    found = demands.missed(outcome("rp2040", 2.0, 900), load_board("rp2040"), METRICS["top1"], 0.95)
    assert found == missed


def test_no_more_than_the_board_has() -> None:
    board = load_board("rp2040")
    assert Demands().missed(outcome("rp2040", 2.0, board.total_ram + 1), board, METRICS["top1"], None) == ["RAM"]


def test_cheapest_is_by_price_then_by_size() -> None:
    both = (outcome("rt1060", 1.0, 900), outcome("stm32g0b1", 9.0, 900))
    small = Explored("net", both, Demands(), Prices()).cheapest
    priced = Explored("net", both, Demands(), Prices({"rt1060": 1.0, "stm32g0b1": 2.0})).cheapest
    assert small is both[1]
    assert priced is both[0]
    quick = Explored("net", both, Demands(ms=5.0), Prices())
    assert quick.cheapest is both[0]
    with pytest.raises(ConstraintError, match="ms"):
        Explored("net", both, Demands(ms=0.5), Prices()).require()


# ------------------------------------------------------------------------------------------------ what is kept


def test_a_second_run_repeats_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = exploration(model, tmp_path, ["rp2040", "stm32f446"], "float32", "int8").run()
    assert [o.refusal for o in first.outcomes] == [None] * 4
    monkeypatch.setattr(search, "measure_combination", None)
    second = exploration(model, tmp_path, ["rp2040", "stm32f446"], "float32", "int8").run()
    assert second.to_json() == first.to_json()


def test_after_an_interruption_the_rest_is_done(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, done = search.measure_combination, list[str]()

    def stops(asked: ExplorationSubject, point: Point, *rest: object) -> Outcome:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(point.board)
        return measure(asked, point, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "measure_combination", stops)
    boards = ["rp2040", "stm32f446", "rt1060"]
    with pytest.raises(KeyboardInterrupt):
        exploration(model, tmp_path, boards, "float32").run()
    done.pop()  # one more may be done

    def counts(asked: ExplorationSubject, point: Point, *rest: object) -> Outcome:
        done.append(point.board)
        return measure(asked, point, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "measure_combination", counts)
    explored = exploration(model, tmp_path, boards, "float32").run()
    assert done == ["rp2040", "rt1060"]
    assert [o.point.board for o in explored.outcomes] == boards


def test_options_that_conflict_are_found_before_quantization(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcugen.explore.measure.prepare_model", lambda *_: pytest.fail("prepares a model"))
    conflicting = asked(model, "int8", options=CompileOptions(cores=2, steps=True))
    outcome = search.measure_combination(conflicting, Point("rp2040", "int8", "balanced"), False, Store(tmp_path))
    assert outcome.refusal is not None and "shared by two cores" in outcome.refusal.message


def test_damaged_files_are_made_again(model: Path, tmp_path: Path) -> None:
    first = exploration(model, tmp_path, ["rp2040"], "int8").run()
    for path in tmp_path.glob("*.json"):
        path.write_bytes(path.read_bytes()[:50])
    assert exploration(model, tmp_path, ["rp2040"], "int8").run().to_json() == first.to_json()


def test_keys_tell_models_boards_options_and_contents_apart(model: Path, tmp_path: Path) -> None:
    base = asked(model, "float32")
    other = asked(model, "float32", options=CompileOptions(max_ram=4000))
    assert len({base.key("a"), base.key("b"), other.key("a"), asked(model, "float32").key("a")}) == 3
    file = tmp_path / "file"
    file.write_text("one")
    one = fingerprint(file, np.arange(3))
    file.write_text("two")
    assert one != fingerprint(file, np.arange(3)) != fingerprint(file, np.arange(3.0))


def test_writers_at_once_leave_whole_files(tmp_path: Path) -> None:
    texts = [str(i) * 100_000 for i in range(6)]
    list(Workers(3).run_tasks(partial(write_often, Store(tmp_path)), texts))
    assert Store(tmp_path).read("key").decode() in texts  # type: ignore[union-attr]
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


# ------------------------------------------------------------------------------------------------ processes


def test_what_a_lost_process_was_at_is_done_again(tmp_path: Path) -> None:
    found = dict(Workers(2).run_tasks(partial(squares_and_dies_once, tmp_path), range(6)))
    assert found == {n: n * n for n in range(6)}
    assert (tmp_path / "died").exists()


def test_processes_that_are_always_lost_end_it() -> None:
    with pytest.raises(DoesNotFitError, match="--jobs 1"):
        list(Workers(2).run_tasks(dies, range(2)))


def test_errors_pass_whole_from_process_to_process() -> None:
    with pytest.raises(DoesNotFitError) as error:
        list(Workers(2).run_tasks(refuses, range(2)))
    assert (error.value.rule, error.value.found, error.value.remedy) == ("a rule", "this", "that")


# ------------------------------------------------------------------------------------------------ what is found


def test_shared_quantization_gives_the_code_that_each_alone_gives(model: Path, tmp_path: Path) -> None:
    wanted = asked(model, "int8")
    base = prepare_model(wanted, Point("rp2040", "int8", "balanced"), Store(tmp_path))
    alone = Compilation(model, "rp2040", CompileOptions(), wanted.quantizing["int8"]).compiled.bundle.files
    options = CompileOptions(name="small")
    shared = Compilation(base.model, "rp2040", options).compiled.bundle.files
    assert shared.keys() == alone.keys()
    for name in ("small.c", "small_kernels.h", "small_weights.c"):
        assert _code(shared[name]) == _code(alone[name])
        assert _code(alone[name])


def _code(text: str) -> list[str]:
    """Without comments: banners name another file."""
    return [line for line in text.splitlines() if not line.lstrip().startswith(("/*", "*"))]


def test_a_board_that_is_too_small_is_told(model: Path, tmp_path: Path) -> None:
    found = exploration(model, tmp_path, ["rp2040"], "float32")
    found.asked = asked(model, "float32", options=CompileOptions(max_ram=100))
    explored = found.run()
    refusal = explored.outcomes[0].refusal
    assert refusal is not None
    assert refusal.kind == "DoesNotFitError"
    assert explored.missed(explored.outcomes[0]) == ["DoesNotFitError"]


@pytest.mark.qemu
def test_of_many_the_most_promising_run(model: Path, tmp_path: Path) -> None:
    explored = exploration(model, tmp_path, ["rp2040", "stm32f446"], "float32", simulate=True, max_runs=1).run()
    ran = [o for o in explored.outcomes if o.simulated]
    assert len(ran) == 1
    estimates = exploration(model, tmp_path, ["rp2040", "stm32f446"], "float32").run()
    assert ran[0].point in [o.point for o in estimates.front]
    figures, report = ran[0].figures, ran[0].report
    assert figures is not None
    assert report is not None
    assert not figures.by_instructions
    assert figures.ms == pytest.approx(1e3 * report.cycles_estimate / report.clock_hz, rel=1e-3)  # type: ignore[operator]
    assert figures.flash == report.flash.total
    assert figures.ram == report.ram.total


def test_command(model: Path, tmp_path: Path) -> None:
    samples = model.with_name("samples.npz")
    arguments = ["explore", model, "--boards", "rp2040,rt1060", "--no-simulate", "--cache", tmp_path, "-j", 1]
    done = mcugen(*arguments, "--calibration", samples, "--json", "-", "--quiet")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert [(p["board"], p["precision"]) for p in data["points"]] == [
        (board, precision) for board in ("rp2040", "rt1060") for precision in ("float32", "int8")
    ]
    assert data["cheapest"]["board"] == "rp2040"
    assert data["metric"]["metric"] == "sqnr"
    exact, noisy = (p["accuracy"] for p in data["points"][:2])
    assert exact is None  # infinite
    assert 15 < noisy < 60
    table = mcugen(*arguments, "--calibration", samples, "--all", "-q")
    assert "smallest board that meets the demands: rp2040" in table.out
    late = mcugen(*arguments, "-q", "--max-latency", "1us")
    assert late.code == 6
    assert "ms" in late.err


def test_command_refuses_what_it_does_not_know(model: Path) -> None:
    for arguments, found in (
        (["--boards", ","], "--boards"),
        (["--boards", "nothing9"], "nothing9"),
        (["--optimize", "speed,all"], "'all'"),
        (["--precision", "int4"], "'int4'"),
        (["--price", "rp2040=cheap"], "rp2040=cheap"),
    ):
        done = mcugen("explore", model, "--no-simulate", *arguments)
        assert done.code == 2
        assert found in done.err


def test_whether_a_model_fits_is_told_of_each_board(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = mcugen("boards", "--like", "stm32f103", "--fits", model)
    assert done.code == 0, done.err
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line.split()[:1]}
    assert rows["stm32f103"][1] == rows["stm32f103rb"][1] == "yes"
    assert list((tmp_path / "mcugen" / "explore").glob("*.json"))
    told = json.loads(mcugen("boards", "--like", "stm32f103", "--fits", model, "--json").out)
    fits = {fit["board"]: fit for fit in told["boards"]}
    assert fits["stm32f103"]["ram_available"] == 20 << 10
    assert 0 < fits["stm32f103"]["ram_needed"] <= 20 << 10
    assert fits["stm32f103rb"]["flash_available"] == 2 * fits["stm32f103"]["flash_available"]


def outcome_on(board: str, figures: Figures | None, refusal: PointFailure | None = None) -> Outcome:
    return Outcome(Point(board, "float32", "balanced"), figures, None, refusal, None, False)


def test_what_is_missing_is_told_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    small = Figures(None, 1.0, 21 << 10, 1000, None, False)
    refused = PointFailure("DoesNotFitError", "the weights must fit. found: 9 bytes. try: less.")
    outcomes = (outcome_on("stm32f103", small), outcome_on("rp2040", None, refused), outcome_on("host", small))
    fits = board_fits(Explored("net", outcomes, Demands(), Prices()))
    assert [fit.fits for fit in fits] == [False, False, True]
    assert [fit.reason for fit in fits] == ["1,024 bytes of RAM too few", "the weights must fit. found: 9 bytes.", ""]
    assert (fits[0].ram_needed, fits[0].ram_available, fits[1].ram_needed) == (21 << 10, 20 << 10, None)
    print_fits("net", fits, Console(width=120))
    out = capsys.readouterr().out
    assert "net fits 1 of 3 boards" in out and "1,024 bytes of RAM too few" in out
    require_fit(fits)
    with pytest.raises(ConstraintError, match=r"must fit a board.*rp2040: the weights must fit"):
        require_fit(fits[:2])


# ------------------------------------------------------------------------------------------------ the page


@needs_chromium
def test_page_shows_all_combinations_and_the_layers_of_the_chosen_one(model: Path, tmp_path: Path) -> None:
    explored = exploration(model, tmp_path, ["rp2040", "stm32f446"], "float32", "int8").run()
    write_text(tmp_path / "page.html", explored_page(explored))
    with opened(tmp_path / "page.html", width=400) as page:
        assert page.errors == []
        assert page.requests == []
        rows = page.run("return mcugenViews.points.data('source_0') ?? mcugenViews.points.data('source_1')")
        assert sorted(row["ram"] for row in rows) == sorted(o.figures.ram for o in explored.outcomes if o.figures)
        assert page.run("return document.querySelectorAll('#combinations tbody tr').length") == 4
        assert page.run("return document.querySelectorAll('img').length") == 0  # hostile names stay text
        bars = (
            "return [...document.querySelectorAll('.mark-rect path[aria-roledescription=bar]')].map(b => b.ariaLabel)"
        )
        before = page.run(bars)
        assert any("script" in label for label in before)
        page.run(
            "const s = document.querySelector('select'); s.selectedIndex = 0;"
            "s.dispatchEvent(new Event('input', {bubbles: true})); s.dispatchEvent(new Event('change'))"
        )
        page.run("return mcugenViews.points.runAsync().then(() => 1)")
        assert page.run(bars) != before
        page.run("[...document.querySelectorAll('th button')].find(b => b.textContent === 'RAM').click()")
        sizes = page.run(
            "return [...document.querySelectorAll('#combinations tbody tr')].map(r => r.cells[5].innerText)"
        )
        numbers = [int(text.replace(",", "")) for text in sizes]
        assert numbers == sorted(numbers, reverse=True)


def test_equal_results_give_equal_pages() -> None:
    explored = Explored("net", (outcome("rp2040", 1.0, 900, math.inf),), Demands(), Prices())
    assert explored_page(explored) == explored_page(explored)


def test_mixed_precisions_are_chosen_for_each_board(model: Path, tmp_path: Path) -> None:
    wanted = asked(model, "int8", "auto")
    wanted = ExplorationSubject(model, CompileOptions(), wanted.quantizing, Judging(min_sqnr=10.0))
    points = combinations(["rp2040"], ["int8", "auto"], ["balanced"])
    found = Exploration(wanted, points, simulate=False, store=Store(tmp_path)).run()
    assert [o.refusal for o in found.outcomes] == [None, None]
    first, second = (o.figures for o in found.outcomes)
    assert first is not None
    assert second is not None
    assert second.accuracy == pytest.approx(first.accuracy)  # int8 is good enough for 10 dB
    assert second.flash == first.flash
