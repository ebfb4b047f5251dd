# SPDX-License-Identifier: Apache-2.0
"""Recognition of Fourier transforms, power spectra and frequency bands that exporters write as matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import readers_behind
from mcugen.hir.types import Array, DType, Shape
from mcugen.numerics.fourier_matrix import MIN_POINTS, FourierMatrices, FourierRows, find_fourier_matrices
from mcugen.ops.audio import POWERS, Dft, spans_of
from mcugen.ops.conv import Conv
from mcugen.ops.gather import Gather
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Pad, Reshape, Slice, Transpose
from mcugen.ops.padding import Extend
from mcugen.ops.pointwise import Binary, Unary, operands_of
from mcugen.ops.reduce import Reduce
from mcugen.passes.rewrite import RewriteOutcome, Rewriting, pattern

MAX_FRAMED_ELEMENTS = 1 << 22
"""Largest number of elements of frames whose positions in a signal are followed."""

MIN_SAVED_PRODUCTS = 2
"""Least ratio of a matrix's products to those of the transform that replaces it."""

_MOVES = (Reshape, Transpose, Slice, Gather)
"""Operators that frames of a signal may be cut out by."""


@dataclass(frozen=True)
class _Frames:
    """Equally spaced frames of signals.

    Attributes:
        signal: The signals; its elements are [batch, samples].
        batch: Number of signals.
        count: Number of frames of each.
        step: Samples from frame to frame.
        before: Zeros in front of the signal.
    """

    signal: Value
    batch: int
    count: int
    step: int
    before: int = 0


# ------------------------------------------------------------------------------------------------- transforms


@pattern(Conv)
def recognize_fourier_conv(graph: Graph, node: Node) -> RewriteOutcome:
    """Conv(x, window · cos), Conv(x, window · sin) → parts of Dft(x, window), if the weights are such a matrix.

    The weights of all convolutions of x with this window are checked together, element by element.
    """
    frames = _conv_frames(node)
    if frames is None:
        return False
    nodes = [n for n in node.input(0).users if n.op == node.op and _conv_frames(n) == frames]
    nodes = [n for n in nodes if n.input(1).type.shape[1:] == node.input(1).type.shape[1:]]
    return _transform(graph, node, frames, [(n, _matrix(n)) for n in nodes])


@pattern(Dense)
def recognize_fourier_dense(graph: Graph, node: Node) -> RewriteOutcome:
    """Dense(frames of x · window, cos), … → parts of Dft(x, window), if the weights are such a matrix.

    Frames may be rows, or be gathered; the window may be a constant factor of the frames, or part of the weights.
    """
    if not _is_float_layer(node) or node.input(1).type.shape[1] < MIN_POINTS:
        return False
    root, factor = _windowed(node.input(0), node.input(1).type.shape[1])
    siblings = [n for n in readers_behind(root, lambda n: isinstance(n.op, Reshape)) if n.op == node.op]
    siblings = [
        n for n in siblings if _is_float_layer(n) and _windowed(n.input(0), len(_matrix(n).T)) == (root, factor)
    ]
    matrices = [(n, _matrix(n) * (1.0 if factor is None else _numbers(factor))) for n in siblings]
    if find_fourier_matrices([matrix for n, matrix in matrices if n is node]) is None:
        return False
    frames = _dense_frames(root if factor is None else root.producer.input(_operand(root)), node)  # type: ignore[union-attr]
    return _transform(graph, node, frames, matrices)


def _is_float_layer(node: Node) -> bool:
    """Return whether a node is a layer of floats with constant weights, without bias and clamp."""
    weights = node.inputs[1]
    is_plain = len(node.inputs) == 2 or node.inputs[2] is None
    is_float = node.output.type.dtype is DType.FLOAT32 and weights is not None and weights.data is not None
    return is_plain and is_float and getattr(node.op, "clamp", None) is None


def _matrix(node: Node) -> Array:
    """Return the weights of a layer as [outputs, samples of a frame]."""
    data = node.input(1).data
    assert data is not None
    return data.reshape(len(data), -1)


def _numbers(value: Value) -> Array:
    assert value.data is not None
    return value.data.reshape(-1)


def _conv_frames(node: Node) -> _Frames | None:
    """Return the frames that a convolution along one axis multiplies; None for other convolutions."""
    op = node.op
    if not isinstance(op, Conv) or op.groups > 1 or op.is_channels_last or not _is_float_layer(node):
        return None
    x, w = node.input(0).type.shape, node.input(1).type.shape
    axes = [axis for axis in range(2, len(x)) if x[axis] > 1]
    if x[1] != 1 or len(axes) != 1 or w[axes[0]] < MIN_POINTS or set(op.window.dilations) != {1}:
        return None
    time, short_axes = axes[0] - 2, [axis - 2 for axis in range(2, len(x)) if axis != axes[0]]
    if any(w[a + 2] != 1 or op.window.before[a] or op.window.after[a] for a in short_axes):
        return None
    return _Frames(
        node.input(0), x[0], node.output.type.shape[axes[0]], op.window.strides[time], op.window.before[time]
    )


def _operand(product: Value) -> int:
    """Return the index of the operand of a product that is not constant."""
    node = product.producer
    assert node is not None
    return int(node.input(0).is_constant)


def _windowed(value: Value, samples: int) -> tuple[Value, Value | None]:
    """Return the frames behind reshapes, and the constant window that they are multiplied by, if there is one."""
    while value.producer is not None and isinstance(value.producer.op, Reshape):
        source = value.producer.input(0)
        if source.type.shape[-1:] != (samples,):
            break
        value = source
    for x, window in operands_of(value, "Mul"):
        is_window = window.data is not None and window.type.shape[-1:] == (samples,) and window.type.count == samples
        if is_window and x.type.shape == value.type.shape:
            return value, window
    while value.producer is not None and isinstance(value.producer.op, Reshape):
        value = value.producer.input(0)
    return value, None


def _dense_frames(value: Value, node: Node) -> _Frames:
    """Return the frames that the rows of a tensor are, as parts of the earliest tensor of which they are frames."""
    samples, best = node.input(1).type.shape[1], None
    chain: list[Node] = []
    while True:
        best = _framed(value, chain, samples) or best
        producer = value.producer
        if (
            producer is None
            or not isinstance(producer.op, _MOVES)
            or any(not v.is_constant for v in producer.inputs[1:] if v)
        ):
            break
        chain.insert(0, producer)
        value = producer.input(0)
    assert best is not None
    return best


def _framed(signal: Value, chain: Sequence[Node], samples: int) -> _Frames | None:
    """Return the frames that movements cut out of a tensor; None if they are not equally spaced."""
    if signal.type.count > MAX_FRAMED_ELEMENTS:
        return _Frames(signal, 1, signal.type.count // samples, samples) if not chain else None
    at = _moved(np.arange(signal.type.count).reshape(signal.type.shape), chain).reshape(-1, samples)
    batch = signal.type.shape[0] if signal.type.rank > 1 and signal.type.count > signal.type.shape[0] else 1
    if batch > 1 and len(at) % batch == 0 and chain:
        length, count = signal.type.count // batch, len(at) // batch
    else:
        batch, length, count = 1, signal.type.count, len(at)
    step = int(at[1, 0] - at[0, 0]) if count > 1 else samples
    starts = np.arange(batch)[:, None] * length + np.arange(count) * step
    if step < 1 or not np.array_equal(at, starts.reshape(-1, 1) + np.arange(samples)):
        return None
    return _Frames(signal, batch, count, step)


def _moved(positions: Array, chain: Sequence[Node]) -> Array:
    """Return where movements bring the numbers of elements."""
    for node in chain:
        constants = [v.data for v in node.inputs[1:] if v is not None and v.data is not None]
        (positions,) = node.op.evaluate(node.sig, positions, *constants)
    return positions


def _transform(graph: Graph, node: Node, frames: _Frames, matrices: Sequence[tuple[Node, Array]]) -> RewriteOutcome:
    """Replace layers whose weights are one transform; else this layer alone, if its weights are one."""
    alone = [pair for pair in matrices if pair[0] is node]
    for pairs in (matrices, alone):
        transform = find_fourier_matrices([matrix for _, matrix in pairs])
        if transform is None:
            continue
        spectrum = Dft(transform.length, frames.count, frames.step, form="half", before=frames.before)
        samples = frames.signal.type.with_shape((frames.batch, frames.signal.type.count // frames.batch, 1))
        transform_products = spectrum.macs(Signature((samples,), (node.output.type,)))
        products = frames.batch * frames.count * sum(matrix.size for _, matrix in pairs)
        if products < MIN_SAVED_PRODUCTS * transform_products:
            return f"a transform of {transform.length} points has too large an odd factor"
        _replace(graph, frames, spectrum, transform, [n for n, _ in pairs])
        return True
    return False


def _replace(graph: Graph, frames: _Frames, op: Dft, matrices: FourierMatrices, nodes: Sequence[Node]) -> None:
    """Replace layers by parts of a spectrum."""
    order = {n: number for number, n in enumerate(graph.nodes)}
    first = min(nodes, key=order.__getitem__)
    signal, samples = frames.signal, frames.signal.type.count // frames.batch
    x = graph.add(Reshape((frames.batch, samples, 1)), [signal], first.origin, before=first).output
    window = matrices.window.astype(np.float32)
    is_flat = len(window) == matrices.length and np.array_equal(window, np.ones_like(window))
    factors = [] if is_flat else [graph.constant(f"{signal.name}.window", window)]
    origin = [name for node in nodes for name in node.origin]
    spectrum = graph.add(op, [x, *factors], origin, names=[f"{first.output.name}.spectrum"], before=first).output
    for node, rows in zip(nodes, matrices.rows, strict=True):
        _take_rows(graph, node, spectrum, rows)


def _take_rows(graph: Graph, node: Node, spectrum: Value, rows: FourierRows) -> None:
    """Replace a layer by parts of a spectrum [batch, frames, bins, 2]."""
    batch, frames, bins, _ = spectrum.type.shape
    places, count = rows.places, len(rows.places)
    part = int(places[0]) % 2

    def add(op: Operator, *inputs: Value) -> Value:
        return graph.add(op, list(inputs), node.origin, before=node).output

    if np.array_equal(places, places[0] + 2 * np.arange(count)):
        value = add(Slice((0, 0, int(places[0]) // 2, part), (batch, frames, count, 1), (1, 1, 1, 1)), spectrum)
    else:
        flat = add(Reshape((batch, frames, 2 * bins)), spectrum)
        value = add(Gather(2), flat, graph.constant(f"{node.output.name}.places", places))
    if (rows.signs < 0).all():
        value = add(Unary("Neg"), value)
    elif (rows.signs < 0).any():
        shape = (1, 1, count, 1)[: value.type.rank]
        signs = graph.constant(f"{node.output.name}.signs", rows.signs.astype(np.float32).reshape(shape))
        value = add(Binary("Mul"), value, signs)
    shape = node.output.type.shape
    if isinstance(node.op, Conv):
        value = add(Reshape((batch, frames, count)), value)
        value = add(Transpose((0, 2, 1)), value)
    graph.rewrite(node, Reshape(shape), [value], types=[node.output.type])


# ---------------------------------------------------------------------------------------------------- padding


@pattern(Dft)
def fold_frame_padding(graph: Graph, node: Node) -> RewriteOutcome:
    """Dft(Pad(x, 0)) → Dft of x with zeros around; Dft(Extend(x, reflect)) → Dft of the mirrored x."""
    op, source = node.op, node.input(0).producer
    assert isinstance(op, Dft)
    while source is not None and isinstance(source.op, Reshape):
        source = source.input(0).producer
    if source is None or not isinstance(source.op, Pad | Extend) or op.before or op.reflects or op.form == "real":
        return False
    pad, batch = source.op, node.input(0).type.shape[0]
    axes = [axis for axis, around in enumerate(zip(pad.before, pad.after, strict=True)) if any(around)]
    x, shape = source.input(0), source.output.type.shape
    is_time = len(axes) == 1 and shape[axes[0]] * batch == x.type.count // x.type.shape[axes[0]] * shape[axes[0]]
    if not is_time or any(size > 1 for size in shape[axes[0] + 1 :]) or node.input(0).type.shape[2] != 1:
        return "it pads other axes than time"
    if op.step < 1 or (pad.value != 0.0 if isinstance(pad, Pad) else pad.mode != "reflect"):
        return "the padding is neither zero nor reflected"
    if isinstance(pad, Pad) and min(pad.before[axes[0]], pad.after[axes[0]]) < 0:
        return "it cuts samples off"
    if isinstance(pad, Extend) and (op.frames - 1) * op.step + op.length > shape[axes[0]]:
        return "frames reach beyond the reflected samples"
    samples = graph.add(Reshape((batch, x.type.shape[axes[0]], 1)), [x], source.origin, before=node).output
    grown = replace(op, before=pad.before[axes[0]], reflects=isinstance(pad, Extend))
    graph.rewrite(node, grown, [samples, *node.inputs[1:]], types=[node.output.type], origin=source.origin)
    return True


# ----------------------------------------------------------------------------------------------------- powers


@dataclass(frozen=True, eq=False)
class _View:
    """A tensor that movements make of a transform's result.

    Attributes:
        transform: The node that transforms.
        at: For each element of the tensor, its number in the transform's result.
    """

    transform: Node
    at: Array

    @staticmethod
    def of(graph: Graph, value: Value, form: Sequence[str], *, signed: bool = True) -> _View | None:
        """Return the view that a value is; None if it is something else.

        Args:
            graph: The graph.
            value: The value.
            form: Forms that the transform may have.
            signed: Whether signs matter, and nobody else may read the values between.
        """
        moves: list[Node] = []
        while value.producer is not None and (not signed or graph.only_user(value) is not None):
            node = value.producer
            if isinstance(node.op, Dft):
                numbers = np.arange(value.type.count).reshape(value.type.shape)
                return _View(node, _moved(numbers, moves)) if node.op.form in form else None
            source: Value | None = node.input(0)
            if isinstance(node.op, _MOVES) and all(v is None or v.is_constant for v in node.inputs[1:]):
                moves.insert(0, node)
            elif not signed:
                source = _unsigned(node)
            if source is None or (signed and node not in moves):
                return None
            value = source
        return None


def _unsigned(node: Node) -> Value | None:
    """Return x of a node that changes only signs of x."""
    if node.op == Unary("Neg"):
        return node.input(0)
    pairs = operands_of(node.output, "Mul")
    return next((x for x, s in pairs if s.data is not None and (np.abs(s.data) == 1).all()), None)


def _moves_of(powers: Shape, at: Array) -> list[Operator] | None:
    """Return how powers [batch, frames, bins, 1] become a tensor whose elements have these numbers; None if unknown."""
    batch, frames, bins = powers[:3]
    first, stop = int(at.min()) % bins, int(at.max()) % bins + 1
    numbers = np.arange(batch * frames * bins).reshape(powers[:3])[:, :, first:stop]
    shape = (batch, frames, stop - first)
    cut: list[Operator] = [Slice((0, 0, first, 0), (*shape, 1), (1, 1, 1, 1))] if stop - first < bins else []
    if np.array_equal(at.reshape(-1), numbers.reshape(-1)):
        return [*cut, Reshape(at.shape)]
    if np.array_equal(at.reshape(-1), numbers.transpose(0, 2, 1).reshape(-1)):
        return [*cut, Reshape(shape), Transpose((0, 2, 1)), Reshape(at.shape)]
    return None


def _replace_by_powers(graph: Graph, node: Node, transform: Node, form: str, at: Array) -> RewriteOutcome:
    """Replace a node by powers or magnitudes, whose numbers are given for each element of the node's result."""
    assert isinstance(transform.op, Dft)
    op = replace(transform.op, form=form)
    moves = _moves_of(op.infer(*(None if v is None else v.type for v in transform.inputs))[0].shape, at)
    if moves is None:
        return "the powers are in another order than frames and bins"
    origin, names = (*transform.origin, *node.origin), [f"{node.output.name}.{form}"]
    value = graph.add(op, transform.inputs, origin, names=names, before=transform).output
    for move in moves[:-1]:
        value = graph.add(move, [value], node.origin, before=node).output
    graph.rewrite(node, moves[-1], [value], types=[node.output.type])
    return True


@pattern(Binary)
def recognize_power(graph: Graph, node: Node) -> RewriteOutcome:
    """re² + im² of the parts of a Dft → Dft of form power."""
    if node.op != Binary("Add"):
        return False
    squares = [_squared(node.input(index)) for index in (0, 1)]
    first, second = (None if value is None else _View.of(graph, value, ("half",), signed=False) for value in squares)
    if first is None or second is None:
        return False
    if first.transform is not second.transform or not np.array_equal(first.at ^ 1, second.at):
        return "the squares are of other parts of spectra"
    return _replace_by_powers(graph, node, first.transform, "power", first.at // 2)


def _squared(value: Value) -> Value | None:
    """Return x if a value is x · x."""
    return next((a for a, b in operands_of(value, "Mul") if a is b), None)


@pattern(Reduce)
def recognize_reduced_power(graph: Graph, node: Node) -> RewriteOutcome:
    """Σ z² over the parts of the numbers z of a Dft → Dft of form power."""
    op, value = node.op, node.input(0)
    assert isinstance(op, Reduce)
    square = _squared(value) if op.function == "sum" else value if op.function == "sumsquare" else None
    view = None if square is None or len(op.axes) != 1 else _View.of(graph, square, ("half",), signed=False)
    if view is None:
        return False
    parts = np.moveaxis(view.at, op.axes[0], -1)
    if parts.shape[-1] != 2 or (parts[..., 1] != parts[..., 0] ^ 1).any():
        return "it adds other numbers than both parts"
    return _replace_by_powers(graph, node, view.transform, "power", parts[..., 0].reshape(node.output.type.shape) // 2)


@pattern(Unary)
def recognize_magnitude(graph: Graph, node: Node) -> RewriteOutcome:
    """√ of a Dft of form power → Dft of form magnitude."""
    view = _View.of(graph, node.input(0), ("power",)) if node.op == Unary("Sqrt") else None
    if view is None or len(view.transform.inputs) > 2:
        return False
    return _replace_by_powers(graph, node, view.transform, "magnitude", view.at)


# ------------------------------------------------------------------------------------------------------ bands


@pattern(Dense, MatMul)
def recognize_bands(graph: Graph, node: Node) -> RewriteOutcome:
    """Dense(powers, filters) → Dft with the filters, if these are 0 but for a range of few bins each."""
    banded = next(_filters(graph, node), None)
    if banded is None:
        return False
    transform, filters, is_turned = banded
    if 2 * spans_of(filters)[:, 1].sum() > filters.size:
        return "the filters overlap much"
    constant = graph.constant(f"{node.output.name}.filters", filters)
    window = transform.inputs[1] if len(transform.inputs) > 1 else None
    operands, origin = [transform.input(0), window, constant], (*transform.origin, *node.origin)
    value = graph.add(transform.op, operands, origin, names=[f"{node.output.name}.bands"], before=node).output
    if is_turned:
        value = graph.add(Reshape(value.type.shape[:3]), [value], node.origin, before=node).output
        value = graph.add(Transpose((0, 2, 1)), [value], node.origin, before=node).output
    graph.rewrite(node, Reshape(node.output.type.shape), [value], types=[node.output.type])
    return True


def _filters(graph: Graph, node: Node) -> Iterator[tuple[Node, Array, bool]]:
    """Yield the transform whose powers a layer reads, filters [bands, bins], and whether bins are rows of powers."""
    if not _has_filters(node):
        return
    for index in (0, 1):
        data, view = node.input(1 - index).data, _View.of(graph, node.input(index), POWERS)
        if data is None or view is None or len(view.transform.inputs) > 2 or data.size != math.prod(data.shape[-2:]):
            continue
        batch, frames, bins, _ = view.transform.output.type.shape
        numbers, matrix = np.arange(batch * frames * bins), data.reshape(data.shape[-2:])
        if index == 0 and view.at.shape[-1] == bins and np.array_equal(view.at.reshape(-1), numbers):
            yield view.transform, matrix if isinstance(node.op, Dense) else matrix.T, False
        turned = numbers.reshape(batch, frames, bins).transpose(0, 2, 1).reshape(-1)
        if index == 1 and view.at.shape[-2:] == (bins, frames) and np.array_equal(view.at.reshape(-1), turned):
            yield view.transform, matrix, True


def _has_filters(node: Node) -> bool:
    """Return whether a node is a product of floats with a constant matrix, without bias, clamp and factor."""
    if node.output.type.dtype is not DType.FLOAT32:
        return False
    return _is_float_layer(node) if isinstance(node.op, Dense) else node.op == MatMul()


recognize_fourier = Rewriting(
    "recognize_fourier",
    recognize_fourier_conv,
    recognize_fourier_dense,
    fold_frame_padding,
    recognize_power,
    recognize_reduced_power,
    recognize_magnitude,
    recognize_bands,
)
"""Pass that recognizes Fourier transforms in matrices, and what follows on them: powers, magnitudes and bands."""
