# SPDX-License-Identifier: Apache-2.0
"""High-level intermediate representation (HIR): a typed graph of operators. It knows no operator by name."""
