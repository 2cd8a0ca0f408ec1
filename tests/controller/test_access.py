# SPDX-License-Identifier: Apache-2.0
"""Every call of the API by every kind of caller, about what is his and what is not."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.controller.conftest import IMAGE, SPEC, opened
from tests.controller.controllers import Controller, running_controller
from vgpuctl.controller.model import NewDesktop, PoolChanges
from vgpuctl.controller.routes import API, CALLS

PASSWORD = "correct horse battery"
RIGHTS = {
    "stranger": (), "user": (("use", "office"),), "helper": (("operate", "office"),),
    "manager": (("manage", "office"),), "viewer": (("viewer", None),), "operator": (("operator", None),),
    "admin": (("admin", None),),
}  # fmt: skip
"""People -> what they may do. There is also a token `tool` that may operate office, and `nobody`."""
PEOPLE = {*RIGHTS}
SEE = {"viewer", "operator", "admin"}
OPERATE = {"operator", "admin"}
ADMIN = {"admin"}
OPERATORS = {"helper", "manager", "tool"}
FLEET = {
    **dict.fromkeys(
        ("show-fleet", "show-overview", "list-hosts", "show-host", "fits", "show-capacity", "show-restore",
         "list-events", "find-events"), SEE,
    ),
    **dict.fromkeys(("list-pools", "list-desktops", "show-progress"), SEE | OPERATORS),
    **dict.fromkeys(("list-images", "show-image"), SEE | {"manager"}),
    **dict.fromkeys(("cordon-host", "drain-host", "uncordon-host"), OPERATE),
    **dict.fromkeys(
        ("add-host", "accept-host", "label-host", "remove-host", "ensure-image", "delete-image", "list-people",
         "show-person", "ensure-person", "set-password", "delete-person", "list-tokens", "add-token", "delete-token",
         "confirm-restore", "import-desktops", "list-quotas", "ensure-quota", "delete-quota"), ADMIN,
    ),
    "list-entitlements": ADMIN | {"manager"},
    "show-use": SEE | {"manager"},
    "show-myself": PEOPLE | {"tool"},
    **dict.fromkeys(
        ("list-my-pools", "list-my-desktops", "list-my-tokens", "add-my-token", "delete-my-token"), PEOPLE
    ),
}  # fmt: skip
"""Calls about no pool -> who may make them."""
OFFICE = {
    "show-pool": SEE | OPERATORS,
    "ensure-pool": OPERATE | {"manager"},
    **dict.fromkeys(("pause-pool", "resume-pool", "message-pool", "assign"), OPERATE | OPERATORS),
    "delete-pool": ADMIN,
    "take-desktop": {"user", "helper", "manager"},
    **dict.fromkeys(("entitle", "revoke"), ADMIN | {"manager"}),
    "show-desktop": SEE | OPERATORS | {"user"},
    **dict.fromkeys(
        ("open-desktop", "connect-desktop", "show-console", "open-console", "release", "start-desktop",
         "stop-desktop", "restart-desktop", "new-password"), OPERATE | OPERATORS | {"user"},
    ),
    "delete-desktop": OPERATE | {"manager"},
    **dict.fromkeys(("move-desktop", "accept-desktop"), ADMIN),
}  # fmt: skip
"""Calls about the pool office and its desktop, which is `user`'s -> who may make them."""
KNOWING = SEE | OPERATORS | {"user"}
"""Who may know that office exists."""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    directory = tmp_path_factory.mktemp("access")
    with running_controller(directory / "controller") as one:
        yield one


@pytest.fixture(scope="module")
def callers(controller: Controller) -> dict[str, dict[str, str]]:
    """Return each caller's headers, with the fleet that they ask about."""
    run = controller.run
    run("ensure-image", "office", "--path", IMAGE)
    spec = controller.directory / "spec.json"
    for pool in ("office", "lab"):
        spec.write_text(json.dumps({**SPEC, "names": f"{pool}-{{:03}}", "spare": 0}))
        assert run("ensure-pool", pool, "-f", str(spec)).returncode == 0
    with opened(f"sqlite:///{controller.directory}/state/fleet.db") as store:
        for number, (pool, user) in enumerate((("office", "user"), ("lab", "somebody"))):
            new = NewDesktop(f"{pool}-001", f"52:54:00:00:00:0{number}")
            store.desktops.tick(store.pools.find(pool).id, lambda *_, new=new: PoolChanges((new,)))
            with store.database.write() as connection:
                connection.exec_driver_sql(f"UPDATE desktop SET user = '{user}' WHERE name = '{pool}-001'")
    headers: dict[str, dict[str, str]] = {"nobody": {}}
    password = controller.directory / "password"
    password.write_text(PASSWORD + "\n")
    for name, rights in RIGHTS.items():
        assert run("ensure-person", name).returncode == 0
        assert run("set-password", name, "--password-file", str(password)).returncode == 0
        for right, pool in rights:
            assert run("entitle", name, right, *([] if pool is None else ["--pool", pool])).returncode == 0
        headers[name] = sign_in(controller, name)
    secret = run("add-token", "tool", "--right", "operate", "--pool", "office").stdout.strip()
    headers["tool"] = {"Authorization": f"Bearer {secret}"}
    return headers


def sign_in(controller: Controller, name: str, password: str = PASSWORD) -> dict[str, str]:
    """Return the headers with which a page of the controller asks for a person."""
    status, body, headers = controller.request("POST", f"{API}/session", {"user": name, "password": password})
    assert status == 200, body
    cookie = headers["Set-Cookie"].partition(";")[0]
    return {"Cookie": cookie, body["header"].replace("-", "_"): body["token"], "Sec_Fetch_Site": "same-origin"}


def ask(controller: Controller, headers: dict[str, str], call: str, pool: str) -> tuple[int, dict[str, Any]]:
    """Make a call about a pool or its desktop; no change is made."""
    one = CALLS[call]
    names = {"pools": pool, "desktops": f"{pool}-001"}
    name = names.get(one.path.strip("/").partition("/")[0], "x")
    given: dict[str, str] = {}
    if call == "entitle":
        given = {"who": "ada", "right": "use", "pool": pool}
    if call == "add-my-token":
        given = {"name": "x"}
    if call == "add-token":
        given = {"name": "x", "role": "none"}
    query = f"?who=ada&pool={pool}" if call == "revoke" else ""
    if one.has_dry_run:
        query += ("&" if query else "?") + "dry_run=true"
    path = API + one.path.format(name=name, pool=pool) + query
    status, body, _ = controller.request(one.method, path, None if one.method == "GET" else given, **headers)
    return status, body


def kind_of(status: int, body: dict[str, Any], pool: str) -> str:
    """Return what an answer means: hidden, denied, unknown caller, or that the call was made or tried."""
    message = body.get("error", {}).get("message", "")
    hidden = (f"there is no pool {pool}", f"there is no desktop {pool}-001")
    return {401: "unknown", 403: "denied"}.get(status, "hidden" if status == 404 and message in hidden else "made")


def test_every_call_is_in_the_table() -> None:
    assert {*FLEET, *OFFICE} == {*CALLS}


@pytest.mark.parametrize("call", [*CALLS])
def test_who_may_make_a_call(controller: Controller, callers: dict[str, dict[str, str]], call: str) -> None:
    kinds = {name: kind_of(*ask(controller, headers, call, "office"), "office") for name, headers in callers.items()}
    allowed = FLEET.get(call) or OFFICE[call]
    expected = {name: "made" if name in allowed else "denied" for name in callers} | {"nobody": "unknown"}
    if call in OFFICE:
        expected |= {name: "hidden" for name in callers if name not in {*KNOWING, *allowed, "nobody"}}
    assert kinds == expected


@pytest.fixture(scope="module")
def own_tokens(controller: Controller, callers: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the headers of programs with tokens of people."""
    made = {}
    for name in PEOPLE:
        status, body, _ = controller.request("POST", f"{API}/me/tokens", {"name": "laptop"}, **callers[name])
        assert (status, body["data"]["person"]) == (200, name), body
        made[name] = {"Authorization": f"Bearer {body['data']['secret']}"}
    return made


@pytest.mark.parametrize("call", [*CALLS])
def test_a_token_of_ones_own_gives_what_one_may_and_no_more_tokens(
    controller: Controller, callers: dict[str, dict[str, str]], own_tokens: dict[str, dict[str, str]], call: str
) -> None:
    for pool in ("office", "lab"):
        by_token = {name: kind_of(*ask(controller, own_tokens[name], call, pool), pool) for name in PEOPLE}
        expected = {name: kind_of(*ask(controller, callers[name], call, pool), pool) for name in PEOPLE}
        outlives = call in ("add-my-token", "add-token", "set-password")
        assert by_token == ({name: "denied" for name in PEOPLE} if outlives else expected)


def test_a_token_of_ones_own_lasts_as_its_person(
    controller: Controller, callers: dict[str, dict[str, str]], own_tokens: dict[str, dict[str, str]]
) -> None:
    request, laptop, mine = controller.request, own_tokens["helper"], f"{API}/me"
    assert request("GET", mine, **laptop)[1]["data"]["rights"] == {"office": "operate"}
    assert controller.run("revoke", "helper", "--pool", "office").returncode == 0
    assert request("GET", f"{API}/pools", **laptop)[0] == 403, "the right is gone at once"
    assert controller.run("entitle", "helper", "operate", "--pool", "office").returncode == 0
    assert request("POST", f"{API}/pools/office/pause", {"reason": "x"}, **laptop)[0] == 200, "it is no cookie"
    assert request("POST", f"{API}/pools/office/resume", {}, **laptop)[0] == 200
    events = controller.data("list-events")
    about = controller.data("list-events", "--pool", "office", "--limit", "5")
    assert about == [one for one in events if one["pool"] == "office"][-5:]
    assert {one["kind"] for one in controller.data("list-events", "--kind", "entitled")} == {"entitled"}
    assert controller.data("list-events", "--desktop", "none-001") == []
    assert controller.run("list-events", "--after", "1", "--person", "ada").returncode == 2
    texts = [(one["actor"], one["actor_kind"], one["text"]) for one in events if one["kind"] == "pool-paused"]
    assert texts[-1][:2] == ("helper", "person")
    assert texts[-1][2].endswith("(by token laptop of helper)")
    assert controller.run("ensure-person", "helper", "--disabled").returncode == 0
    assert request("GET", mine, **laptop)[0] == 401
    assert controller.run("ensure-person", "helper", "--enabled").returncode == 0
    callers["helper"] = sign_in(controller, "helper")
    assert request("GET", mine, **laptop)[0] == 200
    rows = [one["person"] for one in controller.data("list-tokens") if one["name"] == "laptop"]
    assert rows == sorted(PEOPLE), "an admin sees them"
    shown = request("GET", f"{API}/me/tokens", **callers["helper"])[1]["data"]
    assert ("laptop", None) in [(one["name"], one["secret"]) for one in shown]
    assert request("DELETE", f"{API}/tokens/laptop?person=helper", **callers["helper"])[0] == 403
    assert request("DELETE", f"{API}/me/tokens/phone", **callers["helper"])[0] == 404
    assert controller.run("delete-token", "laptop", "--person", "helper").stdout == "token laptop: deleted\n"
    assert request("GET", mine, **laptop)[0] == 401
    for given in ({"name": "a b"}, {"name": "x", "days": 91}, {"name": "x", "days": 0}, {"name": "x", "days": "9"}):
        assert request("POST", f"{API}/me/tokens", given, **callers["helper"])[0] == 400, given


@pytest.mark.parametrize("call", [*OFFICE])
def test_what_is_others_is_hidden(controller: Controller, callers: dict[str, dict[str, str]], call: str) -> None:
    for name in ("stranger", "user", "helper", "manager", "tool"):
        assert kind_of(*ask(controller, callers[name], call, "lab"), "lab") == "hidden", name


def test_answers_have_what_a_caller_sees(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    def names(who: str, path: str) -> list[str]:
        status, body, _ = controller.request("GET", API + path, **callers[who])
        assert status == 200, body
        return [one["name"] for one in body["data"]]

    for who in ("helper", "manager", "tool"):
        assert names(who, "/pools") == ["office"]
        assert names(who, "/desktops") == ["office-001"]
        assert names(who, "/desktops?user=somebody") == []
    for pool in ("lab", "none"):  # one that he may not know of is none
        _, body, _ = controller.request("GET", f"{API}/desktops?pool={pool}", **callers["helper"])
        assert body["error"]["message"] == f"there is no pool {pool}"
    assert names("viewer", "/desktops") == ["lab-001", "office-001"]
    assert names("user", "/me/desktops") == ["office-001"]
    assert names("user", "/me/pools") == ["office"]
    assert names("stranger", "/me/pools") == names("stranger", "/me/desktops") == []
    _, body, _ = controller.request("GET", f"{API}/entitlements", **callers["manager"])
    assert {(one["who"], one["pool"]) for one in body["data"]} == {
        ("user", "office"), ("helper", "office"), ("manager", "office"),
    }  # fmt: skip
    _, body, _ = controller.request("GET", f"{API}/me", **callers["user"])
    assert body["data"] == {
        "name": "user", "kind": "person", "role": None, "rights": {"office": "use"}, "limits": [], "own_password": True,
    }  # fmt: skip


def test_a_pools_manager_makes_no_managers(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    given = {"who": "ada", "right": "manage", "pool": "office"}
    status, body, _ = controller.request("PUT", f"{API}/entitlements", given, **callers["manager"])
    assert (status, body["error"]["message"]) == (403, "an admin decides who manages the pool office")
    status, body, _ = controller.request("DELETE", f"{API}/entitlements?who=manager&pool=office", **callers["manager"])
    assert status == 403
    for given in ({"who": "manager", "right": "admin"}, {"who": "everybody", "right": "viewer"}):
        assert controller.request("PUT", f"{API}/entitlements", given, **callers["manager"])[0] == 403, given
    for who in ("admin", "viewer", "nobody"):
        assert controller.request("DELETE", f"{API}/entitlements?who={who}", **callers["manager"])[0] == 403, who
    secret = controller.run("add-token", "all", "--right", "manage", "--pool", "office").stdout.strip()
    given = {"who": "everybody", "right": "admin"}
    assert controller.request("PUT", f"{API}/entitlements", given, Authorization=f"Bearer {secret}")[0] == 403
    given = {"who": "manager", "right": "use", "pool": "office"}
    status, body, _ = controller.request("PUT", f"{API}/entitlements", given, **callers["manager"])
    assert (status, body["error"]["message"]) == (403, "an admin decides who manages the pool office")
    path = f"{API}/pools/office?dry_run=true"
    spec = {**SPEC, "names": "office-{:03}", "spare": 0}
    assert controller.request("PUT", path, {"spec": {**spec, "spare": 1}}, **callers["manager"])[0] == 200
    status, body, _ = controller.request("PUT", path, {"spec": {**spec, "maximum": 9}}, **callers["manager"])
    assert status == 403
    assert body["error"]["message"].startswith("maximum: an operator of the fleet decides")


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 5000])
def test_names_that_are_none(controller: Controller, callers: dict[str, dict[str, str]], text: str) -> None:
    for given in ({"user": text, "password": PASSWORD}, {"user": "viewer", "password": text}):
        status, body, _ = controller.request("POST", f"{API}/session", given)
        assert (status, body["error"]["code"]) in ((401, "wrong-password"), (429, "too-many-tries"))
    for path in (f"/hosts/{quote(text, errors='surrogatepass')}", f"/pools/{quote(text, errors='surrogatepass')}"):
        status, body, _ = controller.request("GET", f"{API}{path}", **callers["admin"])
        assert status in (400, 404), body
    status, body, _ = controller.request("PUT", f"{API}/people/x", {"groups": [text]}, **callers["admin"])
    assert status == 400, body


def test_a_change_with_a_cookie_comes_from_our_own_page(
    controller: Controller, callers: dict[str, dict[str, str]]
) -> None:
    path, good = f"{API}/pools/office/pause?dry_run=true", callers["helper"]
    assert controller.request("POST", path, {}, **good)[0] == 200
    header = next(name for name in good if name not in ("Cookie", "Sec_Fetch_Site"))
    bad = [{"Sec_Fetch_Site": site} for site in ("cross-site", "same-site", "none")]
    bad += [{header: text} for text in ("", "x", "é".encode().decode("latin-1"), callers["manager"][header])]
    for one in bad:
        assert controller.request("POST", path, {}, **{**good, **one})[0] == 403, one
    for missing in (header, "Sec_Fetch_Site"):
        less = {name: text for name, text in good.items() if name != missing}
        assert controller.request("POST", path, {}, **less)[0] == 403, missing
        assert controller.request("GET", f"{API}/pools", **less)[0] == 200, "a question needs neither"
    sent = {"user": "helper", "password": PASSWORD}
    assert controller.request("POST", f"{API}/session", sent, Sec_Fetch_Site="cross-site")[0] == 403


def test_other_routes(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    """Those that are no calls: what anybody may ask says nothing of the fleet."""
    for path in ("/healthz", "/readyz", f"{API}/openapi.json"):
        status, body, _ = controller.request("GET", path)
        assert status == 200
        assert "office" not in json.dumps(body).replace("office-{", "")
    statuses = {name: controller.request("GET", "/metrics", **headers)[0] for name, headers in callers.items()}
    assert statuses == {name: 401 if name == "nobody" else 200 if name in SEE else 403 for name in callers}


def test_signing_out_and_being_disabled(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    mine = f"{API}/me"
    first, second = sign_in(controller, "stranger"), sign_in(controller, "stranger")
    assert controller.request("DELETE", f"{API}/session", **{**first, "Sec_Fetch_Site": "cross-site"})[0] == 403
    status, _, headers = controller.request("DELETE", f"{API}/session", **first)
    assert (status, 'vgpuctl=""' in headers["Set-Cookie"]) == (200, True)
    assert controller.request("GET", mine, **first)[0] == 401
    assert controller.request("GET", mine, **second)[0] == 200
    assert controller.run("ensure-person", "stranger", "--disabled").stdout == "person stranger: disabled\n"
    assert controller.request("GET", mine, **second)[0] == 401
    given = {"user": "stranger", "password": PASSWORD}
    status, body, _ = controller.request("POST", f"{API}/session", given)
    assert (status, body["error"]["code"]) == (401, "wrong-password"), "not even that he exists is said"
    assert controller.run("ensure-person", "stranger", "--enabled").returncode == 0
    callers["stranger"] = sign_in(controller, "stranger")
    made = controller.run("set-password", "stranger").stdout.strip()
    assert controller.request("GET", mine, **callers["stranger"])[0] == 401, "a new password ends sessions"
    callers["stranger"] = sign_in(controller, "stranger", made)


def test_people_as_an_admin_makes_them(controller: Controller) -> None:
    run, data = controller.run, controller.data
    assert run("ensure-person", "grace", "--group", "navy", "--group", "staff").stdout == "person grace: navy, staff\n"
    assert run("ensure-person", "grace").stdout == "person grace: unchanged\n"
    assert run("ensure-person", "grace", "--no-groups", "--realm", "oidc").stdout == "person grace: no groups\n"
    assert run("ensure-person", "grace", "--no-groups", "--group", "x").returncode == 2
    assert data("show-person", "grace")["realm"] == "oidc"
    assert run("set-password", "grace").returncode == 3
    password = controller.directory / "password"
    password.write_text("correct horse battery\n")
    assert run("ensure-person", "ivy", "--group", "staff").returncode == 0
    assert run("set-password", "ivy", "--password-file", str(password)).stdout == "person ivy: the password is set\n"
    assert "grace" in [one["name"] for one in data("list-people")]
    given = run("entitle", "@navy", "use", "--pool", "lab")
    assert given.stdout == "@navy: use of pool lab\n"
    assert "nobody who is known here is in the group navy yet" in given.stderr
    assert ("@navy", "use", "lab") in [
        (o["who"], o["right"], o["pool"]) for o in data("list-entitlements", "--pool", "lab")
    ]
    other = run("revoke", "@navy", "manage", "--pool", "lab")
    assert (other.returncode, "@navy has use on pool lab, not manage" in other.stderr) == (3, True), other.stderr
    assert run("revoke", "@navy", "use", "--pool", "lab", "--dry-run").stdout.startswith("would change")
    assert run("revoke", "@navy", "--pool", "lab").stdout == "@navy: no longer use of pool lab\n"
    assert run("revoke", "@navy", "--pool", "lab").returncode == 2
    for words in (
        ("everybody",), ("a b",), ("x" * 65,), ("everyone", "--group", "@x"), ("everyone", "--group", "a\x01"),
        ("everyone", "--group", "x" * 201), ("everyone", "--group", ""),
    ):  # fmt: skip
        assert run("ensure-person", *words).returncode == 2, words
    for words in (("@", "use"), ("@ a", "use"), ("@@a", "use"), ("ada", "admin"), ("ada", "USE")):
        assert run("entitle", *words, "--pool", "lab").returncode == 2, words
    assert run("entitle", "ada", "use").returncode == 2, "no role"
    assert run("add-token", "x", "--right", "operate").returncode == 2
    assert run("add-token", "x", "--pool", "lab").returncode == 2
    assert run("add-token", "x", "--role", "viewer", "--right", "operate", "--pool", "lab").returncode == 2
    assert run("add-token", "x", "--right", "operate", "--pool", "none").returncode == 2
    assert run("delete-person", "grace", "--yes").stdout == "person grace: deleted\n"
    assert run("show-person", "grace").returncode == 2


def test_nobody_loses_what_he_saved_by_himself(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    """A dedicated desktop is given back by an operator."""
    assert controller.run("ensure-person", "owner").returncode == 0
    made = controller.run("set-password", "owner").stdout.strip()
    spec = controller.directory / "own.json"
    spec.write_text(json.dumps({**SPEC, "kind": "dedicated", "names": "own-{:03}", "spare": 0}))
    assert controller.run("ensure-pool", "own", "-f", str(spec)).returncode == 0
    with opened(f"sqlite:///{controller.directory}/state/fleet.db") as store:
        new = NewDesktop("own-001", "52:54:00:00:00:09")
        store.desktops.tick(store.pools.find("own").id, lambda *_: PoolChanges((new,)))
        with store.database.write() as connection:
            connection.exec_driver_sql("UPDATE desktop SET user = 'owner' WHERE name = 'own-001'")
    path, owner = f"{API}/desktops/own-001/release", sign_in(controller, "owner", made)
    status, body, _ = controller.request("POST", path, {}, **owner)
    assert (status, "what you saved in it would be lost" in body["error"]["message"]) == (403, True)
    assert controller.request("POST", path, {}, **callers["operator"])[0] == 200


def test_a_wrong_token_is_not_made_good_by_a_cookie(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    for given in ("Bearer wrong", "Basic x", "Bearer"):
        assert controller.request("GET", f"{API}/me", **callers["viewer"], Authorization=given)[0] == 401, given


def test_users_see_nothing_of_what_failed_on_hosts(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    with opened(f"sqlite:///{controller.directory}/state/fleet.db") as store, store.database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE pool SET state = 'paused', paused_by_errors = 1, reason = 'gpu07: a driver' WHERE name = 'office'"
        )
    answers = [
        controller.request("GET", f"{API}/me/pools", **callers["user"])[1],
        controller.request("POST", f"{API}/me/pools/office/desktop", {}, **callers["user"])[1],
    ]
    assert controller.run("resume-pool", "office").returncode == 0
    for answer in answers:
        assert "it has a problem, and its admins know" in json.dumps(answer)
        assert "gpu07" not in json.dumps(answer)


def test_quotas_and_use_as_an_admin_sees_them(controller: Controller, callers: dict[str, dict[str, str]]) -> None:
    run, data = controller.run, controller.data
    line = "@cad: at most 3 desktops, 2 running, 96 GiB of GPU memory"
    words = ("ensure-quota", "@cad", "--desktops", "3", "--running", "2", "--gpu", "96GiB")
    assert run(*words, "--dry-run").stdout == f"would change: {line}\n"
    assert [run(*words).stdout, run(*words).stdout] == [f"{line}\n", f"{line}, as before\n"]
    assert run("ensure-quota", "user", "--desktops", "1").returncode == 0
    assert [one["who"] for one in data("list-quotas")] == ["@cad", "user"]
    assert "96 GiB" in run("list-quotas").stdout
    assert "1 of 1 desktops (quota of user)" in run("show-person", "user").stdout
    assert data("show-person", "user")["limits"] == [{"name": "desktops", "used": 1, "most": 1, "who": "user"}]
    assert {"who": "user", "right": "use", "pool": "office", "people": None} in data("show-person", "user")["rights"]
    assert "use of office\n" in run("show-person", "user").stdout
    _, body, _ = controller.request("GET", f"{API}/me", **callers["user"])
    assert body["data"]["limits"] == data("show-person", "user")["limits"]
    page = controller.request("GET", "/my", **callers["user"])[1]["text"]
    assert "1 of 1 desktops" in page
    assert run("ensure-quota", "user").returncode == 2
    assert run("ensure-quota", "user", "--gpu", "many").returncode == 2
    for who in ("@cad", "user"):
        assert run("delete-quota", who).stdout == f"{who}: no quota any more\n"
    assert run("delete-quota", "user").returncode == 2
    refused = run("assign", "office", "somebody-else")
    assert refused.returncode == 4, refused.stderr
    today = datetime.datetime.now(datetime.UTC).date()
    since, until = str(today - datetime.timedelta(2)), str(today + datetime.timedelta(2))
    rows = data("show-use", "--by", "person", "--pool", "office", "--since", since, "--until", until)
    refusals = {row["name"]: row["refused"] for row in rows}
    assert refusals["somebody-else"] == {"no-capacity": 1}, refusals
    assert run("show-use", "-o", "csv").stdout.startswith("name,assigned_hours,on_hours,")
    assert "no-capacity" in run("show-use").stdout
    assert run("show-use", "--since", "soon").returncode == 2


def test_no_secret_is_stored_or_logged(
    controller: Controller, callers: dict[str, dict[str, str]], own_tokens: dict[str, dict[str, str]]
) -> None:
    secrets = [headers["Cookie"].partition("=")[2] for headers in callers.values() if "Cookie" in headers]
    secrets += [PASSWORD, callers["tool"]["Authorization"].removeprefix("Bearer ")]
    secrets += [headers["Authorization"].removeprefix("Bearer ") for headers in own_tokens.values()]
    for path in Path(controller.directory, "state").rglob("*"):
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in secrets), path
