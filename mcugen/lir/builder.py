# SPDX-License-Identifier: Apache-2.0
"""Builder of programs, through which operators emit buffers, constants and instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.names import Names
from mcugen.hir.types import Array, DType
from mcugen.lir.copies import MOVE_KERNEL, CopyRange, MoveOptions, MoveParams
from mcugen.lir.kernel import Call, Kernel
from mcugen.lir.program import Access, Buffer, Control, Endpoint, Instr, Operand, Overlap, Program, Space, StoredTensor
from mcugen.lir.rows import READ_ROWS_KERNEL, ReadRowsParams


class Builder:
    """A builder of a Program, which creates the buffer of each value of the graph on first use.

    Args:
        program: The program that instructions are appended to.
        features: Names of CPU features that kernels may use, and of tuning flags, which select variants of kernels.
        optimize: The user's goal: "speed", "ram", "flash" or "balanced".
        choices: The kernels chosen for nodes that several kernels fit.
        any_size: Whether instructions for different run-time sizes must differ in parameters only.
        remarks: For some nodes, text that is added to the reason of the node's kernel in the report.
        widens: Whether weights of fewer bits (such as 4) may be stored in the wider type of the computation, which is
            faster but takes more flash.
    """

    def __init__(
        self,
        program: Program,
        features: frozenset[str],
        optimize: str = "balanced",
        choices: Mapping[Node, Kernel] | None = None,
        any_size: bool = False,
        remarks: Mapping[Node, str] | None = None,
        widens: bool = False,
    ) -> None:
        self.program = program
        self.features = features
        self.optimize = optimize
        self.any_size = any_size
        self.widens = widens
        self._choices = choices or {}
        self._remarks = remarks or {}
        self._buffers: dict[Value, Buffer] = {}
        self._names = Names()
        self._shared: dict[tuple[str, tuple[int, ...], bytes], Buffer] = {}
        self._growing: list[Buffer] = []
        self._used: set[Buffer] = set()
        self._facts: dict[Node, tuple[str, int]] = {}
        self._group = 0
        self._groups = 0
        self._unit = 0
        self._units = 0

    def select(self, kernels: Sequence[Kernel], node: Node) -> Kernel:
        """Return the kernel chosen for the node (`choices`), else the first of `kernels` that fits it on this CPU."""
        return self._choices.get(node) or next(k for k in kernels if k.fits(node, self.features))

    def chosen_library_kernel(self, node: Node) -> Kernel | None:
        """Return the kernel chosen for the node if it calls a library, else None."""
        chosen = self._choices.get(node)
        return chosen if chosen is not None and chosen.library else None

    def lower(self, kernels: Sequence[Kernel], node: Node) -> None:
        """Select a kernel for a node, and append its instructions."""
        self.emit_kernel(self.select(kernels, node), node)

    def emit_kernel(self, kernel: Kernel, node: Node) -> None:
        """Append the instructions by which a kernel computes a node."""
        for call in kernel.emitted(node, self):
            self.call(node, call)

    def buffer(self, value: Value) -> Buffer:
        """Return the buffer of a value; it is created on first use."""
        if value not in self._buffers:
            if value.data is not None:
                self._buffers[value] = self.const(value.name, value.data)
                self._buffers[value].describe([_stored_tensor(value)], "")
            else:
                self._buffers[value] = self._new(value.name, value.type.dtype, value.type.count, Space.ARENA)
        return self._buffers[value]

    def operands(self, node: Node, *inputs: str, outputs: Sequence[str] = ("y",)) -> dict[str, Buffer]:
        """Return the buffers of a node's inputs and outputs, by the names of the kernel's operands.

        Args:
            node: The node.
            inputs: Names of the operands for the node's inputs, in order. Absent optional inputs are left out of the
                result.
            outputs: Names of the operands for the node's outputs, in order.
        """
        values = (*zip(inputs, node.inputs, strict=False), *zip(outputs, node.outputs, strict=False))
        return {role: self.buffer(value) for role, value in values if value is not None}

    def placed(self, value: Value) -> Buffer | None:
        """Return the buffer of a value, or None if none has been created for the value yet; none is created."""
        return self._buffers.get(value)

    def alias(self, value: Value, of: Value) -> None:
        """Make `value` share the buffer of another value `of`: the same bytes with another shape."""
        self._buffers[value] = self.buffer(of)

    def bind(self, value: Value, buffer: Buffer) -> None:
        """Use an existing buffer as the buffer of `value`."""
        self._buffers[value] = buffer

    def forget(self, values: Iterable[Value]) -> None:
        """Forget the buffers of values, so that they get new ones when their nodes are lowered again."""
        for value in values:
            self._buffers.pop(value, None)

    def endpoint(self, name: str, value: Value, space: Space) -> Endpoint:
        """Return a model input, output or state called `name` for a value, and move the value's buffer to `space`.

        Args:
            name: Public name of the input, output or state.
            value: The value, whose buffer lies in the arena until then.
            space: Kind of memory of the endpoint, such as Space.INPUT.
        """
        buffer = self.buffer(value)
        if buffer.space is Space.ARENA:
            buffer.space = space
        return Endpoint(name, value.type.shape, value.type.dtype, value.type.quant, buffer)

    def const(self, name: str, data: Array, row_size: int = 0, alignment: int = 0) -> Buffer:
        """Return the buffer in flash of a constant; equal constants share one buffer.

        Args:
            name: Name of the buffer.
            data: The elements.
            row_size: Elements of a row of a packed one-dimensional constant; see Buffer.row_size.
            alignment: Alignment in bytes; see Buffer.alignment.
        """
        data = np.ascontiguousarray(data)
        key = (data.dtype.name, data.shape, data.tobytes())
        if key not in self._shared:
            self._shared[key] = self._new(name, DType.of(data), data.size, Space.CONST, data)
            self._shared[key].row_size = row_size
        self._shared[key].alignment = max(self._shared[key].alignment, alignment)
        return self._shared[key]

    def growing_const(self, name: str, data: Array) -> Buffer:
        """Return a buffer in flash that begins with the elements of a one-dimensional constant.

        If a constant of an earlier call is a prefix of this one, or the other way round, both share the buffer of the
        longer one.
        """
        for buffer in self._growing:
            assert buffer.data is not None
            shorter, longer = sorted((buffer.data, data), key=len)
            if shorter.dtype == longer.dtype and np.array_equal(longer[: len(shorter)], shorter):
                buffer.data, buffer.count = longer, len(longer)
                return buffer
        self._growing.append(self._new(name, DType.of(data), data.size, Space.CONST, data))
        return self._growing[-1]

    def scratch(self, name: str, dtype: DType, count: int) -> Buffer:
        """Return a new scratch buffer of `count` elements of type `dtype`, live during one instruction only."""
        return self._new(name, dtype, count, Space.ARENA)

    def call(self, node: Node, call: Call) -> Instr:
        """Append an instruction that calls a kernel to compute `node` or a part of it, and return the instruction."""
        kernel = call.kernel
        types, macs = self._facts_of(node)
        for name, buffer in call.operands.items():
            role = kernel.role(name)
            inputs = [node.inputs[index] for index in role.holds if index < len(node.inputs)]
            buffer.describe([_stored_tensor(v) for v in inputs if v is not None and v.is_constant], role.meaning)
        instr = Instr(
            kernel=kernel.name,
            name=node.outputs[0].name,
            operands=call.operand_list(),
            params=call.scalars(),
            baked=kernel.baked | call.baked,
            code=call.template_options(),
            inplace=(*call.inplace, *((o.out, o.into) for o in call.overlaps if o.lead <= 0)),
            overlaps=tuple(call.overlaps),
            variant=call.variant,
            reason=self._reason(node, kernel),
            library=kernel.library,
            op=node.op.name,
            macs=0 if node.op.bodies and not kernel.emit else macs,
            origin=node.origin,
            note=call.note or types,
            group=self._group,
            declaration=kernel,
            gathers=call.gathers,
        )
        return self._append(instr)

    def _reason(self, node: Node, kernel: Kernel) -> str:
        """Return the reason for a kernel, if there are alternatives, with the remark on the node."""
        reason = kernel.reason if kernel.emit or kernel.when else ""
        return "; ".join(filter(None, [reason, self._remarks.get(node, "")]))

    def mark(
        self,
        node: Node,
        control: Control,
        operands: Sequence[tuple[str, Access, Buffer]] = (),
        *,
        steps: int | None = None,
        events: Sequence[int] = (),
        case: int | None = None,
        overlaps: Sequence[Overlap] = (),
    ) -> None:
        """Append a marker instruction, which begins or ends a block (such as a loop or a branch).

        Args:
            node: The node that the block belongs to.
            control: Kind of the marker.
            operands: Role, access and buffer of the marker's operands.
            steps: Number of iterations, for the marker of a loop (FOR); else None.
            events: For the marker of a STREAM block, which computes several layers together row by row: the number of
                the case that each event runs, in order.
            case: For the marker of a case, which is a part of a STREAM block: the number of the case; else None.
            overlaps: How far outputs of the block may overlap its inputs in memory.
        """
        types, macs = self._facts_of(node)
        instr = Instr(
            kernel=control.value,
            name=node.outputs[0].name,
            operands=tuple(Operand(*o) for o in operands),
            params={} if steps is None else {"steps": steps},
            inplace=tuple((o.out, o.into) for o in overlaps if o.lead <= 0),
            overlaps=tuple(overlaps),
            op=node.op.name,
            macs=macs,
            origin=node.origin,
            note=types,
            control=control,
            group=self._group,
            events=tuple(events),
            case=case,
        )
        self._append(instr)

    def move(
        self,
        node: Node,
        source: Buffer,
        target: Buffer,
        note: str,
        *,
        part: CopyRange | None = None,
        stays: bool = False,
    ) -> None:
        """Append a copy of bytes from one buffer to another; it needs no code if both get the same address.

        In a loop, `target` keeps its contents between iterations only if it is an operand of the loop's marker.

        Args:
            node: Node that the move belongs to.
            source: Buffer to read.
            target: Buffer to write.
            note: Description of the move in listings of the program.
            part: Bytes to copy; None copies from the start of both buffers as many bytes as the smaller one has.
            stays: Whether the copy must be executed even if both could have the same address.
        """
        part = part or CopyRange()
        x_at, y_at = part.source_offset, part.target_offset
        max_bytes = min(source.nbytes - x_at, target.nbytes - y_at)
        size = max_bytes if part.nbytes is None else part.nbytes
        assert 0 <= size <= max_bytes and min(x_at, y_at) >= 0, f"a move beyond {source.name} or {target.name}"
        whole = source.nbytes == target.nbytes == size
        written = not whole and target in self._used
        call = Call(
            MOVE_KERNEL,
            {"x": source, "y": target},
            [MoveParams(nbytes=size) if whole else MoveParams(nbytes=size, x_at=x_at, y_at=y_at)],
            [MoveOptions(within=source is target)],
            access={"y": Access.INOUT} if written else {},
            variant=f"{target.dtype.tag}{'' if whole else '_part'}",
            inplace=[("y", "x")] if whole else (),
            note=note,
        )
        self.call(node, call).stays = stays

    def read_rows(self, node: Node, value: Value, first: Buffer, target: Buffer, rows: int, axis: int) -> None:
        """Append an instruction that calls a function of the user's to write the next rows of an input to a buffer.

        The input then has no memory of its own.

        Args:
            node: Node that the instruction belongs to.
            value: The model input.
            first: One int32: the number of the first row to read, which the instruction increases by `rows`.
            target: Buffer for the rows.
            rows: Number of rows to read.
            axis: Axis of the input that counts the rows.
        """
        source = self.buffer(value)
        source.space = Space.STREAM
        params = ReadRowsParams(rows=rows, bytes=source.nbytes // value.type.shape[axis], axis=axis)
        note = f"{rows} of the rows of {value.type}"
        self.call(node, Call(READ_ROWS_KERNEL, {"next": first, "y": target}, [params], note=note))

    @contextmanager
    def one_layer(self) -> Iterator[None]:
        """Count all instructions emitted within the `with` block as one layer, in names, reports and hooks."""
        around = self._group
        if not around:
            self._groups += 1
            self._group = self._groups
        yield
        self._group = around

    @contextmanager
    def one_unit(self) -> Iterator[None]:
        """Keep the instructions emitted within the `with` block adjacent and in order when the program is reordered."""
        around = self._unit
        if not around:
            self._units += 1
            self._unit = self._units
        yield
        self._unit = around

    def _append(self, instr: Instr) -> Instr:
        instr.unit = self._unit
        self.program.instrs.append(instr)
        self._used.update(o.buffer for o in instr.operands)
        return instr

    def _new(self, name: str, dtype: DType, count: int, space: Space, data: Array | None = None) -> Buffer:
        buffer = Buffer(self._names.take(name), dtype, count, space, data)
        self.program.buffers.append(buffer)
        return buffer

    def _facts_of(self, node: Node) -> tuple[str, int]:
        """Return the types that a node reads and writes, and its multiplications.

        They are worked out once a node: a concatenation of many inputs becomes as many moves.
        """
        if node not in self._facts:
            read = [str(v.type) for v in node.inputs if v is not None and not v.is_constant]
            types = f"{', '.join(read)} -> {', '.join(str(v.type) for v in node.outputs)}"
            self._facts[node] = types, node.op.macs(node.sig)
        return self._facts[node]


def _stored_tensor(value: Value) -> StoredTensor:
    return StoredTensor(value.sources, value.type.quant)
