# SPDX-License-Identifier: Apache-2.0
"""Where everything lies: lives of buffers, order, placement, and the check of it."""
