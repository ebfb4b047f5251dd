# SPDX-License-Identifier: Apache-2.0
"""x"""

def explored_page(explored): return ""
