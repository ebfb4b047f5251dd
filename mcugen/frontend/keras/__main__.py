# SPDX-License-Identifier: Apache-2.0
"""The child process of `mcugen.frontend.keras.child`: converts a .keras file and writes the result to another file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mcugen.core.errors import McugenError
from mcugen.frontend.keras.model import convert_file


def _main(path: Path, result: Path) -> int:
    """Convert a file and write the ONNX model, or the parts of an error, to `result`; return the exit code."""
    try:
        proto = convert_file(path)
    except McugenError as error:
        result.write_text(json.dumps([error.rule, error.found, error.remedy]))
        return error.exit_code
    result.write_bytes(proto.SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(_main(*map(Path, sys.argv[1:])))
