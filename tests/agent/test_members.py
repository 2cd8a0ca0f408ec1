# SPDX-License-Identifier: Apache-2.0
"""Users without root at the real socket: the kernel says who they are, host.yaml and their groups what they may do."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import RunningAgent, running
from vgpuctl import library
from vgpuctl.agent import operations
from vgpuctl.agent.operations import MAX_RUNNING
from vgpuctl.agent.protocol import REQUEST_KEY
from vgpuctl.agent.rights import HostRights
from vgpuctl.model.agent_service import OPERATORS_GROUP, VIEWERS_GROUP

HOST = "sim:a100-40"
ALICE, BOB, EVE, STRANGER = 60001, 60002, 60003, 60004
HOST_FILE = """\
version: 1
agent:
  allow: {networks: [default], pools: [default]}
  limits: {each_account: {vms: 2}}
"""


class Directory:
    """The users of a site, which may leave a group at any time. Implements `rights.Users`."""

    def __init__(self) -> None:
        self.names = {ALICE: "alice", BOB: "bob", EVE: "eve", STRANGER: "stranger"}
        self.groups = {"alice": {OPERATORS_GROUP}, "bob": {VIEWERS_GROUP}, "eve": {OPERATORS_GROUP}}

    def name_of(self, uid: int) -> str | None:
        return self.names.get(uid)

    def groups_of(self, name: str) -> frozenset[str]:
        return frozenset(self.groups.get(name, ()))


class Site:
    """An agent, and its users."""

    def __init__(self, agent: RunningAgent, users: Directory, host_file: Path) -> None:
        self.agent = agent
        self.users = users
        self.host_file = host_file

    def ask(self, uid: int, call: str, **arguments: Any) -> dict[str, Any]:
        """Make a call as a user; return its document when it has ended."""
        url = f"http://agent/v1/{call}"
        answer = self._curl(uid, url, "-d", json.dumps(arguments))
        while "state" in answer and answer["document"] is None:
            answer = self._curl(uid, f"http://agent/v1/operations/{answer['id']}?wait=30")
        document: dict[str, Any] = answer.get("document") or answer
        return document

    def begin(self, uid: int, call: str, **arguments: Any) -> str:
        """Begin a call as a user; return the operation's id."""
        return str(self._curl(uid, f"http://agent/v1/{call}", "-d", json.dumps(arguments))["id"])

    def _curl(self, uid: int, *words: str) -> dict[str, Any]:
        argv = ["curl", "-sS", "--unix-socket", self.agent.path, *words]
        done = subprocess.run(argv, user=uid, group=uid, extra_groups=[], capture_output=True, timeout=60, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A host whose root has made the VM `roots`."""
    library.open_host(HOST).create_vm("roots", profile="A100-4C")
    host_file = tmp_path / "state-home/vgpuctl/a100-40/etc/vgpuctl/host.yaml"
    host_file.parent.mkdir(parents=True, exist_ok=True)
    host_file.write_text(HOST_FILE)
    users = Directory()
    rights = HostRights(library.open_ports(HOST), users, owner=os.geteuid())
    with running(HOST, tmp_path, policy=rights) as agent:
        os.chmod(os.path.dirname(agent.path), 0o755)
        os.chmod(agent.path, 0o666)  # as if all of them were in one of the groups
        yield Site(agent, users, host_file)


def code_of(document: dict[str, Any]) -> str:
    """Return the code of a document's error; "" if it has none."""
    return "" if document["ok"] else str(document["error"]["code"])


def test_a_member_has_vms_of_his_own_and_nobody_elses(site: Site) -> None:
    made = site.ask(ALICE, "create-vm", name="hers", profile="A100-4C")
    assert (made["ok"], made["data"]["account"]) == (True, "alice")
    assert site.ask(ALICE, "set-vm", name="hers", owner="root", labels={"a": "b"})["ok"]
    assert site.ask(ALICE, "show-vm", name="hers")["data"]["account"] == "alice"
    for uid, name in ((ALICE, "roots"), (EVE, "hers"), (EVE, "roots")):
        for call, more in (
            ("stop-vm", {"force": True}),
            ("delete-vm", {}),
            ("set-vm", {"owner": "me"}),
            ("attach-vgpu", {"profile": "A100-4C"}),
            ("reboot-vm", {"force": True}),
            ("show-console", {}),
        ):
            assert code_of(site.ask(uid, call, name=name, **more)) == "not-yours", (uid, call)
    assert {vm["name"]: vm["state"] for vm in site.ask(EVE, "list-vms")["data"]} == {
        "hers": "running",
        "roots": "running",
    }
    assert site.ask(ALICE, "delete-vm", name="hers")["changed"]


def test_what_changes_the_host_is_roots(site: Site) -> None:
    for call, arguments in (
        ("cordon", {"gpu": "0000:3b:00.0"}),
        ("set-mode", {"gpu": "0000:3b:00.0", "mode": "passthrough"}),
        ("apply", {"sets": ["gpus[A100].cordoned=true"]}),
        ("reconcile-host", {}),
        ("restore-host", {}),
        ("fix-problems", {}),
    ):
        assert code_of(site.ask(ALICE, call, **arguments)) == "not-allowed", call
    assert code_of(site.ask(ALICE, "create-vm", name="x", profile="A100-4C", networks=["bridge=br0"])) == "not-allowed"
    for path in ("/etc/shadow", "/root/disk.qcow2", "/dev/sda"):
        for field in ("image", "cdrom", "disk"):
            refused = site.ask(ALICE, "create-vm", name="x", profile="A100-4C", **{field: path})
            assert code_of(refused) == "not-allowed", (field, path)
    assert [vm["name"] for vm in site.ask(ALICE, "list-vms")["data"]] == ["roots"]


def test_limits_and_the_journal(site: Site) -> None:
    for name in ("a", "b"):
        assert site.ask(ALICE, "create-vm", name=name, profile="A100-4C")["ok"]
    third = site.ask(ALICE, "create-vm", name="c", profile="A100-4C")
    assert not third["ok"]
    assert "2" in third["error"]["message"]
    entries = site.ask(ALICE, "log", vm="a")["data"]
    assert [(entry["command"], entry["uid"], entry["user"]) for entry in entries] == [("create-vm", ALICE, "alice")]


def test_who_only_looks_and_who_has_no_rights(site: Site) -> None:
    assert site.ask(BOB, "list-gpus")["ok"]
    assert code_of(site.ask(BOB, "create-vm", name="x", profile="A100-4C")) == "not-allowed"
    refused = site.ask(STRANGER, "list-gpus")
    assert (code_of(refused), refused["error"]["exit_status"]) == ("not-allowed", 3)


def test_who_left_the_group_has_no_rights_any_more(site: Site) -> None:
    assert site.ask(ALICE, "create-vm", name="hers", profile="A100-4C")["ok"]
    site.users.groups["alice"].clear()
    assert code_of(site.ask(ALICE, "stop-vm", name="hers")) == "not-allowed"
    assert code_of(site.ask(ALICE, "list-vms")) == "not-allowed"


def test_an_operation_is_cancelled_by_its_own_account(site: Site) -> None:
    made = site._curl(ALICE, "http://agent/v1/create-vm", "-d", json.dumps({"name": "hers", "profile": "A100-4C"}))
    refused = site._curl(EVE, f"http://agent/v1/operations/{made['id']}", "-X", "DELETE")
    assert code_of(refused) == "not-yours"
    assert site.agent.ended(made["id"])["ok"]


def test_a_request_that_waited_has_the_rights_of_the_time_when_it_begins(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.ask(ALICE, "create-vm", name="hers", profile="A100-4C")["ok"]
    monkeypatch.setattr(operations, "MAX_RUNNING", 0)
    waiting = site.begin(ALICE, "stop-vm", name="hers", force=True)
    assert site.agent.ask("GET", f"/v1/operations/{waiting}?wait=2").document["state"] == "waiting"
    site.users.groups["alice"].clear()
    monkeypatch.setattr(operations, "MAX_RUNNING", MAX_RUNNING)
    assert site.agent.change("cordon", gpu="0000:3b:00.0")["ok"]  # when it ends, the next one begins
    assert code_of(site.agent.ended(waiting)) == "not-allowed"
    assert site.agent.ask("GET", "/v1/show-vm?name=hers&fresh=1").document["data"]["state"] == "running"


def test_who_waits_takes_no_turn_of_who_changes_something(site: Site) -> None:
    wait = {"names": ["roots"], "event": "off", "timeout_seconds": 600}
    waits = [site.begin(ALICE, "wait", **wait) for _ in range(MAX_RUNNING)]
    assert site.agent.change("set-vm", name="roots", owner="ada")["changed"]
    for operation in waits:
        assert site._curl(ALICE, f"http://agent/v1/operations/{operation}", "-X", "DELETE")["id"] == operation
    assert {code_of(site.agent.ended(operation)) for operation in waits} == {"interrupted"}


def test_the_journal_has_what_was_asked_and_not_what_a_client_claims(site: Site) -> None:
    claimed = {"command_line": ["vgpuctl", "list-vms"]}
    site.ask(ALICE, "create-vm", name="hers", profile="A100-4C", labels={"a": "b"}, **{REQUEST_KEY: claimed})
    (entry,) = site.ask(ALICE, "log", vm="hers")["data"]
    assert entry["arguments"].startswith("agent create-vm name=hers profile=")
    assert "list-vms" not in entry["arguments"]


def test_what_an_operation_told_its_user_is_not_for_others(site: Site) -> None:
    assert site.ask(ALICE, "create-vm", name="hers", profile="A100-4C")["ok"]
    operation = site.begin(ALICE, "wait", names=["hers"], event="running", timeout_seconds=60)
    assert site.agent.ended(operation)["ok"]
    url = f"http://agent/v1/operations/{operation}"
    assert site._curl(ALICE, url)["document"]["data"][0]["name"] == "hers"
    for uid in (EVE, BOB):
        shown = site._curl(uid, url)
        assert (shown["state"], shown["account"], shown["document"]) == ("finished", "alice", None)
        assert code_of(site._curl(uid, f"{url}/events")) == "not-yours"
    roots = site.agent.ask("POST", "/v1/cordon", {"gpu": "0000:3b:00.0"}).document["id"]
    site.host_file.write_text(HOST_FILE + "  accounts: {eve: operator}\n")
    assert site._curl(EVE, url)["document"]["ok"]
    assert code_of(site._curl(EVE, f"http://agent/v1/operations/{roots}", "-X", "DELETE")) == "not-yours"
