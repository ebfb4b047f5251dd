# SPDX-License-Identifier: Apache-2.0
"""From raw data to a model's input: one description, which numpy interprets and C is generated of, to the same bits."""

from mcugen.pipelines.feed import Feed, bind
from mcugen.pipelines.grammar import parse_pipeline, read_pipeline, with_preprocessing

__all__ = ["Feed", "bind", "parse_pipeline", "read_pipeline", "with_preprocessing"]
