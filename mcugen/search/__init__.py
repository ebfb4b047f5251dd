# SPDX-License-Identifier: Apache-2.0
"""The search for a program: plans, transformations, the objective, and the driver (mcugen.search.program_search)."""
