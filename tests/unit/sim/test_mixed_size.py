# SPDX-License-Identifier: Apache-2.0
"""Valid placements of mixed-size (heterogeneous) vGPUs, and when sizes can be mixed."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sim.hosts import (
    GPU,
    MDEV,
    PF,
    MakeHost,
    create,
    mdev_device,
    pci_device,
    refused,
    run_vm,
    set_type,
    uuid,
    vf,
)
from vgpuctl.errors import InvalidInput, NvmlFailed
from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.sim import SimHost
from vgpuctl.sim.mixed_size import covered_size, even_starts, halved_starts

NOT_SUPPORTED, IN_USE = 3, 19
A40 = {
    48: (1, [0]), 24: (2, [0, 24]), 16: (3, [0, 32]), 12: (4, [0, 12, 24, 36]), 8: (6, [0, 16, 24, 40]),
    6: (8, [0, 6, 12, 18, 24, 30, 36, 42]), 4: (12, [0, 8, 12, 20, 24, 32, 36, 44]),
}  # fmt: skip
H100 = {
    80: (1, [0]), 40: (2, [0, 40]), 20: (4, [0, 20, 40, 60]), 16: (5, [0, 24, 40, 64]),
    10: (8, [0, 10, 20, 30, 40, 50, 60, 70]), 8: (10, [0, 12, 20, 32, 40, 52, 60, 72]),
    4: (20, [0, 6, 10, 16, 20, 26, 30, 36, 40, 46, 50, 56, 60, 66, 70, 76]),
}  # fmt: skip


def types(host: SimHost) -> dict[str, tuple[tuple[int, ...] | None, int | None]]:
    seen = host.nvml.gpu(GPU)
    assert seen is not None
    return {t.name.split()[-1].partition("-")[2]: (t.placement_ids, t.placement_size) for t in seen.types.values()}


def refusal(host: SimHost, *, enabled: bool = True) -> object:
    with pytest.raises(NvmlFailed) as raised:
        host.nvml.set_mixed_size(GPU, enabled=enabled)
    assert raised.value.facts["call"] == "nvmlDeviceSetVgpuHeterogeneousMode"
    return raised.value.facts["nvml_code"]


def is_mixed(host: SimHost) -> bool | None:
    seen = host.nvml.gpu(GPU)
    assert seen is not None
    return seen.mixed_size


@pytest.mark.parametrize(
    ("region", "size", "most", "ids"),
    [(region, size, *rest) for region, types in ((48, A40), (80, H100)) for size, rest in types.items()],
)
def test_before_blackwell_the_region_is_halved(region: int, size: int, most: int, ids: list[int]) -> None:
    assert halved_starts(region, size, most) == tuple(ids)


@pytest.mark.parametrize(
    ("most", "size", "ids"),
    [(1, 96, (0,)), (3, 32, (0, 32, 64)), (6, 16, (0, 16, 32, 48, 64, 80)), (32, 2, tuple(range(0, 96, 3)))],
)
def test_from_blackwell_on_the_places_divide_it_evenly(most: int, size: int, ids: tuple[int, ...]) -> None:
    assert even_starts(96, most) == ids
    assert covered_size(96, size) == (3 if size == 2 else size)


@given(st.sampled_from((24, 40, 48, 80)), st.integers(1, 80))
def test_places_of_a_type_do_not_overlap_and_stay_inside(region: int, size: int) -> None:
    most = region // size
    for ids in (halved_starts(region, size, most), even_starts(region, most) if most else ()):
        spans = [PlacementSpan(start, size) for start in ids]
        assert all(span.start >= 0 and span.start + size <= region for span in spans)
        assert not any(a.overlaps(b) for a, b in pairwise(spans))


def test_h100_and_rtx_pro_6000_report_mixed_placements(make: MakeHost) -> None:
    host = make("gpus: [{model: H100}]\n")
    assert types(host)["16C"] == (None, None)
    host.nvml.set_mixed_size(GPU, enabled=True)
    assert types(host)["16C"] == ((0, 24, 40, 64), 16)
    assert types(host)["5C"] == (tuple(range(0, 80, 5)), 5)
    host = make("rtx-pro-6000", "rtx")
    host.nvml.set_mixed_size(GPU, enabled=True)
    known = types(host)
    assert known["1-2B"] == (None, None)
    assert known["2B"] == (tuple(range(0, 96, 3)), 3)
    assert known["48Q"] == ((0, 48), 48)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nvidia: {driver: '535.1'}\ngpus: [{model: A100}]\n", "old"),
        ("gpus: [{model: T4}]\n", "turing"),
        ("gpus: [{model: A100, backend: passthrough}]\n", "whole"),
    ],
)
def test_without_that_mode_it_is_unknown(make: MakeHost, text: str, name: str) -> None:
    host = make(text, name)
    assert is_mixed(host) is None
    assert {places for places, _ in types(host).values()} <= {None}
    assert refusal(host) == NOT_SUPPORTED


def test_vgpus_vfs_and_mig_block_mixed_sizes(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    assert refusal(host, enabled=False) == IN_USE
    assert refusal(make("gpus: [{model: H100, mig: []}]\n", "mig")) == NOT_SUPPORTED


@pytest.mark.parametrize("how", ["boot", "unbind"])
def test_it_is_lost(make: MakeHost, how: str) -> None:
    host = make("gpus: [{model: A100, mixed_size: true}]\n")
    assert is_mixed(host) is True
    if how == "boot":
        host.reboot()
    else:
        host.sysfs.write_uninterruptible("/sys/bus/pci/drivers/nvidia/unbind", GPU, gpu=GPU, deadline_seconds=1)
        host.sysfs.write("/sys/bus/pci/drivers/nvidia/bind", GPU)
    assert is_mixed(host) is False


def test_an_mdev_of_an_old_driver_takes_the_first_place_and_has_no_file_for_it(make: MakeHost) -> None:
    host = make('kernel: "5.15.0"\ngpus: [{model: A16, mixed_size: true}]\n')
    create(host, "0000:3b:00.4", "nvidia-714", 1)
    create(host, "0000:3b:00.5", "nvidia-713", 2)
    path = f"{PF}/virtfn2/mdev_supported_types"
    assert host.sysfs.read(f"{path}/nvidia-714/available_instances") == "0\n"
    assert host.sysfs.read(f"{path}/nvidia-713/available_instances") == "1\n"
    assert host.sysfs.listdir(f"{MDEV}/{uuid(1)}/nvidia") == ("vgpu_params", "vm_name")


def test_a_vgpu_in_use_stays_where_it_is(make: MakeHost) -> None:
    host = make("nvidia: {driver: '590.1'}\ngpus: [{model: A100, mixed_size: true}]\n")
    set_type(host, 0, 468)
    run_vm(host, "user", 1, pci_device("0000:3b:00.4", managed=False))
    refused(errno.EPERM, lambda: host.sysfs.write(f"{vf(0)}/nvidia/placement_id", "6"))


def test_an_mdev_in_use_stays_where_it_is(make: MakeHost) -> None:
    host = make("kernel: \"5.15.0\"\nnvidia: {driver: '590.1'}\ngpus: [{model: A16, mixed_size: true}]\n")
    create(host, "0000:3b:00.4", "nvidia-713", 1)
    path = f"{MDEV}/{uuid(1)}/nvidia/placement_id"
    host.sysfs.write(path, "4\n")
    run_vm(host, "user", 1, mdev_device(uuid(1)))
    refused(errno.EPERM, lambda: host.sysfs.write(path, "0\n"))
    refused(errno.EINVAL, lambda: host.sysfs.write(path, "x\n"))
    assert host.sysfs.read(path) == "4\n"


def test_older_drivers_have_no_file_for_the_place(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    refused(errno.ENOENT, lambda: host.sysfs.read(f"{vf(0)}/nvidia/placement_id"))
    refused(errno.ENOENT, lambda: host.sysfs.read(f"{vf(0)}/nvidia/gpu_instance_id"))


def test_a_scenario_cannot_mix_where_the_driver_would_not(make: MakeHost) -> None:
    with pytest.raises(InvalidInput, match="cannot mix sizes"):
        make("gpus: [{model: T4, mixed_size: true}]\n")
