# SPDX-License-Identifier: Apache-2.0
"""A state directory that is full or read-only: the agent answers reads, refuses operations, and recovers by itself."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.agent.conftest import RunningAgent, process, running
from vgpuctl import library
from vgpuctl.agent import operations, server
from vgpuctl.errors import Locked
from vgpuctl.host.processes import HostClock
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import CallSettings

HOST = "sim:a100-40"
VM = {"name": "vdi-1", "profile": "A100-4C"}


class Disk:
    """The file system of the state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def remount(self, mode: str) -> None:
        """Make it `ro` or `rw`."""
        subprocess.run(["mount", "-o", f"remount,{mode}", self.path], check=True)

    def fill(self) -> None:
        """Take all room."""
        with open(self.path / "fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def free(self) -> None:
        """Give the room back."""
        (self.path / "fill").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small file system where an agent of `tmp_path` has its state."""
    path = tmp_path / "state"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=700", "tmpfs", path], check=True)
    yield Disk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


def read_only_events(agent: RunningAgent) -> list[str]:
    """Return the events that say whether operations can be stored."""
    events = agent.ask("GET", "/v1/events").document["events"]
    return [event["type"] for event in events if event["type"].startswith("read-only")]


def assert_refused(agent: RunningAgent, words: str) -> None:
    """Assert that an operation is refused, and that nothing was changed."""
    refused = agent.ask("POST", "/v1/create-vm", VM)
    error = refused.document["error"]
    assert (refused.status, error["code"], error["exit_status"]) == (503, "state-not-writable", 75)
    assert words in error["message"]
    assert "sudo vgpuctl works without the agent" in error["hint"]
    assert agent.ask("GET", "/v1/list-vms?fresh=1").document["data"] == []


def stored_in(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_it_starts_on_a_read_only_disk_and_recovers(tmp_path: Path, disk: Disk) -> None:
    with running(HOST, tmp_path) as agent:
        ended, lost = (agent.ask("POST", "/v1/reconcile-host", {}).document["id"] for _ in range(2))
        document = agent.ended(ended)
        agent.ended(lost)
    path = disk.path / "operations" / f"{lost}.json"
    path.write_text(json.dumps({**stored_in(path), "state": "running", "finished": None, "document": None}))
    disk.remount("ro")
    with process(HOST, tmp_path) as agent:
        assert agent.ended(ended) == document
        assert agent.ask("GET", f"/v1/operations/{lost}").document["state"] == "interrupted"
        assert_refused(agent, "Read-only file system")
        assert_refused(agent, "Read-only file system")
        assert read_only_events(agent) == ["read-only-begin"]
        with pytest.raises(Locked), server.only_agent(agent.state):
            raise AssertionError("it went on")
        disk.remount("rw")
        assert agent.change("create-vm", **VM)["ok"]
        assert read_only_events(agent) == ["read-only-begin", "read-only-end"]
        reconcile = agent.ask("GET", f"/v1/operations/{lost}").document["document"]["error"]["facts"]["reconcile"]
        assert agent.ended(reconcile)["kind"] == "reconcile-host"
        assert stored_in(path)["state"] == "interrupted"


def test_it_starts_on_a_full_disk_that_was_never_used(tmp_path: Path, disk: Disk) -> None:
    disk.fill()
    with running(HOST, tmp_path) as agent:
        assert_refused(agent, "No space left on device")
        assert agent.ask("GET", "/v1/operations").document["operations"] == []
        disk.free()
        assert agent.change("create-vm", **VM)["ok"]
    with running(HOST, tmp_path) as again:
        assert [one["call"] for one in again.ask("GET", "/v1/operations").document["operations"]] == ["create-vm"]
    assert len(vgpuctl.open_host(HOST).list_vms().data) == 1


def test_a_disk_that_fills_up_loses_no_result_and_begins_nothing(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_RUNNING", 1)
    make, has_begun, go_on = library.opener(HOST), threading.Event(), threading.Event()

    def open_host(settings: CallSettings, clock: HostClock | None) -> GpuHost:
        has_begun.set()
        assert go_on.wait(60)
        return make(settings, clock)

    with running(HOST, tmp_path, open_host=open_host) as agent:
        runs = agent.ask("POST", "/v1/cordon", {"gpu": "A100"}).document["id"]
        waits = agent.ask("POST", "/v1/create-vm", VM).document["id"]
        assert has_begun.wait(60)
        disk.fill()
        go_on.set()
        document = agent.ended(runs)
        assert document["changed"]
        refused = agent.ended(waits)["error"]
        assert (refused["code"], refused["exit_status"]) == ("state-not-writable", 75)
        assert_refused(agent, "No space left on device")
        assert read_only_events(agent) == ["read-only-begin"]
        path = disk.path / "operations" / f"{runs}.json"
        assert stored_in(path)["document"] is None
        disk.free()
        assert agent.change("uncordon", gpu="A100")["changed"]
        assert agent.ended(runs) == document
        assert read_only_events(agent) == ["read-only-begin", "read-only-end"]
    assert stored_in(path)["document"] == document
