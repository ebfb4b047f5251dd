# SPDX-License-Identifier: Apache-2.0
"""The version of the compiler, which every generated file names; pyproject.toml reads it from here."""

__version__ = "0.2.0"

RELEASE_DATE = "2026-11-29"
"""Date of this version as year, month and day; generated CMSIS-Packs have it as the date of their release."""

PLACEHOLDER_URL = "https://example.com"
"""Web address in the metadata of packages, where package tools require one and the user gives none (RFC 2606)."""
