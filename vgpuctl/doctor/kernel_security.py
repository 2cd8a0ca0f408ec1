# SPDX-License-Identifier: Apache-2.0
"""Checks of AppArmor (can libvirt confine VMs?) and Secure Boot (does it keep the NVIDIA driver out?).

Sources: Linux Documentation/admin-guide/LSM/apparmor.rst; the UEFI specification's variable SecureBoot, which Linux
shows with 4 bytes of attributes before its one byte (Documentation/filesystems/efivarfs.rst); firmware without Secure
Boot has no such variable.
"""

from __future__ import annotations

from vgpuctl.doctor.check import Check, CheckContext, Finding, PathsToRead, fail, not_applicable, ok, unknown, warn
from vgpuctl.makers import maker_of

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
