# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the helpers in guests: what it keeps of what they say, and what it asks them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import vgpuctl
from tests.agent.acting_agent import HOST, Parts, on_host
from tests.agent.conftest import RunningAgent, running
from tests.guests.helper import SimulatedGuest, listen_for
from tests.guests.qemu_ga import AgentRoot
from tests.licenses import MARKER, put_license, token_text
from vgpuctl.agent import guest_helpers, helper_link
from vgpuctl.agent.event_sources import EventSources
from vgpuctl.agent.guest_helpers import AgentGuestHelpers, HelperWatch
from vgpuctl.agent.helper_link import BURST_LINES, HelperLines
from vgpuctl.cli import entry
from vgpuctl.errors import Busy, HostCannot, Refused
from vgpuctl.library import open_ports
from vgpuctl.model.event import EventType
from vgpuctl.sim.host import open_host as open_sim
from vgpuctl.value import replace

HELPER_EVENTS = (
    EventType.GUEST_HELPER_UP, EventType.GUEST_HELPER_LOST, EventType.GUEST_HELPER_BAD, EventType.GUEST_USERS,
)  # fmt: skip
REPORT = {
    "type": "report", "helper": "1", "users": [], "driver": None, "host_driver": None, "host_branch": None,
    "mps": False,
}  # fmt: skip
WAIT_SECONDS = 30.0


def state_directory() -> Path:
    return open_sim(HOST.removeprefix("sim:")).host_file.parent.parent.parent


class WatchedHost:
    """A host with an agent that holds channels. VM a runs."""

    def __init__(self, parts: Parts) -> None:
        with vgpuctl.open_host(HOST) as host:
            self.uuid = host.create_vm("a", profile="A100-4C").data.uuid or ""
        self.parts = parts
        self.again()

    def again(self) -> None:
        """Begin as an agent that has just started."""
        assert self.parts.ports.guest_reports is not None
        assert self.parts.ports.guest_channels is not None
        self.helpers = AgentGuestHelpers(self.parts.ports.guest_reports)
        ports = replace(self.parts.ports, guest_reports=self.helpers)
        self.watch = HelperWatch(ports, self.parts.ports.guest_channels, self.helpers, self.parts.events)

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Look again until something is reached."""
        end = time.monotonic() + WAIT_SECONDS
        while not is_reached():
            assert time.monotonic() < end
            await asyncio.to_thread(self.watch.check)
            await asyncio.sleep(0.01)

    async def until_reported(self) -> None:
        await self.until(lambda: self.uuid in self.helpers.read())

    def events(self) -> list[tuple[EventType, str | None]]:
        """Return the events about helpers, with their reasons."""
        return [(e.type, e.reason) for e in self.parts.events.since(None) if e.type in HELPER_EVENTS]

    def users(self) -> list[str] | None:
        """Return who is logged on, as any command reads it."""
        reports = open_ports(HOST).guest_reports
        assert reports is not None
        report = reports.read().get(self.uuid)
        return None if report is None or report.users is None else [user.user for user in report.users]


def test_log_ons_are_events_and_reports(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with SimulatedGuest(state_directory(), host.uuid, tmp_path / "guest") as guest:
            await host.until_reported()
            assert host.events() == [
                (EventType.GUEST_HELPER_UP, "version 2"), (EventType.GUEST_USERS, "nobody logged on"),
            ]  # fmt: skip
            guest.programs.log_on("alice")
            guest.guest._slow = {}
            host.watch._links[host.uuid].send({"verb": "report"})
            await host.until(lambda: len(host.events()) == 3)
            assert host.events()[2] == (EventType.GUEST_USERS, "1 logged on")
            assert host.users() == ["alice"]
            with vgpuctl.open_host(HOST) as opened:
                shown, (row,) = opened.show_vm("a").data, opened.list_vms().data
                opened.stop_vm("a", force=True)
            assert shown.helper_report is not None
            assert [user.user for user in shown.helper_report.users or ()] == ["alice"]
            assert row.guest_users == ("alice",)
            parts.clock.seconds += 120
            await host.until(lambda: host.users() is None)
            assert host.events()[3][0] is EventType.GUEST_HELPER_LOST
            host.watch.close()

    on_host(tmp_path, act)


def test_what_a_helper_said_before_its_guest_boots_again_does_not_count(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        sources = EventSources(parts.ports, parts.events, on_reboot=host.helpers.note_boot)
        sources.start()
        with listen_for(state_directory(), host.uuid) as listening:
            await asyncio.to_thread(host.watch.check)
            end, _ = listening.accept()
            ada = {"user": "ada", "state": "active", "idle_seconds": 0}
            end.sendall(json.dumps({**REPORT, "users": [ada]}).encode() + b"\n")
            await host.until_reported()
            with vgpuctl.open_host(HOST) as opened:
                opened.reboot_vm("a", force=True)
            await host.until(lambda: host.users() is None)
            assert host.events()[-1] == (EventType.GUEST_HELPER_LOST, "its guest boots again")
            end.sendall(json.dumps(REPORT).encode() + b"\n")
            await host.until(lambda: host.users() == [])
            assert host.events()[-1] == (EventType.GUEST_USERS, "nobody logged on")
        sources.close()
        host.watch.close()

    on_host(tmp_path, act)


def test_the_helper_is_asked_and_answers(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with pytest.raises(HostCannot, match="no helper in the guest"):
            host.helpers.ask(host.uuid, "message", text="x")
        with SimulatedGuest(state_directory(), host.uuid, tmp_path / "guest") as guest:
            await host.until_reported()
            with pytest.raises(Refused, match="refused message: nobody is logged on"):
                await asyncio.to_thread(host.helpers.ask, host.uuid, "message", text="x")
            await asyncio.to_thread(host.helpers.ask, host.uuid, "shutdown-in", minutes=3)
            assert guest.programs.ran == [("shutdown", "-h", "--", "+3")]
            host.watch.close()

    on_host(tmp_path, act)


def test_a_helper_that_does_not_answer_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_link, "ANSWER_SECONDS", 0.05)

    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with listen_for(state_directory(), host.uuid) as listening:
            await asyncio.to_thread(host.watch.check)
            end, _ = listening.accept()
            end.sendall(json.dumps(REPORT).encode() + b"\n")
            await host.until_reported()
            with pytest.raises(Busy, match=r"did not answer within 0\.05 s"):
                await asyncio.to_thread(host.helpers.ask, host.uuid, "message", text="x")
            link = host.watch._links[host.uuid]
            assert (link._answers, link._waiting) == ({}, {})
            await host.until(lambda: host.events()[-1][0] is EventType.GUEST_HELPER_LOST)
            assert host.events()[-1][1] == "it did not answer a request"
            again, _ = await asyncio.to_thread(listening.accept)
            again.sendall(b'{"type": "answer", "id": 1, "ok": true}\n' + json.dumps(REPORT).encode() + b"\n")
            await host.until_reported()
            assert host.watch._links[host.uuid]._answers == {}, "answers that nobody waits for are not kept"
            host.watch.close()
            again.close()
            end.close()

    on_host(tmp_path, act)


BAD_LINES = [
    b"rubbish", b"[]", b"{}", b"\xff\xfe", b'{"type": "report"}', b"[" * 4000, b"1" * 4000, b'{"a":' * 600 + b"1",
    json.dumps({**REPORT, "driver": "570.1; rm -rf /"}).encode(),
    json.dumps({**REPORT, "driver": "5" * 21}).encode(),
    json.dumps({**REPORT, "driver": 570}).encode(),
    json.dumps({**REPORT, "host_branch": "a b"}).encode(),
    json.dumps({**REPORT, "mps": 1}).encode(),
    json.dumps({**REPORT, "users": "alice"}).encode(),
    json.dumps({**REPORT, "users": [{"user": "a", "state": "active", "idle_seconds": None}] * 33}).encode(),
    json.dumps({**REPORT, "users": [{"user": "a" * 65, "state": "active", "idle_seconds": None}]}).encode(),
    json.dumps({**REPORT, "users": [{"user": "\u202e", "state": "active", "idle_seconds": None}]}).encode(),
    json.dumps({**REPORT, "users": [{"user": "a", "state": "gone", "idle_seconds": None}]}).encode(),
    json.dumps({**REPORT, "users": [{"user": "a", "state": "active", "idle_seconds": -1}]}).encode(),
    json.dumps({**REPORT, "users": [{"user": "a", "state": "active", "idle_seconds": True}]}).encode(),
    b'{"type": "answer", "id": "1", "ok": true}', b'{"type": "answer", "id": 1, "ok": false}',
]  # fmt: skip


def test_what_a_guest_sends_besides_is_counted_and_dropped(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with listen_for(state_directory(), host.uuid) as listening:
            await asyncio.to_thread(host.watch.check)
            end, _ = listening.accept()
            link = host.watch._links[host.uuid]
            for line in BAD_LINES:
                end.sendall(line + b"\n")
            await host.until(lambda: link.bad_lines == len(BAD_LINES))
            assert (host.helpers.read(), host.users()) == ({}, None)
            users = [{"user": "al\x1b[31m\u202eice", "state": "active", "idle_seconds": 3, "vm": "other"}]
            end.sendall(json.dumps({**REPORT, "vm": "other", "users": users}).encode() + b"\n")
            await host.until_reported()
            assert host.users() == ["al[31mice"]
            assert [event for event in host.events() if event[0] is EventType.GUEST_HELPER_BAD] == [
                (EventType.GUEST_HELPER_BAD, host.events()[0][1])
            ], "once"
            host.watch.close()
            end.close()

    on_host(tmp_path, act)


@pytest.mark.parametrize("flood", [b"x" * 65536, b"x\n" * 100], ids=["a line without end", "many lines"])
def test_the_channel_of_a_guest_that_floods_is_closed_for_a_minute(tmp_path: Path, flood: bytes) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with listen_for(state_directory(), host.uuid) as listening:
            await asyncio.to_thread(host.watch.check)
            end, _ = listening.accept()
            end.settimeout(WAIT_SECONDS)
            end.sendall(json.dumps(REPORT).encode() + b"\n")
            await host.until_reported()

            def send() -> int:
                sent = 0
                with suppress(ConnectionError):
                    while sent < 100 << 20:
                        sent += end.send(flood)
                return sent

            sending = asyncio.create_task(asyncio.to_thread(send))
            await host.until(lambda: host.users() is None)
            assert await sending < 100 << 20
            kinds = [str(kind).removeprefix("guest-") for kind, _ in host.events()]
            assert kinds == ["helper-up", "users", "helper-bad", "helper-lost"]
            assert host.events()[-1][1] == "it sent more than it may"
            parts.clock.seconds += guest_helpers.FLOOD_SECONDS - 1
            await asyncio.to_thread(host.watch.check)
            assert host.watch._links == {}
            parts.clock.seconds += 1
            await asyncio.to_thread(host.watch.check)
            again, _ = listening.accept()
            again.sendall(json.dumps(REPORT).encode() + b"\n")
            await host.until_reported()
            host.watch.close()
            for one in (again, end):
                one.close()

    on_host(tmp_path, act)


def test_a_report_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        directory = state_directory() / "run/guests"
        directory.parent.mkdir(exist_ok=True)
        directory.write_text("in the way")
        with SimulatedGuest(state_directory(), host.uuid, tmp_path / "guest"):
            await host.until_reported()
            assert "the report of the helper in VM" in caplog.text
            await asyncio.to_thread(host.helpers.ask, host.uuid, "shutdown-in", minutes=3)
            host.watch.close()

    on_host(tmp_path, act)


def test_users_who_change_all_the_time_are_few_events(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with listen_for(state_directory(), host.uuid) as listening:
            await asyncio.to_thread(host.watch.check)
            end, _ = listening.accept()
            for number in range(30):
                users = [{"user": f"u{number}", "state": "active", "idle_seconds": None}]
                end.sendall(json.dumps({**REPORT, "users": users}).encode() + b"\n")
                await host.until(lambda users=users: host.users() == [users[0]["user"]])
                parts.clock.seconds += 1
            changes = [event for event in host.events() if event[0] is EventType.GUEST_USERS]
            assert len(changes) == 1 + guest_helpers.BUSY_CHANGES
            parts.clock.seconds += 60
            await host.until(lambda: len(host.events()) > 7)
            assert host.users() == ["u29"]
            host.watch.close()
            end.close()

    on_host(tmp_path, act)


def test_a_silent_helper_is_taken_for_lost(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with listen_for(state_directory(), host.uuid) as listening:
            await asyncio.to_thread(host.watch.check)
            end, _ = listening.accept()
            end.sendall(json.dumps(REPORT).encode() + b"\n")
            await host.until_reported()
            parts.clock.seconds += 181
            await host.until(lambda: host.users() is None)
            assert host.events()[-1] == (EventType.GUEST_HELPER_LOST, "it has said nothing for 180 s")
            host.watch.close()
            end.close()

    on_host(tmp_path, act)


def test_reports_of_an_earlier_agent_go_with_their_vms(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        host = WatchedHost(parts)
        with SimulatedGuest(state_directory(), host.uuid, tmp_path / "guest"):
            await host.until_reported()
            host.watch.close()
            assert host.users() == []
        with vgpuctl.open_host(HOST) as opened:
            opened.stop_vm("a", force=True)
        host.again()
        parts.clock.seconds += 120
        await asyncio.to_thread(host.watch.check)
        assert host.users() is None

    on_host(tmp_path, act)


def test_lines_are_split_wherever_they_are_cut() -> None:
    data = b"one\ntwo\n" + b"x" * 5000 + b"\nthree\nfo"
    for size in (1, 2, 3, 7, 4096, len(data)):
        lines = HelperLines()
        kept = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size], 100.0)]
        assert (kept, lines.dropped) == ([b"one", b"two", b"three"], 1)


def test_more_than_ten_lines_a_second_are_dropped() -> None:
    lines = HelperLines()
    assert len(lines.feed(b"x\n" * 200, 100.0)) == BURST_LINES
    assert lines.is_flooded
    assert lines.dropped == 200 - BURST_LINES
    assert len(lines.feed(b"x\n" * 200, 101.0)) == 10
    assert len(lines.feed(b"x\n", 200.0)) == 1
    assert not lines.is_flooded


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[RunningAgent, SimulatedGuest, str]]:
    """An agent of a host with a VM whose helper has reported; alice is logged on."""
    with vgpuctl.open_host(HOST) as host:
        put_license(state_directory() / "etc/vgpuctl")
        given = {
            "profile": "A100-4C",
            "image": "/srv/images/ubuntu-24.04.qcow2",
            "license": "cad",
            "guest_helper": True,
        }
        uuid = host.create_vm("a", **given).data.uuid or ""
    with SimulatedGuest(state_directory(), uuid, tmp_path / "guest") as guest:
        guest.programs.log_on("alice")
        with running(HOST, tmp_path) as agent:
            end = time.monotonic() + WAIT_SECONDS
            while agent.connect().show_vm("a").data.helper_report is None:
                assert time.monotonic() < end
            yield agent, guest, uuid


def test_commands_reach_the_helper_through_the_agent(
    served: tuple[RunningAgent, SimulatedGuest, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, guest, _ = served

    def run(line: str) -> str:
        status = entry.main(["--host", f"agent:{agent.path}", *shlex.split(line)])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    run("message-vm a --text 'save your work' --dry-run")
    assert guest.programs.ran == []
    run("message-vm a --text 'save your work'")
    run("shutdown-in a --minutes 10 --text Maintenance")
    run("shutdown-in a --cancel")
    assert guest.programs.stdin == "save your work\n"
    assert guest.programs.ran == [
        ("wall",), ("shutdown", "-h", "--", "+10", "Maintenance"), ("shutdown", "-c"),
    ]  # fmt: skip
    (tmp_path / "guest/lib64/security").mkdir(parents=True)
    (tmp_path / "guest/lib64/security/pam_access.so").write_text("/etc/security/access.d/*.conf")
    (tmp_path / "guest/etc/pam.d").mkdir(parents=True)
    (tmp_path / "guest/etc/pam.d/sshd").write_text("account required pam_access.so\n")
    run("allow-logon a --user alice")
    assert "+:alice:ALL" in (tmp_path / "guest/etc/security/access.d/90-vgpuctl.conf").read_text()
    run("allow-logon a --everybody")
    assert not (tmp_path / "guest/etc/security/access.d/90-vgpuctl.conf").exists()
    shown = run("show-vm a")
    assert re.search(r"^logged on: +alice$", shown, re.MULTILINE)
    assert "alice" in run("list-vms -o wide")
    assert entry.main(["--host", f"agent:{agent.path}", "message-vm", "a", "--text", "x" * 1001]) == 2


def test_without_a_helper_the_qemu_guest_agent_is_asked(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        uuid = host.create_vm("a", profile="A100-4C").data.uuid or ""
    root, guest_agent = AgentRoot(tmp_path / "guest"), open_ports(HOST).guest_agent
    assert guest_agent is not None
    with running(HOST, tmp_path) as agent:
        calls = agent.connect()
        with pytest.raises(HostCannot, match=r"no helper in the guest of a reports .* no QEMU guest agent answers"):
            calls.message_vm("a", "hi")
        with root.running(guest_agent, state_directory(), uuid):
            calls.message_vm("a", "hi")
            with pytest.raises(HostCannot, match="reports to the host agent, and the QEMU guest agent cannot do it"):
                calls.allow_logon("a", "alice")
        with root.running(guest_agent, state_directory(), uuid, "-b", "guest-exec-status"):
            blocked = agent.change("shutdown-in", name="a", minutes=5)
    assert (root.noted("wall"), root.noted("shutdown")) == (["hi"], [])
    assert (blocked["error"]["code"], blocked["error"]["exit_status"]) == ("blocked-by-guest", 3)
    assert blocked["error"]["facts"]["commands"] == ["guest-exec-status"]


def test_a_new_token_reaches_a_running_guest_at_once(
    served: tuple[RunningAgent, SimulatedGuest, str], tmp_path: Path
) -> None:
    agent, guest, _ = served
    host = agent.connect()
    token = tmp_path / "guest/etc/nvidia/ClientConfigToken/client_configuration_token_vgpuctl.tok"
    text = token_text(pad="x" * 5000)
    put_license(state_directory() / "etc/vgpuctl", client_tok=text)
    steps = host.refresh_license("a", dry_run=True).steps
    assert not token.exists()
    done = host.refresh_license("a")
    assert (done.changed, done.steps) == (True, steps)
    assert token.read_text() == f"{text}\n"
    assert guest.programs.ran == [("systemctl", "--no-block", "try-restart", "nvidia-gridd.service")]
    seeds = [path for path in (state_directory() / "volumes").iterdir() if MARKER.encode() in path.read_bytes()]
    assert len(seeds) == 1, "the seed had the old token, and has the new one"
    host.refresh_license("a", clear=True)
    host.refresh_license("a")
    assert MARKER.encode() not in seeds[0].read_bytes(), "the guest has it; the seed stays without"
    assert MARKER not in json.dumps(agent.ask("GET", "/v1/operations").document)
    guest.programs.failing.add("systemctl")
    with pytest.raises(Refused, match=r"the token is in place, but NVIDIA's service was not restarted"):
        host.refresh_license("a")


def test_a_driver_that_the_helper_reports_is_shown(
    served: tuple[RunningAgent, SimulatedGuest, str], tmp_path: Path
) -> None:
    agent, guest, _ = served
    module = tmp_path / "guest/sys/module/nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text("570.211\n")
    guest.programs.log_on("bob")
    guest.guest._slow = {}
    host = agent.connect()
    end = time.monotonic() + WAIT_SECONDS
    while (report := host.show_vm("a").data.helper_report) is None or report.driver is None:
        assert time.monotonic() < end
    assert report.driver == "570.211"
    (row,) = host.list_vms().data
    assert (row.driver, row.guest_users) == ("570.211", ("alice", "bob"))
