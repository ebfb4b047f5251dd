# SPDX-License-Identifier: Apache-2.0
"""Random structured networks in all programs: a few here, more in the sweep, many by `make fuzz-networks`.

The comparison with ONNX Runtime allows what rounding explains. Faults that are planted into the files that mcugen gets,
but not into those that ONNX Runtime gets, say what it finds.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from fuzz_graphs import Finding
from fuzz_networks import (
    BATCH,
    FLOAT_ERROR,
    HALF_STEP,
    MOVEMENTS,
    Case,
    Compiled,
    case_of,
    check,
    compare_outputs,
    compare_with_onnxruntime,
    compile_case,
    compile_here,
    feeds_of,
    interpret_stream,
    is_mixed,
    most_steps,
)
from onnx import helper, numpy_helper
from onnx_models import Net
from structured_networks import FAMILIES, NEWEST_OPSET, OLDEST_OPSET, Network, network_of

from mcugen.core.options import CompileOptions
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.frontend.onnx.borders import MOVEMENT_OPERATORS

SEEDS_IN_CI, SEEDS = 40, 400
MIN_FOUND_SHARE = 0.9
"""Share of the planted faults that must be found."""
VISIBLE = 0.03
"""A fault that changes no output by more than this share of its largest magnitude does not count."""


@pytest.mark.qemu
@pytest.mark.riscv
@pytest.mark.spread(SEEDS // SEEDS_IN_CI)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_networks(first: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert check([case_of(seed) for seed in range(first, first + BATCH)]).findings == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_valid_in_every_opset(family: str):
    for opset in range(OLDEST_OPSET, NEWEST_OPSET + 1):
        onnx.checker.check_model(network_of(opset, family, opset).model, full_check=True)


def test_a_seed_gives_the_same_case():
    assert case_of(5).model == case_of(5).model
    assert case_of(5).options == case_of(5).options


@pytest.mark.parametrize(("seed", "has_floats"), [(9, False), (7, True)], ids=["integers", "integers and floats"])
def test_codes_differ_by_what_rounding_explains(seed: int, has_floats: bool):
    """Not at all in a network of integers; by the noise of a quantized network, in steps, where floats lie between."""
    compiled = compile_case(case_of(seed))
    assert isinstance(compiled, Compiled)
    assert is_mixed(compiled.model) == has_floats
    for name, codes in compiled.expected[-1].items():
        allowed = int(most_steps(compiled, name, codes.dtype)) if has_floats else 0
        for steps in (allowed, allowed + 1):
            outputs = [dict(sample) for sample in compiled.expected]
            outputs[-1][name] = codes + np.eye(1, codes.size, dtype=np.int64).reshape(codes.shape) * steps
            assert bool(compare_outputs(compiled, outputs, "C")) == (steps > allowed)


@pytest.mark.parametrize("style", ["float16", "float32"])
def test_reals_differ_by_what_rounding_explains(style: str):
    """Two sums next to a tie round to neighbours in float16."""
    compiled = compile_case(case_of(3, style, "u_net"))
    assert isinstance(compiled, Compiled)
    relative = FLOAT_ERROR + (HALF_STEP if style == "float16" else 0)
    for name, reals in compiled.expected[-1].items():
        for share in (0.9, 1.1):
            outputs = [dict(sample) for sample in compiled.expected]
            error = np.abs(reals.astype(np.float64)).max() * relative * share + compiled.limits[name]
            outputs[-1][name] = reals + np.eye(1, reals.size).reshape(reals.shape) * error
            assert bool(compare_outputs(compiled, outputs, "C")) == (share > 1)


BORDER_MOVEMENTS: dict[str, Callable[[Net, str], str]] = {
    "Transpose": lambda net, x: net.op("Transpose", x, perm=[2, 0, 1]),
    "Reshape": lambda net, x: net.op("Reshape", x, net.const([1, -1], np.int64)),
    "Flatten": lambda net, x: net.op("Flatten", x),
    "Squeeze": lambda net, x: net.op("Squeeze", x, net.const([0], np.int64)),
    "Unsqueeze": lambda net, x: net.op("Unsqueeze", x, net.const([0], np.int64)),
    "Identity": lambda net, x: net.op("Identity", x),
    "two": lambda net, x: net.op("Flatten", net.op("Transpose", x, perm=[0, 2, 1])),
}
"""Movements that --integer-io takes integers through, of a tensor [1, 3, T]."""


def moved_case(movement: str, dtype: type) -> Case:
    """A case with integers at its borders, whose input, of any length, is moved before it is quantized."""
    net = Net(21)
    x = BORDER_MOVEMENTS[movement](net, net.input("x", 1, 3, "T"))
    net.output(net.fake(net.op("Relu", net.fake(x, 0.05, 7, dtype)), 0.05, 7, dtype))
    model, options = net.plain_model(), CompileOptions("moved", {"T": (2, 17)}, integer_io=True)
    samples = [{"x": np.random.default_rng(t).normal(0, 2, (1, 3, t)).astype(np.float32)} for t in (2, 17)]
    return Case(Network(0, "moved", model, dims={"T": (2, 17)}), "QDQ", model, options, "", samples)


def test_movements_at_borders_are_those_of_the_compiler() -> None:
    assert {*BORDER_MOVEMENTS} - {"two"} == MOVEMENT_OPERATORS <= {*MOVEMENTS}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("movement", BORDER_MOVEMENTS)
def test_integer_inputs_are_given_integers(movement: str, dtype: type) -> None:
    """They are the codes of the samples, wherever the file quantizes the input."""
    compiled = compile_case(case := moved_case(movement, dtype))
    assert isinstance(compiled, Compiled), compiled
    limits = np.iinfo(dtype)
    for given, sample in zip(compiled.feeds, case.samples, strict=True):
        assert given["x"].dtype == dtype
        codes = np.clip(np.rint(sample["x"] / np.float32(0.05)) + 7, limits.min, limits.max)
        np.testing.assert_array_equal(given["x"], codes)


def test_reals_for_an_integer_input_are_a_fault_of_the_tester(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tester says so, rather than blame the program for what it makes of them."""
    monkeypatch.setattr("fuzz_networks.MOVEMENTS", ())
    finding = compile_case(moved_case("Transpose", np.int8))
    assert isinstance(finding, Finding)
    assert "has no conversion behind it" in finding.reason


# ------------------------------------------------------------------------------------------------ planted faults

Fault = Callable[[onnx.GraphProto, Random], bool]
"""Changes a graph; whether it could."""


def _nodes(graph: onnx.GraphProto, *op_types: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type in op_types]


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((a for a in node.attribute if a.name == name), None)


def _set(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _initializer(graph: onnx.GraphProto, name: str) -> onnx.TensorProto | None:
    return next((t for t in graph.initializer if t.name == name), None)


def shift_border(graph: onnx.GraphProto, random: Random) -> bool:
    """One more element before, one less behind."""
    for node in _nodes(graph, "Conv", "QLinearConv", "MaxPool", "AveragePool", "ConvInteger"):
        pads = _attribute(node, "pads")
        if pads is not None and len(pads.ints) == 4 and pads.ints[2] > 0:
            _set(node, "pads", [pads.ints[0] + 1, pads.ints[1], pads.ints[2] - 1, pads.ints[3]])
            return True
    return False


def count_padding(graph: onnx.GraphProto, random: Random) -> bool:
    for node in _nodes(graph, "AveragePool", "QLinearAveragePool"):
        pads = _attribute(node, "pads")
        if pads is not None and any(pads.ints):
            counted = _attribute(node, "count_include_pad")
            _set(node, "count_include_pad", int(counted is None or not counted.i))
            return True
    return False


def turn_axes(graph: onnx.GraphProto, random: Random) -> bool:
    """Exchange two axes of one size in a Transpose."""
    shapes = _shapes(graph)
    for node in _nodes(graph, "Transpose"):
        shape, perm = shapes.get(node.input[0], []), list(_attribute(node, "perm").ints)
        for a in range(len(shape)):
            for b in range(a + 1, len(shape)):
                if shape[a] == shape[b] > 1:
                    i, j = perm.index(a), perm.index(b)
                    perm[i], perm[j] = perm[j], perm[i]
                    _set(node, "perm", perm)
                    return True
    return False


def exchange_parts(graph: onnx.GraphProto, random: Random) -> bool:
    """Of a Concat or a Split."""
    shapes = _shapes(graph)
    for node in _nodes(graph, "Concat"):
        if (
            len(node.input) > 1
            and shapes.get(node.input[0]) == shapes.get(node.input[1])
            and node.input[0] != node.input[1]
        ):
            node.input[0], node.input[1] = node.input[1], node.input[0]
            return True
    for node in _nodes(graph, "Split"):
        if shapes.get(node.output[0]) == shapes.get(node.output[1]):
            node.output[0], node.output[1] = node.output[1], node.output[0]
            return True
    return False


def wrong_softmax_axis(graph: onnx.GraphProto, random: Random) -> bool:
    shapes = _shapes(graph)
    for node in _nodes(graph, "Softmax"):
        shape = shapes.get(node.input[0], [])
        if len(shape) > 2:
            _set(node, "axis", len(shape) - 2)
            return True
    return False


def repeat_first_image(graph: onnx.GraphProto, random: Random) -> bool:
    """Every image of a batch is the first one."""
    shape = [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
    if len(shape) not in (2, 4) or shape[0] < 2:
        return False
    name = graph.input[0].name
    for node in graph.node:
        for index, read in enumerate(node.input):
            node.input[index] = "planted" if read == name else read
    graph.initializer.append(numpy_helper.from_array(np.zeros(shape[0], np.int64), "first"))
    graph.node.insert(0, helper.make_node("Gather", [name, "first"], ["planted"], axis=0))
    return True


def roll_bias(graph: onnx.GraphProto, random: Random) -> bool:
    """The bias of each channel is that of its neighbour."""
    for node in _nodes(graph, "Conv", "Gemm", "QLinearConv", "ConvTranspose"):
        place = 8 if node.op_type == "QLinearConv" else 2
        name = node.input[place] if len(node.input) > place else ""
        source = next((n.input[0] for n in graph.node if n.output[0] == name and n.op_type == "DequantizeLinear"), name)
        tensor = _initializer(graph, source)
        if tensor is not None and np.ptp(numpy_helper.to_array(tensor)) > 0:
            tensor.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(tensor), 1), tensor.name))
            return True
    return False


def no_activation(graph: onnx.GraphProto, random: Random) -> bool:
    for node in _nodes(graph, "Relu", "LeakyRelu", "HardSwish", "Sigmoid", "Tanh"):
        node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output))
        return True
    return False


def wrong_direction(graph: onnx.GraphProto, random: Random) -> bool:
    for node in _nodes(graph, "GRU", "LSTM", "RNN"):
        direction = _attribute(node, "direction")
        if direction is None or direction.s != b"bidirectional":
            _set(node, "direction", "reverse" if direction is None or direction.s == b"forward" else "forward")
            return True
    return False


def wrong_reset(graph: onnx.GraphProto, random: Random) -> bool:
    for node in _nodes(graph, "GRU"):
        given = _attribute(node, "linear_before_reset")
        _set(node, "linear_before_reset", int(given is None or not given.i))
        return len(node.input) > 3 and bool(node.input[3])
    return False


def no_mask(graph: onnx.GraphProto, random: Random) -> bool:
    """The mask of the scores is 0."""
    for node in _nodes(graph, "Add"):
        for name in node.input:
            tensor = _initializer(graph, name)
            if tensor is not None and len(tensor.dims) == 2 and np.tril(numpy_helper.to_array(tensor)).max() == 0:
                data = numpy_helper.to_array(tensor)
                if data.shape[0] == data.shape[1] > 1 and data.min() < -5:
                    tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(data), name))
                    return True
    return False


def other_resize(graph: onnx.GraphProto, random: Random) -> bool:
    for node in _nodes(graph, "Resize"):
        mode = _attribute(node, "mode")
        if mode is not None and mode.s == b"linear":
            way = _attribute(node, "coordinate_transformation_mode")
            _set(
                node, "coordinate_transformation_mode", "half_pixel" if way and way.s != b"half_pixel" else "asymmetric"
            )
            return True
    return False


def shift_codes(graph: onnx.GraphProto, random: Random) -> bool:
    """A zero point is wrong by four: not at the QuantizeLinear, but where the codes are read."""
    for node in _nodes(graph, "DequantizeLinear"):
        if _initializer(graph, node.input[0]) is None and len(node.input) > 2:
            tensor = _initializer(graph, node.input[2])
            data = numpy_helper.to_array(tensor)
            if data.dtype.itemsize == 1 and data.ndim == 0 and data < 120:
                graph.initializer.append(numpy_helper.from_array(np.asarray(data + 4, data.dtype), "planted"))
                node.input[2] = "planted"
                return True
    return False


FAULTS: tuple[Fault, ...] = (
    *(shift_border, count_padding, turn_axes, exchange_parts, wrong_softmax_axis, repeat_first_image, roll_bias),
    *(no_activation, wrong_direction, wrong_reset, no_mask, other_resize, shift_codes),
)


def _shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets)).graph
    infos = (*inferred.input, *inferred.value_info, *inferred.output)
    return {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in infos}


def planted(case: Case, fault: Fault) -> Case | None:
    """The case with a fault in the file; None where it has no place or no visible effect."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    if not fault(model.graph, Random(case.seed)):
        return None
    options = replace(case.options, stream_input=False)
    wrong = replace(case, model=model, options=options, quantization=None, share_of_ram=0.0)
    return wrong if is_visible(case, wrong) else None


def is_visible(case: Case, wrong: Case) -> bool:
    """Whether the fault changes an output of ONNX Runtime by more than VISIBLE of its largest magnitude."""
    right, other = (
        run_onnxruntime(c.model, c.samples, fixed=first_states(c), states=c.options.states) for c in (case, wrong)
    )
    return any(
        np.abs(a[name].astype(float) - b[name]).max(initial=0) > VISIBLE * np.abs(a[name].astype(float)).max(initial=0)
        for a, b in zip(right, other, strict=True)
        for name in a
    )


def first_states(case: Case) -> dict[str, np.ndarray]:
    """Zeros for every input that holds a state."""
    infos = {i.name: i.type.tensor_type for i in case.model.graph.input if i.name in case.options.states.values()}
    return {
        name: np.zeros([d.dim_value for d in t.shape.dim], helper.tensor_dtype_to_np_dtype(t.elem_type))
        for name, t in infos.items()
    }


def is_found(case: Case, wrong: Case) -> bool:
    """Whether the comparison with ONNX Runtime tells the file with the fault from the right one."""
    compiled = compile_here(wrong)
    feeds = feeds_of(wrong, compiled)
    try:
        compare_with_onnxruntime(case, compiled.first_states, feeds, interpret_stream(compiled, feeds))
    except AssertionError:
        return True
    return False


def planted_cases(seeds: range) -> Iterator[tuple[Case, Case, str]]:
    """Cases, the same with each fault that they have a place for, and the name of the fault."""
    for seed in seeds:
        case = case_of(seed)
        for fault in FAULTS:
            wrong = planted(case, fault)
            if wrong is not None:
                yield case, wrong, fault.__name__


def test_planted_faults_are_found():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        results = [(name, is_found(case, wrong)) for case, wrong, name in planted_cases(range(20))]
    count, found = Counter(name for name, _ in results), Counter(name for name, is_one in results if is_one)
    assert sum(found.values()) >= MIN_FOUND_SHARE * sum(count.values()), {n: (found[n], count[n]) for n in count}
