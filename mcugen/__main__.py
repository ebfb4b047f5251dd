# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m mcugen`."""

from mcugen.cli.app import main

main()
