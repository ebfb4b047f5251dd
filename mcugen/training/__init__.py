# SPDX-License-Identifier: Apache-2.0
"""Models that go on learning where they run: an inference model becomes one with a loss, its gradients and updates."""
