# SPDX-License-Identifier: Apache-2.0
"""SR-IOV and vendor-specific VFIO: what tests/contract does not have of their files; binding of drivers by hand."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import (
    GPU,
    PCI,
    PF,
    MakeHost,
    create,
    mdev_device,
    pci_device,
    refused,
    remove,
    run_vm,
    set_type,
    uuid,
    vf,
)
from vgpuctl.errors import Stuck
from vgpuctl.sim import SimHost

NUMVFS = f"{PF}/sriov_numvfs"
FLEX = "gpus: [{model: Flex 170, vfs: {total: 8, enabled: 0}}]\n"


def vfs(host: SimHost) -> int:
    return sum(name.startswith("virtfn") for name in host.sysfs.listdir(PF))


@pytest.mark.parametrize("junk", ["many", "-1", "65536", "1_0", "", "0x", "08"])
def test_not_a_16_bit_number_is_einval(make: MakeHost, junk: str) -> None:
    host = make(FLEX)
    refused(errno.EINVAL, lambda: host.sysfs.write(NUMVFS, junk))


@pytest.mark.parametrize(("text", "number"), [("0x5", 5), ("05", 5), ("+5\n", 5)])
def test_numbers_as_the_kernel_reads_them(make: MakeHost, text: str, number: int) -> None:
    host = make(FLEX)
    host.sysfs.write(NUMVFS, text)
    assert vfs(host) == number


@pytest.mark.parametrize("driver", ["nvidia", "gim"])
def test_a_driver_without_callback_is_enoent_but_takes_its_own_number(make: MakeHost, driver: str) -> None:
    model = {"nvidia": "A100", "gim": "V710"}[driver]
    host = make(f"gpus: [{{model: {model}, vfs: {{enabled: 4}}}}]\n")
    refused(errno.ENOENT, lambda: host.sysfs.write(NUMVFS, "0"))
    refused(errno.ENOENT, lambda: host.sysfs.write(NUMVFS, "2"))
    refused(errno.ERANGE, lambda: host.sysfs.write(NUMVFS, "99"))
    host.sysfs.write(NUMVFS, "4")
    assert vfs(host) == 4


def test_no_driver_is_enoent(make: MakeHost) -> None:
    host = make(FLEX)
    remove(host, "/sys/bus/pci/drivers/i915/unbind", GPU)
    refused(errno.ENOENT, lambda: host.sysfs.write(NUMVFS, "1"))


def test_vfs_take_their_vgpus_along(make: MakeHost) -> None:
    host = make("gpus: [{model: A16, backend: mdev-vf, configurable: true}]\n")
    create(host, "0000:3b:00.4", "nvidia-713", 1)
    remove(host, NUMVFS, "0")
    assert host.sysfs.listdir("/sys/bus/mdev/devices") == ()
    host.sysfs.write(NUMVFS, "16")
    assert host.sysfs.listdir("/sys/bus/mdev/devices") == ()


def test_a_vf_in_use_parks_the_writer(make: MakeHost) -> None:
    host = make(FLEX)
    host.sysfs.write(NUMVFS, "2")
    vm = run_vm(host, "user", 1, pci_device("0000:3b:00.4", managed=True))
    with pytest.raises(Stuck):
        remove(host, NUMVFS, "0")
    assert vfs(host) == 2
    host.hypervisor.shutdown(vm)
    assert vfs(host) == 0


def test_an_mdev_in_use_on_a_vf_parks_it_too(make: MakeHost) -> None:
    host = make("gpus: [{model: A16, backend: mdev-vf, configurable: true}]\n")
    create(host, "0000:3b:00.4", "nvidia-713", 1)
    run_vm(host, "user", 1, mdev_device(uuid(1)))
    with pytest.raises(Stuck):
        remove(host, NUMVFS, "0")


def test_autoprobe_off_leaves_new_vfs_without_driver(make: MakeHost) -> None:
    host = make("gpus: [{model: A16, backend: mdev-vf, configurable: true, vfs: {enabled: 0}}]\n")
    host.sysfs.write(f"{PF}/sriov_drivers_autoprobe", "0")
    host.sysfs.write(NUMVFS, "1")
    assert "driver" not in host.sysfs.listdir(f"{PF}/virtfn0")
    assert host.sysfs.read(f"{PF}/sriov_drivers_autoprobe") == "0\n"
    refused(errno.EINVAL, lambda: host.sysfs.write(f"{PF}/sriov_drivers_autoprobe", "maybe"))


def test_48_vfs_leave_the_slot(make: MakeHost) -> None:
    host = make("gpus: [{model: Flex 170, vfs: {total: 48, enabled: 48}}]\n")
    assert host.sysfs.readlink(f"{PF}/virtfn47") == "../0000:3b:06.3"


CURRENT = f"{vf(0)}/nvidia/current_vgpu_type"
PARAMS = f"{vf(0)}/nvidia/vgpu_params"
VF0 = "0000:3b:00.4"


def listed(host, number: int) -> str:
    return host.sysfs.read(f"{vf(number)}/nvidia/creatable_vgpu_types")


def test_lists_what_can_be_made_with_the_drivers_own_columns(make: MakeHost) -> None:
    host = make("a100-40")
    lines = listed(host, 0).splitlines()
    assert lines[:2] == ["ID    : vGPU Name", "468   : GRID A100-4C"]
    assert len(lines) == 7
    assert not any("1-5C" in line for line in lines), "MIG types need MIG"


def test_some_drivers_print_no_header(make: MakeHost) -> None:
    host = make("gpus: [{model: A100, types_header: false}]\n")
    assert listed(host, 0).startswith("468   : ")


def test_a_vf_in_use_keeps_type_and_params(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    vm = run_vm(host, "user", 1, pci_device(VF0, managed=False))
    refused(errno.EPERM, lambda: host.sysfs.write(CURRENT, "0"))
    refused(errno.EPERM, lambda: remove(host, CURRENT, "0"))
    refused(errno.EPERM, lambda: host.sysfs.write(PARAMS, "a=1"))
    host.hypervisor.destroy(vm)
    host.sysfs.write(CURRENT, "0")


def test_params_are_cleared_and_go_with_the_type(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    host.sysfs.write(PARAMS, "frame_rate_limiter=0, disable_vnc=1\n")
    assert host.sysfs.read(PARAMS) == "frame_rate_limiter=0, disable_vnc=1\n"
    host.sysfs.write(PARAMS, " ")
    assert host.sysfs.read(PARAMS) == ""
    host.sysfs.write(PARAMS, "a=1")
    host.sysfs.write(CURRENT, "0")
    set_type(host, 0, 468)
    assert host.sysfs.read(PARAMS) == ""


def test_modes_and_places(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.EACCES, lambda: host.sysfs.write(f"{vf(0)}/nvidia/creatable_vgpu_types", "1"))
    refused(errno.ENOENT, lambda: host.sysfs.read(f"{PF}/nvidia/current_vgpu_type"))
    assert host.sysfs.listdir(f"{vf(0)}/vfio-dev") == ("vfio8",)


def test_no_vfio_dev_before_kernel_6_1(make: MakeHost) -> None:
    host = make('kernel: "5.15.0"\ngpus: [{model: A100, backend: vendor-vf}]\n')
    assert "vfio-dev" not in host.sysfs.listdir(vf(0))


DRIVERS = "/sys/bus/pci/drivers"


def driver(host: SimHost, address: str) -> str | None:
    path = f"{PCI}/{address}"
    if "driver" not in host.sysfs.listdir(path):
        return None
    return host.sysfs.readlink(f"{path}/driver").rpartition("/")[2]


def test_override_unbind_probe_is_the_way_to_vfio_pci(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    refused(errno.ENODEV, lambda: host.sysfs.write(f"{DRIVERS}/vfio-pci/bind", GPU))
    host.sysfs.write(f"{PF}/driver_override", "vfio-pci\n")
    refused(errno.EBUSY, lambda: host.sysfs.write(f"{DRIVERS}/vfio-pci/bind", GPU))
    remove(host, f"{PF}/driver/unbind", f"{GPU}\n")
    assert driver(host, GPU) is None
    assert host.sysfs.read(f"{PF}/sriov_numvfs") == "0\n", "the PF's driver takes its VFs along"
    host.sysfs.write("/sys/bus/pci/drivers_probe", GPU)
    assert driver(host, GPU) == "vfio-pci"
    assert GPU in host.sysfs.listdir(f"{DRIVERS}/vfio-pci")
    assert host.nvml.gpu(GPU) is None
    host.sysfs.write(f"{PF}/driver_override", "\n")
    assert host.sysfs.read(f"{PF}/driver_override") == "(null)\n"


def test_a_vendor_vf_refuses_vfio_pci(make: MakeHost) -> None:
    host = make("a100-40")
    address = "0000:3b:00.4"
    host.sysfs.write(f"{PCI}/{address}/driver_override", "vfio-pci")
    remove(host, f"{DRIVERS}/nvidia/unbind", address)
    refused(errno.EINVAL, lambda: host.sysfs.write(f"{DRIVERS}/vfio-pci/bind", address))
    assert "nvidia" not in host.sysfs.listdir(f"{PCI}/{address}")


def test_only_its_own_driver_lets_a_device_go(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.ENODEV, lambda: host.sysfs.write(f"{DRIVERS}/vfio-pci/unbind", GPU))
    refused(errno.ENODEV, lambda: host.sysfs.write(f"{DRIVERS}/nvidia/unbind", "0000:99:00.0"))


def test_unbinding_a_card_in_use_is_parked(make: MakeHost) -> None:
    host = make("t4")
    create(host, GPU, "nvidia-232", 1)
    vm = run_vm(host, "user", 1, mdev_device(uuid(1)))
    with pytest.raises(Stuck):
        remove(host, f"{DRIVERS}/nvidia/unbind", GPU)
    assert driver(host, GPU) == "nvidia"
    host.hypervisor.destroy(vm)
    assert driver(host, GPU) is None
    assert host.sysfs.listdir("/sys/bus/mdev/devices") == ()


def test_none_as_override_keeps_every_driver_away(make: MakeHost) -> None:
    host = make("t4")
    host.sysfs.write(f"{PF}/driver_override", "none")
    remove(host, f"{DRIVERS}/nvidia/unbind", GPU)
    host.sysfs.write("/sys/bus/pci/drivers_probe", GPU)
    assert driver(host, GPU) is None
