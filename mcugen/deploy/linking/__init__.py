# SPDX-License-Identifier: Apache-2.0
"""Linking of several models to one firmware with shared code and constants, and a report of the savings."""

from mcugen.deploy.linking.figures import LinkFigure, LinkReport
from mcugen.deploy.linking.linking import Linking

__all__ = ["LinkFigure", "LinkReport", "Linking"]
