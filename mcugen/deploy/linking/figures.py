# SPDX-License-Identifier: Apache-2.0
"""The report of a firmware: the sizes of its models, separately and linked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mcugen.codegen.firmware import SharingPlan
from mcugen.codegen.memory import weights_bytes
from mcugen.core.board import Board, Memory
from mcugen.core.errors import DoesNotFitError
from mcugen.reporting.figures import MemoryUse, Report


@dataclass(frozen=True)
class LinkFigure:
    """A size in bytes, or a count, of several models that are built separately and of the firmware that links them.

    Attributes:
        apart: Sum over the separate models.
        linked: Value for the linked firmware.
    """

    apart: int
    linked: int

    @property
    def saved(self) -> int:
        """Return how much linking saves, in the unit of the figure; negative if linking costs something."""
        return self.apart - self.linked


@dataclass(frozen=True)
class LinkReport:
    """The figures of a firmware that links several models; sizes are in bytes.

    Attributes:
        name: Name of the firmware.
        board: Name of the board.
        cpu: Its CPU.
        models: Reports of the single models.
        arena: Size of the arenas.
        state: State that one stream of inputs of each model keeps between calls; states never share memory.
        weights: Size of the weights.
        kernels: Number of C functions of kernels.
        code: Measured size of the code; None if not built.
        flash: Measured size of code and weights; None if not built.
        memories: Use of each memory.
        notes: Notes for the user, one sentence each.
    """

    name: str
    board: str
    cpu: str
    models: list[Report]
    model_code: list[int] | None
    """Bytes of flash that each model takes without its weights if it is built alone; None if not built."""
    exclusive: list[list[str]]
    """Pairs of models that never run at the same time, so that they share memory."""
    arena: LinkFigure
    arena_bound: int
    """Proven lower bound of the size of the common arena in bytes."""
    state: int
    weights: LinkFigure
    kernels: LinkFigure
    code: LinkFigure | None
    flash: LinkFigure | None
    memories: list[MemoryUse]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return asdict(self)


def _weights_use(plan: SharingPlan) -> Counter[Memory]:
    """Return the bytes of constants in each nonvolatile memory that holds some."""
    used: Counter[Memory] = Counter()
    named = {draft.placement.weights.name: draft.placement.weights for draft in plan.drafts}
    for draft in plan.drafts:
        shared = sum(buffer.nbytes for buffer in plan.memory(draft).shared)
        used[draft.placement.weights] += weights_bytes(draft.program, draft.form.weights) - shared
    for _, memory, data in plan.shared.arrays:
        used[named.get(memory, plan.drafts[0].placement.weights)] += len(data)
    return used


def memory_uses(plan: SharingPlan) -> list[MemoryUse]:
    """Return the use of each memory that holds data of the firmware."""
    arenas = {area.memory: area.shared_arena.nbytes for area in plan.areas}
    weights, copies = _weights_use(plan), Counter[Memory]()
    for placement in (draft.placement for draft in plan.drafts):
        copies.update({memory: placement.copied_to(memory) for memory in placement.copies.values()})
    uses = []
    for memory in dict.fromkeys((*arenas, *copies, *weights)):
        arena, image, copied = arenas.get(memory, 0), weights[memory], copies[memory]
        use = (arena, image, copied, arena + image + copied)
        uses.append(MemoryUse(memory.name, memory.kind, memory.origin, memory.size, *use))
    return uses


def require_room(memories: Sequence[MemoryUse], board: Board) -> None:
    """Raise DoesNotFitError if a memory is too small for all models together."""
    for use in memories:
        room = board.memory(use.name).room
        if use.used > room:
            excess_text = f"{use.used:,} bytes, {use.used - room:,} more than there are: arenas {use.arena:,}, weights "
            remedy = "let models that never run together share memory: --exclusive A,B; or --place one elsewhere"
            rule = f"the models must fit memory '{use.name}' of board '{board.name}' together"
            raise DoesNotFitError(rule, f"{excess_text}{use.weights:,}, copies of weights {use.copies:,}", remedy)
