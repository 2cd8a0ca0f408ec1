# SPDX-License-Identifier: Apache-2.0
"""Whole functions: refused while VFs are on, a screen or a VM is on them, or their group is not free."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, changed, snapshot, vm
from vgpuctl.backends import backend_for
from vgpuctl.errors import HostCannot, InUse, Refused
from vgpuctl.makers import disable_vfs_hint
from vgpuctl.model.gpu import Backend, GpuFunction, GpuMode, IommuGroupMember
from vgpuctl.value import replace

OWN = GpuFunction("0000:3b:00.0", "/sys/bus/pci/devices/0000:3b:00.0", iommu_group=5)
PLAIN = replace(
    a100(),
    backend=Backend.PASSTHROUGH,
    mode=GpuMode.UNMANAGED,
    functions=(OWN,),
    vfs_enabled=0,
    types=(),
    iommu_group=5,
)


def check(gpu, *, vms=(), force=False):
    backend_for(Backend.PASSTHROUGH).check(snapshot(gpu, vms=vms), gpu, gpu.functions[0], force_console=force)


def test_a_free_gpu_passes():
    check(PLAIN)
    check(replace(PLAIN, group_members=(IommuGroupMember("0000:3b:00.1", "snd_hda_intel", True),)))
    check(replace(PLAIN, group_members=(IommuGroupMember("0000:3c:00.0", "vfio-pci", False),)))


def test_a_function_without_iommu_group_is_refused():
    for backend in (Backend.PASSTHROUGH, Backend.SRIOV_VF):
        gpu = changed(PLAIN, 0, iommu_group=None)
        with pytest.raises(HostCannot) as raised:
            backend_for(backend).check(snapshot(gpu), gpu, gpu.functions[0], force_console=False)
        assert raised.value.facts["check"] == "iommu"


def test_vfs_must_be_off_and_the_hint_turns_them_off():
    with pytest.raises(HostCannot) as raised:
        check(replace(PLAIN, vfs_enabled=16))
    assert "16 VFs" in str(raised.value)
    assert raised.value.hint == disable_vfs_hint(PLAIN)


def test_a_console_gpu_needs_force():
    console = replace(PLAIN, console_reasons=("it is the boot display (boot_vga)",))
    with pytest.raises(Refused) as raised:
        check(console)
    assert "boot_vga" in str(raised.value)
    assert "--force-console" in str(raised.value.hint)
    check(console, force=True)


def test_a_group_member_that_a_driver_holds_is_named():
    with pytest.raises(InUse) as raised:
        check(replace(PLAIN, group_members=(IommuGroupMember("0000:3c:00.0", "ahci", False),)))
    assert "0000:3c:00.0" in str(raised.value)
    assert "ahci" in str(raised.value)
    assert "pci_0000_3c_00_0" in str(raised.value.hint)


def test_a_group_member_that_a_vm_has_is_named_with_the_vm():
    gpu = replace(PLAIN, group_members=(IommuGroupMember("0000:3c:00.0", "vfio-pci", False),))
    other = vm(4, assigned(gpu, A4C, carrier="0000:3c:00.0", backend=Backend.PASSTHROUGH))
    with pytest.raises(InUse) as raised:
        check(gpu, vms=[other])
    assert "vdi-004" in str(raised.value)


def test_nothing_is_made_and_the_hostdev_is_managed():
    own = assigned(PLAIN, A4C, carrier="0000:3b:00.0", profile=None)
    for backend in (Backend.PASSTHROUGH, Backend.SRIOV_VF):
        assert backend_for(backend).create_steps(own, None) == backend_for(backend).remove_steps(own) == ()
        assert backend_for(backend).hostdev(own).managed
