# SPDX-License-Identifier: Apache-2.0
"""The search for a program, and what all searches of mcugen share.

A search compares candidates: programs with the decisions that made them (`plan`) and their cost (`metrics`). The
objective (`objective`) holds the goal, the limits and all tolerances, and makes all comparisons. The cost model
(`cost_model`) evaluates a candidate at an accuracy level: by estimates, in the memories where everything lies, with
its built code, or in the simulator. The trace (`trace`) records candidates and verdicts.

The program search (`program_search`) makes its decisions in three steps, each kind of decision in a module of its own:

1. The program for a goal (`goal_program`): kernels, attention head by head (`head_splitting`), line-buffered groups
   (`line_buffering`, `line_buffer_tradeoff`), spatial tiling (`spatial_tiling`), compressed weights
   (`weight_decompression`); for two cores, layers and branches on both (`two_core_program`).
2. Refinements (registry REFINEMENTS in `refinements`): alternatives within the budget by the transformations (registry
   TRANSFORMATIONS in `transformations`), copies of weights (`weight_staging`, `weight_copies`), and output-channel
   tiling (`channel_tiling`).
3. The limit on the slowdown of `balanced` (`slowdown_cap`), which compares whole searches.

A further decision is a class with one line in a registry. Searches by measured time (mcugen.autotuning) and over
boards and precisions (mcugen.explore) use the same objective, cost model and trace.
"""
