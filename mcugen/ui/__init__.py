# SPDX-License-Identifier: Apache-2.0
"""A local web page from a model to a package for a board: a thin layer over the Python interface and the reports."""
