# SPDX-License-Identifier: Apache-2.0
"""Operators of com.microsoft that mcugen does not support, each with the reason that messages show."""

from __future__ import annotations

from mcugen.ops.onnx_node import MICROSOFT, leave_out

_REASONS = {
    "it generates tokens in a loop of its own, by chance or by beams": (
        "BeamSearch",
        "GreedySearch",
        "Sampling",
        "WhisperBeamSearch",
    ),
    "text is not computed with": ("Tokenizer",),
    "tables of hashes are for servers": ("MurmurHash3", "NGramHashMapping", "VarlenNGramHashMapping"),
    "it finds a path of computed length through a table": ("DynamicTimeWarping",),
    "it compares sequences of computed length, to guess tokens": ("BifurcationDetector", "NGramRepeatBlock"),
    "which weights are read depends on the input: all would have to lie in flash": ("MoE", "MoEGroupRouter", "QMoE"),
    "it packs sequences of several requests, of computed lengths, into one": (
        "GatedDeltaNet",
        "VarlenCausalConvWithState",
    ),
    "sparse tensors are refused": ("SparseToDenseMatMul",),
    "its masks are sparse matrices of blocks": ("SparseAttention",),
    "its weights lie in an undocumented order": ("MatMulFpQ4",),
    "its weights lie in formats of servers' libraries": ("GatherPacked",),
    "no exporter writes it": ("AttnLSTM", "WordConvEmbedding"),
}

for _reason, _names in _REASONS.items():
    leave_out(_reason, *_names, domain=MICROSOFT)
