# SPDX-License-Identifier: Apache-2.0
"""Disks: resize-disk grows them in both kinds of pools, and what moved under a VM is named and never deleted.

They move by a snapshot above one, a block copy in its place, or a commit into its base.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from tests.faults import Trial
from tests.hosts import (
    Silent,
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    start,
)
from tests.meanwhile import rebooted, unchanged, with_calls
from tests.reserving_vms import record_of
from tests.unit.operations.test_change_faults import whole as is_whole
from tests.unit.operations.test_refresh import refresh, the_vm
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoSpace, NotFound, Refused, SpecDiffers, Unmanaged
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.request import ExistingDisk, NewDisk
from vgpuctl.model.vm import RecordState
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.operations.power import delete_vm
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.operations.resize_disk import resize_disk
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

SCENARIO = """version: 1
storage:
  filesystem_gib: 1000
  pools: [{name: default}, {name: vg0, kind: logical, capacity_gib: 100}]
networks: [{name: default}]
images:
  - {path: /old.qcow2, size_gib: 20, firmware: both}
  - {path: /new.qcow2, size_gib: 10, firmware: both}
  - {path: /data.qcow2, size_gib: 10, firmware: none}
gpus: [{model: A100, vfs: {total: 3, enabled: 3}}]
"""
GIB = 1 << 30
POOLS = ("default", "vg0")


def prepared(directory: Path, pool: str = "default", *, on: bool = False, **changes: object) -> SimulatedHost:
    host = open_sim_host(directory, text=SCENARIO)
    create(host.ports, request("A100-4C", name="vm", image="/old.qcow2", storage_pool=pool, **changes), start=on)
    return host.again()


def resize(
    ports: Host, gib: float = 30, disk: str | None = None, *, dry_run: bool = False, name: str = "vm"
) -> Outcome:
    with operation(ports):
        return resize_disk(ports, context(dry_run=dry_run, wait_seconds=5), name, int(gib * 1024), disk)


def sizes(host: SimulatedHost, number: int = 0) -> tuple[int, int]:
    """The size of a disk in GiB, by the VM's record and by libvirt."""
    disk = the_vm(host).record.disks[number]
    return disk.capacity_bytes // GIB, host.ports.storage.volume(disk.pool, disk.volume).capacity_bytes // GIB


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("on", [False, True])
def test_a_disk_grows_and_its_record_with_it(tmp_path: Path, pool: str, on: bool) -> None:
    host = prepared(tmp_path, pool, on=on)
    before = the_vm(host)
    made = resize(host.ports)
    assert (made.changed, sizes(host)) == (True, (30, 30))
    assert [d.size_bytes for d in made.data.disks] == [30 * GIB]
    assert [step.split()[0] for step in made.steps] == ["grow", "record"]
    assert ("while it runs" in made.steps[0]) is on
    assert "cloud-init does that at its next boot" in made.notes[0]
    assert the_vm(host).disks == before.disks
    is_whole(host, "")
    again = resize(host.ports)
    assert (again.changed, again.steps, sizes(host)) == (False, (), (30, 30))


@pytest.mark.parametrize("pool", POOLS)
def test_a_dry_run_changes_nothing(tmp_path: Path, pool: str) -> None:
    host = prepared(tmp_path, pool)
    with unchanged(host), unchanged(host, sizes):
        planned = resize(host.ports, dry_run=True)
    assert (planned.changed, planned.dry_run) == (True, True)
    assert planned.steps[0].endswith("of vm: 20 GiB -> 30 GiB")


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("default", "2000 GiB does not fit: .* has 1000 GiB"),
        ("vg0", "the disk needs 1980 GiB more, .* has 80 GiB of 100 GiB"),
    ],
)
def test_it_never_shrinks_and_must_fit_into_the_pool(tmp_path: Path, pool: str, message: str) -> None:
    host = prepared(tmp_path, pool)
    with unchanged(host, sizes), pytest.raises(Refused, match="has 20 GiB, and 19968 MiB is less") as caught:
        resize(host.ports, 19.5)
    assert caught.value.facts["size_bytes"] == 20 * GIB
    with unchanged(host, sizes), pytest.raises(NoSpace, match=message):
        resize(host.ports, 2000)


@pytest.mark.parametrize("name", ["vdb", "path", "volume"])
def test_one_of_several_disks_is_named(tmp_path: Path, name: str) -> None:
    host = prepared(tmp_path, disks=(NewDisk(1024),))
    disk = the_vm(host).record.disks[1]
    with pytest.raises(InvalidInput, match=r"has 2 disks: vda \(.*, vdb \("):
        resize(host.ports)
    resize(host.ports, disk={"vdb": "vdb", "path": disk.path, "volume": disk.volume}[name])
    assert (sizes(host), sizes(host, 1)) == ((20, 20), (30, 30))


def test_a_disk_that_is_not_vgpuctls_is_refused(tmp_path: Path) -> None:
    host = prepared(tmp_path, disks=(ExistingDisk("/data.qcow2"),))
    with pytest.raises(Refused, match=r"did not make /data.qcow2"):
        resize(host.ports, disk="vdb")
    with pytest.raises(NotFound, match="no disk vdc"):
        resize(host.ports, disk="vdc")
    resize(host.ports)
    assert sizes(host) == (30, 30)


def test_a_vm_that_is_not_vgpuctls_is_refused(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    host.ports.hypervisor.set_record(the_vm(host).uuid, None)
    with pytest.raises(Unmanaged):
        resize(host.ports)


def test_a_pool_that_is_off_or_gone_is_named(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    off = replace(host.ports.storage.pool("default"), active=False)
    with pytest.raises(HostCannot, match=r"default of .* is not started") as caught:
        resize(with_calls(host.ports, "storage", pool=lambda _: off))
    assert caught.value.hint == "virsh pool-start default"
    host.ports.storage.remove_pool("default")
    with pytest.raises(HostCannot, match=r"default of .* does not exist any more"):
        resize(host.ports)


def test_a_refreshed_disk_keeps_its_size(tmp_path: Path) -> None:
    host = prepared(tmp_path, "vg0")
    resize(host.ports)
    refresh(host.ports)
    assert sizes(host) == (30, 30)


def test_a_size_that_is_there_already_is_only_recorded(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    disk = the_vm(host).record.disks[0]
    host.ports.storage.resize_volume(disk.pool, disk.volume, 30 * GIB)
    with pytest.raises(Refused, match="has 30 GiB, and 25 GiB is less"):
        resize(host.ports, 25)
    made = resize(host.ports)
    assert ([step.split()[0] for step in made.steps], sizes(host)) == (["record"], (30, 30))


def test_a_vm_that_is_started_meanwhile_is_left_alone(tmp_path: Path) -> None:
    class Starts(Silent):
        def on_step_start(self, number: int, text: str) -> None:
            if text.startswith("grow"):
                host.ports.hypervisor.start(the_vm(host).uuid)

    host = prepared(tmp_path)
    with unchanged(host, sizes), operation(host.ports), pytest.raises(InUse, match="was started just now"):
        resize_disk(host.ports, context(wait_seconds=5, progress=Starts()), "vm", 30 << 10, None)


def whole(host: SimulatedHost, where: str) -> None:
    """Check that nothing is left to do, and that the same command again gives the disk its size."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    resize(host.ports)
    assert sizes(host) == (30, 30), where


@pytest.mark.parametrize(("pool", "on"), [("default", True), ("vg0", True), ("vg0", False)])
def test_whatever_fails_the_same_command_again_finishes_it(tmp_path: Path, pool: str, on: bool, spawn) -> None:
    trial = Trial(tmp_path, partial(prepared, pool=pool, on=on), resize, whole)
    calls = trial.calls()
    assert trial.failures(calls) >= 1
    trial.deaths(calls, spawn)


def test_after_a_reboot_it_grows_while_off(tmp_path: Path) -> None:
    host = rebooted(prepared(tmp_path, on=True))
    resize(host.ports)
    start(host.ports, "vm")
    assert sizes(host) == (30, 30)


def test_a_spec_with_another_size_points_to_it(tmp_path: Path) -> None:
    host = prepared(tmp_path, disks=(NewDisk(1024),))
    wanted = request("A100-4C", name="vm", disks=(NewDisk(2048),), sources={"disk": "given"})
    with operation(host.ports), pytest.raises(SpecDiffers) as caught:
        ensure_vm(host.ports, context(wait_seconds=5), wanted, state="present")
    assert "vgpuctl resize-disk vm SIZE" in str(caught.value.hint)


IMAGE = "/srv/images/ubuntu-24.04.qcow2"
DIRECTORY = "/var/lib/libvirt/images"
MERGE = "while it runs, virsh blockcommit vm vda --shallow --active --pivot --wait merges it"


def with_moved(tmp_path: Path, how: str) -> tuple[SimulatedHost, str, str]:
    """Return a host with a VM, its own disk, and the file that it uses now."""
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm", image=IMAGE), start=False)
    domain = host.ports.hypervisor.find_domain("vm")
    own = record_of(host, "vm").disks[0].path
    now = IMAGE if how == "commit" else f"{DIRECTORY}/vm.other"
    if how != "commit":
        base = (own, "qcow2") if how == "snapshot" else ()
        host.ports.storage.create_volume("default", "vm.other", 20 << 30, *base)
    host.ports.hypervisor.redefine(domain.uuid, domain.xml.replace(f"file='{own}'", f"file='{now}'"))
    return host, own, now


@pytest.mark.parametrize("how", ["snapshot", "copy", "commit"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_delete_names_the_disk_in_use_and_deletes_nothing(tmp_path, how, dry_run):
    host, own, now = with_moved(tmp_path, how)
    message = "which vgpuctl did not make"
    with unchanged(host), operation(host.ports), pytest.raises(InUse, match=message) as raised:
        delete_vm(host.ports, context(dry_run=dry_run), "vm", keep_disks=False)
    assert raised.value.status == 3
    assert (raised.value.facts["disk"], raised.value.facts["current"]) == (own, now)
    assert str(raised.value.hint).endswith("or vgpuctl delete-vm vm --keep-disks keeps all of them")
    assert (MERGE in str(raised.value.hint)) == (how == "snapshot")


@pytest.mark.parametrize("how", ["snapshot", "copy"])
def test_keep_disks_deletes_the_vm_and_names_both_files(tmp_path, how):
    host, own, now = with_moved(tmp_path, how)
    done = delete(host.ports, "vm", keep_disks=True)
    assert f"disk {own} is kept" in done.notes
    assert f"disk {now} is kept: vgpuctl did not make it" in done.notes
    assert {own, now} <= set(picture(host).files)


@pytest.mark.parametrize("how", ["snapshot", "copy"])
def test_resize_and_refresh_name_the_disk_in_use(tmp_path, how):
    host, _, now = with_moved(tmp_path, how)
    with pytest.raises(Refused, match=f"vm uses {now} now"):
        resize_disk(host.ports, context(wait_seconds=0), "vm", 60 << 10, None)
    with pytest.raises(Refused, match=f"it uses {now} now"):
        refresh_vm(host.ports, context(wait_seconds=0), "vm", IMAGE, drain=False)


def test_reconcile_leaves_a_half_removed_vm_with_such_a_disk(tmp_path):
    host, own, now = with_moved(tmp_path, "snapshot")
    record = record_of(host, "vm")
    host.ports.hypervisor.set_record(record.vm_uuid, record_to_xml(replace(record, state=RecordState.REMOVING)))
    done = run_reconcile(host.ports)
    assert now in done.data.findings[0].action
    assert own in picture(host).files


def test_a_disk_that_was_given_is_not_taken_for_a_moved_one(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="first", image=IMAGE), start=False)
    host.ports.storage.create_volume("default", "given.qcow2", 20 << 30)
    given = f"{DIRECTORY}/given.qcow2"
    create(host.ports, request("A100-4C", name="vm", image=IMAGE, disks=(ExistingDisk(given),)), start=False)
    own, uuid = record_of(host, "vm").disks[0].path, record_of(host, "vm").vm_uuid
    disk = rf"<disk type='file'[^>]*>(?:(?!</disk>).)*{re.escape(own)}.*?</disk>"
    host.ports.hypervisor.redefine(uuid, re.sub(disk, "", host.ports.hypervisor.definition(uuid)))
    delete(host.ports, "vm")
    assert own not in picture(host).files
    assert given in picture(host).files
