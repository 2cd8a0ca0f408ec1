# SPDX-License-Identifier: Apache-2.0
"""Lines of NVIDIA's drivers and of nvidia-vgpu-mgr, as public bug reports show them."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot, t4
from vgpuctl.doctor.check import Verdict
from vgpuctl.value import replace

GPU = a100()
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
