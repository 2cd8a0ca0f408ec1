# SPDX-License-Identifier: Apache-2.0
"""IOMMU, KVM, VFIO, UEFI."""

from __future__ import annotations

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot, t4
from vgpuctl.doctor.check import FolderListing, Verdict
from vgpuctl.model.gpu import Backend
from vgpuctl.model.port_values import HypervisorCapabilities

CAPABLE = HypervisorCapabilities(kvm=True, uefi=True, emulator="/usr/bin/qemu-system-x86_64")
PLAIN = HypervisorCapabilities(kvm=False, uefi=False, emulator="/usr/bin/qemu-system-x86_64")
GROUPS, CMDLINE = "/sys/kernel/iommu_groups", "/proc/cmdline"


def test_iommu_groups_mean_that_it_is_on():
    result = run_check("iommu", files={CMDLINE: "ro intel_iommu=on iommu=pt quiet\n"}, folders={GROUPS: ("0", "1")})
    assert result.verdict is Verdict.OK
    assert result.evidence == (f"{GROUPS}: 2 groups", f"{CMDLINE}: intel_iommu=on iommu=pt")


def test_no_iommu_group_fails_with_any_command_line():
    result = run_check("iommu", files={CMDLINE: "ro intel_iommu=on\n"}, folders={GROUPS: ()})
    assert result.verdict is Verdict.FAIL
    assert "intel_iommu=on" in finding_text(result)
    assert "VT-d" in (result.fix or "")
    assert "already enables it" in (result.fix or "")
    bare = run_check("iommu", files={CMDLINE: "ro quiet\n"}, folders={GROUPS: ()})
    assert "add intel_iommu=on iommu=pt" in (bare.fix or "")


def test_iommu_groups_that_cannot_be_listed_are_unknown():
    closed = FolderListing(problem=f"{GROUPS}: Permission denied")
    assert run_check("iommu", files={CMDLINE: "ro"}, folders={GROUPS: closed}).verdict is Verdict.UNKNOWN
    assert run_check("iommu").verdict is Verdict.UNKNOWN, "an empty tree is no host without an IOMMU"


def test_kvm_is_there_and_libvirt_uses_it():
    assert run_check("kvm", folders={"/dev": ("kvm", "null")}, capabilities=CAPABLE).verdict is Verdict.OK


def test_no_kvm_device_fails_and_so_does_a_libvirt_without_it():
    assert run_check("kvm", folders={"/dev": ("null",)}, capabilities=CAPABLE).verdict is Verdict.FAIL
    assert run_check("kvm", folders={"/dev": ("kvm",)}, capabilities=PLAIN).verdict is Verdict.FAIL


def test_kvm_is_unknown_without_dev():
    assert run_check("kvm").verdict is Verdict.UNKNOWN


def test_vfio_is_loaded():
    folders = {"/dev/vfio": ("vfio",), "/sys/bus/pci/drivers": ("nvidia", "vfio-pci")}
    assert run_check("vfio", snapshot(a100()), folders=folders).verdict is Verdict.OK


def test_a_host_without_vfio_fails():
    assert run_check("vfio", snapshot(a100())).verdict is Verdict.FAIL


def test_vfio_pci_is_only_missed_for_whole_functions():
    folders = {"/dev/vfio": ("vfio",), "/sys/bus/pci/drivers": ("nvidia",)}
    whole = a100(backend=Backend.PASSTHROUGH)
    assert run_check("vfio", snapshot(whole), folders=folders).verdict is Verdict.WARN
    assert run_check("vfio", snapshot(t4()), folders=folders).verdict is Verdict.OK
    assert run_check("vfio", snapshot(), folders=folders).verdict is Verdict.NOT_APPLICABLE


def test_uefi_firmware_is_missed_with_a_package_name():
    assert run_check("uefi", snapshot(), capabilities=CAPABLE).verdict is Verdict.OK
    result = run_check("uefi", snapshot(), capabilities=PLAIN)
    assert (result.verdict, "ovmf" in (result.fix or "")) == (Verdict.WARN, True)
    assert run_check("uefi", snapshot(), capabilities_problem="libvirt is off").evidence == ("libvirt is off",)
