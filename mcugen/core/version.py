# SPDX-License-Identifier: Apache-2.0
"""The version of the compiler, which every generated file names."""

__version__ = "0.1.0"
