# SPDX-License-Identifier: Apache-2.0
"""Print how many words of each page of docs/ are written by hand: `python tools/count_words.py`.

Passages between markers (`<!-- NAME:begin -->`) are generated and do not count.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
_GENERATED = re.compile(r"<!-- ([\w.-]+):begin -->\n.*?<!-- \1:end -->", re.DOTALL)


def written_by_hand(page: str) -> str:
    """Return the text of a page without its generated passages."""
    return _GENERATED.sub("", page)


def words_by_page() -> dict[str, int]:
    """Return the number of words that are written by hand, by the path of the page within docs/."""
    pages = sorted(DOCS.rglob("*.md"))
    return {page.relative_to(DOCS).as_posix(): len(written_by_hand(page.read_text()).split()) for page in pages}


def main() -> None:
    """Print a line for each page, and the sum."""
    words = words_by_page()
    for page, count in words.items():
        print(f"{count:7,}  {page}")
    print(f"{sum(words.values()):7,}  in all")


if __name__ == "__main__":
    main()
