# SPDX-License-Identifier: Apache-2.0
"""The commands, one module each; `mcugen.cli.app` makes a program of them."""
