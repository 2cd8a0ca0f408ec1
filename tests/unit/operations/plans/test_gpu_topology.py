# SPDX-License-Identifier: Apache-2.0
"""What the notes say about the links among whole GPUs, and that they never guess."""

from __future__ import annotations

import pytest

from tests.values import snapshot
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, Backend, Gpu, GpuMode
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.operations.plans.whole_gpus import topology_notes
from vgpuctl.value import replace

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
