# SPDX-License-Identifier: Apache-2.0
"""A controller and its host at the real socket: who may send a fence, when it is checked, and what an agent keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.agent.acting_agent import Parts, on_host, states
from tests.agent.acting_agent import reboot as reboot_host
from tests.agent.conftest import RunningAgent, process, running
from tests.agent.test_members import BOB, EVE, Directory, code_of
from vgpuctl import library
from vgpuctl.agent.client import AgentHost, connect
from vgpuctl.agent.fleet_fence import FILE_NAME
from vgpuctl.agent.protocol import Fenced, FenceLost
from vgpuctl.agent.rights import HostRights
from vgpuctl.errors import Controlled, HostCannot, InvalidInput
from vgpuctl.library import GpuHost
from vgpuctl.model.agent_service import OPERATORS_GROUP
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest
from vgpuctl.model.outcome import CallSettings

HOST = "sim:a100-40"
POOLS, OLGA = 60005, 60006
HOST_FILE = """\
version: 1
agent:
  allow: {networks: [default], pools: [default]}
  accounts: {pools: fleet, olga: operator}
"""
FENCE = {"incarnation": "db-1", "epoch": 1, "holder": "a"}
NEXT = {"incarnation": "db-1", "epoch": 2, "holder": "b"}
DESKTOP = "4b20d080-1b54-4048-85b3-a6a62d165c01"
MARK = {"id": DESKTOP, "pool": "office", "incarnation": "db-1", "generation": 1, "dirty": False}
GPU = {"profile": "A100-4C"}


class Site:
    """An agent with a controller's account, and other users."""

    def __init__(self, agent: RunningAgent, host_file: Path) -> None:
        self.agent = agent
        self.host_file = host_file

    def send(self, uid: int, path: str, body: object = None) -> dict[str, Any]:
        """Send a request as a user, and return the answer."""
        words = ["curl", "-sS", "--unix-socket", self.agent.path, f"http://agent/v1/{path}"]
        words += [] if body is None else ["-d", json.dumps(body)]
        done = subprocess.run(words, user=uid, group=uid, extra_groups=[], capture_output=True, timeout=60, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def ask(self, uid: int, call: str, fleet: object = None, **arguments: Any) -> dict[str, Any]:
        """Make a call as a user; return its document when it has ended."""
        options = arguments.pop("request", {}) | ({} if fleet is None else {"fleet": fleet})
        answer = self.send(uid, call, {**arguments, "request": options})
        return self.agent.ended(answer["id"]) if "state" in answer else answer

    def code(self, uid: int, call: str, fleet: object = None, **arguments: Any) -> str:
        """Make a call as a user; return the code of its error, "" if it has none."""
        return code_of(self.ask(uid, call, fleet, **arguments))

    def announce(self, fence: object = FENCE, uid: int = POOLS, **more: Any) -> dict[str, Any]:
        return self.send(uid, "fleet", {"fence": fence, **more})

    def mark(self) -> Any:
        return self.send(POOLS, "show-vm?name=vdi&fresh=1")["data"]["desktop"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    host_file = tmp_path / "state-home/vgpuctl/a100-40/etc/vgpuctl/host.yaml"
    host_file.parent.mkdir(parents=True, exist_ok=True)
    host_file.write_text(HOST_FILE)
    users = Directory()
    users.names |= {POOLS: "pools", OLGA: "olga"}
    users.groups |= {"pools": {OPERATORS_GROUP}, "olga": {OPERATORS_GROUP}}
    rights = HostRights(library.open_ports(HOST), users, owner=os.geteuid())
    with running(HOST, tmp_path, policy=rights) as agent:
        os.chmod(os.path.dirname(agent.path), 0o755)
        os.chmod(agent.path, 0o666)
        yield Site(agent, host_file)


def fleet(mark: object = None, **fence: Any) -> dict[str, Any]:
    return {"fence": {**FENCE, **fence}, **({} if mark is None else {"mark": mark})}


def test_what_a_controller_learns_of_a_host(site: Site) -> None:
    before = site.send(BOB, "fleet")
    assert (before["incarnation"], before["epoch"], before["holder"], before["lost"]) == (None, None, None, False)
    assert before["machine_id"] == library.open_ports(HOST).machine_id
    assert before["driver"]
    assert before["agent_version"] == vgpuctl.__version__
    assert len(before["boot_id"]) == 36
    assert site.announce() == {**before, **FENCE}
    assert site.send(POOLS, "fleet") == {**before, **FENCE}


def test_only_a_controllers_account_and_root_take_a_host(site: Site) -> None:
    for uid in (EVE, OLGA, BOB):
        assert code_of(site.announce(uid=uid)) == "not-allowed"
        assert code_of(site.announce(uid=uid, adopt=True)) == "not-allowed"
    assert site.send(POOLS, "fleet")["holder"] is None
    assert site.announce(uid=os.geteuid())["holder"] == "a"
    assert site.announce()["holder"] == "a"


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"fence": None},
        {"fence": {}},
        {"fence": {**FENCE, "epoch": "1"}},
        {"fence": {**FENCE, "epoch": True}},
        {"fence": {**FENCE, "epoch": -1}},
        {"fence": {**FENCE, "epoch": 1.5}},
        {"fence": {**FENCE, "epoch": 10**18}},
        {"fence": {**FENCE, "holder": ""}},
        {"fence": {**FENCE, "holder": "a\x00b"}},
        {"fence": {**FENCE, "holder": "x" * 256}},
        {"fence": {**FENCE, "holder": ["a"]}},
        {"fence": {**FENCE, "incarnation": "db\n1"}},
        {"fence": {**FENCE, "mark": MARK}},
        {"fence": FENCE, "adopt": "yes"},
        {"fence": FENCE, "adopt": 1},
        {"fence": FENCE, "force": True},
    ],
    ids=repr,
)
def test_a_bad_announcement_changes_nothing(site: Site, body: object) -> None:
    answer = site.send(POOLS, "fleet", body)
    assert (answer["ok"], answer["error"]["code"]) == (False, "invalid-input")
    assert site.send(POOLS, "fleet")["holder"] is None
    assert not (site.agent.state / FILE_NAME).exists()


@pytest.mark.parametrize(
    "sent",
    [
        "a",
        [],
        {},
        {"mark": MARK},
        {"fence": FENCE, "marks": MARK},
        {"fence": {**FENCE, "epoche": 2}},
        {"fence": FENCE, "mark": {**MARK, "dirt": True}},
        {"fence": FENCE, "mark": {**MARK, "dirty": "yes"}},
        {"fence": FENCE, "mark": {**MARK, "id": DESKTOP.upper()}},
        {"fence": FENCE, "mark": {**MARK, "id": "../vdi"}},
        {"fence": FENCE, "mark": {**MARK, "pool": ""}},
        {"fence": FENCE, "mark": {**MARK, "user": "a\r\nb"}},
        {"fence": FENCE, "mark": {**MARK, "user": "x" * 256}},
        {"fence": FENCE, "mark": {**MARK, "generation": -1}},
        {"fence": FENCE, "mark": {**MARK, "generation": 10**18}},
        {"fence": FENCE, "mark": {**MARK, "incarnation": "db-2"}},
        {"fence": FENCE, "mark": {name: value for name, value in MARK.items() if name != "pool"}},
        {"fence": FENCE, "mark": {name: value for name, value in MARK.items() if name != "dirty"}},
    ],
    ids=repr,
)
def test_a_bad_fleet_request_makes_nothing(site: Site, sent: object) -> None:
    site.announce()
    assert site.code(POOLS, "create-vm", sent, name="vdi", **GPU) == "invalid-input"
    assert site.send(POOLS, "list-vms?fresh=1")["data"] == []


def test_each_change_of_a_controllers_account_has_its_fence_and_nobody_elses_has_one(site: Site) -> None:
    site.announce()
    assert site.code(POOLS, "create-vm", name="vdi", **GPU) == "fence-needed"
    assert site.code(POOLS, "create-vm", name="vdi", dry_run=True, **GPU) == "fence-needed"
    for uid in (EVE, OLGA):
        assert site.code(uid, "create-vm", fleet(), name="vdi", **GPU) == "not-allowed"
    assert site.code(POOLS, "create-vm", fleet(MARK), name="vdi", **GPU) == ""
    assert site.mark() == {**MARK, "user": None}
    assert site.ask(POOLS, "list-vms")["data"][0]["uuid"] == DESKTOP, "a read needs no fence"
    assert site.code(POOLS, "stop-vm", name="vdi", force=True) == "fence-needed"
    assert site.code(POOLS, "stop-vm", fleet(MARK), name="vdi") == "invalid-input", "it writes no mark"
    several = site.ask(POOLS, "create-vms", fleet(MARK), pattern="a{:02}", count=2, **GPU)
    assert code_of(several) == "invalid-input", several
    assert site.code(POOLS, "mark-desktop", fleet(), name="vdi") == "invalid-input"
    for uid, options in ((OLGA, {}), (os.geteuid(), {})):
        assert site.code(uid, "stop-vm", name="vdi", request=options) == "controlled"
    for uid in (POOLS, OLGA, EVE):
        assert site.code(uid, "stop-vm", name="vdi", request={"override_controller": True}) == "not-allowed"
    assert site.code(os.geteuid(), "stop-vm", name="vdi", request={"override_controller": True}) == ""
    asked = [entry["arguments"] for entry in site.ask(POOLS, "log", vm="vdi")["data"]]
    assert any("mark=" in words and "office" in words for words in asked)


def test_a_change_of_another_holder_is_refused_on_arrival(site: Site) -> None:
    assert site.code(POOLS, "create-vm", fleet(MARK), name="vdi", **GPU) == "fenced", "nobody was announced"
    site.announce(NEXT)
    for wrong in ({"epoch": 1}, {"epoch": 2}, {"epoch": 3}, {"incarnation": "db-2", "epoch": 9}):
        mark = {**MARK, "incarnation": wrong.get("incarnation", "db-1")}
        assert site.code(POOLS, "create-vm", fleet(mark, **wrong), name="vdi", **GPU) == "fenced"
    assert site.send(POOLS, "operations")["operations"] == []
    assert code_of(site.announce()) == "fenced"
    assert code_of(site.announce({**NEXT, "holder": "a"})) == "fenced"
    assert code_of(site.announce({**NEXT, "incarnation": "db-2"})) == "fenced"
    assert site.announce({**NEXT, "incarnation": "db-2"}, adopt=True)["adopted"]
    refused = site.announce({**NEXT, "epoch": 99}, adopt=True)
    assert refused["error"]["facts"]["reason"] == "former"
    assert site.send(POOLS, "fleet")["incarnation"] == "db-2"


def test_an_answer_that_was_lost_is_found_again_by_its_key_after_the_lease_went_on(site: Site) -> None:
    site.announce()
    body = {"name": "vdi", **GPU, "request": {"fleet": fleet(MARK)}}
    begun = site.agent.ask("POST", "/v1/create-vm", body, Idempotency_Key="k1")
    assert site.agent.ended(begun.document["id"])["ok"]
    site.announce(NEXT)
    again = site.agent.ask("POST", "/v1/create-vm", body, Idempotency_Key="k1")
    assert (again.status, again.document["id"]) == (202, begun.document["id"])
    taken_over = {**body, "request": {"fleet": {**fleet(MARK), "fence": NEXT}}}
    again = site.agent.ask("POST", "/v1/create-vm", taken_over, Idempotency_Key="k1")
    assert (again.status, again.document["id"]) == (202, begun.document["id"]), "the next holder asks how it ended"
    assert site.agent.ask("POST", "/v1/create-vm", body, Idempotency_Key="k2").status == 409


def test_what_the_host_has_room_for(agent: RunningAgent) -> None:
    answer = agent.ask("GET", "/v1/fleet/room")
    assert answer.status == 200
    (gpu,) = answer.document["gpus"]
    assert (gpu["rule"], gpu["vgpus"], gpu["reserved_for"]) == (0, 0, [])
    assert answer.document["rules"][0]["form"] == "one-size"
    assert answer.document["memory_mib"] == 512 << 10
    assert agent.ask("POST", "/v1/fleet/room", {}).status == 405


def test_a_host_whose_libvirt_does_not_answer_says_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("version: 1\nlibvirt: {running: false}\ngpus:\n  - {model: A100}\n")
    with running(f"sim:{scenario}", tmp_path) as agent:
        answer = agent.ask("GET", "/v1/fleet/room")
        assert (answer.status, answer.document["error"]["code"]) == (501, "host-cannot")
        with pytest.raises(HostCannot):
            connect(f"agent:{agent.path}").read_room()


class Gate:
    """Keeps each operation at a point until the test opens it."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Semaphore(0), threading.Event()

    def wait(self) -> None:
        self.reached.release()
        assert self.opened.wait(60)


def test_an_operation_that_waits_for_its_turn_is_refused_when_another_holder_came(tmp_path: Path) -> None:
    gate, opened = Gate(), library.opener(HOST)

    def open_late(settings: CallSettings, clock: Any) -> GpuHost:
        gate.wait()
        return opened(settings, clock)

    with running(HOST, tmp_path, open_host=open_late) as agent:
        assert agent.ask("POST", "/v1/fleet", {"fence": FENCE}).status == 200
        others = [agent.ask("POST", "/v1/set-vm", {"name": "x", "owner": "y"}) for _ in range(8)]
        for _ in others:
            assert gate.reached.acquire(timeout=60)
        body = {"name": "vdi", **GPU, "request": {"fleet": fleet(MARK)}}
        waiting = agent.ask("POST", "/v1/create-vm", body).document
        assert waiting["state"] == "waiting"
        assert agent.ask("POST", "/v1/fleet", {"fence": NEXT}).status == 200
        gate.opened.set()
        assert code_of(agent.ended(waiting["id"])) == "fenced"
        assert agent.ask("GET", "/v1/list-vms?fresh=1").document["data"] == []


def test_an_operation_that_has_begun_stops_before_its_first_step(tmp_path: Path) -> None:
    library.open_host(HOST).create_vm("roots", **GPU)
    gate, opened = Gate(), library.opener(HOST)

    def open_late(settings: CallSettings, clock: Any) -> GpuHost:
        gate.wait()  # the check when it begins is before
        return opened(settings, clock)

    calls: list[tuple[str, dict[str, Any]]] = [
        ("create-vm", {"name": "vdi", **GPU, "mark": MARK}),
        ("stop-vm", {"name": "roots", "force": True}),
        ("delete-vm", {"name": "roots"}),
        ("set-vm", {"name": "roots", "owner": "eve"}),
    ]
    with running(HOST, tmp_path, open_host=open_late) as agent:
        assert agent.ask("POST", "/v1/fleet", {"fence": FENCE}).status == 200
        begun = []
        for call, arguments in calls:
            options = {"fleet": fleet(arguments.pop("mark", None))}
            begun.append(agent.ask("POST", f"/v1/{call}", {**arguments, "request": options}).document["id"])
        for _ in begun:
            assert gate.reached.acquire(timeout=60)
        before = agent.ask("GET", "/v1/list-vms?fresh=1").document["data"]
        assert agent.ask("POST", "/v1/fleet", {"fence": NEXT}).status == 200
        gate.opened.set()
        assert [code_of(agent.ended(one)) for one in begun] == ["fenced"] * len(calls)
        assert agent.ask("GET", "/v1/list-vms?fresh=1").document["data"] == before
        assert json.loads((agent.state / FILE_NAME).read_text())["deleted"] == {}


def test_who_lost_the_rights_of_a_fleet_changes_nothing_more(site: Site) -> None:
    site.announce()
    assert site.code(POOLS, "create-vm", fleet(MARK), name="vdi", **GPU) == ""
    site.host_file.write_text(HOST_FILE.replace("pools: fleet", "pools: operator"))
    assert site.code(POOLS, "stop-vm", fleet(), name="vdi") == "not-allowed"
    assert site.code(POOLS, "stop-vm", name="vdi") == "controlled"
    assert code_of(site.announce(NEXT)) == "not-allowed"


def test_a_deleted_desktop_stays_deleted_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        host = controller(agent)
        host.announce_fleet(Fence(**FENCE))
        assert host.create_vm("vdi", **GPU).data.uuid == DESKTOP
        controller(agent, None).delete_vm("vdi")
    with running(HOST, tmp_path) as agent:
        host = controller(agent)
        assert host.read_fleet().holder == "a"
        with pytest.raises(Exception, match="was deleted on this host") as caught:
            host.ensure_vm("vdi", **GPU)
        assert caught.value.code == "tombstone"  # type: ignore[attr-defined]


def controller(agent: RunningAgent, mark: dict[str, Any] | None = MARK, fence: dict[str, Any] = FENCE) -> AgentHost:
    """Return the host as a controller has it, which sends the mark with what writes one."""
    host = connect(f"agent:{agent.path}")
    request = FleetRequest(Fence(**fence), None if mark is None else DesktopMark(**mark))
    made: AgentHost = host.with_settings(CallSettings(fleet=request))
    return made


def test_the_whole_life_of_a_desktop_through_the_client(tmp_path: Path) -> None:
    with running(HOST, tmp_path) as agent:
        host = controller(agent)
        with pytest.raises(Fenced):
            host.create_vm("vdi", **GPU)
        host.announce_fleet(Fence(**FENCE))
        host.create_vm("vdi", **GPU)
        used = {**MARK, "generation": 2, "dirty": True, "user": "Ada Lovelace <ada@example.org>"}
        done = controller(agent, used).mark_desktop("vdi")
        assert done.changed
        assert done.data.desktop == DesktopMark(**used)
        assert not controller(agent, used).mark_desktop("vdi").changed
        with pytest.raises(InvalidInput):
            controller(agent, None).mark_desktop("vdi")
        plain = connect(f"agent:{agent.path}")
        with pytest.raises(Controlled):
            plain.stop_vm("vdi", force=True)
        root = connect(f"agent:{agent.path}", override_controller=True)
        assert root.stop_vm("vdi", force=True).changed
        assert plain.show_vm("vdi").data.desktop == DesktopMark(**used)
        with pytest.raises(Fenced):
            controller(agent).announce_fleet(Fence("db-2", 1, "z"))


@pytest.mark.parametrize("damage", ["remove", "truncate", "garbage", "huge"])
def test_a_host_that_forgot_whom_it_obeys_waits_for_an_adoption(tmp_path: Path, damage: str) -> None:
    with running(HOST, tmp_path) as agent:
        controller(agent).announce_fleet(Fence(**FENCE))
        controller(agent).create_vm("vdi", **GPU)
    file = tmp_path / "state" / FILE_NAME
    text = file.read_bytes()
    file.write_bytes(
        {"truncate": text[:-5], "garbage": b"\x00\xff" * 9, "huge": text + b" " * (5 << 20)}.get(damage, b"")
    )
    if damage == "remove":
        file.unlink()
    with running(HOST, tmp_path) as agent:
        host = controller(agent, None)
        acts: list[Callable[[], object]] = [
            lambda: host.announce_fleet(Fence(**FENCE)),
            lambda: host.announce_fleet(Fence("db-2", 1, "z")),
            lambda: host.stop_vm("vdi", force=True),
            lambda: host.delete_vm("vdi"),
        ]
        for act in acts:
            with pytest.raises(FenceLost):
                act()
        assert host.read_fleet().lost
        assert states(HOST) == {"vdi": "running"}
        assert host.announce_fleet(Fence(**FENCE), adopt=True).adopted
        assert host.stop_vm("vdi", force=True).changed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_that_ends_or_is_killed_knows_the_last_holder_again(tmp_path: Path, number: int) -> None:
    """A holder that was told that it is taken is known again; one whose answer did not come may be."""
    taken = 0
    for round_number in range(3):
        with process(HOST, tmp_path) as agent:
            status = connect(f"agent:{agent.path}").read_fleet()
            assert (status.epoch or 0) >= taken
            assert not status.lost
            for epoch in range(round_number * 10 + 1, round_number * 10 + 4):
                connect(f"agent:{agent.path}").announce_fleet(Fence("db-1", epoch, "a"))
                taken = epoch
            agent.stop(number)


def test_desktops_start_after_a_boot_and_planned_changes_are_made(tmp_path: Path) -> None:
    """What the agent does by itself for any VM it does for desktops, too."""

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        mark = DesktopMark(**MARK)
        settings = CallSettings(fleet=FleetRequest(Fence(**FENCE), mark))
        library.open_host(HOST).with_settings(settings).create_vm("vdi", autostart="enabled", **GPU)
        reboot_host()
        assert states() == {"vdi": "stopped"}
        starter = parts.again()
        while await starter.check():
            parts.clock.seconds += 60
        assert states() == {"vdi": "running"}
        assert library.open_host(HOST).show_vm("vdi").data.desktop == mark

    on_host(tmp_path, act)
