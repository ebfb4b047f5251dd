# SPDX-License-Identifier: Apache-2.0
"""Kernels are chosen together: by the goal, within the board, with shared code counted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import measure_costs
import numpy as np
import pytest
from onnx_models import Net, optimized, random_feeds

from mcugen.backends.cpu.pipeline import lowered
from mcugen.core.board import load_board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph
from mcugen.kernels import cmsis_nn
from mcugen.kernels.choose import KernelChoice, Limits
from mcugen.kernels.common.library import own_kernel
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.cost import UNMEASURED_KERNEL_COST, CostTable, KernelCost, cost_table, work
from mcugen.kernels.families import LibraryLayer
from mcugen.kernels.portable.activations import BinarySpec
from mcugen.lir.kernel import Call, Kernel, Site, reads, writes
from mcugen.lir.kernel import scratch as working
from mcugen.ops.matmul import Dense
from mcugen.reporting.kernels import declared_kernels

PLENTY = Limits(1 << 20, 1 << 20)


def kernel(name: str, scratch: int = 0, constants: int = 0, **more: object) -> Kernel:
    """A kernel of a fully connected layer with so many bytes of scratch and of constants for each layer."""

    def emit(layer: Any, site: Site) -> Call:
        label = site.node.output.name
        data = np.arange(constants + 1, dtype=np.uint8) + len(label) + ord(label[-1])
        operands = {
            "x": site.x,
            "w": site.const("w", data.astype(np.uint8)),
            "y": site.y,
            "s": site.scratch("s", site.y.dtype, scratch // 4),
        }
        return site.call(operands)

    operands = (reads("x", "input"), reads("w", "constants"), writes("y", "output"), working("s", "memory"))
    return Kernel(name, operands=operands, emit=emit, **more)  # type: ignore[arg-type]


def with_large_constants(original: Kernel, is_large: Callable[[Any], bool]) -> Kernel:
    """Return a kernel whose constants are 16,000 bytes for the layers to which `is_large` is true."""
    large = kernel(original.name, constants=16_000)

    def emit(layer: Any, site: Site) -> Call | list[Call]:
        of_size = large if is_large(layer) else original
        assert of_size.emit is not None
        return of_size.emit(layer, site)

    return replace(original, emit=emit)


def costs(**of: tuple[float, int]) -> CostTable:
    """Instructions a call and bytes of code, by kernel."""
    return CostTable({name: KernelCost({"": (call, *[0.0] * 7)}, code) for name, (call, code) in of.items()})


def dense_layers(sizes: Sequence[int]) -> Graph:
    """Fully connected layers, each from one size to the next."""
    net = Net()
    x = net.input("x", 1, sizes[0])
    for i, shape in enumerate(pairwise(sizes)):
        x = net.op("MatMul", x, net.const(np.full(shape, i + 1.0)), out=f"y{i}")
    net.output(x)
    return optimized(net.model())


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    kernels: Sequence[Kernel],
    table: CostTable,
    goal: str = "balanced",
    sizes: Sequence[int] = (8, 8),
    limits: Limits = PLENTY,
    **more: object,
) -> list[str]:
    """The kernels' names, layer by layer."""
    monkeypatch.setattr(Dense, "kernels", tuple(kernels))
    graph = dense_layers(sizes)
    found = KernelChoice(graph, frozenset(), table, goal, **more).within(limits)  # type: ignore[arg-type]
    return [found[node].name for node in graph.nodes]


@pytest.mark.parametrize(
    ("goal", "name"), [("speed", "fast"), ("ram", "lean"), ("flash", "small"), ("balanced", "even")]
)
def test_each_goal_takes_the_kernel_that_serves_it(monkeypatch: pytest.MonkeyPatch, goal: str, name: str) -> None:
    kernels = (
        kernel("fast", scratch=2_000, constants=2_000),
        kernel("lean", constants=2_000),
        kernel("small", scratch=2_000),
        kernel("even", scratch=200, constants=200),
    )
    table = costs(fast=(100, 100), lean=(900, 100), small=(900, 50), even=(110, 100))
    assert chosen(monkeypatch, kernels, table, goal) == [name]


@pytest.mark.parametrize(
    ("constants", "instructions", "name"),
    [(1_030, 800, "quick"), (1_030, 960, "small"), (1_030, 930, "quick"), (1_100, 100, "small")],
)
def test_flash_is_hardly_slower_than_balanced_where_that_takes_little(
    monkeypatch: pytest.MonkeyPatch, constants: int, instructions: int, name: str
) -> None:
    """1.065 times its instructions, by estimate, where a sixteenth of flash more allows it."""
    kernels = (kernel("small", constants=1_000), kernel("quick", constants=constants))
    table = costs(small=(1_000, 500), quick=(instructions, 500))
    assert chosen(monkeypatch, kernels, table, "flash") == [name]
    assert chosen(monkeypatch, kernels, table, "flash", limits=Limits(1 << 20, 1_510)) == ["small"]


@pytest.mark.parametrize(("instructions", "name"), [(700, "quick"), (800, "small")])
def test_flash_gives_its_last_bytes_for_time(monkeypatch: pytest.MonkeyPatch, instructions: int, name: str) -> None:
    """A hundredth for a sixth of the time, where what is nearly as fast as `balanced` takes more than a sixteenth."""
    kernels = (kernel("small", constants=1_000), kernel("quick", constants=1_030), kernel("fast", constants=1_600))
    table = costs(small=(1_000, 500), quick=(instructions, 500), fast=(10, 500))
    assert chosen(monkeypatch, kernels, table, "flash") == [name]


def test_flash_sees_what_layers_gain_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one changed its kernel alone, there would be code of both."""
    kernels = (kernel("small", constants=2_000), kernel("quick", constants=2_000))
    table = costs(small=(1_000, 900), quick=(500, 950))
    assert chosen(monkeypatch, kernels, table, "flash", sizes=[8] * 4) == ["quick"] * 3


def test_flash_sees_what_layers_of_one_kind_gain_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of 4-bit weights have kernels of their own; those of the other layers would double their weights."""

    def is_of_few_bits(layer: Any) -> bool:
        return layer.x.shape[-1] == 4

    kernels = (
        with_large_constants(kernel("small", constants=2_300), is_of_few_bits),
        with_large_constants(kernel("quick", constants=2_400), is_of_few_bits),
        kernel("small of 4 bits", constants=9_000, when=(is_of_few_bits,)),
        kernel("quick of 4 bits", constants=9_100, when=(is_of_few_bits,)),
        kernel("fast", constants=16_000),
    )
    table = costs(
        **{"small": (5_800, 1_600), "quick": (2_000, 1_700)},
        **{"small of 4 bits": (7_000, 1_350), "quick of 4 bits": (1_100, 1_850)},
        fast=(100, 2_000),
    )
    sizes = (8, 8, 8, 4, 4, 4, 4)
    assert chosen(monkeypatch, kernels, table, "flash", sizes) == ["quick"] * 3 + ["quick of 4 bits"] * 3


@pytest.mark.parametrize(("flash", "name"), [(1 << 20, "fast"), (20_000, "small")])
def test_balanced_spares_no_bytes_where_there_is_room(monkeypatch: pytest.MonkeyPatch, flash: int, name: str) -> None:
    """At most 1.25 times the instructions of what fits a quarter of the flash; if nothing fast does, bytes count."""
    kernels = (kernel("fast", constants=8_000), kernel("small"))
    table = costs(fast=(100, 100), small=(126, 100))
    assert chosen(monkeypatch, kernels, table, limits=Limits(1 << 20, flash)) == [name]
    assert chosen(monkeypatch, kernels, costs(fast=(100, 100), small=(124, 100))) == ["small"]


@pytest.mark.parametrize(("limits", "name"), [(PLENTY, "fast"), (Limits(4_000, 1 << 20), "lean")])
def test_speed_is_what_fits_the_board(monkeypatch: pytest.MonkeyPatch, limits: Limits, name: str) -> None:
    kernels = (kernel("fast", scratch=8_000), kernel("lean"))
    assert chosen(monkeypatch, kernels, costs(fast=(1, 0), lean=(9, 0)), "speed", limits=limits) == [name]


def test_code_that_another_layer_needs_anyway_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    table = costs(short=(100, 100), long=(85, 2_000))
    short = kernel("short", when=(lambda layer: layer.weights[0, 0] == 1,))
    assert chosen(monkeypatch, (short, kernel("long")), table) == ["short"]
    assert chosen(monkeypatch, (short, kernel("long")), table, sizes=[8] * 3) == ["long", "long"]


def test_a_wanted_kernel_is_taken_wherever_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (kernel("good"), kernel("other"), kernel("narrow", when=(lambda layer: layer.weights[0, 0] == 2,)))
    table = costs(good=(1, 1), other=(2, 2), narrow=(3, 3))
    assert chosen(monkeypatch, kernels, table, sizes=[8] * 4, requested=("narrow",)) == ["good", "narrow", "good"]


def test_a_wanted_kernel_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"nonsense\..*good"):
        chosen(monkeypatch, (kernel("good"),), costs(good=(1, 1)), requested=("nonsense",))


def test_sizes_known_at_run_time_leave_the_kernels_made_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (kernel("fixed"), kernel("flexible", any_size=True))
    table = costs(fixed=(1, 1), flexible=(9, 9))
    assert chosen(monkeypatch, kernels, table) == ["fixed"]
    assert chosen(monkeypatch, kernels, table, any_size=True) == ["flexible"]


def test_what_a_kernel_says_of_itself_is_part_of_its_work() -> None:
    (node,) = dense_layers([8] * 2).nodes
    assert work(node, Kernel("k"))[-1] == 0
    assert work(node, Kernel("k", extra=lambda layer: layer.y.count))[-1] == 8


def test_kernels_without_a_measurement_have_a_guess() -> None:
    (node,) = dense_layers([8] * 2).nodes
    table, unknown = cost_table("cortex-m4"), Kernel("a user's own")
    guess = sum(p * t for p, t in zip(UNMEASURED_KERNEL_COST.per[""], work(node, unknown), strict=True))
    assert not table.knows(node, unknown)
    assert table.instructions(node, unknown) == guess > 0
    assert table.code_of({("f",): "a user's own"}) == {("f",): UNMEASURED_KERNEL_COST.code}
    assert cost_table("no such cpu") is not None


def recurrent_network() -> Net:
    """24 steps of an LSTM of 16 units, which has but one kernel."""
    net, random = Net(), np.random.default_rng(3)
    x = net.input("x", 24, 1, 10)
    weights = [net.const(random.normal(size=(1, 64, columns)) * 0.2) for columns in (10, 16)]
    (y,) = net.ops("LSTM", x, *weights, outs=["y"], hidden_size=16)
    net.output(y)
    return net


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "rp2040"])
def test_layers_without_a_choice_are_estimated_too(board: str) -> None:
    """Roughly: waits and copies are weighed against what is computed, which else would seem to be nothing."""
    model = recurrent_network().model()
    compiled = compile_model(model, board)
    counted = compiled.simulate([random_feeds(model)]).instructions
    assert counted is not None and compiled.program.instructions_estimate is not None
    assert 0.4 < compiled.program.instructions_estimate / counted < 2.5


def test_helpers_of_a_kernel_are_there_once() -> None:
    table = CostTable({"k": KernelCost({}, 100, shared=40), "other": KernelCost({}, 7)})
    code = table.code_of({("k", 1): "k", ("k", 2): "k", ("other",): "other"})
    assert sorted(code.values()) == [7, 40, 100, 100]
    assert table.code_of({("k", 3): "k"}).keys() & code.keys() == {"k"}


def test_each_way_of_a_kernel_has_costs_of_its_own() -> None:
    (node,) = dense_layers([8] * 2).nodes
    table = CostTable({"k": KernelCost({"short": (5, *[0] * 7), "long": (50, *[0] * 7)}, 1)})
    short, long, other = (Kernel("k", way=lambda node, way=way: way) for way in ("short", "long", "other"))
    assert (table.instructions(node, short), table.instructions(node, long)) == (5, 50)
    assert [table.knows(node, k) for k in (short, long, other, Kernel("k"))] == [True, True, False, False]


def depthwise_layer(side: int, window: tuple[int, int]) -> Graph:
    """16 channels of a square or, of side 1, of a line."""
    random, net = np.random.default_rng(2), Net()
    x = net.fake(net.input("x", 1, 16, side, 12), 0.05, 0)
    codes = net.const(random.integers(-127, 128, (16, 1, *window)), np.int8)
    pads = [size // 2 for size in window] * 2
    net.output(net.fake(net.op("Conv", x, net.dequantize(codes, 0.003), pads=pads, group=16), 0.2, 4))
    return optimized(net.model())


@pytest.mark.parametrize(("side", "window", "way"), [(12, (3, 3), "held"), (12, (5, 5), "looped"), (1, (1, 5), "line")])
def test_costs_are_apart_where_compilers_make_different_code(side: int, window: tuple[int, int], way: str) -> None:
    (node,) = (node for node in depthwise_layer(side, window).nodes if node.op.macs(node.sig))
    (planes,) = (k for k in declared_kernels() if k.name == "depthwise_s8_planes")
    assert planes.fits(node, frozenset())
    assert planes.way_of(node) == way
    assert all(cost_table(cpu).knows(node, planes) for cpu in measure_costs.BOARDS)


def of_library(name: str, **more: object) -> Kernel:
    return kernel(name, library="cmsis-nn", **more)


def offer(monkeypatch: pytest.MonkeyPatch, operator: str, spec: type, theirs: Kernel) -> None:
    """Let the library compute layers of one operator by one kernel."""
    monkeypatch.setattr(cmsis_nn, "LAYERS", (LibraryLayer((operator,), spec, (theirs,)),))


def way(layer: ConvSpec) -> str:
    """By the layer's weights: "y0", "y1"."""
    return f"y{int(layer.weights[0, 0]) - 1}"


@pytest.mark.parametrize(
    ("family", "table", "taken"),
    [
        ("own", {"mine": (9, 1), "theirs": (1, 1)}, "mine"),
        ("cmsis-nn", {"mine": (1, 1), "theirs": (9, 1)}, "theirs"),
        ("cmsis-nn", {}, "theirs"),
        ("auto", {"mine": (9, 1), "theirs": (8, 1)}, "theirs"),
        ("auto", {"mine": (9, 1), "theirs": (9, 1)}, "mine"),
        ("auto", {"mine": (9, 1), "theirs": (10, 1)}, "mine"),
        ("auto", {"mine": (9, 1)}, "mine"),
        ("auto", {"theirs": (1, 1)}, "mine"),
    ],
)
def test_families(monkeypatch: pytest.MonkeyPatch, family: str, table: dict[str, tuple[int, int]], taken: str) -> None:
    """`auto` takes what was measured to be better, and guesses nothing."""
    offer(monkeypatch, "dense", ConvSpec, of_library("theirs"))
    assert chosen(monkeypatch, (kernel("mine"),), costs(**table), sizes=[8] * 3, family=family) == [taken] * 2


def test_auto_compares_with_the_best_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "dense", ConvSpec, of_library("theirs"))
    kernels = (kernel("slow"), kernel("fast"))
    table = {"slow": (90, 1), "fast": (10, 1)}
    assert chosen(monkeypatch, kernels, costs(**table, theirs=(20, 1)), family="auto") == ["fast"]
    assert chosen(monkeypatch, kernels, costs(**table, theirs=(5, 1)), family="auto") == ["theirs"]


@pytest.mark.parametrize(
    ("core", "timed", "taken"),
    [("c", ("few", "quick"), "quick"), ("", ("few", "quick"), "few"), ("c", ("few",), "few"), ("d", ("few",), "few")],
)
def test_speed_goes_by_cycles_where_all_of_them_are_known(
    monkeypatch: pytest.MonkeyPatch, core: str, timed: tuple[str, ...], taken: str
) -> None:
    """Fits of cycles stand beside those of instructions, and are of one core."""
    each = {"few": (9_000.0, 30_000.0), "quick": (11_000.0, 12_000.0)}
    rows = {
        name: KernelCost(
            {"": (instructions, *[0.0] * 7)}, 1, {"c": {"": (cycles, *[0.0] * 7)}} if name in timed else {}
        )
        for name, (instructions, cycles) in each.items()
    }
    kernels = [kernel(name) for name in each]
    assert chosen(monkeypatch, kernels, CostTable(rows, core=core), "speed") == [taken]


def test_auto_counts_the_code_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few instructions are not worth kilobytes; a tenth of them is, to speed."""
    offer(monkeypatch, "dense", ConvSpec, of_library("theirs"))
    for theirs, taken in ((990, "mine"), (900, "theirs")):
        table = costs(mine=(1_000, 500), theirs=(theirs, 8_000))
        assert chosen(monkeypatch, (kernel("mine"),), table, family="auto") == ["mine"]
        assert chosen(monkeypatch, (kernel("mine"),), table, "speed", family="auto") == [taken]


def test_auto_knows_the_ways_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer; what was not measured is not taken."""
    offer(monkeypatch, "dense", ConvSpec, of_library("theirs", way=way))
    rows = {name: (float(n), *[0.0] * 7) for name, n in (("y0", 1), ("y1", 100))}
    table = CostTable({"theirs": KernelCost(rows, 1), "mine": KernelCost({"": (10.0, *[0.0] * 7)}, 1)})
    assert chosen(monkeypatch, (kernel("mine"),), table, sizes=[8] * 4, family="auto") == ["theirs", "mine", "mine"]


@pytest.mark.parametrize(("mine", "taken"), [(9, ["theirs"]), (1, []), (None, [])])
def test_auto_compares_with_operators_without_a_choice(
    monkeypatch: pytest.MonkeyPatch, mine: int | None, taken: list[str]
) -> None:
    """What they write themselves costs by operator and type."""
    offer(monkeypatch, "mul", BinarySpec, of_library("theirs"))
    net = Net()
    net.output(net.op("Mul", net.input("x", 1, 8), net.input("y", 1, 8)))
    graph = optimized(net.model())
    (node,) = graph.nodes
    own = own_kernel(node, frozenset())
    assert own is not None and own.way_of(node) == "mul_float32"
    rows = {"theirs": KernelCost({"": (5.0, *[0.0] * 7)}, 1)}
    if mine is not None:
        rows[own.name] = KernelCost({"mul_float32": (float(mine), *[0.0] * 7)}, 1)
    found = KernelChoice(graph, frozenset(), CostTable(rows), "balanced", family="auto").within(PLENTY)
    assert [k.name for k in found.values()] == taken


def test_a_kernel_without_costs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is guessed to be slow; the reason of the layer that it fits tells what to do."""
    board, graph = load_board("nrf52840"), dense_layers([8] * 2)
    (measured,) = lowered(graph, board, CompileOptions()).instrs
    assert "not measured" not in measured.reason
    monkeypatch.setattr(Dense, "kernels", (*Dense.kernels, kernel("made_up")))
    (instr,) = lowered(graph, board, CompileOptions()).instrs
    assert instr.kernel == measured.kernel
    assert instr.reason == f"{measured.reason}; not measured on cortex-m4: made_up (make costs)"


def test_measuring_takes_up_every_declared_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up, foreign = kernel("made_up", constants=1 << 20), kernel("foreign", needs=frozenset({"mve"}))
    kernels = (*declared_kernels(), made_up, foreign, of_library("theirs"))
    monkeypatch.setattr(measure_costs, "declared_kernels", lambda: kernels)
    monkeypatch.setattr(measure_costs, "models", lambda kind: [measure_costs.dense_layers(kind)])
    monkeypatch.setattr(Dense, "kernels", (*Dense.kernels, made_up))
    wanted = measure_costs.measurable_kernels(load_board("nrf52840").features)
    assert {"made_up", "dense_s8_dsp", "conv2d_f32"} <= {k.name for k in wanted}
    assert not {"foreign", "theirs", "dense_s8_mve"} & {k.name for k in wanted}
    taken = {k.name for k, _ in measure_costs.models_of_kernels(wanted, "nrf52840")}
    assert {"made_up", "dense_s8_dsp"} <= taken and "conv2d_f32" not in taken
