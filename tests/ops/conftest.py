# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests of operators."""

from __future__ import annotations

import pytest

from mcugen.memory import exact, order, plan
from mcugen.search import weight_staging


@pytest.fixture(autouse=True)
def plans_need_not_be_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the search for memory plans.

    Many independent operators are hard to order and plan, and neither is tested here.
    """
    monkeypatch.setattr(exact, "MAX_SOLVER_PAIRS", 0)
    monkeypatch.setattr(plan, "_ORDERS", plan._ORDERS[:1])
    monkeypatch.setattr(weight_staging, "MAX_STAGING_PLANS", 1)
    monkeypatch.setattr(order, "MAX_ORDER_SETS", 100)
    monkeypatch.setattr(order, "MIN_BEAM_WIDTH", 1)
