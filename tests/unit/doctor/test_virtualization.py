# SPDX-License-Identifier: Apache-2.0
"""IOMMU, KVM, VFIO and firmware; kernel, libvirt and QEMU versions; AppArmor and Secure Boot."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import (
    FAIL,
    NOT_APPLICABLE,
    OK,
    UNKNOWN,
    WARN,
    Case,
    assert_verdict,
    case,
    run_check,
)
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
RELEASE = "/proc/sys/kernel/osrelease"
VFIO = {"/dev/vfio": ("vfio",), "/sys/bus/pci/drivers": ("nvidia", "vfio-pci")}
NO_VFIO_PCI = {"/dev/vfio": ("vfio",), "/sys/bus/pci/drivers": ("nvidia",)}
ENFORCED = "man_filter (enforce)\nlibvirtd (enforce)\n"
BRIDGE_HELPER = "man_filter (enforce)\nlibvirtd//qemu_bridge_helper (enforce)\n"
ON, OFF = "\x06\x00\x00\x00\x01", "\x06\x00\x00\x00\x00"
BOOT_ORDER = "BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def libvirt(version: int | None = 10_000_000, qemu: int | None = 8_002_002, **more: object) -> HypervisorStatus:
    values = {"available": True, "uri": "qemu:///system", "libvirt_version": version, "qemu_version": qemu}
    return HypervisorStatus(**{**values, **more})


def iommu(verdict: Verdict, *words: str, line: str, groups: object) -> Case:
    return case("iommu", verdict, *words, files={CMDLINE: line}, folders={GROUPS: groups})


def libvirt_case(verdict: Verdict, status: HypervisorStatus, *words: str, gpu: object = None) -> Case:
    gpus = () if gpu is None else (gpu,)
    return case("libvirt", verdict, *words, snapshot=snapshot(*gpus, hypervisor=status))


def kernel(verdict: Verdict, gpu: object, release: str) -> Case:
    return case("kernel", verdict, release, snapshot=snapshot(gpu), files={RELEASE: f"{release}\n"})


def apparmor(verdict: Verdict, *words: str, enabled: str = "Y\n", profiles: object = "") -> Case:
    return case("apparmor", verdict, *words, files={APPARMOR_ENABLED: enabled, APPARMOR_PROFILES: profiles})


CASES = {
    "groups mean that the IOMMU is on": iommu(
        OK, f"{GROUPS}: 2 groups", f"{CMDLINE}: intel_iommu=on iommu=pt",
        line="ro intel_iommu=on iommu=pt quiet\n", groups=("0", "1"),
    ),
    "no group, whatever the command line": iommu(
        FAIL, "intel_iommu=on", "VT-d", "already enables it", line="ro intel_iommu=on\n", groups=()
    ),
    "no group and no word for it": iommu(FAIL, "add intel_iommu=on iommu=pt", line="ro quiet\n", groups=()),
    "groups that cannot be listed": iommu(
        UNKNOWN, line="ro", groups=FolderListing(problem=f"{GROUPS}: Permission denied")
    ),
    "an empty tree is no host without an IOMMU": case("iommu", UNKNOWN),
    "KVM is there and libvirt uses it": case("kvm", OK, folders={"/dev": ("kvm", "null")}, capabilities=CAPABLE),
    "no KVM device": case("kvm", FAIL, folders={"/dev": ("null",)}, capabilities=CAPABLE),
    "a libvirt without KVM": case("kvm", FAIL, folders={"/dev": ("kvm",)}, capabilities=PLAIN),
    "KVM without /dev": case("kvm", UNKNOWN),
    "VFIO is loaded": case("vfio", OK, snapshot=snapshot(a100()), folders=VFIO),
    "a host without VFIO": case("vfio", FAIL, snapshot=snapshot(a100())),
    "vfio-pci is missed for whole functions": case(
        "vfio", WARN, snapshot=snapshot(a100(backend=Backend.PASSTHROUGH)), folders=NO_VFIO_PCI
    ),
    "vfio-pci is missed for nothing else": case("vfio", OK, snapshot=snapshot(t4()), folders=NO_VFIO_PCI),
    "VFIO without a GPU": case("vfio", NOT_APPLICABLE, snapshot=snapshot(), folders=NO_VFIO_PCI),
    "UEFI firmware is there": case("uefi", OK, snapshot=snapshot(), capabilities=CAPABLE),
    "UEFI firmware is missed with its package": case("uefi", WARN, "ovmf", snapshot=snapshot(), capabilities=PLAIN),
    "UEFI without libvirt": case(
        "uefi", UNKNOWN, "libvirt is off", snapshot=snapshot(), capabilities_problem="libvirt is off"
    ),
    "a kernel for vendor-specific VFIO": kernel(OK, a100(), "6.8.0-45-generic"),
    "a kernel too old for vendor-specific VFIO": kernel(FAIL, a100(), "5.15.0-100-generic"),
    "an old kernel for mdevs": kernel(OK, t4(), "5.15.0-100-generic"),
    "an unreported kernel": case("kernel", UNKNOWN, snapshot=snapshot(a100())),
    "a libvirt for vendor-specific VFIO": libvirt_case(OK, libvirt(10_000_000), gpu=a100()),
    "a libvirt too old for vendor-specific VFIO": libvirt_case(FAIL, libvirt(9_000_000), gpu=a100()),
    "a libvirt for mdevs": libvirt_case(OK, libvirt(9_000_000), gpu=t4()),
    "an old libvirt": libvirt_case(WARN, libvirt(7_000_000), gpu=t4()),
    "a libvirt of unknown version": libvirt_case(UNKNOWN, libvirt(None), gpu=t4()),
    "a libvirt that does not answer": libvirt_case(
        FAIL, libvirt(None, available=False, reason="Connection refused"),
        "libvirt does not answer at qemu:///system: Connection refused",
    ),
    "an unqueried libvirt": libvirt_case(
        UNKNOWN, libvirt(None, available=False, uri="", reason="libvirt is not used: --root")
    ),
    "a session's libvirt has not the host's VMs": libvirt_case(FAIL, libvirt(uri="qemu:///session")),
    "libvirt's test driver": libvirt_case(FAIL, libvirt(uri="test:///default")),
    "AppArmor with libvirt's profile": apparmor(OK, "libvirtd (enforce)", profiles=ENFORCED),
    "AppArmor without libvirt's profile": apparmor(WARN, profiles=BRIDGE_HELPER),
    "AppArmor is off": apparmor(NOT_APPLICABLE, enabled="N\n"),
    "a host without AppArmor": case("apparmor", NOT_APPLICABLE),
    "profiles that only root sees": apparmor(
        UNKNOWN, "run it as root", profiles=FileContent(problem=f"{APPARMOR_PROFILES}: Permission denied")
    ),
    "a host booted by BIOS has no Secure Boot": case("secure-boot", NOT_APPLICABLE, snapshot=snapshot(a100())),
    "Secure Boot that cannot be seen": case(
        "secure-boot", UNKNOWN, snapshot=snapshot(a100()), folders={EFI_DIRECTORY: ()}
    ),
    "firmware without the variable has no Secure Boot": case(
        "secure-boot", OK, snapshot=snapshot(a100()),
        folders={EFI_DIRECTORY: ("efivars",), EFI_VARIABLES: (BOOT_ORDER,)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("one", CASES.values(), ids=CASES)
def test_the_verdict_on(one):
    assert_verdict(one)


@pytest.mark.parametrize(
    ("version", "qemu", "verdict"),
    [
        (12_004_000, 7_002_000, OK),
        (12_004_000, 7_001_000, FAIL),
        (12_003_000, 6_002_000, OK),
        (10_000_000, None, UNKNOWN),
    ],
)
def test_qemu_is_checked_as_libvirt_starts_it(version, qemu, verdict):
    assert run_check("qemu", snapshot(hypervisor=libvirt(version, qemu))).verdict is verdict


@pytest.mark.parametrize(("value", "driver", "verdict"), [(ON, "nvidia", OK), (OFF, None, OK), (ON, None, FAIL)])
def test_secure_boot_only_matters_when_the_driver_is_missing(value, driver, verdict):
    result = run_check(
        "secure-boot",
        snapshot(a100(driver=driver)),
        files={SECURE_BOOT_VARIABLE: value},
        folders={EFI_DIRECTORY: ("efivars",)},
    )
    assert result.verdict is verdict
