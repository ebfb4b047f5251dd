# SPDX-License-Identifier: Apache-2.0
"""The search for a program, and what all searches of mcugen share.

A search compares candidates: programs with the decisions that made them (`plan`) and their cost (`metrics`). The
objective (`objective`) holds the goal, the limits and all tolerances, and makes all comparisons. The cost model
(`cost_model`) evaluates a candidate at an accuracy level: by estimates, in the memories where everything lies, with
its built code, or in the simulator. The trace (`trace`) records candidates and verdicts.

The program search (`program_search`) makes its decisions in steps. A further decision is a module with one class, and
one line in the registry of its step:

1. Changes of the graph for the least RAM: GRAPH_TRANSFORMATIONS, GROUPING_TRANSFORMATIONS and FASTER_GROUPINGS in
   `graph_variants`. They split attention heads (`head_splitting`), group layers in bodies (`line_buffer_bodies`), tile
   images (`spatial_tiling`) and compute two rows per step (`row_pairs`). `goal_program` builds the programs of all
   variants and chooses one, with line-buffered groups (`line_buffering`) and compressed weights
   (`weight_decompression`).
2. Changes of every candidate program: CANDIDATE_TRANSFORMATIONS in `candidates`, which assign layers to two cores
   (`two_core_program`).
3. Refinements: REFINEMENTS in `program_search`. They choose alternatives within the budget (TRANSFORMATIONS in
   `candidates`), copy weights (`weight_staging`, `weight_copies`), tile layers by output channels (`channel_tiling`),
   and limit the slowdown of `balanced` (`slowdown_cap`), which compares whole searches.

Searches by measured time (mcugen.autotuning) and over boards and precisions (mcugen.explore) use the same objective,
cost model and trace.
"""
