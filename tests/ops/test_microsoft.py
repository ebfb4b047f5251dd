# SPDX-License-Identifier: Apache-2.0
"""Operators of com.microsoft: as ONNX Runtime computes them, over their attributes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from node_cases import RANDOM, Case, Fixed, Operand, agrees, positive, real, whole
from onnx import AttributeProto
from onnx_models import MICROSOFT, Net, assert_close, c_outputs, imported, numpy_outputs, onnxruntime_outputs
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

from mcugen.core.errors import UnsupportedError
from mcugen.ops.onnx_node import BUILT_IN

X = real(2, 3, 8)

ACTIVATIONS = {
    "gelu": Case("Gelu", [X]),
    "bias gelu": Case("BiasGelu", [X, Fixed(real(8))]),
    "bias gelu of activations": Case("BiasGelu", [X, real(8)]),
    "fast gelu": Case("FastGelu", [X]),
    "fast gelu with bias": Case("FastGelu", [X, Fixed(real(8))]),
    "quick gelu": Case("QuickGelu", [X]),
    "quick gelu, alpha": Case("QuickGelu", [X], {"alpha": 0.5}),
    "scaled silu": Case("ScaledSiLU", [X], {"alpha": 0.7}),
    "scaled silu by an input": Case("ScaledSiLU", [X, np.asarray(1.5, np.float32)]),
    "gated add": Case("GatedAdd", [X, real(2, 3, 8), real(2, 3, 1)]),
    "linear attention gate": Case("LinearAttentionGate", [X, real(8), real(8)]),
    "linear attention gate, beta": Case(
        "LinearAttentionGate", [X, real(8), real(8), real(2, 3, 8)], outputs=("float32", "float32")
    ),
    "pre mix": Case("HyperConnectionPreMix", [real(2, 3, 4, 8), real(2, 3, 4)], {"reduction_scale": 0.5}),
    "pre mix, flat": Case("HyperConnectionPreMix", [real(2, 3, 32), real(2, 3, 32)], {"num_branches": 4}),
    "pre mix, features": Case("HyperConnectionPreMix", [real(2, 3, 4, 8), real(2, 3, 4, 8)]),
    "post mix": Case("HyperConnectionPostMix", [real(2, 3, 4, 8), X, real(2, 3, 4, 1)]),
    "post mix, mixed": Case("HyperConnectionPostMix", [real(2, 3, 4, 8), X, real(2, 3, 4), real(2, 3, 4, 4)]),
    "post mix, flat": Case(
        "HyperConnectionPostMix", [real(2, 3, 32), X, real(2, 3, 4, 8), real(2, 3, 4, 4)], {"num_branches": 4}
    ),
}

SUM = ("float32", "", "", "float32")
NORMALIZATIONS = {
    "skip": Case("SkipLayerNormalization", [X, real(2, 3, 8), Fixed(real(8)), Fixed(real(8))], {"epsilon": 1e-3}),
    "skip, default epsilon": Case("SkipLayerNormalization", [X, real(2, 3, 8), Fixed(real(8))]),
    "skip, bias and sum": Case(
        "SkipLayerNormalization", [X, real(3, 8), Fixed(real(8)), Fixed(real(8)), Fixed(real(8))], outputs=SUM
    ),
    "skip broadcast": Case("SkipLayerNormalization", [X, real(1, 3, 8), real(8), real(8)]),
    "skip simplified": Case("SkipSimplifiedLayerNormalization", [X, real(2, 3, 8), Fixed(real(8))], {"epsilon": 1e-2}),
    "skip simplified, bias and sum": Case(
        "SkipSimplifiedLayerNormalization", [real(6, 8), real(6, 8), Fixed(real(8)), Fixed(real(8))], outputs=SUM
    ),
    "skip, halves": Case(
        "SkipLayerNormalization",
        [X.astype(np.float16), real(2, 3, 8).astype(np.float16), Fixed(np.ones(8, np.float16))],
        outputs=("float16", "", "", "float16"),
        relative=2e-3,
    ),
    "simplified": Case("SimplifiedLayerNormalization", [X, Fixed(real(8))], {"epsilon": 1e-2}, domain=""),
    "simplified, axis": Case("SimplifiedLayerNormalization", [X, real(3, 8)], {"axis": 1}, domain=""),
    "gated": Case("GatedRMSNorm", [X, Fixed(real(4)), real(2, 3, 8)]),
    "gated by a sigmoid": Case("GatedRMSNorm", [X, real(8), real(2, 3, 8)], {"activation": "sigmoid", "epsilon": 0.1}),
    "branches": Case("BranchwiseRMSNorm", [real(2, 4, 8), real(8)], {"epsilon": 0.01}),
    "flat branches": Case("BranchwiseRMSNorm", [real(2, 32), real(32)], {"num_branches": 4}),
    "branches without scale": Case("BranchwiseRMSNorm", [real(2, 4, 8)]),
    "branches, scaled each": Case("BranchwiseRMSNorm", [real(2, 4, 8), real(4, 8)]),
    "engram": Case("EngramGate", [real(2, 3, 4, 8), real(2, 3, 4, 8), X, real(4, 8), real(4, 8)]),
    "engram, normed": Case(
        "EngramGate",
        [real(2, 3, 4, 8), real(2, 3, 4, 8), X, real(4, 8), real(4, 8), real(4, 8)],
        {"epsilon": 0.01},
        ("float32", "float32"),
    ),
}

IDS, SEGMENTS = whole(RANDOM.integers(0, 9, (2, 3))), whole(RANDOM.integers(0, 2, (2, 3)))
TABLES = [Fixed(real(9, 8)), Fixed(real(5, 8)), Fixed(real(2, 8)), Fixed(real(8)), Fixed(real(8))]
EMBEDDINGS = {
    "all": Case("EmbedLayerNormalization", [IDS, SEGMENTS, *TABLES], outputs=("float32", "int32")),
    "no segments": Case(
        "EmbedLayerNormalization",
        [IDS, None, *TABLES[:2], None, *TABLES[3:]],
        {"epsilon": 1e-2},
        outputs=("float32", "int32", "float32"),
    ),
    "mask": Case(
        "EmbedLayerNormalization",
        [IDS, SEGMENTS, *TABLES, whole([[1, 1, 0], [1, 1, 1]])],
        {"mask_index_type": 1},
        ("float32", "int32"),
    ),
    "positions": Case(
        "EmbedLayerNormalization", [IDS, SEGMENTS, *TABLES, None, whole([[2, 0, 1]])], outputs=("float32", "int32")
    ),
}

IMAGE, FILTERS = real(1, 3, 6, 6), Fixed(real(4, 3, 3, 3))
FUSED = {
    **{
        f"conv {name} {parameters}": Case(
            "FusedConv",
            [IMAGE, FILTERS, Fixed(real(4))],
            {"activation": name, "pads": [1, 1, 1, 1], **({"activation_params": parameters} if parameters else {})},
        )
        for name, parameters in (
            ("Relu", []),
            ("Tanh", []),
            ("Sigmoid", []),
            ("LeakyRelu", [0.2]),
            ("Clip", [-0.5, 0.5]),
            ("HardSigmoid", [0.3, 0.4]),
        )
    },
    "conv": Case("FusedConv", [IMAGE, FILTERS], {"strides": [2, 2], "dilations": [2, 2]}),
    "conv plus": Case(
        "FusedConv", [IMAGE, FILTERS, Fixed(real(4)), real(1, 4, 4, 4)], {"activation": "Relu", "kernel_shape": [3, 3]}
    ),
    **{
        f"gemm {name}": Case("FusedGemm", [real(3, 5), Fixed(real(5, 4)), Fixed(real(4))], {"activation": name, **more})
        for name, more in (
            ("Relu", {}),
            ("Tanh", {}),
            ("Sigmoid", {}),
            ("Softplus", {}),
            ("Softsign", {}),
            ("LeakyRelu", {"activation_alpha": 0.3}),
            ("Elu", {"activation_alpha": 0.5}),
            ("ThresholdedRelu", {"activation_alpha": 0.5}),
            ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        )
    },
    "gemm": Case(
        "FusedGemm",
        [real(5, 3), Fixed(real(4, 5)), Fixed(real(3, 1))],
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "Relu"},
    ),
    "matmul": Case("FusedMatMul", [real(2, 3, 4), real(2, 5, 4)], {"transB": 1, "alpha": 0.5}),
    "matmul, left": Case("FusedMatMul", [real(2, 4, 3), Fixed(real(4, 5))], {"transA": 1}),
    "matmul, vector": Case("FusedMatMul", [real(2, 4, 3), real(3)], {"transB": 1}),
    "matmul, batches": Case(
        "FusedMatMul", [real(3, 2, 4), real(4, 2, 5)], {"transBatchA": 1, "transBatchB": 1, "alpha": 2.0}
    ),
    "matmul, all": Case(
        "FusedMatMul",
        [real(4, 2, 6, 3), real(5, 2, 6, 4)],
        {"transA": 1, "transB": 1, "transBatchA": 1, "transBatchB": 1},
    ),
    "transposed matmul": Case("TransposeMatMul", [real(4, 3), real(5, 4)], {"transA": 1, "transB": 1, "alpha": 3.0}),
    "dynamic pads": Case(
        "ConvTransposeWithDynamicPads",
        [IMAGE, Fixed(real(3, 2, 3, 3)), Fixed(whole([1, 0, 0, 1], dtype=np.int64)), Fixed(real(2))],
        {"strides": [2, 2], "output_padding": [1, 1]},
    ),
}


def attention(*more: Operand, width: int = 24, **attributes: object) -> Case:
    """Of two samples of three tokens, eight features and two heads."""
    outputs = attributes.pop("outputs", ("float32",))
    operands = [X, Fixed(real(8, width)), Fixed(real(width)), *more]
    return Case("Attention", operands, {"num_heads": 2, **attributes}, outputs)


RAW, THREE = whole([[1, 1, 0], [0, 1, 1]]), whole(RANDOM.integers(0, 2, (2, 3, 3)))
BOTH = ("float32", "float32")
ATTENTIONS = {
    "plain": attention(),
    "computed weights": Case("Attention", [X, real(8, 24), real(24)], {"num_heads": 2}),
    "scale": attention(scale=0.1),
    "present": attention(outputs=BOTH),
    "causal": attention(unidirectional=1),
    "sizes": attention(width=20, qkv_hidden_sizes=[8, 8, 4]),
    "raw mask": attention(RAW),
    "constant mask": attention(Fixed(RAW)),
    "raw mask, causal": attention(whole([[1, 1, 0], [1, 0, 1]]), unidirectional=1, mask_filter_value=-50.0),
    "three axes": attention(THREE),
    "three axes, causal": attention(THREE, unidirectional=1, mask_filter_value=-3.0),
    "ends": attention(whole([2, 3])),
    "ends and starts": attention(whole([3, 2, 1, 0]), mask_filter_value=-5.0),
    "dummy": attention(whole([[1], [1]])),
    "past": attention(None, real(2, 2, 2, 4, 4), outputs=BOTH),
    "past, causal, mask": attention(
        whole(RANDOM.integers(0, 2, (2, 7))), real(2, 2, 2, 4, 4), unidirectional=1, outputs=BOTH
    ),
    "bias": attention(None, None, real(2, 2, 3, 3)),
    "bias for all": attention(RAW, None, real(1, 1, 3, 3)),
}


def heads(
    q: Operand, k: Operand, v: Operand, *more: Operand, outputs: Sequence[str] = ("float32",), **attributes: object
) -> Case:
    return Case("MultiHeadAttention", [q, k, v, *more], {"num_heads": 2, **attributes}, outputs)


K, V = real(2, 5, 8), real(2, 5, 12)
MULTI_HEAD = {
    "cross": heads(X, K, V),
    "bias": heads(X, K, V, Fixed(real(28))),
    "lengths": heads(X, K, V, None, whole([2, 5])),
    "mask": heads(X, K, V, None, whole([[1, 1, 0, 1, 1], [1, 0, 0, 0, 0]]), scale=0.3),
    "mask of three axes": heads(X, K, V, None, whole(RANDOM.integers(0, 2, (2, 3, 5)))),
    "added": heads(X, K, V, None, None, real(1, 2, 3, 5)),
    "added to all": heads(X, K, V, None, whole([[1, 1, 0, 1, 1], [1, 0, 0, 0, 0]]), real(2, 1, 3, 5)),
    "causal": heads(X, real(2, 3, 8), real(2, 3, 8), unidirectional=1),
    "past": heads(
        X, real(2, 3, 8), real(2, 3, 8), None, None, None, real(2, 2, 4, 4), real(2, 2, 4, 4), outputs=("float32",) * 3
    ),
    "past, causal": heads(
        X,
        real(2, 3, 8),
        real(2, 3, 8),
        Fixed(real(24)),
        None,
        None,
        real(2, 2, 4, 4),
        real(2, 2, 4, 4),
        unidirectional=1,
        outputs=("float32",) * 3,
    ),
    "present": heads(X, K, real(2, 5, 8), outputs=("float32",) * 3),
    "scores": heads(X, K, real(2, 5, 8), outputs=("float32",) * 4),
    "by heads": heads(X, real(2, 2, 5, 4), real(2, 2, 5, 4)),
    "by heads, bias": heads(X, real(2, 2, 5, 4), real(2, 2, 5, 4), Fixed(real(24))),
}


_TOKEN = [real(2, 1, 8), real(2, 1, 8), real(2, 1, 8), None, None, None, real(2, 2, 6, 4), real(2, 2, 6, 4)]
MULTI_HEAD |= {
    "buffer": Case("MultiHeadAttention", [*_TOKEN, Fixed(whole([3]))], {"num_heads": 2}, ("float32",) * 3),
    "any place in a buffer": Case("MultiHeadAttention", [*_TOKEN, whole([3])], {"num_heads": 2}, ("float32",) * 3),
}


def decoder(past: Operand, *more: Operand, outputs: int = 3, **attributes: object) -> Case:
    """One token of two samples, two heads of four elements, into a buffer of six keys."""
    mask, bias, projection = (*more, None, None, None)[:3]
    tokens = [real(2, 1, 8), real(2, 1, 8), real(2, 1, 8)]
    operands = [*tokens, mask, bias, real(2, 2, 6, 4), real(2, 2, 6, 4), past, None, None, projection]
    options = {"num_heads": 2, "past_present_share_buffer": 1, **attributes}
    return Case("DecoderMaskedMultiHeadAttention", operands, options, ("float32",) * outputs)


DECODER = {
    "plain": decoder(Fixed(whole([4]))),
    "first": decoder(Fixed(whole([0]))),
    "last": decoder(Fixed(whole([5]))),
    "any": decoder(whole([3])),
    "all": decoder(
        *(Fixed(whole([4])), whole(RANDOM.integers(0, 2, (2, 5))), real(1, 2, 1, 5), Fixed(real(24))),
        outputs=4,
        output_qk=1,
        scale=0.7,
    ),
    "cross": Case(
        "DecoderMaskedMultiHeadAttention",
        [real(2, 1, 8), real(2, 2, 5, 4), real(2, 2, 5, 4), whole(RANDOM.integers(0, 2, (2, 5)))],
        {"num_heads": 2},
    ),
}


def groups(
    length: int,
    past: int,
    lengths: Operand,
    total: int,
    *more: Operand,
    batch: int = 1,
    packed: bool = False,
    outputs: int = 3,
    **attributes: object,
) -> Case:
    """Four heads of queries, two of keys and values, of 16 elements.

    A past whose length is known at run time only ends with zeros: what follows the new tokens in the present is not
    specified, zeros in ONNX Runtime.
    """
    q, k, v = real(batch, length, 64), real(batch, length, 32), real(batch, length, 32)
    qkv = [real(batch, length, 128), None, None] if packed else [q, k, v]
    held: list[Operand] = [None, None]
    if past:
        held = [real(batch, 2, past, 16), real(batch, 2, past, 16)]
        for array in held if isinstance(lengths, np.ndarray) else ():
            for sample, last in zip(array, lengths, strict=True):
                sample[:, last + 1 - length :] = 0
    operands = [*qkv, *held, lengths, Fixed(whole(total)), *more]
    options = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return Case("GroupQueryAttention", operands, options, ("float32",) * outputs)


COS, SIN = Fixed(real(12, 8)), Fixed(real(12, 8))
GROUPS = {
    "prompt": groups(3, 0, Fixed(whole([2])), 3),
    "prompt of two": groups(3, 0, whole([2, 2]), 3, batch=2),
    "packed": groups(3, 0, Fixed(whole([2])), 3, packed=True),
    "scale": groups(3, 0, Fixed(whole([2])), 3, scale=0.2),
    "softcap": groups(3, 0, Fixed(whole([2])), 3, softcap=0.5),
    "smooth": groups(3, 0, Fixed(whole([2])), 3, smooth_softmax=1),
    "sink": groups(3, 0, Fixed(whole([2])), 3, None, None, None, None, Fixed(real(4))),
    "window": groups(5, 0, Fixed(whole([4])), 5, local_window_size=2),
    "bias": groups(3, 0, Fixed(whole([2])), 3, None, None, None, real(1, 4, 3, 3)),
    "both ways": groups(3, 0, Fixed(whole([2])), 3, causal=0),
    "rotary": groups(3, 0, Fixed(whole([2])), 3, COS, SIN, do_rotary=1),
    "rotary, interleaved": groups(3, 0, Fixed(whole([2])), 3, COS, SIN, do_rotary=1, rotary_interleaved=1),
    "next token": groups(1, 4, Fixed(whole([4])), 5),
    "next token in a buffer": groups(1, 9, Fixed(whole([4])), 5, COS, SIN, do_rotary=1),
    "any next token": groups(1, 9, whole([4]), 5, COS, SIN, do_rotary=1),
    "any next tokens of two": groups(1, 9, whole([4, 6]), 7, COS, SIN, batch=2, do_rotary=1),
    "window over the past": groups(1, 9, whole([7]), 8, local_window_size=3),
    "several next tokens": groups(3, 9, whole([6]), 7, COS, SIN, do_rotary=1),
    "several next tokens, window and bias": groups(
        3, 9, whole([6]), 7, None, None, None, real(1, 1, 3, 7), local_window_size=3, softcap=2.0
    ),
    "prompt into a buffer": groups(3, 9, Fixed(whole([2])), 3),
    "scores": groups(
        3, 0, Fixed(whole([2])), 3, None, None, None, real(1, 4, 3, 3), qk_output=1, softcap=0.5, outputs=4
    ),
    "shares": groups(3, 0, Fixed(whole([2])), 3, qk_output=2, outputs=4),
    "positions": groups(1, 9, Fixed(whole([4])), 5, COS, SIN, whole([[7]], dtype=np.int64), do_rotary=1),
    "both ways, past": groups(2, 9, whole([5]), 6, causal=0),
}

POSITIONS = whole([[3, 0, 5], [1, 2, 4]], dtype=np.int64)
CACHES = [Fixed(real(12, 2)), Fixed(real(12, 2))]
ROTARY = {
    "three axes": Case("RotaryEmbedding", [X, POSITIONS, *CACHES]),
    "from a position": Case("RotaryEmbedding", [X, whole([4], dtype=np.int64), *CACHES]),
    "interleaved": Case("RotaryEmbedding", [X, POSITIONS, *CACHES], {"interleaved": 1}),
    "four axes": Case("RotaryEmbedding", [real(2, 2, 3, 4), POSITIONS, *CACHES]),
    "a part of a head": Case(
        "RotaryEmbedding", [real(2, 3, 16), POSITIONS, *CACHES], {"num_heads": 2, "rotary_embedding_dim": 4}
    ),
    "a part of a head, interleaved": Case(
        "RotaryEmbedding",
        [real(2, 3, 16), POSITIONS, *CACHES],
        {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 1},
    ),
}
THREE_POSITIONS = whole(RANDOM.integers(0, 12, (3, 2, 3)), dtype=np.int64)
WIDE_CACHES = [Fixed(real(12, 6)), Fixed(real(12, 6))]
for _layout, _interleaved in ((0, 0), (1, 0), (0, 1), (1, 1)):
    ROTARY[f"sections {_layout} {_interleaved}"] = Case(
        "MRotaryEmbedding",
        [real(2, 3, 24), THREE_POSITIONS, *WIDE_CACHES],
        {"num_heads": 2, "mrope_section": [2, 2, 2], "mrope_layout": _layout, "interleaved": _interleaved},
    )
ROTARY["uneven sections"] = Case(
    "MRotaryEmbedding", [real(2, 2, 3, 12), THREE_POSITIONS, *WIDE_CACHES], {"mrope_section": [3, 1, 2]}
)


def linear(rule: str, queries: int = 2, kv: int = 2, length: int = 3, past: bool = True, **more: object) -> Case:
    """Of keys of 4, values of 3 elements."""
    flat = bool(more.pop("flat", False))
    q, k, v = real(2, length, queries * 4), real(2, length, kv * 4), real(2, length, kv * 3)
    decay = -positive(2, length, kv if flat else kv * 4) if rule.startswith("gated") else None
    beta = positive(2, length, 1 if flat else kv) if rule.endswith("delta") else None
    operands = [q, k, v, real(2, kv, 4, 3) if past else None, decay, beta]
    options = {"q_num_heads": queries, "kv_num_heads": kv, "update_rule": rule, **more}
    return Case("LinearAttention", operands, options, BOTH)


RECURRENCES = {
    **{rule: linear(rule) for rule in ("linear", "gated", "delta", "gated_delta")},
    "one decay a head": linear("gated_delta", flat=True),
    "no past": linear("gated_delta", past=False, scale=0.3),
    "more queries": linear("gated", queries=4),
    "fewer queries": linear("gated_delta", queries=1, kv=2),
    "one step": linear("gated_delta", length=1),
    "conv": Case("CausalConvWithState", [real(2, 4, 6), Fixed(real(4, 1, 3))], outputs=BOTH),
    "conv, all": Case(
        "CausalConvWithState",
        [real(2, 4, 6), Fixed(real(4, 1, 3)), Fixed(real(4)), real(2, 4, 4)],
        {"dilation": 2, "activation": "silu"},
        BOTH,
    ),
    "conv, one step": Case(
        "CausalConvWithState",
        [real(1, 4, 1), Fixed(real(4, 1, 3)), Fixed(real(4)), real(1, 4, 2)],
        {"activation": "swish"},
        BOTH,
    ),
    "conv, channels last": Case(
        "CausalConvWithState",
        [real(2, 6, 2, 2), Fixed(real(4, 1, 3)), Fixed(real(4)), real(2, 2, 2, 2)],
        {"channels_last": 1},
        BOTH,
    ),
}

BOXES = np.float32([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [-0.2, 0.3, 0.5, 1.2], [0.8, 0.6, 0.2, 0.1]])
PICTURES = real(2, 3, 5, 7)


def crop(rows: int, columns: int, **attributes: object) -> Case:
    operands = [PICTURES, BOXES, whole([0, 1, 1, 0]), Fixed(whole([rows, columns]))]
    return Case("CropAndResize", operands, attributes)


def masked(shape: tuple[int, ...], mask: tuple[int, ...], *kernel: int, **attributes: object) -> Case:
    hidden = whole(RANDOM.random(mask) < 0.8)
    return Case("MaxpoolWithMask", [real(*shape), hidden], {"kernel_shape": kernel, **attributes})


GRID = np.asarray(RANDOM.uniform(-1.2, 1.2, (2, 4, 3, 2)), np.float32)
IMAGES = {
    "crops": crop(3, 4),
    "crops of one pixel": crop(1, 1, extrapolation_value=7.0),
    "nearest crops": crop(4, 5, mode="nearest"),
    "masked 1": masked((2, 3, 9), (1, 1, 9), 3, strides=[2], pads=[1, 1]),
    "masked 2": masked((1, 4, 5, 6), (1, 1, 5, 6), 3, 2, pads=[1, 1, 1, 1]),
    "masked by channel": masked((1, 4, 5, 6), (1, 4, 5, 6), 2, 2, strides=[2, 2]),
    "masked 3": masked((1, 2, 4, 5, 6), (1, 2, 4, 5, 6), 2, 2, 3, pads=[1, 1, 0, 1, 0, 1]),
    "masked, the same above": masked((1, 1, 5, 6), (1, 1, 5, 6), 3, 2, auto_pad="SAME_UPPER"),
    "masked, the same below": masked((1, 1, 5, 6), (1, 1, 5, 6), 2, 3, auto_pad="SAME_LOWER", strides=[2, 2]),
    **{
        f"grid {mode} {padding} {corners}": Case(
            "GridSample", [PICTURES, GRID], {"mode": mode, "padding_mode": padding, "align_corners": corners}
        )
        for mode, padding, corners in (
            ("bilinear", "zeros", 0),
            ("nearest", "border", 1),
            ("bicubic", "reflection", 0),
        )
    },
}

INTEGER_TYPES = ("float32", "int64")
SHAPES = {
    "expand": Case("ExpandDims", [X, Fixed(whole(1))]),
    "expand at the end": Case("ExpandDims", [X, Fixed(whole(-1))]),
    "trilu": Case("Trilu", [real(2, 4, 5)]),
    "lower trilu": Case("Trilu", [real(4, 5), Fixed(whole(-1, dtype=np.int64))], {"upper": 0}),
    "gather": Case("GatherND", [real(3, 4, 5), Fixed(whole([[0, 1], [2, 3]], dtype=np.int64))]),
    "pad": Case("Pad", [X, Fixed(whole([0, 1, 0, 0, 0, 2], dtype=np.int64)), Fixed(np.float32([2.5]))]),
    "reflected pad": Case("Pad", [X, Fixed(whole([[0, 1, 0, 0, 0, 2]], dtype=np.int64))], {"mode": "reflect"}),
    "range": Case("Range", [Fixed(np.float32(1)), Fixed(np.float32(5))]),
    "range by steps": Case("Range", [Fixed(np.float32([1])), Fixed(np.float32([5])), Fixed(np.float32([0.5]))]),
    "unfold": Case("UnfoldTensor", [real(2, 3, 8)], {"size": 3}),
    "unfold by steps": Case("UnfoldTensor", [real(2, 9, 3)], {"size": 4, "step": 2, "dim": 1}),
    "distance": Case("CDist", [real(4, 6), real(3, 6)], {"metric": "euclidean"}),
    "squared distance": Case("CDist", [real(4, 6), Fixed(real(3, 6))], {"metric": "sqeuclidean"}),
    "inverse": Case("Inverse", [real(5, 5)], relative=1e-4),
    "inverses": Case("Inverse", [real(2, 3, 4, 4)], relative=1e-4),
    "sample": Case("SampleOp", [X]),
    "int16 product": Case(
        "MatMulInteger16",
        [
            whole(RANDOM.integers(-99, 99, (3, 4)), dtype=np.int16),
            whole(RANDOM.integers(-99, 99, (4, 2)), dtype=np.int16),
        ],
        outputs=("int32",),
    ),
}


def few_bits(bits: int, *more: Operand, rows: int = 40, columns: int = 6, block: int = 16) -> Case:
    blocks = -(-rows // block)
    packed = Fixed(whole(RANDOM.integers(0, 256, (columns, blocks, block * bits // 8)), dtype=np.uint8))
    operands = [real(3, rows), packed, Fixed(positive(columns, blocks)), *more]
    options = {"K": rows, "N": columns, "bits": bits, "block_size": block}
    return Case("MatMulNBits", operands, options, relative=1e-4)


def table(
    dtype: type, *more: Operand, shape: tuple[int, int] = (5, 32), scales: tuple[int, int] = (5, 2), **options: object
) -> Case:
    data = Fixed(whole(RANDOM.integers(0, 256, shape), dtype=dtype))
    rows = whole([[0, 3], [4, 1]])
    return Case("GatherBlockQuantized", [data, rows, Fixed(positive(*scales)), *more], {"block_size": 16, **options})


WEIGHTS = {
    "4 bits": few_bits(4),
    "8 bits": few_bits(8),
    "2 bits": few_bits(2),
    "zero points": few_bits(4, Fixed(whole(RANDOM.integers(0, 256, (6, 2)), dtype=np.uint8))),
    "real zero points and bias": few_bits(4, Fixed(positive(6, 3)), None, Fixed(real(6))),
    "nf4": Case(
        "MatMulBnb4",
        [real(3, 32), Fixed(whole(RANDOM.integers(0, 256, 96), dtype=np.uint8)), Fixed(positive(12))],
        {"K": 32, "N": 6, "block_size": 16, "quant_type": 1},
    ),
    "fp4": Case(
        "MatMulBnb4",
        [real(3, 32), Fixed(whole(RANDOM.integers(0, 256, 96), dtype=np.uint8)), Fixed(positive(12))],
        {"K": 32, "N": 6, "block_size": 16, "quant_type": 0},
    ),
    "table of 8 bits": table(np.uint8, bits=8),
    "table of 4 bits": table(np.uint8, shape=(5, 16), bits=4),
    "table with zero points": table(
        np.uint8, Fixed(whole(RANDOM.integers(0, 256, (5, 1)), dtype=np.uint8)), shape=(5, 16), bits=4
    ),
}

FAMILIES = {
    "activations": ACTIVATIONS,
    "normalizations": NORMALIZATIONS,
    "embeddings": EMBEDDINGS,
    "fused": FUSED,
    "attention": ATTENTIONS,
    "multi-head": MULTI_HEAD,
    "decoder": DECODER,
    "groups": GROUPS,
    "rotary": ROTARY,
    "recurrences": RECURRENCES,
    "images": IMAGES,
    "shapes": SHAPES,
    "weights": WEIGHTS,
}
CASES = {f"{family}: {name}": case for family, cases in FAMILIES.items() for name, case in cases.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_agrees_with_onnxruntime(case: Case) -> None:
    agrees(case)


IN_C = (
    ("normalizations: skip, bias and sum", "fused: conv plus", "attention: past, causal, mask", "shapes: inverses"),
    ("embeddings: mask", "multi-head: any place in a buffer", "groups: several next tokens, window and bias"),
    ("groups: sink", "rotary: a part of a head, interleaved", "recurrences: gated_delta", "weights: zero points"),
    ("recurrences: conv, channels last", "images: crops", "images: masked 2", "shapes: distance"),
)


@pytest.mark.parametrize("names", IN_C, ids=lambda names: names[0])
def test_in_c(names: Sequence[str]) -> None:
    """Some of each family, several in one model: generated code, under sanitizers."""
    net, feeds = Net(17), {}
    for number, name in enumerate(names):
        CASES[name].add_to(net, f"n{number}_")
        feeds |= CASES[name].feeds_of(f"n{number}_")
    model = net.plain_model()
    assert_close(c_outputs(model, feeds), onnxruntime_outputs(model, feeds), 1e-4)


def test_attention_without_bias() -> None:
    """ONNX Runtime 1.31 crashes on it: it is attention with a bias of zeros."""
    weights = Fixed(real(8, 24))
    bare = Case("Attention", [X, weights], {"num_heads": 4})
    zeros = Case("Attention", [X, weights, Fixed(np.zeros(24, np.float32))], {"num_heads": 4})
    expected = onnxruntime_outputs(zeros.model(), zeros.feeds)
    assert_close(numpy_outputs(bare.model(), bare.feeds), expected)


def test_unique_in_order_of_appearance() -> None:
    x = np.float32([2, 1, 1, 3, 4, 3])
    case = Case("Unique", [Fixed(x)], outputs=("float32", "int64", "int64"))
    found = numpy_outputs(case.model(), {})
    expected = onnxruntime_outputs(case.model(), {})
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name][: array.shape[0]], array)


def test_a_matrix_without_an_inverse() -> None:
    """Is no error: there is nothing to expect of the numbers."""
    case = Case("Inverse", [np.zeros((2, 3, 3), np.float32)])
    assert np.isnan(numpy_outputs(case.model(), case.feeds)["y0"]).all()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (attention(do_rotary=1), "past and present must be tensors of their own. found: do_rotary"),
        (attention(whole(RANDOM.integers(0, 2, (2, 1, 3, 3)))), "a mask must be one of samples"),
        (groups(1, 4, Fixed(whole([4])), 5, sliding_window_cache=1), "must hold float32 and not slide"),
        (groups(2, 9, whole([4, 5]), 7, batch=2), "tokens of several samples must follow as many"),
        (Case("MultiHeadAttention", [real(2, 3, 2, 3, 4)], {"num_heads": 2}), "input 0 must have axes 'B S D'"),
        (Case("CDist", [real(4, 6), real(3, 6)], {"metric": "cosine"}), "the metric must be euclidean"),
        (
            Case("FusedConv", [IMAGE, FILTERS], {"activation": "Mystery"}),
            "the activation must be known. found: 'Mystery'",
        ),
        (linear("linear", state_window=2), "only the last state is handed on"),
        (few_bits(3), "weights must have 2, 4 or 8 bits. found: 3"),
        (replace(few_bits(4), attributes={"bits": "four"}), "attribute bits must be an integer. found: four"),
        (replace(few_bits(4), attributes={"bits": [4]}), "attribute bits must be an integer. found: [4]"),
        (Case("QuickGelu", [X], {"alpha": "s"}), "attribute alpha must be a number. found: s"),
        (Case("FusedConv", [IMAGE, FILTERS], {"strides": 2}), "attribute strides must be a list. found: 2"),
        (Case("FusedConv", [IMAGE, FILTERS], {"pads": [0.5] * 4}), "attribute pads must be an integer in each place"),
        (Case("FusedConv", [IMAGE, FILTERS], {"activation": 3}), "attribute activation must be a text. found: 3"),
        (
            Case("ConvTransposeWithDynamicPads", [IMAGE, real(3, 2, 3, 3), Fixed(real(4))]),
            "attribute pads must be an integer in each place",
        ),
        (Case("Range", []), "input 0 must be given"),
        (crop(0, 3), "crop_size must be positive. found: 0 x 3"),
        (crop(3, -(2**31)), "crop_size must be positive"),
        (
            Case("MatMulBnb4", [X, Fixed(real(8)), Fixed(positive(8))], {"K": 8, "N": 6, "block_size": 16}),
            "the element type must be one of uint8",
        ),
        (
            Case("CausalConvWithState", [real(1, 3, 4), Fixed(real(3, 1, 2))], {"dilation": -1}, ("float32",) * 2),
            "there must be taps, at a positive distance. found: 2 and -1",
        ),
        (Case("MurmurHash3", [whole([1, 2])], outputs=("uint32",)), "found: tables of hashes are for servers"),
    ],
    ids=lambda value: value.op_type if isinstance(value, Case) else "",
)
def test_what_is_refused(case: Case, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        imported(case.model())


def test_any_integer_is_a_size() -> None:
    """A window wider than all keys hides none, a block larger than the table is one."""
    plain = groups(1, 4, Fixed(whole([4])), 5)
    wide = replace(plain, attributes={**plain.attributes, "local_window_size": 2**31})
    found = numpy_outputs(wide.model(), wide.feeds)
    assert_close(found, numpy_outputs(plain.model(), plain.feeds))
    imported(
        Case(
            "MatMulBnb4",
            [real(3, 32), Fixed(whole(RANDOM.integers(0, 256, 96), dtype=np.uint8)), Fixed(positive(12))],
            {"K": 32, "N": 6, "block_size": 2**63 - 1},
        ).model()
    )


def test_empty_lists_are_as_if_left_out() -> None:
    plain = Case("FusedConv", [IMAGE, FILTERS], {"activation": "Relu"})
    model = plain.model()
    model.graph.node[0].attribute.append(AttributeProto(name="strides", type=AttributeProto.INTS))
    assert_close(numpy_outputs(model, plain.feeds), numpy_outputs(plain.model(), plain.feeds))


def test_every_operator_is_taken_or_left_out_with_a_reason() -> None:
    """Of those that ONNX Runtime has for its CPU."""
    kernels = get_all_opkernel_def()
    names = {k.op_name for k in kernels if k.domain == MICROSOFT and k.provider == "CPUExecutionProvider"}
    taken = {name for domain, name in BUILT_IN.importers if domain == MICROSOFT}
    reasons = {name for domain, name in BUILT_IN.left_out if domain == MICROSOFT}
    assert not names - taken - reasons
    assert not taken & reasons
