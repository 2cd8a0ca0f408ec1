# SPDX-License-Identifier: Apache-2.0
"""References to an image come from files, from the XML of VMs and from records; each fills gaps of the others."""

from __future__ import annotations

import pytest

from vgpuctl.domain.domain_xml import DiskSources
from vgpuctl.model.port_values import ImageInfo, VolumeInfo
from vgpuctl.model.results.vms import CloneResult
from vgpuctl.model.vm import ManagedDisk
from vgpuctl.operations.plans.images import (
    DiskUser,
    bases_outside_pools,
    collect_references,
    image_hint,
    image_results,
    path_results,
)


def volume(name: str, base: str | None = None) -> VolumeInfo:
    return VolumeInfo("p", name, f"/p/{name}", 1 << 30, "qcow2", base)


def test_a_disk_named_by_pool_and_volume_is_the_volumes_path():
    volumes = [volume("a-0123abcd.qcow2")]
    result = collect_references([DiskUser("vm", DiskSources(volumes=(("p", "a-0123abcd.qcow2"),)))], volumes)
    (row,) = image_results(result, volumes, {}, None)
    assert (row.role, row.vms) == ("disk", ("vm",))


def test_a_recorded_disk_references_its_base_before_it_exists():
    made = ManagedDisk("p", "a-0123abcd.qcow2", "/p/a-0123abcd.qcow2", 1, "/srv/base.qcow2", "qcow2")
    result = collect_references([DiskUser("vm", DiskSources(), (made,))], [])
    assert bases_outside_pools(result, []) == ("/srv/base.qcow2",)
    (row,) = image_results(result, [], {"/srv/base.qcow2": None}, None)
    assert (row.role, row.size_bytes, row.format) == ("base", None, None)


def test_a_file_knows_its_base_better_than_the_record():
    made = ManagedDisk("p", "d.qcow2", "/p/d.qcow2", 1, "/srv/old.qcow2", "qcow2")
    result = collect_references([DiskUser("vm", DiskSources(), (made,))], [volume("d.qcow2", "/srv/new.qcow2")])
    assert result.bases == {"/p/d.qcow2": "/srv/new.qcow2"}


def test_the_chain_of_a_running_domain_counts():
    result = collect_references([DiskUser("vm", DiskSources(("/x/top",), backing_pairs=(("/x/top", "/x/below"),)))], [])
    looked_at = {"/x/below": ImageInfo("/x/below", "unknown", 5)}
    (row,) = image_results(result, [], looked_at, None)
    assert row.children == (CloneResult("/x/top", ("vm",)),)
    assert row.size_bytes is None


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
def test_managed_names(name: str, role: str):
    (row,) = image_results(collect_references([], [volume(name)]), [volume(name)], {}, None)
    assert row.role == role


def test_the_hint_names_only_similar_images_and_else_five_of_the_directory():
    files = [f"/srv/windows-{number}.qcow2" for number in range(7)] + ["/srv/notes.txt"]
    assert image_hint("/srv/windows-9.qcow2", "/srv", ["/srv/windows-8.qcow2"], []) == (
        "did you mean /srv/windows-8.qcow2?"
    )
    listed = "disk images in /srv: windows-0.qcow2, windows-1.qcow2, windows-2.qcow2, windows-3.qcow2, windows-4.qcow2"
    assert image_hint("/srv/nosuch.qcow2", "/srv", files, ["/pool/debian.qcow2"]) == f"{listed} and 2 more"
    assert image_hint("/srv/debain.qcow2", "/srv", files, ["/pool/debian.qcow2"]) == "did you mean /pool/debian.qcow2?"
    assert image_hint("/s v/x.qcow2", "/s v", ["/s v/notes.txt"], []).startswith("ls -l '/s v' shows")


def test_a_clone_counts_for_every_path_of_its_base():
    result = collect_references([], [volume("d.qcow2", "/real/base.qcow2")])
    identities = {"/link/base.qcow2": "1", "/real/base.qcow2": "1"}
    image = ImageInfo("/link/base.qcow2", "qcow2", 5)
    (row,) = path_results(result, [], {"/link/base.qcow2": image}, lambda path: identities.get(path, path))
    assert (row.path, row.role, row.children) == ("/link/base.qcow2", "base", (CloneResult("/p/d.qcow2", ()),))
