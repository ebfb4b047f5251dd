# SPDX-License-Identifier: Apache-2.0
"""The passes of the pipeline; compiler.py says in which order and why."""
