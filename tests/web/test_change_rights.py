# SPDX-License-Identifier: Apache-2.0
"""Who sees which buttons, and that pages refuse what has no button; what somebody with a right on one pool sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.web.site import ADMIN, Answer, Site, running_site
from tests.web.test_pages import linked_pages
from vgpuctl.controller.web.changes import CHANGES

CALLERS: dict[str, dict[str, Any]] = {
    "viewer": {"role": "viewer"}, "operator": {"role": "operator"}, "admin": {"role": "admin"},
    "helper": {"right": "operate", "pools": ["office"]}, "manager": {"right": "manage", "pools": ["office"]},
    "user": {"right": "use", "pools": ["office"]},
}  # fmt: skip
CONSOLE = "/desktops/office-001/console"
OPERATE_POOL = {"/change/pause-pool", "/change/assign", "/change/message-pool"}
BUTTONS = {
    "/pools/office": {
        "viewer": set(), "operator": {"/change/pool", *OPERATE_POOL}, "helper": OPERATE_POOL,
        "manager": {"/change/pool", "/change/entitle", *OPERATE_POOL},
        "admin": {"/change/pool", "/change/entitle", "/change/delete-pool", *OPERATE_POOL},
    },
    "/pools": {"viewer": set(), "operator": {"/change/new-pool"}, "helper": set(), "manager": set()},
    "/desktops/office-001": {
        "viewer": set(), "helper": {CONSOLE, "/change/stop-desktop", "/change/restart-desktop"},
        "manager": {CONSOLE, "/change/stop-desktop", "/change/restart-desktop", "/change/delete-desktop"},
        "operator": {CONSOLE, "/change/stop-desktop", "/change/restart-desktop", "/change/delete-desktop"},
    },
    "/hosts/gpu01": {
        "viewer": set(), "operator": {"/change/cordon-host", "/change/drain-host"},
        "admin": {"/change/cordon-host", "/change/drain-host", "/change/label-host", "/change/remove-host"},
    },
    "/rights": {"manager": set(), "admin": {"/change/entitle", "/change/new-quota"}},
    "/images": {"manager": set(), "operator": set(), "admin": {"/change/new-image"}},
}  # fmt: skip

ALLOWED: dict[str, set[str]] = {
    "viewer": set(), "user": set(),
    "helper": {
        *(f"/change/{one}" for one in ("pause-pool", "resume-pool", "message-pool", "assign", "start-desktop",
          "stop-desktop", "restart-desktop", "release", "new-password")),
    },
}  # fmt: skip
"""Who may make which changes about the pool office and its desktops; of others they may make none."""


@pytest.fixture(scope="module")
def tokens(site: Site) -> Iterator[dict[str, dict[str, str]]]:
    """Return each caller's headers."""
    made = {name: site.fleet.add_token(ADMIN, name, **given).data.secret for name, given in CALLERS.items()}
    yield {name: {"Authorization": f"Bearer {secret}"} for name, secret in made.items()}
    for name in made:
        site.fleet.delete_token(ADMIN, name)


def shown(answer: Answer) -> set[str]:
    return {one.partition("?")[0] for one in answer.tree.xpath("//p[@class='buttons']/a/@href")}


@pytest.mark.parametrize(("page", "who"), [(page, who) for page, given in BUTTONS.items() for who in given])
def test_only_what_one_may_do_has_a_button(site: Site, tokens: dict[str, Any], page: str, who: str) -> None:
    answer = site.get(page, tokens[who])
    assert (answer.status, shown(answer)) == (200, BUTTONS[page][who])


@pytest.mark.parametrize("who", [*ALLOWED])
def test_what_has_no_button_is_refused(site: Site, tokens: dict[str, Any], who: str) -> None:
    """By the form, by the plan, and by the change itself; nothing happens."""
    before = site.fleet.list_events(ADMIN).data
    names = {"pools": "office", "desktops": "office-001", "my": "office-001", "hosts": "gpu01", "images": "office"}
    for path, change in CHANGES.items():
        kind = (next(iter(change.on)) if change.on else change.back).split("/")[1]
        typed = {"name": names.get(kind, "zoe"), "who": "@staff", "pool": "office"}
        query = urlencode({one.name: typed[one.name] for one in change.fields if one.name in typed})
        statuses = {site.get(f"{path}?{query}", tokens[who]).status}
        statuses.add(site.get(f"{path}?{query}&plan=yes", tokens[who]).status)
        if path not in ALLOWED[who]:
            statuses.add(site.post(f"{path}?{query}&plan=yes", {"once": "x"}, tokens[who]).status)
        refused = {403} if who == "viewer" else {403, 404}
        assert bool(statuses & refused) == (path not in ALLOWED[who]), path
        assert path in ALLOWED[who] or statuses <= refused, path
    assert site.fleet.list_events(ADMIN).data == before


@pytest.mark.parametrize("who", ["helper", "manager"])
def test_who_has_a_right_on_a_pool_sees_that_pool_alone(site: Site, tokens: dict[str, Any], who: str) -> None:
    seen = linked_pages(site, "/pools", tokens[who])
    pages = {path for path in seen if not path.startswith(("/change/", "/web/", "/desktops?"))}
    expected = {"/pools", "/pools/office", "/desktops", "/progress", *(f"/desktops/office-00{n}" for n in range(1, 5))}
    expected |= {f"/desktops/office-00{n}/console" for n in range(1, 5)}
    if who == "manager":
        expected |= {"/images", "/images/office", "/rights", "/use", "/use.csv"}
    assert pages == {*expected, "/"}
    for path in pages:
        text = site.get(path, tokens[who]).text
        assert not any(word in text for word in ("training", "design")), path
    for path in ("/hosts/gpu01", "/pools/design", "/desktops/design-001", "/people", "/tokens", "/capacity"):
        assert site.get(path, tokens[who]).status in (403, 404), path


def test_a_manager_changes_what_is_his(site: Site, tokens: dict[str, Any]) -> None:
    form = site.get("/change/pool?name=office", tokens["manager"]).tree.forms[0]
    typed = {**dict(form.form_values()), "plan": "yes"}
    plan = site.get(f"/change/pool?{urlencode({**typed, 'spare': '3'})}", tokens["manager"])
    assert (plan.status, "1 desktop without a user deleted: office-004" in plan.text) == (200, True)
    visible = {one.name for one in form.inputs if one.get("type") != "hidden" and one.name}
    assert {"image", "spare", "more", "schedules.1.days"} <= visible
    assert not visible & {"kind", "names", "maximum", "profile"}
    refused = site.get(f"/change/pool?{urlencode({**typed, 'maximum': '9'})}", tokens["manager"])
    assert refused.status == 403
    assert "an operator of the fleet decides" in refused.text


def test_another_site_fills_in_no_form(site: Site) -> None:
    path = "/change/pause-pool?name=office&reason=x&plan=yes"
    answer = site.get(path, {**site.headers, "Sec-Fetch-Site": "cross-site"})
    assert answer.status == 200
    assert answer.tree.xpath("//main//form") == []
    assert answer.tree.xpath("//main//a/@href") == [path]
    assert len(site.get(path, {**site.headers, "Sec-Fetch-Site": "same-origin"}).tree.xpath("//main//form")) == 1
    for query in ("name=office&name=office", "name=office&odd=1", "name=%00"):
        assert site.get(f"/change/pause-pool?{query}").status == 400, query


def test_an_empty_fleet_leads_to_its_first_host_image_and_pool(tmp_path: Path) -> None:
    with running_site(tmp_path, engine=False) as empty:
        assert shown(empty.get("/")) == {"/change/new-host"}
        empty.hosts.add("gpu01")
        empty.fleet.add_host(ADMIN, "gpu01", "agent:/gpu01")
        assert shown(empty.get("/")) == {"/change/new-image", "/change/new-pool"}
