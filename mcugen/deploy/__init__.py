# SPDX-License-Identifier: Apache-2.0
"""Steps from a compiled model to a product: linking of several models, device validation, and safety evidence."""
