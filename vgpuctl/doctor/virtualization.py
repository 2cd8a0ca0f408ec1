# SPDX-License-Identifier: Apache-2.0
"""IOMMU, KVM, VFIO and firmware: without these no VM gets a device. Source: Linux Documentation/driver-api/vfio.rst."""

from __future__ import annotations

from vgpuctl.doctor.check import (
    Check,
    Finding,
    Look,
    Needs,
    fail,
    judged_by_host,
    not_applicable,
    ok,
    unknown,
    warn,
)
from vgpuctl.model.gpu import Backend
from vgpuctl.model.snapshot import Snapshot

GROUPS = "/sys/kernel/iommu_groups"
CMDLINE = "/proc/cmdline"
DEV = "/dev"
VFIO_NODES = "/dev/vfio"
VFIO_DRIVER = "/sys/bus/pci/drivers"
_IOMMU_WORDS = ("intel_iommu=", "amd_iommu=", "iommu=", "iommu.passthrough=")


def _iommu(look: Look) -> Finding:
    groups = look.folder(GROUPS)
    words = [w for w in (look.file(CMDLINE).text or "").split() if w.startswith(_IOMMU_WORDS)]
    line = f"{CMDLINE}: {' '.join(words) or 'nothing about the IOMMU'}"
    if groups.problem is not None:
        return unknown(groups.problem, line)
    if groups.names is None and look.file(CMDLINE).text is None:
        return unknown(f"neither {GROUPS} nor {CMDLINE} is there: this is no whole host")
    count = len(groups.names or ())
    if not count:
        return fail(
            f"{GROUPS} is {'empty' if groups.names is not None else 'missing'}",
            line,
            fix=_turn_on(words),
        )
    return ok(f"{GROUPS}: {count} group{'' if count == 1 else 's'}", line)


def _turn_on(words: list[str]) -> str:
    """Say what is left to do: a command line that asks for the IOMMU already leaves the firmware."""
    firmware = "enable VT-d (Intel) or AMD-Vi (AMD) in the firmware"
    if any(word.endswith("iommu=on") for word in words):
        return f"{firmware}: the kernel's command line asks for it already"
    return f"{firmware}, add intel_iommu=on iommu=pt (AMD: iommu=pt) to the kernel's command line, and reboot"


def _kvm(look: Look) -> Finding:
    nodes = look.folder(DEV)
    if nodes.names is None:
        return unknown(nodes.problem or f"there is no {DEV} to list")
    fix = "enable VT-x or AMD-V (SVM) in the firmware, then: modprobe kvm_intel (or kvm_amd)"
    if "kvm" not in nodes.names:
        return fail("there is no /dev/kvm", fix=fix)
    if look.capabilities is None:
        return ok("/dev/kvm is there", f"whether libvirt uses it is not known: {look.capabilities_problem}")
    if not look.capabilities.kvm:
        return fail("/dev/kvm is there, and libvirt's capabilities have no domain type kvm", fix=fix)
    return ok("/dev/kvm is there, and libvirt uses it")


def _vfio(look: Look) -> Finding:
    nodes, drivers = look.folder(VFIO_NODES), look.folder(VFIO_DRIVER)
    if nodes.problem or drivers.problem:
        return unknown(*filter(None, (nodes.problem, drivers.problem)))
    if not _any_pci(look):
        return not_applicable("no GPU here is given to VMs through VFIO")
    if nodes.names is None or "vfio" not in nodes.names:
        return fail(f"there is no {VFIO_NODES}/vfio: the module vfio is not loaded", fix="modprobe vfio-pci")
    whole = [g.address for g in look.gpus if g.backend in (Backend.SRIOV_VF, Backend.PASSTHROUGH)]
    if whole and "vfio-pci" not in (drivers.names or ()):
        return warn(
            f"{VFIO_NODES}/vfio is there, but {VFIO_DRIVER}/vfio-pci is not; {', '.join(whole)} would be bound to it",
            fix="modprobe vfio-pci; for every boot: echo vfio-pci > /etc/modules-load.d/vfio-pci.conf",
        )
    return ok(f"{VFIO_NODES}/vfio is there")


def _any_pci(look: Look) -> bool:
    return look.snapshot is None or any(g.backend is not None for g in look.gpus)


def _uefi(look: Look, snapshot: Snapshot) -> Finding:
    if look.capabilities is None:
        return unknown(look.capabilities_problem)
    if not look.capabilities.uefi:
        return warn(
            f"libvirt finds no UEFI firmware for {look.capabilities.arch}: images that boot only by UEFI cannot start",
            fix="install OVMF: apt install ovmf (Debian, Ubuntu), dnf install edk2-ovmf (Fedora, RHEL)",
        )
    return ok(f"libvirt finds a UEFI firmware for {look.capabilities.arch}")


CHECKS = (
    Check(
        id="iommu",
        title="the IOMMU is on",
        looks_at=f"`{GROUPS}`, the IOMMU words in `{CMDLINE}`",
        judge=_iommu,
        needs=Needs(files=(CMDLINE,), folders=(GROUPS,)),
        explains=("iommu", "libvirt-failed"),
    ),
    Check(
        id="kvm",
        title="VMs run with hardware support",
        looks_at="`/dev/kvm`, libvirt's capabilities",
        judge=_kvm,
        needs=Needs(folders=(DEV,)),
        explains=("libvirt-failed",),
        capabilities=True,
    ),
    Check(
        id="vfio",
        title="VFIO is loaded",
        looks_at=f"`{VFIO_NODES}/vfio`, `{VFIO_DRIVER}/vfio-pci`",
        judge=_vfio,
        needs=Needs(folders=(VFIO_NODES, VFIO_DRIVER)),
        explains=("libvirt-failed", "vfio-dev"),
    ),
    Check(
        id="uefi",
        title="VMs can boot by UEFI",
        looks_at="libvirt's domain capabilities",
        judge=judged_by_host(_uefi),
        explains=("uefi",),
        capabilities=True,
    ),
)
