# SPDX-License-Identifier: Apache-2.0
"""The carriers of a new VM, for each mode, from a snapshot alone."""

from __future__ import annotations

import pytest

from tests.values import A4C, ME, T2Q, a100, promised, snapshot, t4, vm, vm_uuid
from tests.worlds import wish
from vgpuctl.capacity.ownership import carrier_uuid
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity, Stuck
from vgpuctl.model.gpu import Backend, Function, GroupMember, Mode
from vgpuctl.model.vm import StuckWrite
from vgpuctl.plan.choose import choose, type_id_now
from vgpuctl.value import replace

UUID = vm_uuid(77)
PLAIN = a100(backend=Backend.SRIOV_VF, mode=Mode.SRIOV, types=(), vfs=2)
OWN = Function("0000:3b:00.0", "/sys/x", iommu_group=5)
WHOLE = replace(PLAIN, backend=Backend.PASSTHROUGH, functions=(OWN,), vfs_enabled=0, vfs_total=0, iommu_group=5)


def test_a_vf_is_its_own_carrier_and_an_mdev_gets_a_provable_uuid():
    (on_vf,) = choose(snapshot(a100()), wish("A100-4C"), UUID)
    assert on_vf.carrier == on_vf.function == "0000:3b:00.4"
    pair = choose(snapshot(t4()), wish("T4-2Q", 2), UUID)
    assert [v.carrier for v in pair] == [carrier_uuid(UUID, 0), carrier_uuid(UUID, 1)]
    assert {v.function for v in pair} == {"0000:5e:00.0"}


def test_parameters_are_kept_in_order():
    (vgpu,) = choose(snapshot(t4()), wish("T4-2Q", vgpu_params=(("b", "1"), ("a", "2"))), UUID)
    assert vgpu.params == "b=1,a=2"


def test_vfs_that_are_off_are_named_with_the_command_that_turns_them_on():
    off = replace(a100(), backend=None, functions=(), types=(), vfs_enabled=0)
    for wanted in (wish("A100-4C"), wish(mode="sriov", gpu=off.address)):
        with pytest.raises(HostCannot) as raised:
            choose(snapshot(off), wanted, UUID)
        assert "0 of 16 enabled" in str(raised.value)
        assert raised.value.hint == "vgpuctl set-mode 0000:3b:00.0 vgpu"


def test_a_gpu_in_another_mode_says_so():
    with pytest.raises(HostCannot) as raised:
        choose(snapshot(WHOLE), wish("A100-4C"), UUID)
    assert raised.value.facts["check"] == "mode"


def test_plain_vfs_are_given_one_after_another_until_none_is_left():
    taken = []
    for number in range(2):
        (got,) = choose(snapshot(PLAIN, vms=taken), wish(mode="sriov", gpu=PLAIN.address), UUID)
        taken.append(vm(number, got))
    assert len({v.hostdevs[0].carrier for v in taken}) == 2
    with pytest.raises(NoCapacity) as raised:
        choose(snapshot(PLAIN, vms=taken), wish(mode="sriov", gpu=PLAIN.address), UUID)
    assert "2 of 2 in use by vdi-000, vdi-001" in str(raised.value)


def test_plain_vfs_are_not_taken_from_a_vgpu_driver():
    with pytest.raises(HostCannot) as raised:
        choose(snapshot(a100()), wish(mode="sriov", gpu="0000:3b:00.0"), UUID)
    assert "vendor-vf" in str(raised.value)


def test_a_whole_gpu_takes_every_endpoint_of_its_slot():
    gpu = replace(WHOLE, group_members=(GroupMember("0000:3b:00.1", "snd_hda_intel", True),))
    got = choose(snapshot(gpu), wish(mode="passthrough", gpu=gpu.address), UUID)
    assert [v.carrier for v in got] == ["0000:3b:00.0", "0000:3b:00.1"]
    assert {v.profile for v in got} == {None}


def test_a_gpu_with_anything_on_it_is_not_given_away_whole():
    used = vm(1, promised(WHOLE, A4C, carrier=WHOLE.address, backend=Backend.PASSTHROUGH, profile=None))
    with pytest.raises(InUse) as raised:
        choose(snapshot(WHOLE, vms=[used]), wish(mode="passthrough", gpu=WHOLE.address), UUID)
    assert "vdi-001" in str(raised.value)


def test_what_is_no_pci_device_is_not_given_away_whole():
    mtty = replace(t4("mtty"), vendor_id=None)
    with pytest.raises(InvalidInput):
        choose(snapshot(mtty), wish(mode="passthrough", gpu="mtty"), UUID)


def test_a_stuck_write_is_told_with_its_process():
    write = StuckWrite(ME, WHOLE.address, "/sys/y", "0")
    with pytest.raises(Stuck) as raised:
        choose(snapshot(WHOLE, stuck=(write,)), wish(mode="passthrough", gpu=WHOLE.address), UUID)
    assert raised.value.facts["pid"] == ME.pid


def test_the_type_id_is_looked_up_by_the_profile_at_each_creation():
    updated = t4(types=(replace(T2Q, type_id="nvidia-999"),), available={"nvidia-999": 8})
    assert type_id_now(snapshot(updated), promised(updated, T2Q)) == "nvidia-999"


def test_a_profile_that_a_driver_update_took_away_is_no_capacity():
    gone = t4(types=())
    with pytest.raises(NoCapacity) as raised:
        type_id_now(snapshot(gone), promised(gone, T2Q))
    assert "T4-2Q" in str(raised.value)
