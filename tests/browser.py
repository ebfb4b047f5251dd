# SPDX-License-Identifier: Apache-2.0
"""Opens pages in a real browser: Debian's Chromium, driven by Selenium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs chromium and chromium-driver"
)

CHARTS_ARE_DRAWN = "return document.documentElement.dataset.drawn == 'yes'"
"""Whether the page of a report has drawn its charts."""


class Page:
    """A page that is open in Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript of the form `return …` in the page, and return its value."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, seconds: float = 60) -> Any:
        """Wait until JavaScript of the form `return …` gives a true value, and return it."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, 0.1).until(lambda driver: driver.execute_script(script))

    def resize(self, width: int, dark: bool = False) -> None:
        """Change the width of the window in pixels, and the color scheme that the browser prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    @property
    def errors(self) -> list[str]:
        """Return the error messages on the console, without those on icons, which browsers request by themselves."""
        return [entry["message"] for entry in self.driver.get_log("browser") if "favicon" not in entry["message"]]

    @property
    def requests(self) -> list[str]:
        """Return the URLs that the page requested from a network."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "file:"))]


@contextmanager
def opened(
    path: Path, width: int = 1400, dark: bool = False, seconds: float = 60, ready: str = CHARTS_ARE_DRAWN
) -> Iterator[Page]:
    """Open a page in Chromium, and yield it once it is ready.

    Args:
        path: The HTML file.
        width: Width of the window in pixels.
        dark: Whether the browser prefers a dark color scheme.
        seconds: Longest time to wait.
        ready: Script that returns whether the page is ready.
    """
    with chromium(width, dark) as page:
        page.driver.get(path.resolve().as_uri())
        page.wait(ready, seconds)
        yield page


@contextmanager
def chromium(width: int = 1400, dark: bool = False) -> Iterator[Page]:
    """Start Chromium, and yield its empty page.

    Args:
        width: Width of the window in pixels.
        dark: Whether the browser prefers a dark color scheme.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        page = Page(driver)
        page.resize(width, dark)
        yield page
    finally:
        driver.quit()


def screenshot(page: Page, path: Path) -> None:
    """Write a screenshot of the whole page."""
    import base64

    height = page.run("return document.documentElement.scrollHeight")
    width = page.run("return window.innerWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1}
    shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(shot["data"]))
