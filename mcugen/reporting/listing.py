# SPDX-License-Identifier: Apache-2.0
"""Listings of boards and models: what `mcugen boards` and `mcugen inspect` print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from mcugen.core.board import Board, Cache, Memory, board_names, is_like, load_board
from mcugen.core.errors import UsageError, printable
from mcugen.hir.graph import Graph
from mcugen.hir.layer_names import name_nodes
from mcugen.lir.program import Control, Program
from mcugen.memory.plan import peak_live_bytes
from mcugen.reporting.figures import Report
from mcugen.reporting.memory import Block, LayerPeak, MemoryMap
from mcugen.reporting.tables import CellKind, Fact, TableColumn, TextTable, print_facts, print_table
from mcugen.reporting.text import dropped_text


def print_boards(console: Console, as_json: bool, like: str = "") -> None:
    """Print a table, or JSON, of the boards that match a text.

    Args:
        console: Where to print.
        as_json: Whether to print JSON.
        like: A text in a board's name, part number, CPU, kits or description; "" for all boards.

    Raises:
        UsageError: No board matches.
    """
    boards = boards_like(like)
    if as_json:
        print(json.dumps([_plain(board) for board in boards], indent=2))
        return
    print_table(board_table(boards), console, hint="--json has all")


def board_table(boards: Sequence[Board]) -> TextTable:
    """Return a table of boards, with name, CPU, clock, sizes of RAM and flash, kits and part numbers of each."""
    columns = [TableColumn(title, CellKind.WORD) for title in ("board", "CPU")]
    columns += [TableColumn(title) for title in ("MHz", "RAM", "flash")]
    rows = [
        (
            board.name,
            board.cpu,
            f"{board.clock_hz / 1e6:.0f}",
            _size(board.total_ram),
            _size(board.total_flash),
            ", ".join((*board.kits, *board.parts)),
        )
        for board in boards
    ]
    return TextTable([*columns, TableColumn("kits and part numbers, also names of the board", CellKind.TEXT, 1)], rows)


def boards_like(text: str) -> list[Board]:
    """Return the boards whose name, part number, CPU, kits or description contain a text, in any case.

    Raises:
        UsageError: No board matches.
    """
    boards = [board for board in map(load_board, board_names()) if is_like(board, text)]
    if not boards:
        raise UsageError(
            "--like must be part of a board's name, part number, CPU, kits or description",
            f"'{text}'",
            "mcugen boards",
        )
    return boards


def print_board(board: Board, console: Console, as_json: bool) -> None:
    """Print the description of one board, as a table or as JSON."""
    if as_json:
        print(json.dumps(_plain(board), indent=2))
        return
    console.print(f"[bold]{board.name}[/]: {escape(board.description)}", highlight=False)
    print_facts("", board_facts(board), console)
    print_table(memory_table(board), console, hint="--json has all")
    if board.sources:
        console.print("Sources:", highlight=False)
    for source in board.sources:
        console.print(f"- {escape(source)}", highlight=False)


def board_facts(board: Board) -> list[Fact]:
    """Return the label, value and note of each fact on a board."""
    facts = [
        ("CPU", f"{board.cpu} at {board.clock_hz / 1e6:g} MHz"),
        ("extensions", " ".join(sorted(board.features)) or "-"),
        ("compiler flags", " ".join(board.cflags)),
        ("QEMU machine", board.qemu or "none: runs on this computer"),
        ("arena in", board.arena_memory),
        ("weights in", board.weights_memory),
        ("kits", ", ".join(board.kits) or "-"),
    ]
    for core in board.cores:
        board_text = f", as '{core.board.name}', pace {core.pace:g}" if core.board else ""
        facts.append((f"core {core.name}", f"{core.cpu} at {core.clock_hz / 1e6:g} MHz{board_text}"))
    facts += [(f"cache {cache.name}", _cache(cache)) for cache in board.caches]
    if board.energy:
        facts.append(("draws", f"{board.energy.microamps_per_mhz:g} µA/MHz at {board.energy.millivolts / 1e3:g} V"))
    return [(label, "", text) for label, text in facts]


def memory_table(board: Board) -> TextTable:
    """Return the table of a board's memories."""
    columns = (
        TableColumn("memory", CellKind.WORD),
        TableColumn("kind", CellKind.WORD, 1),
        TableColumn("address"),
        TableColumn("bytes"),
        TableColumn("speed"),
        TableColumn("waits", CellKind.WORD),
    )
    rows = [
        (m.name, m.kind, f"0x{m.origin:08x}", f"{m.size:,}", str(m.speed), waits_text(board, m)) for m in board.memories
    ]
    return TextTable(columns, rows)


def _cache(cache: Cache) -> str:
    placement = "any place" if cache.sets == 1 else f"{cache.ways} places a line"
    holds = "instructions and data" if cache.holds == "both" else cache.holds
    return f"{cache.size:,} bytes in lines of {cache.line}, {placement}: {holds} of {', '.join(cache.serves)}"


def waits_text(board: Board, memory: Memory) -> str:
    """Return a text on the wait states of a board's memory: "none", "unknown", or the stall cycles of an access."""
    cycles = board.wait_cycles(memory, memory.line_bytes)
    if not cycles:
        return "unknown" if cycles is None else "none"
    return f"{cycles} / {memory.line_bytes} bytes" + ", prefetch" * memory.prefetch


def print_model(graph: Graph, program: Program, report: Report, console: Console, wide: bool = False) -> None:
    """Print inputs, outputs and totals of a model, then one line for each node.

    Args:
        graph: The graph after all passes.
        program: Its program.
        report: Its report.
        console: Where to print.
        wide: Whether to print all columns, however wide the console is.
    """
    print_facts("", model_facts(program, report), console)
    print_table(node_table(graph), console, wide, "--wide has all")


def model_facts(program: Program, report: Report) -> list[Fact]:
    """Return the label, value and note of each fact on a model: inputs, outputs and totals."""
    facts = []
    for kind, endpoints in (("input", program.inputs), ("output", program.outputs), ("state", program.states)):
        for e in endpoints:
            shape = ("x".join(map(str, e.shape)) or "scalar") + " at most" * bool(e.sizes)
            facts.append((kind, f"{e.name}: {e.dtype.value} {shape}" + (f" {e.quant}" if e.quant else "")))
    for symbol in program.symbols:
        origin = f"output '{symbol.output}'" if symbol.output else "an argument of the run function"
        facts.append(("size", f"{symbol.name}: {symbol.low} to {symbol.high}, {origin}"))
    facts.append(("MACs", f"{report.model.macs:,}"))
    if report.model.dropped_macs:
        facts.append(("MACs dropped", f"{report.model.dropped_macs:,}: {dropped_text(report.model)}"))
    facts.append(("parameters", f"{report.model.parameters:,} in {program.weights_size:,} bytes of constants"))
    facts.append(("kernels", "; ".join(filter(None, (report.kernels, report.library_calls)))))
    peak = f"{peak_live_bytes(program):,} bytes alive at once, arena {program.arena_size:,}"
    return [(label, "", text) for label, text in [*facts, ("peak activation memory", peak)]]


def node_table(graph: Graph) -> TextTable:
    """Return the table of the nodes of a graph."""
    columns = (
        TableColumn("#"),
        TableColumn("layer", CellKind.NAME),
        TableColumn("operator", CellKind.NAME, 1),
        TableColumn("output", CellKind.TEXT),
        TableColumn("MACs"),
        TableColumn("ONNX nodes", CellKind.TEXT, 2),
    )
    rows = [
        (
            str(index),
            name,
            node.op.name,
            ", ".join(str(v.type) for v in node.outputs),
            f"{node.op.macs(node.sig):,}",
            ", ".join(node.origin),
        )
        for index, (node, name) in enumerate(name_nodes(graph).items())
    ]
    return TextTable(columns, rows)


ARENA_PICTURE_CHARACTERS = 20
"""Width in characters of the picture of the arena in each line of the printed memory map."""

_STYLES = {"input": "blue", "output": "yellow", "activation": "green", "scratch": "magenta"}


def print_memory(memory: MemoryMap, console: Console, wide: bool = False) -> None:
    """Print the arena's totals, then one line for each layer with its live buffers; the peak is bold.

    Args:
        memory: The memory map.
        console: Where to print.
        wide: Whether to print all columns, however wide the console is.
    """
    print_facts("", memory_facts(memory), console)
    console.print("in the picture of the arena: █ in use, ▄ less than half, ▓ shared, · free", highlight=False)
    print_table(layer_memory_table(memory), console, wide)


def memory_facts(memory: MemoryMap) -> list[Fact]:
    """Return the label, value and note of each fact on the arena's size and peak."""
    peak = memory.peak
    parts = f": {' + '.join(f'{n:,}' for n in memory.areas)}" * (len(memory.areas) > 1)
    where = f"layer {peak.layer}, '{peak.name}'" if peak.layer is not None else peak.name
    facts = [
        ("arena", f"{memory.arena:,} bytes{parts}"),
        ("least possible", f"{memory.bound:,} bytes, proven for these layers in this order"),
        ("peak", f"{peak.nbytes:,} bytes in {where}"),
        *(("", f"{block.nbytes:>9,} {block.kind} '{block.name}'") for block in peak.blocks),
    ]
    if peak.layer is not None:
        facts.append(("by rows", _by_rows(memory.rows[peak.layer])))
    if peak.blocks and peak.blocks[0].kind == "input" and 2 * peak.blocks[0].nbytes > peak.nbytes:
        remedy = "most of the peak: --stream-input and, of quantized models, --integer-io save that"
        facts.append(("its input", remedy))
    return [(label, "", text.replace("\n", "·")) for label, text in facts]


def layer_memory_table(memory: MemoryMap) -> TextTable:
    """Return a table with a row for each layer: the bytes of the arena in use, and the live buffers."""
    columns = (
        TableColumn("#"),
        TableColumn("layer", CellKind.NAME),
        TableColumn("in use"),
        TableColumn("scratch", rank=3),
        TableColumn("arena", CellKind.WORD, 4),
        TableColumn("offset", rank=2),
        TableColumn("bytes"),
        TableColumn("buffer", CellKind.NAME, 1),
    )
    rows = [
        (
            str(index),
            row.name.replace("\n", "·"),
            f"{row.nbytes:,}",
            f"{row.scratch:,}",
            _strip(row.blocks, memory.arena),
            "\n".join(f"{b.offset:,}" for b in row.blocks),
            "\n".join(f"{b.nbytes:,}" for b in row.blocks),
            Text("\n").join(Text(printable(b.name).replace("\n", "·"), _STYLES[b.kind]) for b in row.blocks),
        )
        for index, row in enumerate(memory.rows)
    ]
    return TextTable(columns, rows, styles=["bold" if i == memory.peak.layer else None for i in range(len(rows))])


def _by_rows(row: LayerPeak) -> str:
    """Return whether the layer of the peak is computed row by row, or could be, as text."""
    if row.kernel == Control.STREAM.value:
        return "this layer is a group that is computed row by row"
    if row.whole:
        return f"this layer is computed as a whole: {row.whole}"
    return "this layer may be computed row by row: --optimize ram does so where that takes less"


def _strip(blocks: Sequence[Block], arena: int) -> Text:
    """Return a picture of the arena from address 0 on, in the colours of the buffers."""
    strip = Text()
    for cell in range(ARENA_PICTURE_CHARACTERS):
        start, end = cell * arena // ARENA_PICTURE_CHARACTERS, (cell + 1) * arena // ARENA_PICTURE_CHARACTERS
        inside = [(min(b.end, end) - max(b.offset, start), b) for b in blocks if b.offset < end and start < b.end]
        if not inside:
            strip.append("·")
            continue
        nbytes = sum(n for n, _ in inside)
        sign = "▓" if nbytes > end - start else "█" if 2 * nbytes >= end - start else "▄"
        strip.append(sign, _STYLES[max(inside, key=lambda found: found[0])[1].kind])
    return strip


def _size(nbytes: int) -> str:
    """Return a size in KB, or in MB if that is exact or the size is large."""
    in_megabytes = nbytes >= 16 << 20 or (nbytes >= 1 << 20 and nbytes % (1 << 20) == 0)
    return f"{nbytes >> 20} MB" if in_megabytes else f"{nbytes >> 10} KB"


def _plain(board: Board) -> dict[str, Any]:
    """Return a board as plain data for JSON; another kind of core is given by the name of its board file."""
    cores = [{**vars(core), "board": core.board and core.board.name} for core in board.cores]
    return {**asdict(replace(board, cores=())), "features": sorted(board.features), "cores": cores}
