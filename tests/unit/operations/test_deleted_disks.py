# SPDX-License-Identifier: Apache-2.0
"""Disks that wait in the bin: what an account with `keep_deleted_days` deletes, and what root does with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from tests.callers import ADA, OPERATOR, host_of
from tests.faults import Trial
from tests.hosts import (
    EagerClock,
    SimulatedHost,
    context,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
)
from tests.meanwhile import on_call, unchanged, with_calls
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import (
    HostCannot,
    InvalidInput,
    LibvirtFailed,
    NeedsConfirmation,
    NotFound,
    PartlyApplied,
    Refused,
)
from vgpuctl.model.caller import Caller, Limits, Rights
from vgpuctl.model.deleted_disk import BIN_FOLDER, BinEntry
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.model.results.deleted_disks import DeletedDiskResult
from vgpuctl.model.vm import ManagedDisk, VmState
from vgpuctl.operations.create import create_vm
from vgpuctl.operations.deleted_disks import list_deleted, purge_deleted, restore_disk
from vgpuctl.operations.images import list_images
from vgpuctl.operations.power import delete_vm
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.operations.steps.volume_bin import MoveToBin
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SEED = CloudInit(CloudInitFile("/ud", "#cloud-config\na: 1\n"))
KEEPS = replace(ADA, limits=Limits(keep_deleted_days=14))
DAY = 86_400.0
SCENARIO = """\
version: 1
storage:
  pools:
    - {name: default}
    - {name: vg0, kind: logical, capacity_gib: 100}
images:
  - {path: /srv/images/ubuntu-24.04.qcow2, size_gib: 20, firmware: both}
gpus:
  - {model: A100, address: "0000:3b:00.0", vfs: {enabled: 16}}
"""


def by(caller: Caller | None) -> Context:
    return replace(context(), caller=caller)


def prepared(directory: Path, pool: str = "default") -> SimulatedHost:
    """Return a host with a VM of ada, off, with a disk and a seed."""
    host = open_sim_host(directory, text=SCENARIO)
    wanted = request("A100-4C", name="vm", seed=SEED, storage_pool=pool, image=IMAGE)
    with operation(host.ports):
        create_vm(host.ports, by(KEEPS), wanted, start=False)
    return host.again()


def binned(ports: Host) -> tuple[DeletedDiskResult, ...]:
    return list_deleted(ports).data


def delete_by(ports: Host, caller: Caller | None = KEEPS) -> Outcome:
    with operation(ports):
        return delete_vm(ports, by(caller), "vm", keep_disks=False)


def refresh_by(ports: Host, caller: Caller | None = KEEPS) -> Outcome:
    with operation(ports):
        return refresh_vm(ports, by(caller), "vm", IMAGE, drain=True)


def raise_error(error: Exception) -> None:
    raise error


def later(host: SimulatedHost, seconds: float) -> Host:
    return replace(host.ports, clock=EagerClock(host.ports.clock.now() + seconds))


def disks_of(host: SimulatedHost) -> set[str]:
    """Return the files that are disks or seeds of VMs, in the bin or not."""
    return {path for path in picture(host).files if path != IMAGE}


# --------------------------------------------------------------- into the bin


@pytest.mark.parametrize("pool", ["default", "vg0"])
def test_disks_that_an_account_deletes_wait_in_the_bin(tmp_path: Path, pool: str) -> None:
    host = prepared(tmp_path, pool)
    before = {path.rpartition("/")[2] for path in disks_of(host)}
    outcome = delete_by(host.ports)
    assert [step for step in outcome.steps if "to the bin for 14 days" in step and step.startswith("move")] != []
    assert not picture(host).domains
    entries = binned(host.ports)
    assert {entry.disk for entry in entries} == before
    assert {(entry.vm, entry.account, entry.pool, entry.expired) for entry in entries} == {("vm", "ada", pool, False)}
    assert {entry.capacity_bytes for entry in entries} == {20 << 30, None}
    assert {entry.path for entry in entries} == disks_of(host)
    assert host.ports.storage.volumes(pool) == ()
    assert not run_reconcile(host.ports, dry_run=True).data.findings
    with operation(host.ports):
        create_vm(host.ports, by(KEEPS), request("A100-4C", name="vm", storage_pool=pool), start=True)
    assert len(binned(host.ports)) == 2


@pytest.mark.parametrize("caller", [None, replace(OPERATOR, limits=Limits(vms=9))], ids=["root", "without the key"])
def test_others_delete_disks_at_once(tmp_path: Path, caller: Caller | None) -> None:
    host = prepared(tmp_path)
    assert not [step for step in delete_by(host.ports, caller).steps if " bin" in step]
    assert binned(host.ports) == ()
    assert disks_of(host) == set()


def test_a_dry_run_shows_the_bin_and_changes_nothing(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    with unchanged(host):
        outcome = delete_vm(host.ports, replace(by(KEEPS), dry_run=True), "vm", keep_disks=False)
    (disk,) = [path for path in disks_of(host) if path.endswith(".qcow2")]
    assert f"move disk {disk} to the bin for 14 days" in outcome.steps


def test_the_disk_that_a_refresh_replaces_waits_too(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    refresh_by(host.ports)
    (entry,) = binned(host.ports)
    assert (entry.vm, entry.account) == ("vm", "ada")
    refresh_by(host.ports, None)
    assert len(binned(host.ports)) == 1
    assert not run_reconcile(host.ports, dry_run=True).data.findings


def test_a_pool_that_cannot_rename_is_refused_before_anything_changes(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    pools = {pool.name: replace(pool, kind="rbd") for pool in host.ports.storage.pools()}
    ports = with_calls(host.ports, "storage", pool=pools.get)
    for dry_run in (True, False):
        with unchanged(host), pytest.raises(Refused, match="of the kind rbd, whose volumes cannot be renamed"):
            delete_vm(ports, replace(by(KEEPS), dry_run=dry_run), "vm", keep_disks=False)
    assert not [step for step in delete_by(ports, None).steps if " bin" in step]


@pytest.mark.parametrize("act", [delete_by, refresh_by])
def test_a_bin_that_cannot_be_made_is_refused_before_anything_changes(
    tmp_path: Path, act: Callable[[Host], Outcome]
) -> None:
    host = prepared(tmp_path)

    def fail(pool: str) -> None:
        raise Refused(f"the storage pool {pool} has no bin, and it cannot be made: No space left on device")

    with unchanged(host), pytest.raises(Refused, match="No space left"):
        act(with_calls(host.ports, "volume_bin", prepare=fail))


def test_a_name_that_is_too_long_for_the_bin_is_refused(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    longest = replace(KEEPS, account="ada", limits=KEEPS.limits)
    with unchanged(host), pytest.raises(Refused, match="longer than 255 characters"):
        delete_by(host.ports, replace(longest, rights=Rights.OPERATOR, account="\\" * 64))


# ------------------------------------------------------ what interrupts it


def whole(host: SimulatedHost, where: str) -> None:
    """Check that no disk is lost: the VM has it, or the bin."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    entries, vms = binned(host.ports), picture(host).domains
    paths = {disk.path for disk in entries} | {
        str(disk.source)
        for _, xml in vms.values()
        for disk in parse_domain(xml, VmState.STOPPED, host.ports.machine_id).disks
    }
    assert disks_of(host) <= paths, where
    assert len(entries) in ((0, 1) if vms else (2,)), where


@pytest.mark.parametrize("act", [delete_by, refresh_by])
def test_whatever_call_fails_no_disk_is_lost(tmp_path: Path, act: Callable[[Host], Outcome]) -> None:
    trial = Trial(tmp_path, prepared, act, whole)
    calls = trial.calls()
    assert {"volume_bin.prepare", "volume_bin.move_in"} <= set(calls)
    assert trial.failures(calls)


@pytest.mark.parametrize("act", [delete_by, refresh_by])
def test_whenever_the_process_is_killed_no_disk_is_lost(
    tmp_path: Path, act: Callable[[Host], Outcome], spawn: BaseContext
) -> None:
    trial = Trial(tmp_path, prepared, act, whole)
    assert trial.deaths(trial.calls(), spawn)


def test_root_finishes_a_deletion_by_moving_the_other_disks_too(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    full = on_call(host.ports, "volume_bin.move_in", partial(raise_error, LibvirtFailed("full")), nth=2)
    with pytest.raises(PartlyApplied):
        delete_by(full)
    assert len(binned(host.ports)) == 1
    again = host.again()
    delete_by(again.ports, None)
    assert len(binned(again.ports)) == 2
    assert not picture(again).domains


def test_an_entry_that_is_damaged_in_the_record_deletes_nothing(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    path = next(path for path in disks_of(host) if path.endswith(".qcow2"))
    disk = ManagedDisk("default", path.rpartition("/")[2], path, 1 << 30, bin_entry="../../etc/passwd")
    with unchanged(host), pytest.raises(HostCannot, match="names no entry of a bin"):
        MoveToBin(disk).perform(host.ports)


def test_the_step_is_undone_by_moving_the_disk_back(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    before = disks_of(host)
    path = next(path for path in before if path.endswith(".qcow2"))
    entry = BinEntry(0, 1, "ada", "0" * 8 + "-0000-0000-0000-" + "0" * 12, "vm", path.rpartition("/")[2], 1 << 30)
    step = MoveToBin(ManagedDisk("default", entry.volume, path, 1 << 30, bin_entry=entry.name))
    step.perform(host.ports)
    step.verify(host.ports)
    assert disks_of(host) != before
    step.undo(host.ports)
    step.undo(host.ports)
    assert disks_of(host) == before


# -------------------------------------------------------- out of the bin


def test_only_what_has_waited_long_enough_is_purged(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    delete_by(host.ports)
    with unchanged(host):
        assert not purge_deleted(later(host, 14 * DAY - 60), context(), expired=True).changed
    assert [disk.expired for disk in binned(later(host, 14 * DAY))] == [True, True]
    assert purge_deleted(later(host, 14 * DAY), context(), expired=True).changed
    assert disks_of(host) == set()


@pytest.mark.parametrize("pool", ["default", "vg0"])
def test_a_disk_comes_back_as_one_that_a_vm_can_have(tmp_path: Path, pool: str) -> None:
    host = prepared(tmp_path, pool)
    delete_by(host.ports)
    with pytest.raises(Refused, match="has 2 disks of vm"):
        restore_disk(host.ports, context(), "vm")
    entry = next(entry for entry in binned(host.ports) if entry.capacity_bytes)
    with unchanged(host):
        planned = restore_disk(host.ports, context(dry_run=True), entry.id).data
    restored = restore_disk(host.ports, context(), entry.id).data
    assert restored == planned
    assert restored.disk == entry.disk
    assert host.ports.storage.image(restored.path) is not None
    assert entry.id not in [one.id for one in binned(host.ports)]
    host_of(host, None).create_vm("rescue", profile="A100-4C", memory="1GiB", disk=(restored.path,), start=False)


def test_a_name_that_is_taken_is_not_replaced(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    delete_by(host.ports)
    entry = next(entry for entry in binned(host.ports) if entry.capacity_bytes)
    host.ports.storage.create_volume("default", entry.disk, 1 << 30)
    restored = restore_disk(host.ports, context(), entry.id).data
    assert restored.disk == entry.disk.replace(".qcow2", "-restored-1.qcow2")


def test_purging_asks_and_takes_ids_and_vms(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    delete_by(host.ports)
    for names, options in (((), {}), (("vm",), {"expired": True}), ((), {"expired": True, "everything": True})):
        with unchanged(host), pytest.raises(InvalidInput):
            purge_deleted(host.ports, context(), names, **options)
    with unchanged(host), pytest.raises(NotFound):
        purge_deleted(host.ports, context(), ("vm", "other"))

    def no(question: str, details: tuple[str, ...]) -> None:
        assert question == "Delete 2 disks in the bin for good?"
        raise NeedsConfirmation("no")

    for names, everything in ((("vm",), False), ((), True)):
        with unchanged(host), pytest.raises(NeedsConfirmation):
            purge_deleted(host.ports, context(confirm=no), names, everything=everything)
    first, second = binned(host.ports)
    assert len(purge_deleted(host.ports, context(), (first.id, first.id)).data.disks) == 1
    assert binned(host.ports) == (second,)
    purge_deleted(host.ports, context(), everything=True)
    assert binned(host.ports) == ()


def test_a_disk_that_cannot_be_purged_does_not_keep_the_others(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    delete_by(host.ports)
    broken = on_call(host.ports, "volume_bin.delete", partial(raise_error, LibvirtFailed("it is immutable")), nth=1)
    with pytest.raises(LibvirtFailed, match="immutable") as caught:
        purge_deleted(broken, context(), everything=True)
    assert (len(caught.value.left), caught.value.changed) == (1, True)
    assert len(binned(host.ports)) == 1


def test_what_vgpuctl_did_not_put_into_the_bin_is_told_and_left_alone(tmp_path: Path) -> None:
    foreign = f"/var/lib/libvirt/images/{BIN_FOLDER}/notes.qcow2"
    host = open_sim_host(tmp_path, text=f"{SCENARIO}\n".replace("images:", f"images:\n  - {{path: {foreign}}}"))
    result = list_deleted(host.ports)
    assert (result.data, result.warnings) == ((), (f"{foreign}: vgpuctl gives no such name; it is left alone",))
    with unchanged(host):
        assert not purge_deleted(host.ports, context(), everything=True).changed


def test_disks_in_the_bin_count_for_no_limit_and_are_no_images(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    delete_by(host.ports)
    assert not [image for image in list_images(host.ports).data if image.path != IMAGE]
    one = replace(KEEPS, limits=Limits(vms=1, keep_deleted_days=14))
    host_of(host, one).create_vm("vm", profile="A100-4C", memory="1GiB", start=False)
