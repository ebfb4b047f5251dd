# SPDX-License-Identifier: Apache-2.0
"""Check of parameters against flash: models that cannot fit are refused early, by a lower bound of their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.backends.cpu.pipeline import optimize
from mcugen.core.board import Board, chip_names, load_board
from mcugen.core.errors import DoesNotFitError, shortened
from mcugen.core.options import OWN_FAMILIES, CompileOptions, Places
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import LoadedModel
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array, DType, are_halves, int8_multiples
from mcugen.kernels.common.weighted_layers import INT4_RANGE
from mcugen.kernels.portable.packed import PackedWeights
from mcugen.memory.place import weights_memories
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import ConvTranspose, narrow_weights
from mcugen.ops.packed import PackedDense
from mcugen.ops.recurrent import Recurrent
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.profile import Profile
from mcugen.quantization.quantize import create_quantizer
from mcugen.quantization.samples import Sample
from mcugen.quantization.scheme import Scheme
from mcugen.search.objective import TOLERANCES

NUM_DRAFT_SAMPLES = 4
"""Number of calibration samples with which a model is quantized to estimate the bytes of its weights."""
_NAMED = 3


@dataclass(frozen=True)
class WeightBudget:
    """A limit on the bytes of weights, and a sentence that states the limit in messages."""

    rule: str
    """The limit as a sentence for messages: "the weights must fit --max-flash 20,000"."""
    size: int
    """The limit in bytes."""


def min_weight_bytes(graph: Graph, options: CompileOptions) -> int:
    """Return a lower bound of the bytes that the weights of an optimized graph take with any choice of kernels.

    The bound counts the largest constant of each layer with multiply-accumulates, without biases. Arrays with the same
    elements in any order count once. Weights that kernels may store in half as many bytes count half.
    """
    alike = {np.sort(v.data, axis=None).tobytes(): v for v in _weights(graph) if v.data is not None}
    return sum(_nbytes(v, options) for v in alike.values())


def require_room(graph: Graph, board: Board, options: CompileOptions) -> None:
    """Raise DoesNotFitError if the weights of an optimized graph exceed the board's flash.

    The user's flash limit is not checked here: the search looks for the smallest program before it refuses.

    Args:
        graph: The optimized graph.
        board: The board with its memories.
        options: The options of the compilation.
    """
    weights, room = _weights(graph), _room(board, replace(options, max_flash=None))
    if sum(_nbytes(v, options) for v in weights) <= room.size:  # The usual case.
        return
    needed = min_weight_bytes(graph, options)
    if needed > room.size:
        raise _refusal(needed, weights, room, options)


def require_room_quantized(
    source: LoadedModel,
    model: FloatModel,
    scheme: Scheme,
    samples: Sequence[Sample],
    profile: Profile | None,
    board: Board,
    options: CompileOptions,
    precisions: Mapping[str, DType] | None = None,
) -> None:
    """Raise DoesNotFitError if a model to be quantized cannot fit the board's flash or --max-flash.

    If the weights fit at one byte each, nothing more is checked. Otherwise the model is quantized with few samples to
    measure their bytes: it may still fit, since constant channels are not stored.

    Args:
        source: The loaded model.
        model: The float model.
        scheme: The quantization scheme.
        samples: Calibration samples.
        profile: An earlier profile, if any.
        board: The board with its memories.
        options: The options of the compilation.
        precisions: Precisions that the user fixed, by layer; weights of other layers may have as few bits as possible.
            None means that the scheme fixes all precisions.
    """
    room = _room(board, options)
    if sum(v.type.count for v in _weights(model.graph)) // (1 + (options.family not in OWN_FAMILIES)) <= room.size:
        return
    quick = replace(scheme, method="minmax", correct_bias=False, optimize_rounding=False)
    maker = create_quantizer(source, model, quick, samples[:NUM_DRAFT_SAMPLES], profile)
    draft = maker.quantize() if precisions is None else maker.draft(maker.narrowest(precisions))
    graph = import_model(draft.proto, "draft", registry=source.registry)
    optimize(graph)
    needed = int(TOLERANCES.certain_weights_share * min_weight_bytes(graph, options))
    if needed > room.size:
        raise _refusal(needed, _weights(graph), room, options)


def _weights(graph: Graph) -> list[Value]:
    """Return the largest constant of each layer with multiply-accumulates.

    Smaller constants are left out, as some kernels store sums or parts of them instead.
    """
    layers = [n for part in graph.nested() for n in part.nodes if n.op.macs(n.sig) and not n.op.bodies]
    constants = [[v for v in n.inputs if v is not None and v.data is not None and v.type.rank > 1] for n in layers]
    return list(dict.fromkeys(max(c, key=lambda v: v.type.count) for c in constants if c))


def _nbytes(weights: Value, options: CompileOptions) -> int:
    """Return the least bytes of weights: kernels exist for 4-bit weights, for fewer bits in groups, and for float16."""
    data = weights.data
    assert data is not None
    reader = weights.users[0].op
    packed = PackedWeights.of(data, reader.group) if isinstance(reader, PackedDense) else None
    if packed is not None:
        return packed.nbytes
    if data.dtype == np.float32 and _are_int8_multiples(weights):
        return data.size
    halved = data.dtype == np.int8 and (options.family not in OWN_FAMILIES or _are_nibbles(data))
    halved |= data.dtype == np.float32 and are_halves(data)
    return data.nbytes // (2 if halved else 1)


def _are_int8_multiples(weights: Value) -> bool:
    """Return whether float weights can be stored as int8 with a scale per output channel."""
    reader, data = weights.users[0].op, weights.data
    assert data is not None
    if isinstance(reader, ConvTranspose):
        return narrow_weights(data, reader.groups).get("w", data).dtype == np.int8
    if isinstance(reader, Recurrent):
        return int8_multiples(data.reshape(-1, data.shape[-1])) is not None
    return isinstance(reader, Conv) and int8_multiples(data.reshape(len(data), -1)) is not None


def _are_nibbles(codes: Array) -> bool:
    return bool(codes.min(initial=0) >= INT4_RANGE[0] and codes.max(initial=0) <= INT4_RANGE[1])


def _room(board: Board, options: CompileOptions) -> WeightBudget:
    """Return the bytes for weights in the roomiest memory, or those of --max-flash where that is less."""
    memories = weights_memories(board, options.place)
    roomiest = max(memories, key=lambda m: m.room)
    if options.max_flash is not None and options.max_flash < roomiest.room:
        return WeightBudget(f"the weights must fit --max-flash {options.max_flash:,}", options.max_flash)
    where = f"memory '{roomiest.name}'" if options.place.weights == roomiest.name else "one flash memory"
    return WeightBudget(f"the weights must fit in {where} of board '{board.name}'", roomiest.room)


def _refusal(needed: int, weights: Sequence[Value], room: WeightBudget, options: CompileOptions) -> DoesNotFitError:
    """Return the error for weights that do not fit, with the largest ones and boards that have room."""
    largest = sorted(weights, key=lambda v: -v.type.count)[:_NAMED]
    names = ", ".join(f"'{shortened(v.name, 40)}' {_nbytes(v, options):,}" for v in largest)
    problem = f"{needed:,} bytes of parameters alone, {needed - room.size:,} more than there are; largest: {names}"
    codes = sum(v.type.count for v in weights)
    remedies = [f"quantize it: --calibration SAMPLES.npz makes {codes:,} bytes of them, or fewer"] * (codes < needed)
    roomy = [name for name in chip_names() if _board_room(name) >= needed]
    if room.size == options.max_flash:
        remedies.append("allow more, or use a smaller model")
    else:
        remedies.append(f"a board with room: {', '.join(roomy)}" if roomy else "a smaller model: no board has room")
    return DoesNotFitError(room.rule, problem, "; or ".join(remedies))


def _board_room(name: str) -> int:
    return max(memory.room for memory in weights_memories(load_board(name), Places()))
