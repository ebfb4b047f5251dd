# SPDX-License-Identifier: Apache-2.0
"""The list of operations says what the interpreter does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ethos_u_streams import max_pooling

from mcugen.backends.npu.ethos_u.command_stream import UndocumentedOperation, decode, run, supported_operations
from mcugen.backends.npu.ethos_u.command_stream.operations import PoolingMode, PoolingOperation
from mcugen.backends.npu.ethos_u.command_stream.support import operations_table


@pytest.mark.parametrize(
    "mode", [mode for mode in PoolingMode if mode not in (PoolingMode.NONE, PoolingMode.REDUCE_SUM)]
)
def test_poolings_run_or_stop_as_listed(mode: PoolingMode) -> None:
    stream = decode(max_pooling().payload())
    pooling = stream.operations[0]
    assert isinstance(pooling, PoolingOperation)
    changed = replace(stream, operations=(replace(pooling, mode=mode), *stream.operations[1:]))
    listed = next(o for o in supported_operations() if (o.command, o.mode) == ("pool", mode.name.lower()))
    regions = {1: np.zeros(80, np.uint8)}
    if listed.is_supported:
        run(changed, regions)
        return
    with pytest.raises(UndocumentedOperation, match=mode.name):
        run(changed, regions)


def test_the_table_has_a_row_for_each_command() -> None:
    commands = {operation.command for operation in supported_operations()}
    assert len(operations_table().splitlines()) == 2 + len(commands)
