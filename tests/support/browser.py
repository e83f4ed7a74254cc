"""A real browser for the tests of the dashboard: Debian's Chromium without a screen, and its driver.

Where there is none the tests are skipped; PREFORK_Q_TEST_BROWSER=1 says that there is one: then they fail.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.until import until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # which it does not have as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
    "--window-size=1280,900",
)
PATIENCE = 15.0
"""Seconds that a page may take to show something."""


class NoBrowser(Exception):
    """None can be had here; the text says why."""


class Browser:
    """One browser with one tab. Elements are named by CSS selectors, and `text` is what a person sees."""

    def __init__(self, profile: Path) -> None:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        driver = shutil.which("chromedriver")
        if program is None or driver is None:
            raise NoBrowser("chromium and chromedriver are not both installed")
        try:
            from selenium import webdriver
            from selenium.webdriver.chrome.service import Service
        except ImportError as error:
            raise NoBrowser(f"the package selenium is not installed: {error}") from error
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_page_load_timeout(PATIENCE)

    def close(self) -> None:
        """End it with all its processes."""
        self.driver.quit()

    def open(self, url: str) -> None:
        """Show a page as to a new visitor: with nothing stored, on a light screen of the usual size."""
        if self.driver.current_url.startswith("http"):
            self.script("sessionStorage.clear(); localStorage.clear()")
        self.driver.get("about:blank")
        self.command("Network.clearBrowserCookies")
        self.command("Emulation.setEmulatedMedia", features=[])
        self.command("Emulation.clearDeviceMetricsOverride")
        self.complaints()
        self.driver.get(url)

    def command(self, name: str, **parameters: Any) -> Any:
        """Give one of the commands of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def script(self, text: str, *arguments: Any) -> Any:
        """Run JavaScript in the page and return what it returns."""
        return self.driver.execute_script(text, *arguments)

    def find(self, selector: str) -> Any:
        """Return the first element that is shown, once there is one."""
        return until(lambda: next(iter(self.shown(selector)), None), PATIENCE, f"{selector} on the page")

    def shown(self, selector: str) -> list[Any]:
        from selenium.common.exceptions import StaleElementReferenceException

        found = []
        for element in self.driver.find_elements("css selector", selector):
            try:
                if element.is_displayed():
                    found.append(element)
            except StaleElementReferenceException:
                continue
        return found

    def click(self, selector: str) -> None:
        self.find(selector).click()

    def type(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def text(self, selector: str = "body") -> str:
        """Return what is to be read there now, "" if nothing is there or to be seen."""
        look = (
            "const found = document.querySelector(arguments[0]);"
            "return found?.checkVisibility() ? found.innerText : ''"
        )
        read: str = self.script(look, selector)
        return read

    def wait_text(self, selector: str, text: str, timeout: float = PATIENCE) -> None:
        """Wait until a text is to be read there."""
        what = f"{text!r} in {selector}"
        try:
            until(lambda: text in self.text(selector), timeout, what, every=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; there is: {self.text(selector)!r}") from None

    def complaints(self, *, but: Iterable[str] = ("Failed to load resource",)) -> list[str]:
        """Return what the page's console has said since the last call."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        return [line for line in said if not any(part in line for part in but)]
