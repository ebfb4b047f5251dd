# SPDX-License-Identifier: Apache-2.0
"""The commands of the command line, one module each; `mcugen.cli.app` registers them."""
