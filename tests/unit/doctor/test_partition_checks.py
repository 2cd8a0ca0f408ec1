# SPDX-License-Identifier: Apache-2.0
"""MIG pending a reset, instances without a vGPU type, and differences from host.yaml."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import A4C, a100, snapshot, t4
from vgpuctl.doctor.check import Verdict
from vgpuctl.doctor.versions import KERNEL_RELEASE
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.mig import GiProfile, GpuInstance, MigSpec, MigState, PlacementSpan
from vgpuctl.model.port_values import NvmlStatus
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
NVML = NvmlStatus(available=True, driver_version="580.105.06")


def test_a_partition_as_configured_is_ok():
    assert run_check("partition", snapshot(ASKING, nvml=NVML)).verdict is Verdict.OK
    assert run_check("partition", snapshot(a100(mig=ON))).verdict is Verdict.NOT_APPLICABLE
    passed = a100(desired_mode=GpuMode.PASSTHROUGH, desired_mixed_size=True)
    assert run_check("partition", snapshot(passed)).verdict is Verdict.NOT_APPLICABLE


def test_a_partition_not_as_configured_is_a_warning():
    line = "0000:3b:00.0: mixed_size is False, not True"
    result = run_check("partition", snapshot(ASKING, nvml=NVML), partition_drift={ASKING.address: (line,)})
    assert (result.verdict, result.evidence[0]) == (Verdict.WARN, line)
    assert "vgpuctl restore-host" in result.fix


def test_a_partition_nvml_does_not_report_is_unknown():
    dark = a100(desired_mig=MigSpec(("1g.5gb",)))
    result = run_check("partition", snapshot(dark, nvml=NvmlStatus(available=False, reason="absent")))
    assert result.verdict is Verdict.UNKNOWN
    assert run_check("partition", snapshot(dark, host_file_problem="line 3: nonsense")).verdict is Verdict.UNKNOWN
