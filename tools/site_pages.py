# SPDX-License-Identifier: Apache-2.0
"""MkDocs hook: pages of the repository outside docs/ become pages of the site below `project/`.

Pages link to files of the repository by relative paths, so that the links work in the repository. The hook leads links
to Markdown files to the pages made of them, and leaves the text of links to all other files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "project"
"""Folder of the site with the pages from outside of docs/."""
SOURCES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages at the root of the repository that the site has; each example's README.md is one, too."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_LICENCE = re.compile(r"\A<!-- SPDX-License-Identifier: [\w.-]+ -->\n")


def project_pages() -> list[str]:
    """Return the paths, within the repository, of the pages outside of docs/ that the site has."""
    examples = sorted((ROOT / "examples").rglob("README.md"))
    return [*SOURCES, *(path.relative_to(ROOT).as_posix() for path in examples)]


def site_link(target: str, page: str) -> str | None:
    """Return the link to a file of the repository from a page of the site, or None if the site lacks that file.

    Args:
        target: The path of the file within the repository.
        page: The path of the page within the site's sources.
    """
    if target.startswith("docs/") and (ROOT / target).is_file():
        source = target.removeprefix("docs/")
    elif target in project_pages():
        source = f"{PROJECT}/{target}"
    else:
        return None
    return os.path.relpath(source, Path(page).parent)


def rewritten(markdown: str, page: str) -> str:
    """Return the text of a page with its links to files of the repository led to pages of the site."""
    own = page.removeprefix(f"{PROJECT}/") if page.startswith(f"{PROJECT}/") else f"docs/{page}"

    def link(match: re.Match[str]) -> str:
        image, text, path, anchor = match.groups()
        target = os.path.normpath(Path(own).parent / path)
        if target.startswith("docs/") and not page.startswith(f"{PROJECT}/"):
            return match[0]
        found = site_link(target, page)
        return text if found is None else f"{image}[{text}]({found}{anchor or ''})"

    return _LINK.sub(link, markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/."""
    from mkdocs.structure.files import File

    for name in project_pages():
        files.append(File.generated(config, f"{PROJECT}/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files outside of docs/ to their pages; without its licence a page begins with its title."""
    return rewritten(_LICENCE.sub("", markdown), page.file.src_uri)
