# SPDX-License-Identifier: Apache-2.0
"""VMs have the host's architecture: on an Arm host the machine virt with UEFI, and nothing that only a PC has."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import parse_root
from vgpuctl.errors import HostCannot, InvalidInput, LibvirtFailed
from vgpuctl.operations.diagnose import diagnose

ARM = "version: 1\narch: aarch64\nstorage: {pools: [{name: default}]}\n"
GPUS = "gpus:\n  - {model: Ascend 310P}\n"
IMAGES = "images:\n  - {path: /srv/bios.qcow2, size_gib: 2, firmware: bios}\n"


def test_a_vm_of_an_arm_host_is_a_virt_machine_with_uefi(tmp_path):
    host = open_sim_host(tmp_path, "ascend")
    create(host.ports, request("vir01", name="one"))
    domain = host.ports.hypervisor.find_domain("one")
    assert domain is not None
    for text in ("arch='aarch64' machine='virt-8.2'", "firmware='efi'", "qemu-system-aarch64", "<model type='virtio'"):
        assert text in domain.xml
    for text in ("x86_64", "q35", "<apic", "isa-serial", "sata", "vga", "pcihole64", "smm"):
        assert text not in domain.xml
    assert domain.live_xml is not None


@pytest.mark.parametrize("os", ["linux", "generic"])
def test_a_cd_rom_and_a_whole_gpu_are_accepted_there(tmp_path, os):
    text = ARM + "images:\n  - {path: /srv/debian.iso, size_gib: 1, firmware: both}\ngpus:\n  - {model: H100}\n"
    text = text.replace("model: H100", "model: A40, driver: vfio-pci")
    host = open_sim_host(tmp_path, text=text)
    create(host.ports, request(mode="passthrough", name="one", cdrom="/srv/debian.iso", os=os))
    xml = host.ports.hypervisor.find_domain("one").xml
    assert "bus='scsi'" in xml
    assert "model='virtio-scsi'" in xml


def test_an_x86_host_keeps_its_pc(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="one"))
    xml = host.ports.hypervisor.find_domain("one").xml
    assert "arch='x86_64' machine='pc-q35-8.2'" in xml
    assert "isa-serial" in xml


def test_what_needs_a_pc_is_refused_by_name(tmp_path):
    host = open_sim_host(tmp_path, text=ARM + IMAGES + GPUS)
    with pytest.raises(InvalidInput, match=r"bios.qcow2 boots only with BIOS, and VMs of this host \(aarch64\)"):
        create(host.ports, request("vir01", image="/srv/bios.qcow2"))
    with pytest.raises(HostCannot, match="Windows 11 VM needs a host with x86_64, and this one has aarch64"):
        create(host.ports, request("vir01", os="windows11", memory_mib=8192, vcpus=4))
    bare = open_sim_host(tmp_path / "bare", text=ARM + "libvirt: {uefi: false}\n" + GPUS)
    with pytest.raises(HostCannot, match="boot only with UEFI") as raised:
        create(bare.ports, request("vir01"))
    assert "qemu-efi-aarch64" in raised.value.hint


def test_libvirt_refuses_a_vm_of_another_architecture(tmp_path):
    arm, pc = open_sim_host(tmp_path / "arm", "ascend"), open_sim_host(tmp_path / "pc")
    create(pc.ports, request("A100-4C", name="one"), start=False)
    xml = pc.ports.hypervisor.find_domain("one").xml
    with pytest.raises(LibvirtFailed, match="could not find capabilities for arch=x86_64"):
        arm.ports.hypervisor.define(xml)
    with pytest.raises(LibvirtFailed, match="does not support machine type"):
        arm.ports.hypervisor.define(xml.replace("x86_64", "aarch64"))


def test_doctor_has_no_words_of_x86_there(tmp_path):
    host = open_sim_host(tmp_path, text=ARM + "iommu: false\nlibvirt: {kvm: false, uefi: false}\n" + GPUS)
    checks = {check.id: check for check in diagnose(host.ports).checks}
    for name, words in (("iommu", "SMMU"), ("kvm", "EL2"), ("uefi", "qemu-efi-aarch64")):
        assert words in checks[name].fix
    text = " ".join(f"{check.fix} {check.evidence}" for check in checks.values())
    assert not [word for word in ("intel_iommu", "VT-d", "VT-x", "kvm_intel", "ovmf") if word in text]
    pc = open_sim_host(tmp_path / "pc", text="version: 1\niommu: false\ngpus:\n  - {model: A100}\n")
    assert "intel_iommu=on" in next(c.fix for c in diagnose(pc.ports, ("iommu",)).checks)


def test_a_video_card_that_comes_back_is_one_that_the_machine_has(tmp_path):
    host = open_sim_host(tmp_path, "ascend")
    create(host.ports, request("vir01", name="one"), start=False)
    xml = host.ports.hypervisor.find_domain("one").xml
    edited = parse_root(edit_domain(xml, DomainEdit(display=False)))
    assert [model.get("type") for model in edited.findall("devices/video/model")] == ["virtio"]
