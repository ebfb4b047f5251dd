# SPDX-License-Identifier: Apache-2.0
"""C identifiers, literals and files: everything between a planned program and the disk."""
