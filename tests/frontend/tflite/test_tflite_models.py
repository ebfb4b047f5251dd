# SPDX-License-Identifier: Apache-2.0
"""Whole .tflite models: names, states, types, refusals, and the shared models as TensorFlow Lite Micro runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import numpy_outputs, optimized
from shared_models import DATA
from tflite_models import LiteModel, Number, Numbers, converted, i8, i32, shared_tflite, tflm_outputs

from mcugen.core.errors import ModelError, UnsupportedError, UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.interpreter import interpret
from mcugen.hir.layer_names import name_nodes
from mcugen.hir.types import Array


def small(name: str = "dense/MatMul;dense/BiasAdd", **signature: str) -> LiteModel:
    """Return a model of one layer."""
    model = LiteModel()
    x = model.graph.input(1, 4, dtype="int8", scale=0.1, name="serving_default_x:0")
    w = model.graph.const(np.arange(12).reshape(3, 4), "int8", scale=0.02)
    b = model.graph.const([1, 2, 3], "int32", scale=0.002)
    y = model.graph.tensor(1, 3, dtype="int8", scale=0.1, name=name)
    model.graph.op("FULLY_CONNECTED", [x, w, b], [y], 8, {0: i8(1)})
    model.graph.output(y)
    if signature:
        model.sign({signature["x"]: x}, {signature["y"]: y})
    return model


def test_layers_have_the_names_of_tensors():
    graph = optimized(converted(small().data()))
    assert list(name_nodes(graph).values()) == ["dense/MatMul"]


def test_a_result_without_a_name_of_its_own_is_called_by_its_operator():
    graph = optimized(converted(small("StatefulPartitionedCall:0").data()))
    assert list(name_nodes(graph).values()) == ["fully_connected"]


def test_inputs_and_outputs_have_the_names_of_the_signature():
    graph = optimized(converted(small(x="image", y="scores").data()))
    assert ([v.name for v in graph.inputs], graph.output_names) == (["image"], ["scores"])


def signed(*keys: str) -> LiteModel:
    """Return a model with a signature of each key, the first of Tanh, then of Abs, the others of unknown operators."""
    model = LiteModel()
    for n, key in enumerate(keys):
        graph = model.graph if n == 0 else model.subgraph()
        given, result = graph.input(1, 2), graph.tensor(1, 2)
        graph.op(["TANH", "ABS", "MULTINOMIAL"][min(n, 2)], [given], [result])
        graph.output(result)
        model.sign({f"x{n}": given}, {f"y{n}": result}, key, n)
    return model


@pytest.mark.parametrize(("key", "place", "kind"), [("", 0, "Tanh"), ("infer", 0, "Tanh"), ("*/ train", 1, "Abs")])
def test_a_signature_chooses_the_subgraph(key: str, place: int, kind: str, tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(signed("infer", "*/ train", "sample").data())
    compiled = compile_model(path, options=CompileOptions(signature=key))
    assert ([v.name for v in compiled.graph.inputs], compiled.graph.output_names) == ([f"x{place}"], [f"y{place}"])
    x = np.float32([[[-0.5, 2]]])
    np.testing.assert_allclose(compiled.run({f"x{place}": x})[f"y{place}"], [np.tanh(x), np.abs(x)][place], atol=1e-6)
    others = [repr(other) for n, other in enumerate(["infer", "*/ train", "sample"]) if n != place]
    assert [note for note in compiled.report.notes if f"other signatures are not: {', '.join(others)}" in note]


def test_a_signature_of_unknown_operators_is_refused(tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(signed("infer", "train", "sample").data())
    with pytest.raises(UnsupportedError, match=r"MULTINOMIAL .*\(in subgraph 2\)"):
        compile_model(path, options=CompileOptions(signature="sample"))


def test_an_unknown_signature_is_refused(tmp_path: Path):
    path = tmp_path / "net.tflite"
    path.write_bytes(signed("infer", "train").data())
    with pytest.raises(UsageError, match=r"--signature must name .*'infers'.*one of: 'infer', 'train'"):
        compile_model(path, options=CompileOptions(signature="infers"))


def test_a_signature_may_not_run_itself():
    model = LiteModel()
    condition = model.graph.input(1, dtype="bool")
    result = model.graph.tensor(1, dtype="bool")
    model.graph.op("IF", [condition], [result], 92, {0: i32(0), 1: i32(0)})
    model.graph.output(result)
    with pytest.raises(ModelError, match="subgraph 0 of 1"):
        converted(model.data())


@pytest.mark.parametrize(("signature", "is_noted"), [([-1, 8, 3], False), ([1, -1, 3], True), ([], False)])
def test_open_sizes_are_noted(signature: list[int], is_noted: bool):
    """All but the first, which is the batch."""
    model = LiteModel()
    x, y = model.graph.input(1, 8, 3, _7=Numbers("i", signature)), model.graph.tensor(1, 8, 3)
    model.graph.op("ABS", [x], [y])
    model.graph.output(y)
    notes = optimized(converted(model.data())).notes
    assert notes == (
        ["sizes of input 't0' are open, [1, -1, 3], and taken as [1, 8, 3]: export it with the sizes that you use"]
        if is_noted
        else []
    )


@pytest.mark.parametrize("name", ["", "a\x00b\x1b[31m", "*/ #error", "é" * 3000, "x" * 9000])
def test_odd_names(name: str, tmp_path: Path):
    folder = compile_model(converted(small(name).data())).write(tmp_path / "net")
    assert all("\x1b" not in file.read_text() for file in folder.glob("*.[ch]"))


def test_equal_names_become_unique():
    model = LiteModel()
    x = model.graph.input(2, 3, name="same")
    middle, y = model.graph.tensor(2, 3, name="same"), model.graph.tensor(2, 3, name="same")
    model.graph.op("ABS", [x], [middle])
    model.graph.op("SIN", [middle], [y])
    model.graph.output(y)
    (found,) = numpy_outputs(converted(model.data()), {"same": np.full((2, 3), -1, np.float32)}).values()
    np.testing.assert_allclose(found, np.sin(1), rtol=1e-6)


def test_outputs_that_are_inputs_constants_or_listed_twice():
    model = LiteModel()
    x, c, y = model.graph.input(2, name="x"), model.graph.const([1.0, 2.0], name="c"), model.graph.tensor(2, name="y")
    model.graph.op("ABS", [x], [y])
    model.graph.output(x, c, y, y)
    found = list(numpy_outputs(converted(model.data()), {"x": np.asarray([-1, 3], np.float32)}).values())
    assert [array.tolist() for array in found] == [[-1, 3], [1, 2], [1, 3]]


def test_all_operators_that_are_not_supported_are_listed_at_once():
    model = LiteModel()
    x = model.graph.input(2, 3)
    names = ("MyOperator", "STABLEHLO_ADD", "WHERE")
    for name in names:
        model.graph.op(name, [x], [model.graph.tensor(2, 3, name=f"of {name}")])
    with pytest.raises(UnsupportedError, match=r"3 nodes are not") as error:
        converted(model.data())
    for index, name in enumerate(names):
        assert f"operator {index}, {name} 'of {name}': operator not supported" in str(error.value)


def test_refusals_of_builders_are_listed_at_once():
    model = LiteModel()
    x = model.graph.input(2, 3)
    for index in range(2):
        y = model.graph.tensor(2, 3, name=f"y{index}")
        model.graph.op("TRANSPOSE", [x, model.graph.input(2, dtype="int32")], [y])
        model.graph.output(y)
    with pytest.raises(UnsupportedError, match=r"2 nodes are not(.|\n)*'y0'.*must be a constant(.|\n)*'y1'"):
        converted(model.data())


def test_variables_are_states_of_the_compiled_model(tmp_path: Path):
    from tflite_cases import CASES

    made = CASES["variable_float32"]()
    path = tmp_path / "sum.tflite"
    path.write_bytes(made.data)
    assert load(path).states == {"total_next": "total"}
    compiled = compile_model(path)
    (x,) = made.feeds
    (name,) = (v.name for v in compiled.graph.inputs if v.name != "total")
    found = compiled.run({name: np.stack([x] * 3)}, sanitize=True)
    output = next(key for key in found if key != "total_next")
    np.testing.assert_allclose(found[output], np.stack([x, 2 * x, 3 * x]), rtol=1e-6)


@pytest.mark.parametrize("is_unpacked", [False, True])
@pytest.mark.parametrize(
    ("kind", "scale", "nbytes"),
    [("float32", None, 4 * 2048 + 4 * 32), ("float16", None, 2 * 2048 + 4 * 32), ("int8", 0.02, 2048 + 4 * 32)],
)
def test_narrow_weights_of_float_layers_stay_narrow_in_flash(
    kind: str, scale: float | None, nbytes: int, is_unpacked: bool
):
    model = LiteModel()
    values = np.random.default_rng(0).normal(size=(32, 64))
    w = model.graph.const(40 * values if scale else values, kind, scale=scale)
    if is_unpacked:
        packed, w = w, model.graph.tensor(32, 64)
        model.graph.op("DEQUANTIZE", [packed], [w])
    y = model.graph.tensor(1, 32)
    model.graph.op("FULLY_CONNECTED", [model.graph.input(1, 64), w, -1], [y], 8, {})
    model.graph.output(y)
    program = compile_model(converted(model.data()), options=CompileOptions(optimize="flash")).program
    assert program.weights_size == nbytes


CONVOLUTIONS = {
    "CONV_2D": ((1, 8, 8, 16), (24, 3, 3, 16), 0, 24),
    "DEPTHWISE_CONV_2D": ((1, 8, 8, 256), (1, 3, 3, 256), 3, 256),
    "TRANSPOSE_CONV": ((1, 8, 8, 16), (24, 3, 3, 16), 0, 24),
}
"""Shapes of the input and the weights, the axis of their scales, and the channels of the result, by operator."""


@pytest.mark.parametrize("is_unpacked", [False, True])
@pytest.mark.parametrize("kind", ["float16", "int8"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_narrow_weights_of_float_convolutions_stay_narrow_in_flash(name: str, kind: str, is_unpacked: bool):
    (shape, filters, axis, channels), model, random = CONVOLUTIONS[name], LiteModel(), np.random.default_rng(0)
    scales = random.uniform(0.01, 0.02, channels) if kind == "int8" else None
    values = random.normal(size=filters) * (40 if kind == "int8" else 1)
    w = model.graph.const(values, kind, scale=scales, axis=axis)
    if is_unpacked:
        packed, w = w, model.graph.tensor(*filters)
        model.graph.op("DEQUANTIZE", [packed], [w])
    x, b = model.graph.input(*shape), model.graph.const(random.normal(size=channels))
    y = model.graph.tensor(1, 17, 17, channels) if name == "TRANSPOSE_CONV" else model.graph.tensor(1, 8, 8, channels)
    union, options = {"CONV_2D": (1, {}), "DEPTHWISE_CONV_2D": (2, {}), "TRANSPOSE_CONV": (49, {0: i8(1)})}[name]
    options |= {1: i32(2), 2: i32(2)} if name == "TRANSPOSE_CONV" else {1: i32(1), 2: i32(1)}
    options |= {3: i32(1)} if name.startswith("DEPTHWISE") else {}
    inputs = [model.graph.const([1, 17, 17, channels], "int32"), w, x, b] if union == 49 else [x, w, b]
    model.graph.op(name, inputs, [y], union, options)
    model.graph.output(y)
    compiled = compile_model(converted(model.data()), "nrf52840", CompileOptions(optimize="flash"))
    (weights,) = (o.buffer for i in compiled.program.instrs for o in i.operands if o.role == "w")
    assert weights.dtype.value == kind


@pytest.mark.parametrize("is_unpacked", [False, True])
@pytest.mark.parametrize(("kind", "scale", "share"), [("float16", None, 0.55), ("int8", 0.02, 0.32)])
def test_narrow_weights_of_lstms_stay_narrow_in_flash(kind: str, scale: float | None, share: float, is_unpacked: bool):
    model, size, depth = LiteModel(), 32, 24
    values = np.random.default_rng(0)
    inputs = [model.graph.input(1, 3, depth)]
    for columns in (depth, size):
        for _ in range(4):
            weights = values.normal(size=(size, columns)) * (40 if scale else 1)
            inputs.append(model.graph.const(weights, kind, scale=scale))
            if is_unpacked:
                packed, inputs[-1] = inputs[-1], model.graph.tensor(size, columns)
                model.graph.op("DEQUANTIZE", [packed], [inputs[-1]])
    inputs += [-1] * 3 + [model.graph.const(values.normal(size=size)) for _ in range(4)] + [-1, -1]
    inputs += [model.graph.tensor(1, size, _5=Number("B", 1)) for _ in range(2)]
    y = model.graph.tensor(1, 3, size)
    model.graph.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], 71, {0: i8(4)})
    model.graph.output(y)
    program = compile_model(converted(model.data()), options=CompileOptions(optimize="flash")).program
    assert program.weights_size < share * 4 * 4 * size * (size + depth)


@pytest.mark.parametrize("name", ["lstm_batch_first_float32", "lstm_time_first_int8"])
def test_states_of_sequences_are_kept_on_demand(name: str, tmp_path: Path):
    from tflite_cases import CASES

    made = CASES[name]()
    path = tmp_path / "net.tflite"
    path.write_bytes(made.data)
    reset, kept = (compile_model(path, options=CompileOptions(keeps_states=keeps)) for keeps in (False, True))
    assert not reset.options.states and any("--keep-states" in note for note in reset.report.notes)
    assert len(kept.options.states) == 2 and not any("--keep-states" in note for note in kept.report.notes)
    (given,) = (v.name for v in kept.graph.inputs if v.name not in kept.options.states.values())
    found = kept.run({given: np.stack([made.feeds[0]] * 3)}, sanitize=True)
    (output,) = (key for key in found if key not in kept.options.states)
    begun = reset.run({given: np.stack([made.feeds[0]] * 2)})[output]
    assert np.array_equal(begun[0], begun[1]) and np.array_equal(begun[0], found[output][0])
    assert not np.array_equal(found[output][0], found[output][1])
    for runs, array in enumerate(found[output], 1):
        (expected,) = tflm_outputs(made.data, made.feeds, runs)
        np.testing.assert_allclose(array.astype(float), expected, atol=2 if array.dtype == np.int8 else 1e-5)


def test_options_of_tflite_models_are_refused_for_others():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> n (float[2] x) => (float[2] y) { y = Abs(x) }'
    )
    with pytest.raises(UsageError, match=r"--keep-states is for \.tflite models"):
        compile_model(model, options=CompileOptions(keeps_states=True))
    with pytest.raises(UsageError, match=r"--signature is for \.tflite models"):
        compile_model(model, options=CompileOptions(signature="infer"))


def test_variables_begin_with_their_constants():
    from tflite_cases import CASES

    made = CASES["variable_initial_float32"]()
    compiled = compile_model(converted(made.data))
    assert set(compiled.options.states.values()) == {"has_run", "total"}
    (x,) = made.feeds
    (name,) = (v.name for v in compiled.graph.inputs if v.name not in compiled.options.states.values())
    found = compiled.run({name: np.stack([x] * 3)}, sanitize=True)
    (output,) = (key for key in found if key not in compiled.options.states)
    np.testing.assert_allclose(found[output], np.stack([2.5 + x, 2.5 + 2 * x, 2.5 + 3 * x]), rtol=1e-6)


def test_states_of_layers_with_equal_names_are_apart():
    model = LiteModel()
    x, random = model.graph.input(1, 3), np.random.default_rng(0)
    for _ in range(2):
        features, times = model.graph.const(random.normal(size=(2, 3))), model.graph.const(random.normal(size=(2, 4)))
        state, y = model.graph.tensor(1, 8, name="state", _5=Number("B", 1)), model.graph.tensor(1, 2)
        model.graph.op("SVDF", [x, features, times, -1, state], [y], 6, {0: i32(1), 1: i8(0)})
        model.graph.output(y)
    assert len(compile_model(converted(model.data())).options.states) == 2


def test_another_version_of_the_schema_is_refused():
    data = small().data()
    with pytest.raises(ModelError, match="the schema must be version 3"):
        converted(data.replace((3).to_bytes(4, "little"), (4).to_bytes(4, "little"), 1))


def test_a_loop_within_itself_is_refused():
    model = LiteModel()
    inner = model.subgraph()
    for graph in (model.graph, inner):
        condition, x = graph.input(dtype="bool"), graph.input(2)
        y = graph.tensor(2)
        graph.op("IF", [condition, condition, x], [y], 92, {0: Number("i", 1), 1: Number("i", 1)})
        graph.output(y)
    with pytest.raises(ModelError, match=r"subgraph 1 within itself"):
        converted(model.data())


# ------------------------------------------------------------------------------------------------- shared models

SAMPLES = {
    "autoencoder_ad_int8": "ad",
    "ds_cnn_kws_int8": "kws",
    "mobilenet_v1_025_vww_int8": "vww",
    "resnet8_cifar10_int8": "cifar10",
    "streaming_wakeword_int8": "sww",
    "tflm_mnist_lstm_int8": "mnist",
}
"""Names of the data sets of the shared models."""
AGREEMENT = dict.fromkeys(SAMPLES, 1.0) | {"ds_cnn_kws_int8": 0.98, "mobilenet_v1_025_vww_int8": 0.96}
"""Smallest share of samples with the class that TensorFlow Lite Micro finds; layers differ by single steps."""


def samples_of(name: str, count: int) -> Array:
    """Return samples of a shared model's data, as the model takes them."""
    if name not in SAMPLES:
        return np.random.default_rng(0).integers(-128, 128, (count, 1960 if "speech" in name else 1)).astype(np.int8)
    data = np.load(DATA / f"{SAMPLES[name]}_eval.npz")
    if "x_uint8" in data:
        pixels = data["x_uint8"][:count]
        return (pixels.astype(np.int16) - 128).astype(np.int8)
    if "x_int8" in data:
        return data["x_int8"][:count]
    scale, zero = {"ad": (0.3910152, 89), "sww": (0.003701043, -128)}[SAMPLES[name]]
    return np.clip(np.rint(data["x"][:count] / scale) + zero, -128, 127).astype(np.int8)


def arranged(name: str, sample: Array, shape: tuple[int, ...]) -> Array:
    """Return a sample with channels last."""
    if sample.ndim == 3 and sample.shape[0] in (3, 40):
        sample = np.moveaxis(sample, 0, -1)
    return np.ascontiguousarray(sample).reshape(shape)


@pytest.mark.shared
@pytest.mark.parametrize("name", [*SAMPLES, "tflm_hello_world_int8", "tflm_micro_speech_int8"])
def test_shared_models_as_tensorflow_lite_micro_runs_them(name: str):
    data = shared_tflite(name).read_bytes()
    model = converted(data)
    graph = optimized(model)
    (given,) = graph.inputs
    same = 0
    samples = samples_of(name, 20)
    for sample in samples:
        feed = arranged(name, sample, given.type.shape)
        (found,) = interpret(graph, {given.name: feed}).values()
        (expected,) = tflm_outputs(data, [feed])
        best = np.flatnonzero(expected == expected.max())
        same += int(found.argmax() in best)
        assert np.abs(found.astype(int) - expected).max() <= (8 if name.startswith("auto") else 60)
    if not name.startswith("auto"):
        assert same >= AGREEMENT.get(name, 0.95) * len(samples)
