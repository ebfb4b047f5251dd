# SPDX-License-Identifier: Apache-2.0
"""The command line as `python -m mcugen`."""

from mcugen.cli.app import main

main()
