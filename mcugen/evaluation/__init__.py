# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a model's results: samples, sessions, metrics."""
