# SPDX-License-Identifier: Apache-2.0
"""Work on compiled models on their way to a product: linking, device validation, evidence."""
