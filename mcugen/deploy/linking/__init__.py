# SPDX-License-Identifier: Apache-2.0
"""Several models, one firmware: what they share exists once, and what that saves is told."""

from mcugen.deploy.linking.figures import LinkReport, Sum
from mcugen.deploy.linking.linking import Linking

__all__ = ["LinkReport", "Linking", "Sum"]
