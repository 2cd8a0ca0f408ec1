# SPDX-License-Identifier: Apache-2.0
"""Work on a VM while it is off: the VM is shut down for it, and runs again whatever the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts import WAIT_SECONDS, SimulatedHost, context, create, open_sim_host, request
from tests.layouts import Signals, StrikesTheRequest
from tests.reserving_vms import vm_of
from vgpuctl.errors import Busy, Interrupted, PartlyApplied
from vgpuctl.model.vm import VmState
from vgpuctl.operations.gpu_transaction import with_vm_stopped
from vgpuctl.value import replace


def with_vm(tmp_path: Path, *, start: bool, faults: str = "") -> SimulatedHost:
    host = open_sim_host(tmp_path, text=f"version: 1\n{faults}gpus:\n  - {{model: T4, profiles: [T4-8Q]}}\n")
    create(host.ports, request("T4-8Q", name="vm"), start=start)
    return host.again()


@pytest.mark.parametrize("runs", [True, False])
def test_it_is_off_meanwhile_and_then_as_it_was(tmp_path: Path, runs: bool) -> None:
    host = with_vm(tmp_path, start=runs)
    before = vm_of(host, "vm")
    seen: list[VmState] = []
    with_vm_stopped(host.ports, context(), before, lambda: seen.append(vm_of(host, "vm").state), "done")
    assert seen == [VmState.STOPPED]
    assert vm_of(host, "vm").state is before.state
    assert host.ports.claims.drained_vms() == ()


def test_it_runs_again_after_a_failure(tmp_path: Path) -> None:
    host = with_vm(tmp_path, start=True)

    def fail() -> None:
        raise Busy("no")

    with pytest.raises(Busy, match="no"):
        with_vm_stopped(host.ports, context(), vm_of(host, "vm"), fail, "done")
    assert vm_of(host, "vm").state is VmState.RUNNING


def test_one_that_fails_to_restart_is_reported(tmp_path: Path) -> None:
    host = with_vm(tmp_path, start=True)
    before = vm_of(host, "vm")

    def spoil() -> None:
        host.ports.hypervisor.undefine(before.uuid)

    with pytest.raises(PartlyApplied, match="vm is done and stays off"):
        with_vm_stopped(host.ports, context(), before, spoil, "done")


@pytest.mark.parametrize("call", ["find_domain", "shutdown"])
def test_a_signal_just_before_the_request_to_shut_down_leaves_it_running(tmp_path: Path, call: str) -> None:
    host = with_vm(tmp_path, start=True)
    signals: Any = StrikesTheRequest(host.ports.hypervisor, call)
    begun = host.ports.clock.monotonic()
    struck = replace(host.ports, hypervisor=signals.port())
    with pytest.raises(Interrupted) as raised:
        with_vm_stopped(struck, context(progress=signals), vm_of(host, "vm"), list, "done")
    assert (vm_of(host, "vm").state, raised.value.left) == (VmState.RUNNING, [])
    assert host.ports.claims.drained_vms() == ()
    assert host.ports.clock.monotonic() - begun < WAIT_SECONDS, "it waited for a guest that nobody asked"
    assert (raised.value.hint is None) is (call == "find_domain")


def test_a_guest_that_got_the_request_before_the_signal_is_started_again(tmp_path: Path) -> None:
    host, signals = with_vm(tmp_path, start=True), Signals()

    class Asked:
        def __getattr__(self, name: str) -> Any:
            return getattr(host.ports.hypervisor, name)

        def shutdown(self, uuid: str) -> None:
            host.ports.hypervisor.shutdown(uuid)
            signals.come()

    with pytest.raises(Interrupted) as raised:
        with_vm_stopped(replace(host.ports, hypervisor=Asked()), context(), vm_of(host, "vm"), list, "done")
    assert (vm_of(host, "vm").state, raised.value.left) == (VmState.RUNNING, [])
