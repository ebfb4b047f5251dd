# SPDX-License-Identifier: Apache-2.0
"""How recurrent layers store the tensors of a step, and their matrices in integers, each rule by hand."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from float_models import random_weights
from onnx import numpy_helper
from onnx_models import Net

from mcugen.frontend.onnx import import_model
from mcugen.hir.types import DType, QuantParams
from mcugen.ops.recurrent import Gru, Lstm, Recurrent, Rnn
from mcugen.quantization.plan import Stored
from mcugen.quantization.recurrent import QuantizedMatrix, tensor_storage, write_recurrent_layer
from mcugen.quantization.rounding import best_scales, round_weights
from mcugen.quantization.scheme import Scheme

INT8, INT16 = DType.INT8, DType.INT16
RANGES = {
    "projection": (-3.0, 2.0),
    "recurrence": (-1.0, 4.5),
    "gates": (-2.0, 5.0),
    "hidden": (-0.75, 0.5),
    "cell": (-6.0, 1.0),
    "reset": (-0.25, 7.5),
    "difference": (-0.5, 0.125),
}
LAYERS: dict[str, tuple[Recurrent, set[str], set[str]]] = {
    "rnn": (Rnn(), {"fed", "hidden"}, {"projection", "recurrence", "gates", "reset"}),
    "lstm": (Lstm(), {"fed", "hidden"}, {"projection", "recurrence", "gates", "reset"}),
    "gru": (Gru(), {"fed", "reset"}, {"projection", "recurrence", "gates"}),
    "gru linear": (Gru(linear=True), {"fed"}, {"projection", "recurrence", "gates", "reset"}),
}
"""By layer, what may be int8, and what shares one scale of int16."""


def power_of_two(most: float) -> float:
    """The least that reaches so far with 32767 steps."""
    return 2.0 ** math.ceil(math.log2(most / 32767))


@pytest.mark.parametrize("activations", [INT8, INT16])
@pytest.mark.parametrize("name", LAYERS)
def test_only_what_is_multiplied_with_weights_may_be_int8(name: str, activations: DType) -> None:
    """All else is int16, whose powers of two reach twice as far as what was seen; sums share one."""
    op, narrow, summed = LAYERS[name]
    found = tensor_storage(op, RANGES, Scheme(activations))
    assert found.keys() == {*RANGES, "fed", "sigmoid", "tanh"}
    assert found["sigmoid"] == found["tanh"]
    assert (found["tanh"].dtype, found["tanh"].quant) == (INT16, QuantParams((2.0**-15,), 0))
    for role, (low, high) in {**RANGES, "fed": RANGES["hidden"]}.items():
        stored = found[role]
        if role in narrow and not (activations is INT16 and role == "fed"):
            assert (stored.dtype, stored.low, stored.high) == (activations, low, high)
            step = (high - low) / 255 if activations is INT8 else max(-low, high) / 32767
            assert stored.quant.scale[0] == float(np.float32(step))
        elif role != "fed":
            ends = [RANGES[each] for each in summed] if role in summed else [(low, high)]
            low, high = 2 * min(a for a, _ in ends), 2 * max(b for _, b in ends)
            assert (stored.dtype, stored.low, stored.high) == (INT16, low, high)
            assert stored.quant == QuantParams((power_of_two(max(-low, high)),), 0)
    if activations is INT16:
        assert found["fed"] == found["hidden"]


# ------------------------------------------------------------------------------------------------- matrices

ROWS = random_weights(1, 6, 5)
UNIT = QuantParams((0.25,), 3)


def plain_scales(most: int) -> np.ndarray:
    return np.abs(ROWS.astype(np.float64)).max(1) / most


@pytest.mark.parametrize(("weights", "most"), [(INT8, 127), (DType.INT4, 7)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_rows_are_rounded_to_nearest(weights: DType, most: int, per_channel: bool) -> None:
    found = QuantizedMatrix.of(ROWS, None, UNIT, Scheme(weights=weights, per_channel=per_channel))
    scales = plain_scales(most) if per_channel else np.full(6, plain_scales(most).max())
    assert found.scales == pytest.approx(scales) and (found.scales == found.scales.astype(np.float32)).all()
    assert found.codes.dtype == (np.int8 if weights is INT8 else ml_dtypes.int4) and found.bias is None
    assert (found.codes.astype(int) == np.rint(ROWS / found.scales[:, None])).all()
    assert found.real.dtype == np.float32
    assert found.real == pytest.approx(found.codes.astype(float) * found.scales[:, None], rel=1e-6)


def test_scales_are_raised_so_that_biases_fit() -> None:
    """In units of input scale times weight scale, up to 2^30."""
    bias = np.asarray([0.0, 1.0, -1.0, 2.0**30 * 0.25 * 0.5, -(2.0**30) * 0.25 * 0.75, 1e6], np.float32)
    found = QuantizedMatrix.of(ROWS, bias, UNIT, Scheme())
    least = np.abs(bias.astype(np.float64)) / 0.25 / 2**30
    assert found.scales == pytest.approx(np.maximum(plain_scales(127), least), rel=1e-6)
    assert (np.abs(bias / (0.25 * found.scales)) <= 2**30 * (1 + 1e-6)).all()
    assert found.bias is bias and found.scales[3] == 0.5 and found.scales[4] == 0.75
    assert (found.codes == np.rint(ROWS / found.scales[:, None])).all()


@pytest.mark.parametrize(
    ("options", "is_free"), [({}, True), ({"per_channel": False}, False), ({"power_of_two": True}, False)]
)
def test_moments_round_to_least_error(options: dict[str, bool], is_free: bool) -> None:
    """With scales that may clip, unless all rows share one or they are powers of two."""
    scheme, random = Scheme(weights=DType.INT4, **options), np.random.default_rng(0)
    data = random.standard_normal((50, 2)) @ random.standard_normal((2, 5)) + 0.1 * random.standard_normal((50, 5))
    gram = (data.T @ data / 50)[None]
    plain, found = QuantizedMatrix.of(ROWS, None, UNIT, scheme), QuantizedMatrix.of(ROWS, None, UNIT, scheme, gram)
    wanted = best_scales(ROWS[None], plain.scales[None], gram, (-8, 7))[0] if is_free else plain.scales
    assert found.scales.tolist() == wanted.tolist()
    assert is_free == (found.scales != plain.scales).any()
    codes = round_weights(ROWS[None], wanted[None], gram, (-8, 7))[0]
    assert found.codes.astype(int).tolist() == codes.tolist()
    assert (codes != plain.codes.astype(int)).any()


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("first", ["absent", "constant"])
def test_first_states_that_are_constant_are_stored_as_codes(first: str, layout: int) -> None:
    """Nought where there is none; of each direction its own."""
    random, hidden, steps, batch = np.random.default_rng(0), 3, 4, 2
    shape = (batch, 2, hidden) if layout else (2, batch, hidden)
    h0 = random.uniform(-0.5, 0.5, shape).astype(np.float32)
    net = Net(21)
    x = net.input("x", *((batch, steps, 5) if layout else (steps, batch, 5)))
    weights = [net.const(random.normal(0, 1, (2, hidden, k))) for k in (5, hidden)]
    more = ["", "", net.const(h0)] if first == "constant" else []
    attributes = {"hidden_size": hidden, "direction": "bidirectional", "layout": layout}
    net.output(net.ops("RNN", x, *weights, *more, outs=["y"], **attributes)[0])
    node = next(n for n in import_model(net.model(), "net").nodes if isinstance(n.op, Recurrent))
    stored = Stored(INT8, QuantParams((0.05,), 3))
    found = write_recurrent_layer(node, ["x"], [v.name for v in node.outputs], RANGES, stored, Scheme())
    assert found is not None
    codes = [numpy_helper.to_array(t) for t in found[1]]
    starts = [c for c in codes if c.shape == (batch, hidden) and c.dtype == np.int8]
    quant = tensor_storage(Rnn(), RANGES, Scheme())["hidden"].quant
    real = h0 if first == "constant" else np.zeros_like(h0)
    for direction, got in enumerate(starts):
        part = real[:, direction] if layout else real[direction]
        wanted = np.rint(part / np.float32(quant.scale[0])) + quant.zero_point
        assert got.tolist() == wanted.clip(-128, 127).tolist()
    assert len(starts) == 2
