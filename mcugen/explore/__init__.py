# SPDX-License-Identifier: Apache-2.0
"""Which board, which precision, which goal: all combinations of a model's, in parallel, kept between runs."""
