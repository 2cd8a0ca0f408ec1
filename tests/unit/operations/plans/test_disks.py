# SPDX-License-Identifier: Apache-2.0
"""Which files are images, disks and clones; what a refreshed disk and a larger one leave in the record."""

from __future__ import annotations

import shlex

import pytest

from tests.values import A4C, a100, assigned, snapshot, vm
from vgpuctl.domain.domain_xml import DiskSources
from vgpuctl.errors import InUse, InvalidInput, Refused
from vgpuctl.model.port_values import DomainLeftovers, ImageInfo, PoolInfo, VolumeInfo
from vgpuctl.model.results.vms import CloneResult
from vgpuctl.model.vm import DiskRef, DiskRole, ManagedDisk, VmState
from vgpuctl.operations.plans.chains import (
    BackingChains,
    build_chains,
    recorded_references,
    refuse_written_file,
)
from vgpuctl.operations.plans.images import (
    DiskUser,
    bases_outside_pools,
    collect_references,
    image_hint,
    image_results,
    path_results,
)
from vgpuctl.operations.refresh import refuse_unbootable
from vgpuctl.operations.resize_disk import resize_plan, select_disk
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.system_disk import disk_switch_plan, new_disk, record_after_switch, refuse_saved_states
from vgpuctl.value import replace


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


def chains(bases: dict[str, str], identities: dict[str, str] | None = None, **disks: str) -> BackingChains:
    """VMs vdi-001 … with a disk each, in the order of `disks`; `bases`: the backing file of each file."""
    kinds = [(path.removesuffix(" cdrom"), "cdrom" if path.endswith(" cdrom") else "disk") for path in disks.values()]
    vms = [replace(vm(n), disks=(DiskRef(k, "vda", path, "qcow2"),)) for n, (path, k) in enumerate(kinds, 1)]
    observed = snapshot(a100(), vms=vms)
    return build_chains(observed, replace(recorded_references(observed, ()), bases=bases), identities or {})


def test_clones_of_a_file_are_sorted_nearest_first() -> None:
    result = chains({"/top": "/mid", "/mid": "/low", "/side": "/low"}, a="/top").clones("/low")
    assert [(path, sorted(vms)) for path, vms in result] == [("/mid", []), ("/side", []), ("/top", ["vdi-001"])]


def test_a_chain_that_leads_back_ends() -> None:
    assert [path for path, _ in chains({"/a": "/b", "/b": "/a"}).clones("/a")] == ["/b"]


def test_a_cdrom_of_a_vm_is_not_written_to() -> None:
    refuse_written_file(chains({}, a="/iso cdrom"), "/iso", ())
    with pytest.raises(InUse, match="is a disk of VM vdi-002"):
        refuse_written_file(chains({}, a="/iso cdrom", b="/iso"), "/iso", ())


def test_the_hints_can_be_pasted_whatever_the_name() -> None:
    name = '/srv/it\'s $HOME; "x".qcow2'
    with pytest.raises(InUse) as caught:
        refuse_written_file(chains({}, a=name), name, ())
    command = shlex.split(str(caught.value.hint).partition(": ")[2])
    assert command[:6] == ["qemu-img", "convert", "-f", "qcow2", "-O", "qcow2"]
    assert command[-2:] == [name, name.replace(".qcow2", "-copy.qcow2")]


VM = vm(1, assigned(a100(), A4C, 0), state=VmState.STOPPED)
STEM = f"{VM.name}-{VM.uuid[:8]}"
OLD = ManagedDisk("default", f"{STEM}.qcow2", f"/pool/{STEM}.qcow2", 20, "/old.qcow2", "qcow2")
DATA = ManagedDisk("default", f"{STEM}-1.qcow2", f"/pool/{STEM}-1.qcow2", 30)
SEED = ManagedDisk("default", f"{STEM}-seed.iso", f"/pool/{STEM}-seed.iso", 0, role=DiskRole.SEED)
RECORD = replace(VM.record, disks=(OLD, DATA, SEED))
WHOLE = replace(VM, record=RECORD, disks=tuple(DiskRef("disk", "", d.path, "qcow2") for d in RECORD.disks))
IMAGE = ImageInfo("/new.qcow2", "raw", 25, "both")
NEW = new_disk(OLD, IMAGE, "new.qcow2")
SPARE = replace(OLD, role=DiskRole.SPARE)


def roles(record):
    return [(d.path, str(d.role)) for d in record.disks]


def test_the_record_names_both_disks_while_there_are_two():
    steps = disk_switch_plan(WHOLE, RECORD, OLD, NEW, IMAGE, None, (SPARE,)).steps
    assert [type(s).__name__ for s in steps] == ["WriteRecord", "CreateSpareDisk", "SwitchDisk"]
    kept = [(DATA.path, "disk"), (SEED.path, "seed")]
    assert roles(steps[0].record) == [(OLD.path, "disk"), *kept, (NEW.path, "spare")]
    switched = record_after_switch(RECORD, OLD, NEW, (SPARE,))
    assert (steps[2].old_record, steps[2].new_record) == (steps[0].written, switched)
    assert roles(steps[2].new_record) == [(NEW.path, "disk"), *kept, (OLD.path, "spare")]


@pytest.mark.parametrize(
    "kept", [{"managed_save": True}, {"snapshots": ("before-update",)}, {"checkpoints": ("monday",)}]
)
def test_states_of_the_old_disk_are_named(kept):
    refuse_saved_states(WHOLE, DomainLeftovers(nvram="/vars.fd", tpm=True))
    with pytest.raises(InUse, match=r"before-update|monday|managed save"):
        refuse_saved_states(WHOLE, DomainLeftovers(nvram="/vars.fd", **kept))


@pytest.mark.parametrize(("needs", "has", "fits"), [("uefi", "bios", False), ("bios", "uefi", False),
                                                    ("uefi", "uefi", True), ("both", "bios", True),
                                                    ("unknown", "uefi", True)])  # fmt: skip
def test_an_image_must_boot_with_the_vms_firmware(needs, has, fits):
    image, seen = replace(IMAGE, firmware=needs), replace(WHOLE, firmware=has)
    if fits:
        refuse_unbootable(seen, image)
        return
    with pytest.raises(InvalidInput, match=f"only with {needs.upper()}, and vdi-001 has {has.upper()}"):
        refuse_unbootable(seen, image)


@pytest.mark.parametrize(("kind", "rounded"), [("logical", True), ("dir", False)])
def test_lvm_alone_may_have_rounded_the_size_up(kind: str, rounded: bool) -> None:
    gib = 1 << 30
    pool = PoolInfo("p", kind, active=True, path="/p", capacity_bytes=100 * gib, available_bytes=50 * gib)
    disk = ManagedDisk("p", "a", "/p/a", 10 * gib, format="raw" if rounded else "qcow2")
    machine = replace(VM, disks=(DiskRef("disk", "vda", disk.path, disk.format),))
    record = replace(RECORD, disks=(disk,))
    if rounded:
        (step,) = resize_plan(machine, record, disk, 10 * gib + gib // 2, pool, 11 * gib, live=False).steps
        assert isinstance(step, WriteRecord)
        return
    for volume in (8, 11):
        with pytest.raises(Refused, match=f"has {volume} GiB"):
            resize_plan(machine, record, disk, 10 * gib + gib // 2, pool, volume * gib, live=False)


def test_a_seed_is_no_disk_to_make_larger() -> None:
    with pytest.raises(Refused, match="no disk that vgpuctl made"):
        select_disk(WHOLE, replace(RECORD, disks=(SEED,)), None)
