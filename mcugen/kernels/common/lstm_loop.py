# SPDX-License-Identifier: Apache-2.0
"""A loop over the steps of a quantized LSTM, as kernels see it."""

from __future__ import annotations

from dataclasses import dataclass

from mcugen.hir.types import Array, TensorType
from mcugen.kernels.common.specs import WeightedSpec


@dataclass(frozen=True, eq=False)
class LstmLoopSpec:
    """The specification of a loop whose body is one step of a quantized LSTM, for kernels that compute the whole loop.

    The gates are in the order input, output, forget, cell. The loop's inputs are the initial hidden state, the initial
    cell state and the sequences x. Its outputs are the last hidden state, the last cell state and, if `is_stacked`, the
    hidden states of all steps.

    Attributes:
        steps: Number of time steps.
        axis: Axis of x, and of the stacked hidden states, that counts the time steps, the first step first.
        is_stacked: Whether the hidden states of all steps are an output.
        inner: Specification of the product of one step of x and the input weights of the gates.
        recurrent: Specification of the product of the hidden state and the recurrent weights of the gates.
        hidden: Type of the hidden state, [batch, size].
        cell: Type of the cell state, [batch, size].
        first_hidden: Initial hidden state if it is constant; else None.
        first_cell: Initial cell state if it is constant; else None.
    """

    steps: int
    axis: int
    is_stacked: bool
    inner: WeightedSpec
    recurrent: WeightedSpec
    hidden: TensorType
    cell: TensorType
    first_hidden: Array | None
    first_cell: Array | None

    @property
    def batch(self) -> int:
        """Return the number of sequences that are processed together."""
        return self.hidden.shape[0]

    @property
    def size(self) -> int:
        """Return the number of elements of a hidden state, for one sequence."""
        return self.hidden.shape[-1]

    @property
    def starts_from_zero(self) -> bool:
        """Return whether the initial hidden state and cell state are constants whose real values are all 0."""
        h, c = self.first_hidden, self.first_cell
        return h is not None and c is not None and bool((h == self.hidden.q.zero_point).all()) and not c.any()
