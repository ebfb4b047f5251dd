# SPDX-License-Identifier: Apache-2.0
"""The options of mcugen as one table, from which command line, settings files, Python keywords and documents follow."""
