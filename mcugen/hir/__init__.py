# SPDX-License-Identifier: Apache-2.0
"""The high-level IR: what is computed. It knows no operator by name."""
