# SPDX-License-Identifier: Apache-2.0
"""SR-IOV: the order of the checks of `sriov_numvfs`, and what disappears with the VFs."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import GPU, PCI, PF, MakeHost, create, mdev_device, pci_device, refused, remove, run_vm, uuid
from vgpuctl.errors import Stuck
from vgpuctl.sim import SimHost

NUMVFS = f"{PF}/sriov_numvfs"
FLEX = "gpus: [{model: Flex 170, vfs: {total: 8, enabled: 0}}]\n"


def vfs(host: SimHost) -> int:
    return sum(name.startswith("virtfn") for name in host.sysfs.listdir(PF))


def test_vfs_appear_and_go(make: MakeHost) -> None:
    host = make(FLEX)
    assert (vfs(host), host.sysfs.read(NUMVFS), host.sysfs.read(f"{PF}/sriov_totalvfs")) == (0, "0\n", "8\n")
    host.sysfs.write(NUMVFS, "5\n")
    assert vfs(host) == 5
    assert host.sysfs.readlink(f"{PF}/virtfn4") == "../0000:3b:01.0"
    assert host.sysfs.readlink(f"{PCI}/0000:3b:01.0/physfn") == f"../{GPU}"
    assert "driver" not in host.sysfs.listdir(f"{PCI}/0000:3b:01.0")
    refused(errno.EBUSY, lambda: host.sysfs.write(NUMVFS, "6"))
    remove(host, NUMVFS, "0")
    assert vfs(host) == 0
    refused(errno.ENOENT, lambda: host.sysfs.read(f"{PCI}/0000:3b:01.0/vendor"))


@pytest.mark.parametrize("junk", ["many", "-1", "65536", "1_0", "", "0x", "08"])
def test_not_a_16_bit_number_is_einval(make: MakeHost, junk: str) -> None:
    host = make(FLEX)
    refused(errno.EINVAL, lambda: host.sysfs.write(NUMVFS, junk))


@pytest.mark.parametrize(("text", "number"), [("0x5", 5), ("05", 5), ("+5\n", 5)])
def test_numbers_as_the_kernel_reads_them(make: MakeHost, text: str, number: int) -> None:
    host = make(FLEX)
    host.sysfs.write(NUMVFS, text)
    assert vfs(host) == number


def test_above_the_total_is_erange(make: MakeHost) -> None:
    refused(errno.ERANGE, lambda: make(FLEX).sysfs.write(NUMVFS, "9"))


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
