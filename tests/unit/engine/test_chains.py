# SPDX-License-Identifier: Apache-2.0
"""A file that other disks are made from is never written to or deleted, whoever made those and by whatever path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch, counted
from tests.worlds import Host, create, delete, open_host, wish
from vgpuctl.errors import Busy, InUse
from vgpuctl.model.wish import ExistingDisk, VmWish
from vgpuctl.model.world import World

BASE = "/srv/images/base.qcow2"
SCENARIO = """version: 1
libvirt: {running: true}
storage: {pools: [{name: default}, {name: fast, path: /fast}]}
networks: [{name: default}]
images:
  - {path: /srv/images/root.qcow2, size_gib: 20}
  - {path: /srv/images/base.qcow2, size_gib: 20, base: /srv/images/root.qcow2}
  - {path: /srv/images/other.qcow2, size_gib: 20}
  - {path: /srv/images/link.qcow2, link: /srv/images/base.qcow2}
  - {path: /srv/images/disk.qcow2, size_gib: 20, base: /srv/images/other.qcow2}
gpus: [{model: A100}]
"""
FOREIGN = """<domain type='kvm'><name>theirs</name><memory>1048576</memory><os><type>hvm</type></os><devices>
<disk type='{kind}' device='disk'><driver name='qemu' type='{format}'/><source {source}/>{below}
<target dev='vda'/></disk></devices></domain>"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return open_host(tmp_path, text=SCENARIO)


def theirs(world: World, source: str, below: str = "", kind: str = "file", form: str = "qcow2") -> None:
    """A VM that somebody else made, off."""
    world.hypervisor.define(FOREIGN.format(kind=kind, source=source, below=below, format=form))


def with_disk(path: str, name: str = "v2") -> VmWish:
    return wish("A100-4C", name=name, disks=(ExistingDisk(path),))


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize(
    "path", [BASE, "/srv/images/root.qcow2", "/srv/images/link.qcow2", "/srv/images/../images/base.qcow2"]
)
def test_no_vm_gets_a_file_that_a_clone_is_made_from(host: Host, path: str, start: bool) -> None:
    disk = create(host.world, wish("A100-4C", name="v1", image=BASE), start=start).data["disks"][0]["path"]
    with pytest.raises(InUse, match=f"{path} is the base image of v1's disk {disk}") as caught:
        create(host.world, with_disk(path))
    assert caught.value.hint == f"--image {path} gives the VM a clone of its own"
    assert host.world.hypervisor.find_domain("v2") is None
    create(host.world, wish("A100-4C", name="v3", image=path))


@pytest.mark.parametrize(
    ("source", "kind", "below"),
    [
        ("file='/srv/images/disk.qcow2'", "file", ""),
        ("pool='fast' volume='disk.qcow2'", "volume", ""),
        ("file='/gone'", "file", "<backingStore type='file'><format type='raw'/><source file='{}'/></backingStore>"),
    ],
)
def test_a_vm_of_others_is_protected_too(host: Host, source: str, kind: str, below: str) -> None:
    other = "/srv/images/other.qcow2"
    if kind == "volume":
        host.world.storage.make_volume("fast", "disk.qcow2", 1 << 30, other, "qcow2")
    theirs(host.world, source, below.format(other), kind)
    with pytest.raises(InUse, match=f"{other} is the base image of theirs's disk"):
        create(host.world, with_disk(other))


def test_the_disk_of_a_vm_by_another_name_is_neither_a_base_nor_a_disk(host: Host) -> None:
    theirs(host.world, "file='/srv/images/base.qcow2'")
    for wanted in (with_disk("/srv/images/link.qcow2"), wish("A100-4C", image="/srv/images/link.qcow2")):
        with pytest.raises(InUse, match="is a disk of VM theirs, which writes to it"):
            create(host.world, wanted)


def test_what_is_made_from_a_disk_that_a_vm_writes_to_is_no_base_either(host: Host) -> None:
    theirs(host.world, "file='/srv/images/root.qcow2'")
    with pytest.raises(InUse, match=r"base\.qcow2 is a clone of /srv/images/root\.qcow2, which is a disk of VM theirs"):
        create(host.world, wish("A100-4C", image=BASE))


def test_what_a_guest_wrote_into_a_raw_disk_names_no_base(host: Host) -> None:
    theirs(host.world, "file='/srv/images/disk.qcow2'", form="raw")
    create(host.world, with_disk("/srv/images/other.qcow2"))


def test_the_base_of_a_volume_that_no_vm_has_is_not_written_to_either(host: Host) -> None:
    clone = host.world.storage.make_volume("fast", "clone.qcow2", 1 << 30, "/srv/images/root.qcow2", "qcow2")
    with pytest.raises(InUse, match=f"is the base image of {clone.path}, which no VM has"):
        create(host.world, with_disk("/srv/images/root.qcow2"))


def test_a_disk_that_somebody_elses_disk_is_made_from_is_not_deleted(host: Host) -> None:
    world = host.world
    disk = create(world, wish("A100-4C", name="v1"), start=False).data["disks"][0]["path"]
    middle = world.storage.make_volume("fast", "middle.qcow2", 1 << 30, disk, "qcow2")
    with pytest.raises(InUse, match=f"{disk} cannot be deleted: {middle.path} is a clone of it"):
        delete(world, "v1")
    top = world.storage.make_volume("fast", "top.qcow2", 1 << 30, middle.path, "qcow2")
    theirs(world, f"file='{top.path}'")
    with pytest.raises(InUse, match=f"{middle.path} is a clone of it"):
        delete(world, "v1")
    assert world.storage.image(disk) is not None
    delete(world, "v1", keep_disks=True)


def test_a_vm_without_disks_of_its_own_is_deleted_without_a_look_at_any(host: Host) -> None:
    create(host.world, with_disk("/srv/images/other.qcow2", name="v1"))
    calls = counted(host.world, lambda world: delete(world, "v1"))
    assert not {"storage.volumes", "storage.glance"} & set(calls)


def test_two_hundred_vms_cost_one_glance_for_each_of_their_files_and_no_program(host: Host) -> None:
    world = host.world
    for number in range(200):
        volume = world.storage.make_volume("default", f"d{number}.qcow2", 1 << 30, BASE, "qcow2")
        text = FOREIGN.format(kind="file", source=f"file='{volume.path}'", below="", format="qcow2")
        world.hypervisor.define(text.replace("theirs", f"vm{number}"))
    calls = counted(world, lambda watched: create(watched, with_disk("/srv/images/other.qcow2")))
    assert calls.count("storage.image") == 1
    assert calls.count("storage.volumes") == 2
    assert calls.count("storage.glance") <= 200 + 4
    assert calls.count("hypervisor.domains") <= 3


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size_gib", [None, 2])
def test_a_base_that_changes_after_it_was_checked_is_not_cloned(host: Host, number: int, size_gib: int | None) -> None:
    storage = host.world.storage
    root = storage.make_volume("fast", "root.qcow2", 1 << 30)
    files = (root, storage.make_volume("fast", "base.qcow2", 1 << 30, root.path, "qcow2"))
    watch = Watch()

    def change(_: int, call: str, args: tuple[Any, ...]) -> None:
        if call == "hypervisor.define":
            storage.remove_volume("fast", files[number].name)
            if size_gib is not None:
                storage.make_volume("fast", files[number].name, size_gib << 30, root.path if number else None, "qcow2")

    watch.before = change
    with pytest.raises(Busy, match=f"{files[number].path} was {'changed' if size_gib else 'removed'} since"):
        create(watch.watch(host.world), wish("A100-4C", name="v1", image=files[1].path))
    assert host.world.hypervisor.find_domain("v1") is None
