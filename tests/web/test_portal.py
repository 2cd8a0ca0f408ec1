# SPDX-License-Identifier: Apache-2.0
"""A person in chromium: signs in, takes a desktop, sees it change without reloading, and gives it back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.web.browser import sign_in
from tests.web.site import ADMIN, Site, running_site
from tests.web.test_browser import ONLY_COLORS, RULES, SIZES
from vgpuctl.value import replace

PASSWORD = "correct horse battery"


def looked_at(page: Page, name: str) -> None:
    """Check a page as axe does, in each size and colour; keep pictures where SHOTS says."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        rules = RULES if scheme == "light" else ONLY_COLORS
        assert Axe().run(page, options=rules).response["violations"] == [], (name, scheme)
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth") == width, (name, size)
            if "SHOTS" in os.environ:
                page.screenshot(path=f"{os.environ['SHOTS']}/{name}-{scheme}-{size}.png")


def restart_it(page: Page, site: Site, scripts: bool) -> None:
    """Restart a desktop, after the question; it stays hers."""
    site.wait_until(lambda: site.store.desktops.find("office-001").handed_out, "the assignment")
    page.get_by_role("button", name="Restart office-001").click()
    expect(page.get_by_role("heading", name="Restart office-001?")).to_be_visible()
    if scripts:
        looked_at(page, "restart")
    page.get_by_role("button", name="Restart", exact=True).click()
    site.wait_until(lambda: site.hosts.hosts["gpu01"].calls["reboot_vm"] == 1, "the restart")
    page.reload()
    expect(page.locator("#desktops")).to_contain_text("office-001")
    assert site.fleet.show_desktop(ADMIN, "office-001").data.user == "ada"


@pytest.mark.parametrize("scripts", [True, False], ids=["with JavaScript", "without"])
def test_a_person_and_a_desktop(browser: Browser, tmp_path: Path, scripts: bool) -> None:
    with running_site(tmp_path, hosts=1, maximum=6, spare=2) as site:
        site.wait_until(lambda: site.ready() == 6, "six desktops")
        site.fleet.ensure_person(ADMIN, "ada")
        site.fleet.set_password(ADMIN, "ada", PASSWORD)
        for pool in ("office", "design"):
            site.fleet.entitle(ADMIN, "everybody", "use", pool)
        context = browser.new_context(base_url=site.url, java_script_enabled=scripts)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto("/")
        if scripts:
            looked_at(page, "sign-in")
        page.get_by_label("Name").fill("ada")
        page.get_by_label("Password").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("the name or the password is wrong")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Take a desktop office").click()
        expect(page.locator("#desktops")).to_contain_text("office-001")
        expect(page.locator("#done")).to_have_text("office-001 is yours.")
        if scripts:
            assert page.url == f"{site.url}/my"
            page.reload()
            expect(page.locator("#done")).to_have_count(0)
        expect(page.locator("#desktops")).to_contain_text("office-001")
        if scripts:
            looked_at(page, "my-desktops")
            expect(page.locator("#live")).to_have_text("live")
            page.evaluate("window.mark = 1")
        badge = page.locator("#desktops li", has_text="office-001").locator(".badge")
        restart_it(page, site, scripts)
        page.get_by_role("button", name="Shut down office-001").click()
        expect(page.get_by_role("heading", name="Shut down office-001?")).to_be_visible()
        assert site.fleet.show_desktop(ADMIN, "office-001").data.power == "on"
        page.get_by_role("button", name="Shut down", exact=True).click()
        expect(page.locator("#done")).to_have_text("office-001 shuts down.")
        if scripts:
            looked_at(page, "done")
        if not scripts:
            site.wait_until(lambda: site.fleet.show_desktop(ADMIN, "office-001").data.phase == "off", "it is off")
            page.reload()
        expect(badge).to_have_text("off")
        page.get_by_role("button", name="Give back office-001").click()
        expect(page.get_by_role("heading", name="Give back office-001?")).to_be_visible()
        if scripts:
            looked_at(page, "question")
        page.reload()
        page.get_by_role("link", name="Cancel").click()
        page.go_back()
        expect(page.get_by_role("heading", name="Give back office-001?")).to_be_visible()
        page.get_by_role("button", name="Give back").click()
        expect(page.get_by_role("button", name="Take a desktop office")).to_be_visible()
        expect(page.locator("#done")).to_have_text("office-001 was given back.")
        page.go_back()
        expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
        page.goto("/my")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Password")).to_be_visible()
        page.go_back()
        expect(page.get_by_label("Password")).to_be_visible()
        context.close()


def test_the_keyboard_stays_where_it_is_when_a_section_is_replaced(browser: Browser, tmp_path: Path) -> None:
    with running_site(tmp_path, hosts=1, maximum=6, spare=2) as site:
        site.wait_until(lambda: site.ready() == 6, "six desktops")
        site.fleet.ensure_person(ADMIN, "ada")
        site.fleet.set_password(ADMIN, "ada", PASSWORD)
        names = [site.fleet.assign(ADMIN, pool, "ada").data.name for pool in ("office", "training")]
        context = browser.new_context(base_url=site.url)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto("/")
        sign_in(page, "ada", PASSWORD)
        expect(page.locator("#live")).to_have_text("live")
        for name, other in (names, names[::-1]):
            back = page.get_by_role("button", name=f"Give back {name}")
            back.focus()
            page.evaluate("document.getElementById('desktops').old = true")
            site.fleet.stop_desktop(ADMIN, other)
            expect(page.locator("#desktops li", has_text=other).locator(".badge")).to_have_text("off")
            assert page.evaluate("document.getElementById('desktops').old === undefined"), "it is another element"
            expect(back).to_be_focused()
        page.get_by_role("button", name=f"Give back {names[1]}").focus()
        site.fleet.release(ADMIN, names[1])
        expect(page.locator("#desktops li")).to_have_count(1)
        assert page.evaluate("document.activeElement.closest('#desktops') !== null"), "the nearest one that is left"
        context.close()


def test_a_person_makes_a_token(browser: Browser, tmp_path: Path) -> None:
    with running_site(tmp_path, hosts=1, maximum=6, spare=2) as site:
        spec = dict(site.fleet.show_pool(ADMIN, "office").data.spec)
        site.fleet.ensure_pool(ADMIN, "office", {**spec, "connect": [22]})
        site.fleet.ensure_person(ADMIN, "ada")
        site.fleet.set_password(ADMIN, "ada", PASSWORD)
        site.fleet.entitle(ADMIN, "ada", "use", "office")
        site.wait_until(lambda: site.ready() == 6, "six desktops")
        vms = site.hosts.hosts["gpu01"].vms
        vms |= {uuid: replace(vm, address="10.0.0.7") for uuid, vm in vms.items()}
        site.fleet.assign(ADMIN, "office", "ada")
        context = browser.new_context(base_url=site.url, permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto("/my")
        sign_in(page, "ada", PASSWORD)
        page.get_by_text("Connect from your computer").click()
        command = page.locator("details pre code").first
        expect(command).to_have_text(
            f"vgpuctl controller connect-desktop office-001 --port 22 --user ada --controller {site.url}"
        )
        expect(page.locator("#live")).to_have_text("live")
        site.fleet.ensure_pool(ADMIN, "office", {**spec, "connect": [22, 5901]})
        expect(page.locator("details[open] pre")).to_have_count(2)
        page.get_by_role("button", name="Copy the command").last.click()
        expect(page.get_by_text("Copied.")).to_have_count(1)
        assert "--port 5901 " in page.evaluate("navigator.clipboard.readText()")
        looked_at(page, "connect")
        page.get_by_role("link", name="make a token", exact=True).click()
        page.go_back()
        page.get_by_role("link", name="Your tokens for programs").click()
        page.get_by_role("link", name="Make a token").click()
        page.get_by_label("Name").fill("laptop")
        page.get_by_role("button", name="Show what changes").click()
        page.get_by_role("button", name="Make a token").click()
        secret = page.locator("pre code").inner_text()
        looked_at(page, "my-secret")
        headers = {"Authorization": f"Bearer {secret}"}
        assert json.loads(site.get("/api/v1/me", headers).text)["data"]["name"] == "ada"
        page.get_by_role("link", name="Go on").click()
        expect(page.locator("#tokens")).to_contain_text("laptop")
        expect(page.locator("main")).not_to_contain_text(secret)
        looked_at(page, "my-tokens")
        page.get_by_role("link", name="Delete").click()
        page.get_by_role("button", name="Delete").click()
        expect(page.locator("#tokens")).to_contain_text("You have no token")
        assert site.get("/api/v1/me", headers).status == 401
        context.close()


def test_a_person_changes_the_password(browser: Browser, tmp_path: Path) -> None:
    with running_site(tmp_path) as site:
        site.fleet.ensure_person(ADMIN, "ada")
        site.fleet.set_password(ADMIN, "ada", PASSWORD)
        context = browser.new_context(base_url=site.url)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto("/my")
        sign_in(page, "ada", PASSWORD)
        page.get_by_role("link", name="Your password").click()
        for old in ("wrong", PASSWORD):
            page.get_by_label("Old password").fill(old)
            page.get_by_label("New password", exact=True).fill("another good one")
            page.get_by_label("New password again").fill("another good one")
            page.keyboard.press("Enter")
            if old == "wrong":
                expect(page.get_by_role("alert")).to_have_text("the old password is wrong")
                looked_at(page, "password")
        expect(page.locator("#done")).to_contain_text("Your password was changed.")
        page.get_by_role("button", name="Sign out").click()
        sign_in(page, "ada", "another good one")
        expect(page.get_by_role("heading", name="My desktops")).to_be_visible()
        context.close()


def test_an_admins_menu_has_one_line_and_scrolls_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    with running_site(tmp_path) as site:
        site.fleet.ensure_person(ADMIN, "ada.lovelace@example.org")
        site.fleet.set_password(ADMIN, "ada.lovelace@example.org", PASSWORD)
        site.fleet.entitle(ADMIN, "ada.lovelace@example.org", "admin")
        context = browser.new_context(base_url=site.url, viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto("/")
        sign_in(page, "ada.lovelace@example.org", PASSWORD)
        for width in (1280, 1440, 1600, 1024, 800, 360):
            page.set_viewport_size({"width": width, "height": 800})
            if "SHOTS" in os.environ:
                page.screenshot(path=f"{os.environ['SHOTS']}/menu-{width}.png")
            box = page.get_by_role("button", name="Sign out").bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width, width
            assert page.evaluate("document.documentElement.scrollWidth") == width
            if width >= 1280:
                assert page.evaluate("document.querySelector('.top').offsetHeight") < 60, width
        nav = page.get_by_role("navigation", name="Main")
        assert nav.evaluate("one => one.scrollWidth > one.clientWidth")
        assert "gradient" in nav.evaluate("one => getComputedStyle(one).maskImage"), "it shows that there is more"
        page.get_by_role("link", name="My desktops").click()
        expect(page.get_by_role("heading", name="My desktops")).to_be_visible()
        context.close()


def test_a_page_ends_with_its_session(browser: Browser, tmp_path: Path) -> None:
    """Who is disabled sees on his open page, without reloading it, that he is no longer signed in."""
    with running_site(tmp_path, hosts=1, maximum=6, spare=2) as site:
        site.fleet.ensure_person(ADMIN, "ada")
        site.fleet.set_password(ADMIN, "ada", PASSWORD)
        site.fleet.entitle(ADMIN, "ada", "viewer")
        context = browser.new_context(base_url=site.url)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto("/hosts")
        sign_in(page, "ada", PASSWORD)
        expect(page.locator("#live")).to_have_text("live")
        expect(page.get_by_role("link", name="gpu01")).to_be_visible()
        site.fleet.ensure_person(ADMIN, "ada", disabled=True)
        expect(page.get_by_label("Password")).to_be_visible()
        expect(page.get_by_role("link", name="gpu01")).to_have_count(0)
        context.close()
