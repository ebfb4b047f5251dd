# SPDX-License-Identifier: Apache-2.0
"""Code generation: C identifiers, literals and files of a planned program."""
