# SPDX-License-Identifier: Apache-2.0
"""MIG, mixed sizes and schedulers that wait for a reset or differ from host.yaml; options of another driver."""

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
from tests.values import A4C, a100, snapshot, t4
from vgpuctl.doctor.check import FileContent, FolderListing
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
NO_INSTANCES = a100(mig=replace(ON, instances=()))
NO_TYPE = a100(mig=replace(ON, instances=(*ON.instances, GpuInstance(9, 20, PlacementSpan(3, 1)))))
DRIFT = "0000:3b:00.0: mixed_size is False, not True"
ASKING = a100(mixed_size=True, desired_mixed_size=True)
NVML_580 = NvmlStatus(available=True, driver_version="580.105.06")
DARK = a100(desired_mig=MigSpec(("1g.5gb",)))
FIXED = SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)
RUNS = GpuScheduler(state=SchedulerState(SchedulerPolicy.FIXED_SHARE, False, 2_000_000))
BEST = GpuScheduler(state=SchedulerState(SchedulerPolicy.BEST_EFFORT))
NVML = NvmlStatus(available=True, driver_version="550.90.05")
FILE = "/etc/modprobe.d/nvidia.conf"
INTEL = snapshot(a100(vendor_id="8086", driver="xe"))
LOADED = 'RegistryDwordsPerDevice: "pci=0000:3b:00.0;RmPVMRL=0x1"\n'


def host(driver="550.90.05", **more):
    return snapshot(a100(**more), nvml=NvmlStatus(available=True, driver_version=driver))


def option(word, name=PER_GPU_PARAMETER):
    value = f"pci=0000:3b:00.0;RmPVMRL={word}" if name == PER_GPU_PARAMETER else f"RmPVMRL={word}"
    return f'options nvidia {name}="{value}"\n'


def mig(check, verdict, *words, gpu, **seen):
    return case(check, verdict, *words, snapshot=snapshot(gpu), **seen)


def partition(verdict, *words, gpu=ASKING, partition_drift=None, **seen):
    seen = {"nvml": NVML_580, **seen}
    return case("partition", verdict, *words, snapshot=snapshot(gpu, **seen), partition_drift=partition_drift or {})


def lines(verdict, *words, check="registry-lines", seen=None, **files):
    return case(check, verdict, *words, snapshot=seen or host(), **files)


CASES = {
    "MIG is on": mig("mig-mode", OK, gpu=a100(mig=ON)),
    "MIG is off": mig("mig-mode", OK, gpu=a100(mig=OFF)),
    "a GPU without MIG": mig("mig-mode", NOT_APPLICABLE, gpu=t4()),
    "MIG waits for a reset": mig(
        "mig-mode", WARN, "0000:3b:00.0 (NVIDIA A100-PCIE-40GB): MIG is off, and on after its next reset",
        "run set-mig again", gpu=a100(mig=PENDING), files={KERNEL_RELEASE: "6.8.0-45-generic\n"},
    ),
    "where a reset hangs the host only a reboot is proposed": mig(
        "mig-mode", WARN, "7.0.0-14-generic", "\nreboot the host; never nvidia-smi --gpu-reset here",
        gpu=a100(mig=PENDING), files={KERNEL_RELEASE: "7.0.0-14-generic\n"},
    ),
    "instances for vGPUs": mig("mig-instances", OK, gpu=a100(mig=ON), instance_types={a100().address: TYPES}),
    "no type tells its instance": mig("mig-instances", OK, gpu=a100(mig=ON)),
    "MIG without an instance": mig(
        "mig-instances", FAIL, "MIG is on, but it has no GPU instance", "vgpuctl set-mig", gpu=NO_INSTANCES
    ),
    "an instance without a vGPU type": mig(
        "mig-instances", WARN, "0000:3b:00.0: GPU instance 9 (1g.5gb+me) has no vGPU type", gpu=NO_TYPE,
        instance_types={a100().address: TYPES},
    ),
    "no MIG, no instances": mig("mig-instances", NOT_APPLICABLE, gpu=a100(mig=OFF)),
    "instances of an unmanaged GPU": mig(
        "mig-instances", NOT_APPLICABLE, gpu=replace(NO_INSTANCES, desired_mode=GpuMode.UNMANAGED)
    ),
    "a partition as configured": partition(OK),
    "a partition that is not configured": partition(NOT_APPLICABLE, gpu=a100(mig=ON)),
    "a partition of a GPU for passthrough": partition(
        NOT_APPLICABLE, gpu=a100(desired_mode=GpuMode.PASSTHROUGH, desired_mixed_size=True)
    ),
    "a partition not as configured": partition(
        WARN, DRIFT, "vgpuctl restore-host", partition_drift={ASKING.address: (DRIFT,)}
    ),
    "a partition that NVML does not report": partition(
        UNKNOWN, gpu=DARK, nvml=NvmlStatus(available=False, reason="absent")
    ),
    "a partition without host.yaml": partition(UNKNOWN, gpu=DARK, host_file_problem="line 3: nonsense"),
    "a scheduler as configured": case(
        "scheduler", OK, "fixed_share, time slice 2 ms is configured, fixed_share runs",
        snapshot=host(desired_scheduler=FIXED, scheduler=RUNS),
    ),
    "another scheduler": case(
        "scheduler", WARN, "best_effort runs, the driver was loaded with RmPVMRL=0x00000001",
        snapshot=host(desired_scheduler=FIXED, scheduler=BEST), files={DRIVER_PARAMS_PATH: LOADED},
    ),
    "no scheduler is configured": case("scheduler", NOT_APPLICABLE, snapshot=host(scheduler=BEST)),
    "lines on a host without NVIDIA's GPUs": lines(NOT_APPLICABLE, seen=INTEL),
    "words on a host without NVIDIA's GPUs": lines(NOT_APPLICABLE, check="registry-word", seen=INTEL),
    "a single line for each parameter": lines(
        OK, files={FILE: option("0x1") + option("0x1", "NVreg_RegistryDwords")}
    ),
    "a file in /etc hides a package's of the same name": lines(
        OK, files={FILE: option("0x1"), "/usr/lib/modprobe.d/nvidia.conf": option("0x11") * 2}
    ),
    "a file that cannot be read": lines(UNKNOWN, files={FILE: FileContent(problem=f"{FILE}: Permission denied")}),
    "files that cannot be listed": lines(
        UNKNOWN, check="registry-word",
        folders={"/etc/modprobe.d": FolderListing(problem="/etc/modprobe.d: Permission denied")},
    ),
    "no word": lines(OK, check="registry-word"),
}  # fmt: skip


@pytest.mark.parametrize("one", CASES.values(), ids=CASES)
def test_the_verdict_on(one):
    assert_verdict(one)


def test_a_gpu_of_which_no_reset_hangs_the_host_may_be_reset():
    release = {KERNEL_RELEASE: "7.0.0-14-generic\n"}
    assert "reboot the host; never" not in str(run_check("mig-mode", snapshot(t4(mig=PENDING)), release).fix)


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
    [("0x00020013", OK), ("0x00030013", WARN), ("0x21", WARN), (None, UNKNOWN)],
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
        (FIXED, "EQUAL_SHARE", WARN),
        (FIXED, "FIXED_SHARE", UNKNOWN),
        (SchedulerSpec(SchedulerPolicy.FIXED_SHARE), "FIXED_SHARE", OK),
        (SchedulerSpec(SchedulerPolicy.FIXED_SHARE), "OTHER", UNKNOWN),
    ],
)
def test_without_nvml_the_kernel_log_gives_the_policy_only(asked, policy, verdict):
    log = (f"NVRM: GPU at 0000:3b:00.0 has software scheduler ENABLED with policy {policy}.",)
    result = run_check("scheduler", host(driver=None, desired_scheduler=asked), kernel_log=log)
    assert result.verdict is verdict
    assert (f"{policy.lower()} runs, according to the kernel log" in finding_text(result)) is (policy != "OTHER")
    seen = run_check("scheduler", host(desired_scheduler=asked, scheduler=BEST), kernel_log=log)
    assert "best_effort runs" in finding_text(seen), "what NVML tells is newer"


@pytest.mark.parametrize("second", [FILE, "/usr/lib/modprobe.d/zz.conf"])
def test_a_second_line_of_a_parameter_is_named_with_the_lost_one(second):
    files = {FILE: option("0x1")}
    files[second] = files.get(second, "") + option("0x11")
    result = run_check("registry-lines", host(), files=files)
    assert result.verdict is FAIL
    assert f"{FILE}:1 sets {PER_GPU_PARAMETER}, but has no effect" in finding_text(result)


@pytest.mark.parametrize(
    ("driver", "word", "verdict"),
    [
        ("550.90.05", "0x00030013", OK),
        ("550.90.05", "0x00030011", WARN),
        ("595.45.04", "0x00030013", WARN),
        ("470.63", "0x00030011", OK),
        ("470.63", "0x00030013", WARN),
        ("550.90.05", "0x71", WARN),
        (None, "0x11", UNKNOWN),
    ],
)
def test_another_generations_dword_warns(driver, word, verdict):
    assert run_check("registry-word", host(driver), files={FILE: option(word)}).verdict is verdict
    params = f'RegistryDwords: "RmPVMRL={word}"\n'
    assert run_check("registry-word", host(driver), files={DRIVER_PARAMS_PATH: params}).verdict is verdict
