# SPDX-License-Identifier: Apache-2.0
"""prepare-vm keeps a VM's disk below a new clone, and refresh-vm without an image goes back to it, whatever fails."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial
from tests.hosts import SimulatedHost, context, delete, operation, picture, request, run_reconcile, start, stop
from tests.meanwhile import unchanged
from tests.unit.operations.test_change_faults import whole
from tests.unit.operations.test_refresh import SCENARIO, prepared, refresh, the_vm
from vgpuctl.domain.guest_setup import secrets_in
from vgpuctl.errors import InUse, NotShutDown, Refused
from vgpuctl.model.license import License
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.request import CloudInit, GuestSetup
from vgpuctl.model.vm import DiskRole, ManagedDisk
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.operations.guest_setup import read_setup_of_vm
from vgpuctl.operations.images import list_images
from vgpuctl.operations.prepare import prepare_vm
from vgpuctl.operations.steps.seed import WriteSetup
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

TOP, KEPT = "/var/lib/libvirt/images/vm-{}-{}.qcow2", DiskRole.PREPARED


def set_up(directory: Path, **changes: Any) -> SimulatedHost:
    """Return a host with a VM whose guest ran once and has shut down."""
    host = prepared(directory, "drain", **changes)
    stop(host.ports, "vm", force=False)
    return host.again()


def keep(ports: Host, *, drain: bool = False, **how: Any) -> Outcome:
    with operation(ports):
        return prepare_vm(ports, context(wait_seconds=5, **how), "vm", drain=drain)


def kept(directory: Path) -> SimulatedHost:
    host = set_up(directory)
    keep(host.ports)
    return host.again()


def disks(host: SimulatedHost) -> list[tuple[DiskRole, str | None]]:
    return [(d.role, d.base) for d in the_vm(host).record.disks if d.role in (DiskRole.DISK, KEPT) and d.base]


def sound(host: SimulatedHost, where: str = "") -> bool:
    """Check that definition, record and files agree, and that the VM starts; return whether it is prepared."""
    vm = the_vm(host)
    record = vm.record
    assert record is not None
    files = {p: f for p, f in picture(host).files.items() if p.startswith("/var")}
    assert {d.path for d in record.disks} == set(files), where
    assert not record.spare_disks(), where
    own = {d.path for d in record.disks if d.role is not KEPT}
    assert own == {d.source for d in vm.disks}, where
    assert {d.path: d.base for d in record.disks} == {path: base for path, (_, base) in files.items()}, where
    (system,) = [d for d in record.data_disks() if d.base is not None]
    assert system.base == (record.prepared_disk.path if record.prepared_disk else record.image), where
    whole(host, where)
    return record.prepared_disk is not None


def system_disk(host: SimulatedHost) -> ManagedDisk:
    record = the_vm(host).record
    assert record is not None
    return next(d for d in record.data_disks() if d.base is not None)


def test_the_disk_is_kept_below_a_new_one_and_each_refresh_goes_back_to_it(tmp_path: Path) -> None:
    host = set_up(tmp_path)
    first, before = system_disk(host), the_vm(host)
    made = keep(host.ports)
    assert (made.changed, made.data.prepared, made.data.image) == (True, True, "/old.qcow2")
    assert disks(host) == [(DiskRole.DISK, first.path), (KEPT, "/old.qcow2")]
    assert the_vm(host).disks[1:] == before.disks[1:]
    assert sound(host)
    used = []
    for _ in range(3):
        used.append(system_disk(host).path)
        again = refresh(host.ports, "drain", image=None)
        assert (again.data.image, again.data.prepared) == ("/old.qcow2", True)
        assert system_disk(host).base == first.path
        assert sound(host)
    assert first.path not in used
    assert system_disk(host).path != used[-1]


def test_a_refresh_from_an_image_throws_away_what_was_kept(tmp_path: Path) -> None:
    host = kept(tmp_path)
    planned = refresh(host.ports, dry_run=True)
    paths = " and ".join((system_disk(host).path, str(the_vm(host).record.prepared_disk.path)))
    assert planned.notes == (f"all data on {paths} will be lost",)
    refresh(host.ports)
    assert disks(host) == [(DiskRole.DISK, "/new.qcow2")]
    assert not sound(host)
    start(host.ports, "vm")
    stop(host.ports, "vm", force=False)
    keep(host.ports)
    assert sound(host)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    host = set_up(tmp_path)
    with unchanged(host):
        planned = keep(host.ports, dry_run=True)
    assert [step.split()[0] for step in planned.steps] == ["record", "create", "change"]
    assert (planned.changed, planned.dry_run) == (True, True)


def test_a_running_vm_is_shut_down_and_started_again(tmp_path: Path) -> None:
    host = prepared(tmp_path, "drain")
    planned = keep(host.ports, drain=True, dry_run=True)
    made = keep(host.ports, drain=True)
    assert (made.steps, made.data.state, made.data.prepared) == (planned.steps, "running", True)
    assert [step.split()[0] for step in made.steps] == ["shut", "record", "create", "change", "start"]
    assert sound(host)


def test_the_secrets_of_a_guest_leave_its_seed_when_it_is_kept(tmp_path: Path) -> None:
    setup = GuestSetup(License("cad", "a.b.c"))
    host = set_up(tmp_path, seed=CloudInit(setup=setup), license_name="cad")
    script = partial(read_setup_of_vm, host.ports, the_vm(host))
    assert secrets_in(script()) == {"license"}
    assert keep(host.ports).steps[0].startswith("write no license into the cloud-init seed ")
    assert secrets_in(script()) == frozenset()


def test_only_what_shut_down_is_kept(tmp_path: Path) -> None:
    host = prepared(tmp_path)
    never = "libvirt does not know"
    with unchanged(host), pytest.raises(NotShutDown, match=never):
        keep(host.ports)
    start(host.ports, "vm")
    with unchanged(host), pytest.raises(InUse, match="vm is running"):
        keep(host.ports)
    host.ports.hypervisor.destroy(the_vm(host).uuid)
    with unchanged(host), pytest.raises(NotShutDown, match="libvirt says: destroyed") as caught:
        keep(host.ports)
    assert caught.value.hint == "vgpuctl start-vm vm; then vgpuctl prepare-vm vm --drain"
    start(host.ports, "vm")
    stop(host.ports, "vm", force=False)
    host.sim.reboot()
    later = host.again()
    with pytest.raises(NotShutDown, match=never):
        keep(later.ports)
    start(later.ports, "vm")
    stop(later.ports, "vm", force=False)
    assert keep(later.ports).changed


def test_what_was_kept_once_stays(tmp_path: Path) -> None:
    host = kept(tmp_path)
    start(host.ports, "vm")
    stop(host.ports, "vm", force=False)
    with unchanged(host), pytest.raises(Refused, match="vm is prepared already") as caught:
        keep(host.ports)
    assert caught.value.hint == "vgpuctl refresh-vm vm --image /old.qcow2 makes everything again"


def test_ensure_vm_knows_the_image_below_what_was_kept(tmp_path: Path) -> None:
    host = kept(tmp_path)
    wanted = replace(request("A100-4C", name="vm", image="/old.qcow2"), sources={"image": "given"})
    with unchanged(host), operation(host.ports):
        assert not ensure_vm(host.ports, context(), wanted, state="present").changed


def test_a_secret_that_the_guest_did_not_get_yet_stays_in_its_seed(tmp_path: Path) -> None:
    setup = GuestSetup(License("cad", "a.b.c"))
    host = prepared(tmp_path, "drain", seed=CloudInit(setup=setup), license_name="cad")
    seed = next(disk for disk in the_vm(host).record.disks if disk.role is DiskRole.SEED)
    WriteSetup("vm", seed, setup, unread=True).perform(host.ports)
    assert [step.split()[0] for step in keep(host.ports, drain=True).steps] == [
        "shut",
        "record",
        "create",
        "change",
        "start",
    ]
    assert secrets_in(read_setup_of_vm(host.ports, the_vm(host))) == {"license"}


def test_the_name_of_a_disk_is_not_given_again(tmp_path: Path) -> None:
    host = kept(tmp_path)
    names = [system_disk(host).volume, the_vm(host).record.prepared_disk.volume]
    for image in (None, "/new.qcow2", "/old.qcow2"):
        refresh(host.ports, "drain", image=image)
        names.append(system_disk(host).volume)
    assert len(set(names)) == 5, "what is in the bin may be a clone of one of them"


def test_without_anything_kept_a_refresh_needs_an_image(tmp_path: Path) -> None:
    host = set_up(tmp_path)
    with unchanged(host), pytest.raises(Refused, match="nothing was prepared for vm") as caught:
        refresh(host.ports, image=None)
    assert "vgpuctl refresh-vm vm --image /old.qcow2" in str(caught.value.hint)


def test_a_full_copy_is_not_kept(tmp_path: Path) -> None:
    lvm = SCENARIO.replace("[{name: default}]", "[{name: default}, {name: vg0, kind: logical, capacity_gib: 100}]", 1)
    host = set_up(tmp_path, scenario=lvm, storage_pool="vg0")
    with unchanged(host), pytest.raises(Refused, match="is a full copy of /old"):
        keep(host.ports)


def test_a_deletion_takes_what_was_kept_with_it_or_leaves_it_below_its_disk(tmp_path: Path) -> None:
    for keep_disks in (False, True):
        host = kept(tmp_path / str(keep_disks))
        both = {system_disk(host).path, the_vm(host).record.prepared_disk.path}
        gone = delete(host.ports, "vm", keep_disks=keep_disks)
        left = {path for path in picture(host).files if path.startswith("/var")}
        assert left & both == (both if keep_disks else set())
        if keep_disks:
            assert both <= {disk.path for disk in gone.data.disks}
            assert any(note.endswith(f"is kept, a clone of {min(both, key=len)}") for note in gone.notes)


def test_list_images_shows_it_as_the_base_of_its_vm(tmp_path: Path) -> None:
    host = kept(tmp_path)
    rows = {row.path: row for row in list_images(host.ports).data}
    path = the_vm(host).record.prepared_disk.path
    assert rows[path].role == "base"
    assert [child.vms for child in rows[path].children] == [("vm",)]


@pytest.mark.parametrize("act", ["prepare", "refresh", "refresh from an image"])
def test_whatever_call_fails_the_vm_is_as_it_was_or_done(tmp_path: Path, act: str) -> None:
    make = set_up if act == "prepare" else kept
    work = {"prepare": keep, "refresh": partial(refresh, image=None), "refresh from an image": refresh}[act]
    trial = Trial(tmp_path, make, work)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    refused = 0
    for one in failed_calls(trial, calls):
        if one.error is None:
            continue
        refused += 1
        later = one.host.again()
        run_reconcile(later.ports)
        sound(later, one.where)
    assert refused >= 2


@pytest.mark.parametrize("act", ["prepare", "refresh", "refresh from an image"])
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, spawn, act: str) -> None:
    make = set_up if act == "prepare" else kept
    work = {"prepare": keep, "refresh": partial(refresh, image=None), "refresh from an image": refresh}[act]
    trial = Trial(tmp_path, make, work)
    calls = trial.calls()
    switched = calls.index("hypervisor.redefine") + 1
    for number, done, where, later in trial.killed(calls, spawn):
        run_reconcile(later.ports)
        assert not run_reconcile(later.ports, dry_run=True).data.findings, where
        new = number > switched or (number == switched and done)
        is_kept = {"prepare": new, "refresh": True, "refresh from an image": not new}[act]
        assert sound(later, where) is is_kept, where
