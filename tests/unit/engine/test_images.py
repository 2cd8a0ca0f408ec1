# SPDX-License-Identifier: Apache-2.0
"""list-images: bases with their clones, disks with their VMs, and orphans that nobody refers to."""

from __future__ import annotations

import pytest

from tests.worlds import create, delete, open_host, wish
from vgpuctl.engine.images import list_images
from vgpuctl.errors import HostCannot, NotFound

BASE = "/srv/images/ubuntu-24.04.qcow2"
SCENARIO = """version: 1
libvirt: {running: true}
storage: {pools: [{name: default}, {name: fast, path: /fast}, {name: old, path: /old, active: false}]}
networks: [{name: default}]
images: [{path: /srv/images/ubuntu-24.04.qcow2, size_gib: 20, firmware: both}]
gpus: [{model: A100}]
"""


def rows(world, **options):
    return {row["path"]: row for row in list_images(world, **options).data}


def test_a_base_outside_of_the_pools_is_listed_with_its_clones(tmp_path):
    world = open_host(tmp_path, text=SCENARIO).world
    create(world, wish("A100-4C", name="b", image=BASE))
    create(world, wish("A100-4C", name="a", image=BASE))
    found = rows(world)
    base = found[BASE]
    assert (base["role"], base["pool"], base["format"], base["size_bytes"]) == ("base", None, "qcow2", 20 << 30)
    assert sorted(child["vms"] for child in base["children"]) == [["a"], ["b"]]
    disks = [row for row in found.values() if row["role"] == "disk"]
    assert [row["base"] for row in disks] == [BASE, BASE]
    assert list(found) == sorted(found)


def test_a_volume_named_like_ours_is_an_orphan_only_while_no_vm_refers_to_it(tmp_path):
    world = open_host(tmp_path, text=SCENARIO).world
    create(world, wish("A100-4C", name="vm"))
    (path,) = rows(world)
    assert rows(world)[path]["role"] == "disk"
    delete(world, "vm", keep_disks=True)
    assert (rows(world)[path]["role"], rows(world)[path]["vms"]) == ("orphan", [])
    world.storage.make_volume("default", "somebody.qcow2", 1 << 30)
    assert rows(world)["/var/lib/libvirt/images/somebody.qcow2"]["role"] == "other"


def test_what_only_an_unreadable_record_names_is_in_use_and_its_base_a_base(tmp_path):
    world = open_host(tmp_path, text=SCENARIO).world
    gold = world.storage.make_volume("fast", "gold-0123abcd.qcow2", 1 << 30)
    disk = world.storage.make_volume("fast", "vm-4567abcd.qcow2", 1 << 30)
    uuid = create(world, wish("A100-4C", name="vm"), start=False).data["uuid"]
    text = f'<vm xmlns="urn:vgpuctl:1" state="parked"><disk path="{disk.path}" base="{gold.path}"/></vm>'
    world.hypervisor.set_promise(uuid, text)
    found = rows(world)
    assert (found[gold.path]["role"], found[gold.path]["children"]) == ("base", [{"path": disk.path, "vms": ["vm"]}])
    assert (found[disk.path]["role"], found[disk.path]["vms"]) == ("disk", ["vm"])
    assert "orphan" not in {row["role"] for row in found.values()}


def test_an_orphan_that_something_is_a_clone_of_is_a_base(tmp_path):
    world = open_host(tmp_path, text=SCENARIO).world
    base = world.storage.make_volume("fast", "gold-0123abcd.qcow2", 1 << 30)
    world.storage.make_volume("default", "clone.qcow2", 1 << 30, base.path, "qcow2")
    assert rows(world)[base.path]["role"] == "base"


def test_one_pool_shows_its_volumes_and_the_bases_of_these(tmp_path):
    world = open_host(tmp_path, text=SCENARIO).world
    base = world.storage.make_volume("fast", "gold.qcow2", 1 << 30)
    clone = world.storage.make_volume("default", "clone.qcow2", 1 << 30, base.path, "qcow2")
    other = world.storage.make_volume("fast", "other.qcow2", 1 << 30)
    assert set(rows(world, pool="default")) == {base.path, clone.path}
    assert set(rows(world, pool="fast")) == {base.path, other.path}
    assert rows(world, pool="fast")[base.path]["children"] == [{"path": clone.path, "vms": []}]


def test_a_pool_that_is_off_is_a_warning_and_one_that_is_not_there_an_error(tmp_path):
    world = open_host(tmp_path, text=SCENARIO).world
    assert list_images(world).warnings == ("storage pool old is not started; its volumes are not listed",)
    with pytest.raises(NotFound, match="no storage pool nothing") as caught:
        list_images(world, pool="nothing")
    assert "default, fast, old" in str(caught.value.hint)


def test_without_libvirt_the_host_cannot(tmp_path):
    world = open_host(tmp_path, text=SCENARIO.replace("running: true", "running: false")).world
    with pytest.raises(HostCannot):
        list_images(world)
