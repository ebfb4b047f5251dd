# SPDX-License-Identifier: Apache-2.0
"""What an assessor asks for beside the code of a model: see docs/evidence.md."""
