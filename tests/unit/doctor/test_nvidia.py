# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's services, the driver's versions, who has it open, its firmware and error correction."""

from __future__ import annotations

import pytest

from tests.unit.doctor.looks import judge, said
from tests.values import a100, snapshot, t4
from vgpuctl.doctor.check import Folder, Text, Verdict
from vgpuctl.doctor.nvidia import SLICES
from vgpuctl.model.gpu import Backend, Mode
from vgpuctl.model.partition import Mig, MigSpec
from vgpuctl.model.records import Ecc, Holder, NvmlStatus
from vgpuctl.scheduler.driver import MODULE_VERSION, PROC_VERSION
from vgpuctl.scheduler.modprobe import PARAMS

GPU = a100()
AMD = a100(vendor_id="1002", driver="gim", backend=Backend.SRIOV_VF)
UNIT = {"/usr/lib/systemd/system": ["nvidia-vgpu-mgr.service"]}
RUNS = {f"{SLICES[0]}/nvidia-vgpu-mgr.service/cgroup.procs": "1207\n"}
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.05  Mon May 27 17:12:33 UTC 2024\nGCC version:\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.05  Release Build  (builder@)\n"
STARTED = ("Started NVIDIA vGPU Daemon.",)
ENDED = (*STARTED, "nvidia-vgpud.service: Deactivated successfully.")
FAILED = (
    *STARTED,
    "error: vmiop_env_log: Failed to initialize RM client: 0x26",
    "nvidia-vgpud.service: Main process exited, code=exited, status=1/FAILURE",
    "nvidia-vgpud.service: Failed with result 'exit-code'.",
)


@pytest.mark.parametrize(
    "name", ["vgpu-services", "driver-version", "driver-holders", "gpu-firmware", "ecc", "driver-messages", "mig-mode"]
)
def test_a_host_without_nvidias_gpus_has_nothing_to_check(name):
    assert judge(name, snapshot(AMD)).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("at", SLICES)
def test_the_service_that_starts_vgpus_runs_and_the_other_has_ended(at):
    files = {f"{at}/nvidia-vgpu-mgr.service/cgroup.procs": "1207\n"}
    found = judge("vgpu-services", snapshot(GPU), files, services={"nvidia-vgpud": ENDED})
    assert found.verdict is Verdict.OK
    assert found.evidence == ("nvidia-vgpu-mgr runs (pid 1207)", ENDED[-1])


def test_a_service_that_does_not_run_fails_with_how_to_start_it():
    found = judge("vgpu-services", snapshot(GPU), folders={SLICES[0]: ["sshd.service"], **UNIT})
    assert found.verdict is Verdict.FAIL
    assert "/usr/lib/systemd/system/nvidia-vgpu-mgr.service is there, and does not run" in said(found)
    assert "systemctl restart nvidia-vgpud, then nvidia-vgpu-mgr" in found.fix


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (STARTED, Verdict.OK),
        (ENDED, Verdict.OK),
        (FAILED, Verdict.FAIL),
        ((*FAILED, "Failed to start NVIDIA vGPU Daemon."), Verdict.FAIL),
        ((*FAILED, *ENDED), Verdict.OK),
        (None, Verdict.OK),
    ],
)
def test_the_service_of_the_types_may_have_ended_and_may_not_have_failed(lines, verdict):
    found = judge("vgpu-services", snapshot(GPU), RUNS, services={"nvidia-vgpud": lines})
    assert found.verdict is verdict
    assert ("Failed with result" in said(found)) is (verdict is Verdict.FAIL)
    assert ("no line of nvidia-vgpud" in said(found)) is (lines is None)


def test_services_that_cannot_be_seen_are_unknown():
    assert judge("vgpu-services", snapshot(GPU), folders=UNIT).verdict is Verdict.UNKNOWN
    closed = {next(iter(RUNS)): Text(problem="Permission denied")}
    assert judge("vgpu-services", snapshot(GPU), closed).verdict is Verdict.UNKNOWN
    without = judge("vgpu-services", snapshot(GPU), folders={SLICES[0]: ["sshd.service"]})
    assert without.verdict is Verdict.UNKNOWN
    assert "no nvidia-vgpu-mgr.service" in said(without)


@pytest.mark.parametrize("text", [PROPRIETARY, OPEN, OPEN.replace("x86_64", "aarch64")])
def test_one_version_everywhere_is_in_order(text):
    host = snapshot(GPU, nvml=NvmlStatus(available=True, driver_version="550.90.05"))
    libraries = {"/usr/lib64": ["libnvidia-ml.so", "libnvidia-ml.so.1", "libnvidia-ml.so.550.90.05"]}
    found = judge("driver-version", host, {PROC_VERSION: text, MODULE_VERSION: "550.90.05\n"}, libraries)
    assert found.verdict is Verdict.OK
    assert "/usr/lib64/libnvidia-ml.so.550.90.05: 550.90.05" in found.evidence


@pytest.mark.parametrize(
    ("files", "libraries"),
    [
        ({PROC_VERSION: OPEN}, {"/usr/lib/x86_64-linux-gnu": ["libnvidia-ml.so.550.144.02"]}),
        ({PROC_VERSION: OPEN, MODULE_VERSION: "550.144.02\n"}, {}),
    ],
)
def test_two_versions_fail_with_where_each_is(files, libraries):
    found = judge("driver-version", snapshot(GPU), files, libraries)
    assert found.verdict is Verdict.FAIL
    assert f"{PROC_VERSION}: 550.90.05" in found.evidence
    assert "550.144.02" in said(found)
    assert "reboot" in found.fix


def test_a_second_library_beside_the_drivers_own_is_in_order():
    libraries = {"/usr/lib64": ["libnvidia-ml.so.535.230.02"], "/usr/lib": ["libnvidia-ml.so.550.90.05"]}
    assert judge("driver-version", snapshot(GPU), {PROC_VERSION: OPEN}, libraries).verdict is Verdict.OK


def test_a_driver_that_tells_no_version_is_unknown():
    closed = {PROC_VERSION: Text(problem=f"{PROC_VERSION}: Permission denied")}
    assert judge("driver-version", snapshot(GPU), closed).verdict is Verdict.UNKNOWN


PENDING = Mig(enabled=False, pending=True)
EXPORTER = (Holder(4711, "/usr/bin/nv-hostengine -n"),)


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (a100(mig=PENDING), "MIG waits for a reset to go on"),
        (a100(mig=Mig(enabled=False, pending=False), desired_mig=MigSpec(("1g.5gb",))), "asks for MIG on"),
        (a100(backend=None, vfs_enabled=0, functions=()), "its 16 VFs are off"),
        (a100(desired=Mode.PASSTHROUGH), "asks for passthrough, and 16 VFs are on"),
    ],
)
def test_who_keeps_a_gpu_from_a_change_is_named(gpu, why):
    found = judge("driver-holders", snapshot(gpu), holders=EXPORTER)
    assert found.verdict is Verdict.WARN
    assert why in said(found)
    assert "nv-hostengine -n (pid 4711) has the driver open" in said(found)
    assert judge("driver-holders", snapshot(gpu), holders=()).verdict is Verdict.OK


def test_who_has_the_driver_open_may_while_no_gpu_waits():
    found = judge("driver-holders", snapshot(GPU, t4()), holders=EXPORTER)
    assert found.verdict is Verdict.OK
    assert "pid 4711" in said(found)
    off = a100(backend=None, vfs_enabled=0, functions=(), desired=Mode.PASSTHROUGH)
    assert judge("driver-holders", snapshot(off), holders=EXPORTER).verdict is Verdict.OK


def test_nvidias_own_services_are_in_nobodys_way():
    own = (Holder(1207, "/usr/bin/nvidia-vgpu-mgr"),)
    assert judge("driver-holders", snapshot(a100(mig=PENDING)), holders=own).verdict is Verdict.OK


def test_holders_that_cannot_be_seen_are_unknown():
    found = judge("driver-holders", snapshot(GPU), holders=None, holders_problem="/proc/1/fd: Permission denied")
    assert (found.verdict, found.evidence) == (Verdict.UNKNOWN, ("/proc/1/fd: Permission denied",))


@pytest.mark.parametrize("params", ["EnableGpuFirmware: 18\n", "EnableGpuFirmware: 2\n", ""])
def test_firmware_that_the_driver_decides_about_is_in_order(params):
    files = {PARAMS: params, "/etc/modprobe.d/nvidia.conf": "options nvidia NVreg_EnableGpuFirmwareLogs=1\n"}
    assert judge("gpu-firmware", snapshot(GPU), files).verdict is Verdict.OK


@pytest.mark.parametrize(
    "files",
    [
        {PARAMS: "MemoryPoolSize: 0\nEnableGpuFirmware: 0\n"},
        {PARAMS: "EnableGpuFirmware: 17\n"},
        {"/etc/modprobe.d/nvidia.conf": "options nvidia NVreg_RegistryDwords=a NVreg_EnableGpuFirmware=0\n"},
    ],
)
def test_firmware_that_somebody_forces_is_a_warning_that_names_where(files):
    found = judge("gpu-firmware", snapshot(GPU), files)
    assert found.verdict is Verdict.WARN
    assert next(iter(files)) in said(found)
    assert "NVreg_EnableGpuFirmware" in found.fix


def test_modprobes_files_that_cannot_be_read_leave_the_firmware_unknown():
    folders = {"/etc/modprobe.d": Folder(problem="/etc/modprobe.d: Permission denied")}
    assert judge("gpu-firmware", snapshot(GPU), folders=folders).verdict is Verdict.UNKNOWN


def test_error_correction_that_waits_for_a_reset_is_a_warning():
    other = t4()
    seen = {GPU.address: Ecc(enabled=True, pending=True), other.address: Ecc(enabled=True, pending=False)}
    found = judge("ecc", snapshot(GPU, other), ecc=seen)
    assert found.verdict is Verdict.WARN
    assert found.evidence[0] == "0000:5e:00.0 (Tesla T4): ECC is on, and off after its next reset"
    assert GPU.address not in said(found)


def test_error_correction_that_stays_is_in_order_and_one_that_is_not_told_unknown():
    seen = {GPU.address: Ecc(enabled=False, pending=False)}
    assert judge("ecc", snapshot(GPU), ecc=seen).verdict is Verdict.OK
    assert judge("ecc", snapshot(GPU)).verdict is Verdict.UNKNOWN
