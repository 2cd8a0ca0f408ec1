# SPDX-License-Identifier: Apache-2.0
"""Schedulers that differ from host.yaml, lost module options, and registry dwords of another driver."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot
from vgpuctl.doctor.check import FileContent, FolderListing, Verdict
from vgpuctl.model.gpu import Ownership, Vgpu
from vgpuctl.model.port_values import NvmlStatus
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.scheduler.driver_texts import MODULE_VERSION
from vgpuctl.scheduler.modprobe_files import DRIVER_PARAMS_PATH, PER_GPU_PARAMETER
from vgpuctl.value import replace

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
