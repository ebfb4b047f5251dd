# SPDX-License-Identifier: Apache-2.0
"""Models that are quantized at run time, over a length, with a state: the bits of ONNX Runtime.

Where a transcendental function comes before DynamicQuantizeLinear, the last bit of its results can decide a tie: a
saturated Tanh has the range -1 to 1, and 127.5 is the zero point before it is rounded. The outputs then differ by one
quantization step, 1/255 of the range. So what is behind such a function is compared for the function's own results.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from dynamic_chains import EXACT, TRANSCENDENTAL, DynamicChain, dynamic_chain
from onnx_models import Feeds, Net, onnxruntime_outputs

from mcugen.core.errors import UnsupportedError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime

CALLS = 8
GIVEN = ".given"
"""Suffix of a tensor's name where it is an input of a part of the model."""


def compiled(chain: DynamicChain, model: onnx.ModelProto, seed: int, states: dict[str, str]) -> CompiledModel | None:
    """None where one program cannot serve the shortest lengths."""
    options = CompileOptions(
        "net", {"T": (chain.low, chain.high)}, states=states, optimize=GOALS[seed % len(GOALS)], steps=seed % 5 == 0
    )
    try:
        return compile_model(model, options=options)
    except UnsupportedError as error:
        assert "the same for all sizes of a range" in str(error)
        return None


def calls(chain: DynamicChain, seed: int) -> list[dict[str, np.ndarray]]:
    """The longest first, so that stale data lies behind what later calls write."""
    numbers = np.random.default_rng(seed)
    lengths = [chain.high, chain.low, *numbers.integers(chain.low, chain.high + 1, CALLS - 2)]
    return [chain.feeds(int(length), 100 * seed + n) for n, length in enumerate(lengths)]


def assert_same_bits(found: Feeds, wanted: Feeds, where: str) -> None:
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=f"{where}: {name}")


def check_stream(seed: int) -> None:
    chain = dynamic_chain(seed)
    model = compiled(chain, chain.model, seed, chain.states)
    if model is None:
        return
    samples = [{k: v for k, v in s.items() if k not in chain.states.values()} for s in calls(chain, seed)]
    first = {name: np.zeros_like(calls(chain, seed)[0][name]) for name in chain.states.values()}
    wanted = run_onnxruntime(chain.model, samples, fixed=first, states=chain.states)
    found = model.simulate(samples, measure=False, sanitize=True).outputs
    for number, (got, clean) in enumerate(zip(found, wanted, strict=True)):
        assert_same_bits(got, clean, f"seed {seed}, call {number}")


def check_behind_functions(seed: int) -> None:
    """Each tensor that a function computes is an output too, and the input of what ONNX Runtime computes."""
    chain = dynamic_chain(seed, (*EXACT, *TRANSCENDENTAL))
    exposed = onnx.ModelProto.FromString(chain.model.SerializeToString())
    exposed.graph.output.extend(onnx.helper.make_tensor_value_info(n, 1, None) for n in chain.approximated)
    model = compiled(chain, exposed, seed, {})
    if model is None:
        return
    behind = given(exposed, chain.approximated)
    samples = calls(chain, seed)
    for number, (sample, got) in enumerate(zip(samples, model.simulate(samples, measure=False).outputs, strict=True)):
        inputs = {i.name: {**sample, **got}[i.name.removesuffix(GIVEN)] for i in behind.graph.input}
        for name, array in onnxruntime_outputs(behind, inputs).items():
            if name in chain.approximated:
                np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6)
            else:
                assert_same_bits({name: got[name]}, {name: array}, f"seed {seed}, call {number}")


def given(model: onnx.ModelProto, names: tuple[str, ...]) -> onnx.ModelProto:
    """The model with some of its tensors as inputs; the nodes that computed them compute the outputs of these names."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = f"{name}{GIVEN}" if name in names else name
    read = {name for node in copy.graph.node for name in node.input}
    copy.graph.input.extend(
        onnx.helper.make_tensor_value_info(f"{n}{GIVEN}", 1, None) for n in names if f"{n}{GIVEN}" in read
    )
    return copy


@pytest.mark.spread(10)
@pytest.mark.parametrize("seed", range(40))
def test_a_stream_has_the_bits_of_onnxruntime(seed: int):
    check_stream(seed)


@pytest.mark.spread(10)
@pytest.mark.parametrize("seed", range(30))
def test_what_is_behind_a_function_has_the_bits_of_onnxruntime(seed: int):
    check_behind_functions(seed)


def saturated() -> onnx.ModelProto:
    net = Net(17)
    net.op("Tanh", net.input("x", "T", 3), out="y")
    net.ops("DynamicQuantizeLinear", "y", outs=["codes", "scale", "zero"])
    net.output("y", "scale")
    net.output("codes", "zero", dtype=np.uint8)
    return net.plain_model()


def test_the_zero_point_of_a_saturated_tanh_is_that_of_its_own_values():
    """The range of the values is -1 to 1, or one bit less or more: 127 and 128 are both right, as the case may be."""
    model = compile_model(saturated(), options=CompileOptions("net", {"T": (1, 9)}))
    numbers = np.random.default_rng(0)
    samples = [{"x": np.asarray(12 * numbers.standard_normal((t, 3)), np.float32)} for t in (9, 1, 4, 7, 2)]
    alone = onnx.ModelProto.FromString(saturated().SerializeToString())
    del alone.graph.node[0], alone.graph.output[0]
    alone.graph.input[0].name = "y"
    for found in model.simulate(samples, measure=False, sanitize=True).outputs:
        assert_same_bits(
            {k: v for k, v in found.items() if k != "y"}, onnxruntime_outputs(alone, {"y": found["y"]}), ""
        )
