# SPDX-License-Identifier: Apache-2.0
"""Rounding of a layer's weights by its error on data instead of weight by weight.

With G = E[x xᵀ] of a layer's inputs, codes q and scale s cost E‖(w − s·q)ᵀ x‖² = (w − s·q)ᵀ G (w − s·q) for each output
channel. Rounding to nearest is best only where G is diagonal. Here errors are first handed on from input to input
(Frantar et al. 2022, GPTQ: Cholesky of G⁻¹), then single codes are moved while that helps (coordinate descent).

Where codes are few, a scale that clips the largest weights may leave less error (`best_scales`).

Arrays are batches over groups: weights [groups, outputs, depth], scales [groups, outputs], gram [groups, depth, depth].
Steps are scales of weight by weight, relative to the largest of an output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.types import Array

Limits = tuple[int, int]

BYTE: Limits = (-127, 127)
"""Of codes."""

CLIPPING = tuple(share / 20 for share in range(20, 9, -1))
"""Shares of the scale that clips nothing, which are tried."""

FEW = 4
"""Codes or less: then lower shares are, too, since most weights would be 0."""

MORE_CLIPPING = tuple(share / 20 for share in range(9, 3, -1))

DAMPING = 0.01
"""Added to the diagonal of G before it is inverted, relative to its mean."""

SWEEPS = 10
"""Of coordinate descent, at most."""

AHEAD = 32
"""Inputs that are looked at together: of most, no code moves in later sweeps."""

SWEEPS_OF_SCALES = 2
"""Over the groups of inputs."""


def nearest(weights: Array, scales: Array, limits: Limits = BYTE) -> Array:
    """int8 codes nearest to each weight."""
    return _nearest(weights / scales[..., None], limits).astype(np.int8)


def round_weights(weights: Array, scales: Array, gram: Array, limits: Limits = BYTE) -> Array:
    """int8 codes of least error, as far as found: never worse than rounding to nearest.

    Scales may be [groups, outputs, depth]: weight by weight.
    """
    each = scales if scales.ndim == weights.ndim else scales[..., None]
    unit = each.max(-1, keepdims=True)
    target, steps = weights.astype(np.float64) / unit, np.broadcast_to(each / unit, weights.shape)
    starts = (_nearest(target / steps, limits), _feedback(target, steps, gram, limits))
    found = [_descend(target, start, steps, gram, limits) for start in starts]
    errors = [_error(target - codes * steps, gram) for codes in found]
    better = errors[1] < errors[0]
    return np.where(better[..., None], found[1], found[0]).astype(np.int8)


def best_scales(weights: Array, scales: Array, gram: Array, limits: Limits) -> Array:
    """Of shares of `scales`, which clip nothing, those of least error by rounding to nearest, as float32 values."""
    best, least = scales, np.full(scales.shape, np.inf)
    for share in CLIPPING + MORE_CLIPPING * (limits[1] - limits[0] < FEW):
        tried = (scales * share).astype(np.float32).astype(np.float64)
        error = quadratic_error(weights, nearest(weights, tried, limits), tried, gram)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best


def best_of(tried: Sequence[Array], weights: Array, gram: Array, limits: Limits) -> tuple[Array, Array]:
    """Of several scales for each output those by which codes of least error leave least; with these codes."""
    best, rounded, least = tried[0], np.zeros(weights.shape, np.int8), np.full(weights.shape[:-1], np.inf)
    for scales in tried:
        codes = round_weights(weights, scales, gram, limits)
        error = quadratic_error(weights, codes, scales, gram)
        better = error < least
        best, rounded = np.where(better, scales, best), np.where(better[..., None], codes, rounded)
        least = np.minimum(error, least)
    return rounded, best


def fitted_scales(weights: Array, codes: Array, scales: Array, gram: Array) -> Array:
    """The scales of least error for these codes, as float32 values; `scales` where the codes are nothing."""
    energy = ((codes @ gram) * codes).sum(-1)
    shared = ((weights @ gram) * codes).sum(-1)
    fitted = np.divide(shared, energy, out=scales.astype(np.float64), where=(energy > 0) & (shared > 0))
    result: Array = fitted.astype(np.float32).astype(np.float64)
    return result


def fitted_group_scales(weights: Array, codes: Array, scales: Array, gram: Array, size: int) -> Array:
    """The same of groups of `size` inputs, one after the other: weights and codes [outputs, depth], scales [outputs,
    groups], gram [depth, depth].
    """
    found = scales.astype(np.float64)
    for _ in range(SWEEPS_OF_SCALES):
        left = (weights - codes * np.repeat(found, size, 1)[:, : codes.shape[1]]) @ gram
        for number, start in enumerate(range(0, codes.shape[1], size)):
            part = slice(start, start + size)
            moved = codes[:, part] @ gram[part]
            energy, shared = (moved[:, part] * codes[:, part]).sum(-1), (left[:, part] * codes[:, part]).sum(-1)
            step = np.divide(shared, energy, out=np.zeros_like(shared), where=energy > 0)
            step = np.where(found[:, number] + step > 0, step, 0.0)
            found[:, number] += step
            left -= step[:, None] * moved
    result: Array = found.astype(np.float32).astype(np.float64)
    return result


def quadratic_error(weights: Array, codes: Array, scales: Array, gram: Array) -> Array:
    """(w − s·q)ᵀ G (w − s·q) of each output channel: [groups, outputs]. Scales may be weight by weight."""
    each = scales if scales.ndim == codes.ndim else scales[..., None]
    return _error(weights.astype(np.float64) - each * codes, gram)


def _nearest(target: Array, limits: Limits) -> Array:
    codes: Array = np.clip(np.rint(target), *limits)
    return codes


def _error(difference: Array, gram: Array) -> Array:
    error: Array = ((difference @ gram) * difference).sum(-1)
    return error


def _feedback(target: Array, steps: Array, gram: Array, limits: Limits) -> Array:
    """Rounds input by input, those of most energy first; what remains is compensated by the inputs to come."""
    order = np.argsort(-np.diagonal(gram, axis1=-2, axis2=-1), axis=-1, kind="stable")
    groups = np.arange(len(gram))[:, None]
    sorted_gram = gram[groups[:, :, None], order[:, :, None], order[:, None, :]]
    factor = np.linalg.cholesky(np.linalg.inv(_damped(sorted_gram))).swapaxes(-2, -1)
    rest = np.take_along_axis(target, order[:, None, :], -1)
    steps = np.take_along_axis(steps, order[:, None, :], -1)
    codes = np.empty_like(rest)
    for k in range(rest.shape[-1]):
        codes[..., k] = np.clip(np.rint(rest[..., k] / steps[..., k]), *limits)
        error = (rest[..., k] - codes[..., k] * steps[..., k]) / factor[:, None, k, k]
        rest[..., k + 1 :] -= error[..., None] * factor[:, None, k, k + 1 :]
    unsorted = np.empty_like(codes)
    np.put_along_axis(unsorted, order[:, None, :], codes, -1)
    return unsorted


def _damped(gram: Array) -> Array:
    """Invertible: with a share of the mean diagonal on the diagonal (of 1 where nothing was seen)."""
    mean = np.diagonal(gram, axis1=-2, axis2=-1).mean(-1)
    ridge = np.where(mean > 0, DAMPING * mean, 1.0)
    result: Array = gram + ridge[:, None, None] * np.eye(gram.shape[-1])
    return result


def _descend(target: Array, start: Array, steps: Array, gram: Array, limits: Limits) -> Array:
    """Moves one code at a time to where the error is least, until none moves."""
    codes = start.copy()
    gradient = (target - codes * steps) @ gram
    curvature = np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), np.finfo(np.float64).tiny)
    slope = curvature[:, None] * steps

    def wanted(at: int | slice) -> Array:
        """By how much the codes of an input, or of several, should move."""
        moved = codes[..., at] + np.rint(gradient[..., at] / slope[..., at])
        moves: Array = np.minimum(np.maximum(moved, limits[0]), limits[1]) - codes[..., at]
        return moves

    for _ in range(SWEEPS):
        moved = False
        for first in range(0, codes.shape[-1], AHEAD):
            if not wanted(slice(first, first + AHEAD)).any():
                continue
            for k in range(first, min(first + AHEAD, codes.shape[-1])):
                step = wanted(k)
                at = step.nonzero()
                if len(at[0]):
                    moved = True
                    codes[..., k][at] += step[at]
                    gradient[at] -= (step[at] * steps[..., k][at])[:, None] * gram[at[0], k]
        if not moved:
            break
    return codes
