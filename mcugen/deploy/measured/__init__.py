# SPDX-License-Identifier: Apache-2.0
"""Cycles measured on real boards, as users share them: files, checks, and the table beside the estimates."""
