# SPDX-License-Identifier: Apache-2.0
"""Which VMs use a file and which files are clones of it, by any path."""

from __future__ import annotations

import shlex

import pytest

from tests.values import a100, snapshot, vm
from vgpuctl.errors import InUse
from vgpuctl.model.vm import DiskRef
from vgpuctl.operations.plans.chains import (
    BackingChains,
    build_chains,
    recorded_references,
    refuse_base_image,
    refuse_written_file,
)
from vgpuctl.value import replace


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


def test_a_file_is_known_by_every_path_to_it() -> None:
    one = chains({"/top": "/link"}, {"/link": "7:1", "/low": "7:1"}, a="/top")
    with pytest.raises(InUse, match="/low is the base image of vdi-001's disk /top"):
        refuse_base_image(one, "/low")
    refuse_base_image(one, "/top")


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
