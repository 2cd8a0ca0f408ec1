# SPDX-License-Identifier: Apache-2.0
"""What a VM needs of the host before it gets a device: IOMMU, KVM, VFIO, UEFI, versions that are new enough, AppArmor.

Sources: Linux Documentation/driver-api/vfio.rst; libvirt NEWS (12.4: QEMU older than 7.2 is dropped); Linux
Documentation/admin-guide/LSM/apparmor.rst; the UEFI specification's variable SecureBoot, which Linux shows with 4 bytes
of attributes before its one byte (Documentation/filesystems/efivarfs.rst); firmware without Secure Boot has no such
variable. What a backend needs is in `backends`.
"""

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
    parse_version,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import count_text, format_version
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


KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
MIN_LIBVIRT = 8_000_000
QEMU_DROPPED_SINCE = 12_004_000
MIN_QEMU = 7_002_000


def _check_kernel(context: CheckContext, snapshot: Snapshot) -> Finding:
    content = context.file(KERNEL_RELEASE)
    if content.text is None:
        return unknown(content.problem or f"{KERNEL_RELEASE} does not exist")
    evidence = f"{KERNEL_RELEASE}: {content.text.strip()}"
    version = parse_version(content.text)
    gpus = [g for g in snapshot.gpus if version < backend_for(g.backend).min_kernel]
    if gpus:
        least = ".".join(str(number) for number in max(backend_for(g.backend).min_kernel for g in gpus))
        return fail(
            evidence,
            f"{_describe_gpus(gpus)} needs {least} or newer: older kernels have no vfio-dev",
            fix=f"boot a kernel {least} or newer that the GPU vendor supports for its vGPU driver",
        )
    return ok(evidence)


def _check_libvirt(context: CheckContext, snapshot: Snapshot) -> Finding:
    status = snapshot.hypervisor
    if not status.available:
        reason = status.reason or "no reason given"
        if not status.uri:
            return unknown(reason)
        return fail(
            reason if status.uri in reason else f"libvirt does not answer at {status.uri}: {reason}",
            fix=status.hint or "systemctl start libvirtd (or virtqemud.socket virtnetworkd.socket virtstoraged.socket)",
        )
    if "/session" in status.uri or status.uri.startswith("test:"):
        return fail(
            f"{status.uri} does not show this host's VMs and cannot give them devices",
            fix="use --connect qemu:///system",
        )
    if status.libvirt_version is None:
        return unknown(f"{status.uri} does not report its version")
    evidence = f"{status.uri}: libvirt {format_version(status.libvirt_version)}"
    gpus = [g for g in snapshot.gpus if status.libvirt_version < backend_for(g.backend).min_libvirt]
    if gpus:
        return fail(
            evidence,
            f"{_describe_gpus(gpus)} needs 10.0 or newer",
            fix="use libvirt 10.0 or newer (Debian 13, Ubuntu 24.04, RHEL 10)",
        )
    if status.libvirt_version < MIN_LIBVIRT:
        return warn(evidence, "vgpuctl is tested with 8.0 and newer", fix="use libvirt 8.0 or newer")
    return ok(evidence)


def _check_qemu(context: CheckContext, snapshot: Snapshot) -> Finding:
    status = snapshot.hypervisor
    if not status.available or status.qemu_version is None:
        return unknown("libvirt does not report QEMU's version")
    evidence = f"QEMU {format_version(status.qemu_version)}"
    if (status.libvirt_version or 0) >= QEMU_DROPPED_SINCE and status.qemu_version < MIN_QEMU:
        return fail(
            evidence,
            f"libvirt {format_version(status.libvirt_version or 0)} supports only 7.2 and newer",
            fix="install QEMU 7.2 or newer",
        )
    return ok(evidence)


def _describe_gpus(gpus: list[Gpu]) -> str:
    return f"{', '.join(g.address for g in gpus)} ({', '.join(sorted({str(g.backend) for g in gpus}))})"


APPARMOR_ENABLED = "/sys/module/apparmor/parameters/enabled"
APPARMOR_PROFILES = "/sys/kernel/security/apparmor/profiles"
LIBVIRT_PROFILES = ("libvirtd", "virtqemud", "/usr/sbin/libvirtd", "/usr/sbin/virtqemud")
EFI_DIRECTORY = "/sys/firmware/efi"
EFI_VARIABLES = f"{EFI_DIRECTORY}/efivars"
SECURE_BOOT_VARIABLE = f"{EFI_VARIABLES}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def _check_apparmor(context: CheckContext) -> Finding:
    enabled = context.file(APPARMOR_ENABLED)
    if enabled.problem is not None:
        return unknown(enabled.problem)
    if (enabled.text or "N").strip() != "Y":
        reported = enabled.text.strip() if enabled.text is not None else "missing"
        return not_applicable(f"AppArmor is off ({APPARMOR_ENABLED}: {reported})")
    loaded = context.file(APPARMOR_PROFILES)
    if loaded.text is None:
        return unknown(loaded.problem or f"{APPARMOR_PROFILES} does not exist", fix="run it as root")
    # a line is "PROFILE (MODE)"
    confined = [line for line in loaded.text.splitlines() if line.rpartition(" (")[0] in LIBVIRT_PROFILES]
    if not confined:
        return warn(
            f"{APPARMOR_PROFILES} has none of {', '.join(LIBVIRT_PROFILES[:2])}: libvirt cannot confine VMs",
            fix="aa-enforce /etc/apparmor.d/usr.sbin.libvirtd (or usr.sbin.virtqemud), then restart libvirt",
        )
    return ok(f"{APPARMOR_PROFILES}: {', '.join(confined)}")


def _check_secure_boot(context: CheckContext) -> Finding:
    efi_directory = context.folder(EFI_DIRECTORY)
    variable = context.file(SECURE_BOOT_VARIABLE)
    if efi_directory.names is None and efi_directory.problem is None:
        return not_applicable(f"this host was not booted by UEFI (no {EFI_DIRECTORY})")
    if variable.text is None and variable.problem is None and context.folder(EFI_VARIABLES).names:
        return ok("Secure Boot is off: the firmware does not have it (no variable SecureBoot)")
    if variable.text is None:
        return unknown(variable.problem or f"{SECURE_BOOT_VARIABLE} does not exist")
    if not variable.text.endswith("\x01"):  # the last byte is the value, behind four bytes of attributes
        return ok("Secure Boot is off")
    if context.snapshot is None:
        return unknown("Secure Boot is on", context.problem)
    without_driver = [g.address for g in context.gpus if g.driver is None and maker_of(g).has_nvml]
    if without_driver:
        return fail(
            "Secure Boot is on: the kernel refuses unsigned modules (Key was rejected by service)",
            f"{', '.join(without_driver)}: no driver",
            fix="sign the vendor's modules with an enrolled key (mokutil --import KEY.der), or turn Secure Boot off",
        )
    return ok("Secure Boot is on, and no NVIDIA GPU is without a driver")


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
    Check(
        id="kernel",
        title="the kernel's version",
        looks_at=f"`{KERNEL_RELEASE}`",
        run=require_snapshot(_check_kernel),
        paths=PathsToRead(files=(KERNEL_RELEASE,)),
        explains=("vfio-dev",),
    ),
    Check(
        id="libvirt",
        title="libvirt and its version",
        looks_at="libvirt's connection and version",
        run=require_snapshot(_check_libvirt),
        explains=("libvirt", "libvirt-variant", "session"),
    ),
    Check(
        id="qemu",
        title="QEMU's version",
        looks_at="the version that libvirt reports",
        run=require_snapshot(_check_qemu),
        explains=("libvirt-failed",),
    ),
)
SECURITY_CHECKS = (
    Check(
        id="apparmor",
        title="AppArmor's profiles for VMs",
        looks_at=f"`{APPARMOR_ENABLED}`, `{APPARMOR_PROFILES}`",
        run=_check_apparmor,
        paths=PathsToRead(files=(APPARMOR_ENABLED, APPARMOR_PROFILES)),
        explains=("libvirt-failed", "image-access"),
    ),
    Check(
        id="secure-boot",
        title="Secure Boot and the vendor's driver",
        looks_at=f"`{SECURE_BOOT_VARIABLE}`, the GPUs' drivers",
        run=_check_secure_boot,
        paths=PathsToRead(files=(SECURE_BOOT_VARIABLE,), folders=(EFI_DIRECTORY, EFI_VARIABLES)),
        explains=("mode", "vfs-off", "vfio-dev"),
    ),
)
