# SPDX-License-Identifier: Apache-2.0
"""Chromium with a controller: pages change by themselves, fit small screens, and pass axe in light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.controller.conftest import Server
from tests.web.site import ADMIN, Site, running_site
from tests.web.test_pages import MOST_QUERIES, PATHS

RULES: dict[str, Any] = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
ONLY_COLORS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
SIZES = {"phone": (360, 740), "laptop": (1440, 900), "4k": (3840, 2160)}


@contextmanager
def opened(browser: Browser, site: Site, size: str = "laptop", **more: Any) -> Iterator[Page]:
    """Yield a page of which nothing may be written to the console."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, extra_http_headers=site.headers, base_url=site.url, **more
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(20_000)
    try:
        yield page
        assert problems == []
    finally:
        context.close()


def test_it_is_an_ordinary_user_in_a_sandbox(browser: Browser) -> None:
    page = browser.new_page()
    page.goto("chrome://sandbox")
    assert "You are adequately sandboxed." in page.inner_text("body")
    page.close()


STILL = ("/capacity", "/use", "/desktops/office-001/console")
"""Pages that do not change by themselves."""


def test_axe_finds_nothing_on_any_page(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        for path in PATHS:
            page.emulate_media(color_scheme="light")
            page.goto(path)
            expect(page.locator("#live")).to_have_text("" if path in STILL else "live")
            assert [(path, one["id"], one["nodes"][0]["html"]) for one in _violations(page)] == []
            page.emulate_media(color_scheme="dark")
            assert [(path, one["nodes"][0]["html"]) for one in _violations(page, ONLY_COLORS)] == []


def _violations(page: Page, rules: dict[str, Any] = RULES) -> list[Any]:
    violations: list[Any] = Axe().run(page, options=rules).response["violations"]
    return violations


def test_error_pages_and_an_empty_fleet_pass_axe_too(browser: Browser, tmp_path: Path) -> None:
    with running_site(tmp_path, engine=False) as empty:
        context = browser.new_context(extra_http_headers=empty.headers, base_url=empty.url)
        page = context.new_page()
        for path in ("/", "/pools", "/desktops", "/hosts", "/images", "/journal", "/nope", "/desktops?state=odd"):
            page.goto(path)
            assert _violations(page) == [], path
        context.close()


@pytest.mark.parametrize("size", SIZES)
def test_no_page_is_wider_than_its_window(browser: Browser, site: Site, size: str) -> None:
    with opened(browser, site, size) as page:
        for path in PATHS:
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0], path


def test_a_change_is_seen_without_reloading_and_nothing_else_is_replaced(browser: Browser, tmp_path: Path) -> None:
    with running_site(tmp_path, hosts=2, maximum=12, spare=3) as site, opened(browser, site) as page:
        site.wait_until(lambda: site.ready() == 9, "nine desktops")
        page.goto("/")
        expect(page.locator("#live")).to_have_text("live")
        page.evaluate("window.mark = document.querySelector('main').mark = 1")
        in_use = page.locator(".counts li", has_text="In use").locator(".value")
        expect(in_use).to_have_text("0")
        page.locator("#pools a", has_text="office").focus()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        site.fleet.assign(ADMIN, "office", "ada")
        expect(in_use).to_have_text("1")
        expect(page.locator("#gpus rect.s-in-use title").first).to_have_text("office-001, A100-4C, assigned, ada")
        assert page.evaluate("window.mark") == 1
        expect(page.locator("#pools a", has_text="office")).to_be_focused()
        assert {url.rpartition("=")[2] for url in asked} <= {"counts", "pools", "gpus"}
        site.fleet.pause_pool(ADMIN, "office", "<b>bold</b>")
        page.goto("/pools/office")
        expect(page.locator("#notice")).to_contain_text("<b>bold</b>")
        site.fleet.resume_pool(ADMIN, "office")
        expect(page.locator("#notice")).to_have_count(0)
        expect(page.locator("#summary")).to_have_text("pool, floating, active")


def test_after_the_stream_broke_the_page_says_so_and_becomes_live_again(browser: Browser, tmp_path: Path) -> None:
    with running_site(tmp_path, hosts=1, engine=False) as site:
        context = browser.new_context(extra_http_headers=site.headers, base_url=site.url)
        page = context.new_page()
        page.goto("/pools")
        live = page.locator("#live")
        expect(live).to_have_text("live")
        assert live.get_attribute("aria-live") == "polite"
        page.route("**/web/stream*", lambda route: route.abort())
        assert site.live is not None
        site.end_streams()
        expect(live).to_have_text("not live: connecting again")
        site.fleet.pause_pool(ADMIN, "office", None)
        page.unroute("**/web/stream*")
        expect(live).to_have_text("live", timeout=30_000)
        expect(page.locator("#pools")).to_contain_text("paused")
        context.close()


def test_a_database_that_is_away_and_back(browser: Browser, tmp_path: Path, postgresql: Server) -> None:
    """Also a page costs no more queries than with SQLite, plus the database's time."""
    with running_site(tmp_path, hosts=2, maximum=4, spare=2, engine=False, url=postgresql.url("fleet")) as site:
        for path in ("/", "/pools", "/pools/office", "/hosts", "/images", "/journal", "/desktops"):
            answer, queries = site.counted(path)
            assert (answer.status, queries <= MOST_QUERIES + 4) == (200, True), (path, queries)
        assert site.counted("/")[1] <= MOST_QUERIES
        context = browser.new_context(extra_http_headers=site.headers, base_url=site.url)
        page = context.new_page()
        page.goto("/pools")
        expect(page.locator("#live")).to_have_text("live")
        postgresql.stop()
        expect(page.locator("#live")).to_have_text("not live: the database does not answer", timeout=30_000)
        away = context.new_page()
        answer = away.goto("/pools")
        assert answer is not None
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "database" in away.inner_text("main")
        assert _violations(away) == []
        postgresql.start()
        site.fleet.pause_pool(ADMIN, "office", None)
        expect(page.locator("#live")).to_have_text("live", timeout=30_000)
        expect(page.locator("#pools")).to_contain_text("paused")
        context.close()


def test_the_fifth_page_of_a_person_is_not_live_and_says_so(browser: Browser, site: Site) -> None:
    context = browser.new_context(extra_http_headers=site.headers, base_url=site.url)
    pages = [context.new_page() for _ in range(5)]
    for page in pages[:4]:
        page.goto("/pools")
        expect(page.locator("#live")).to_have_text("live")
    pages[4].goto("/pools")
    expect(pages[4].locator("#live")).to_have_text("not live: connecting again")
    expect(pages[4].locator("#pools")).to_contain_text("office")
    context.close()


def test_without_javascript_all_is_there(browser: Browser, site: Site) -> None:
    with opened(browser, site, java_script_enabled=False) as page:
        page.goto("/desktops")
        page.get_by_label("Pool").select_option("office")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#desktops tbody tr")).to_have_count(4)
        assert page.locator("#live").is_hidden()
        page.get_by_role("link", name="office-001").click()
        expect(page.locator("h1")).to_have_text("office-001")


def test_the_keyboard_reaches_everything(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        page.goto("/pools")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        _press_until(page, lambda: page.evaluate("document.activeElement.textContent") == "office")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("office")


def _press_until(page: Page, condition: Callable[[], bool]) -> None:
    for _ in range(20):
        page.keyboard.press("Tab")
        if condition():
            return
    raise AssertionError("the keyboard does not reach it")
