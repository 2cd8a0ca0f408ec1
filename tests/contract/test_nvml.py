# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about a GPU and its vGPU types, and when it accepts a scheduler; in the lab through pynvml."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.site import Site, new_uuid
from vgpuctl.errors import NvmlFailed
from vgpuctl.model.vgpu_moves import NvmlMigration
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerSpec, SchedulerState

pytestmark = pytest.mark.forms("mdev-pf", "mdev-vf", "vendor-vf")
INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3
BEST, EQUAL, FIXED = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
ABSENT = "0000:7f:00.0"


@pytest.fixture(autouse=True)
def back(site: Site) -> Iterator[None]:
    """Restore the driver's default scheduler afterwards."""
    yield
    site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(BEST))


def scheduler(site: Site) -> GpuScheduler:
    result = site.nvml_gpu().scheduler
    assert result is not None
    return result


def set_to(site: Site, *numbers: int | None, policy: SchedulerPolicy = FIXED) -> SchedulerState | None:
    """Set (time slice, frequency, averaging factor), and return the scheduler that NVML then reports."""
    site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(policy, *numbers))
    return scheduler(site).state


def refusal(site: Site, *numbers: int | None) -> object:
    """The NVML error code of a scheduler setting that must fail."""
    with pytest.raises(NvmlFailed) as raised:
        site.ports.nvml.set_scheduler(site.gpu, SchedulerSpec(FIXED, *numbers))
    return raised.value.facts["nvml_code"]


def make_vgpu(site: Site) -> str:
    """Create an A100-4C through sysfs, without NVML, and return the argument for `drop_vgpu`."""
    if site.form == "vendor-vf":
        site.ports.sysfs.write(site.type_file(site.vfs[0]), "468\n")
        return site.vfs[0]
    device = new_uuid()
    parent = site.gpu if site.form == "mdev-pf" else site.vfs[0]
    site.ports.sysfs.write(site.mdev_file(parent, "nvidia-468", "create"), f"{device}\n")
    return device


def drop_vgpu(site: Site, device: str) -> None:
    if site.form == "vendor-vf":
        site.ports.sysfs.write_uninterruptible(site.type_file(device), "0\n", gpu=site.gpu, deadline_seconds=20)
    else:
        site.remove(device)


def test_nvml_reports_the_driver_version(site: Site) -> None:
    status = site.ports.nvml.status()
    assert (status.available, status.reason, status.driver_version) == (True, None, "590.48.01")


def test_a_gpu_has_its_memory_and_the_exact_maximum_of_each_type(site: Site) -> None:
    gpu = site.nvml_gpu()
    assert (gpu.model, gpu.framebuffer_mib) == ("NVIDIA A100-PCIE-40GB", 40960)
    known = {n: (t.name, t.framebuffer_mib, t.max_per_gpu) for n, t in gpu.types.items()}
    assert {n: known[n] for n in (468, 469, 470, 471, 472, 473)} == {
        468: ("GRID A100-4C", 4096, 10),
        469: ("GRID A100-5C", 5120, 8),
        470: ("GRID A100-8C", 8192, 5),
        471: ("GRID A100-10C", 10240, 4),
        472: ("GRID A100-20C", 20480, 2),
        473: ("GRID A100-40C", 40960, 1),
    }


def test_a_vgpu_does_not_change_the_types(site: Site) -> None:
    before = site.nvml_gpu().types
    device = make_vgpu(site)
    after = site.nvml_gpu().types
    drop_vgpu(site, device)
    assert after == before


def test_a_vgpu_without_a_vm_has_no_guest(site: Site) -> None:
    assert site.ports.nvml.guests(site.gpu) == ()
    device = make_vgpu(site)
    reported = site.ports.nvml.guests(site.gpu)
    drop_vgpu(site, device)
    assert reported == ()


def test_a_gpu_has_the_speeds_of_a_move_and_only_vgpus_of_vms_move(site: Site) -> None:
    device = make_vgpu(site)
    reported = site.ports.nvml.migration(site.gpu)
    drop_vgpu(site, device)
    assert reported == NvmlMigration(6000, 4000, True)
    assert site.ports.nvml.pairing(site.gpu, "no description") is None


def test_nvml_does_not_know_a_missing_gpu(site: Site) -> None:
    assert site.ports.nvml.gpu(ABSENT) is None
    assert site.ports.nvml.guests(ABSENT) is None
    assert site.ports.nvml.migration(ABSENT) is None
    assert site.ports.nvml.nvlink_peers(ABSENT) is None
    assert site.ports.nvml.placements(ABSENT) == {}


def test_a_gpu_starts_with_best_effort_and_reports_ranges(site: Site) -> None:
    result = scheduler(site)
    assert result.state == SchedulerState(BEST)
    assert result.limits is not None
    assert (result.limits.policies, result.limits.supports_adaptive) == (frozenset(SchedulerPolicy), True)
    assert result.limits.time_slice_ns == (1_000_000, 30_000_000)
    assert (result.limits.frequency_hz, result.limits.averaging_factor) == ((63, 960), (1, 60))
    assert (result.setter_versions, result.architecture) == (("v2", "v1"), 7)


@pytest.mark.parametrize(
    ("policy", "numbers", "state"),
    [
        (EQUAL, (), (True, 1_041_666, 33)),
        (FIXED, (None, 480, 20), (True, 2_083_333, 20)),
        (EQUAL, (None, 63, None), (True, 15_873_015, 33)),
        (FIXED, (4, None, None), (False, 4_000_000, None)),
        (BEST, (), (None, None, None)),
    ],
)
def test_a_setting_reads_back_and_the_driver_chooses_omitted_numbers(
    site: Site,
    policy: SchedulerPolicy,
    numbers: tuple[int | None, ...],
    state: tuple[bool | None, int | None, int | None],
) -> None:
    assert set_to(site, *numbers, policy=policy) == SchedulerState(policy, *state)


@pytest.mark.parametrize("numbers", [(31,), (None, 62), (None, 961), (None, None, 61)])
def test_numbers_out_of_range_are_refused_and_change_nothing(site: Site, numbers: tuple[int | None, ...]) -> None:
    before = set_to(site, policy=EQUAL)
    assert refusal(site, *numbers) == INVALID_ARGUMENT
    assert scheduler(site).state == before


def test_a_vgpu_blocks_a_scheduler_change(site: Site) -> None:
    device = make_vgpu(site)
    code, state = refusal(site), scheduler(site).state
    drop_vgpu(site, device)
    assert (code, state) == (NOT_SUPPORTED, SchedulerState(BEST))
    assert set_to(site) == SchedulerState(FIXED, True, 1_041_666, 33)


@pytest.mark.forms("mdev-pf")
def test_a_setting_is_lost_when_the_driver_is_unbound_and_nvml_lacks_the_gpu(
    site: Site,
) -> None:
    set_to(site, policy=EQUAL)
    site.ports.sysfs.write("/sys/bus/pci/drivers/nvidia/unbind", f"{site.gpu}\n")
    while_unbound = site.ports.nvml.gpu(site.gpu)
    site.ports.sysfs.write("/sys/bus/pci/drivers/nvidia/bind", f"{site.gpu}\n")
    assert while_unbound is None
    assert scheduler(site).state == SchedulerState(BEST)
