# SPDX-License-Identifier: Apache-2.0
"""The record of a VM with `autostart: last-state` has the last request to start or to stop it, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, request
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import Busy
from vgpuctl.model.autostart import starts_after_boot
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.vm import DiskRole, ManagedDisk, VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations import last_state, power
from vgpuctl.operations.change import change_vm
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.value import replace


def last_state_request(**fields: Any) -> VmRequest:
    return replace(request("A100-4C", name="vm"), autostart="last-state", **fields)


def record(host: SimulatedHost) -> VmRecord:
    vm = observe(host.ports, scope_of_vm("vm")).vm("vm")
    assert vm is not None
    assert vm.record is not None
    return vm.record


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """Return a host with a VM that keeps its last state and runs."""
    host = open_sim_host(tmp_path)
    create(host.ports, last_state_request(), start=True)
    return host


def test_a_start_and_a_stop_are_noted_once(host: SimulatedHost) -> None:
    assert record(host).should_run
    stopped = last_state.stop_vm(host.ports, context(), "vm", force=False)
    assert (stopped.data.state, record(host).should_run) == ("stopped", False)
    assert "record that vm should be off after a boot" in stopped.steps
    generation = record(host).generation
    assert not last_state.stop_vm(host.ports, context(), "vm", force=False).changed
    assert record(host).generation == generation
    started = last_state.start_vm(host.ports, context(), "vm")
    assert (started.data.state, record(host).should_run) == ("running", True)


def test_a_vm_that_is_created_off_should_be_off(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, last_state_request(), start=False)
    assert not record(host).should_run


def test_a_request_for_the_state_that_the_vm_has_is_noted_too(host: SimulatedHost) -> None:
    power.stop_vm(host.ports, context(), "vm", force=True)  # as from inside the guest: nobody asked for it
    assert record(host).should_run
    dry = last_state.stop_vm(host.ports, context(dry_run=True), "vm", force=False)
    assert (dry.changed, record(host).should_run) == (True, True)
    assert last_state.stop_vm(host.ports, context(), "vm", force=False).changed
    assert not record(host).should_run


@pytest.mark.parametrize(("state", "runs"), [("started", True), ("stopped", False)])
def test_ensure_vm_is_a_request_too_also_for_the_state_that_the_vm_has(
    host: SimulatedHost, state: str, runs: bool
) -> None:
    ensure_vm(host.ports, context(), last_state_request(), state="stopped" if runs else "started")
    if runs:
        power.start_vm(host.ports, context(), "vm")
    else:
        power.stop_vm(host.ports, context(), "vm", force=True)
    assert record(host).should_run is not runs
    done = ensure_vm(host.ports, context(), last_state_request(), state=state)
    assert (done.changed, record(host).should_run) == (True, runs)
    assert not ensure_vm(host.ports, context(), last_state_request(), state=state).changed


@pytest.mark.parametrize("runs", [True, False])
def test_the_last_state_begins_with_the_state_that_the_vm_has(tmp_path: Path, runs: bool) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=runs)
    assert (record(host).should_run, starts_after_boot(record(host))) == (False, False)
    change_vm(host.ports, context(), last_state_request(), {"autostart"})
    assert (record(host).should_run, starts_after_boot(record(host))) == (runs, runs)
    change_vm(host.ports, context(), replace(last_state_request(), autostart="disabled"), {"autostart"})
    assert (record(host).should_run, starts_after_boot(record(host))) == (False, False)


def test_a_vm_without_a_last_state_is_not_written_to_when_it_starts(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, replace(request("A100-4C", name="vm"), autostart="enabled"), start=True)
    before = record(host)
    last_state.stop_vm(host.ports, context(), "vm", force=False)
    assert record(host) == before
    assert starts_after_boot(before)


def test_a_desktop_that_was_setting_itself_up_is_left_to_its_controller(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, replace(last_state_request(), off_after_setup=True), start=True)
    alone = record(host)
    assert starts_after_boot(alone), "nobody else would start it"
    desktop = replace(alone, desktop=DesktopMark(alone.vm_uuid, "office", "db-1", 1))
    assert not starts_after_boot(desktop)
    kept = ManagedDisk("default", "kept.qcow2", "/kept.qcow2", 1, role=DiskRole.PREPARED)
    assert starts_after_boot(replace(desktop, disks=(*desktop.disks, kept)))


def test_a_stop_that_the_guest_did_not_obey_in_time_is_noted(tmp_path: Path) -> None:
    text = "version: 1\ngpus: [{model: A100}]\nfaults: [{on: shutdown, kind: lost}]\n"
    host = open_sim_host(tmp_path, text=text)
    create(host.ports, last_state_request(), start=True)
    with pytest.raises(Busy, match="did not shut down"):
        last_state.stop_vm(host.ports, context(), "vm", force=False)
    assert not record(host).should_run
