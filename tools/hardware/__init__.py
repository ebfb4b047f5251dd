# SPDX-License-Identifier: Apache-2.0
"""Programs whose cycles others measured on hardware, and our estimates of them."""
