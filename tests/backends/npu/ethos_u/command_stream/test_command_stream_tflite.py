# SPDX-License-Identifier: Apache-2.0
"""Bits of the interpreter: .tflite files, compiled by Vela, give the results of TensorFlow's interpreters."""

from __future__ import annotations

import numpy as np
import pytest
from ethos_u_streams import compile_network
from tflite_cases import CASES, Case, expected_outputs
from tflite_models import shared_tflite, tflm_outputs

from mcugen.backends.npu.ethos_u.command_stream import UndocumentedOperation

EXPECTED = expected_outputs()
CRASHES = "four_bits"
"""Part of the names of models with weights of 4 bits, at which the compiler ends the process (Vela 5.2)."""
MISCOMPILED = {
    "mirror_pad_reflect_int8": "only the first axis is padded",
    "mirror_pad_symmetric_int8": "only the first axis is padded",
    "reduce_max_int8": "only the first batch is reduced",
    "reduce_all_bool": "only the first batch is reduced",
    "reduce_any_bool": "only the first batch is reduced",
    "resize_nearest_int8": "the origin is that of half-pixel centres",
}
"""Models that Vela 5.2 compiles to streams which compute something else."""
NPUS = ["u55-128", "u65-256", "u85-256"]


def is_integer(name: str, made: Case) -> bool:
    return made.runs == 1 and not any(np.asarray(array).dtype.kind == "f" for array in (*made.feeds, *EXPECTED[name]))


NAMES = [name for name in CASES if CRASHES not in name and is_integer(name, CASES[name]())]


@pytest.mark.parametrize("npu", NPUS)
@pytest.mark.parametrize("name", NAMES)
def test_operators_have_the_bits_of_tensorflow(name: str, npu: str) -> None:
    made = CASES[name]()
    try:
        compiled = compile_network(made.data, "TFLITE", npu)
    except RuntimeError:
        pytest.skip("Vela leaves the operator to the CPU")
    if name in MISCOMPILED:
        pytest.skip(f"Vela 5.2: {MISCOMPILED[name]}")
    try:
        found = compiled.execute(made.feeds, EXPECTED[name])
    except UndocumentedOperation as error:
        pytest.skip(str(error))
    for computed, wanted in zip(found, EXPECTED[name], strict=True):
        np.testing.assert_array_equal(computed, wanted)


UNDOCUMENTED = {"logistic_int16", "tanh_int16", "gather_int8", "arg_max_int8"}
"""The only models whose operations have no public description."""


@pytest.mark.parametrize("name", sorted(UNDOCUMENTED & set(NAMES)))
def test_the_interpreter_stops_at_undocumented_operations(name: str) -> None:
    made = CASES[name]()
    compiled = compile_network(made.data, "TFLITE", "u85-256")
    with pytest.raises(UndocumentedOperation):
        compiled.execute(made.feeds, EXPECTED[name])


@pytest.mark.parametrize("is_dedicated", [False, True])
@pytest.mark.parametrize("npu", [*NPUS, "u55-256"])
@pytest.mark.parametrize(
    "model", ["resnet8_cifar10", "ds_cnn_kws", "mobilenet_v1_025_vww", "autoencoder_ad", "streaming_wakeword"]
)
@pytest.mark.shared
def test_mlperf_tiny_has_the_bits_of_tflite_micro(model: str, npu: str, is_dedicated: bool) -> None:
    data = shared_tflite(f"{model}_int8").read_bytes()
    shapes = {"resnet8_cifar10": (1, 32, 32, 3), "ds_cnn_kws": (1, 49, 10, 1), "mobilenet_v1_025_vww": (1, 96, 96, 3)}
    shapes |= {"autoencoder_ad": (1, 640), "streaming_wakeword": (1, 30, 1, 40)}
    inputs = [np.random.default_rng(2).integers(-128, 128, shapes[model]).astype(np.int8)]
    expected = tflm_outputs(data, inputs)
    compiled = compile_network(data, "TFLITE", npu, is_dedicated=is_dedicated)
    np.testing.assert_array_equal(compiled.execute(inputs, expected)[0], expected[0])
