# SPDX-License-Identifier: Apache-2.0
"""Who refers to an image is known from files, from VMs' XML and from records, each where the others are silent."""

from __future__ import annotations

import pytest

from vgpuctl.domain.sources import Sources
from vgpuctl.model.records import ImageRecord, VolumeRecord
from vgpuctl.model.vm import MadeDisk
from vgpuctl.plan.images import DiskUser, image_values, links, outside


def volume(name: str, base: str | None = None) -> VolumeRecord:
    return VolumeRecord("p", name, f"/p/{name}", 1 << 30, "qcow2", base)


def test_a_disk_named_by_pool_and_volume_is_the_volumes_path():
    volumes = [volume("a-0123abcd.qcow2")]
    found = links([DiskUser("vm", Sources(volumes=(("p", "a-0123abcd.qcow2"),)))], volumes)
    (row,) = image_values(found, volumes, {}, None)
    assert (row["role"], row["vms"]) == ("disk", ["vm"])


def test_a_recorded_disk_keeps_its_base_from_being_nobodys_even_before_it_is_made():
    made = MadeDisk("p", "a-0123abcd.qcow2", "/p/a-0123abcd.qcow2", 1, "/srv/base.qcow2", "qcow2")
    found = links([DiskUser("vm", Sources(), (made,))], [])
    assert outside(found, []) == ("/srv/base.qcow2",)
    (row,) = image_values(found, [], {"/srv/base.qcow2": None}, None)
    assert (row["role"], row["size_bytes"], row["format"]) == ("base", None, None)


def test_a_file_knows_its_base_better_than_the_record():
    made = MadeDisk("p", "d.qcow2", "/p/d.qcow2", 1, "/srv/old.qcow2", "qcow2")
    found = links([DiskUser("vm", Sources(), (made,))], [volume("d.qcow2", "/srv/new.qcow2")])
    assert found.bases == {"/p/d.qcow2": "/srv/new.qcow2"}


def test_the_chain_of_a_running_domain_counts():
    found = links([DiskUser("vm", Sources(("/x/top",), backing=(("/x/top", "/x/below"),)))], [])
    looked_at = {"/x/below": ImageRecord("/x/below", "unknown", 5)}
    (row,) = image_values(found, [], looked_at, None)
    assert row["children"] == [{"path": "/x/top", "vms": ["vm"]}]
    assert row["size_bytes"] is None


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("vdi-001-0123abcd.qcow2", "orphan"),
        ("vdi-001-0123abcd-2.qcow2", "orphan"),
        ("vdi-001-0123ABCD.qcow2", "other"),
        ("vdi-001-0123abcd.raw", "other"),
        ("0123abcd.qcow2", "other"),
        ("vdi-001-0123abc.qcow2", "other"),
    ],
)
def test_names_like_ours(name: str, role: str):
    (row,) = image_values(links([], [volume(name)]), [volume(name)], {}, None)
    assert row["role"] == role
