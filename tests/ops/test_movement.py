# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements: onnxruntime, numpy and C agree, on every element type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import (
    Net,
    assert_close,
    c_outputs,
    check_everywhere,
    check_quantized,
    imported,
    numpy_outputs,
    operators,
    optimized,
    random_feeds,
)

from mcugen.core.errors import DoesNotFitError, McugenError, UnsupportedError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import DType
from mcugen.lir.program import MOVE

SIZES = (2, 3, 4, 5)
TOP = 2**63 - 1


def net_of_x(*shape: int, dtype: type = np.float32) -> Net:
    net = Net()
    net.input("x", *shape, dtype=dtype)
    return net


def ints(net: Net, values: object) -> str:
    return net.const(values, np.int64)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int16, np.int32, np.int64, bool])
def test_every_element_type(dtype: type):
    net = net_of_x(2, 3, 4, dtype=dtype)
    net.output(net.op("Transpose", "x", perm=[2, 0, 1], out="transpose"), dtype=dtype)
    net.output(net.op("Concat", "x", "x", axis=1, out="concat"), dtype=dtype)
    net.output(net.op("Reshape", "x", ints(net, [4, 6]), out="reshape"), dtype=dtype)
    net.output(net.op("Slice", "x", ints(net, [1]), ints(net, [4]), ints(net, [2]), out="slice"), dtype=dtype)
    check_everywhere(net.model())


def test_reshape_and_its_kin():
    net = net_of_x(2, 1, 3, 4)
    for index, shape in enumerate(([2, 12], [-1], [0, -1, 2], [0, 0, 0, 4], [1, 24, 1])):
        net.output(net.op("Reshape", "x", ints(net, shape), out=f"reshape{index}"))
    for axis in (0, 2, -1):
        net.output(net.op("Flatten", "x", axis=axis, out=f"flatten{axis}"))
    net.output(net.op("Squeeze", "x", out="squeeze"))
    net.output(net.op("Squeeze", "x", ints(net, [-3]), out="squeeze-3"))
    for index, axes in enumerate(([0], [1, -1], [5, 0])):
        net.output(net.op("Unsqueeze", "x", ints(net, axes), out=f"unsqueeze{index}"))
    check_everywhere(net.model())


def test_transposes():
    net = net_of_x(*SIZES)
    net.output(net.op("Transpose", "x", out="reversed"))
    for perm in ([0, 2, 3, 1], [0, 3, 1, 2], [1, 0, 3, 2], [0, 1, 3, 2], [3, 1, 0, 2]):
        net.output(net.op("Transpose", "x", perm=perm, out="".join(map(str, perm))))
    check_everywhere(net.model())


@pytest.mark.spread(6)
@pytest.mark.parametrize("board", ["host", "rp2040", "nrf52840", "corstone300"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.float32])
def test_planes_become_neighbours_and_back(board: str, dtype: type):
    net = Net()
    for planes in (*range(1, 7), 17, 18):
        for size in (1, 3, 4, 16, 21, 40):
            x = net.input(f"x{planes}_{size}", 2, planes, size, dtype=dtype)
            net.output(net.op("Transpose", x, perm=[0, 2, 1], out=f"y{planes}_{size}"), dtype=dtype)
    model = net.model()
    feeds = random_feeds(model)
    compiled = compile_model(model, board)
    assert {i.kernel for i in compiled.program.instrs} == {"transpose"}
    found = compiled.simulate([feeds], measure=False, sanitize=board == "host").outputs[0]
    for name, x in feeds.items():
        np.testing.assert_array_equal(found["y" + name[1:]], x.transpose(0, 2, 1))


def test_slices():
    net = net_of_x(*SIZES)
    cases = [
        ([1], [3], [2], [1]),
        ([0, 0], [TOP, TOP], [1, 3], [2, 3]),
        ([-2], [TOP], [-1], [1]),
        ([4], [-6], [3], [-1]),
        ([TOP], [-TOP - 1], [0], [-1]),
        ([3, 2], [0, -100], [2, 1], [-2, -1]),
        ([-100], [100], [3], [3]),
    ]
    for index, (starts, ends, axes, steps) in enumerate(cases):
        inputs = [ints(net, values) for values in (starts, ends, axes, steps)]
        net.output(net.op("Slice", "x", *inputs, out=f"slice{index}"))
    net.output(net.op("Slice", "x", ints(net, [1, 1]), ints(net, [2, 3]), out="first axes"))
    check_everywhere(net.model())


def test_splits():
    net = net_of_x(*SIZES)
    net.output(*net.ops("Split", "x", outs=["a0", "a1"], axis=2))
    net.output(*net.ops("Split", "x", ints(net, [1, 3, 1]), outs=["b0", "b1", "b2"], axis=-1))
    check_everywhere(net.model())
    uneven = net_of_x(2, 7)
    uneven.opset = 18
    uneven.output(*uneven.ops("Split", "x", outs=["a", "b", "c"], axis=1, num_outputs=3))
    check_everywhere(uneven.model())


def test_concats():
    net = net_of_x(*SIZES)
    net.input("y", *SIZES)
    constant = net.const(np.ones((2, 1, 4, 5)))
    net.output(net.op("Concat", "x", constant, "y", axis=1, out="channels"))
    net.output(net.op("Concat", "x", "y", "x", axis=-1, out="last"))
    net.output(net.op("Concat", "x", axis=0, out="single"))
    net.output(net.op("Concat", "x", "y", axis=0, out="first"))
    check_everywhere(net.model())


@pytest.mark.parametrize("is_last", [False, True])
def test_the_largest_part_of_a_concat_spreads_out_in_place(is_last: bool):
    """As in a DenseNet, where each layer's channels join all that there are: those need no second place."""
    net, pixels, random = Net(), 16 * 16, np.random.default_rng(0)

    def conv(x: str, inputs: int, outputs: int) -> str:
        weights = net.const(random.integers(-90, 91, (outputs, inputs, 1, 1)), np.int8)
        return net.fake(net.op("Conv", x, net.dequantize(weights, 0.002)), 0.05)

    x, channels = conv(net.dequantize(net.input("x", 1, 3, 16, 16, dtype=np.int8), 0.05), 3, 24), 24
    for _ in range(3):
        parts = [x, conv(x, channels, 8)]
        x, channels = net.fake(net.op("Concat", *(parts[::-1] if is_last else parts), axis=1), 0.05), channels + 8
    net.output(net.quantize(net.op("GlobalAveragePool", x), 0.05, out="y"), dtype=np.int8)
    model = net.model()
    check_quantized(model)
    arena = compile_model(model, "nrf52840").program.arena_size
    assert arena <= (channels + 8) * pixels + 1024, "the last two and a kernel's scratch memory"


def test_expands_and_tiles():
    net = net_of_x(3, 1, 2)
    for index, shape in enumerate(([3, 4, 2], [2, 3, 1, 2], [1], [5, 1, 1, 1])):
        net.output(net.op("Expand", "x", ints(net, shape), out=f"expand{index}"))
    for index, repeats in enumerate(([1, 1, 1], [2, 3, 1], [1, 1, 4], [2, 2, 2])):
        net.output(net.op("Tile", "x", ints(net, repeats), out=f"tile{index}"))
    check_everywhere(net.model())


def test_pads():
    net = net_of_x(2, 3, 4)
    net.output(net.op("Pad", "x", ints(net, [0, 1, 2, 1, 0, 3]), out="zero"))
    net.output(net.op("Pad", "x", ints(net, [0, 0, 1, 0, 2, 0]), net.const(2.5), out="value"))
    net.output(net.op("Pad", "x", ints(net, [0, -1, 1, 0, 0, -2]), out="cropped"))
    net.output(net.op("Pad", "x", ints(net, [0] * 6), out="nothing"))
    net.output(net.op("Pad", "x", ints(net, [1] * 6), net.const(-np.inf), out="infinite"))
    check_everywhere(net.model())


def test_pad_of_chosen_axes():
    net = net_of_x(2, 3, 4)
    net.opset = 18
    net.output(net.op("Pad", "x", ints(net, [1, 2, 3, 0]), "", ints(net, [2, -3])))
    check_everywhere(net.model())


def test_gathers():
    net = net_of_x(*SIZES)
    for index, (indices, axis) in enumerate(
        ((1, 1), ([1], 1), ([0, 1, 2], 1), ([-1, -2, -3], 2), ([[0, 2], [4, 6 - 10 + 10]][:1], 3), (-1, 3))
    ):
        net.output(net.op("Gather", "x", ints(net, indices), axis=axis, out=f"gather{index}"))
    check_everywhere(net.model())


def test_outputs_that_need_no_code():
    net = net_of_x(2, 3)
    constant = net.const([[1.0, -0.0, np.inf]], name="constant")
    net.output(net.op("Identity", "x", out="same"), net.op("Reshape", "x", ints(net, [6]), out="flat"))
    net.output(net.op("Identity", constant, out="fixed"))
    net.output(constant, shape=[1, 3])
    twice = net.op("Relu", "x")
    net.output(net.op("Identity", twice, out="once"), net.op("Identity", twice, out="again"))
    check_everywhere(net.model())


def test_movements_of_quantized_tensors_stay_integer():
    net = net_of_x(1, 6, 4, 4, dtype=np.int8)
    parts = net.ops("Split", net.dequantize("x", 0.1, 7), outs=["first", "second"], axis=1)
    first, second = (net.fake(part, 0.1, 7) for part in parts)
    padded = net.fake(net.op("Pad", first, ints(net, [0, 0, 1, 1, 0, 0, 1, 1])), 0.1, 7)
    turned = net.op("Transpose", padded, perm=[0, 2, 3, 1])
    net.output(net.quantize(turned, 0.1, 7, out="moved"), dtype=np.int8)
    joined = net.op("Concat", second, net.fake(net.op("Relu", second), 0.2, -20), axis=1)
    net.output(net.quantize(joined, 0.15, 3, out="joined"), dtype=np.int8)
    model = net.model()
    assert "quantize" not in " ".join(operators(optimized(model)))
    check_quantized(model)


def test_padding_of_codes_that_are_read_as_reals_later():
    """The padding value is a code here: 0 is not the real 0."""
    net = net_of_x(2, 3, dtype=np.int8)
    padded = net.op("Pad", "x", ints(net, [0, 1, 0, 1]), net.const(4, np.int8))
    net.output(net.quantize(net.op("Sigmoid", net.dequantize(padded, 0.1, 50)), 0.01, out="y"), dtype=np.int8)
    check_quantized(net.model())


def test_float64_is_moved_exactly():
    net = net_of_x(2, 3, dtype=np.float64)
    net.output(net.op("Transpose", "x", out="y"), dtype=np.float64)
    model = net.model()
    feeds = {"x": np.full((2, 3), 1 / 3)}
    found = c_outputs(model, feeds)
    assert_close(found, numpy_outputs(model, feeds), 0)
    np.testing.assert_array_equal(found["y"], feeds["x"].T)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_small_types_are_moved_as_they_lie_in_memory(kind: int):
    """Integers below 8 bits take a byte each; 16-bit floats are never widened."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    net = net_of_x(2, 3)
    net.opset = 25
    outs = [
        net.op("Transpose", "x", out="transpose"),
        net.op("Concat", "x", "x", axis=1, out="concat"),
        net.op("Pad", "x", ints(net, [0, 1, 1, 0]), out="pad"),
        net.op("Pad", "x", ints(net, [0, 1, 1, 0]), mode="edge", out="edge"),
        net.op("Slice", "x", ints(net, [-1]), ints(net, [-9]), ints(net, [1]), ints(net, [-1]), out="slice"),
        net.op("Tile", "x", ints(net, [2, 1]), out="tile"),
    ]
    net.output(*outs)
    model = net.plain_model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = kind
        value.type.tensor_type.ClearField("shape") if value.name != "x" else None
    compiled = compile_model(model)
    x = np.array([[1, 2, 3], [4, 5, 6]]).astype(dtype)
    stored = x if dtype.itemsize == 2 else x.astype(DType(dtype.name).numpy)
    found = compiled.run({"x": stored[None]}, sanitize=True)
    assert "wide" not in compiled.bundle.files[f"{compiled.bundle.name}_kernels.h"]
    expected = {
        "transpose": x.T,
        "concat": np.concatenate([x, x], 1),
        "pad": np.pad(x.astype(np.float32), ((0, 1), (1, 0))),
        "edge": np.pad(x.astype(np.float32), ((0, 1), (1, 0)), mode="edge"),
        "slice": x[:, ::-1],
        "tile": np.tile(x, (2, 1)),
    }
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name][0].astype(np.float32), array.astype(np.float32), err_msg=name)


def test_shapes_that_are_declared_need_not_be_constant():
    """The parameter inputs are never read."""
    net = net_of_x(2, 1, 3)
    cases = (
        ("Reshape", [3, 2], (3, 2)),
        ("Expand", [4, 2, 5, 3], (4, 2, 5, 3)),
        ("Tile", [1, 2, 3], (2, 2, 9)),
        ("Squeeze", [1], (2, 3)),
        ("Unsqueeze", [0, 4], (1, 2, 1, 3, 1)),
        ("Split", [1, 2], (2, 1, 1)),
    )
    feeds = {}
    for op_type, values, shape in cases:
        parameter = net.input(f"p_{op_type}", len(values), dtype=np.int64)
        feeds[parameter] = np.array(values)
        outs = [op_type, "rest"] if op_type == "Split" else [op_type]
        net.ops(op_type, "x", parameter, outs=outs, **({"axis": 2} if op_type == "Split" else {}))
        net.output(op_type, shape=shape)
    net.output("rest", shape=(2, 1, 2))
    model = net.plain_model()
    check_everywhere(model, random_feeds(model) | feeds)


def test_parts_without_elements():
    net = net_of_x(2, 3)
    net.output(*net.ops("Split", "x", ints(net, [0, 2, 1]), outs=["none", "a", "b"], axis=1))
    net.output(net.op("Concat", net.const(np.zeros((2, 0))), "x", "none", axis=1, out="joined"))
    net.output(net.op("Concat", net.const(np.zeros((0, 3))), net.const(np.zeros((0, 2))), axis=1, out="empty"))
    net.output(net.op("Gather", "x", ints(net, []), axis=1, out="nothing"))
    compiled = compile_model(net.model())
    feeds = random_feeds(net.model())
    found = compiled.run({"x": feeds["x"][None]}, sanitize=True)
    np.testing.assert_array_equal(found["joined"][0], feeds["x"])
    assert {n: a.shape[1:] for n, a in found.items() if not a.size} == {
        "none": (2, 0),
        "empty": (0, 5),
        "nothing": (2, 0),
    }


def test_dropout_and_its_mask():
    net = net_of_x(2, 3)
    net.opset = 13
    net.output(net.ops("Dropout", "x", net.const(0.5), outs=["y", "mask"])[0])
    net.output("mask", dtype=bool)
    net.output(net.op("Dropout", "x", net.const(0.0), net.const(True, bool), out="kept"))
    check_everywhere(net.model())
    net.output(net.op("Dropout", "x", net.const(0.5), net.const(True, bool), out="random"))
    with pytest.raises(UnsupportedError, match="must not be in training mode"):
        optimized(net.model())


def test_halves_that_are_computed_meet_stored_ones():
    """16-bit floats are moved as they are stored, but among float32 ones they are float32, too."""
    net = net_of_x(2, 3, dtype=np.float16)
    net.output(net.op("Concat", "x", net.op("Relu", "x"), axis=0, out="y"), dtype=np.float16)
    (concat,) = (node for node in imported(net.model()).nodes if node.op.name == "concat")
    assert {value.type.dtype for value in concat.inputs if value is not None} == {DType.FLOAT32}


def bad_models() -> dict[str, Net]:
    nets = {}
    for name, op_type, values, attributes in (
        ("split sums to more", "Split", [[2, 3]], {"axis": 1}),
        ("index out of range", "Gather", [3], {"axis": 1}),
        ("reshape to another count", "Reshape", [[4, 2]], {}),
        ("two unknown sizes", "Reshape", [[-1, -1]], {}),
        ("too few pads", "Pad", [[1, 1]], {}),
        ("repeats of another rank", "Tile", [[2]], {}),
        ("step zero", "Slice", [[0], [2], [1], [0]], {}),
        ("axis beyond the rank", "Squeeze", [[7]], {}),
        ("axis that is not 1", "Squeeze", [[1]], {}),
        ("permutation of another rank", "Transpose", [], {"perm": [0, 2, 1]}),
        ("axis of concat", "Concat", [], {"axis": 2}),
        ("negative sizes", "Reshape", [[-2, -3]], {}),
        ("negative repeats", "Tile", [[-1, 1]], {}),
        ("a size that does not broadcast", "Expand", [[4, 3]], {}),
        ("a negative size", "Expand", [[-2, 1, 3]], {}),
        ("axis beyond the matrix", "Flatten", [], {"axis": 4}),
        ("axis twice", "Unsqueeze", [[0, -4]], {}),
        ("axes twice", "Slice", [[0, 1], [2, 2], [0, -2]], {}),
    ):
        nets[name] = net = net_of_x(2, 3)
        outs = ["y", "z"][: 2 if op_type == "Split" else 1]
        net.ops(op_type, "x", *(ints(net, v) for v in values), outs=outs, **attributes)
        net.outputs = []
        net.output(*outs, shape=[1, 1])
    return nets


def test_expansions_that_fit_no_board_are_refused():
    net = net_of_x(2, 3)
    net.output(net.op("Expand", "x", ints(net, [2**62, 2, 3]), out="y"))
    with pytest.raises(DoesNotFitError):
        optimized(net.plain_model())


@pytest.mark.parametrize("name", bad_models())
def test_inconsistent_models_are_refused(name: str):
    net = bad_models()[name]
    with pytest.raises(McugenError) as error:
        c_outputs(net.plain_model(), random_feeds(net.plain_model()))
    assert error.value.exit_code in (3, 4), error.value


# ---------------------------------------------------------------------------------------------------- blocks


def test_depth_to_space_and_back():
    net = net_of_x(2, 12, 4, 6)
    for mode in ("DCR", "CRD"):
        net.output(net.op("DepthToSpace", "x", blocksize=2, mode=mode, out=mode))
    net.output(net.op("SpaceToDepth", "x", blocksize=2, out="depth"))
    check_everywhere(net.model())


@pytest.mark.parametrize(("op_type", "size"), [("DepthToSpace", 5), ("SpaceToDepth", 5), ("DepthToSpace", 0)])
def test_blocks_that_are_not_whole_are_refused(op_type: str, size: int):
    net = net_of_x(2, 12, 4, 6)
    net.output(net.op(op_type, "x", blocksize=size), shape=(2, 12, 4, 6))
    with pytest.raises(McugenError):
        imported(net.plain_model())


@pytest.mark.parametrize("perm", [[0, 2, 3, 1], [0, 3, 1, 2]])
def test_a_single_element_is_of_any_layout(perm: list[int]):
    """A pixel of one channel is read by a convolution, and by others that want it as it was."""
    net = net_of_x(1, 1, 2, 2)
    kernel = net.const(np.full((1, 1, 2, 2), 0.5))
    a, b = net.op("Conv", "x", kernel), net.op("Conv", net.op("Tanh", "x"), kernel)
    summed = net.op("Mul", a, net.op("Transpose", net.op("Exp", b), perm=perm))
    net.output(
        net.op("Concat", summed, net.op("Relu", a), axis=3, out="y"),
        net.op("Conv", summed, net.const([[[[2.0]]]]), out="z"),
    )
    check_everywhere(net.model())


def test_a_cube_may_meet_itself_in_another_layout():
    net = net_of_x(1, 3, 3, 3)
    kernel = net.const(np.random.default_rng(0).standard_normal((3, 3, 1, 1)))
    y = net.op("Conv", "x", kernel)
    turned = net.op("Transpose", y, perm=[0, 2, 3, 1])
    net.output(net.op("Add", turned, y, out="sum"), net.op("Concat", turned, y, axis=1, out="joined"))
    check_everywhere(net.model())


# ---------------------------------------------------------------------------------------------------- zero-copy


def moves(model: onnx.ModelProto) -> list[bool]:
    """Of each move of the compiled model whether it vanished; the C calls those that did not, and is right."""
    check_everywhere(model)
    compiled = compile_model(model)
    found = [i.moves_nothing for i in compiled.program.instrs if i.kernel == MOVE]
    source = compiled.bundle.files["net.c"]
    layers = len(compiled.bundle.layers)
    assert source.count("    move_") == found.count(False)
    assert layers == len(compiled.program.instrs) - sum(found) == source.count("MCUGEN_ON_LAYER(")
    return found


def test_parts_are_computed_where_they_are_joined():
    net = net_of_x(1, 64)
    parts = [net.op(op, "x") for op in ("Exp", "Sigmoid", "Softmax")]
    net.output(net.op("Concat", *parts, axis=1, out="y"))
    assert moves(net.model()) == [True] * 3
    assert compile_model(net.model()).program.arena_size <= 4 * (64 + 3 * 64)


def test_parts_are_read_where_they_were():
    net = net_of_x(4, 32)
    x = net.op("Softmax", "x")
    for part, op in zip(net.ops("Split", x, outs=["a", "b"], axis=0), ("Exp", "Neg"), strict=True):
        net.output(net.op(op, part, out=op))
    net.output(net.op("Tanh", net.op("Slice", x, ints(net, [1]), ints(net, [3])), out="middle"))
    assert moves(net.model()) == [True] * 3


def test_joined_rows_of_pictures_are_not_copied():
    """Channels last, their rows follow each other."""
    net = net_of_x(1, 4, 6, 6)
    kernel = net.const(np.random.default_rng(0).standard_normal((4, 4, 1, 1)))
    top, bottom = net.op("Conv", "x", kernel), net.op("Conv", net.op("Relu", "x"), kernel)
    y = net.op("Conv", net.op("Concat", top, bottom, axis=2), kernel)
    net.output(*net.ops("Split", y, outs=["upper", "lower"], axis=2))
    assert moves(net.model()) == [True] * 4


def test_parts_of_an_input_and_wholes_of_inputs():
    net = net_of_x(4, 8)
    net.input("z", 4, 8)
    net.output(*net.ops("Split", "x", outs=["a", "b"], axis=0))
    net.output(net.op("Concat", "z", "x", axis=0, out="y"))
    check_everywhere(net.model())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_part_that_others_read_too(is_late: bool):
    net = net_of_x(1, 32)
    a, b = net.op("Exp", "x"), net.op("Neg", "x")
    readers = [lambda: net.op("Softmax", a, out="other"), lambda: net.op("Concat", a, b, axis=1, out="y")]
    net.output(*(read() for read in (readers[::-1] if is_late else readers)))
    found = moves(net.model())
    assert is_late or found == [True, True]


def test_the_same_part_twice_is_copied_once():
    net = net_of_x(1, 32)
    a = net.op("Exp", "x")
    net.output(net.op("Softmax", net.op("Concat", a, a, axis=1), out="y"))
    assert sorted(moves(net.model())) == [False, True]


def test_a_part_of_two_wholes_is_copied_once():
    net = net_of_x(1, 32)
    a, b = net.op("Exp", "x"), net.op("Neg", "x")
    net.output(net.op("Softmax", net.op("Concat", a, b, axis=1), out="y"))
    net.output(net.op("Softmax", net.op("Concat", b, a, axis=1), out="z"))
    found = moves(net.model())
    assert len(found) == 4 and found.count(True) == 2


def test_a_part_that_is_an_output_too():
    net = net_of_x(1, 32)
    a, b = net.op("Exp", "x", out="a"), net.op("Neg", "x")
    net.output(a, net.op("Concat", a, b, axis=1, out="y"))
    check_everywhere(net.model())


def test_parts_that_nobody_may_overwrite_are_copied():
    """What is computed in place of a part must not change what others read of the whole."""
    net = net_of_x(4, 32)
    x = net.op("Softmax", "x")
    a, _ = net.ops("Split", x, outs=["a", "b"], axis=0)
    doubled = net.op("Exp", net.op("Neg", net.op("Tanh", a)))
    net.output(net.op("Add", net.op("Concat", doubled, a, axis=0), x, out="y"))
    check_everywhere(net.model())


@pytest.mark.parametrize(("start", "vanishes"), [(4, True), (1, False), (2, False)])
def test_parts_begin_at_words(start: int, vanishes: bool):
    net = net_of_x(1, 64, dtype=np.int8)
    x = net.op("Abs", "x")
    part = net.op("Slice", x, ints(net, [start]), ints(net, [start + 20]), ints(net, [1]))
    net.output(net.op("Neg", part, out="y"), net.op("Sign", x, out="z"), dtype=np.int8)
    assert moves(net.model()) == [vanishes]


def test_constant_parts_come_from_flash():
    net = net_of_x(1, 32)
    one = net.const(np.ones((1, 32)))
    net.output(net.op("Concat", one, net.op("Exp", "x"), axis=1, out="y"))
    net.output(net.op("Concat", net.op("Neg", "x"), one, axis=1, out="z"))
    assert moves(net.model()) == [False, True, True, False]


def test_what_does_not_lie_together_is_copied():
    net = net_of_x(4, 8)
    net.output(net.op("Concat", net.op("Exp", "x"), net.op("Neg", "x"), axis=1, out="joined"))
    net.output(*net.ops("Split", "x", outs=["a", "b"], axis=1))
    net.output(net.op("Slice", "x", ints(net, [0]), ints(net, [8]), ints(net, [0]), ints(net, [2]), out="step"))
    assert moves(net.model()) == []
    kernels = [i.kernel for i in compile_model(net.model()).program.instrs]
    assert kernels.count("copy") == 5


def test_joined_codes_of_one_scale_are_not_copied():
    net = net_of_x(1, 4, 4, 8, dtype=np.int8)
    x = net.dequantize("x", 0.0513, 3)
    kernel = net.dequantize(net.const(np.arange(-8, 8).reshape(4, 4, 1, 1), np.int8), 0.0217)
    parts = [
        net.fake(net.op("Conv", source, kernel), 0.0431, -5) for source in (x, net.fake(net.op("Relu", x), 0.0431))
    ]
    joined = net.fake(net.op("Concat", *parts, axis=2), 0.0431, -5)
    net.output(net.quantize(net.op("Conv", joined, kernel), 0.0431, -5, out="y"), dtype=np.int8)
    check_quantized(net.model())
    found = [i.moves_nothing for i in compile_model(net.model()).program.instrs if i.kernel == MOVE]
    assert found == [True, True]


def test_shapes_alone_take_no_instruction():
    net = net_of_x(2, 3, 4)
    net.input("z", 1, 3, 1)
    net.output(net.op("Reshape", "x", ints(net, [6, 4]), out="reshaped"), net.op("Flatten", "x", out="flat"))
    net.output(net.op("Squeeze", "z", out="squeezed"), net.op("Unsqueeze", "z", ints(net, [0]), out="unsqueezed"))
    check_everywhere(net.model())
    program = compile_model(net.model()).program
    assert program.instrs == []
    assert program.arena_size == 96 + 16


def test_sizes_known_at_run_time_only_keep_their_copies():
    net = net_of_x("n", 4)
    net.output(net.op("Concat", net.op("Exp", "x"), net.op("Neg", "x"), axis=0, out="y"))
    program = compile_model(net.model(), options=CompileOptions(dims={"n": (1, 5)})).program
    assert [i.kernel for i in program.instrs].count("copy") == 2
