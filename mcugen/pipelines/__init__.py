# SPDX-License-Identifier: Apache-2.0
"""Input pipelines, from raw data to a model's input.

One description is interpreted by numpy and compiled to C, with the same bits.
"""

from mcugen.pipelines.feed import Feed, bind
from mcugen.pipelines.grammar import parse_pipeline, read_pipeline, with_preprocessing

__all__ = ["Feed", "bind", "parse_pipeline", "read_pipeline", "with_preprocessing"]
