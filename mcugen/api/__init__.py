# SPDX-License-Identifier: Apache-2.0
"""The public Python interface: compilation, evaluation and export of one model for one board."""
