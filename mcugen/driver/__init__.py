# SPDX-License-Identifier: Apache-2.0
"""One compilation from input model to generated C, including models of several sizes and plug-ins."""
