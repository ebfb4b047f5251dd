# SPDX-License-Identifier: Apache-2.0
"""Control of the number of threads of numpy's matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit numpy's matrix products to one thread within a `with` block.

    With several threads, processes on a busy machine would slow each other down (measured: eight times), and the order
    of additions, and so the last bits of float sums, would vary.
    """
    blas = _blas()
    with nullcontext() if blas is None else blas.limit(limits=1):
        yield


@cache
def _blas() -> ThreadpoolController | None:
    """Return the controller of the BLAS libraries, or None if threadpoolctl is not installed.

    It is found once: the search takes as long as to compile a small model's graph.
    """
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError:
        return None
    return ThreadpoolController().select(user_api="blas")
