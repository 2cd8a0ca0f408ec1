# SPDX-License-Identifier: Apache-2.0
"""MIG, mixed sizes and schedulers that wait for a reset or differ from host.yaml; options of another driver."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import A4C, a100, snapshot, t4
from vgpuctl.doctor.check import FileContent, FolderListing, Verdict
from vgpuctl.doctor.virtualization import KERNEL_RELEASE
from vgpuctl.model.gpu import GiProfile, GpuInstance, GpuMode, MigSpec, MigState, Ownership, PlacementSpan, Vgpu
from vgpuctl.model.port_values import NvmlStatus
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.scheduler.modprobe_files import DRIVER_PARAMS_PATH, PER_GPU_PARAMETER
from vgpuctl.scheduler.registry_dword import MODULE_VERSION
from vgpuctl.value import replace

ONE = GiProfile(19, "1g.5gb", 1, 4864, 7, tuple(PlacementSpan(n, 1) for n in range(7)))
MEDIA = GiProfile(20, "1g.5gb+me", 1, 4864, 1, (PlacementSpan(0, 1),))
ON = MigState(
    enabled=True, pending_enabled=True, profiles=(ONE, MEDIA), instances=(GpuInstance(7, 19, PlacementSpan(0, 1)),)
)
OFF = MigState(enabled=False, pending_enabled=False)
PENDING = MigState(enabled=False, pending_enabled=True)
TYPES = (replace(A4C, profile="A100-1-5C", gi_profile_id=19), replace(A4C, type_id="474"))


@pytest.mark.parametrize("mig", [ON, OFF])
def test_mig_without_pending_mode_is_ok(mig):
    result = run_check("mig-mode", snapshot(a100(mig=mig)))
    assert result.verdict is Verdict.OK
    assert run_check("mig-mode", snapshot(t4())).verdict is Verdict.NOT_APPLICABLE


def test_a_pending_mig_mode_is_a_warning():
    result = run_check("mig-mode", snapshot(a100(mig=PENDING)), {KERNEL_RELEASE: "6.8.0-45-generic\n"})
    assert result.verdict is Verdict.WARN
    assert "0000:3b:00.0 (NVIDIA A100-PCIE-40GB): MIG is off, and on after its next reset" in result.evidence
    assert "run set-mig again" in result.fix


def test_where_a_reset_hangs_the_host_only_a_reboot_is_proposed():
    result = run_check("mig-mode", snapshot(a100(mig=PENDING)), {KERNEL_RELEASE: "7.0.0-14-generic\n"})
    assert result.verdict is Verdict.WARN
    assert result.fix == "reboot the host; never nvidia-smi --gpu-reset here"
    assert "7.0.0-14-generic" in finding_text(result)
    mdev = run_check("mig-mode", snapshot(t4(mig=PENDING)), {KERNEL_RELEASE: "7.0.0-14-generic\n"})
    assert mdev.fix != result.fix


def test_instances_for_vgpus_are_ok():
    gpu = a100(mig=ON)
    assert run_check("mig-instances", snapshot(gpu), instance_types={gpu.address: TYPES}).verdict is Verdict.OK
    assert run_check("mig-instances", snapshot(gpu)).verdict is Verdict.OK, "where no type tells its instance"


def test_mig_without_an_instance_fails():
    result = run_check("mig-instances", snapshot(a100(mig=replace(ON, instances=()))))
    assert result.verdict is Verdict.FAIL
    assert "MIG is on, but it has no GPU instance" in finding_text(result)
    assert "vgpuctl set-mig" in result.fix


def test_an_instance_without_a_vgpu_type_is_named():
    gpu = a100(mig=replace(ON, instances=(*ON.instances, GpuInstance(9, 20, PlacementSpan(3, 1)))))
    result = run_check("mig-instances", snapshot(gpu), instance_types={gpu.address: TYPES})
    assert result.verdict is Verdict.WARN
    assert result.evidence == ("0000:3b:00.0: GPU instance 9 (1g.5gb+me) has no vGPU type",)


def test_a_gpu_without_mig_or_not_for_vgpus_has_no_instances_to_check():
    assert run_check("mig-instances", snapshot(a100(mig=OFF))).verdict is Verdict.NOT_APPLICABLE
    kept = a100(mig=replace(ON, instances=()), desired_mode=GpuMode.UNMANAGED)
    assert run_check("mig-instances", snapshot(kept)).verdict is Verdict.NOT_APPLICABLE


ASKING = a100(mixed_size=True, desired_mixed_size=True)
NVML_580 = NvmlStatus(available=True, driver_version="580.105.06")


def test_a_partition_as_configured_is_ok():
    assert run_check("partition", snapshot(ASKING, nvml=NVML_580)).verdict is Verdict.OK
    assert run_check("partition", snapshot(a100(mig=ON))).verdict is Verdict.NOT_APPLICABLE
    passed = a100(desired_mode=GpuMode.PASSTHROUGH, desired_mixed_size=True)
    assert run_check("partition", snapshot(passed)).verdict is Verdict.NOT_APPLICABLE


def test_a_partition_not_as_configured_is_a_warning():
    line = "0000:3b:00.0: mixed_size is False, not True"
    result = run_check("partition", snapshot(ASKING, nvml=NVML_580), partition_drift={ASKING.address: (line,)})
    assert (result.verdict, result.evidence[0]) == (Verdict.WARN, line)
    assert "vgpuctl restore-host" in result.fix


def test_a_partition_nvml_does_not_report_is_unknown():
    dark = a100(desired_mig=MigSpec(("1g.5gb",)))
    result = run_check("partition", snapshot(dark, nvml=NvmlStatus(available=False, reason="absent")))
    assert result.verdict is Verdict.UNKNOWN
    assert run_check("partition", snapshot(dark, host_file_problem="line 3: nonsense")).verdict is Verdict.UNKNOWN


FIXED = SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)
RUNS = GpuScheduler(state=SchedulerState(SchedulerPolicy.FIXED_SHARE, False, 2_000_000))
BEST = GpuScheduler(state=SchedulerState(SchedulerPolicy.BEST_EFFORT))
NVML = NvmlStatus(available=True, driver_version="550.90.05")
FILE = "/etc/modprobe.d/nvidia.conf"


def host(driver="550.90.05", **more):
    return snapshot(a100(**more), nvml=NvmlStatus(available=True, driver_version=driver))


def option(word, name=PER_GPU_PARAMETER):
    value = f"pci=0000:3b:00.0;RmPVMRL={word}" if name == PER_GPU_PARAMETER else f"RmPVMRL={word}"
    return f'options nvidia {name}="{value}"\n'


def test_a_scheduler_as_configured_is_ok():
    result = run_check("scheduler", host(desired_scheduler=FIXED, scheduler=RUNS))
    assert result.verdict is Verdict.OK
    assert "fixed_share, time slice 2 ms is configured, fixed_share runs" in finding_text(result)


def test_another_scheduler_warns():
    params = 'RegistryDwordsPerDevice: "pci=0000:3b:00.0;RmPVMRL=0x1"\n'
    result = run_check("scheduler", host(desired_scheduler=FIXED, scheduler=BEST), files={DRIVER_PARAMS_PATH: params})
    assert result.verdict is Verdict.WARN
    assert "best_effort runs, the driver was loaded with RmPVMRL=0x00000001" in finding_text(result)


def test_only_a_gpu_that_has_vgpus_needs_a_drain():
    settable = replace(BEST, setter_versions=("v1",))
    gpu = a100(desired_scheduler=FIXED, scheduler=settable)
    assert run_check("scheduler", snapshot(gpu, nvml=NVML)).fix == "vgpuctl restore-host"
    vgpu = Vgpu("0000:3b:00.4", gpu.address, "0000:3b:00.4", Ownership.MANAGED, present=True)
    drained = run_check("scheduler", snapshot(gpu, nvml=NVML, vgpus=(vgpu,))).fix
    assert drained == "vgpuctl set-scheduler 0000:3b:00.0 --policy fixed_share --time-slice 2 --drain"
    missing = replace(vgpu, present=False)
    assert run_check("scheduler", snapshot(gpu, nvml=NVML, vgpus=(missing,))).fix == "vgpuctl restore-host"


@pytest.mark.parametrize(
    ("word", "verdict"),
    [("0x00020013", Verdict.OK), ("0x00030013", Verdict.WARN), ("0x21", Verdict.WARN), (None, Verdict.UNKNOWN)],
)
def test_without_nvml_the_module_parameters_count(word, verdict):
    params = "" if word is None else f'RegistryDwords: "RmPVMRL={word}"\n'
    result = run_check(
        "scheduler",
        host(driver=None, desired_scheduler=FIXED),
        files={DRIVER_PARAMS_PATH: params, MODULE_VERSION: "550.90.05\n"},
    )
    assert result.verdict is verdict


@pytest.mark.parametrize(
    ("asked", "policy", "verdict"),
    [
        (FIXED, "EQUAL_SHARE", Verdict.WARN),
        (FIXED, "FIXED_SHARE", Verdict.UNKNOWN),
        (SchedulerSpec(SchedulerPolicy.FIXED_SHARE), "FIXED_SHARE", Verdict.OK),
        (SchedulerSpec(SchedulerPolicy.FIXED_SHARE), "OTHER", Verdict.UNKNOWN),
    ],
)
def test_without_nvml_the_kernel_log_gives_the_policy_only(asked, policy, verdict):
    log = (f"NVRM: GPU at 0000:3b:00.0 has software scheduler ENABLED with policy {policy}.",)
    result = run_check("scheduler", host(driver=None, desired_scheduler=asked), kernel_log=log)
    assert result.verdict is verdict
    assert (f"{policy.lower()} runs, according to the kernel log" in finding_text(result)) is (policy != "OTHER")
    seen = run_check("scheduler", host(desired_scheduler=asked, scheduler=BEST), kernel_log=log)
    assert "best_effort runs" in finding_text(seen), "what NVML tells is newer"


def test_no_configuration_or_gpu_is_not_applicable():
    assert run_check("scheduler", host(scheduler=BEST)).verdict is Verdict.NOT_APPLICABLE
    for name in ("registry-lines", "registry-word"):
        assert run_check(name, host_of_intel()).verdict is Verdict.NOT_APPLICABLE


def host_of_intel():
    return snapshot(a100(vendor_id="8086", driver="xe"))


def test_a_single_line_per_parameter_is_ok():
    files = {FILE: option("0x1") + option("0x1", "NVreg_RegistryDwords")}
    assert run_check("registry-lines", host(), files=files).verdict is Verdict.OK


@pytest.mark.parametrize("second", [FILE, "/usr/lib/modprobe.d/zz.conf"])
def test_a_second_line_of_a_parameter_is_named_with_the_lost_one(second):
    files = {FILE: option("0x1")}
    files[second] = files.get(second, "") + option("0x11")
    result = run_check("registry-lines", host(), files=files)
    assert result.verdict is Verdict.FAIL
    assert f"{FILE}:1 sets {PER_GPU_PARAMETER}, but has no effect" in finding_text(result)


def test_a_file_of_the_same_name_in_etc_hides_a_packages():
    files = {FILE: option("0x1"), "/usr/lib/modprobe.d/nvidia.conf": option("0x11") * 2}
    assert run_check("registry-lines", host(), files=files).verdict is Verdict.OK


def test_files_that_cannot_be_read_are_unknown():
    closed = FileContent(problem=f"{FILE}: Permission denied")
    assert run_check("registry-lines", host(), files={FILE: closed}).verdict is Verdict.UNKNOWN
    folder = {"/etc/modprobe.d": FolderListing(problem="/etc/modprobe.d: Permission denied")}
    assert run_check("registry-word", host(), folders=folder).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("driver", "word", "verdict"),
    [
        ("550.90.05", "0x00030013", Verdict.OK),
        ("550.90.05", "0x00030011", Verdict.WARN),
        ("595.45.04", "0x00030013", Verdict.WARN),
        ("470.63", "0x00030011", Verdict.OK),
        ("470.63", "0x00030013", Verdict.WARN),
        ("550.90.05", "0x71", Verdict.WARN),
        (None, "0x11", Verdict.UNKNOWN),
    ],
)
def test_another_generations_dword_warns(driver, word, verdict):
    assert run_check("registry-word", host(driver), files={FILE: option(word)}).verdict is verdict
    params = f'RegistryDwords: "RmPVMRL={word}"\n'
    assert run_check("registry-word", host(driver), files={DRIVER_PARAMS_PATH: params}).verdict is verdict


def test_no_dword_is_ok():
    assert run_check("registry-word", host()).verdict is Verdict.OK
