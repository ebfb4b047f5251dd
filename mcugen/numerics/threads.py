# SPDX-License-Identifier: Apache-2.0
"""How many threads numpy's products of matrices take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it numpy takes one: several would wait for each other (eightfold on a busy machine), and sums vary."""
    with _blas().limit(limits=1):
        yield


@cache
def _blas() -> ThreadpoolController:
    """Found once: to look through all that is loaded takes as long as to compile a small model's graph."""
    return ThreadpoolController().select(user_api="blas")
