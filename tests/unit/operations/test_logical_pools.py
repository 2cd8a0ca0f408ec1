# SPDX-License-Identifier: Apache-2.0
"""VMs in a logical pool (LVM): full copies with progress, their space, their undo, and what a crash leaves."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import Trial
from tests.hosts import Silent, SimulatedHost, create, delete, open_sim_host, picture, request, run_reconcile
from tests.meanwhile import unchanged
from tests.unit.operations.test_ensure_vms import ensure, names
from tests.unit.operations.test_refresh import refresh, the_vm
from vgpuctl.config.arguments import DEFAULT_DISK_GIB
from vgpuctl.errors import HostCannot, Interrupted, NoSpace
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.request import CloudInit, CloudInitFile, ExistingDisk, NewDisk
from vgpuctl.operations.images import list_images
from vgpuctl.ports.host import Host

SCENARIO = """version: 1
storage:
  pools:
    - {name: default}
    - {name: vg0, kind: logical, capacity_gib: 100, used_gib: 10}
    - {name: ceph, kind: rbd}
networks: [{name: default}]
images:
  - {path: /old.qcow2, size_gib: 20, firmware: both}
  - {path: /new.qcow2, size_gib: 10, firmware: both}
gpus: [{model: A100, vfs: {total: 8, enabled: 8}}]
"""
SEED = CloudInit(CloudInitFile("/root/user-data", "#cloud-config\na: 1\n"))
GIB = 1 << 30


def empty(directory: Path) -> SimulatedHost:
    return open_sim_host(directory, text=SCENARIO)


@pytest.fixture
def host(tmp_path):
    return empty(tmp_path)


def make(
    ports: Host, name: str = "vm", *, start: bool = False, progress: Progress | None = None, **changes: object
) -> Outcome:
    return create(ports, wanted(name, **changes), start=start, progress=progress)


def wanted(name: str = "vm", **changes: object) -> object:
    return request("A100-4C", name=name, **{"image": "/old.qcow2", "storage_pool": "vg0", **changes})


def free(host: SimulatedHost) -> int:
    return host.ports.storage.pool("vg0").available_bytes


def logical_volumes(host: SimulatedHost) -> dict[str, int]:
    return {v.name: v.capacity_bytes for v in host.ports.storage.volumes("vg0")}


def test_the_disks_are_raw_volumes_of_full_size_and_the_first_a_copy(host: SimulatedHost) -> None:
    made = make(host.ports, disks=(NewDisk(5),), seed=SEED, start=True)
    vm = the_vm(host)
    stem = f"vm-{vm.uuid[:8]}"
    assert logical_volumes(host) == {stem: 20 * GIB, f"{stem}-1": 8 << 20, f"{stem}-seed": 4 << 20}
    assert [(d.device, d.source, d.format) for d in vm.disks] == [
        ("disk", f"/dev/vg0/{stem}", "raw"),
        ("disk", f"/dev/vg0/{stem}-1", "raw"),
        ("cdrom", f"/dev/vg0/{stem}-seed", "raw"),
    ]
    assert [(d.base, d.copied_from) for d in made.data.disks] == [(None, "/old.qcow2"), (None, None), (None, None)]
    assert host.ports.storage.image(vm.disks[0].source).firmware == "both"
    assert "<source dev='/dev/vg0/" in host.ports.hypervisor.find_domain("vm").xml
    assert [s for s in made.steps if s.startswith("create disk")] == [
        f"create disk /dev/vg0/{stem} (20 GiB, full copy of /old.qcow2: pool vg0 is logical)",
        f"create disk /dev/vg0/{stem}-1 (5 MiB, empty, full size: pool vg0 is logical)",
    ]
    before = free(host)
    delete(host.ports, "vm")
    assert logical_volumes(host) == {}
    assert free(host) == before + 20 * GIB + (12 << 20)


def test_without_an_image_the_disk_is_empty(host: SimulatedHost) -> None:
    made = make(host.ports, image=None)
    assert any("LVM does not erase" in note for note in made.notes)
    assert not make(host.ports, "other").notes
    (disk,) = the_vm(host).record.disks
    assert (disk.image, disk.capacity_bytes, disk.format) == (None, DEFAULT_DISK_GIB * GIB, "raw")


def test_a_copy_is_no_clone_so_its_image_may_be_used_and_deleted(host: SimulatedHost) -> None:
    make(host.ports)
    rows = {row.path: row for row in list_images(host.ports, pool="vg0").data}
    (disk,) = the_vm(host).record.disks
    assert [(r.role, r.base, r.vms, r.format) for r in rows.values()] == [("disk", None, ("vm",), "raw")]
    make(host.ports, "other", image=None, disks=(ExistingDisk("/old.qcow2"),), storage_pool="default")
    delete(host.ports, "vm", keep_disks=True)
    (row,) = list_images(host.ports, pool="vg0").data
    assert (row.path, row.role) == (disk.path, "orphan")


@pytest.mark.parametrize(
    ("changes", "needed"),
    [({"disks": (NewDisk(71 << 10),)}, 91 * GIB), ({"image": None, "disks": (NewDisk(91 << 10),)}, 91 * GIB)],
)
def test_a_full_volume_group_is_refused_with_the_numbers(host: SimulatedHost, changes, needed) -> None:
    with unchanged(host), pytest.raises(NoSpace, match=r"need.? 91 GiB, .*'vg0' has 90 GiB of 100 GiB free") as caught:
        make(host.ports, **changes)
    assert (caught.value.facts["needed_bytes"], caught.value.facts["available_bytes"]) == (needed, 90 * GIB)


def test_several_vms_must_fit_together(host: SimulatedHost) -> None:
    with unchanged(host), pytest.raises(NoSpace, match="5 disks need 100 GiB"):
        ensure(host.ports, wanted(), names(5))
    ensure(host.ports, wanted(), names(4))
    assert free(host) == 10 * GIB


def test_space_that_goes_meanwhile_is_refused_by_the_pool_and_undone(host: SimulatedHost) -> None:
    class Taken(Silent):
        def on_step_start(self, number: int, text: str) -> None:
            if text.startswith("create disk"):
                host.ports.storage.create_volume("vg0", "somebody", 80 * GIB)

    with pytest.raises(NoSpace):
        make(host.ports, start=True, progress=Taken())
    assert logical_volumes(host) == {"somebody": 80 * GIB}
    assert not picture(host).domains
    assert not picture(host).claims


def test_other_kinds_of_pools_are_refused_by_name(host: SimulatedHost) -> None:
    with pytest.raises(HostCannot, match=r"'ceph' is of kind rbd; .* dir, fs, netfs, logical"):
        make(host.ports, storage_pool="ceph")


class Percentages(Silent):
    """Progress that records the percentages of a copy, and stops it at one of them."""

    def __init__(self, stop_at: float | None = None) -> None:
        self.seen: list[float] = []
        self.stop_at = stop_at

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        assert "full copy" in text
        self.seen.append(percent)
        if percent == self.stop_at:
            raise Interrupted("stopped by SIGINT", signal_number=2)


def test_the_copy_reports_its_progress_and_a_signal_during_it_undoes_everything(host: SimulatedHost) -> None:
    before = picture(host)
    with pytest.raises(Interrupted) as caught:
        make(host.ports, start=True, progress=Percentages(stop_at=50.0))
    assert caught.value.undone
    assert not caught.value.left
    assert (picture(host), logical_volumes(host)) == (before, {})
    progress = Percentages()
    make(host.ports, start=True, progress=progress)
    assert progress.seen == [0.0, 50.0, 100.0]


def test_refresh_makes_a_new_copy_and_needs_room_for_it(host: SimulatedHost) -> None:
    make(host.ports, seed=SEED)
    old = the_vm(host).disks[0].source
    refresh(host.ports)
    vm = the_vm(host)
    assert (vm.record.disks[0].copied_from, vm.record.disks[0].capacity_bytes) == ("/new.qcow2", 20 * GIB)
    assert [d.path for d in vm.record.disks] == [d.source for d in vm.disks]
    assert old not in [f"/dev/vg0/{name}" for name in logical_volumes(host)]
    assert f"<source dev='{vm.disks[0].source}'/>" in host.ports.hypervisor.find_domain("vm").xml
    host.ports.storage.create_volume("vg0", "somebody", 60 * GIB)
    with unchanged(host), pytest.raises(NoSpace, match="needs 20 GiB"):
        refresh(host.ports, image="/old.qcow2")


def whole(host: SimulatedHost, where: str) -> None:
    """Check that each volume belongs to a VM, and each VM has its disks with their content."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    domain = host.ports.hypervisor.find_domain("vm")
    paths = set() if domain is None else {d.path for d in the_vm(host).record.disks}
    assert paths == {f"/dev/vg0/{name}" for name in logical_volumes(host)}, where
    for disk in () if domain is None else the_vm(host).record.data_disks():
        assert host.ports.storage.image(disk.path).firmware == "both", where


def prepared(directory: Path, act: str) -> SimulatedHost:
    host = empty(directory)
    if act == "refresh":
        make(host.ports)
    return host.again()


def do(ports: Host, act: str) -> object:
    return refresh(ports) if act == "refresh" else make(ports)


@pytest.mark.parametrize("act", ["create", "refresh"])
def test_whatever_call_fails_no_volume_is_left_without_an_owner(tmp_path: Path, act: str, spawn) -> None:
    trial = Trial(tmp_path, partial(prepared, act=act), partial(do, act=act), whole)
    calls = trial.calls()
    assert {"storage.create_volume", "storage.copy_image"} <= set(calls)
    assert trial.failures(calls) >= 2
    assert trial.deaths(calls, spawn) >= 1
