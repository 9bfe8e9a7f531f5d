"""Debian's Chromium, driven by playwright; without either, tests that need it are skipped with the reason."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CANDIDATES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """The browser of this machine, if it has one."""
    return os.environ.get("CDCD_CHROMIUM") or next(
        filter(None, map(shutil.which, CANDIDATES)), None
    )


@contextmanager
def chromium() -> Iterator[Any]:
    """Yields a browser with a new, empty profile."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if (path := executable()) is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or set CDCD_CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Any, expected: str = "", **options: Any) -> Iterator[Any]:
    """Yields a page; an error on its console, or one that nobody caught, is an error of the test.

    Where a text is expected, errors that have it are none.
    """
    context, errors = browser.new_context(**options), []
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.on(
        "console",
        lambda said: errors.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield page
    finally:
        context.close()
    errors = [error for error in errors if not expected or expected not in error]
    assert not errors, errors
