# SPDX-License-Identifier: Apache-2.0
"""Which VMs the agent starts after a boot of a simulated host, and when it gives up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.agent.acting_agent import HOST, Parts, on_host, reboot, scenario, states
from tests.agent.conftest import running
from vgpuctl import library
from vgpuctl.agent.boot_starts import FIRST_WAIT_SECONDS, LATEST_UPTIME_SECONDS, MAX_TRIES
from vgpuctl.agent.operation_store import StoredOperation
from vgpuctl.errors import Failed, InvalidInput
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.event import EventType
from vgpuctl.ports.devices import Sysfs
from vgpuctl.value import replace


def test_vms_that_should_run_are_started_after_a_boot_in_their_order(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("late", profile="A100-4C", autostart="enabled", start=False)
        host.create_vm("early", profile="A100-4C", autostart="last-state", start_order=1)
        host.create_vm("stopped", profile="A100-4C", autostart="last-state")
        host.stop_vm("stopped")
        host.create_vm("other", profile="A100-4C")

    async def act(parts: Parts) -> None:
        assert not await parts.starter.check(), "the agent's first start is after no boot"
        assert states()["late"] == "stopped"
        reboot()
        assert not await parts.again().check(), "nothing is left to start"
        assert states() == {"early": "running", "late": "running", "other": "stopped", "stopped": "stopped"}
        names = [event.vm for event in parts.events.since(None) if event.type is EventType.AUTOSTART_FAILED]
        assert names == []
        begun = sorted(parts.operations.list(), key=lambda stored: stored.started or 0)
        assert [one.document for one in begun] == [None, None]
        first = to_json_value(parts.operations.find(begun[0].id).stored.document)
        assert first["data"]["name"] == "early"

    on_host(tmp_path, act)


def test_a_vm_that_somebody_stopped_since_the_boot_is_not_started_again(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        await parts.again().check()
        assert states() == {"a": "running"}
        with vgpuctl.open_host(HOST) as host:
            host.stop_vm("a")
        await parts.again().check()  # an agent that started again knows what the former one did
        assert states() == {"a": "stopped"}

    on_host(tmp_path, act)


def test_a_boot_unit_that_failed_is_an_event(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")
    host_file = library.open_ports(HOST).host_file
    assert host_file is not None

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        host_file.replace("version: 1\ngpus: {0000:3b:00.0: {mode: wrong}}\n", host_file.read())
        with vgpuctl.open_host(HOST) as host, pytest.raises(Failed):
            host.restore_host()
        starter = parts.again()
        for _ in range(2):
            with pytest.raises(InvalidInput):
                await starter.check()
        (event,) = [event for event in parts.events.since(None) if event.type is EventType.RESTORE_FAILED]
        assert "mode" in str(event.reason)

    on_host(tmp_path, act)


def test_host_yaml_turns_the_starts_of_this_boot_off(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")
    host_file = library.open_ports(HOST).host_file
    assert host_file is not None
    off = "version: 1\nagent: {self_healing: false}\n"
    host_file.replace(off, host_file.read())

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        assert not await parts.again().check()
        host_file.replace("version: 1\n", off)
        assert not await parts.again().check()
        assert states() == {"a": "stopped"}

    on_host(tmp_path, act)


def test_a_vm_whose_start_fails_is_tried_again_and_given_up_with_an_event(tmp_path: Path) -> None:
    host = scenario(tmp_path, "faults: [{on: start, match: a, code: 38, message: no power}]")
    with vgpuctl.open_host(host) as opened:
        opened.create_vm("a", profile="A100-4C", autostart="enabled", start=False)

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        starter, tries = parts.again(), []
        while await starter.check():
            tries.append(len(parts.done()))
            parts.clock.seconds += FIRST_WAIT_SECONDS
        assert tries[:5] == [1, 2, 2, 3, 3], "each wait is twice as long as the one before"
        assert [stored.vm for stored in parts.operations.list()] == ["a"] * MAX_TRIES
        (event,) = [event for event in parts.events.since(None) if event.type is EventType.AUTOSTART_FAILED]
        assert (event.vm, "no power" in str(event.reason)) == ("a", True)

    on_host(tmp_path, act, host)


@pytest.mark.parametrize("storage", ["local", "any"])
def test_a_vm_with_a_disk_on_a_server_starts_only_if_its_spec_says_so(tmp_path: Path, storage: str) -> None:
    host = scenario(tmp_path, "storage: {pools: [{name: default}, {name: far, path: /far, kind: netfs}]}")
    with vgpuctl.open_host(host) as opened:
        opened.create_vm(
            "a", profile="A100-4C", autostart="enabled", autostart_storage=storage, storage_pool="far", start=False
        )

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        is_left = await parts.again().check()
        failed = parts.published(EventType.AUTOSTART_FAILED)
        if storage == "local":
            assert (states(host), is_left, failed) == ({"a": "stopped"}, True, [(EventType.AUTOSTART_FAILED, "a")])
        else:
            assert (states(host), failed) == ({"a": "running"}, [])

    on_host(tmp_path, act, host)


def test_a_damaged_file_is_set_aside_and_nothing_is_started(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled", start=False)
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "boot-starts.json").write_text("{damaged")

    async def act(parts: Parts) -> None:
        assert not await parts.starter.check()
        content = json.loads((tmp_path / "agent" / "boot-starts.json").read_text())
        assert content["pending"] == []
        assert (tmp_path / "agent" / "boot-starts.damaged").read_text() == "{damaged"
        assert len(parts.published(EventType.AUTOSTART_FAILED)) == 1

    on_host(tmp_path, act)


class LateHost:
    """A host's files, with a time since the boot that the test sets."""

    def __init__(self, real: Sysfs) -> None:
        self._real, self.uptime = real, 60.0

    def read(self, path: str) -> str:
        return f"{self.uptime:.2f} 0.00" if path == "/proc/uptime" else self._real.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("late", ["at the first look", "while a VM waits"])
def test_hours_after_the_boot_nothing_is_started(tmp_path: Path, late: str) -> None:
    host = scenario(tmp_path, "faults: [{on: start, match: a, code: 38, message: no power, nth: 2}]")
    with vgpuctl.open_host(host) as opened:
        opened.create_vm("a", profile="A100-4C", autostart="enabled")

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        files = LateHost(parts.ports.sysfs)
        parts.ports = replace(parts.ports, sysfs=files)
        starter = parts.again()
        if late == "while a VM waits":
            assert await starter.check(), "the first start fails"
        files.uptime = LATEST_UPTIME_SECONDS + 1
        parts.clock.seconds += FIRST_WAIT_SECONDS
        assert not await starter.check()
        assert states(host) == {"a": "stopped"}
        assert len(parts.published(EventType.AUTOSTART_FAILED)) == (late == "while a VM waits")

    on_host(tmp_path, act, host)


def test_a_request_to_stop_a_vm_is_obeyed_though_its_start_was_decided(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("first", profile="A100-4C", autostart="last-state", start_order=1)
        host.create_vm("second", profile="A100-4C", autostart="last-state", start_order=2)

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()

        def stop_second(stored: StoredOperation) -> None:
            if len(parts.done()) == 1:
                with vgpuctl.open_host(HOST) as host:
                    host.stop_vm("second")

        parts.operations.on_end = stop_second
        starter = parts.again()
        for _ in range(2):
            await starter.check()
        assert states() == {"first": "running", "second": "stopped"}
        assert not vgpuctl.open_host(HOST).show_vm("second").data.should_run

    on_host(tmp_path, act)


def test_a_vm_that_somebody_else_started_is_not_started_again(tmp_path: Path) -> None:
    host = scenario(tmp_path, "faults: [{on: start, match: a, code: 38, message: no power, nth: 2}]")
    with vgpuctl.open_host(host) as opened:
        uuid = opened.create_vm("a", profile="A100-4C", autostart="enabled").data.uuid

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot(host)
        starter = parts.again()
        assert await starter.check()
        parts.events.publish(EventType.VM_STARTED, vm="a", vm_uuid=uuid)  # and stopped, between two looks
        parts.clock.seconds += FIRST_WAIT_SECONDS
        assert not await starter.check()
        assert states(host) == {"a": "stopped"}

    on_host(tmp_path, act, host)


def test_a_file_that_cannot_be_written_stops_nothing_for_ever(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="enabled")

    async def act(parts: Parts) -> None:
        await parts.starter.check()
        reboot()
        starter, file = parts.again(), parts.directory / "boot-starts.json"
        file.rename(parts.directory / "kept")
        file.mkdir()
        with pytest.raises(OSError, match="boot-starts"):
            await starter.check()
        file.rmdir()
        (parts.directory / "kept").rename(file)
        await starter.check()
        assert states() == {"a": "running"}

    on_host(tmp_path, act)


def test_a_running_agent_starts_them(tmp_path: Path) -> None:
    with vgpuctl.open_host(HOST) as host:
        host.create_vm("a", profile="A100-4C", autostart="last-state")
    with running(HOST, tmp_path):
        pass
    reboot()
    with running(HOST, tmp_path) as agent:
        agent.connect().wait("a", event="running", timeout_seconds=60)
        assert states() == {"a": "running"}
