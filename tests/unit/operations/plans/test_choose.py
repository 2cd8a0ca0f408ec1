# SPDX-License-Identifier: Apache-2.0
"""The carriers of a new VM for each mode, only from a snapshot."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import A4C, ME, T2Q, a100, assigned, snapshot, t4, vm, vm_uuid
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity, Stuck
from vgpuctl.model.gpu import Backend, GpuFunction, GpuMode, IommuGroupMember
from vgpuctl.model.vm import StuckWrite
from vgpuctl.operations.plans.choose import choose_vgpus, make_steps
from vgpuctl.value import replace

UUID = vm_uuid(77)
PLAIN = a100(backend=Backend.SRIOV_VF, mode=GpuMode.SRIOV, types=(), vfs=2)
OWN = GpuFunction("0000:3b:00.0", "/sys/x", iommu_group=5)
WHOLE = replace(PLAIN, backend=Backend.PASSTHROUGH, functions=(OWN,), vfs_enabled=0, vfs_total=0, iommu_group=5)


def test_a_vf_is_its_own_carrier_and_an_mdev_gets_a_provable_uuid():
    (on_vf,) = choose_vgpus(snapshot(a100()), request("A100-4C"), UUID)
    assert on_vf.carrier == on_vf.function == "0000:3b:00.4"
    pair = choose_vgpus(snapshot(t4()), request("T4-2Q", 2), UUID)
    assert [v.carrier for v in pair] == [carrier_uuid(UUID, 0), carrier_uuid(UUID, 1)]
    assert {v.function for v in pair} == {"0000:5e:00.0"}


def test_parameter_order_is_kept():
    (vgpu,) = choose_vgpus(snapshot(t4()), request("T4-2Q", vgpu_params=(("b", "1"), ("a", "2"))), UUID)
    assert vgpu.params == "b=1,a=2"


def test_vfs_that_are_off_are_named_with_the_command_that_turns_them_on():
    off = replace(a100(), backend=None, functions=(), types=(), vfs_enabled=0)
    for wanted in (request("A100-4C"), request(mode="sriov", gpu=off.address)):
        with pytest.raises(HostCannot) as raised:
            choose_vgpus(snapshot(off), wanted, UUID)
        assert "0 of 16 enabled" in str(raised.value)
        assert raised.value.hint == "vgpuctl set-mode 0000:3b:00.0 vgpu"


def test_a_gpu_in_another_mode_says_so():
    with pytest.raises(HostCannot) as raised:
        choose_vgpus(snapshot(WHOLE), request("A100-4C"), UUID)
    assert raised.value.facts["check"] == "mode"


def test_plain_vfs_are_given_one_after_another_until_none_is_left():
    taken = []
    for number in range(2):
        (got,) = choose_vgpus(snapshot(PLAIN, vms=taken), request(mode="sriov", gpu=PLAIN.address), UUID)
        taken.append(vm(number, got))
    assert len({v.hostdevs[0].carrier for v in taken}) == 2
    with pytest.raises(NoCapacity) as raised:
        choose_vgpus(snapshot(PLAIN, vms=taken), request(mode="sriov", gpu=PLAIN.address), UUID)
    assert "2 of 2 in use by vdi-000, vdi-001" in str(raised.value)


def test_plain_vfs_are_not_taken_from_a_vgpu_driver():
    with pytest.raises(HostCannot) as raised:
        choose_vgpus(snapshot(a100()), request(mode="sriov", gpu="0000:3b:00.0"), UUID)
    assert "vendor-vf" in str(raised.value)


def test_a_whole_gpu_takes_every_endpoint_of_its_slot():
    gpu = replace(WHOLE, group_members=(IommuGroupMember("0000:3b:00.1", "snd_hda_intel", True),))
    got = choose_vgpus(snapshot(gpu), request(mode="passthrough", gpu=gpu.address), UUID)
    assert [v.carrier for v in got] == ["0000:3b:00.0", "0000:3b:00.1"]
    assert {v.profile for v in got} == {None}


def test_a_gpu_with_anything_on_it_is_not_given_away_whole():
    used = vm(1, assigned(WHOLE, A4C, carrier=WHOLE.address, backend=Backend.PASSTHROUGH, profile=None))
    with pytest.raises(InUse) as raised:
        choose_vgpus(snapshot(WHOLE, vms=[used]), request(mode="passthrough", gpu=WHOLE.address), UUID)
    assert "vdi-001" in str(raised.value)


def test_what_is_no_pci_device_is_not_given_away_whole():
    mtty = replace(t4("mtty"), vendor_id=None)
    with pytest.raises(InvalidInput):
        choose_vgpus(snapshot(mtty), request(mode="passthrough", gpu="mtty"), UUID)


def test_a_stuck_write_names_its_process():
    write = StuckWrite(ME, WHOLE.address, "/sys/y", "0")
    with pytest.raises(Stuck) as raised:
        choose_vgpus(snapshot(WHOLE, stuck_writes=(write,)), request(mode="passthrough", gpu=WHOLE.address), UUID)
    assert raised.value.facts["pid"] == ME.pid


def test_the_type_id_is_looked_up_by_the_profile_at_each_creation():
    updated = t4(types=(replace(T2Q, type_id="nvidia-999"),), available={"nvidia-999": 8})
    (step,) = make_steps(snapshot(updated), assigned(updated, T2Q))
    assert step.type_id == "nvidia-999"


def test_a_profile_that_a_driver_update_took_away_is_no_capacity():
    gone = t4(types=())
    with pytest.raises(NoCapacity) as raised:
        make_steps(snapshot(gone), assigned(gone, T2Q))
    assert "T4-2Q" in str(raised.value)
