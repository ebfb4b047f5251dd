# SPDX-License-Identifier: Apache-2.0
"""Starts `mcugen ui`, and drives its page in a real browser."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import Page

needs_nicegui = pytest.mark.skipif(find_spec("nicegui") is None, reason="needs nicegui: pip install 'mcugen[ui]'")


@dataclass(frozen=True)
class Server:
    """A running `mcugen ui`.

    Attributes:
        address: Its address with the token.
        project: Folder of its project.
        process: Its process.
    """

    address: str
    project: Path
    process: subprocess.Popen[str]

    @property
    def host(self) -> str:
        """Return address and port."""
        return urlsplit(self.address).netloc

    def request(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET", data: bytes | None = None
    ) -> tuple[int, str]:
        """Return status and text of an answer; `headers` replace those of a program without a cookie."""
        request = urllib.request.Request(f"http://{self.host}{path}", data, dict(headers or {}), method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode("utf-8", "replace")

    def cookie(self) -> str:
        """Return the cookie of a browser that opened the address."""
        with urllib.request.urlopen(self.address, timeout=20) as answer:
            return str(answer.headers["set-cookie"]).partition(";")[0]


@contextmanager
def serving(project: Path, *options: str) -> Iterator[Server]:
    """Run `mcugen ui` on a project; it must end without a traceback."""
    command = [sys.executable, "-W", "ignore", "-m", "mcugen", "ui", str(project), "--no-browser", *options]
    log = project.with_name(f"{project.name}.log")
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline().split()
        assert first, log.read_text()
        yield Server(first[1], project, process)
    finally:
        process.terminate()
        process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


def open_page(page: Page, server: Server) -> None:
    """Open the page with the token, and wait until it is connected."""
    page.driver.get(server.address)
    page.wait("return !!document.querySelector('#jobs .panel') && window.socket && window.socket.connected")


def drop(page: Page, section: str, *files: Path, kind: str = "files") -> None:
    """Give files to a section as its file dialog does."""
    page.driver.find_element("css selector", f"#{section} input.{kind}").send_keys("\n".join(map(str, files)))


def press(page: Page, section: str, label: str, seconds: float = 60) -> None:
    """Press a button with the keyboard: focus, then Enter; a panel that is drawn again replaces its buttons."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.common.keys import Keys

    deadline = time.monotonic() + seconds
    while True:
        try:
            buttons = page.driver.find_elements("css selector", f"#{section} button")
            next(button for button in buttons if button.text.strip() == label).send_keys(Keys.ENTER)
            return
        except (WebDriverException, StopIteration):
            assert time.monotonic() < deadline, f"no button '{label}'"
            time.sleep(0.1)


def choose_board(page: Page, name: str) -> None:
    """Choose a board with the keyboard."""
    from selenium.webdriver.common.keys import Keys

    control = page.driver.find_element("css selector", "#choices input[aria-label='Board']")
    control.send_keys(Keys.CONTROL, "a")
    control.send_keys(name)
    page.wait(
        f"return [...document.querySelectorAll('.q-menu .q-item')].map(item => item.innerText).join() == '{name}'"
    )
    control.send_keys(Keys.ARROW_DOWN, Keys.ENTER)
    page.wait("return !document.querySelector('.q-menu')")


def choose(page: Page, section: str, label: str, value: str) -> None:
    """Type a value into a list that takes new ones."""
    from selenium.webdriver.common.keys import Keys

    control = page.driver.find_element("css selector", f"#{section} input[aria-label='{label}']")
    control.send_keys(Keys.CONTROL, "a")
    control.send_keys(value, Keys.ENTER, Keys.TAB)


def shows(page: Page, section: str, words: str, seconds: float = 60) -> None:
    """Wait until a section shows some words; otherwise the error has what it shows."""
    deadline = time.monotonic() + seconds
    while words not in (shown := page.run(f"return document.querySelector('#{section}').innerText")):
        assert time.monotonic() < deadline, f"no {words!r} in:\n{shown}"
        time.sleep(0.1)
