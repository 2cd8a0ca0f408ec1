# SPDX-License-Identifier: Apache-2.0
"""How a vGPU without a VM is named, claimed and handed to VMs; pure."""

from __future__ import annotations

import pytest

from tests.values import A4C, T2Q, a100, promised, snapshot, t4
from tests.worlds import wish
from vgpuctl.capacity.ownership import named_owner
from vgpuctl.errors import InvalidInput, SpecDiffers
from vgpuctl.model.vm import NamedVgpu
from vgpuctl.plan.vgpus import holder_of, hostdev, refuse_different, refuse_unread, usage

UUID = "11111111-2222-4333-8444-555555555555"


def test_the_owner_is_a_function_of_machine_and_name_and_of_nothing_else():
    assert named_owner("m1", "spare") == named_owner("m1", "spare")
    assert len({named_owner(m, n) for m in ("m1", "m2", "") for n in ("spare", "other")}) == 6
    holder, promise = holder_of("m1", "spare", promised(a100(), A4C))
    assert holder.uuid == promise.vm_uuid == named_owner("m1", "spare")


def test_an_mdev_is_named_to_virt_install_as_libvirt_names_the_node_device():
    vgpu = promised(t4(), T2Q, carrier=UUID)
    assert usage(vgpu)[1] == "virt-install --hostdev mdev_11111111_2222_4333_8444_555555555555_0000_5e_00_0"
    assert f'uuid="{UUID}"' in hostdev(vgpu)
    assert "alias" not in hostdev(vgpu)


def test_a_vendors_vf_is_never_handed_to_virt_install_which_would_let_libvirt_manage_it():
    vgpu = promised(a100(), A4C)
    assert not any("--hostdev" in line for line in usage(vgpu))
    assert 'managed="no"' in hostdev(vgpu)


def test_without_host_yaml_nobody_decides_whose_a_vgpu_is():
    refuse_unread(snapshot(a100()))
    with pytest.raises(InvalidInput, match="line 2"):
        refuse_unread(snapshot(a100(), host_file_problem="line 2"))


def test_a_driver_that_hides_types_of_a_gpu_in_use_makes_no_difference():
    gpu = a100(types=())
    entry = NamedVgpu("spare", "A100-4C", gpu.address, gpu.functions[0].address)
    for text in ("A100-4C", "4C", "T4-4Q|A100-4C"):
        refuse_different(snapshot(gpu), entry, wish(text))
    with pytest.raises(SpecDiffers, match="it is A100-4C, not 5C"):
        refuse_different(snapshot(gpu), entry, wish("5C"))
