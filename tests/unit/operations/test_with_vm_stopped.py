# SPDX-License-Identifier: Apache-2.0
"""Work on a VM while it is off: the VM is shut down for it, and runs again whatever the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import WAIT_SECONDS, Silent, SimulatedHost, create, open_sim_host, request
from tests.reserving_vms import vm_of
from vgpuctl.errors import Busy, PartlyApplied
from vgpuctl.model.vm import VmState
from vgpuctl.operations.with_vm_stopped import with_vm_stopped


def with_vm(tmp_path: Path, *, start: bool, faults: str = "") -> SimulatedHost:
    host = open_sim_host(tmp_path, text=f"version: 1\n{faults}gpus:\n  - {{model: T4, profiles: [T4-8Q]}}\n")
    create(host.ports, request("T4-8Q", name="vm"), start=start)
    return host.again()


@pytest.mark.parametrize("runs", [True, False])
def test_it_is_off_meanwhile_and_then_as_it_was(tmp_path: Path, runs: bool) -> None:
    host = with_vm(tmp_path, start=runs)
    before = vm_of(host, "vm")
    seen: list[VmState] = []
    with_vm_stopped(host.ports, before, lambda: seen.append(vm_of(host, "vm").state), "done", WAIT_SECONDS, Silent())
    assert seen == [VmState.STOPPED]
    assert vm_of(host, "vm").state is before.state
    assert host.ports.claims.drained_vms() == ()


def test_it_runs_again_after_a_failure(tmp_path: Path) -> None:
    host = with_vm(tmp_path, start=True)

    def fail() -> None:
        raise Busy("no")

    with pytest.raises(Busy, match="no"):
        with_vm_stopped(host.ports, vm_of(host, "vm"), fail, "done", WAIT_SECONDS, Silent())
    assert vm_of(host, "vm").state is VmState.RUNNING


def test_one_that_fails_to_restart_is_reported(tmp_path: Path) -> None:
    host = with_vm(tmp_path, start=True)
    before = vm_of(host, "vm")

    def spoil() -> None:
        host.ports.hypervisor.undefine(before.uuid)

    with pytest.raises(PartlyApplied, match="vm is done and stays off"):
        with_vm_stopped(host.ports, before, spoil, "done", WAIT_SECONDS, Silent())
