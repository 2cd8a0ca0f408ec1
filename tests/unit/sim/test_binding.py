# SPDX-License-Identifier: Apache-2.0
"""Binding and unbinding of drivers by hand."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import GPU, PCI, PF, MakeHost, create, mdev_device, refused, remove, run_vm, set_type, uuid
from vgpuctl.errors import Stuck
from vgpuctl.sim import SimHost

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
