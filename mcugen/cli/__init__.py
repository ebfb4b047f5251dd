# SPDX-License-Identifier: Apache-2.0
"""The command line: commands, options, settings files and error rendering."""

from mcugen.cli.app import main

__all__ = ["main"]
