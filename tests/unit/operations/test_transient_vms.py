# SPDX-License-Identifier: Apache-2.0
"""A VM undefined while it runs: no command stops it for a restart, and delete-vm removes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, delete, open_sim_host, picture, start, stop
from tests.layouts import FLEX, do, drained
from tests.reserving_vms import vm_of
from vgpuctl.errors import Refused
from vgpuctl.operations.refresh import refresh_vm


def forget(host: SimulatedHost, name: str) -> None:
    """Do what `virsh undefine` does to a running VM."""
    host.sim.hypervisor.make_transient(vm_of(host, name).uuid)


def drain(host: SimulatedHost) -> None:
    do(host.ports, FLEX, "sriov", 6, drain=True)


def drain_dry(host: SimulatedHost) -> None:
    do(host.ports, FLEX, "sriov", 6, drain=True, dry_run=True)


def refresh(host: SimulatedHost) -> None:
    refresh_vm(host.ports, context(wait_seconds=5), "one", "/new.qcow2", drain=True)


@pytest.mark.parametrize("act", [drain, drain_dry, refresh, lambda host: stop(host.ports, "one", force=False)])
def test_it_is_refused_and_nothing_changed(tmp_path: Path, act: Callable[[SimulatedHost], None]) -> None:
    host = drained(tmp_path)
    forget(host, "one")
    before = picture(host)
    with pytest.raises(Refused, match="one: running without a definition"):
        act(host)
    assert picture(host) == before


def test_delete_vm_removes_all_of_it(tmp_path: Path) -> None:
    host = drained(tmp_path)
    forget(host, "one")
    delete(host.ports, "one")
    delete(host.ports, "two")
    left, fresh = picture(host), picture(open_sim_host(tmp_path / "fresh", "mixed"))
    assert (left.domains, left.claims, left.running) == (fresh.domains, fresh.claims, fresh.running)
    assert left.files == fresh.files


def test_one_that_is_defined_again_is_stopped_and_started_as_any_other(tmp_path: Path) -> None:
    host = drained(tmp_path)
    vm = vm_of(host, "one")
    record = host.ports.hypervisor.find_domain(vm.uuid)
    assert record is not None
    forget(host, "one")
    host.ports.hypervisor.define(record.xml)
    stop(host.ports, "one", force=False)
    start(host.ports, "one")
    assert vm_of(host, "one") == vm
