# SPDX-License-Identifier: Apache-2.0
"""The console in chromium: noVNC shows the screen of a simulated guest, and sends it keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.controller.conftest import wait_until
from tests.controller.test_connect import Site, site_in
from tests.controller.test_portal import PASSWORD
from tests.web.browser import sign_in
from tests.web.test_portal import looked_at
from vgpuctl.sim.screen import COLOUR, KEY_COLOUR

CONSOLE = "/desktops/office-001/console"
PIXEL = "Array.from(document.querySelector('#console-screen canvas').getContext('2d').getImageData(9, 9, 1, 1).data)"
"""Red, green, blue and opacity of one pixel of the screen."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Ada has office-001; carol operates its pool."""
    with site_in(tmp_path_factory.mktemp("console")) as one:
        one.ensure_pool(console=True)
        run = one.controller.run
        assert run("ensure-person", "carol").returncode == 0
        assert run("set-password", "carol", "--password-file", str(one.directory / "password")).returncode == 0
        assert run("entitle", "carol", "operate", "--pool", "office").returncode == 0
        yield one


def signed_in(browser: Browser, site: Site, name: str) -> Page:
    """Return a page of somebody who has signed in."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{site.controller.port}")
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto("/my")
    sign_in(page, name, PASSWORD)
    expect(page.get_by_role("heading", name="My desktops")).to_be_visible()
    return page


def shows(page: Page, colour: bytes) -> None:
    """Wait until the screen has a colour."""
    blue, green, red, _ = colour
    wait_until(lambda: page.evaluate(PIXEL) == [red, green, blue, 255], f"a screen of {colour!r}")


def test_the_screen_and_its_keys(browser: Browser, site: Site) -> None:
    page = signed_in(browser, site, "ada")
    errors: list[str] = []
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    page.get_by_role("link", name="Console of office-001").click()
    assert page.url.endswith(CONSOLE)
    state = page.locator("#console-state")
    page.get_by_role("button", name="Open the screen").click()
    expect(state).to_have_text("The screen is open.")
    shows(page, COLOUR)
    page.keyboard.down("a")
    shows(page, KEY_COLOUR)
    page.keyboard.up("a")
    shows(page, COLOUR)
    page.keyboard.press("Control+Alt+Shift")
    expect(page.get_by_role("button", name="Close the screen")).to_be_focused()
    page.keyboard.down("a")
    shows(page, COLOUR)
    page.get_by_label("Type a text in there").fill("pässword")
    page.get_by_role("button", name="Type").click()
    expect(state).to_have_text("Only characters of a US keyboard can be typed from here.")
    looked_at(page, "console")
    page.get_by_role("button", name="Close the screen").click()
    expect(state).to_have_text("The screen is closed.")
    page.get_by_role("button", name="Open the screen").click()
    expect(state).to_have_text("The screen is open.")
    page.reload()
    page.get_by_role("button", name="Open the screen").click()
    expect(state).to_have_text("The screen is open.")
    shows(page, COLOUR)
    assert errors == [], "such as what the policy of contents refuses"
    page.context.close()


def test_an_operator_looks_at_a_users_screen(browser: Browser, site: Site) -> None:
    """Its user sees that on her page. While it is open, nobody else has it."""
    page = signed_in(browser, site, "carol")
    page.goto("/desktops/office-001")
    page.get_by_role("link", name="Console").click()
    expect(page.locator("#console")).to_contain_text("ada has this desktop")
    page.get_by_role("button", name="Open the screen").click()
    expect(page.locator("#console-state")).to_have_text("The screen is open.")
    shows(page, COLOUR)
    other = signed_in(browser, site, "ada")
    expect(other.locator("#desktops")).to_contain_text("carol opened its screen")
    other.goto(CONSOLE)
    other.get_by_role("button", name="Open the screen").click()
    expect(other.locator("#console-state")).to_contain_text("carol has the screen of office-001 open")
    assert site.controller.run("revoke", "carol", "--pool", "office").returncode == 0
    expect(page.locator("#console-state")).to_contain_text("there is no desktop office-001")
    other.get_by_role("button", name="Open the screen").click()
    expect(other.locator("#console-state")).to_have_text("The screen is open.")
    other.goto("/my")
    expect(other.locator("#desktops")).to_contain_text("and closed it")
    page.context.close()
    other.context.close()
