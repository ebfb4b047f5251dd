# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site and as files of the repository: its length, structure, links and code blocks."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from browser import needs_chromium, opened
from count_words import DOCS, words_by_page, written_by_hand
from selenium.webdriver.support.ui import WebDriverWait
from site_pages import PROJECT, project_pages, rewritten

ROOT = DOCS.parent
MAX_WORDS = 45_000
"""Words that are written by hand in docs/."""
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LINKED = [*(f"docs/{page}" for page in PAGES), "README.md", *project_pages()]
"""Pages whose links must lead somewhere in the repository."""
LEADS = {
    "index.md": "This page lists",
    "start": "This page shows how to",
    "tutorials": "You will",
    "how-to": "This page shows how to",
    "reference": "This page lists",
    "explanation": "This page explains",
}
"""How pages of each kind begin: they say what a reader will be able to do or find."""
GUIDE_OF_CONTRIBUTORS = "how-to/recipes.md"
"""A page for contributors, whose steps change the repository itself."""


def test_the_documentation_is_short_enough() -> None:
    words = words_by_page()
    assert len(words) > 40
    assert sum(words.values()) <= MAX_WORDS, words


def test_generated_passages_do_not_count() -> None:
    page = "one two\n<!-- a-b:begin -->\nthree\n<!-- a-b:end -->\nfour <!-- c:begin -->"
    assert written_by_hand(page).split() == ["one", "two", "four", "<!--", "c:begin", "-->"]


@pytest.mark.parametrize("page", PAGES)
def test_markers_of_generated_passages_come_in_pairs(page: str) -> None:
    """A marker without its partner would hide passages from their generator, or count them as written by hand."""
    markers = re.findall(r"^<!-- ([\w.-]+):(begin|end) -->$", (DOCS / page).read_text(), re.MULTILINE)
    begun = [name for name, side in markers if side == "begin"]
    assert markers == [(name, side) for name in begun for side in ("begin", "end")]
    assert len(set(begun)) == len(begun)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_first_what_it_is_for(page: str) -> None:
    if page == GUIDE_OF_CONTRIBUTORS:
        pytest.skip("has another beginning")
    text = re.sub(r"<!--.*?-->\n", "", (DOCS / page).read_text(), count=1) if page else ""
    title, lead = re.match(r"# (.+)\n\n((?:.+\n)+)", text).groups()  # type: ignore[union-attr]
    assert title
    assert lead.startswith(LEADS[page.split("/")[0]])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_no_file_that_users_lack(page: str) -> None:
    assert "../shared" not in written_by_hand((DOCS / page).read_text())


def navigation(entries: list[object]) -> list[str]:
    """Return the pages of a part of the navigation, in order."""
    found: list[str] = []
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += navigation(value) if isinstance(value, list) else [str(value)]
    return found


def configuration() -> dict[str, list[object]]:
    """Return the site's configuration; tags that only Python reads are left out."""
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text())
    return dict(yaml.safe_load(text))


def test_the_navigation_has_every_page_once() -> None:
    pages = navigation(configuration()["nav"])
    assert Counter(page for page in pages if not page.startswith(f"{PROJECT}/")) == Counter(PAGES)


def anchors(page: Path) -> set[str]:
    """Return the names that links to a page may end with, by the rules of forges."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_to_files_and_headings(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for path, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = Path(os.path.normpath((ROOT / page).parent / path)) if path else ROOT / page
        assert target.exists(), f"{page}: {path}"
        assert not anchor or anchor in anchors(target), f"{page}: {path}#{anchor}"


def test_paths_of_pages_exist_wherever_they_are_named() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not tracked:
        pytest.skip("not a git repository")
    missing = []
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".j2", ".h", ".c", ".toml", ".yml", ".sh"} and path.is_file():
            named = re.findall(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|json|png|svg)\b", path.read_text())
            missing += [(name, page) for page in named if not (ROOT / page).exists()]
    assert missing == []


PARSERS = {"python": ast.parse, "toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}


def code_blocks() -> list[tuple[str, str, str]]:
    """Return page, language and text of the code blocks that a parser exists for."""
    blocks = [
        (page, *block)
        for page in PAGES
        for block in re.findall(r"^```(\w+)\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    ]
    return [block for block in blocks if block[1] in PARSERS]


def test_code_blocks_parse() -> None:
    blocks = code_blocks()
    assert {kind for _, kind, _ in blocks} >= {"python", "toml", "yaml"}
    for page, kind, text in blocks:
        try:
            PARSERS[kind](text)
        except (SyntaxError, ValueError, yaml.YAMLError) as error:
            pytest.fail(f"{page}: {error}")


def test_the_generated_code_page_lists_all_codes_headers_and_the_version() -> None:
    page = (DOCS / "reference" / "generated_code.md").read_text()
    header = (ROOT / "runtime_c" / "include" / "mcugen.h").read_text()
    codes = re.findall(r"#define (MCUGEN_ERROR_\w+) (\d+)", header)
    assert len(codes) > 20
    assert [f"| {value} | `{code}` |" for code, value in codes if f"| {value} | `{code}` |" not in page] == []
    (version,) = re.findall(r"#define MCUGEN_ABI_VERSION (\d+)", header)
    assert f"`MCUGEN_ABI_VERSION` is {version}." in page
    for path in (ROOT / "runtime_c" / "include").glob("mcugen*.h"):
        assert path.name in page or re.sub(r"(?<=cores_)\w+", "PORT", path.name) in page


def test_links_are_led_to_pages_of_the_site() -> None:
    assert rewritten("[a](../../ARCHITECTURE.md#x)", "how-to/a.md") == f"[a](../{PROJECT}/ARCHITECTURE.md#x)"
    assert rewritten("[a](../../tools/zoo.py)", "how-to/a.md") == "a"
    assert rewritten("[a](b.md)", "how-to/a.md") == "[a](b.md)"
    assert rewritten("[a](docs/index.md)", f"{PROJECT}/ARCHITECTURE.md") == "[a](../index.md)"
    assert rewritten("[a](../../docs/index.md)", f"{PROJECT}/examples/b/README.md") == "[a](../../../index.md)"
    assert rewritten("[a](https://example.org/b)", "how-to/a.md") == "[a](https://example.org/b)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, in which every warning is an error, and return its folder."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*\ssrc=[\"']?(?:https?:)?//|<link\b[^>]*\bhref=[\"']?(?:https?:)?//")
"""What a page loads from another host; links that a reader may follow are none."""


def test_the_pattern_finds_what_is_loaded() -> None:
    assert LOADED.search('<script src="https://example.org/a.js">')
    assert LOADED.search('<link rel="stylesheet" href="//example.org/a.css">')
    assert not LOADED.search('<a href="https://example.org"><script src="a.js"><link href="a.css">')


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    assert [page.name for page in pages if LOADED.search(page.read_text())] == []
    assert "QuantizedModel" in (site / "reference" / "python.html").read_text()


IS_LOADED = "return document.readyState == 'complete'"


@needs_chromium
def test_the_site_is_searched_from_files(site: Path) -> None:
    with opened(site / "how-to" / "quantize.html", ready=IS_LOADED) as page:
        page.run("document.querySelector('#__search').click()")
        page.driver.find_element("css selector", "[data-md-component=search-query]").send_keys("stack bound")
        found = WebDriverWait(page.driver, 60).until(
            lambda driver: driver.find_elements("css selector", ".md-search-result__item a")
        )
        assert any("safety" in str(link.get_attribute("href")) for link in found)
        assert page.requests == []
        assert page.errors == []


@needs_chromium
@pytest.mark.parametrize("name", ["index", "explanation/memory", "reference/figures/performance"])
def test_a_page_does_not_scroll_sideways_on_a_telephone(site: Path, name: str) -> None:
    with opened(site / f"{name}.html", 400, ready=IS_LOADED) as page:
        assert page.run("return document.documentElement.scrollWidth") <= 400


def test_pages_have_the_titles_of_their_headings(site: Path) -> None:
    assert "<title>Measure on your own board - mcugen</title>" in (site / "how-to" / "validate.html").read_text()
