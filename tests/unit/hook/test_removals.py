# SPDX-License-Identifier: Apache-2.0
"""libvirt's hook and a command that takes the VM's vGPU away just then: the start is refused, and works afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.halted import Halted, beside, elsewhere
from tests.unit.engine.test_move import SMALL, lent, small
from tests.worlds import Host, Silent, create, delete, mend, picture, start, stop, wish
from vgpuctl.engine.attach import detach
from vgpuctl.errors import Busy
from vgpuctl.hook import run as hook
from vgpuctl.model.world import World

KINDS = [kind for kind in SMALL if kind != "sriov-vf"]


def xml_of(host: Host) -> str:
    record = host.world.hypervisor.find_domain("vm")
    assert record is not None
    return record.xml


def not_needed(host: Host, profile: str) -> None:
    """Have a VM that is off with a device that it needs only to run, as a crash leaves it."""
    create(host.world, lent(profile, "vm"), start=False)
    hook.prepare(host.world, xml_of(host))


def take(world: World) -> None:
    detach(world, "vm", dry_run=False, wait_seconds=5, progress=Silent())


def reconciles(world: World) -> None:
    assert mend(world).changed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["stop-vm", "reconcile"])
def test_a_device_that_is_being_removed_never_lets_its_vm_start(tmp_path: Path, kind: str, what: str) -> None:
    host, profile = small(tmp_path, kind)
    if what == "stop-vm":
        elsewhere(lambda: create(host.world, lent(profile, "vm")))
        work = lambda world: stop(world, "vm")  # noqa: E731
    else:
        elsewhere(lambda: not_needed(host, profile))
        work = reconciles
    later = beside(host)
    halted = Halted(host, "sysfs", "write_parked", work)
    with pytest.raises(Busy, match=f"process {halted.pid} takes vGPUs from VM vm: vgpuctl test") as raised:
        hook.prepare(later.world, xml_of(later))
    assert raised.value.status == 75
    assert halted.finish() == 0
    assert picture(later).claims == {}
    hook.prepare(later.world, xml_of(later))
    assert len(picture(later).claims) == 1
    start(later.world, "vm")
    assert picture(later).running


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("work", [lambda w: delete(w, "vm"), take], ids=["delete-vm", "detach"])
def test_a_vm_that_keeps_its_place_does_not_start_while_it_is_taken_away(tmp_path: Path, kind: str, work) -> None:
    host, profile = small(tmp_path, kind)
    elsewhere(lambda: create(host.world, wish(profile, name="vm"), start=False))
    xml = xml_of(host)
    halted = Halted(host, "sysfs", "write_parked", work)
    with pytest.raises(Busy, match="takes vGPUs from VM vm"):
        hook.prepare(beside(host).world, xml)
    assert halted.finish() == 0


def test_the_mark_of_a_process_that_died_keeps_nobody_from_starting(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    elsewhere(lambda: create(host.world, lent(profile, "vm")))
    Halted(host, "sysfs", "write_parked", lambda world: stop(world, "vm")).die()
    later = beside(host)
    hook.prepare(later.world, xml_of(later))
    start(later.world, "vm")
    assert [c.leaving for c in later.world.claims.all()] == [False]


def test_a_vm_that_libvirt_starts_before_reconcile_has_its_claims_keeps_its_device(tmp_path: Path) -> None:
    host, profile = small(tmp_path, "vendor-vf")
    elsewhere(lambda: not_needed(host, profile))
    before = picture(host).types
    halted = Halted(host, "claims", "lock", lambda world: mend(world))
    later = beside(host)
    hook.prepare(later.world, xml_of(later))
    later.world.hypervisor.start(later.world.hypervisor.find_domain("vm").uuid)
    assert halted.finish() == 0
    assert picture(later).types == before != {}
