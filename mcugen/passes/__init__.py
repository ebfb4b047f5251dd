# SPDX-License-Identifier: Apache-2.0
"""The passes of the compiler; a backend's pipeline says in which order they run and why."""
