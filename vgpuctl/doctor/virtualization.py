# SPDX-License-Identifier: Apache-2.0
"""IOMMU, KVM, VFIO and firmware: without these no VM gets a device. Source: Linux Documentation/driver-api/vfio.rst."""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.model.numbers import count_text
from vgpuctl.model.port_values import HypervisorCapabilities
from vgpuctl.model.snapshot import Snapshot

IOMMU_GROUPS = "/sys/kernel/iommu_groups"
CMDLINE = "/proc/cmdline"
DEV_DIRECTORY = "/dev"
VFIO_DIRECTORY = "/dev/vfio"
PCI_DRIVERS = "/sys/bus/pci/drivers"
_UEFI_FIX = "apt install ovmf (Debian, Ubuntu) or dnf install edk2-ovmf (Fedora, RHEL)"
_UEFI_FIX_ARM = "apt install qemu-efi-aarch64 (Debian, Ubuntu) or dnf install edk2-aarch64 (Fedora, RHEL)"
_IOMMU_PARAMETERS = ("intel_iommu=", "amd_iommu=", "iommu=", "iommu.passthrough=")


def _check_iommu(context: CheckContext) -> Finding:
    groups = context.folder(IOMMU_GROUPS)
    parameters = [word for word in (context.file(CMDLINE).text or "").split() if word.startswith(_IOMMU_PARAMETERS)]
    cmdline_text = f"{CMDLINE}: {' '.join(parameters) or 'no IOMMU parameters'}"
    if groups.problem is not None:
        return unknown(groups.problem, cmdline_text)
    if groups.names is None and context.file(CMDLINE).text is None:
        return unknown(f"neither {IOMMU_GROUPS} nor {CMDLINE} exists: this is not a complete host")
    count = len(groups.names or ())
    if not count:
        return fail(
            f"{IOMMU_GROUPS} is {'empty' if groups.names is not None else 'missing'}",
            cmdline_text,
            fix=_suggest_iommu_fix(parameters, context.capabilities),
        )
    return ok(f"{IOMMU_GROUPS}: {count_text(count, 'group')}", cmdline_text)


def _suggest_iommu_fix(parameters: list[str], capabilities: HypervisorCapabilities | None) -> str:
    """Return the remaining step: if the command line already enables the IOMMU, only the firmware is left."""
    if capabilities is not None and not capabilities.is_x86:
        return "turn the SMMU on in the firmware, and boot a kernel that has its driver (arm-smmu-v3)"
    firmware = "enable VT-d (Intel) or AMD-Vi (AMD) in the firmware"
    if any(parameter.endswith("iommu=on") for parameter in parameters):
        return f"{firmware}: the kernel's command line already enables it"
    return f"{firmware}, add intel_iommu=on iommu=pt (AMD: iommu=pt) to the kernel's command line, and reboot"


def _check_kvm(context: CheckContext) -> Finding:
    nodes = context.folder(DEV_DIRECTORY)
    if nodes.names is None:
        return unknown(nodes.problem or f"{DEV_DIRECTORY} cannot be listed")
    fix = "enable VT-x or AMD-V (SVM) in the firmware, then: modprobe kvm_intel (or kvm_amd)"
    if context.capabilities is not None and not context.capabilities.is_x86:
        fix = "boot the kernel at EL2, where KVM runs: the firmware decides that; journalctl -k -b -g kvm shows why not"
    if "kvm" not in nodes.names:
        return fail("/dev/kvm does not exist", fix=fix)
    if context.capabilities is None:
        return ok("/dev/kvm exists", f"whether libvirt uses it is not known: {context.capabilities_problem}")
    if not context.capabilities.kvm:
        return fail("/dev/kvm exists, and libvirt's capabilities have no domain type kvm", fix=fix)
    return ok("/dev/kvm exists, and libvirt uses it")


def _check_vfio(context: CheckContext) -> Finding:
    nodes, drivers = context.folder(VFIO_DIRECTORY), context.folder(PCI_DRIVERS)
    if nodes.problem or drivers.problem:
        return unknown(*filter(None, (nodes.problem, drivers.problem)))
    if not _may_need_vfio(context):
        return not_applicable("no GPU here is assigned to VMs through VFIO")
    if nodes.names is None or "vfio" not in nodes.names:
        return fail(f"{VFIO_DIRECTORY}/vfio does not exist: the module vfio is not loaded", fix="modprobe vfio-pci")
    whole_functions = [g.address for g in context.gpus if g.backend and not backend_for(g.backend).creates_devices]
    if whole_functions and "vfio-pci" not in (drivers.names or ()):
        return warn(
            f"{VFIO_DIRECTORY}/vfio exists, but {PCI_DRIVERS}/vfio-pci does not; {', '.join(whole_functions)} would be "
            "bound to it",
            fix="modprobe vfio-pci; to load it at every boot: echo vfio-pci > /etc/modules-load.d/vfio-pci.conf",
        )
    return ok(f"{VFIO_DIRECTORY}/vfio exists")


def _may_need_vfio(context: CheckContext) -> bool:
    return context.snapshot is None or any(g.backend is not None for g in context.gpus)


def _check_uefi(context: CheckContext, snapshot: Snapshot) -> Finding:
    if context.capabilities is None:
        return unknown(context.capabilities_problem)
    if not context.capabilities.uefi:
        return warn(
            f"libvirt finds no UEFI firmware for {context.capabilities.arch}: images that boot only with UEFI "
            "cannot start",
            fix=_UEFI_FIX if context.capabilities.is_x86 else _UEFI_FIX_ARM,
        )
    return ok(f"libvirt finds a UEFI firmware for {context.capabilities.arch}")


CHECKS = (
    Check(
        id="iommu",
        title="the IOMMU",
        looks_at=f"`{IOMMU_GROUPS}`, the IOMMU parameters in `{CMDLINE}`",
        run=_check_iommu,
        paths=PathsToRead(files=(CMDLINE,), folders=(IOMMU_GROUPS,)),
        needs_capabilities=True,
        explains=("iommu", "libvirt-failed"),
    ),
    Check(
        id="kvm",
        title="hardware virtualization (KVM)",
        looks_at="`/dev/kvm`, libvirt's capabilities",
        run=_check_kvm,
        paths=PathsToRead(folders=(DEV_DIRECTORY,)),
        explains=("libvirt-failed",),
        needs_capabilities=True,
    ),
    Check(
        id="vfio",
        title="VFIO's modules",
        looks_at=f"`{VFIO_DIRECTORY}/vfio`, `{PCI_DRIVERS}/vfio-pci`",
        run=_check_vfio,
        paths=PathsToRead(folders=(VFIO_DIRECTORY, PCI_DRIVERS)),
        explains=("libvirt-failed", "vfio-dev"),
    ),
    Check(
        id="uefi",
        title="the UEFI firmware for VMs",
        looks_at="libvirt's domain capabilities",
        run=require_snapshot(_check_uefi),
        explains=("uefi",),
        needs_capabilities=True,
    ),
)
