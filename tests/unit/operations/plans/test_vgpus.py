# SPDX-License-Identifier: Apache-2.0
"""How a vGPU without a VM is named, claimed and passed to VMs; pure."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import A4C, T2Q, a100, assigned, snapshot, t4
from vgpuctl.backends import backend_for
from vgpuctl.errors import InvalidInput, SpecDiffers
from vgpuctl.model.vm import HostVgpu
from vgpuctl.observe.ownership import host_vgpu_owner
from vgpuctl.operations.plans.vgpus import (
    hostdev_element,
    placeholder_owner,
    refuse_different_request,
    refuse_unreadable_entries,
)

UUID = "11111111-2222-4333-8444-555555555555"


def test_the_owner_is_a_function_of_machine_and_name_and_of_nothing_else():
    assert host_vgpu_owner("m1", "spare") == host_vgpu_owner("m1", "spare")
    assert len({host_vgpu_owner(m, n) for m in ("m1", "m2", "") for n in ("spare", "other")}) == 6
    holder, record = placeholder_owner("m1", "spare", assigned(a100(), A4C))
    assert holder.uuid == record.vm_uuid == host_vgpu_owner("m1", "spare")


def test_an_mdev_is_named_to_virt_install_as_libvirt_names_the_node_device():
    vgpu = assigned(t4(), T2Q, carrier=UUID)
    assert (
        backend_for(vgpu.backend).usage_commands(vgpu)[1]
        == "virt-install --hostdev mdev_11111111_2222_4333_8444_555555555555_0000_5e_00_0"
    )
    assert f'uuid="{UUID}"' in hostdev_element(vgpu)
    assert "alias" not in hostdev_element(vgpu)


def test_a_vendors_vf_is_never_handed_to_virt_install_which_would_let_libvirt_manage_it():
    vgpu = assigned(a100(), A4C)
    assert not any("--hostdev" in line for line in backend_for(vgpu.backend).usage_commands(vgpu))
    assert 'managed="no"' in hostdev_element(vgpu)


def test_without_host_yaml_nobody_decides_whose_a_vgpu_is():
    refuse_unreadable_entries(snapshot(a100()))
    with pytest.raises(InvalidInput, match="line 2"):
        refuse_unreadable_entries(snapshot(a100(), host_file_problem="line 2"))


def test_a_driver_that_hides_types_of_a_gpu_in_use_makes_no_difference():
    gpu = a100(types=())
    entry = HostVgpu("spare", "A100-4C", gpu.address, gpu.functions[0].address)
    for text in ("A100-4C", "4C", "T4-4Q|A100-4C"):
        refuse_different_request(snapshot(gpu), entry, request(text))
    with pytest.raises(SpecDiffers, match="it is A100-4C, not 5C"):
        refuse_different_request(snapshot(gpu), entry, request("5C"))
