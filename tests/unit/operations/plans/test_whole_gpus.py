# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs: which a VM gets or loses, all or none, what their links allow, and the PCI window for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import request
from tests.values import A4C, a100, assigned, snapshot, vm, vm_uuid
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.domain_edit import pci_window_of
from vgpuctl.errors import HostCannot, InUse, NoCapacity, NotFound, Refused
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, Backend, Gpu, GpuFunction, GpuMode, IommuGroupMember
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, ProcessId, StuckWrite, Vm, VmRecord
from vgpuctl.operations.plans.change import with_gpu_fields
from vgpuctl.operations.plans.choose_whole import choose_whole_gpus
from vgpuctl.operations.plans.pci_window import DEFAULT_WINDOW_MIB, bars_mib, gpu_bars_mib, window_mib
from vgpuctl.operations.plans.whole_gpus import (
    describe_record,
    select_whole_gpus,
    topology_notes,
    whole_functions,
    window_steps,
)
from vgpuctl.value import replace

FIRST, SECOND = "0000:1a:00.0", "0000:1b:00.0"
BARS = {FIRST: (128 << 10) + 16, SECOND: (128 << 10) + 16}
XML = """<domain type='kvm'><name>vdi-001</name><cpu mode='host-passthrough'/><devices>
<controller type='pci' index='0' model='pcie-root'>%s</controller></devices></domain>"""


def function(index: int, gpu: str, number: int = 0) -> AssignedVgpu:
    address = f"{gpu[:-1]}{number}"
    return AssignedVgpu(index, Backend.PASSTHROUGH, gpu, address, address, None)


def with_gpus(*vgpus: AssignedVgpu, **fields: object) -> tuple[Vm, VmRecord]:
    owner = vm(1, *vgpus)
    return owner, replace(owner.record, request_json=json.dumps({"mode": "passthrough", **fields}))


def test_all_functions_of_a_gpu_are_selected_by_its_address():
    owner, record = with_gpus(function(0, FIRST), function(1, FIRST, 1), function(2, SECOND))
    assert [v.index for v in select_whole_gpus(owner, record, ["1a:00.0"])] == [0, 1]
    with pytest.raises(NotFound) as raised:
        select_whole_gpus(owner, record, ["0000:99:00.0"])
    assert raised.value.hint == f"it has {FIRST}, {SECOND}; vgpuctl show-vm vdi-001"
    assert describe_record(owner, record) == "record that vdi-001 has 2 whole GPUs"
    assert len(whole_functions(record)) == 3


@pytest.mark.parametrize(
    ("current", "pci_window", "expected"),
    [
        ("", None, 512),
        ("<pcihole64 unit='KiB'>268435456</pcihole64>", None, 512),
        ("<pcihole64 unit='KiB'>1073741824</pcihole64>", None, None),  # a larger one stays
        ("", "none", None),
        ("", "1TiB", 1024),
    ],
)
def test_the_window_grows_to_what_the_gpus_need(current, pci_window, expected):
    owner, record = with_gpus(function(0, FIRST), function(1, SECOND), pci_window=pci_window)
    steps, notes = window_steps(snapshot(), owner, record, XML % current, BARS)
    assert notes == ()
    if expected is None:
        assert steps == ()
        return
    (step,) = steps
    assert pci_window_of(step.xml) == expected << 10  # type: ignore[attr-defined]
    assert '<maxphysaddr mode="passthrough"/>' in step.xml  # type: ignore[attr-defined]


def test_a_machine_without_pci_express_is_refused():
    owner, record = with_gpus(function(0, FIRST))
    with pytest.raises(Refused, match="only a q35 machine has room for big BARs"):
        window_steps(snapshot(), owner, record, "<domain><name>old</name><devices/></domain>", BARS)


@pytest.mark.parametrize(
    ("before", "names", "after"),
    [
        ({}, (SECOND,), {"gpus": 2}),  # any GPU: it stays so
        ({"gpu": FIRST}, (SECOND,), {"gpus": 2, "gpu": [FIRST, SECOND]}),
        ({"gpu": "H100"}, ("H100",), {"gpus": 2, "gpu": "H100"}),
        ({"gpu": ["0000:99:00.0", FIRST], "gpus": 3}, (), {"gpus": 2, "gpu": FIRST}),
    ],
)
def test_the_recorded_request_follows_the_gpus_that_it_has(before, names, after):
    _, record = with_gpus(function(0, FIRST), function(1, SECOND), **before)
    assert with_gpu_fields(record, names).request_fields == {"mode": "passthrough", **after}


def test_a_vm_with_vgpus_alone_keeps_its_request():
    owner = vm(1, assigned(a100(), A4C))
    assert with_gpu_fields(owner.record) is owner.record


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


def test_constraints_and_host_yaml_are_reasons_too():
    host = [replace(HOST[0], cordoned=True), *HOST[1:]]
    write = StuckWrite(ProcessId(7, 1), ADDRESSES[1], "path", "0")
    seen = snapshot(*host, stuck_writes=(write,))
    error = refused(seen, wanted(4, numa_node=0))
    assert "only 2 of 8" in str(error)
    assert (error.facts["requested"], error.facts["free"]) == (4, 2)
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


def test_among_more_addresses_the_near_ones_are_chosen_and_otherwise_all_wherever_they_are():
    assert got(snapshot(*HOST), wanted(2, ADDRESSES[5], ADDRESSES[0])) == [ADDRESSES[0], ADDRESSES[5]]
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


def test_a_named_gpu_that_is_gone_since_the_first_look_is_never_left_out_silently():
    seen = replace(snapshot(*HOST[:1]), partial=True)
    assert "2 whole GPUs requested, but only 1 of 1" in str(refused(seen, wanted(2, *ADDRESSES[:2])))


SWITCHES = ("0000:03:00.0", "0000:04:00.0", "0000:05:00.0", "0000:06:00.0")


def gpus(count: int, vendor: str = NVIDIA_VENDOR_ID) -> list[Gpu]:
    """Return GPUs of which the first four are on node 0."""
    return [
        Gpu(
            f"0000:{n:02x}:00.0",
            "",
            "H100",
            "vfio-pci",
            Backend.PASSTHROUGH,
            GpuMode.PASSTHROUGH,
            vendor_id=vendor,
            numa_node=n // 4,
            pci_path=("pci0000:00", "0000:00:01.0"),
        )
        for n in range(count)
    ]


def notes(some: list[Gpu], nvswitches: tuple[str, ...] = ()) -> str:
    vgpus = [AssignedVgpu(n, Backend.PASSTHROUGH, g.address, g.address, g.address, None) for n, g in enumerate(some)]
    return "\n".join(topology_notes(replace(snapshot(*some), nvswitches=nvswitches), vgpus))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_an_nvswitch_board_needs_a_partition_or_the_whole_board(count):
    text = notes(gpus(count), SWITCHES)
    assert "4 NVSwitches" in text
    assert "fabric manager has activated" in text
    assert "Module ID" in text
    assert "whether NVLink" not in text


def test_a_single_gpu_of_such_a_board_needs_no_others():
    assert "one of its GPUs works alone" in notes(gpus(1), SWITCHES)


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_no_partition_has_such_a_number(count):
    assert f"NVLink will not work among these {count}" in notes(gpus(count), SWITCHES)


def test_nvlink_is_not_known_without_nvidias_driver_and_said_only_where_it_matters():
    assert "whether NVLink connects these GPUs is not known" in notes(gpus(2))
    known = [replace(g, nvlink_peers=()) for g in gpus(2)]
    assert notes(known) == notes(gpus(1)) == notes(gpus(2, vendor="1002")) == ""


def test_gpus_of_two_sockets_and_of_an_unknown_place_are_named():
    assert "NUMA nodes 0, 1" in notes(gpus(8))
    first, second = gpus(2)
    assert f"where {second.address} is" in notes([first, replace(second, numa_node=None)])
    assert f"where {first.address} is" in notes([replace(first, pci_path=()), second])


def test_other_vms_have_no_notes():
    (gpu,) = gpus(1)
    vf = AssignedVgpu(0, Backend.SRIOV_VF, gpu.address, "x", "x", None)
    assert topology_notes(replace(snapshot(gpu), nvswitches=SWITCHES), (vf,)) == ()


GIB = 1 << 30
NONE = f"0x{0:016x} 0x{0:016x} 0x{0:016x}"


def bar(start: int, size: int, flags: int = 0x14220C) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"


@pytest.mark.parametrize(
    ("lines", "mib"),
    [
        ([], 0),
        ([NONE] * 13, 0),
        ([bar(0x38 << 40, 16 << 20), NONE, bar(0x40 << 40, 128 * GIB)], 16 + 128 * 1024),
        ([bar(0x38 << 40, 4096)], 1),
        ([bar(0xE000, 128, 0x40101)], 0),  # I/O ports
        ([NONE] * 6 + [bar(0xFB000000, 512 << 10), bar(0x50 << 40, 64 * GIB)], 0),  # the ROM, and the VFs' BARs
        (["what is this?"], 0),
    ],
)
def test_the_memory_bars_of_the_function_itself_are_counted(lines, mib):
    assert bars_mib("\n".join([*lines, ""])) == mib


@given(st.integers(0, 1 << 20))
def test_a_window_is_larger_than_the_bars_and_no_more_than_twice(needed):
    result = window_mib("auto", [needed])
    if needed < DEFAULT_WINDOW_MIB:
        assert result is None
    else:
        assert needed < result <= 2 * needed
        assert result & (result - 1) == 0


@pytest.mark.parametrize(("count", "gib"), [(1, 256), (2, 512), (3, 1024), (4, 1024), (8, 2048)])
def test_several_gpus_need_the_next_power_of_two_for_each(count, gib):
    """Three H100: 128 GiB begin at 0, 256 and 512 GiB, because each port's window has the small BARs too."""
    assert window_mib("auto", [(128 << 10) + 16] * count) == gib << 10


def test_the_bars_of_a_gpus_functions_are_one_sum_and_an_unread_gpu_counts_as_the_largest():
    functions = [("a", "a"), ("a", "a.1"), ("b", "b"), ("b", "b.1")]
    vgpus = [AssignedVgpu(n, Backend.PASSTHROUGH, gpu, f, f, None) for n, (gpu, f) in enumerate(functions)]
    assert gpu_bars_mib({"a": 64, "a.1": 1}, vgpus) == (65, 64)
