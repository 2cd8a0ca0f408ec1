# SPDX-License-Identifier: Apache-2.0
"""What is done to a VM while it is off: it is shut down for it, and runs again whatever came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lent import vm_of
from tests.worlds import WAIT_SECONDS, Host, Silent, create, open_host, wish
from vgpuctl.engine.while_off import while_off
from vgpuctl.errors import Busy, PartlyApplied
from vgpuctl.model.vm import VmState


def with_vm(tmp_path: Path, *, start: bool, faults: str = "") -> Host:
    host = open_host(tmp_path, text=f"version: 1\n{faults}gpus:\n  - {{model: T4, profiles: [T4-8Q]}}\n")
    create(host.world, wish("T4-8Q", name="vm"), start=start)
    return host.again()


@pytest.mark.parametrize("runs", [True, False])
def test_it_is_off_meanwhile_and_then_as_it_was(tmp_path: Path, runs: bool) -> None:
    host = with_vm(tmp_path, start=runs)
    before = vm_of(host, "vm")
    seen: list[VmState] = []
    while_off(host.world, before, lambda: seen.append(vm_of(host, "vm").state), "done", WAIT_SECONDS, Silent())
    assert seen == [VmState.STOPPED]
    assert vm_of(host, "vm").state is before.state
    assert host.world.claims.drained() == ()


def test_it_runs_again_after_a_failure(tmp_path: Path) -> None:
    host = with_vm(tmp_path, start=True)

    def fail() -> None:
        raise Busy("no")

    with pytest.raises(Busy, match="no"):
        while_off(host.world, vm_of(host, "vm"), fail, "done", WAIT_SECONDS, Silent())
    assert vm_of(host, "vm").state is VmState.RUNNING


def test_one_that_cannot_be_started_again_is_told(tmp_path: Path) -> None:
    host = with_vm(tmp_path, start=True)
    before = vm_of(host, "vm")

    def spoil() -> None:
        host.world.hypervisor.undefine(before.uuid)

    with pytest.raises(PartlyApplied, match="vm is done and stays off"):
        while_off(host.world, before, spoil, "done", WAIT_SECONDS, Silent())
