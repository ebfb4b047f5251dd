# SPDX-License-Identifier: Apache-2.0
"""Figures of a compiled model: one dataclass, shown as text or JSON."""
