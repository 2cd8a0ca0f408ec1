# SPDX-License-Identifier: Apache-2.0
"""list-images: bases with their clones, disks with their VMs, and orphans that nothing refers to."""

from __future__ import annotations

import pytest

from tests.hosts import create, delete, open_sim_host, request
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.model.results.vms import CloneResult
from vgpuctl.operations.images import list_images

BASE = "/srv/images/ubuntu-24.04.qcow2"
SCENARIO = """version: 1
libvirt: {running: true}
storage: {pools: [{name: default}, {name: fast, path: /fast}, {name: old, path: /old, active: false}]}
networks: [{name: default}]
images: [{path: /srv/images/ubuntu-24.04.qcow2, size_gib: 20, firmware: both}]
gpus: [{model: A100}]
"""


@pytest.fixture
def ports(tmp_path):
    return open_sim_host(tmp_path, text=SCENARIO).ports


def rows(ports, **options):
    return {row.path: row for row in list_images(ports, **options).data}


def test_a_base_outside_of_the_pools_is_listed_with_its_clones(ports):
    create(ports, request("A100-4C", name="b", image=BASE))
    create(ports, request("A100-4C", name="a", image=BASE))
    result = rows(ports)
    base = result[BASE]
    assert (base.role, base.pool, base.format, base.size_bytes) == ("base", None, "qcow2", 20 << 30)
    assert sorted(child.vms for child in base.children) == [("a",), ("b",)]
    disks = [row for row in result.values() if row.role == "disk"]
    assert [row.base for row in disks] == [BASE, BASE]
    assert list(result) == sorted(result)


def test_a_managed_volume_name_is_an_orphan_only_if_no_vm_uses_it(ports):
    create(ports, request("A100-4C", name="vm"))
    (path,) = rows(ports)
    assert rows(ports)[path].role == "disk"
    delete(ports, "vm", keep_disks=True)
    assert (rows(ports)[path].role, rows(ports)[path].vms) == ("orphan", ())
    ports.storage.create_volume("default", "somebody.qcow2", 1 << 30, path, "qcow2")
    assert rows(ports)["/var/lib/libvirt/images/somebody.qcow2"].role == "other"
    assert rows(ports)[path].role == "base", "something is a clone of it"


def test_what_only_an_unreadable_record_names_is_in_use_and_its_base_a_base(ports):
    gold = ports.storage.create_volume("fast", "gold-0123abcd.qcow2", 1 << 30)
    disk = ports.storage.create_volume("fast", "vm-4567abcd.qcow2", 1 << 30)
    uuid = create(ports, request("A100-4C", name="vm"), start=False).data.uuid
    text = f'<vm xmlns="urn:vgpuctl:1" state="parked"><disk path="{disk.path}" base="{gold.path}"/></vm>'
    ports.hypervisor.set_record(uuid, text)
    result = rows(ports)
    assert (result[gold.path].role, result[gold.path].children) == ("base", (CloneResult(disk.path, ("vm",)),))
    assert (result[disk.path].role, result[disk.path].vms) == ("disk", ("vm",))
    assert "orphan" not in {row.role for row in result.values()}


def test_one_pool_shows_its_volumes_and_the_bases_of_these(ports):
    base = ports.storage.create_volume("fast", "gold.qcow2", 1 << 30)
    clone = ports.storage.create_volume("default", "clone.qcow2", 1 << 30, base.path, "qcow2")
    other = ports.storage.create_volume("fast", "other.qcow2", 1 << 30)
    assert set(rows(ports, pool="default")) == {base.path, clone.path}
    assert set(rows(ports, pool="fast")) == {base.path, other.path}
    assert rows(ports, pool="fast")[base.path].children == (CloneResult(clone.path, ()),)


def test_exactly_the_named_images_are_listed_also_without_clones(ports):
    other = ports.storage.create_volume("fast", "other.qcow2", 1 << 30)
    (before,) = list_images(ports, [BASE]).data
    assert (before.path, before.children, before.role, before.size_bytes) == (BASE, (), "other", 20 << 30)
    create(ports, request("A100-4C", name="a", image=BASE))
    result = list_images(ports, [other.path, BASE]).data
    assert [(row.path, row.pool, [child.vms for child in row.children]) for row in result] == [
        (other.path, "fast", []),
        (BASE, None, [("a",)]),
    ]


def test_a_missing_image_is_an_error_that_names_its_clones_and_shows_the_others(ports):
    gold = ports.storage.create_volume("fast", "gold.qcow2", 1 << 30)
    create(ports, request("A100-4C", name="a", image=gold.path))
    ports.storage.remove_volume("fast", "gold.qcow2")
    with pytest.raises(NotFound) as caught:
        list_images(ports, [gold.path, BASE, "/srv/images/nosuch"])
    assert caught.value.message.splitlines() == [
        "file /fast/gold.qcow2 does not exist; clones of it, which cannot work without it: a",
        "file /srv/images/nosuch does not exist",
    ]
    assert [row.path for row in caught.value.result.data] == [BASE]
    with pytest.raises(InvalidInput):
        list_images(ports, [BASE], pool="fast")


def test_the_seed_of_cloud_init_is_no_disk(ports):
    seed = CloudInit(CloudInitFile("/root/user-data", "#cloud-config\na: 1\n"))
    create(ports, request("A100-4C", name="vm", image=BASE, seed=seed))
    roles = {path.rpartition(".")[2]: row.role for path, row in rows(ports).items() if path != BASE}
    assert roles == {"qcow2": "disk", "iso": "seed"}


def test_a_pool_that_is_off_is_a_warning_and_one_that_is_not_there_an_error(ports):
    assert list_images(ports).warnings == ("storage pool old is not started; its volumes are not listed",)
    with pytest.raises(NotFound, match="storage pool nothing does not exist") as caught:
        list_images(ports, pool="nothing")
    assert "default, fast, old" in str(caught.value.hint)


def test_without_libvirt_the_host_cannot(tmp_path):
    ports = open_sim_host(tmp_path, text=SCENARIO.replace("running: true", "running: false")).ports
    with pytest.raises(HostCannot):
        list_images(ports)
