# SPDX-License-Identifier: Apache-2.0
"""NVML as the scenario defines it; its scheduler: refusals, losses by a boot, and the effect of modprobe's files."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import GPU, MakeHost
from vgpuctl.errors import NvmlFailed
from vgpuctl.model.port_values import EccState, NvmlStatus, NvmlVgpuType
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.sim import SimHost

EQUAL, FIXED = SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
BEST = SchedulerState(SchedulerPolicy.BEST_EFFORT)
VF = "/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type"


def state(host: SimHost, gpu: str = GPU) -> SchedulerState | None:
    seen = host.nvml.gpu(gpu)
    assert seen is not None
    return seen.scheduler.state if seen.scheduler is not None else None


def refused(host: SimHost, spec: SchedulerSpec) -> object:
    with pytest.raises(NvmlFailed) as raised:
        host.nvml.set_scheduler(GPU, spec)
    return raised.value.facts["nvml_code"]


def test_it_is_set_and_a_boot_loses_it(make: MakeHost) -> None:
    host = make("a100-40")
    host.nvml.set_scheduler(GPU, SchedulerSpec(EQUAL, None, 500))
    assert state(host) == SchedulerState(EQUAL, True, 2_000_000, 33)
    host.reboot()
    assert state(host) == BEST


def test_unbinding_the_gpu_loses_it(make: MakeHost) -> None:
    host = make("a100-40")
    host.nvml.set_scheduler(GPU, SchedulerSpec(FIXED))
    host.vendor.sriov_manage("-d", GPU, deadline_seconds=1)
    assert state(host) == BEST
    host.nvml.set_scheduler(GPU, SchedulerSpec(FIXED))
    host.sysfs.write_uninterruptible("/sys/bus/pci/drivers/nvidia/unbind", f"{GPU}\n", gpu=GPU, deadline_seconds=1)
    assert refused(host, SchedulerSpec(EQUAL)) == 3
    host.sysfs.write("/sys/bus/pci/drivers/nvidia/bind", f"{GPU}\n")
    assert state(host) == BEST


@pytest.mark.parametrize(
    ("driver", "spec"),
    [
        ("550.90.05", SchedulerSpec(EQUAL, 2, 480)),
        ("595.45.04", SchedulerSpec(EQUAL, 2)),
        ("525.60.12", SchedulerSpec(EQUAL, None, 480)),
    ],
)
def test_numbers_that_the_driver_does_not_take(make: MakeHost, driver: str, spec: SchedulerSpec) -> None:
    host = make(f'nvidia: {{driver: "{driver}"}}\ngpus: [{{model: A100, address: "{GPU}"}}]\n')
    assert refused(host, spec) == 2


@pytest.mark.parametrize(
    ("driver", "interfaces"), [("470.63", ()), ("525.60.12", ("v1",)), ("595.45.04", ("v2", "v1"))]
)
def test_an_old_library_has_no_call_for_it(make: MakeHost, driver: str, interfaces: tuple[str, ...]) -> None:
    host = make(f'nvidia: {{driver: "{driver}"}}\ngpus: [{{model: A100, address: "{GPU}"}}]\n')
    seen = host.nvml.gpu(GPU)
    assert seen is not None
    assert seen.scheduler is not None
    assert seen.scheduler.setter_versions == interfaces
    if not interfaces:
        assert refused(host, SchedulerSpec(EQUAL)) == 3
        assert state(host) is None


def test_modprobes_files_count_from_the_next_boot_on_and_the_last_line_wins(make: MakeHost) -> None:
    host = make("a100-40")
    folder = host.host_file.parents[1] / "modprobe.d"
    folder.mkdir()
    option = "options nvidia NVreg_RegistryDwordsPerDevice"
    (folder / "a.conf").write_text(f'{option}="pci={GPU};RmPVMRL=0x1"\n# {option}="x"\n')
    (folder / "b.conf").write_text(f'{option}="pci=3b:00;Other=1;RmPVMRL=0x00020013"\n')
    assert state(host) == BEST
    host.reboot()
    assert state(host) == SchedulerState(FIXED, False, 2_000_000)
    assert "RmPVMRL=0x00020013" in host.sysfs.read("/proc/driver/nvidia/params")
    assert host.kernel_log.kernel_lines("scheduler") == (
        f"NVRM: GPU at {GPU} has software scheduler ENABLED with policy FIXED_SHARE.",
    )
    assert host.kernel_log.kernel_lines("nothing of this") == ()
    host.reset()
    host.reboot()
    assert state(host) == BEST


def test_a_replayed_and_a_compacted_host_has_the_same_scheduler(make: MakeHost) -> None:
    host = make("a100-40")
    host.nvml.set_scheduler(GPU, SchedulerSpec(FIXED, 3))
    for _ in range(200):
        host.sysfs.write("/sys/bus/pci/devices/0000:3b:00.0/sriov_drivers_autoprobe", "1\n")
    host._core.compact()
    assert state(make("a100-40")) == SchedulerState(FIXED, False, 3_000_000)


def in_instances(host: SimHost) -> dict[int, SchedulerState]:
    seen = host.nvml.gpu(GPU)
    assert seen is not None
    return dict(seen.gi_schedulers)


def test_from_blackwell_on_each_instance_has_its_own_until_it_goes(make: MakeHost) -> None:
    host = make("nvidia: {driver: '595.1'}\ngpus: [{model: RTX PRO 6000, mig: [2g.48gb+gfx, 1g.24gb+gfx]}]\n")
    assert in_instances(host) == {1: BEST, 3: BEST}
    host.nvml.set_scheduler(GPU, SchedulerSpec(EQUAL, None, 500), 1)
    assert in_instances(host) == {1: SchedulerState(EQUAL, True, 2_000_000, 33), 3: BEST}
    for gi_id, spec, code in ((9, EQUAL, 6), (None, EQUAL, 3)):
        with pytest.raises(NvmlFailed) as raised:
            host.nvml.set_scheduler(GPU, SchedulerSpec(spec), gi_id)
        assert raised.value.facts["nvml_code"] == code
    host.sysfs.write(VF, "1561")
    with pytest.raises(NvmlFailed) as raised:
        host.nvml.set_scheduler(GPU, SchedulerSpec(FIXED), 3)
    assert raised.value.facts == {"nvml_code": 3, "call": "nvmlGpuInstanceSetVgpuSchedulerState"}
    host.nvml.set_scheduler(GPU, SchedulerSpec(FIXED), 1)
    host.nvml.destroy_gpu_instance(GPU, 1)
    assert host.nvml.create_gpu_instance(GPU, 35, 0) == 1
    assert in_instances(host) == {1: BEST, 3: BEST}
    host.reboot()
    assert in_instances(host) == {}


def test_types_with_framebuffer_and_maximum(make: MakeHost) -> None:
    host = make("a100-40")
    assert host.nvml.status() == NvmlStatus(available=True, driver_version="550.90.05")
    gpu = host.nvml.gpu(GPU)
    assert gpu is not None
    assert (gpu.model, gpu.framebuffer_mib, len(gpu.types)) == ("NVIDIA A100-PCIE-40GB", 40960, 13)
    assert gpu.types[468] == NvmlVgpuType(468, "GRID A100-4C", 4096, 10, 16)
    assert gpu.types[474] == NvmlVgpuType(474, "GRID A100-1-5C", 5120, 7, 16, gi_profile_id=19, max_per_gi=1)
    assert (gpu.mixed_size, gpu.mig and gpu.mig.enabled) == (False, False)


def test_desktop_types_go_alone_into_a_vm(make: MakeHost) -> None:
    gpu = make("a16").nvml.gpu(GPU)
    assert gpu is not None
    assert {t.name.split("-")[1]: t.max_per_vm for t in gpu.types.values() if "-4" in t.name or "-2B" in t.name} == {
        "2B": 1, "4A": 1, "4C": 16, "4Q": 16,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ecc"),
    [
        ("gpus: [{model: A16}]\n", EccState(enabled=True, pending_enabled=True)),
        ("nvidia: {nvml: absent}\ngpus: [{model: A100}]\n", None),
        ("gpus: [{model: V710}]\n", None),
    ],
)
def test_memory_has_error_correction_where_nvml_answers(make: MakeHost, text: str, ecc: EccState | None) -> None:
    assert make(text).nvml.ecc(GPU) == ecc


@pytest.mark.parametrize("reason", ["absent", "too-old", "nvmlDeviceGetSupportedVgpus"])
def test_missing_for_a_reason(make: MakeHost, reason: str) -> None:
    host = make(f"nvidia: {{nvml: {reason}}}\ngpus: [{{model: A100}}]\n")
    assert host.nvml.status() == NvmlStatus(available=False, reason=reason)
    assert host.nvml.gpu(GPU) is None


def test_only_nvidias_bound_gpus(make: MakeHost) -> None:
    host = make("mixed")
    assert host.nvml.gpu("0000:86:00.0") is None
    assert host.nvml.gpu("0000:d8:00.0") is None
    assert host.nvml.gpu("00000000:3B:00.0") is not None
    assert make("empty", "other").nvml.status() == NvmlStatus(available=False, reason="absent")
