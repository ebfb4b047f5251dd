# SPDX-License-Identifier: Apache-2.0
"""Importers of recurrent operators of domain com.microsoft, with states between steps and between calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx.parser
from onnx import GraphProto

from mcugen.hir.graph import Value
from mcugen.ops.microsoft.activations import silu
from mcugen.ops.microsoft.common import axes, composed, joined, shaped, sliced
from mcugen.ops.onnx_node import OnnxNode, Refusal


def _refuse_windows(node: OnnxNode) -> None:
    if node.attr("state_window", 0):
        setting = f"state_window {node.attr('state_window', 0)}"
        raise Refusal(f"{node.op_type}: only the last state is handed on", setting, "export it with state_window 0")


# ---------------------------------------------------------------------------------------- causal convolution


@composed("CausalConvWithState", limits="one axis, state_window 0")
@axes("B _ ... _", "C 1 K", "C", "B _ ... _")
def _import_causal_conv(node: OnnxNode) -> Sequence[Value]:
    """Each channel is convolved with its own taps; the state is what they reach back to."""
    _refuse_windows(node)
    if int(node.attr("ndim", 1)) != 1:
        raise Refusal("CausalConvWithState: there must be one axis", f"{node.attr('ndim', 1)}", "export it with ndim 1")
    last = bool(node.attr("channels_last", 0))
    x, weight, dilation = node.input(0), node.input(1), int(node.attr("dilation", 1))
    channels, _, taps = weight.type.shape
    node.require(min(taps, dilation) >= 1, "there must be taps, at a positive distance", f"{taps} and {dilation}")
    reach = (taps - 1) * dilation
    rows = _channels_first(node, x, channels) if last else x
    past = node.optional(3)
    if past is not None and last and past.type.count:
        past = _channels_first(node, past, channels)
    before = past or node.call("Identity", np.zeros((x.type.shape[0], channels, reach), np.float32))
    window = joined(node, [before, rows], 2)
    bias = node.optional(2)
    y = node.call("Conv", window, weight, bias, group=channels, dilations=[dilation], kernel_shape=[taps])
    y = silu(node, y) if str(node.attr("activation", "none")) in ("silu", "swish") else y
    length = window.type.shape[2]
    state = sliced(node, window, 2, length - reach, length) if reach else before
    if not last:
        return [y, state]
    spatial_shape = x.type.shape[2:]
    return [_channels_last(node, part, spatial_shape) for part in (y, state)]


def _channels_first(node: OnnxNode, x: Value, channels: int) -> Value:
    """(B, L, ...) → (B, C, L)."""
    return node.call("Transpose", shaped(node, x, *x.type.shape[:2], channels), perm=[0, 2, 1])


def _channels_last(node: OnnxNode, x: Value, spatial_shape: Sequence[int]) -> Value:
    """(B, C, L) → (B, L, ...)."""
    turned = node.call("Transpose", x, perm=[0, 2, 1])
    return shaped(node, turned, *turned.type.shape[:2], *spatial_shape)


# ----------------------------------------------------------------------------------------- linear attention

_RULES = ("linear", "gated", "delta", "gated_delta")


@composed("LinearAttention", limits="state_window 0")
@axes("B T _", "B T K", "B T V", "B H D E", "B T _", "B T _")
def _import_linear_attention(node: OnnxNode) -> Sequence[Value]:
    """Import LinearAttention as a Scan: the state (B, heads, D, D') decays, adds k ⊗ v, and is read by q."""
    _refuse_windows(node)
    rule = str(node.attr("update_rule", "gated_delta"))
    queries, heads = int(node.attr("q_num_heads", 0)), int(node.attr("kv_num_heads", 0))
    if rule not in _RULES or queries < 1 or heads < 1 or (queries % heads and heads % queries):
        mismatch = f"'{rule}', {queries} heads of queries for {heads}"
        raise Refusal("LinearAttention: rule and heads must be known and fit", mismatch, "repair the model")
    (batch, _, key_width), value_width = node.input(1).type.shape, node.input(2).type.shape[2]
    size, values = key_width // heads, value_width // heads
    widths = [node.input(i).type.shape[2] for i in range(3)] + [n.type.shape[2] for n in node.inputs[4:5] if n]
    if widths[0] != queries * size or any(width % heads for width in widths[1:]):
        mismatch = f"widths {widths} of {queries} and {heads} heads"
        raise Refusal("LinearAttention: heads must be of equal size", mismatch, "repair the model")
    steps = {
        "q": _queries(node, queries, heads, size),
        "k": _by_step(node, node.input(1), heads, size, 1),
        "v": _by_step(node, node.input(2), heads, 1, values),
    }
    if rule.startswith("gated"):
        decay = node.input(4)
        steps["g"] = node.call("Exp", _by_step(node, decay, heads, decay.type.shape[2] // heads, 1))
    if rule.endswith("delta"):
        beta = node.input(5)
        if beta.type.shape[2] not in (1, heads):
            mismatch = f"{beta.type.shape[2]} for {heads} heads"
            raise Refusal("LinearAttention: there must be an update rate a head", mismatch, "repair the model")
        steps["b"] = _by_step(node, beta, beta.type.shape[2], 1, 1)
    state = node.input(3) if node.has(3) else node.call("Identity", np.zeros((batch, heads, size, values), np.float32))
    body = _step(steps, state)
    last, outputs = node.calls("Scan", [state, *steps.values()], 2, body=body, num_scan_inputs=len(steps))
    scale = float(node.attr("scale", 0.0)) or 1 / math.sqrt(max(size, 1))
    turned = node.call("Transpose", node.call("Mul", outputs, np.float32(scale)), perm=[1, 0, 2, 3, 4])
    return [shaped(node, turned, *turned.type.shape[:2], math.prod(turned.type.shape[2:])), last]


def _by_step(node: OnnxNode, x: Value, heads: int, rows: int, columns: int) -> Value:
    """(B, T, heads · rows · columns) → (T, B, heads, rows, columns)."""
    batch, length, _ = x.type.shape
    return node.call("Transpose", shaped(node, x, batch, length, heads, rows, columns), perm=[1, 0, 2, 3, 4])


def _queries(node: OnnxNode, queries: int, heads: int, size: int) -> Value:
    """(T, B, heads, queries of one head, D); where heads share a query it is repeated."""
    x = node.input(0)
    if queries >= heads:
        return _by_step(node, x, heads, queries // heads, size)
    batch, length, _ = x.type.shape
    wide = (batch, length, queries, heads // queries, size)
    repeated = node.call("Expand", shaped(node, x, batch, length, queries, 1, size), np.array(wide, np.int64))
    return _by_step(node, shaped(node, repeated, batch, length, heads * size), heads, 1, size)


def _step(steps: dict[str, Value], state: Value) -> GraphProto:
    """One step of the recurrence, in ONNX's own notation."""
    shapes = {"s": state.type.shape, **{name: value.type.shape[1:] for name, value in steps.items()}}
    formals = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    batch, heads, _, values = state.type.shape
    reads = f"float[{batch},{heads},{shapes['q'][2]},{values}] o"
    lines = [
        "kept = Mul (s, g)" if "g" in steps else "kept = Identity (s)",
        "row = Transpose <perm = [0, 1, 3, 2]> (k)" if "b" in steps else "",
        "known = MatMul (row, kept)" if "b" in steps else "",
        "rest = Sub (v, known)" if "b" in steps else "",
        "news = Mul (rest, b)" if "b" in steps else "news = Identity (v)",
        "product = MatMul (k, news)",
        "next = Add (kept, product)",
        "o = MatMul (q, next)",
    ]
    body = "\n".join(filter(None, lines))
    outputs = f"float[{','.join(map(str, state.type.shape))}] next, {reads}"
    return onnx.parser.parse_graph(f"step ({formals}) => ({outputs}) {{\n{body}\n}}")
