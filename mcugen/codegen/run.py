# SPDX-License-Identifier: Apache-2.0
"""Generation of the body of the run function: its statements, and the names and functions that they use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import jinja2
import numpy as np

from mcugen.codegen.checks import CheckedData, array_entry, struct_entry
from mcugen.codegen.functions import Functions
from mcugen.codegen.identifiers import comment_lines, identifier
from mcugen.codegen.lines import fitted, fitted_call
from mcugen.codegen.literals import c_rows
from mcugen.codegen.memory import Area, MemoryContext
from mcugen.codegen.shared import NO_SHARED_CODE, SharedCode, array_key
from mcugen.codegen.sizes import CodeTable, SizedParams, symbol_names
from mcugen.hir.names import Names
from mcugen.hir.types import Array, DType
from mcugen.lir.layer_titles import Titles, buffer_titles, layer_names, titles_of
from mcugen.lir.program import (
    BEGIN_WEIGHTS,
    END_WEIGHTS,
    MOVE,
    READ_ROWS,
    READ_WEIGHTS,
    STAGE_WEIGHTS,
    STOP,
    Access,
    Buffer,
    Control,
    Instr,
    Operand,
    Program,
    Space,
)


def has_unbounded_param(instr: Instr) -> bool:
    """Return whether an instruction has an infinite or NaN parameter, whose literal needs math.h."""
    return any(isinstance(v, float) and not math.isfinite(v) for v in instr.params.values())


@dataclass
class Renderer:
    """The C names, functions and tables of one model's generated files; each is created when it is first needed."""

    program: Program
    """The planned program of the model."""
    env: jinja2.Environment
    """Environment of the templates."""
    features: frozenset[str]
    """Names of the CPU features of the board."""
    taken: Names
    """All C names that the model's files use already; external names include the model's name."""
    memory: MemoryContext
    """The memory layout of the code: arenas, sections and weights."""
    shared: SharedCode = NO_SHARED_CODE
    """Functions and arrays that other files of a firmware define."""
    titles: Titles = field(default_factory=dict)
    """Names of the layers for C identifiers and comments, by instruction name."""
    names: dict[Buffer, str] = field(default_factory=dict)
    """C names of buffers; those of constants lack the prefix with the model's name."""
    functions: Functions = field(init=False)
    """The C functions of kernels that the program calls."""
    symbols: dict[str, str] = field(default_factory=dict)
    """C names of the sizes that are known at run time only."""
    events: list[CodeTable] = field(default_factory=list)
    """Constant tables with the events of STREAM blocks, one for each block."""
    checked: list[CheckedData] = field(default_factory=list)
    """Tables in the model's C file that have a checksum."""
    parameters: dict[tuple[object, ...], str] = field(default_factory=dict)
    """Names of parameter structs, by function and values.

    Layers with equal parameters share a struct. A compiler can then optimize a function that is always called with the
    same struct as if it were called once.
    """

    @cached_property
    def shares_parameters(self) -> bool:
        """Return whether kernel parameters depend on no run-time size or update, so that calls can share structs."""
        return not self.program.symbols and not self.memory.updatable

    def __post_init__(self) -> None:
        self.functions = Functions(self.env, self.features, self.function_name, self.shared.functions)
        self.symbols = symbol_names(self.program.symbols, self.taken)
        self.titles = titles_of(self.program)
        for buffer, (title, role) in buffer_titles(self.program).items():
            prefix = f"{self.program.name}_" if buffer.space is Space.CONST else ""
            self.names[buffer] = self.unique(title, role, prefix)

    def array(self, constant: Buffer) -> str:
        """Return the C name of the array that holds a constant."""
        return self.memory.shared.get(constant) or f"{self.program.name}_{self.names[constant]}"

    def unique(self, text: str, role: str = "", prefix: str = "", suffix: str = "") -> str:
        """Return an unused C identifier made from text; the same identifier with prefix and suffix is unused, too.

        Args:
            text: Untrusted text such as the name of a layer.
            role: Suffix that is part of the identifier; "" for none.
            prefix: Prefix that the caller puts before the identifier.
            suffix: Suffix that the caller puts after the identifier.
        """
        word = identifier(text, self.taken, role, prefix)
        while prefix + word + suffix != word and prefix + word + suffix in self.taken:
            word = identifier(text, self.taken, role, prefix)
        self.taken.add(prefix + word + suffix)
        return word

    def of_layer(self, instr: Instr, role: str) -> str:
        """Return a new C identifier made from the title of an instruction's layer and from `role`."""
        return self.unique(self.titles[instr.name], role)

    def function_name(self, instr: Instr) -> str:
        """Return an unused C name for the function of an instruction's kernel."""
        suffix = f"_{instr.variant}" if instr.variant else ""
        return self.unique(instr.kernel + suffix, suffix="_params")


def step_layers(lines: Sequence[RunStatement]) -> tuple[int, ...]:
    """Return, for each step of a run (see RunStatement), the index of the layer that the step belongs to."""
    layers: list[int] = []
    begun = 0
    for line in lines:
        begun += line.calls if line.opens else 0
        if line.done is not None:
            layers += [line.done] * begun
            begun = 0
    return tuple(layers)


def size_expressions(renderer: Renderer) -> dict[str, str]:
    """Return the C expression of each size that is known at run time only, by symbol name.

    It is an argument of the run function, or the result of an instruction.
    """
    buffers = {e.name: e.buffer for e in renderer.program.outputs}
    return {
        s.name: f"{argument(renderer, buffers[s.output])}[0]" if s.output else renderer.symbols[s.name]
        for s in renderer.program.symbols
    }


@dataclass(frozen=True)
class RunStatement:
    """One C statement of the run function: a call, or the begin or end of a block.

    Where the generated code can be run in steps, a step is what one call of the C function `<model>_step` runs: one
    statement outside of blocks, one whole block, or one event of a stream.
    """

    text: str
    """The statement in C, without indentation."""
    heading: tuple[str, ...] = ()
    """Texts that form the comment above the statement."""
    function: str = ""
    """Name of the C function that the statement calls; "" if it is no call."""
    params: str = ""
    """C name of the parameter struct that the call gets; "" if there is none."""
    members: tuple[tuple[str, str, str], ...] = ()
    """Name, C type and C value of each member of the call's parameter struct."""
    is_sized: bool = False
    """Whether the parameters depend on sizes that are known at run time only."""
    calls: int = 1
    """Number of steps that begin with the statement, if `opens` is set: the number of events for a stream, else 1."""
    indent: str = ""
    """Spaces before the statement."""
    comment: str = ""
    """Text of a comment of the statement; "" for none."""
    done: int | None = None
    """Index of the layer that is complete after the statement; None if no layer is completed by it."""
    portion: int = 0
    """Number of the fork, from 1, if the statement belongs to the second core's part of the fork; 0 otherwise."""
    hands_over: bool = False
    """Whether the statement moves data from the first part of a pipeline over two cores to the second part."""
    stops: bool = False
    """Whether the run function may return after the statement: a training call may end before the loss or before the
    update."""
    opens: bool = False
    """Whether a step of the run function begins with the statement."""
    closes: bool = False
    """Whether a step of the run function ends with the statement."""

    def with_portion_arguments(self, portion_arguments: str) -> RunStatement:
        """Return the statement with arguments inserted, if it calls the second core's function; else unchanged."""
        return replace(self, text=self.text.replace(_GIVEN, portion_arguments))


@dataclass(frozen=True)
class Local:
    """A local variable of the run function: a typed pointer into an area of the arena.

    Attributes:
        name: C name of the variable.
        ctype: C type that the pointer points to.
        offset: Offset in bytes from the begin of the area.
        area: The area of the arena.
        nbytes: Bytes of the buffer that the pointer addresses.
    """

    name: str
    ctype: str
    offset: int
    area: Area
    nbytes: int


def lines_of(
    renderer: Renderer, sized: SizedParams, steps: bool, cached: tuple[bool, bool] = (False, False)
) -> list[RunStatement]:
    """Return the statements of the run function: calls, and the begins and ends of blocks.

    Args:
        renderer: Names and functions of the program.
        sized: Parameters that depend on run-time sizes.
        steps: Whether to divide the function into steps: each statement outside of blocks, and each block as a whole. A
            stream outside of blocks has one step for each event, with cases instead of a loop.
        cached: For each of the two cores, whether it has a data cache that holds the arena.
    """
    program, begun = renderer.program, list[Instr]()
    names = layer_names(program)
    lines: list[RunStatement] = []
    forks = _Forks(renderer, cached)
    for number, layer in enumerate(program.layers()):
        head, first = program.head(layer), len(lines)
        for index, instr in ((i, program.instrs[i]) for i in layer):
            if instr.moves_nothing:
                continue
            lines += forks.part_of(index)
            if forks.takes(instr):
                lines += forks.lines(instr)
                continue
            closed = begun.pop() if instr.control in (Control.ELSE, Control.END) else None
            enclosing = begun[0].control if begun else Control.NONE
            depth = 4 * (len(begun) + (steps and enclosing is not Control.STREAM) + bool(forks.portion))
            is_stepped, opens = steps and not begun, not begun and not closed
            if is_stepped and (closed or instr).control is Control.STREAM:
                line = _end_of_event(closed, depth) if closed else _begin_of_event(renderer, instr, depth)
            elif closed:
                line = _end(closed, instr, depth)
            elif instr.control is Control.NONE:
                line = _call(renderer, instr, sized, 8 + depth)
            else:
                line = _begin(renderer, instr, sized, depth)
            heading = (
                [f"{number}: {instr.op} {names[number]}", *line.heading[1:]]
                if line.heading and instr is head
                else line.heading
            )
            text = f"\n{' ' * (4 + depth)} * ".join(comment_lines(part, 4 + depth) for part in heading)
            if instr.control not in (Control.NONE, Control.END):
                begun.append(instr)
            line = replace(line, indent=" " * depth, comment=text, opens=opens, closes=not begun)
            lines.append(replace(line, portion=forks.portion, hands_over=forks.hands_over))
        ends = [i for i in range(first, len(lines)) if not lines[i].stops]
        last = max([i for i in ends if not lines[i].portion] or ends)
        lines[last] = replace(lines[last], done=number)
    return lines


@dataclass
class _Forks:
    """The forks that have begun, and the fork whose second-core shard the current statements belong to, if any."""

    renderer: Renderer
    cached: tuple[bool, bool]
    count: int = 0
    is_open: bool = False
    portion: int = 0
    hands_over: bool = False

    def part_of(self, index: int) -> list[RunStatement]:
        """Return the statements before an instruction that begins a part of a pipeline on two cores.

        The second part is all that the other core computes.
        """
        program, (ours, theirs) = self.renderer.program, self.cached
        handover = program.handover
        if handover is None:
            return []
        self.hands_over, self.portion = index in handover, int(index >= handover.stop)
        stale = list[Buffer]()
        if index == handover.start and ours:
            stale = [e.buffer for e in program.outputs]
        elif index == handover.stop:
            stale = [program.instrs[i].operand("y").buffer for i in handover if theirs]
            stale += _states(program.instrs[index:]) if ours or theirs else []
        indent = "    " * self.portion
        lines = [RunStatement(text, calls=0, indent=indent, portion=self.portion) for text in self._invalidated(stale)]
        return [replace(line, hands_over=self.hands_over) for line in lines]

    def takes(self, instr: Instr) -> bool:
        """Return whether an instruction is a marker of a fork; a fork contains no other blocks."""
        return instr.control is Control.FORK or (self.is_open and instr.control is not Control.NONE)

    def lines(self, instr: Instr) -> list[RunStatement]:
        """Return the statements of a fork's marker.

        They post the other core's shard at the begin, and behind the own shard wait for the other core, or compute its
        shard here if there is no link to it. The end has no statements.
        """
        if instr.control is Control.FORK:
            self.count, self.is_open = self.count + 1, True
            return [RunStatement(f"mcugen_cores_post(link, {self.count});", calls=0)]
        if instr.control is Control.ELSE:
            self.portion = self.count
            before, behind = self._stale(instr)
            alone = ["if (link == NULL) {", f"    {OTHER_PORTION}({self.count}{_GIVEN});"]
            joined = [
                "} else {",
                "    if (mcugen_cores_join(link) != MCUGEN_OK) {",
                "        return MCUGEN_ERROR_CORE;",
                "    }",
                "}",
            ]
            portion = [RunStatement(text, calls=0, indent="    ", portion=self.count) for text in before]
            return [
                RunStatement(_stacked([*alone, *joined], 0), calls=0),
                *(RunStatement(text, calls=0) for text in behind),
                *portion,
            ]
        self.is_open, self.portion = False, 0
        return []

    def _stale(self, middle: Instr) -> tuple[list[str], list[str]]:
        """Return the cache invalidations around the other core's shard: of what it reads, and of what it wrote."""
        instrs = self.renderer.program.instrs
        begin = next(i for i, instr in enumerate(instrs) if instr is middle)
        end = next(i for i in range(begin, len(instrs)) if instrs[i].control is Control.END)
        operands = [o for i in instrs[begin:end] if i.kernel != MOVE for o in i.operands if _changes(o.buffer)]
        read = [o.buffer for o in operands if o.access is Access.IN]
        written = [o.buffer for o in operands if o.access in (Access.OUT, Access.INOUT)]
        ours, theirs = self.cached
        return self._invalidated(read if theirs else []), self._invalidated(written if ours else [])

    def _invalidated(self, buffers: Sequence[Buffer]) -> list[str]:
        names = [(argument(self.renderer, buffer), buffer.nbytes) for buffer in dict.fromkeys(buffers)]
        return [fitted_call("MCUGEN_CORE_INVALIDATE", [name, f"{nbytes}u"], 4) for name, nbytes in names]


def _changes(buffer: Buffer) -> bool:
    """Return whether both cores may write a buffer at run time: a buffer in the arena or a state."""
    return buffer.planned or buffer.space is Space.STATE


def _states(instrs: Sequence[Instr]) -> list[Buffer]:
    """Return the states of a pipeline's second part. The first core computes that part, too, when no frame follows."""
    return [o.buffer for instr in instrs for o in instr.operands if o.buffer.space is Space.STATE]


OTHER_PORTION = "other_portion"
"""C name of the function that runs the second core's part of each fork."""

_GIVEN = "{given}"
"""Placeholder of the arguments of OTHER_PORTION, which are known only when all shards are."""


def _begin(renderer: Renderer, instr: Instr, sized: SizedParams, depth: int) -> RunStatement:
    """Return the C text that begins a block."""
    names = {o.role: f"*{argument(renderer, o.buffer)}" for o in instr.operands}
    if instr.control is Control.CASE:
        return RunStatement(f"case {instr.case}: {{")
    if instr.control is Control.STREAM:
        table, event = _events(renderer, instr), renderer.unique("event")
        loop = f"for (int32_t {event} = 0; {event} < {table.count}; ++{event}) {{"
        text = _stacked([fitted(loop, 4 + depth), f"    switch ({table.name}[{event}]) {{"], depth)
    elif instr.control is Control.IF:
        text = f"if ({names['cond']} != 0) {{"
    else:
        index, more = names["index"], f" && {names['cond']} != 0" if "cond" in names else ""
        ((_, _, steps),) = sized.members(instr)
        at = renderer.unique("at")  # what the body reads is an element of a tensor, which MISRA C takes for no counter
        loop = fitted(f"for (int32_t {at} = 0; {at} < {steps}{more}; ++{at}) {{", 4 + depth)
        text = _stacked([loop, f"    {index} = {at};"], depth)
    return RunStatement(text, _heading(renderer, instr))


def _begin_of_event(renderer: Renderer, instr: Instr, depth: int) -> RunStatement:
    """Return the C text that begins one event of a stream as a step."""
    table = _events(renderer, instr)
    text = fitted(f"switch ({table.name}[steps->event]) {{", 4 + depth)
    return RunStatement(text, _heading(renderer, instr), calls=len(instr.events))


def _end_of_event(begun: Instr, depth: int) -> RunStatement:
    """Return the C text that ends an event: the next event is the next step."""
    again = f"if (++steps->event < {len(begun.events)}) {{"
    left = [again, "    steps->next = next;", "    return MCUGEN_AGAIN;", "}"]
    return RunStatement(_stacked(["default:", "    break;", "}", *left, "steps->event = 0;"], depth))


def _end(begun: Instr, instr: Instr, depth: int) -> RunStatement:
    """Return the C text that ends a block or its first half."""
    last = {Control.STREAM: ["    default:", "        break;", "    }", "}"], Control.CASE: ["    break;", "}"]}
    lines = ["} else {"] if instr.control is Control.ELSE else last.get(begun.control, ["}"])
    return RunStatement(_stacked(lines, depth))


def _stacked(lines: list[str], depth: int) -> str:
    """Return lines of the run function as one text; the caller indents the first line by `depth`."""
    return f"\n{' ' * (4 + depth)}".join(lines)


def _events(renderer: Renderer, instr: Instr) -> CodeTable:
    """Return the table of a stream: the cases of its events in order."""
    numbers = event_numbers(instr)
    ctype = DType.of(numbers).c
    known = renderer.shared.arrays.get(array_key(ctype, numbers))
    if known is not None:
        return CodeTable(known, ctype, len(numbers))
    name = renderer.of_layer(instr, "events")
    table = CodeTable(name, ctype, len(numbers), tuple(c_rows(numbers)), array_entry(name, numbers))
    renderer.events.append(table)
    return table


def event_numbers(instr: Instr) -> Array:
    """Return the case number of each event of a STREAM block, in the smallest unsigned type that holds them."""
    numbers = np.array(instr.events)
    return numbers.astype(np.uint8 if numbers.max() < 2**8 else np.uint16)


def _call(renderer: Renderer, instr: Instr, sized: SizedParams, indent: int) -> RunStatement:
    if instr.kernel == READ_ROWS:
        return _callback(renderer, instr, indent)
    if instr.kernel == READ_WEIGHTS:
        return _reading(renderer, instr, indent)
    if instr.kernel in _STAGING:
        return _staging(renderer, instr, indent)
    if instr.kernel == STOP:
        return _stop(renderer, instr, indent)
    function = renderer.functions.of(instr).name
    params = sized.members(instr)
    names = [_passed(renderer, operand) for operand in instr.operands]
    is_sized = not sized.is_known(instr)
    params_name, is_new = _parameters(renderer, instr, (function, *params)) if params else ("", False)
    if is_new and not is_sized:
        members = (value for key, value in instr.params.items() if key not in instr.baked)
        renderer.checked += [entry for entry in (struct_entry(params_name, members),) if entry]
    head = f"{'status = ' * bool(instr.library)}{function}"
    text = fitted_call(head, [f"&{params_name}"] * bool(params) + names, indent - 4 + 4 * is_sized)
    if instr.library:
        text = _stacked([text, "if (status != MCUGEN_OK) {", "    return status;", "}"], indent - 8)
    return RunStatement(
        text, _heading(renderer, instr), function, params_name, tuple(params) if is_new else (), is_sized
    )


def _parameters(renderer: Renderer, instr: Instr, values: tuple[object, ...]) -> tuple[str, bool]:
    """Return the name of a call's parameters, and whether they are new: layers with equal parameters share them."""
    if not renderer.shares_parameters:
        return renderer.of_layer(instr, "params"), True
    is_new = values not in renderer.parameters
    if is_new:
        renderer.parameters[values] = renderer.of_layer(instr, "params")
    return renderer.parameters[values], is_new


def _heading(renderer: Renderer, instr: Instr) -> tuple[str, ...]:
    """Return the comment above a call: its result, its ONNX nodes if they say more, and its tensors."""
    title, origin = renderer.titles[instr.name], ", ".join(instr.origin)
    nodes = [f"ONNX: {origin}"] if origin not in ("", title) else []
    notes = [instr.note] * (not renderer.memory.updatable)  # The note has scales, which may change.
    return (f"{instr.op} {title}", *nodes, *notes)


def _callback(renderer: Renderer, instr: Instr, indent: int) -> RunStatement:
    """Return the statements in which the caller writes rows of the streamed input."""
    first, rows = (argument(renderer, instr.operand(role).buffer) for role in ("next", "y"))
    check = [f"if (read(context, *{first}, {rows}) != 0) {{", "    return MCUGEN_ERROR_INPUT;", "}"]
    return RunStatement(
        _stacked([*check, f"*{first} += {instr.params['rows']};"], indent - 8), _heading(renderer, instr)
    )


def _stop(renderer: Renderer, instr: Instr, indent: int) -> RunStatement:
    """Return the statements that end the call if it was asked to go no further, or cannot."""
    phase, lesson = int(instr.params["phase"]), renderer.program.lesson
    assert lesson is not None, "what learns has one"
    further = ((lesson.target, lesson.loss), (lesson.rate,))[phase]  # A call that ends here has no such arguments.
    missing = [f"{renderer.names[e.buffer]} == NULL" for e in further]
    text = [fitted(f"if ({' || '.join(missing)}) {{", indent - 4), "    return MCUGEN_OK;", "}"]
    for operand in instr.operands:
        loss = f"*{argument(renderer, operand.buffer)}"
        finite = fitted(f"if (!({loss} >= -3.4028234e38f && {loss} <= 3.4028234e38f)) {{", indent - 4)
        text = [finite, "    return MCUGEN_ERROR_DIVERGED;", "}", *text]
    return RunStatement(_stacked(text, indent - 8), (_STOPS[phase],), stops=True)


_STOPS = ("a run ends here", "the loss is known")


def _reading(renderer: Renderer, instr: Instr, indent: int) -> RunStatement:
    """Return the statements in which the caller reads constants of a layer."""
    blob = renderer.memory.blob
    assert blob is not None, "what is read is in a file"
    constant, to = instr.operand("x").buffer, argument(renderer, instr.operand("y").buffer)
    call = f"weights->read(weights->context, {blob.offsets[constant]}u, {to}, {constant.nbytes}u)"
    check = [fitted(f"if ({call} != 0) {{", indent - 4), "    return MCUGEN_ERROR_READ;", "}"]
    return RunStatement(_stacked(check, indent - 8))


_STAGING = {STAGE_WEIGHTS: "MCUGEN_STAGE", BEGIN_WEIGHTS: "MCUGEN_STAGE_BEGIN", END_WEIGHTS: "MCUGEN_STAGE_END"}
"""Functions that copy constants to the arena."""


def _staging(renderer: Renderer, instr: Instr, indent: int) -> RunStatement:
    """Return the line that copies a layer's constants to the arena: target, source and number of bytes."""
    names = [argument(renderer, o.buffer) for o in sorted(instr.operands, key=lambda o: o.access is Access.IN)]
    call = fitted_call(_STAGING[instr.kernel], [*names, f"{instr.operand('y').buffer.nbytes}u"], indent - 4)
    return RunStatement(call, (instr.note,) * bool(instr.note))


def _passed(renderer: Renderer, operand: Operand) -> str:
    """Return the argument for an operand: its buffer, or the first of its lanes."""
    first = operand.lanes.first if operand.lanes else 0
    return argument(renderer, operand.buffer) + f" + {first}" * (first > 0)


def argument(renderer: Renderer, buffer: Buffer) -> str:
    """Return the C expression that a call passes for a buffer: a local pointer, an array, a state's member, or NULL.

    NULL stands for an empty array. An empty scratch buffer gets a pointer to the arena instead: compilers would warn
    that a call, even one that is never made, gets NULL.

    Args:
        renderer: The C names of the model.
        buffer: The buffer.
    """
    if not buffer.count and not buffer.planned:
        return "NULL"
    blob = renderer.memory.blob
    if buffer.space is Space.CONST and not (blob is not None and buffer in blob.offsets):
        return renderer.array(buffer)
    return "state->" * (buffer.space is Space.STATE) + renderer.names[buffer]


def locals_of(renderer: Renderer, memory: MemoryContext) -> list[Local]:
    """Return the local variables of the run function: typed pointers into the arena for the buffers that calls use."""
    instrs = [i for i in renderer.program.instrs if not i.moves_nothing]
    written = {o.buffer: False for i in instrs for o in i.operands if o.buffer.planned}
    for instr in instrs:
        for operand in instr.operands:
            if operand.buffer in written and operand.access is not Access.IN:
                written[operand.buffer] = True
    return [
        Local(renderer.names[b], "const " * (not is_written) + b.dtype.c, b.offset or 0, memory.areas[b.area], b.nbytes)
        for b, is_written in written.items()
    ]
