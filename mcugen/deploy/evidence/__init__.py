# SPDX-License-Identifier: Apache-2.0
"""Evidence for functional-safety assessments of generated code; see docs/how-to/evidence.md."""
