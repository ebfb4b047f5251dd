# SPDX-License-Identifier: Apache-2.0
"""Exploration of all combinations of boards, precisions and goals for a model, in parallel, with cached results."""
