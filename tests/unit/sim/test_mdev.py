# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: making, the same-size rule, siblings' availability, removing, shared counters."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import (
    GPU,
    MDEV,
    PCI,
    PF,
    MakeHost,
    available,
    create,
    mdev_device,
    refused,
    remove,
    run_vm,
    uuid,
)
from vgpuctl.errors import Stuck
from vgpuctl.sim.machine import Machine, build_machine
from vgpuctl.sim.mixed_size import count_available, count_available_on
from vgpuctl.sim.scenario import compile_scenario
from vgpuctl.sim.state import State

VF = tuple(f"0000:3b:0{n // 8}.{n % 8}" for n in range(4, 20))


def test_type_files_are_the_drivers(make: MakeHost) -> None:
    host = make("a16")
    types = f"{PCI}/{VF[0]}/mdev_supported_types"
    assert len(host.sysfs.listdir(types)) == 15
    assert host.sysfs.read(f"{types}/nvidia-713/name") == "NVIDIA A16-4Q\n"
    assert host.sysfs.read(f"{types}/nvidia-713/device_api") == "vfio-pci\n"
    assert host.sysfs.read(f"{types}/nvidia-713/description") == (
        "num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320, max_instance=4\n"
    )
    assert "frl_config=45" in host.sysfs.read(f"{types}/nvidia-710/description")
    refused(errno.EACCES, lambda: host.sysfs.read(f"{types}/nvidia-713/create"))


def test_parents_are_vfs_or_the_card_never_both(make: MakeHost) -> None:
    host = make("a16")
    assert "mdev_supported_types" not in host.sysfs.listdir(PF)
    parents = host.sysfs.listdir("/sys/class/mdev_bus")
    assert len(parents) == 64
    assert set(VF) < set(parents)
    assert make("t4", "other").sysfs.listdir("/sys/class/mdev_bus") == ("0000:3b:00.0", "0000:af:00.0")


def test_one_on_a_vf_and_one_size_on_a_card(make: MakeHost) -> None:
    host = make("a16")
    assert {available(host, a, "nvidia-713") for a in VF} == {1}
    create(host, VF[0], "nvidia-713", 1)
    assert available(host, VF[0], "nvidia-713") == 0
    assert (available(host, VF[1], "nvidia-713"), available(host, VF[1], "nvidia-721")) == (1, 1)
    assert available(host, VF[1], "nvidia-712") == 0
    assert available(host, "0000:3f:00.4", "nvidia-712") == 1
    refused(errno.EEXIST, lambda: create(host, "0000:3f:00.4", "nvidia-709", 1))
    refused(errno.EIO, lambda: create(host, VF[0], "nvidia-713", 2))
    refused(errno.EIO, lambda: create(host, VF[1], "nvidia-712", 2))
    for number in (1, 2, 3):
        create(host, VF[number], "nvidia-721", number + 1)
    assert {available(host, a, "nvidia-713") for a in VF} == {0}
    refused(errno.EIO, lambda: create(host, VF[4], "nvidia-713", 9))


def test_an_old_driver_wants_the_very_same_type(make: MakeHost) -> None:
    host = make("t4")
    create(host, GPU, "nvidia-232", 1)
    assert available(host, GPU, "nvidia-232") == 3
    assert available(host, GPU, "nvidia-319") == 0, "T4-4C has T4-4Q's size, but the driver is 535"


def test_the_size_is_free_again_when_the_card_is_empty(make: MakeHost) -> None:
    host = make("t4")
    create(host, GPU, "nvidia-232", 1)
    remove(host, f"{MDEV}/{uuid(1)}/remove")
    assert available(host, GPU, "nvidia-230") == 16
    assert host.sysfs.listdir(MDEV) == ()


def test_the_device_has_its_paths(make: MakeHost) -> None:
    host = make("a16")
    host.sysfs.write(f"{PCI}/{VF[0]}/mdev_supported_types/nvidia-713/create", uuid(171).replace("4", "A").upper())
    name = uuid(171).replace("4", "a")
    where = host.sysfs.readlink(f"{MDEV}/{name}")
    assert where == f"../../../devices/pci0000:3a/0000:3a:00.0/{VF[0]}/{name}"
    assert host.sysfs.readlink(f"{MDEV}/{name}/mdev_type") == "../mdev_supported_types/nvidia-713"
    assert host.sysfs.read(f"{MDEV}/{name}/mdev_type/name") == "NVIDIA A16-4Q\n"
    assert host.sysfs.listdir(f"{PCI}/{VF[0]}/mdev_supported_types/nvidia-713/devices") == (name,)
    group = host.sysfs.readlink(f"{MDEV}/{name}/iommu_group").rpartition("/")[2]
    assert host.sysfs.listdir(f"/sys/kernel/iommu_groups/{group}/devices") == (name,)
    assert group in host.sysfs.listdir("/dev/vfio")


def test_params_and_the_vms_name(make: MakeHost) -> None:
    host = make("t4")
    create(host, GPU, "nvidia-232", 1)
    base = f"{MDEV}/{uuid(1)}/nvidia"
    host.sysfs.write(f"{base}/vgpu_params", "a=1\n")
    assert host.sysfs.read(f"{base}/vgpu_params") == "a=1\n"
    refused(errno.E2BIG, lambda: host.sysfs.write(f"{base}/vgpu_params", "x" * 1500))
    assert host.sysfs.read(f"{base}/vm_name") == "\n"
    run_vm(host, "user", 1, mdev_device(uuid(1)))
    assert host.sysfs.read(f"{base}/vm_name") == "user\n"
    refused(errno.EPERM, lambda: host.sysfs.write(f"{base}/vgpu_params", "a=2"))


def test_removing_one_in_use_is_parked_and_goes_on_when_the_vm_stops(make: MakeHost) -> None:
    host = make("t4")
    create(host, GPU, "nvidia-232", 1)
    vm = run_vm(host, "user", 1, mdev_device(uuid(1)))
    path = f"{MDEV}/{uuid(1)}/remove"
    with pytest.raises(AssertionError, match="would hang"):
        host.sysfs.write(path, "1")
    with pytest.raises(Stuck) as caught:
        remove(host, path)
    (stuck,) = host.stuck_writes()
    assert (stuck.path, stuck.gpu, stuck.text) == (path, GPU, "1\n")
    assert caught.value.facts["pid"] == stuck.process.pid
    assert host.is_alive(stuck.process)
    refused(errno.EAGAIN, lambda: remove(host, path))
    host.hypervisor.destroy(vm)
    assert host.stuck_writes() == ()
    assert not host.is_alive(stuck.process)
    assert host.sysfs.listdir(MDEV) == ()


def test_remove_wants_a_number_and_zero_does_nothing(make: MakeHost) -> None:
    host = make("t4")
    create(host, GPU, "nvidia-232", 1)
    refused(errno.EINVAL, lambda: host.sysfs.write(f"{MDEV}/{uuid(1)}/remove", "yes"))
    host.sysfs.write(f"{MDEV}/{uuid(1)}/remove", "0")
    assert host.sysfs.listdir(MDEV) == (uuid(1),)


@pytest.mark.parametrize(("refusal", "number"), [("ENOSPC", errno.ENOSPC), ("EUSERS", errno.EUSERS)])
def test_a_shared_counter_lowers_every_type(make: MakeHost, refusal: str, number: int) -> None:
    host = make(f"gpus: [{{model: mtty, units: 3, refusal: {refusal}}}]\n")
    base = "/sys/class/mdev_bus/mtty/mdev_supported_types"

    def free(kind: str) -> int:
        return int(host.sysfs.read(f"{base}/{kind}/available_instances"))

    assert (free("mtty-1"), free("mtty-2")) == (3, 1)
    host.sysfs.write(f"{base}/mtty-2/create", uuid(1))
    assert (free("mtty-1"), free("mtty-2")) == (1, 0)
    refused(number, lambda: host.sysfs.write(f"{base}/mtty-2/create", uuid(2)))
    assert "nvidia" not in host.sysfs.listdir(f"{MDEV}/{uuid(1)}")
    assert "description" not in host.sysfs.listdir(f"{base}/mtty-1")
    assert host.sysfs.readlink(f"{MDEV}/{uuid(1)}") == f"../../../devices/virtual/mtty/mtty/{uuid(1)}"


def test_gvt_g_shares_graphics_memory(make: MakeHost) -> None:
    host = make("gpus: [{model: GVT-g}]\n")
    igpu = "0000:00:02.0"
    assert host.sysfs.readlink(f"{PCI}/{igpu}") == f"../../../devices/pci0000:00/{igpu}"
    assert available(host, igpu, "i915-GVTg_V5_4") == 4
    create(host, igpu, "i915-GVTg_V5_2", 1)
    assert available(host, igpu, "i915-GVTg_V5_4") == 2
    assert available(host, igpu, "i915-GVTg_V5_1") == 0
    description = host.sysfs.read(f"{PCI}/{igpu}/mdev_supported_types/i915-GVTg_V5_4/description")
    assert description.splitlines()[1] == "high_gm_size: 512MB"


def test_ascends_types_share_every_resource_and_a_full_card_says_only_invalid(make: MakeHost) -> None:
    host = make("ascend")
    kinds = ("vir01", "vir02", "vir02_1c", "vir04", "vir04_3c", "vir04_4c_dvpp")

    def free() -> list[int]:
        return [available(host, GPU, f"vnpu-{kind}") for kind in kinds]

    assert free() == [7, 3, 4, 1, 2, 1]
    create(host, GPU, "vnpu-vir04_3c", 1)
    assert free() == [4, 2, 2, 1, 1, 0]
    create(host, GPU, "vnpu-vir04", 2)
    assert free() == [0] * len(kinds)
    refused(errno.EINVAL, lambda: create(host, GPU, "vnpu-vir01", 3))


def test_newer_ascends_give_each_vnpu_a_vf_and_keep_their_number_under_one(make: MakeHost) -> None:
    host = make('gpus: [{model: Ascend 910B, address: "0000:3b:00.0", vfs: {total: 12, enabled: 1}}]\n')
    assert available(host, GPU, "vnpu-vir06_1c_16g") == 4
    create(host, GPU, "vnpu-vir06_1c_16g", 1)
    assert available(host, GPU, "vnpu-vir06_1c_16g") == 0
    refused(errno.EINVAL, lambda: create(host, GPU, "vnpu-vir06_1c_16g", 2))
    refused(errno.EINVAL, lambda: host.sysfs.write(f"{PCI}/{GPU}/sriov_numvfs", "0\n"))


@pytest.mark.parametrize("name", ["vfio-pci", "pci-stub", "none"])
def test_a_card_that_a_generic_driver_has_since_the_boot_offers_nothing(make: MakeHost, name: str) -> None:
    for number, backend in enumerate(("mdev-pf", "mdev-vf", "vendor-vf")):
        host = make(f"gpus: [{{model: A40, driver: {name}, backend: {backend}}}]\n", str(number))
        entries = host.sysfs.listdir(PF)
        assert [entry for entry in entries if entry.startswith(("mdev", "virtfn"))] == []


def host(text: str) -> State:
    machine: Machine = build_machine(compile_scenario(f"version: 1\n{text}", "test.yaml"))
    return State(machine)


@pytest.mark.parametrize(("key", "most"), [("nvidia-468", 10), ("nvidia-473", 1), ("nvidia-474", 0)])
def test_an_empty_card(key: str, most: int) -> None:
    state = host("gpus: [{model: A100}]\n")
    (gpu,) = state.machine.gpus.values()
    assert count_available(state, gpu, gpu.types[key]) == most
    assert count_available_on(state, gpu, gpu.vfs[0], gpu.types[key]) == min(1, most)


@pytest.mark.parametrize(("driver", "left"), [("550.1", 7), ("535.1", 0)])
def test_series_mix_on_new_drivers(driver: str, left: int) -> None:
    state = host(f'nvidia: {{driver: "{driver}"}}\ngpus: [{{model: A16, backend: mdev-vf}}]\n')
    (gpu,) = state.machine.gpus.values()
    state.apply([["mdev", "u", gpu.vfs[0].address, "nvidia-712", 1]])
    assert count_available(state, gpu, gpu.types["nvidia-710"]) == left
    assert count_available(state, gpu, gpu.types["nvidia-712"]) == 7
    assert count_available(state, gpu, gpu.types["nvidia-713"]) == 0


def test_never_more_than_the_driver_has_slots_for() -> None:
    state = host(
        "gpus: [{model: X, backend: vendor-vf, profiles: [{name: X-1Q, id: 5, framebuffer_mib: 1, max: 99}]}]\n"
    )
    (gpu,) = state.machine.gpus.values()
    assert count_available(state, gpu, gpu.types["nvidia-5"]) == 32
