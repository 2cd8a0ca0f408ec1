# SPDX-License-Identifier: Apache-2.0
"""Starting with host devices: what libvirt, VFIO and QEMU check."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import (
    GPU,
    PCI,
    PF,
    MakeHost,
    create,
    domain_xml,
    libvirt_refused,
    mdev_device,
    pci_device,
    run_vm,
    set_type,
    uuid,
    vf,
)
from tests.unit.sim.test_sriov import driver
from vgpuctl.model.vm import VmState

VF0 = "0000:3b:00.4"


def test_an_mdev_must_exist_and_be_free(make: MakeHost) -> None:
    host = make("t4")
    libvirt_refused(99, lambda: run_vm(host, "a", 1, mdev_device(uuid(1))))
    create(host, GPU, "nvidia-232", 1)
    host.hypervisor.start(uuid(1))
    assert "domain a" in libvirt_refused(55, lambda: run_vm(host, "b", 2, mdev_device(uuid(1))))
    host.hypervisor.destroy(uuid(1))
    host.hypervisor.start(uuid(2))


def test_a_vendor_vf_needs_its_type(make: MakeHost) -> None:
    host = make("a100-40")
    text = libvirt_refused(1, lambda: run_vm(host, "a", 1, pci_device(VF0, managed=False)))
    assert "error getting device from group 100: No such device" in text
    set_type(host, 0, 468)
    host.hypervisor.start(uuid(1))
    assert "domain a" in libvirt_refused(55, lambda: run_vm(host, "b", 2, pci_device(VF0, managed=False)))


def test_a_vendor_vf_is_never_managed(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    libvirt_refused(1, lambda: run_vm(host, "a", 1, pci_device(VF0, managed=True)))
    assert driver(host, VF0) == "nvidia"


@pytest.mark.parametrize("old", ['libvirt: {version: "9.0.0"}\n', 'kernel: "5.15.0"\n'])
def test_an_old_libvirt_or_kernel_does_not_know_variants(make: MakeHost, old: str) -> None:
    host = make(f"{old}gpus: [{{model: A100, backend: vendor-vf}}]\n")
    set_type(host, 0, 468)
    text = libvirt_refused(55, lambda: run_vm(host, "a", 1, pci_device(VF0, managed=False)))
    assert "must be manually detached" in text


def test_a_managed_vf_is_detached_and_back(make: MakeHost) -> None:
    host = make("gpus: [{model: Flex 170, vfs: {total: 4, enabled: 2}}]\n")
    libvirt_refused(55, lambda: run_vm(host, "a", 1, pci_device(VF0, managed=False)))
    host.hypervisor.undefine(uuid(1))
    vm = run_vm(host, "a", 1, pci_device(VF0, managed=True))
    assert driver(host, VF0) == "vfio-pci"
    assert host.sysfs.listdir(f"{vf(0)}/vfio-dev")
    host.hypervisor.shutdown(vm)
    assert driver(host, VF0) is None


def test_a_whole_card_with_its_audio(make: MakeHost) -> None:
    host = make("gpus: [{model: RTX 4090, driver: nouveau, companions: [{driver: snd_hda_intel}]}]\n")
    audio = "0000:3b:00.1"
    assert host.sysfs.listdir("/sys/kernel/iommu_groups/20/devices") == (GPU, audio)
    text = libvirt_refused(1, lambda: run_vm(host, "a", 1, pci_device(GPU, managed=True)))
    assert "group 20 is not viable" in text
    assert driver(host, GPU) == "nouveau"
    vm = run_vm(host, "b", 2, pci_device(GPU, managed=True), pci_device(audio, managed=True))
    assert (driver(host, GPU), driver(host, audio)) == ("vfio-pci", "vfio-pci")
    host.hypervisor.destroy(vm)
    assert (driver(host, GPU), driver(host, audio)) == ("nouveau", "snd_hda_intel")


def test_two_cards_in_one_group_go_to_one_vm(make: MakeHost) -> None:
    host = make("gpus: [{model: RTX 4090, iommu_group: 9}, {model: RTX 4090, iommu_group: 9}]\n")
    run_vm(host, "a", 1, pci_device(GPU, managed=False))
    text = libvirt_refused(1, lambda: run_vm(host, "b", 2, pci_device("0000:3f:00.0", managed=False)))
    assert "busy" in text


def test_taking_a_pf_takes_its_vfs_and_is_refused_while_one_is_used(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    vm = run_vm(host, "a", 1, pci_device(VF0, managed=False))
    libvirt_refused(55, lambda: run_vm(host, "b", 2, pci_device(GPU, managed=True)))
    host.hypervisor.destroy(vm)
    host.hypervisor.start(uuid(2))
    assert host.sysfs.read(f"{PF}/sriov_numvfs") == "0\n"
    libvirt_refused(38, lambda: host.hypervisor.start(uuid(1)))


def test_missing_devices_and_no_iommu(make: MakeHost) -> None:
    host = make("iommu: false\ngpus: [{model: RTX 4090}]\n")
    libvirt_refused(67, lambda: run_vm(host, "a", 1, pci_device(GPU, managed=False)))
    assert "iommu_group" not in host.sysfs.listdir(PF)
    assert host.sysfs.listdir("/sys/class/iommu") == ()
    host = make("a100-40", "other")
    libvirt_refused(38, lambda: run_vm(host, "a", 1, pci_device("0000:99:00.0", managed=True)))


def test_a_failed_start_leaves_nothing(make: MakeHost) -> None:
    host = make("mixed")
    set_type(host, 0, 468)
    flex = "0000:86:00.4"
    devices = (pci_device(VF0, managed=False), pci_device(flex, managed=True), mdev_device(uuid(9)))
    libvirt_refused(99, lambda: run_vm(host, "a", 1, *devices))
    assert driver(host, flex) is None
    assert {d.name: d.state for d in host.hypervisor.domains()}["a"] is VmState.STOPPED
    run_vm(host, "b", 2, devices[0], devices[1])
    assert host.sysfs.listdir(f"{PCI}/{flex}")
    assert domain_xml("b", 2)


def shown(number: int, ramfb: str = "on") -> str:
    return mdev_device(uuid(number)).replace("type='mdev'", f"type='mdev' display='on' ramfb='{ramfb}'")


GRAPHICS = "<graphics type='vnc'/><video><model type='none'/></video>"


def test_qemu_takes_one_ramfb(make: MakeHost) -> None:
    host = make("t4")
    for number in (1, 2):
        create(host, GPU, "nvidia-232", number)
    text = libvirt_refused(1, lambda: run_vm(host, "a", 3, shown(1) + shown(2) + GRAPHICS))
    assert "duplicate fw_cfg file name: etc/ramfb" in text
    run_vm(host, "b", 4, shown(1) + shown(2, "off") + GRAPHICS)
