# SPDX-License-Identifier: Apache-2.0
"""Kernels are chosen together: by the goal, within the board, with shared code counted once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx_models import Net, optimized

from mcugen.errors import UsageError
from mcugen.hir.graph import Graph, Node
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.choose import Limits, choose_kernels
from mcugen.lir.cost import UNKNOWN, CostTable, KernelCost, cost_table, work
from mcugen.lir.program import Access
from mcugen.ops.matmul import Dense

PLENTY = Limits(1 << 20, 1 << 20)


def kernel(name: str, scratch: int = 0, constants: int = 0, **more: object) -> Kernel:
    """A kernel of a fully connected layer with so many bytes of scratch and of constants for each layer."""

    def emit(node: Node, builder: Builder, chosen: Kernel) -> None:
        label = node.output.name
        data = np.arange(constants + 1, dtype=np.uint8) + len(label) + ord(label[-1])
        operands = [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("w", Access.IN, builder.const(f"{label}.w", data.astype(np.uint8))),
            ("y", Access.OUT, builder.buffer(node.output)),
            ("s", Access.SCRATCH, builder.scratch(f"{label}.s", node.output.type.dtype, scratch // 4)),
        ]
        builder.emit(node, chosen, operands)

    return Kernel(name, emit=emit, **more)  # type: ignore[arg-type]


def costs(**of: tuple[float, int]) -> CostTable:
    """Instructions a call and bytes of code, by kernel."""
    return CostTable({name: KernelCost((call, *[0.0] * 7), code) for name, (call, code) in of.items()})


def dense_layers(count: int) -> Graph:
    net = Net()
    x = net.input("x", 1, 8)
    for i in range(count):
        x = net.op("MatMul", x, net.const(np.full((8, 8), i + 1.0)), out=f"y{i}")
    net.output(x)
    return optimized(net.model())


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    kernels: Sequence[Kernel],
    table: CostTable,
    goal: str = "balanced",
    layers: int = 1,
    limits: Limits = PLENTY,
    **more: object,
) -> list[str]:
    """The kernels' names, layer by layer."""
    monkeypatch.setattr(Dense, "kernels", tuple(kernels))
    graph = dense_layers(layers)
    found = choose_kernels(graph, frozenset(), table, goal, limits, **more)  # type: ignore[arg-type]
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


@pytest.mark.parametrize(("limits", "name"), [(PLENTY, "fast"), (Limits(4_000, 1 << 20), "lean")])
def test_speed_is_what_fits_the_board(monkeypatch: pytest.MonkeyPatch, limits: Limits, name: str) -> None:
    kernels = (kernel("fast", scratch=8_000), kernel("lean"))
    assert chosen(monkeypatch, kernels, costs(fast=(1, 0), lean=(9, 0)), "speed", limits=limits) == [name]


def test_code_that_another_layer_needs_anyway_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    table = costs(short=(100, 100), long=(60, 2_000))
    short = kernel("short", when=(lambda n: n.output.name == "y0",))
    assert chosen(monkeypatch, (short, kernel("long")), table) == ["short"]
    assert chosen(monkeypatch, (short, kernel("long")), table, layers=2) == ["long", "long"]


def test_a_wanted_kernel_is_taken_wherever_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (kernel("good"), kernel("other"), kernel("narrow", when=(lambda n: n.output.name == "y1",)))
    table = costs(good=(1, 1), other=(2, 2), narrow=(3, 3))
    assert chosen(monkeypatch, kernels, table, layers=3, wanted=("narrow",)) == ["good", "narrow", "good"]


def test_a_wanted_kernel_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"nonsense\..*good"):
        chosen(monkeypatch, (kernel("good"),), costs(good=(1, 1)), wanted=("nonsense",))


def test_sizes_known_at_run_time_leave_the_kernels_made_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (kernel("fixed"), kernel("flexible", any_size=True))
    table = costs(fixed=(1, 1), flexible=(9, 9))
    assert chosen(monkeypatch, kernels, table) == ["fixed"]
    assert chosen(monkeypatch, kernels, table, any_size=True) == ["flexible"]


def test_what_a_kernel_says_of_itself_is_part_of_its_work() -> None:
    (node,) = dense_layers(1).nodes
    assert work(node, Kernel("k"))[-1] == 0
    assert work(node, Kernel("k", extra=lambda n: n.output.type.count))[-1] == 8


def test_kernels_without_a_measurement_have_a_guess() -> None:
    assert cost_table("cortex-m4").of(Kernel("a user's own")) is UNKNOWN
    assert cost_table("no such cpu") is not None
