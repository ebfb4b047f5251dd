# SPDX-License-Identifier: Apache-2.0
"""Rounding of a layer's weights by its error on data instead of weight by weight.

For each output channel, quantized weights q with scale s have this error, where G = E[x xᵀ] of the layer's inputs:

    E‖(w − s·q)ᵀ x‖² = (w − s·q)ᵀ G (w − s·q)

Rounding to nearest is best only if G is diagonal. Two steps find better weights. First, errors are passed on from input
to input (Frantar et al. 2022, GPTQ: Cholesky of G⁻¹). Then single weights are moved while that helps (coordinate
descent).

If there are few quantized values, a scale that clips the largest weights may leave a smaller error (`best_scales`).

Arrays are batches over groups: weights [groups, outputs, depth], scales [groups, outputs], gram [groups, depth, depth].
Steps are scales by weight, relative to the largest scale of an output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.types import Array

WeightLimits = tuple[int, int]
"""The smallest and the largest quantized weight of a type, such as (-127, 127)."""

INT8_LIMITS: WeightLimits = (-127, 127)
"""Smallest and largest int8 weight."""

TRIED_CLIPPING_SHARES = tuple(share / 20 for share in range(20, 9, -1))
"""Scales that `best_scales` tries, divided by the scale that clips no weight: from 1 down to 1/2."""

MAX_COARSE_LEVELS = 4
"""Largest number of quantized values of a weight for which COARSE_CLIPPING_SHARES are tried.

With so few values, most weights would be rounded to 0 without clipping.
"""

COARSE_CLIPPING_SHARES = tuple(share / 20 for share in range(9, 3, -1))
"""Scales that `best_scales` tries in addition for weights of few levels, divided by the scale that clips no weight."""

RELATIVE_DAMPING = 0.01
"""Term that is added to the diagonal of the second moments before they are inverted, as a share of the diagonal's mean.
"""

MAX_SWEEPS = 10
"""Largest number of sweeps over all weights in the coordinate descent that rounds them."""

LOOKAHEAD_INPUTS = 32
"""Number of inputs that coordinate descent examines at once after its first sweep, when few weights still change."""

NUM_SCALE_SWEEPS = 2
"""Number of sweeps in `fit_group_scales`; a sweep fits the scales of all groups of inputs, one group after the other.
"""


def round_to_nearest(weights: Array, scales: Array, limits: WeightLimits = INT8_LIMITS) -> Array:
    """Return the quantized values nearest to each weight, clipped to `limits`.

    `groups` are groups of channels, as in a grouped convolution; `depth` is the number of weights per output.

    Args:
        weights: The real weights, [groups, outputs, depth].
        scales: The scales, [groups, outputs].
        limits: The smallest and the largest quantized value.
    """
    return _nearest(weights / scales[..., None], limits).astype(np.int8)


def round_weights(weights: Array, scales: Array, gram: Array, limits: WeightLimits = INT8_LIMITS) -> Array:
    """Round weights so that the layer's error (`quadratic_error`) is small: never larger than by rounding to nearest.

    `groups` are groups of channels, as in a grouped convolution; `depth` is the number of weights per output.

    Args:
        weights: The real weights, [groups, outputs, depth].
        scales: The scales, [groups, outputs] or, by weight, [groups, outputs, depth].
        gram: The second moments of the inputs, [groups, depth, depth].
        limits: The smallest and the largest quantized value.
    """
    by_weight = scales if scales.ndim == weights.ndim else scales[..., None]
    unit = by_weight.max(-1, keepdims=True)
    target, steps = weights.astype(np.float64) / unit, np.broadcast_to(by_weight / unit, weights.shape)
    starts = (_nearest(target / steps, limits), _feedback(target, steps, gram, limits))
    candidates = [_descend(target, start, steps, gram, limits) for start in starts]
    errors = [_error(target - codes * steps, gram) for codes in candidates]
    better = errors[1] < errors[0]
    return np.where(better[..., None], candidates[1], candidates[0]).astype(np.int8)


def best_scales(weights: Array, scales: Array, gram: Array, limits: WeightLimits) -> Array:
    """Return the scales for which rounding to nearest has the least error, as float32 values.

    Candidates are the given scales times TRIED_CLIPPING_SHARES and, for few levels, COARSE_CLIPPING_SHARES. `groups`
    are groups of channels, as in a grouped convolution; `depth` is the number of weights per output.

    Args:
        weights: The real weights, [groups, outputs, depth].
        scales: The scales that clip nothing, [groups, outputs].
        gram: The second moments of the inputs, [groups, depth, depth].
        limits: The smallest and the largest quantized value.
    """
    best, best_error = scales, np.full(scales.shape, np.inf)
    for share in TRIED_CLIPPING_SHARES + COARSE_CLIPPING_SHARES * (limits[1] - limits[0] < MAX_COARSE_LEVELS):
        tried = (scales * share).astype(np.float32).astype(np.float64)
        error = quadratic_error(weights, round_to_nearest(weights, tried, limits), tried, gram)
        best, best_error = np.where(error < best_error, tried, best), np.minimum(error, best_error)
    return best


def choose_scales(tried: Sequence[Array], weights: Array, gram: Array, limits: WeightLimits) -> tuple[Array, Array]:
    """Choose, for each output, the scale with which `round_weights` leaves the least error.

    `groups` are groups of channels, as in a grouped convolution; `depth` is the number of weights per output.

    Args:
        tried: The arrays of scales to choose from, each [groups, outputs].
        weights: The real weights, [groups, outputs, depth].
        gram: The second moments of the inputs, [groups, depth, depth].
        limits: The smallest and the largest quantized value.

    Returns:
        The quantized weights, [groups, outputs, depth], and their scales, [groups, outputs].
    """
    best, rounded, best_error = tried[0], np.zeros(weights.shape, np.int8), np.full(weights.shape[:-1], np.inf)
    for scales in tried:
        codes = round_weights(weights, scales, gram, limits)
        error = quadratic_error(weights, codes, scales, gram)
        better = error < best_error
        best, rounded = np.where(better, scales, best), np.where(better[..., None], codes, rounded)
        best_error = np.minimum(error, best_error)
    return rounded, best


def fit_scales(weights: Array, codes: Array, scales: Array, gram: Array) -> Array:
    """Return the scales of least error for given quantized weights, as float32 values.

    Outputs keep their scale if their quantized weights are all 0 or if the fitted scale is not positive. `groups` are
    groups of channels, as in a grouped convolution; `depth` is the number of weights per output.

    Args:
        weights: The real weights, [groups, outputs, depth].
        codes: The quantized weights, of the same shape.
        scales: The present scales, [groups, outputs].
        gram: The second moments of the inputs, [groups, depth, depth].
    """
    energy = ((codes @ gram) * codes).sum(-1)
    shared = ((weights @ gram) * codes).sum(-1)
    fitted = np.divide(shared, energy, out=scales.astype(np.float64), where=(energy > 0) & (shared > 0))
    result: Array = fitted.astype(np.float32).astype(np.float64)
    return result


def fit_group_scales(weights: Array, codes: Array, scales: Array, gram: Array, size: int) -> Array:
    """Return the scales of least error for given quantized weights, one group of inputs after the other.

    Args:
        weights: The real weights, [outputs, depth].
        codes: The quantized weights, [outputs, depth].
        scales: The present scales, [outputs, groups of inputs].
        gram: The second moments of the inputs, [depth, depth].
        size: The number of inputs of a group.
    """
    fitted = scales.astype(np.float64)
    for _ in range(NUM_SCALE_SWEEPS):
        left = (weights - codes * np.repeat(fitted, size, 1)[:, : codes.shape[1]]) @ gram
        for number, start in enumerate(range(0, codes.shape[1], size)):
            part = slice(start, start + size)
            gram_products = codes[:, part] @ gram[part]
            energy, shared = (gram_products[:, part] * codes[:, part]).sum(-1), (left[:, part] * codes[:, part]).sum(-1)
            step = np.divide(shared, energy, out=np.zeros_like(shared), where=energy > 0)
            step = np.where(fitted[:, number] + step > 0, step, 0.0)
            fitted[:, number] += step
            left -= step[:, None] * gram_products
    result: Array = fitted.astype(np.float32).astype(np.float64)
    return result


def quadratic_error(weights: Array, codes: Array, scales: Array, gram: Array) -> Array:
    """Return the error (w − s·q)ᵀ G (w − s·q) of each output channel, [groups, outputs].

    w are its real weights, q its quantized weights, s its scale, and G is `gram`. `groups` are groups of channels, as
    in a grouped convolution; `depth` is the number of weights per output.

    Args:
        weights: The real weights, [groups, outputs, depth].
        codes: The quantized weights, of the same shape.
        scales: The scales, [groups, outputs] or, by weight, [groups, outputs, depth].
        gram: The second moments of the inputs, [groups, depth, depth].
    """
    by_weight = scales if scales.ndim == codes.ndim else scales[..., None]
    return _error(weights.astype(np.float64) - by_weight * codes, gram)


def _nearest(target: Array, limits: WeightLimits) -> Array:
    codes: Array = np.clip(np.rint(target), *limits)
    return codes


def _error(difference: Array, gram: Array) -> Array:
    error: Array = ((difference @ gram) * difference).sum(-1)
    return error


def _feedback(target: Array, steps: Array, gram: Array, limits: WeightLimits) -> Array:
    """Round input by input, by falling energy; later inputs compensate the errors."""
    order = np.argsort(-np.diagonal(gram, axis1=-2, axis2=-1), axis=-1, kind="stable")
    groups = np.arange(len(gram))[:, None]
    sorted_gram = gram[groups[:, :, None], order[:, :, None], order[:, None, :]]
    factor = np.linalg.cholesky(np.linalg.inv(_damp(sorted_gram))).swapaxes(-2, -1)
    remaining = np.take_along_axis(target, order[:, None, :], -1)
    steps = np.take_along_axis(steps, order[:, None, :], -1)
    codes = np.empty_like(remaining)
    for k in range(remaining.shape[-1]):
        codes[..., k] = np.clip(np.rint(remaining[..., k] / steps[..., k]), *limits)
        error = (remaining[..., k] - codes[..., k] * steps[..., k]) / factor[:, None, k, k]
        remaining[..., k + 1 :] -= error[..., None] * factor[:, None, k, k + 1 :]
    unsorted = np.empty_like(codes)
    np.put_along_axis(unsorted, order[:, None, :], codes, -1)
    return unsorted


def _damp(gram: Array) -> Array:
    """Return an invertible matrix: a share of the mean diagonal is added to the diagonal (1 if all inputs are 0)."""
    mean = np.diagonal(gram, axis1=-2, axis2=-1).mean(-1)
    ridge = np.where(mean > 0, RELATIVE_DAMPING * mean, 1.0)
    result: Array = gram + ridge[:, None, None] * np.eye(gram.shape[-1])
    return result


def _descend(target: Array, start: Array, steps: Array, gram: Array, limits: WeightLimits) -> Array:
    """Move one quantized weight at a time to where the error is least, until none moves."""
    codes = start.copy()
    gradient = (target - codes * steps) @ gram
    curvature = np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), np.finfo(np.float64).tiny)
    slope = curvature[:, None] * steps

    def wanted(at: int | slice) -> Array:
        """Return by how much the quantized weights of one or several inputs should move."""
        moved = codes[..., at] + np.rint(gradient[..., at] / slope[..., at])
        moves: Array = np.minimum(np.maximum(moved, limits[0]), limits[1]) - codes[..., at]
        return moves

    for _ in range(MAX_SWEEPS):
        moved = False
        for first in range(0, codes.shape[-1], LOOKAHEAD_INPUTS):
            if not wanted(slice(first, first + LOOKAHEAD_INPUTS)).any():
                continue
            for k in range(first, min(first + LOOKAHEAD_INPUTS, codes.shape[-1])):
                step = wanted(k)
                at = step.nonzero()
                if len(at[0]):
                    moved = True
                    codes[..., k][at] += step[at]
                    gradient[at] -= (step[at] * steps[..., k][at])[:, None] * gram[at[0], k]
        if not moved:
            break
    return codes
