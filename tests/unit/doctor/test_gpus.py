# SPDX-License-Identifier: Apache-2.0
"""The GPUs' drivers, VFs, types, and NVML; IOMMU groups and BARs."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import (
    FAIL,
    NOT_APPLICABLE,
    OK,
    UNKNOWN,
    WARN,
    assert_verdict,
    case,
    finding_text,
    run_check,
)
from tests.values import A4C, a100, changed, snapshot, t4, taken
from vgpuctl.doctor.check import FileContent
from vgpuctl.doctor.gpus import shorten
from vgpuctl.model.gpu import Backend, GpuMode, IommuGroupMember
from vgpuctl.model.port_values import NvmlStatus
from vgpuctl.value import replace

RESOURCE = "/sys/bus/pci/devices/0000:3b:00.0/resource"
NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
SMALL = "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n"
LARGE = "0x0000380000000000 0x0000380fffffffff 0x000000000014220c\n"
UNSET = "0x0000000000000000 0x0000000fffffffff 0x000000002014220c\n"
EMPTY_ROM = "0x0000000000000000 0x000000000007ffff 0x0000000020046200\n"
VFS_OFF = a100(backend=None, vfs_enabled=0, functions=(), types=())
NO_TYPES = a100(types=())
TOGETHER = changed(changed(a100(), 0, iommu_group=40), 1, iommu_group=40)
CLOSED = FileContent(problem=f"{RESOURCE}: Permission denied")


def nvml(verdict, word, **status):
    return case("nvml", verdict, word, snapshot=snapshot(a100(), nvml=NvmlStatus(**status)))


def group(verdict, address, driver, *words, same_slot=False):
    member = IommuGroupMember(address, driver, same_slot=same_slot)
    gpu = t4(backend=Backend.PASSTHROUGH, iommu_group=3, group_members=(member,))
    return case("iommu-groups", verdict, *words, snapshot=snapshot(gpu))


CASES = {
    "vGPUs of NVIDIA's driver": case("vgpu-driver", OK, snapshot=snapshot(a100(), t4())),
    "vGPUs are not known while VFs are off": case("vgpu-driver", NOT_APPLICABLE, snapshot=snapshot(VFS_OFF)),
    "a T4 whose driver makes no vGPUs": case(
        "vgpu-driver", WARN, t4().address, snapshot=snapshot(t4(backend=Backend.PASSTHROUGH))
    ),
    "VFs without vGPUs": case("vgpu-driver", WARN, "0000:3b:00.0", snapshot=snapshot(a100(backend=Backend.SRIOV_VF))),
    "VFs are on": case("vfs", OK, snapshot=snapshot(a100(), t4())),
    "VFs that are off, with the command that turns them on": case(
        "vfs", FAIL, "vgpuctl set-mode 0000:3b:00.0 vgpu; if this is intended: ", "offers nothing to VMs",
        snapshot=snapshot(VFS_OFF),
    ),
    "plain VFs that are off": case(
        "vfs", FAIL, "vgpuctl set-mode 0000:3b:00.0 sriov; ",
        snapshot=snapshot(a100(backend=None, vfs_enabled=0, vendor_id="8086", driver="xe")),
    ),
    "functions without a problem": case("functions", OK, snapshot=snapshot(a100(), t4())),
    "types are offered": case("vgpu-types", OK, snapshot=snapshot(a100(), t4())),
    "a GPU without types": case("vgpu-types", FAIL, snapshot=snapshot(NO_TYPES)),
    "a GPU that is only full": case("vgpu-types", OK, snapshot=snapshot(NO_TYPES, vgpus=(taken(NO_TYPES, A4C),))),
    "NVML answers": nvml(OK, "550.90.05", available=True, driver_version="550.90.05"),
    "NVML is absent": nvml(WARN, "absent", available=False, reason="absent"),
    "NVML is not asked": nvml(UNKNOWN, "", available=False, reason="--root"),
    "each VF has its group": case("iommu-groups", OK, snapshot=snapshot(a100(), t4())),
    "VFs that share a group": case(
        "iommu-groups", FAIL, "group 40: 0000:3b:00.4, 0000:3b:00.5", snapshot=snapshot(TOGETHER)
    ),
    "another device in the group": group(WARN, "0000:3c:00.0", "e1000e", "0000:3c:00.0"),
    "another device that vfio-pci has": group(OK, "0000:3c:00.0", "vfio-pci"),
    "the audio function of the same slot": group(OK, "0000:5e:00.1", "snd_hda_intel", same_slot=True),
    "no group without an IOMMU": case("iommu-groups", NOT_APPLICABLE, snapshot=snapshot(a100(vfs=0))),
    "BARs with addresses, and a ROM without one": case(
        "bars", OK, snapshot=snapshot(a100()), files={RESOURCE: SMALL + LARGE + NONE * 4 + EMPTY_ROM + LARGE}
    ),
    "a BAR without an address": case(
        "bars", FAIL, f"{RESOURCE}: BAR 1 of 0000:3b:00.0 has no address (size 64 GiB)", "Above 4G",
        snapshot=snapshot(a100()), files={RESOURCE: SMALL + UNSET},
    ),
    "a VF's BAR without an address": case(
        "bars", FAIL, f"{RESOURCE}: VF BAR 0 of 0000:3b:00.0 has no address (size 64 GiB)", "Above 4G",
        snapshot=snapshot(a100()), files={RESOURCE: SMALL + LARGE + NONE * 4 + EMPTY_ROM + UNSET},
    ),
    "resources that are not there": case("bars", UNKNOWN, snapshot=snapshot(a100())),
    "resources that cannot be read": case(
        "bars", UNKNOWN, str(CLOSED.problem), snapshot=snapshot(a100()), files={RESOURCE: CLOSED}
    ),
}  # fmt: skip


@pytest.mark.parametrize("one", CASES.values(), ids=CASES)
def test_the_verdict_on(one):
    assert_verdict(one)


@pytest.mark.parametrize("name", ["gpu-driver", "vgpu-driver", "vfs", "functions", "vgpu-types", "nvml", "bars"])
def test_a_host_without_a_gpu_has_nothing_to_check(name):
    assert run_check(name, snapshot()).verdict is NOT_APPLICABLE


@pytest.mark.parametrize(("driver", "verdict"), [("nvidia", OK), ("vfio-pci", OK), ("nouveau", FAIL), (None, WARN)])
def test_the_driver_of_a_gpu(driver, verdict):
    result = run_check("gpu-driver", snapshot(t4(), a100(driver=driver)))
    assert result.verdict is verdict
    assert f"driver {driver or 'none'}" in finding_text(result)
    if verdict is not OK:
        assert t4().address not in finding_text(result), "only what is wrong is told"


@pytest.mark.parametrize("mode", [GpuMode.PASSTHROUGH, GpuMode.UNMANAGED])
def test_gpus_not_configured_for_vgpus_are_ok(mode):
    off = replace(VFS_OFF, desired_mode=mode)
    assert run_check("vfs", snapshot(off)).verdict is OK
    assert f"host.yaml: mode {mode}" in finding_text(run_check("vfs", snapshot(off)))
    assert run_check("gpu-driver", snapshot(a100(driver=None, desired_mode=mode))).verdict is OK
    assert (
        run_check("vgpu-driver", snapshot(t4(backend=Backend.PASSTHROUGH, desired_mode=mode))).verdict is NOT_APPLICABLE
    )


@pytest.mark.parametrize(
    "gpu",
    [
        changed(a100(), 3, problem="its vGPU types cannot be read: Input/output error"),
        changed(a100(), 3, has_vfio_dev=False),
        a100(problems=("virtfn3 is ignored: Input/output error",)),
    ],
)
def test_a_function_that_is_not_served_fails(gpu):
    result = run_check("functions", snapshot(t4(), gpu))
    assert result.verdict is FAIL
    assert len(result.evidence) == 1


def test_many_lines_are_shortened():
    assert shorten([]) == ()
    assert shorten(["1", "2", "3", "4"]) == ("1", "2", "3", "4")
    assert shorten(["1", "2", "3", "4", "5"]) == ("1", "2", "3", "and 2 more")
