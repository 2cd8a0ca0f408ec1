# SPDX-License-Identifier: Apache-2.0
"""IOMMU, KVM, VFIO and firmware; kernel, libvirt and QEMU versions; AppArmor and Secure Boot."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, snapshot, t4
from vgpuctl.doctor.check import FileContent, FolderListing, Verdict
from vgpuctl.doctor.virtualization import (
    APPARMOR_ENABLED,
    APPARMOR_PROFILES,
    EFI_DIRECTORY,
    EFI_VARIABLES,
    SECURE_BOOT_VARIABLE,
)
from vgpuctl.model.gpu import Backend
from vgpuctl.model.port_values import HypervisorCapabilities, HypervisorStatus

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


RELEASE = "/proc/sys/kernel/osrelease"


def libvirt(version: int | None = 10_000_000, qemu: int | None = 8_002_002, **more) -> HypervisorStatus:
    values = {"available": True, "uri": "qemu:///system", "libvirt_version": version, "qemu_version": qemu}
    return HypervisorStatus(**{**values, **more})


@pytest.mark.parametrize(
    ("gpu", "release", "verdict"),
    [
        (a100(), "6.8.0-45-generic\n", Verdict.OK),
        (a100(), "5.15.0-100-generic\n", Verdict.FAIL),
        (t4(), "5.15.0-100-generic\n", Verdict.OK),
    ],
)
def test_the_kernel_is_checked_by_the_gpus_needs(gpu, release, verdict):
    result = run_check("kernel", snapshot(gpu), files={RELEASE: release})
    assert result.verdict is verdict
    assert release.strip() in finding_text(result)


def test_an_unreported_kernel_is_unknown():
    assert run_check("kernel", snapshot(a100())).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("gpu", "version", "verdict"),
    [
        (a100(), 10_000_000, Verdict.OK),
        (a100(), 9_000_000, Verdict.FAIL),
        (t4(), 9_000_000, Verdict.OK),
        (t4(), 7_000_000, Verdict.WARN),
        (t4(), None, Verdict.UNKNOWN),
    ],
)
def test_libvirt_is_checked_by_the_gpus_needs(gpu, version, verdict):
    assert run_check("libvirt", snapshot(gpu, hypervisor=libvirt(version))).verdict is verdict


def test_a_libvirt_that_does_not_answer_fails_with_its_own_reason():
    off = libvirt(None, available=False, reason="Connection refused")
    result = run_check("libvirt", snapshot(hypervisor=off))
    assert result.verdict is Verdict.FAIL
    assert result.evidence == ("libvirt does not answer at qemu:///system: Connection refused",)


def test_an_unqueried_libvirt_is_unknown():
    off = libvirt(None, available=False, uri="", reason="libvirt is not used: --root")
    assert run_check("libvirt", snapshot(hypervisor=off)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("uri", ["qemu:///session", "test:///default"])
def test_a_libvirt_without_the_hosts_vms_fails(uri):
    assert run_check("libvirt", snapshot(hypervisor=libvirt(uri=uri))).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("version", "qemu", "verdict"),
    [
        (12_004_000, 7_002_000, Verdict.OK),
        (12_004_000, 7_001_000, Verdict.FAIL),
        (12_003_000, 6_002_000, Verdict.OK),
        (10_000_000, None, Verdict.UNKNOWN),
    ],
)
def test_qemu_is_checked_as_libvirt_starts_it(version, qemu, verdict):
    assert run_check("qemu", snapshot(hypervisor=libvirt(version, qemu))).verdict is verdict


ON, OFF = "\x06\x00\x00\x00\x01", "\x06\x00\x00\x00\x00"


def test_apparmor_with_libvirts_profile():
    result = run_check(
        "apparmor", files={APPARMOR_ENABLED: "Y\n", APPARMOR_PROFILES: "man_filter (enforce)\nlibvirtd (enforce)\n"}
    )
    assert result.verdict is Verdict.OK
    assert "libvirtd (enforce)" in finding_text(result)


def test_apparmor_without_libvirts_profile_is_a_warning():
    profiles = "man_filter (enforce)\nlibvirtd//qemu_bridge_helper (enforce)\n"
    assert run_check("apparmor", files={APPARMOR_ENABLED: "Y\n", APPARMOR_PROFILES: profiles}).verdict is Verdict.WARN


def test_a_host_without_apparmor_has_nothing_to_check():
    assert run_check("apparmor", files={APPARMOR_ENABLED: "N\n"}).verdict is Verdict.NOT_APPLICABLE
    assert run_check("apparmor").verdict is Verdict.NOT_APPLICABLE


def test_profiles_that_only_root_sees_are_unknown():
    closed = FileContent(problem=f"{APPARMOR_PROFILES}: Permission denied")
    result = run_check("apparmor", files={APPARMOR_ENABLED: "Y\n", APPARMOR_PROFILES: closed})
    assert (result.verdict, result.fix) == (Verdict.UNKNOWN, "run it as root")


@pytest.mark.parametrize(
    ("value", "driver", "verdict"),
    [(ON, "nvidia", Verdict.OK), (OFF, None, Verdict.OK), (ON, None, Verdict.FAIL)],
)
def test_secure_boot_only_matters_when_the_driver_is_missing(value, driver, verdict):
    result = run_check(
        "secure-boot",
        snapshot(a100(driver=driver)),
        files={SECURE_BOOT_VARIABLE: value},
        folders={EFI_DIRECTORY: ("efivars",)},
    )
    assert result.verdict is verdict


def test_a_host_that_was_booted_by_bios_has_no_secure_boot():
    assert run_check("secure-boot", snapshot(a100())).verdict is Verdict.NOT_APPLICABLE
    assert run_check("secure-boot", snapshot(a100()), folders={EFI_DIRECTORY: ()}).verdict is Verdict.UNKNOWN


def test_firmware_without_the_variable_has_no_secure_boot():
    folders = {EFI_DIRECTORY: ("efivars",), EFI_VARIABLES: ("BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c",)}
    assert run_check("secure-boot", snapshot(a100()), folders=folders).verdict is Verdict.OK
