# SPDX-License-Identifier: Apache-2.0
"""Which whole GPUs a VM gets: all that it asks for or none, of one model, and never silently another number."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hosts import request
from tests.values import snapshot, vm, vm_uuid
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse, NoCapacity
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, Backend, Gpu, GpuFunction, GpuMode, IommuGroupMember
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, ProcessId, StuckWrite
from vgpuctl.operations.plans.choose_whole import choose_whole_gpus
from vgpuctl.value import replace

UUID = vm_uuid(77)


def whole(number: int, model: str = "NVIDIA H100", **changes: Any) -> Gpu:
    """Return a GPU that can be passed through; two are behind each switch and four on each node."""
    address = f"0000:{number + 16:02x}:00.0"
    values: dict[str, Any] = {
        "driver": "vfio-pci",
        "backend": Backend.PASSTHROUGH,
        "mode": GpuMode.PASSTHROUGH,
        "vendor_id": NVIDIA_VENDOR_ID,
        "numa_node": number // 4,
        "iommu_group": number,
        "functions": (GpuFunction(address, "", iommu_group=number),),
        "pci_path": (f"pci{number // 2}", f"root{number // 2}", f"up{number // 2}", f"down{number}"),
    }
    return Gpu(address, "", model, **{**values, **changes})


HOST = [whole(n) for n in range(8)]
ADDRESSES = [g.address for g in HOST]


def using(number: int, gpu: Gpu) -> Any:
    """Return a VM that has a whole GPU."""
    return vm(number, AssignedVgpu(0, Backend.PASSTHROUGH, gpu.address, gpu.address, gpu.address, None))


def wanted(count: int, *names: str, **changes: Any) -> VmRequest:
    return request(mode="passthrough", gpus=count, gpu=names, **changes)


def got(seen: Snapshot, asked: VmRequest) -> list[str]:
    vgpus = choose_whole_gpus(seen, asked, "vm", UUID)
    assert [v.index for v in vgpus] == list(range(len(vgpus)))
    return [v.function for v in vgpus]


def refused(seen: Snapshot, asked: VmRequest, kind: type[Exception] = NoCapacity) -> Any:
    with pytest.raises(kind) as raised:
        choose_whole_gpus(seen, asked, "vm", UUID)
    return raised.value


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_an_empty_host_gives_its_first_group(count):
    assert got(snapshot(*HOST), wanted(count)) == ADDRESSES[:count]
    assert got(snapshot(*HOST), wanted(count, "H100")) == ADDRESSES[:count]


def test_what_is_in_use_is_not_chosen_and_pairs_stay_together():
    seen = snapshot(*HOST, vms=[using(0, HOST[1])])
    assert got(seen, wanted(2)) == ADDRESSES[2:4]
    assert got(seen, wanted(1)) == ADDRESSES[:1]
    assert got(seen, wanted(4)) == ADDRESSES[4:]


def test_too_few_are_named_with_both_numbers_and_each_reason():
    seen = snapshot(*HOST, vms=[using(0, HOST[1])])
    error = refused(seen, wanted(8))
    assert str(error) == "8 whole GPUs requested, but only 7 of 8 can be given now"
    assert (error.facts["requested"], error.facts["free"]) == (8, 7)
    assert error.facts["details"] == [f"{ADDRESSES[1]}: in use by vdi-000"]
    assert "9 whole GPUs requested, but only 8 of 8" in str(refused(snapshot(*HOST), wanted(9)))


def test_constraints_and_host_yaml_are_reasons_too():
    host = [replace(HOST[0], cordoned=True), *HOST[1:]]
    write = StuckWrite(ProcessId(7, 1), ADDRESSES[1], "path", "0")
    seen = snapshot(*host, stuck_writes=(write,))
    error = refused(seen, wanted(4, numa_node=0))
    assert "only 2 of 8" in str(error)
    texts = error.facts["details"]
    assert any(t.startswith(f"{ADDRESSES[0]}: it is cordoned") for t in texts)
    assert f"{ADDRESSES[1]}: a kernel write on it is blocked" in texts
    assert f"{ADDRESSES[7]}: --numa-node 0: its NUMA node is 1" in texts


def test_one_model_unless_the_request_names_several():
    mixed = [whole(0, "NVIDIA L40S"), whole(1), whole(2)]
    seen = snapshot(*mixed)
    assert got(seen, wanted(2)) == [g.address for g in mixed[1:]]
    assert "(1 NVIDIA L40S, 2 NVIDIA H100; GPUs of different models only" in str(refused(seen, wanted(3)))
    assert got(seen, wanted(3, "L40S", "H100")) == [g.address for g in mixed]


def test_named_addresses_are_all_given_wherever_they_are():
    assert got(snapshot(*HOST), wanted(2, ADDRESSES[5], ADDRESSES[0])) == [ADDRESSES[0], ADDRESSES[5]]


def test_among_more_addresses_the_near_ones_are_chosen():
    assert got(snapshot(*HOST), wanted(2, ADDRESSES[0], ADDRESSES[4], ADDRESSES[5])) == ADDRESSES[4:6]


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"vfs_enabled": 3}, HostCannot, "3 VFs enabled"),
        ({"cordoned": True}, NoCapacity, "cordoned"),
        ({"numa_node": 1}, NoCapacity, "2 whole GPUs requested, but only 1 of 2"),
    ],
)
def test_a_named_gpu_that_cannot_be_given_says_why(changes, kind, text):
    host = [HOST[0], replace(HOST[1], **changes)]
    node = 0 if "numa_node" in changes else None
    assert text in str(refused(snapshot(*host), wanted(2, *ADDRESSES[:2], numa_node=node), kind))
    used = snapshot(*HOST, vms=[using(0, HOST[1])])
    assert "in use by vdi-000" in str(refused(used, wanted(2, *ADDRESSES[:2]), InUse))


def test_gpus_of_one_iommu_group_go_to_a_vm_together_or_not_at_all():
    def shared(number: int, other: int) -> Gpu:
        member = IommuGroupMember(ADDRESSES[other], "nvidia", same_slot=False)
        return replace(HOST[number], iommu_group=5, driver="nvidia", group_members=(member,))

    seen = snapshot(shared(0, 1), shared(1, 0))
    assert got(seen, wanted(2)) == got(seen, wanted(2, *ADDRESSES[:2])) == ADDRESSES[:2]
    assert "shares IOMMU group 5" in str(refused(seen, wanted(1), InUse))


def test_the_audio_function_of_each_gpu_goes_with_it():
    def with_audio(number: int) -> Gpu:
        audio = IommuGroupMember(ADDRESSES[number].replace(".0", ".1"), "vfio-pci", same_slot=True)
        return replace(HOST[number], group_members=(audio,))

    functions = got(snapshot(with_audio(0), with_audio(1)), wanted(2))
    assert functions == [f"{address[:-1]}{n}" for address in ADDRESSES[:2] for n in (0, 1)]


def test_a_named_gpu_that_is_gone_since_the_first_look_is_never_left_out_silently():
    seen = replace(snapshot(*HOST[:1]), partial=True)
    assert "2 whole GPUs requested, but only 1 of 1" in str(refused(seen, wanted(2, *ADDRESSES[:2])))
