# SPDX-License-Identifier: Apache-2.0
"""Writes the picture of README.md, docs/images/report.png: the first screen of the demo's HTML report.

Needs Debian's chromium and chromium-driver; run by `make picture`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from browser import opened
from PIL import Image
from write_docs import DEMO, ROOT, output

PICTURE = ROOT / "docs" / "images" / "report.png"
WIDTH = 1200
"""Width of the page in pixels; the height is that of one screen."""
COLORS = 64
"""Colors of the picture, which keep it below 150 KB."""


def main() -> None:
    """Write the report, open it in a browser, and save what is visible."""
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "report.html", Path(folder) / "shot.png"
        output(*DEMO, "--html", str(page))
        with opened(page, WIDTH) as opened_page:
            opened_page.driver.save_screenshot(str(shot))
        PICTURE.parent.mkdir(exist_ok=True)
        with Image.open(shot) as image:
            image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
