# SPDX-License-Identifier: Apache-2.0
"""Disks that moved under a VM: a snapshot above one, a block copy in its place, a commit into its base."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
)
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import InUse, Refused
from vgpuctl.model.request import ExistingDisk
from vgpuctl.model.vm import RecordState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.power import delete_vm
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.operations.resize_disk import resize_disk
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
DIRECTORY = "/var/lib/libvirt/images"
MERGE = "while it runs, virsh blockcommit vm vda --active --pivot --wait merges it"


def with_moved(tmp_path: Path, how: str) -> tuple[SimulatedHost, str, str]:
    """Return a host with a VM, its own disk, and the file that it uses now."""
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm", image=IMAGE), start=False)
    domain = host.ports.hypervisor.find_domain("vm")
    own = next(d.path for d in observe(host.ports, ReadScope()).vms[0].record.disks)
    now = IMAGE if how == "commit" else f"{DIRECTORY}/vm.other"
    if how != "commit":
        base = (own, "qcow2") if how == "snapshot" else ()
        host.ports.storage.create_volume("default", "vm.other", 20 << 30, *base)
    host.ports.hypervisor.redefine(domain.uuid, domain.xml.replace(f"file='{own}'", f"file='{now}'"))
    return host, own, now


@pytest.mark.parametrize("how", ["snapshot", "copy", "commit"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_delete_names_the_disk_in_use_and_deletes_nothing(tmp_path, how, dry_run):
    host, own, now = with_moved(tmp_path, how)
    before = picture(host)
    with operation(host.ports), pytest.raises(InUse, match="which vgpuctl did not make") as raised:
        delete_vm(
            host.ports, context(dry_run=dry_run), "vm", keep_disks=False)  # fmt: skip
    assert raised.value.status == 3
    assert (raised.value.facts["disk"], raised.value.facts["current"]) == (own, now)
    assert str(raised.value.hint).endswith("or vgpuctl delete-vm vm --keep-disks keeps all of them")
    assert (MERGE in str(raised.value.hint)) == (how == "snapshot")
    assert picture(host) == before


@pytest.mark.parametrize("how", ["snapshot", "copy"])
def test_keep_disks_deletes_the_vm_and_names_both_files(tmp_path, how):
    host, own, now = with_moved(tmp_path, how)
    done = delete(host.ports, "vm", keep_disks=True)
    assert f"disk {own} is kept" in done.notes
    assert f"disk {now} is kept: vgpuctl did not make it" in done.notes
    assert {own, now} <= set(picture(host).files)


@pytest.mark.parametrize("how", ["snapshot", "copy"])
def test_resize_and_refresh_name_the_disk_in_use(tmp_path, how):
    host, _, now = with_moved(tmp_path, how)
    with pytest.raises(Refused, match=f"vm uses {now} now"):
        resize_disk(host.ports, context(wait_seconds=0), "vm", 60 << 10, None)
    with pytest.raises(Refused, match=f"it uses {now} now"):
        refresh_vm(host.ports, context(wait_seconds=0), "vm", IMAGE, drain=False)


def test_reconcile_leaves_a_half_removed_vm_with_such_a_disk(tmp_path):
    host, own, now = with_moved(tmp_path, "snapshot")
    vm = observe(host.ports, ReadScope()).vms[0]
    host.ports.hypervisor.set_record(vm.uuid, record_to_xml(replace(vm.record, state=RecordState.REMOVING)))
    done = run_reconcile(host.ports)
    assert now in done.data.findings[0].action
    assert own in picture(host).files


def test_a_disk_that_was_given_is_not_taken_for_a_moved_one(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="first", image=IMAGE), start=False)
    host.ports.storage.create_volume("default", "given.qcow2", 20 << 30)
    given = f"{DIRECTORY}/given.qcow2"
    create(host.ports, request("A100-4C", name="vm", image=IMAGE, disks=(ExistingDisk(given),)), start=False)
    vm = next(vm for vm in observe(host.ports, ReadScope()).vms if vm.name == "vm")
    target = re.escape(vm.record.disks[0].path)
    xml = re.sub(
        rf"<disk type='file'[^>]*>(?:(?!</disk>).)*{target}.*?</disk>", "", host.ports.hypervisor.definition(vm.uuid)
    )
    host.ports.hypervisor.redefine(vm.uuid, xml)
    delete(host.ports, "vm")
    assert vm.record.disks[0].path not in picture(host).files
    assert given in picture(host).files
