# SPDX-License-Identifier: Apache-2.0
"""A file that other disks are based on is never written or deleted, whoever made them and whatever path they use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch, counted
from tests.hosts import SimulatedHost, context, create, delete, open_sim_host, request
from tests.meanwhile import with_calls
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import Busy, InUse, LibvirtFailed, Refused
from vgpuctl.model.request import ExistingDisk
from vgpuctl.operations.images import list_images
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.ports.host import Host

BASE = "/srv/images/base.qcow2"
SCENARIO = """version: 1
libvirt: {running: true}
storage: {pools: [{name: default}, {name: fast, path: /fast}, {name: far, path: /far, kind: netfs}]}
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
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path, text=SCENARIO)


def theirs(ports: Host, source: str, below: str = "", kind: str = "file", form: str = "qcow2") -> None:
    """Create an unmanaged VM, off."""
    ports.hypervisor.define(FOREIGN.format(kind=kind, source=source, below=below, format=form))


def refresh(ports: Host, name: str, image: str) -> None:
    """Give a VM a new clone of an image."""
    refresh_vm(ports, context(wait_seconds=1.0), name, image, drain=False)


def without_server(ports: Host) -> Host:
    """The same host when the server of /far is gone: opening a file there blocks forever."""

    def image_files(paths: Any, *, reachable: Any = None) -> Any:
        result = ports.storage.image_files(paths, reachable=reachable)
        far = [path for path in result if path.startswith("/far/")]
        assert not far, f"hangs at {far[0]}"
        return result

    return with_calls(ports, "storage", image_files=image_files)


def without_list(ports: Host, broken: str) -> Host:
    """The same host when the volumes of one pool cannot be listed."""

    def volumes(pool: str, *, refresh: bool = True) -> Any:
        if pool == broken:
            raise LibvirtFailed(f"cannot list the volumes of storage pool {pool}: it is gone")
        return ports.storage.volumes(pool, refresh=refresh)

    return with_calls(ports, "storage", volumes=volumes)


def with_disk(path: str, name: str = "v2") -> VmRequest:
    return request("A100-4C", name=name, disks=(ExistingDisk(path),))


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize(
    "path", [BASE, "/srv/images/root.qcow2", "/srv/images/link.qcow2", "/srv/images/../images/base.qcow2"]
)
def test_no_vm_gets_a_file_that_a_clone_is_made_from(host: SimulatedHost, path: str, start: bool) -> None:
    disk = create(host.ports, request("A100-4C", name="v1", image=BASE), start=start).data.disks[0].path
    with pytest.raises(InUse, match=f"{path} is the base image of v1's disk {disk}") as caught:
        create(host.ports, with_disk(path))
    assert caught.value.hint == f"--image {path} gives the VM a clone of its own"
    assert host.ports.hypervisor.find_domain("v2") is None
    create(host.ports, request("A100-4C", name="v3", image=path))


@pytest.mark.parametrize(
    ("source", "kind", "below"),
    [
        ("file='/srv/images/disk.qcow2'", "file", ""),
        ("pool='fast' volume='disk.qcow2'", "volume", ""),
        ("file='/gone'", "file", "<backingStore type='file'><format type='raw'/><source file='{}'/></backingStore>"),
    ],
)
def test_a_vm_of_others_is_protected_too(host: SimulatedHost, source: str, kind: str, below: str) -> None:
    other = "/srv/images/other.qcow2"
    if kind == "volume":
        host.ports.storage.create_volume("fast", "disk.qcow2", 1 << 30, other, "qcow2")
    theirs(host.ports, source, below.format(other), kind)
    with pytest.raises(InUse, match=f"{other} is the base image of theirs's disk"):
        create(host.ports, with_disk(other))


def test_the_disk_of_a_vm_by_another_name_is_neither_a_base_nor_a_disk(host: SimulatedHost) -> None:
    theirs(host.ports, "file='/srv/images/base.qcow2'")
    for wanted in (with_disk("/srv/images/link.qcow2"), request("A100-4C", image="/srv/images/link.qcow2")):
        with pytest.raises(InUse, match="is a disk of VM theirs, which writes to it"):
            create(host.ports, wanted)


def test_what_is_made_from_a_disk_that_a_vm_writes_to_is_no_base_either(host: SimulatedHost) -> None:
    theirs(host.ports, "file='/srv/images/root.qcow2'")
    with pytest.raises(InUse, match=r"base\.qcow2 is a clone of /srv/images/root\.qcow2, which is a disk of VM theirs"):
        create(host.ports, request("A100-4C", image=BASE))


def test_what_a_guest_wrote_into_a_raw_disk_names_no_base(host: SimulatedHost) -> None:
    theirs(host.ports, "file='/srv/images/disk.qcow2'", form="raw")
    create(host.ports, with_disk("/srv/images/other.qcow2"))


@pytest.mark.parametrize("source", ["file='/fast/evil.raw'", "pool='fast' volume='evil.raw'", "file='/srv/evil.raw'"])
def test_a_raw_disk_that_pretends_to_be_a_clone_blocks_nobody(tmp_path: Path, source: str) -> None:
    link = "gpus:", "  - {path: /srv/evil.raw, link: /fast/evil.raw}\ngpus:"
    ports = open_sim_host(tmp_path, text=SCENARIO.replace(*link)).ports
    disk = create(ports, request("A100-4C", name="v1", image=BASE), start=False).data.disks[0].path
    ports.storage.create_volume("fast", "evil.raw", 1 << 30, disk, "qcow2")
    kind = "volume" if "volume" in source else "file"
    theirs(ports, source, kind=kind, form="raw")
    rows = {row.path: row for row in list_images(ports).data}
    if "srv" not in source:
        assert (rows[disk].role, rows["/fast/evil.raw"].base) == ("disk", None)
    refresh(ports, "v1", "/srv/images/other.qcow2")
    ports.storage.remove_volume("fast", "evil.raw")
    (now,) = (row for row in list_images(ports).data if row.vms == ("v1",))
    ports.storage.create_volume("fast", "evil.raw", 1 << 30, now.path, "qcow2")
    delete(ports, "v1")
    assert ports.storage.image(now.path) is None


def test_a_clone_that_another_vm_uses_as_raw_is_still_a_clone(host: SimulatedHost) -> None:
    clone = create(host.ports, request("A100-4C", name="v1", image=BASE), start=False).data.disks[0].path
    theirs(host.ports, f"file='{clone}'", form="raw")
    with pytest.raises(InUse, match=f"is the base image of [a-z0-9]+'s disk {clone}"):
        create(host.ports, with_disk(BASE))


def test_an_unreachable_server_of_another_vms_disk_blocks_nothing(host: SimulatedHost) -> None:
    far = host.ports.storage.create_volume("far", "theirs.qcow2", 1 << 30, BASE, "qcow2").path
    theirs(host.ports, f"file='{far}'")
    ports = without_server(host.ports)
    create(ports, request("A100-4C", name="v1", image=BASE), start=False)
    with pytest.raises(InUse, match=f"{BASE} is the base image of theirs's disk {far}"):
        create(ports, with_disk(BASE))
    refresh(ports, "v1", BASE)
    disk = next(row.path for row in list_images(host.ports).data if row.vms == ("v1",))
    delete(ports, "v1")
    assert host.ports.storage.image(disk) is None


def test_what_was_typed_is_opened_wherever_it_is(host: SimulatedHost) -> None:
    far = host.ports.storage.create_volume("far", "mine.qcow2", 1 << 30).path
    with pytest.raises(AssertionError, match=f"hangs at {far}"):
        create(without_server(host.ports), with_disk(far))


def test_on_the_server_of_what_was_typed_a_file_is_known_by_every_path(host: SimulatedHost) -> None:
    storage = host.ports.storage
    base = storage.create_volume("far", "base.qcow2", 1 << 30).path
    clone = storage.create_volume("far", "clone.qcow2", 1 << 30, "/far/../far/base.qcow2", "qcow2").path
    theirs(host.ports, f"file='{clone}'")
    with pytest.raises(InUse, match=f"{base} is the base image of theirs's disk {clone}"):
        create(host.ports, with_disk(base))


def test_a_pool_that_cannot_be_listed_stops_only_what_could_damage_a_clone_in_it(host: SimulatedHost) -> None:
    volume = host.ports.storage.create_volume("fast", "theirs.qcow2", 1 << 30)
    theirs(host.ports, "pool='fast' volume='theirs.qcow2'", kind="volume")
    ports = without_list(host.ports, "fast")
    made = create(ports, request("A100-4C", name="v1", image=BASE), start=False).data.disks[0].path
    with pytest.raises(InUse, match="is a disk of VM theirs"):
        create(ports, request("A100-4C", name="v2", image=volume.path))
    with pytest.raises(Refused, match="may have clones in the storage pool fast, which cannot be listed") as caught:
        create(ports, with_disk("/srv/images/other.qcow2"))
    assert "--image /srv/images/other.qcow2 gives" in str(caught.value.hint)
    with pytest.raises(Refused, match=f"{made} cannot be deleted: it may have clones in the storage pool") as caught:
        delete(ports, "v1")
    assert str(caught.value.hint).endswith(
        "virsh pool-refresh fast shows the pool's problem; or vgpuctl delete-vm v1 --keep-disks"
    )
    with pytest.raises(Refused, match="the storage pool fast"):
        refresh(ports, "v1", BASE)
    assert host.ports.storage.image(made) is not None
    delete(ports, "v1", keep_disks=True)
    assert host.ports.hypervisor.find_domain("v1") is None


@pytest.mark.parametrize(
    ("form", "command"),
    [
        ("raw", ": qemu-img convert -f raw -O qcow2 /srv/images/disk.qcow2 /srv/images/disk-copy.qcow2"),
        ("qcow2", ": qemu-img convert -f qcow2 -O qcow2 /srv/images/disk.qcow2 /srv/images/disk-copy.qcow2"),
        (None, ""),
    ],
)
def test_qemu_img_is_never_to_guess_the_format_of_what_a_guest_wrote(
    host: SimulatedHost, form: str | None, command: str
) -> None:
    text = FOREIGN.format(kind="file", source="file='/srv/images/disk.qcow2'", below="", format=form)
    host.ports.hypervisor.define(text if form else text.replace("<driver name='qemu' type='None'/>", ""))
    with pytest.raises(InUse) as caught:
        create(host.ports, request("A100-4C", image="/srv/images/disk.qcow2"))
    assert caught.value.hint == f"copy it while the VM is off{command}"


def test_the_base_of_a_volume_that_no_vm_has_is_not_written_to_either(host: SimulatedHost) -> None:
    clone = host.ports.storage.create_volume("fast", "clone.qcow2", 1 << 30, "/srv/images/root.qcow2", "qcow2")
    with pytest.raises(InUse, match=f"is the base image of {clone.path}, which no VM has"):
        create(host.ports, with_disk("/srv/images/root.qcow2"))


def test_a_disk_that_somebody_elses_disk_is_made_from_is_not_deleted(host: SimulatedHost) -> None:
    ports = host.ports
    disk = create(ports, request("A100-4C", name="v1"), start=False).data.disks[0].path
    middle = ports.storage.create_volume("fast", "middle.qcow2", 1 << 30, disk, "qcow2")
    with pytest.raises(InUse, match=f"{disk} cannot be deleted: {middle.path} is a clone of it"):
        delete(ports, "v1")
    top = ports.storage.create_volume("fast", "top.qcow2", 1 << 30, middle.path, "qcow2")
    theirs(ports, f"file='{top.path}'")
    with pytest.raises(InUse, match=f"{middle.path} is a clone of it"):
        delete(ports, "v1")
    assert ports.storage.image(disk) is not None
    delete(ports, "v1", keep_disks=True)


def test_a_vm_without_disks_of_its_own_is_deleted_without_a_look_at_any(host: SimulatedHost) -> None:
    create(host.ports, with_disk("/srv/images/other.qcow2", name="v1"))
    calls = counted(host.ports, lambda ports: delete(ports, "v1"))
    assert not {"storage.volumes", "storage.image_files"} & set(calls)


def test_two_hundred_vms_cost_three_looks_at_their_files_and_no_program(host: SimulatedHost) -> None:
    ports = host.ports
    for number in range(200):
        volume = ports.storage.create_volume("default", f"d{number}.qcow2", 1 << 30, BASE, "qcow2")
        text = FOREIGN.format(kind="file", source=f"file='{volume.path}'", below="", format="qcow2")
        ports.hypervisor.define(text.replace("theirs", f"vm{number}"))
    calls = counted(ports, lambda watched: create(watched, with_disk("/srv/images/other.qcow2")))
    assert calls.count("storage.image") == 1
    assert calls.count("storage.volumes") == 3
    assert calls.count("storage.image_files") <= 3
    assert calls.count("hypervisor.domains") <= 3


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size_gib", [None, 2])
def test_a_base_that_changes_after_it_was_checked_is_not_cloned(
    host: SimulatedHost, number: int, size_gib: int | None
) -> None:
    storage = host.ports.storage
    root = storage.create_volume("fast", "root.qcow2", 1 << 30)
    files = (root, storage.create_volume("fast", "base.qcow2", 1 << 30, root.path, "qcow2"))
    watch = Watch()

    def change(_: int, call: str, args: tuple[Any, ...]) -> None:
        if call == "hypervisor.define":
            storage.remove_volume("fast", files[number].name)
            if size_gib is not None:
                storage.create_volume(
                    "fast", files[number].name, size_gib << 30, root.path if number else None, "qcow2"
                )

    watch.before = change
    with pytest.raises(Busy, match=f"{files[number].path} was {'changed' if size_gib else 'removed'} since"):
        create(watch.watch(host.ports), request("A100-4C", name="v1", image=files[1].path))
    assert host.ports.hypervisor.find_domain("v1") is None
