# SPDX-License-Identifier: Apache-2.0
"""libvirt's hook while a command removes the VM's vGPU: the start is refused, and works afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.halted import Halted, elsewhere, reopen
from tests.hosts import SimulatedHost, context, create, delete, picture, request, run_reconcile, start, stop
from tests.unit.operations.test_place_and_start import SMALL, reserving_request, small
from vgpuctl.errors import Busy
from vgpuctl.hook import run as hook
from vgpuctl.operations.attach import detach
from vgpuctl.ports.host import Host

KINDS = [kind for kind in SMALL if kind != "sriov-vf"]


def xml_of(host: SimulatedHost) -> str:
    record = host.ports.hypervisor.find_domain("vm")
    assert record is not None
    return record.xml


def not_needed(host: SimulatedHost, profile: str) -> None:
    """Leave a stopped VM with a device that it reserves only while running, as after a crash."""
    create(host.ports, reserving_request(profile, "vm"), start=False)
    hook.prepare(host.ports, xml_of(host))


def take(ports: Host) -> None:
    detach(ports, context(wait_seconds=5), "vm")


def reconciles(ports: Host) -> None:
    assert run_reconcile(ports).changed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["stop-vm", "reconcile"])
def test_a_device_that_is_being_removed_never_lets_its_vm_start(tmp_path: Path, kind: str, what: str) -> None:
    host, profile = small(tmp_path, kind)
    if what == "stop-vm":
        elsewhere(lambda: create(host.ports, reserving_request(profile, "vm")))
        work = lambda ports: stop(ports, "vm")  # noqa: E731
    else:
        elsewhere(lambda: not_needed(host, profile))
        work = reconciles
    later = reopen(host)
    halted = Halted(host, "sysfs", "write_uninterruptible", work)
    with pytest.raises(Busy, match=f"process {halted.pid} is removing vGPUs from VM vm: vgpuctl test") as raised:
        hook.prepare(later.ports, xml_of(later))
    assert raised.value.status == 75
    assert halted.finish() == 0
    assert picture(later).claims == {}
    hook.prepare(later.ports, xml_of(later))
    assert len(picture(later).claims) == 1
    start(later.ports, "vm")
    assert picture(later).running


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("work", [lambda w: delete(w, "vm"), take], ids=["delete-vm", "detach"])
def test_a_vm_does_not_start_while_its_placement_is_removed(tmp_path: Path, kind: str, work) -> None:
    host, profile = small(tmp_path, kind)
    elsewhere(lambda: create(host.ports, request(profile, name="vm"), start=False))
    xml = xml_of(host)
    halted = Halted(host, "sysfs", "write_uninterruptible", work)
    with pytest.raises(Busy, match="is removing vGPUs from VM vm"):
        hook.prepare(reopen(host).ports, xml)
    assert halted.finish() == 0


def test_the_mark_of_a_dead_process_blocks_no_start(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    elsewhere(lambda: create(host.ports, reserving_request(profile, "vm")))
    Halted(host, "sysfs", "write_uninterruptible", lambda ports: stop(ports, "vm")).die()
    later = reopen(host)
    hook.prepare(later.ports, xml_of(later))
    start(later.ports, "vm")
    assert [c.leaving for c in later.ports.claims.all()] == [False]


def test_a_vm_that_libvirt_starts_before_reconcile_has_its_claims_keeps_its_device(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    elsewhere(lambda: not_needed(host, profile))
    before = picture(host).types
    halted = Halted(host, "claims", "lock", lambda ports: run_reconcile(ports))
    later = reopen(host)
    hook.prepare(later.ports, xml_of(later))
    later.ports.hypervisor.start(later.ports.hypervisor.find_domain("vm").uuid)
    assert halted.finish() == 0
    assert picture(later).types == before != {}
