"""A real browser for tests: Debian's chromium through playwright, or a sentence why there is none."""

import atexit
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def chromium() -> str:
    """The browser's path; skips the test where it, or playwright, is missing."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        import playwright  # noqa: F401, PLC0415 - an extra of the tests
    except ImportError:
        pytest.skip("playwright is not installed: pip install 'sca-search[test]'")
    return found or pytest.skip("chromium is not installed: apt-get install chromium")


@cache
def _browser() -> Any:
    """One for all tests of a process: its start takes longer than most of them."""
    path = chromium()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an extra of the tests

    playwright = sync_playwright().start()
    browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
    atexit.register(playwright.stop)
    atexit.register(browser.close)  # runs before the other
    return browser


@contextmanager
def opened(address: str | Path, **options: Any) -> Iterator[Any]:
    """A page that is drawn; in the end it must have said nothing in the console and asked nobody but its own server."""
    url = address.resolve().as_uri() if isinstance(address, Path) else address
    complaints: list[str] = []
    context = _browser().new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("request", lambda request: complaints.extend(_foreign(request.url, url)))
    try:
        page.goto(url)
        page.wait_for_selector("body[data-ready=yes]")
        yield page
    finally:
        context.close()
    assert complaints == []


def cpu_seconds(page: Any) -> float:
    """CPU time of the page's main thread so far, which does not depend on what else the machine does."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    return float(next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime"))


def _foreign(asked: str, page: str) -> list[str]:
    page = page.partition("#")[0]
    beside = page.rpartition("/")[0] + "/plotly.min.js"  # of pages that share it
    if asked in {page, beside} or asked.startswith(("data:", "blob:")):
        return []
    return [] if page.startswith("http") and asked.startswith(page) else [f"request: {asked}"]


def shown(page: Any, figure: str) -> Any:
    """A figure's plotly div, scrolled to and drawn."""
    block = page.locator(f'figure[data-figure="{figure}"]')
    block.scroll_into_view_if_needed()
    page.wait_for_selector(f'figure[data-figure="{figure}"] .plot.js-plotly-plot')
    return block.locator(".plot")


def drawn(figure: str, trace: str) -> str:
    """JavaScript for a trace as plotly has it now."""
    plot = f"""document.querySelector('figure[data-figure="{figure}"] .plot')"""
    return f'{plot}.data?.find((each) => each.name === "{trace}")'


def until(page: Any, condition: str, seconds: float = 30.0) -> None:
    """Waits for a condition in JavaScript; playwright's own way evaluates texts, which the page forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(50)


def values(page: Any, figure: str, trace: str, key: str) -> list[Any]:
    """What a figure's trace holds; nothing where there is no such trace."""
    found: list[Any] = page.evaluate(f"[...({drawn(figure, trace)}?.{key} ?? [])]")
    return found


def click_point(page: Any, figure: str, trace: str, index: int) -> None:
    """A real click of the mouse where plotly drew the point."""
    plot = shown(page, figure)
    place = page.evaluate(
        """([figure, name, index]) => {
            const plot = document.querySelector(`figure[data-figure="${figure}"] .plot`);
            const trace = plot.data.find((each) => each.name === name);
            const { xaxis, yaxis } = plot._fullLayout;
            return [xaxis._offset + xaxis.d2p(trace.x[index]), yaxis._offset + yaxis.d2p(trace.y[index])];
        }""",
        [figure, trace, index],
    )
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + place[0] - 3, box["y"] + place[1])
    page.mouse.move(box["x"] + place[0], box["y"] + place[1], steps=3)
    page.wait_for_timeout(150)
    page.mouse.click(box["x"] + place[0], box["y"] + place[1])
