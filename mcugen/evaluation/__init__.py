# SPDX-License-Identifier: Apache-2.0
"""What a model's results are worth: samples, sessions, metrics."""
