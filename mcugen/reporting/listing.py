# SPDX-License-Identifier: Apache-2.0
"""Listings of boards and models: what `mcugen boards` and `mcugen inspect` print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from mcugen.core.board import Board, Cache, Memory, board_names, load_board
from mcugen.core.errors import UsageError, printable
from mcugen.hir.graph import Graph
from mcugen.lir.program import Control, Program
from mcugen.memory.peak import shorten_name
from mcugen.memory.plan import peak_live_bytes
from mcugen.reporting.figures import Report
from mcugen.reporting.memory import Block, LayerPeak, MemoryMap
from mcugen.reporting.text import dropped_text


def print_boards(console: Console, as_json: bool, like: str = "") -> None:
    """Print a table of the boards that match a text.

    Raises:
        UsageError: No board matches.
    """
    boards = boards_like(like)
    if as_json:
        print(json.dumps([_plain(board) for board in boards], indent=2))
        return
    columns = [Column(title, no_wrap=True) for title in ("board", "CPU")]
    columns += [Column(title, no_wrap=True, justify="right") for title in ("MHz", "RAM", "flash")]
    table = Table(*columns, "kits, by whose names it goes too", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for board in boards:
        sizes = (_size(board.total_ram), _size(board.total_flash))
        table.add_row(board.name, board.cpu, f"{board.clock_hz / 1e6:.0f}", *sizes, escape(", ".join(board.kits)))
    console.print(table)


def boards_like(text: str) -> list[Board]:
    """Return the boards whose name, CPU, kits or description contain a text, in any case.

    Raises:
        UsageError: No board matches.
    """
    boards = [board for board in map(load_board, board_names()) if text.lower() in _search_text(board)]
    if not boards:
        raise UsageError(
            "--like must be part of a board's name, CPU, kits or description", f"'{text}'", "mcugen boards"
        )
    return boards


def _search_text(board: Board) -> str:
    return " ".join((board.name, board.cpu, *board.kits, board.description)).lower()


def print_board(board: Board, console: Console, as_json: bool) -> None:
    """Print the description of one board, as a table or as JSON."""
    if as_json:
        print(json.dumps(_plain(board), indent=2))
        return
    console.print(f"[bold]{board.name}[/]: {escape(board.description)}", highlight=False)
    facts = Table(show_header=False)
    facts.add_row("CPU", f"{board.cpu} at {board.clock_hz / 1e6:g} MHz")
    facts.add_row("extensions", " ".join(sorted(board.features)) or "-")
    facts.add_row("compiler flags", escape(" ".join(board.cflags)))
    facts.add_row("QEMU machine", board.qemu or "none: runs on this computer")
    facts.add_row("arena in", board.arena_memory)
    facts.add_row("weights in", board.weights_memory)
    facts.add_row("kits", escape(", ".join(board.kits)) or "-")
    for core in board.cores:
        board_text = f", as '{core.board.name}', pace {core.pace:g}" if core.board else ""
        facts.add_row(f"core {escape(core.name)}", escape(f"{core.cpu} at {core.clock_hz / 1e6:g} MHz{board_text}"))
    for cache in board.caches:
        facts.add_row(f"cache {escape(cache.name)}", escape(_cache(cache)))
    if board.energy:
        facts.add_row("draws", f"{board.energy.microamps_per_mhz:g} µA/MHz at {board.energy.millivolts / 1e3:g} V")
    console.print(facts)
    memories = Table("memory", "kind", "address", "bytes", "speed", "waits")
    for m in board.memories:
        waits = waits_text(board, m)
        memories.add_row(escape(m.name), m.kind, f"0x{m.origin:08x}", f"{m.size:,}", str(m.speed), waits)
    console.print(memories)
    if board.sources:
        console.print("Sources:", highlight=False)
    for source in board.sources:
        console.print(f"- {escape(source)}", highlight=False)


def _cache(cache: Cache) -> str:
    placement = "any place" if cache.sets == 1 else f"{cache.ways} places a line"
    holds = "instructions and data" if cache.holds == "both" else cache.holds
    return f"{cache.size:,} bytes in lines of {cache.line}, {placement}: {holds} of {', '.join(cache.serves)}"


def waits_text(board: Board, memory: Memory) -> str:
    """Return a text on the wait states of a memory: "none", "unknown", or cycles for each access."""
    cycles = board.wait_cycles(memory, memory.line_bytes)
    if not cycles:
        return "unknown" if cycles is None else "none"
    return f"{cycles} / {memory.line_bytes} bytes" + ", prefetch" * memory.prefetch


def print_model(graph: Graph, program: Program, report: Report, console: Console) -> None:
    """Print inputs, outputs and totals of a model, then one line for each node."""
    facts = Table(show_header=False)
    for kind, endpoints in (("input", program.inputs), ("output", program.outputs), ("state", program.states)):
        for e in endpoints:
            shape = ("x".join(map(str, e.shape)) or "scalar") + " at most" * bool(e.sizes)
            facts.add_row(
                kind, escape(printable(f"{e.name}: {e.dtype.value} {shape}" + (f" {e.quant}" if e.quant else "")))
            )
    for symbol in program.symbols:
        origin = f"output '{symbol.output}'" if symbol.output else "an argument of the run function"
        facts.add_row("size", escape(printable(f"{symbol.name}: {symbol.low} to {symbol.high}, {origin}")))
    facts.add_row("MACs", f"{report.model.macs:,}")
    if report.model.dropped_channels:
        facts.add_row("MACs dropped", f"{report.model.dropped_macs:,}: {dropped_text(report.model)}")
    facts.add_row("parameters", f"{report.model.parameters:,} in {program.weights_size:,} bytes of constants")
    facts.add_row("kernels", "; ".join(filter(None, (report.kernels, report.library_calls))))
    facts.add_row(
        "peak activation memory", f"{peak_live_bytes(program):,} bytes alive at once, arena {program.arena_size:,}"
    )
    console.print(facts)
    table = Table("#", "operator", "output", "MACs", "ONNX nodes")
    for index, node in enumerate(graph.nodes):
        types = ", ".join(str(v.type) for v in node.outputs)
        table.add_row(
            str(index), node.op.name, types, f"{node.op.macs(node.sig):,}", escape(printable(", ".join(node.origin)))
        )
    console.print(table)


ARENA_PICTURE_CHARACTERS = 20
"""Width in characters of the arena's picture in each line of the memory map."""

FIGURE_CHARACTERS = 48
"""Width in characters of a line of the memory map without names and the picture."""

_STYLES = {"input": "blue", "output": "yellow", "activation": "green", "scratch": "magenta"}


def print_memory(memory: MemoryMap, console: Console) -> None:
    """Print the arena's totals, then one line for each layer with its live buffers; the peak is bold."""
    peak = memory.peak
    facts = Table(show_header=False)
    parts = f": {' + '.join(f'{n:,}' for n in memory.areas)}" * (len(memory.areas) > 1)
    facts.add_row("arena", f"{memory.arena:,} bytes{parts}")
    facts.add_row("least possible", f"{memory.bound:,} bytes, proven for these layers in this order")
    where = f"layer {peak.layer}, '{peak.title}'" if peak.layer is not None else peak.title
    facts.add_row("peak", escape(printable(f"{peak.nbytes:,} bytes in {where}")))
    for block in peak.blocks:
        facts.add_row("", _fit_name(f"{block.nbytes:>9,} {block.kind} '{block.title}'", console.width - 24))
    if peak.layer is not None:
        facts.add_row("by rows", escape(printable(_by_rows(memory.rows[peak.layer]))))
    if peak.blocks and peak.blocks[0].kind == "input" and 2 * peak.blocks[0].nbytes > peak.nbytes:
        facts.add_row("its input", "most of the peak: --stream-input and, of quantized models, --integer-io save that")
    console.print(facts)
    console.print("in the picture of the arena: █ in use, ▄ less than half, ▓ shared, · free", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    room = max((console.width - ARENA_PICTURE_CHARACTERS - FIGURE_CHARACTERS) // 2, 8)
    for head in ("#", "layer", "in use", "scratch", "arena", "offset", "bytes", "buffer"):
        is_name = head in ("layer", "buffer")
        table.add_column(
            head,
            justify="left" if is_name or head == "arena" else "right",
            no_wrap=True,
            max_width=room if is_name else None,
        )
    for index, row in enumerate(memory.rows):
        table.add_row(
            str(index),
            _fit_name(row.title, room),
            f"{row.nbytes:,}",
            f"{row.scratch:,}",
            _strip(row.blocks, memory.arena),
            "\n".join(f"{b.offset:,}" for b in row.blocks),
            "\n".join(f"{b.nbytes:,}" for b in row.blocks),
            Text("\n").join(_fit_name(b.title, room, _STYLES[b.kind]) for b in row.blocks),
            style="bold" if index == peak.layer else None,
        )
    console.print(table)


def _by_rows(row: LayerPeak) -> str:
    """Return whether the layer of the peak is computed row by row, or could be, as text."""
    if row.kernel == Control.STREAM.value:
        return "this layer is a group that is computed row by row"
    if row.whole:
        return f"this layer is computed as a whole: {row.whole}"
    return "this layer may be computed row by row: --optimize ram does so where that takes less"


def _fit_name(name: str, room: int, style: str = "") -> Text:
    """Return a name on one line; long names are shortened at the start, because they differ at the end."""
    return Text(shorten_name(printable(name).replace("\n", "·"), room), style)


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
    whole = nbytes >= 1 << 20 and nbytes % (1 << 20) == 0
    return f"{nbytes >> 20} MB" if whole else f"{nbytes >> 10} KB"


def _plain(board: Board) -> dict[str, Any]:
    """Return a board as plain data for JSON; another kind of core is given by the name of its board file."""
    cores = [{**vars(core), "board": core.board and core.board.name} for core in board.cores]
    return {**asdict(replace(board, cores=())), "features": sorted(board.features), "cores": cores}
