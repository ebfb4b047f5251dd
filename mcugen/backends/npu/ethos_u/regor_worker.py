# SPDX-License-Identifier: Apache-2.0
"""Program that compiles TOSA graphs by Vela's core `regor`, in a process of its own: its C++ code may end the process.

It runs as `python -I regor_worker.py REQUEST REPLY`. Both files are pickles of plain data: the request is a dictionary
with the core's arguments and the graphs, the reply a list with a dictionary for each graph, or the text of an error.
"""

import pickle
import sys
from pathlib import Path
from typing import Any


def compile_graph(regor: Any, request: dict[str, Any], graph: bytes) -> dict[str, Any] | str:
    """Return the compiled graph as a dictionary of plain data, or the text of an error."""
    try:
        model = regor.compile(
            request["architecture"], graph, "TOSA", request["system"], options=request["options"], verbose=False
        )
    except Exception as error:
        return str(error)
    tensors = {key: [(t.region, t.address, t.size) for t in getattr(model, key)] for key in ("inputs", "outputs")}
    report = model.perf_report
    return {
        "commands": bytes(model.command_stream),
        "weights": bytes(model.read_only.data),
        "weights_region": model.read_only.region,
        "scratch": (model.scratch.region, model.scratch.size),
        "fast_scratch": (model.scratch_fast.region, model.scratch_fast.size),
        "cycles": report.totalCycles,
        "npu_cycles": report.npuCycles,
        "memory_cycles": {key: memory.totalAccessCycles for key, memory in report.memories.items()},
        **tensors,
    }


def main() -> None:
    """Compile all graphs of the request."""
    from ethosu import regor  # type: ignore[import-untyped]

    request = pickle.loads(Path(sys.argv[1]).read_bytes())
    replies = [compile_graph(regor, request, graph) for graph in request["graphs"]]
    Path(sys.argv[2]).write_bytes(pickle.dumps(replies))


if __name__ == "__main__":
    main()
