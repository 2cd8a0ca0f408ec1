# SPDX-License-Identifier: Apache-2.0
"""How a vGPU without a VM is named and passed to VMs, and where those of a host.yaml can be created; pure."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import A4C, A5C, T2Q, a100, assigned, snapshot, t4, taken
from vgpuctl.backends import backend_for
from vgpuctl.errors import InUse, NoCapacity, SpecDiffers
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.vm import HostVgpu
from vgpuctl.observe.ownership import host_vgpu_owner
from vgpuctl.operations.host_vgpus import gpu_problem, plan_host_vgpus
from vgpuctl.operations.plans.vgpus import (
    hostdev_element,
    placeholder_owner,
    refuse_different_request,
)
from vgpuctl.value import replace

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


def test_a_driver_that_hides_types_of_a_gpu_in_use_makes_no_difference():
    gpu = a100(types=())
    entry = HostVgpu("spare", "A100-4C", gpu.address, gpu.functions[0].address)
    for text in ("A100-4C", "4C", "T4-4Q|A100-4C"):
        refuse_different_request(snapshot(gpu), entry, request(text))
    with pytest.raises(SpecDiffers, match="it is A100-4C, not 5C"):
        refuse_different_request(snapshot(gpu), entry, request("5C"))


CARD = a100(vfs=4)
VFS = [f.address for f in CARD.functions]
NOW: frozenset[str] = frozenset()


def entry(number: int, profile: str = A4C.profile, carrier: str | None = None) -> HostVgpu:
    return HostVgpu(f"v{number}", profile, CARD.address, carrier or VFS[number])


def test_each_entry_is_planned_with_those_before_it_there():
    first, second = plan_host_vgpus(snapshot(CARD), (entry(0), entry(1, A5C.profile)), NOW)
    assert (first.error, first.line) == (None, f"create vGPU v0 (A100-4C on GPU {CARD.address})")
    assert isinstance(second.error, NoCapacity)
    assert "another size" in second.error.message
    assert all(one.error is None for one in plan_host_vgpus(snapshot(CARD), (entry(0), entry(1)), NOW))


def test_a_refusal_stops_no_other_entry():
    strange = replace(taken(CARD, A4C, 0), owner=Ownership.UNMANAGED, vm=None, vm_uuid=None, present=True)
    refused, fine = plan_host_vgpus(snapshot(CARD, vgpus=(strange,)), (entry(0), entry(1)), NOW)
    assert isinstance(refused.error, InUse)
    assert fine.error is None


@pytest.mark.parametrize("profile", [T2Q.profile, "T4-9Q"])
def test_a_gpu_lacks_nothing_for_an_mdev_that_its_driver_can_judge(profile):
    card = t4()
    (one,) = plan_host_vgpus(
        snapshot(card), (HostVgpu("v", profile, card.address, "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"),), NOW
    )
    assert gpu_problem(snapshot(card), one.record.vgpus[0]) is None
    assert (one.error is None) is (profile == T2Q.profile)
