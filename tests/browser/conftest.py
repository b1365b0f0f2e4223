"""A real browser for the tests of the report page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def browser_path() -> str | None:
    """A Chromium on this machine; LEGROOM_BROWSER names another."""
    named = os.environ.get("LEGROOM_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            # Without a path: the one that `playwright install chromium` fetched, if it could.
            started = playwright.chromium.launch(
                executable_path=browser_path(), args=["--no-sandbox", "--disable-gpu"]
            )
        except Error as error:
            pytest.fail(
                "The report page could not be tested: no Chromium was found or it did not start. "
                "`make browser` installs it (apt-get as root, or Playwright's own); "
                f"LEGROOM_BROWSER=/path names another. {str(error).splitlines()[0]}",
                pytrace=False,
            )
        yield started
        started.close()


class Opened:
    """A page in the browser, with all that it said and asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dialog)

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def series(self, chart: str, run: int = 0) -> dict[str, list[Any]]:
        """What a chart draws: the data of its series by name, read out of the chart library."""
        scope = "" if chart == "comparison" else f"article[data-run='{run}'] "
        drawn: dict[str, list[Any]] = self.page.evaluate(
            """selector => Object.fromEntries(
                echarts.getInstanceByDom(document.querySelector(selector)).getOption().series
                .map(one => [one.name || one.type, one.data]))""",
            f"{scope}[data-chart='{chart}']",
        )
        return drawn

    def values(self, selector: str, attribute: str = "data-bytes") -> list[str]:
        found: list[str] = self.page.eval_on_selector_all(
            selector, f"all => all.map(one => one.getAttribute('{attribute}'))"
        )
        return found


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def opened(path: Path, width: int = 1200, dark: bool = False) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            offline=True,
        )
        contexts.append(context)
        shown = Opened(context.new_page())
        shown.page.goto(path.as_uri())
        return shown

    yield opened
    for context in contexts:
        context.close()
