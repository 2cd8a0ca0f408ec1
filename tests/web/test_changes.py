# SPDX-License-Identifier: Apache-2.0
"""Admins in chromium change a fleet: forms come back when something is wrong, plans, two people at one pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.web.browser import sign_in
from tests.web.site import ADMIN, Site, running_site
from tests.web.test_browser import RULES
from tests.web.test_portal import PASSWORD, looked_at
from vgpuctl.controller.web.changes import CHANGES


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A fleet with two hosts, three pools, and two admins."""
    with running_site(tmp_path_factory.mktemp("changes"), hosts=2, maximum=6, spare=2) as site:
        site.wait_until(lambda: site.ready() == 6, "six desktops")
        for name in ("grace", "edsger"):
            site.fleet.ensure_person(ADMIN, name)
            site.fleet.set_password(ADMIN, name, PASSWORD)
            site.fleet.entitle(ADMIN, name, "admin")
        yield site


@contextmanager
def signed_in(browser: Browser, site: Site, name: str = "grace", *, scripts: bool = True) -> Iterator[Page]:
    """Yield the page of somebody who has signed in."""
    context = browser.new_context(base_url=site.url, java_script_enabled=scripts)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto("/sign-in")
    sign_in(page, name, PASSWORD)
    expect(page.get_by_text(name, exact=True)).to_be_visible()
    try:
        yield page
    finally:
        context.close()


def press(page: Page, *names: str) -> None:
    """Press buttons, or follow links that look like them, one after the other."""
    for name in names:
        page.locator("main").locator("a.button, button").get_by_text(name, exact=True).click()


PLAN = "Show what changes"


@pytest.mark.parametrize("scripts", [True, False], ids=["with JavaScript", "without"])
def test_a_pool_from_its_form_to_a_desktop_and_back(browser: Browser, fleet: Site, scripts: bool) -> None:
    name = "lab" if scripts else "plain"
    with signed_in(browser, fleet, scripts=scripts) as page:
        page.goto("/pools")
        press(page, "Make a pool")
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Kind").select_option("floating")
        page.get_by_label("Image").select_option("office")
        page.get_by_label("Profile").fill("A100-4C")
        page.get_by_label("Names").fill(f"{name}-{{:03}}")
        page.get_by_label("Maximum").fill("2")
        page.get_by_label("Spare").fill("7")
        first = page.get_by_role("group", name="Schedules, line 1")
        first.get_by_label("Days").fill("weekdays")
        first.get_by_label("From").fill("25:00")
        page.get_by_label("The rest, as YAML").fill("vm: {memory: 8G}\nspare: 1")
        press(page, PLAN)
        expect(page.get_by_role("alert")).to_contain_text("Something below is wrong")
        expect(page.get_by_text("spare: a field above")).to_be_visible()
        page.get_by_label("The rest, as YAML").fill("vm: {memory: nonsense}")
        press(page, PLAN)
        expect(page.get_by_text("7 are more than maximum: 2")).to_be_visible()
        expect(page.get_by_text("'25:00' is not a time between 00:00 and 24:00")).to_be_visible()
        expect(page.get_by_text("vm.memory:")).to_be_visible()
        expect(page.get_by_label("Names")).to_have_value(f"{name}-{{:03}}")
        expect(page.get_by_label("Spare")).to_have_attribute("aria-invalid", "true")
        page.get_by_role("link", name="Spare").click()
        expect(page.get_by_label("Spare")).to_be_focused()
        if scripts:
            looked_at(page, "pool-form-wrong")
        page.get_by_label("Spare").fill("2")
        first.get_by_label("Days").fill("")
        first.get_by_label("From").fill("")
        page.get_by_label("The rest, as YAML").fill("vm: {memory: 8G}")
        press(page, PLAN)
        expect(page.locator("#plan")).to_contain_text(f"2 desktops made: {name}-001, {name}-002")
        expect(page.locator("#changes")).to_contain_text("vm.memory")
        page.reload()
        press(page, "Change something")
        expect(page.get_by_label("Maximum")).to_have_value("2")
        page.go_back()
        if scripts:
            looked_at(page, "pool-plan")
        press(page, "Make a pool")
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
        ready = page.locator(".counts li", has_text="Ready").locator(".value")
        if not scripts:
            fleet.wait_until(lambda: fleet.fleet.show_pool(ADMIN, name).data.ready == 2, "two desktops")
            page.reload()
        expect(ready).to_have_text("2")
        press(page, "Assign a desktop")
        page.get_by_label("User").fill("a b")
        press(page, PLAN)
        expect(page.get_by_text("'a b' is not the name of a user")).to_be_visible()
        page.get_by_label("User").fill("ada")
        press(page, PLAN)
        expect(page.locator("#changes")).to_contain_text("ada")
        press(page, "Assign a desktop")
        page.locator("#desktops tr", has_text="ada").get_by_role("link").first.click()
        press(page, "Release")
        expect(page.locator("#plan")).to_contain_text("is taken from ada")
        press(page, "Release")
        expect(page.locator("#desktops")).not_to_contain_text("ada")
        page.go_back()
        expect(page.locator("#plan")).to_contain_text("Nothing changes")
        page.goto(f"/pools/{name}")
        press(page, "Delete")
        expect(page.locator("#plan")).to_contain_text("2 desktops of")
        press(page, "Delete")
        fleet.wait_until(lambda: name not in [one.name for one in fleet.fleet.list_pools(ADMIN).data], "it is gone")


def test_two_people_change_one_pool(browser: Browser, fleet: Site) -> None:
    with signed_in(browser, fleet) as first, signed_in(browser, fleet, "edsger") as second:
        for page in (first, second):
            page.goto("/pools/training")
            press(page, "Change")
        first.get_by_label("Spare").fill("1")
        press(first, PLAN)
        second.get_by_label("Spare").fill("3")
        second.get_by_label("Lease in days").fill("30")
        press(second, PLAN)
        press(second, "Change")
        expect(second.locator("#facts")).to_contain_text("3 without a user")
        press(first, "Change")
        expect(first.get_by_role("alert")).to_contain_text("Somebody else changed it")
        rows = [one.inner_text().split("\t") for one in first.locator("#versions tbody tr").all()]
        assert rows == [["Spare", "1", "3"], ["Lease in days", "–", "30"]]
        expect(first.get_by_label("Spare")).to_have_value("1")
        looked_at(first, "both-versions")
        first.get_by_label("Lease in days").fill("30")
        answer = first.goto(first.url)
        assert answer is not None
        assert answer.status == 412, "the form of the older version stays one"
        first.get_by_label("Lease in days").fill("30")
        press(first, PLAN, "Change")
        expect(first.locator("#facts")).to_contain_text("1 without a user")
    spec = fleet.fleet.show_pool(ADMIN, "training").data.spec
    assert (spec["spare"], spec["lease_days"]) == (1, 30)


def test_hosts(browser: Browser, fleet: Site) -> None:
    with signed_in(browser, fleet) as page:
        page.goto("/hosts/gpu02")
        press(page, "Cordon")
        expect(page.locator("#changes tbody tr")).to_have_text(["Stateactivecordoned"])
        press(page, "Cordon")
        expect(page.locator("#facts")).to_contain_text("cordoned")
        press(page, "Labels")
        page.get_by_label("Labels").fill("site=north\nodd")
        press(page, PLAN)
        expect(page.get_by_text("odd is no label")).to_be_visible()
        page.get_by_label("Labels").fill("site=north\nrack=7")
        press(page, PLAN, "Labels")
        expect(page.locator("#facts")).to_contain_text("rack=7, site=north")
        press(page, "Drain")
        page.get_by_label("Do not wait for users").check()
        press(page, PLAN)
        expect(page.get_by_role("alert")).to_contain_text("need maintenance")
        expect(page.get_by_label("Do not wait for users")).to_be_checked()
        page.get_by_role("link", name="Cancel").click()
        press(page, "Uncordon", PLAN, "Uncordon")
        expect(page.locator("#facts")).to_contain_text("active")
        press(page, "Remove")
        expect(page.get_by_role("alert")).to_contain_text("gpu02")
        page.goto("/hosts")
        press(page, "Add a host")
        fleet.hosts.add("gpu03")
        page.get_by_label("Name").fill("gpu03")
        page.get_by_label("Address").fill("ftp://gpu03")
        press(page, PLAN)
        expect(page.get_by_label("Address")).to_have_value("ftp://gpu03")
        page.get_by_label("Address").fill("agent:/gpu03")
        press(page, PLAN)
        expect(page.locator("#changes")).to_contain_text("machine-gpu03")
        press(page, "Add a host")
        expect(page.get_by_role("heading", name="gpu03", level=1)).to_be_visible()


def test_people_rights_and_tokens(browser: Browser, fleet: Site) -> None:
    with signed_in(browser, fleet) as page:
        page.goto("/people")
        press(page, "Add a person")
        page.get_by_label("Name").fill("lin")
        page.get_by_label("Groups").fill("design team\nstaff")
        press(page, PLAN, "Add a person")
        expect(page.locator("#facts")).to_contain_text("design team, staff")
        press(page, "New password", "New password")
        secret = page.locator("pre code")
        password = secret.inner_text()
        looked_at(page, "secret")
        page.reload()
        expect(secret).to_have_text(password)
        page.get_by_role("link", name="Go on").click()
        press(page, "Give a right")
        expect(page.get_by_label("Who")).to_have_value("lin")
        page.get_by_label("Right").select_option("admin")
        page.get_by_label("Pool").select_option("office")
        press(page, PLAN)
        expect(page.get_by_text("leave out the pool")).to_be_visible()
        page.get_by_label("Right").select_option("use")
        press(page, PLAN, "Give a right")
        row = page.locator("#rights tr", has_text="lin")
        expect(row).to_contain_text("use")
        row.get_by_role("link", name="Revoke").click()
        press(page, "Revoke")
        expect(row).to_have_count(0)
        page.goto("/people")
        press(page, "Add a person")
        page.get_by_label("Name").fill("lin")
        press(page, PLAN)
        expect(page.get_by_text("there is lin already")).to_be_visible()
        page.goto("/people/lin")
        press(page, "Set a quota")
        page.get_by_label("Desktops", exact=False).first.fill("2")
        press(page, PLAN, "Set a quota")
        quota = page.locator("#quotas tr", has_text="lin")
        quota.get_by_role("link", name="Change").click()
        page.get_by_label("GPU memory").fill("8GiB")
        press(page, PLAN, "Set a quota")
        expect(quota).to_contain_text("8192")
        quota.get_by_role("link", name="Delete").click()
        press(page, "Delete")
        expect(quota).to_have_count(0)
        page.goto("/people/lin")
        press(page, "Disable", "Disable")
        expect(page.locator("#facts")).to_contain_text("disabled")
        press(page, "Delete", "Delete")
        expect(page.get_by_role("link", name="lin", exact=True)).to_have_count(0)
        page.goto("/tokens")
        press(page, "Add a token")
        page.get_by_label("Name").fill("monitoring")
        page.get_by_label("Expires after days").fill("x")
        press(page, PLAN)
        expect(page.get_by_text("x is not a number")).to_be_visible()
        page.get_by_label("Expires after days").fill("30")
        page.get_by_label("Role in the fleet").select_option("viewer")
        press(page, PLAN)
        page.get_by_role("button", name="Add a token").dblclick()
        expect(secret).to_contain_text("vgpuctl_")
        headers = {"Authorization": f"Bearer {secret.inner_text()}"}
        assert fleet.get("/api/v1/me", headers).status == 200, "of two clicks the first one counts, and is answered"
        page.goto("/tokens")
        page.locator("#tokens tr", has_text="monitoring").get_by_role("link", name="Delete").click()
        press(page, "Delete")
        assert fleet.get("/api/v1/me", headers).status == 401


def test_who_operates_one_pool(browser: Browser, fleet: Site) -> None:
    fleet.fleet.ensure_person(ADMIN, "joan")
    fleet.fleet.set_password(ADMIN, "joan", PASSWORD)
    fleet.fleet.entitle(ADMIN, "joan", "operate", "office")
    with signed_in(browser, fleet, "joan") as page:
        expect(page.locator("main")).to_contain_text("Take a desktop")
        names = page.locator("nav[aria-label=Main] a").all_inner_texts()
        assert names == ["Pools", "Desktops", "In progress", "My desktops"]
        page.get_by_role("link", name="Pools").click()
        page.locator("#pools").get_by_role("link", name="office").click()
        expect(page.locator("#actions a")).to_have_text(["Pause", "Assign a desktop", "Message"])
        press(page, "Assign a desktop")
        page.get_by_label("User").fill("mary")
        press(page, PLAN, "Assign a desktop")
        page.locator("#desktops tr", has_text="mary").get_by_role("link").first.click()
        expect(page.locator("main").get_by_role("link", name="gpu0")).to_have_count(0)
        press(page, "Release", "Release")
        expect(page.locator("#desktops")).not_to_contain_text("mary")


def test_a_double_click_changes_once(browser: Browser, fleet: Site) -> None:
    with signed_in(browser, fleet) as page:
        page.goto("/pools/design")
        press(page, "Pause")
        page.get_by_label("Reason").fill("new storage")
        press(page, PLAN)
        page.get_by_role("button", name="Pause").dblclick()
        expect(page.locator("#notice")).to_contain_text("new storage")
        press(page, "Resume")
        page.get_by_role("button", name="Resume").dblclick()
        expect(page.locator("#summary")).to_have_text("pool, dedicated, active")
        page.reload()
    kinds = [one.kind for one in fleet.fleet.find_events(ADMIN, pool="design").data]
    assert (kinds.count("pool-paused"), kinds.count("pool-active")) == (1, 1)


TRIED_BY_AXE = ("new-host", "drain-host", "entitle", "label-host", "delete-pool", "delete-image", "new-token")
"""All forms are of one template: these have fields of each kind, a plan, and a change that is refused."""


def test_axe_finds_nothing_in_forms_and_each_fits_a_phone(browser: Browser, fleet: Site) -> None:
    names = {"desktops": "office-001", "hosts": "gpu01", "people": "zoe", "images": "office", "my": "office-001"}
    with signed_in(browser, fleet) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        for path, change in CHANGES.items():
            kind = (next(iter(change.on)) if change.on else change.back).split("/")[1]
            page.goto(f"{path}?name={names.get(kind, 'office')}" if not change.is_new else path)
            if path.rpartition("/")[2] in TRIED_BY_AXE:
                assert Axe().run(page, options=RULES).response["violations"] == [], path
            assert page.evaluate("document.documentElement.scrollWidth") == 360, path
