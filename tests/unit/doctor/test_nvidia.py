# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's services, versions, holders, firmware and ECC; guests' drivers; logs, as public bug reports show them."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot, t4
from vgpuctl.doctor.check import FileContent, FolderListing, Verdict
from vgpuctl.doctor.nvidia import SLICE_DIRECTORIES
from vgpuctl.model.gpu import Backend, GpuMode, MigSpec, MigState
from vgpuctl.model.port_values import DeviceUser, EccState, NvmlStatus
from vgpuctl.scheduler.modprobe_files import DRIVER_PARAMS_PATH
from vgpuctl.scheduler.registry_dword import MODULE_VERSION, PROC_VERSION
from vgpuctl.value import replace

GPU = a100()
AMD = a100(vendor_id="1002", driver="gim", backend=Backend.SRIOV_VF)
UNIT = {"/usr/lib/systemd/system": ["nvidia-vgpu-mgr.service"]}
RUNS = {f"{SLICE_DIRECTORIES[0]}/nvidia-vgpu-mgr.service/cgroup.procs": "1207\n"}
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
    assert run_check(name, snapshot(AMD)).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("at", SLICE_DIRECTORIES)
def test_the_service_that_starts_vgpus_runs_and_the_other_has_ended(at):
    files = {f"{at}/nvidia-vgpu-mgr.service/cgroup.procs": "1207\n"}
    result = run_check("vgpu-services", snapshot(GPU), files, service_logs={"nvidia-vgpud": ENDED})
    assert result.verdict is Verdict.OK
    assert result.evidence == ("nvidia-vgpu-mgr runs (pid 1207)", ENDED[-1])


def test_a_service_that_does_not_run_fails_with_how_to_start_it():
    result = run_check("vgpu-services", snapshot(GPU), folders={SLICE_DIRECTORIES[0]: ["sshd.service"], **UNIT})
    assert result.verdict is Verdict.FAIL
    assert "/usr/lib/systemd/system/nvidia-vgpu-mgr.service exists but does not run" in finding_text(result)
    assert "systemctl restart nvidia-vgpud, then nvidia-vgpu-mgr" in result.fix


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
    result = run_check("vgpu-services", snapshot(GPU), RUNS, service_logs={"nvidia-vgpud": lines})
    assert result.verdict is verdict
    assert ("Failed with result" in finding_text(result)) is (verdict is Verdict.FAIL)
    assert ("no line of nvidia-vgpud" in finding_text(result)) is (lines is None)


def test_services_that_cannot_be_seen_are_unknown():
    assert run_check("vgpu-services", snapshot(GPU), folders=UNIT).verdict is Verdict.UNKNOWN
    closed = {next(iter(RUNS)): FileContent(problem="Permission denied")}
    assert run_check("vgpu-services", snapshot(GPU), closed).verdict is Verdict.UNKNOWN
    without = run_check("vgpu-services", snapshot(GPU), folders={SLICE_DIRECTORIES[0]: ["sshd.service"]})
    assert without.verdict is Verdict.UNKNOWN
    assert "no nvidia-vgpu-mgr.service" in finding_text(without)


@pytest.mark.parametrize("text", [PROPRIETARY, OPEN, OPEN.replace("x86_64", "aarch64")])
def test_one_version_is_ok(text):
    host = snapshot(GPU, nvml=NvmlStatus(available=True, driver_version="550.90.05"))
    libraries = {"/usr/lib64": ["libnvidia-ml.so", "libnvidia-ml.so.1", "libnvidia-ml.so.550.90.05"]}
    result = run_check("driver-version", host, {PROC_VERSION: text, MODULE_VERSION: "550.90.05\n"}, libraries)
    assert result.verdict is Verdict.OK
    assert "/usr/lib64/libnvidia-ml.so.550.90.05: 550.90.05" in result.evidence


@pytest.mark.parametrize(
    ("files", "libraries"),
    [
        ({PROC_VERSION: OPEN}, {"/usr/lib/x86_64-linux-gnu": ["libnvidia-ml.so.550.144.02"]}),
        ({PROC_VERSION: OPEN, MODULE_VERSION: "550.144.02\n"}, {}),
    ],
)
def test_two_versions_fail_with_where_each_is(files, libraries):
    result = run_check("driver-version", snapshot(GPU), files, libraries)
    assert result.verdict is Verdict.FAIL
    assert f"{PROC_VERSION}: 550.90.05" in result.evidence
    assert "550.144.02" in finding_text(result)
    assert "reboot" in result.fix


def test_a_second_library_next_to_the_drivers_is_ok():
    libraries = {"/usr/lib64": ["libnvidia-ml.so.535.230.02"], "/usr/lib": ["libnvidia-ml.so.550.90.05"]}
    assert run_check("driver-version", snapshot(GPU), {PROC_VERSION: OPEN}, libraries).verdict is Verdict.OK


def test_an_unreadable_driver_version_is_unknown():
    closed = {PROC_VERSION: FileContent(problem=f"{PROC_VERSION}: Permission denied")}
    assert run_check("driver-version", snapshot(GPU), closed).verdict is Verdict.UNKNOWN


PENDING = MigState(enabled=False, pending_enabled=True)
EXPORTER = (DeviceUser(4711, "/usr/bin/nv-hostengine -n"),)


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (a100(mig=PENDING), "MIG waits for a reset to turn on"),
        (a100(mig=MigState(enabled=False, pending_enabled=False), desired_mig=MigSpec(("1g.5gb",))), "sets MIG on"),
        (a100(backend=None, vfs_enabled=0, functions=()), "its 16 VFs are off"),
        (a100(desired_mode=GpuMode.PASSTHROUGH), "sets passthrough, but 16 VFs are on"),
    ],
)
def test_a_process_blocking_a_change_is_named(gpu, why):
    result = run_check("driver-holders", snapshot(gpu), holders=EXPORTER)
    assert result.verdict is Verdict.WARN
    assert why in finding_text(result)
    assert "nv-hostengine -n (pid 4711) has the driver open" in finding_text(result)
    assert run_check("driver-holders", snapshot(gpu), holders=()).verdict is Verdict.OK


def test_driver_holders_are_ok_without_pending_gpus():
    result = run_check("driver-holders", snapshot(GPU, t4()), holders=EXPORTER)
    assert result.verdict is Verdict.OK
    assert "pid 4711" in finding_text(result)
    off = a100(backend=None, vfs_enabled=0, functions=(), desired_mode=GpuMode.PASSTHROUGH)
    assert run_check("driver-holders", snapshot(off), holders=EXPORTER).verdict is Verdict.OK


def test_nvidias_own_services_never_block():
    own = (DeviceUser(1207, "/usr/bin/nvidia-vgpu-mgr"),)
    assert run_check("driver-holders", snapshot(a100(mig=PENDING)), holders=own).verdict is Verdict.OK


def test_unreadable_holders_are_unknown():
    result = run_check("driver-holders", snapshot(GPU), holders=None, holders_problem="/proc/1/fd: Permission denied")
    assert (result.verdict, result.evidence) == (Verdict.UNKNOWN, ("/proc/1/fd: Permission denied",))


@pytest.mark.parametrize("params", ["EnableGpuFirmware: 18\n", "EnableGpuFirmware: 2\n", ""])
def test_firmware_chosen_by_the_driver_is_ok(params):
    files = {
        DRIVER_PARAMS_PATH: params,
        "/etc/modprobe.d/nvidia.conf": "options nvidia NVreg_EnableGpuFirmwareLogs=1\n",
    }
    assert run_check("gpu-firmware", snapshot(GPU), files).verdict is Verdict.OK


@pytest.mark.parametrize(
    "files",
    [
        {DRIVER_PARAMS_PATH: "MemoryPoolSize: 0\nEnableGpuFirmware: 0\n"},
        {DRIVER_PARAMS_PATH: "EnableGpuFirmware: 17\n"},
        {"/etc/modprobe.d/nvidia.conf": "options nvidia NVreg_RegistryDwords=a NVreg_EnableGpuFirmware=0\n"},
    ],
)
def test_forced_firmware_is_a_warning_with_its_file(files):
    result = run_check("gpu-firmware", snapshot(GPU), files)
    assert result.verdict is Verdict.WARN
    assert next(iter(files)) in finding_text(result)
    assert "NVreg_EnableGpuFirmware" in result.fix


def test_modprobes_files_that_cannot_be_read_leave_the_firmware_unknown():
    folders = {"/etc/modprobe.d": FolderListing(problem="/etc/modprobe.d: Permission denied")}
    assert run_check("gpu-firmware", snapshot(GPU), folders=folders).verdict is Verdict.UNKNOWN


def test_ecc_pending_a_reset_is_a_warning():
    other = t4()
    seen = {
        GPU.address: EccState(enabled=True, pending_enabled=True),
        other.address: EccState(enabled=True, pending_enabled=False),
    }
    result = run_check("ecc", snapshot(GPU, other), ecc=seen)
    assert result.verdict is Verdict.WARN
    assert result.evidence[0] == "0000:5e:00.0 (Tesla T4): ECC is on, and off after its next reset"
    assert GPU.address not in finding_text(result)


def test_unchanging_ecc_is_ok_and_unreported_ecc_is_unknown():
    seen = {GPU.address: EccState(enabled=False, pending_enabled=False)}
    assert run_check("ecc", snapshot(GPU), ecc=seen).verdict is Verdict.OK
    assert run_check("ecc", snapshot(GPU)).verdict is Verdict.UNKNOWN


XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', name=<unknown>"
MISMATCH = "NVRM: API mismatch: the client has the version 535.247.01, but"
UNBIND = "nvidia 0000:3b:00.0: NVRM: Could not acquire UnbindLock"
TIMEOUT = "[nvidia-vgpu-vfio] a581675d-19eb-4f50-aa64-6aeb378c58c3: start failed. status: 0x0 Timeout Occured"
MANAGER = (
    "notice: vmiop_env_log: nvidia-vgpu-mgr daemon started",
    "notice: vmiop_env_log: (0x0): pluginconfig: vgpu_type_id=259",
)
NOT_VGX = "error: vmiop_log: (0x0): vGPU is supported only on VGX capable boards"
RM_CLIENT = "error: vmiop_env_log: Failed to initialize RM client: 0x26"
NO_UUID = "error: vmiop_env_log: Failed to get VM UUID from QEMU command-line 0x57"
INIT = "error: vmiop_log: (0x0): Initialization: init_device_instance failed error 1"
BACKTRACE = "error: vmiop_log: vgpu(+0xeb43) [0x5652bb60eb43]"


def check_logs(kernel=(), service=(), gpus=(GPU,)):
    return run_check("driver-messages", snapshot(*gpus), kernel_log=kernel, service_logs={"nvidia-vgpu-mgr": service})


def test_drivers_without_errors_are_ok():
    result = check_logs(("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.05",), MANAGER)
    assert result.verdict is Verdict.OK
    assert result.evidence[0].startswith("1 lines of NVIDIA's modules and 2 of nvidia-vgpu-mgr since the boot")


@pytest.mark.parametrize(
    ("line", "verdict", "words"),
    [
        (XID.format(79), Verdict.FAIL, "0000:3b:00.0: Xid 79, the GPU has fallen off the bus"),
        (XID.format(119), Verdict.FAIL, "0000:3b:00.0: Xid 119"),
        (XID.format(63), Verdict.WARN, "0000:3b:00.0: Xid 63"),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:762)", Verdict.FAIL, "0000:3b:00.0: the driver"),
        (
            "NVRM: Aborting probe for VF 0000:3b:00.4 since IOMMU is not present on the system.",
            Verdict.FAIL,
            "0000:3b:00.0: the driver refuses this VF",
        ),
        ("NVRM: Required FB for heterogeneous vGPU exceeds", Verdict.WARN, "mixed sizes"),
        (UNBIND, Verdict.WARN, "0000:3b:00.0: a program used the GPU"),
        (MISMATCH, Verdict.WARN, "the client has the version 535.247.01"),
        (TIMEOUT, Verdict.WARN, "did not start a vGPU"),
    ],
)
def test_a_kernel_log_line_is_shown_with_gpu_and_explanation(line, verdict, words):
    result = check_logs(("something else", line))
    assert result.verdict is verdict
    assert words in finding_text(result)
    assert line in finding_text(result)
    assert result.fix


@pytest.mark.parametrize(
    ("line", "verdict"),
    [(NOT_VGX, Verdict.FAIL), (RM_CLIENT, Verdict.WARN), (NO_UUID, Verdict.WARN), (INIT, Verdict.WARN)],
)
def test_a_service_log_line_is_explained(line, verdict):
    result = check_logs(service=(*MANAGER, line, BACKTRACE))
    assert (result.verdict, len(result.evidence)) == (verdict, 1)
    assert result.evidence[0].endswith(f": {line}")


def test_errors_of_guest_programs_are_not_host_errors():
    assert check_logs((XID.format(13), XID.format(31), XID.format(43))).verdict is Verdict.OK


def test_repeated_lines_are_shown_once_with_a_count_and_the_worst_first():
    result = check_logs([XID.format(94)] * 900 + [XID.format(79)], [INIT] * 7)
    assert len(result.evidence) == 3
    assert "Xid 79" in result.evidence[0]
    assert any("(900 times, the last one:)" in line for line in result.evidence)


def test_each_gpu_is_named_with_its_own_line():
    other = "NVRM: Xid (PCI:0000:5E:00): 79, GPU has fallen off the bus."
    result = check_logs((XID.format(79), other), gpus=(GPU, t4()))
    assert [line[:12] for line in result.evidence] == ["0000:3b:00.0", "0000:5e:00.0"]


def test_a_long_line_is_cut():
    assert len(check_logs((XID.format(79) + "x" * 500,)).evidence[0]) < 300


def test_unreadable_logs_are_unknown_unless_the_other_has_errors():
    assert check_logs(None, None).verdict is Verdict.UNKNOWN
    assert check_logs(None, MANAGER).verdict is Verdict.UNKNOWN
    assert check_logs((), None).verdict is Verdict.UNKNOWN
    assert check_logs(None, (NOT_VGX,)).verdict is Verdict.FAIL


@pytest.mark.parametrize("address", ["10000:3b:00", "00010000:3B:00.0"])
def test_a_gpu_in_a_domain_of_five_digits_is_found(address):
    gpu = replace(a100(), address="10000:3b:00.0")
    result = check_logs((f"NVRM: Xid (PCI:{address}): 79, GPU has fallen off the bus.",), gpus=(gpu,))
    assert result.evidence[0].startswith(gpu.address)
