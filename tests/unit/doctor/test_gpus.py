# SPDX-License-Identifier: Apache-2.0
"""The GPUs' drivers, VFs, types, and NVML; IOMMU groups and BARs."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import A4C, a100, changed, snapshot, t4, taken
from vgpuctl.doctor.check import FileContent, Verdict
from vgpuctl.doctor.gpus import shorten
from vgpuctl.model.gpu import Backend, GpuMode, IommuGroupMember
from vgpuctl.model.port_values import NvmlStatus


@pytest.mark.parametrize(
    ("driver", "verdict"),
    [("nvidia", Verdict.OK), ("vfio-pci", Verdict.OK), ("nouveau", Verdict.FAIL), (None, Verdict.WARN)],
)
def test_the_driver_of_a_gpu(driver, verdict):
    result = run_check("gpu-driver", snapshot(t4(), a100(driver=driver)))
    assert result.verdict is verdict
    assert f"driver {driver or 'none'}" in finding_text(result)
    if verdict is not Verdict.OK:
        assert t4().address not in finding_text(result), "only what is wrong is told"


def test_a_host_without_a_gpu_needs_no_driver():
    for name in ("gpu-driver", "vgpu-driver", "vfs", "functions", "vgpu-types", "nvml"):
        assert run_check(name, snapshot()).verdict is Verdict.NOT_APPLICABLE


def test_nvidias_driver_with_vgpus():
    assert run_check("vgpu-driver", snapshot(a100(), t4())).verdict is Verdict.OK
    off = a100(backend=None, vfs_enabled=0)
    assert run_check("vgpu-driver", snapshot(off)).verdict is Verdict.NOT_APPLICABLE, "not known while VFs are off"


@pytest.mark.parametrize("gpu", [t4(backend=Backend.PASSTHROUGH), a100(backend=Backend.SRIOV_VF)])
def test_nvidias_driver_without_vgpus_is_a_warning(gpu):
    result = run_check("vgpu-driver", snapshot(gpu))
    assert result.verdict is Verdict.WARN
    assert gpu.address in finding_text(result)


def test_vfs_are_on():
    assert run_check("vfs", snapshot(a100(), t4())).verdict is Verdict.OK


def test_vfs_that_are_off_fail_with_the_command_that_turns_them_on():
    off = a100(backend=None, vfs_enabled=0, functions=(), types=())
    result = run_check("vfs", snapshot(off))
    assert result.verdict is Verdict.FAIL
    assert result.fix.startswith("vgpuctl set-mode 0000:3b:00.0 vgpu; if this is intended: ")
    assert "offers nothing to VMs" in finding_text(result)
    other = run_check("vfs", snapshot(a100(backend=None, vfs_enabled=0, vendor_id="8086", driver="xe")))
    assert other.fix.startswith("vgpuctl set-mode 0000:3b:00.0 sriov; ")


@pytest.mark.parametrize("mode", [GpuMode.PASSTHROUGH, GpuMode.UNMANAGED])
def test_gpus_not_configured_for_vgpus_are_ok(mode):
    off = a100(backend=None, vfs_enabled=0, functions=(), types=(), desired_mode=mode)
    assert run_check("vfs", snapshot(off)).verdict is Verdict.OK
    assert f"host.yaml: mode {mode}" in finding_text(run_check("vfs", snapshot(off)))
    assert run_check("gpu-driver", snapshot(a100(driver=None, desired_mode=mode))).verdict is Verdict.OK
    assert (
        run_check("vgpu-driver", snapshot(t4(backend=Backend.PASSTHROUGH, desired_mode=mode))).verdict
        is Verdict.NOT_APPLICABLE
    )


def test_functions_without_a_problem():
    assert run_check("functions", snapshot(a100(), t4())).verdict is Verdict.OK


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
    assert result.verdict is Verdict.FAIL
    assert len(result.evidence) == 1


def test_types_are_offered():
    assert run_check("vgpu-types", snapshot(a100(), t4())).verdict is Verdict.OK


def test_a_gpu_without_types_fails_unless_it_is_only_full():
    empty = a100(types=())
    assert run_check("vgpu-types", snapshot(empty)).verdict is Verdict.FAIL
    full = snapshot(empty, vgpus=(taken(empty, A4C),))
    assert run_check("vgpu-types", full).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (NvmlStatus(available=True, driver_version="550.90.05"), Verdict.OK),
        (NvmlStatus(available=False, reason="absent"), Verdict.WARN),
        (NvmlStatus(available=False, reason="--root"), Verdict.UNKNOWN),
    ],
)
def test_nvml(status, verdict):
    result = run_check("nvml", snapshot(a100(), nvml=status))
    assert result.verdict is verdict
    assert (status.driver_version or status.reason or "").lstrip("-") in finding_text(
        result
    ) or verdict is Verdict.UNKNOWN


def test_many_lines_are_shortened():
    assert shorten([]) == ()
    assert shorten(["1", "2", "3", "4"]) == ("1", "2", "3", "4")
    assert shorten(["1", "2", "3", "4", "5"]) == ("1", "2", "3", "and 2 more")


RESOURCE = "/sys/bus/pci/devices/0000:3b:00.0/resource"
NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
SMALL = "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n"
LARGE = "0x0000380000000000 0x0000380fffffffff 0x000000000014220c\n"
UNSET = "0x0000000000000000 0x0000000fffffffff 0x000000002014220c\n"
EMPTY_ROM = "0x0000000000000000 0x000000000007ffff 0x0000000020046200\n"


def test_each_vf_has_its_group():
    assert run_check("iommu-groups", snapshot(a100(), t4())).verdict is Verdict.OK


def test_vfs_that_share_a_group_fail():
    together = changed(changed(a100(), 0, iommu_group=40), 1, iommu_group=40)
    result = run_check("iommu-groups", snapshot(together))
    assert result.verdict is Verdict.FAIL
    assert "group 40: 0000:3b:00.4, 0000:3b:00.5" in finding_text(result)


@pytest.mark.parametrize(
    ("member", "verdict"),
    [
        (IommuGroupMember("0000:3c:00.0", "e1000e", same_slot=False), Verdict.WARN),
        (IommuGroupMember("0000:3c:00.0", "vfio-pci", same_slot=False), Verdict.OK),
        (IommuGroupMember("0000:5e:00.1", "snd_hda_intel", same_slot=True), Verdict.OK),
    ],
)
def test_another_device_in_the_group_is_named(member, verdict):
    gpu = t4(backend=Backend.PASSTHROUGH, iommu_group=3, group_members=(member,))
    result = run_check("iommu-groups", snapshot(gpu))
    assert result.verdict is verdict
    assert (member.address in finding_text(result)) is (verdict is Verdict.WARN)


def test_without_an_iommu_there_is_no_group():
    bare = a100(vfs=0)
    assert run_check("iommu-groups", snapshot(bare)).verdict is Verdict.NOT_APPLICABLE


def test_bars_with_addresses_are_ok_and_a_rom_does_not_matter():
    text = SMALL + LARGE + NONE * 4 + EMPTY_ROM + LARGE
    assert run_check("bars", snapshot(a100()), files={RESOURCE: text}).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("text", "name"), [(SMALL + UNSET, "BAR 1"), (SMALL + LARGE + NONE * 4 + EMPTY_ROM + UNSET, "VF BAR 0")]
)
def test_a_bar_without_an_address_fails_with_its_size(text, name):
    result = run_check("bars", snapshot(a100()), files={RESOURCE: text})
    assert result.verdict is Verdict.FAIL
    assert f"{RESOURCE}: {name} of 0000:3b:00.0 has no address (size 64 GiB)" in result.evidence
    assert "Above 4G" in (result.fix or "")


def test_resources_that_are_not_there_are_unknown():
    assert run_check("bars", snapshot(a100())).verdict is Verdict.UNKNOWN
    closed = FileContent(problem=f"{RESOURCE}: Permission denied")
    assert run_check("bars", snapshot(a100()), files={RESOURCE: closed}).evidence == (closed.problem,)
    assert run_check("bars", snapshot()).verdict is Verdict.NOT_APPLICABLE
