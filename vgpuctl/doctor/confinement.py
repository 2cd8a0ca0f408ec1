# SPDX-License-Identifier: Apache-2.0
"""What may keep drivers or QEMU from working: AppArmor and Secure Boot.

Sources: Linux Documentation/admin-guide/LSM/apparmor.rst; the UEFI specification's variable SecureBoot, which Linux
shows with 4 bytes of attributes before its one byte (Documentation/filesystems/efivarfs.rst).
"""

from __future__ import annotations

from vgpuctl.doctor.check import Check, Finding, Look, Needs, fail, not_applicable, ok, unknown, warn
from vgpuctl.model.gpu import NVIDIA

ENABLED = "/sys/module/apparmor/parameters/enabled"
PROFILES = "/sys/kernel/security/apparmor/profiles"
DAEMONS = ("libvirtd", "virtqemud", "/usr/sbin/libvirtd", "/usr/sbin/virtqemud")
EFI = "/sys/firmware/efi"
SECURE_BOOT = f"{EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def _apparmor(look: Look) -> Finding:
    enabled = look.file(ENABLED)
    if enabled.problem is not None:
        return unknown(enabled.problem)
    if (enabled.text or "N").strip() != "Y":
        said = enabled.text.strip() if enabled.text is not None else "not there"
        return not_applicable(f"AppArmor is off ({ENABLED}: {said})")
    loaded = look.file(PROFILES)
    if loaded.text is None:
        return unknown(loaded.problem or f"there is no {PROFILES}", fix="run it as root")
    found = [line for line in loaded.text.splitlines() if line.rpartition(" (")[0] in DAEMONS]
    if not found:
        return warn(
            f"{PROFILES} has none of {', '.join(DAEMONS[:2])}: libvirt cannot confine VMs",
            fix="aa-enforce /etc/apparmor.d/usr.sbin.libvirtd (or usr.sbin.virtqemud), then restart libvirt",
        )
    return ok(f"{PROFILES}: {', '.join(found)}")


def _secure_boot(look: Look) -> Finding:
    variables = look.folder(EFI)
    read = look.file(SECURE_BOOT)
    if variables.names is None and variables.problem is None:
        return not_applicable(f"this host was not booted by UEFI (no {EFI})")
    if read.text is None:
        return unknown(read.problem or f"there is no {SECURE_BOOT}")
    if not read.text.endswith("\x01"):
        return ok("Secure Boot is off")
    if look.snapshot is None:
        return unknown("Secure Boot is on", look.problem)
    bare = [g.address for g in look.gpus if g.driver is None and g.vendor_id == NVIDIA]
    if bare:
        return fail(
            "Secure Boot is on: an unsigned module is refused (Key was rejected by service)",
            f"{', '.join(bare)}: no driver",
            fix="sign the vendor's modules with an enrolled key (mokutil --import KEY.der), or turn Secure Boot off",
        )
    return ok("Secure Boot is on, and no NVIDIA GPU is without a driver")


CHECKS = (
    Check(
        id="apparmor",
        title="AppArmor confines VMs as libvirt expects",
        looks_at=f"`{ENABLED}`, `{PROFILES}`",
        judge=_apparmor,
        needs=Needs(files=(ENABLED, PROFILES)),
        explains=("libvirt-failed", "image-access"),
    ),
    Check(
        id="secure-boot",
        title="Secure Boot does not keep the vendor's driver out",
        looks_at=f"`{SECURE_BOOT}`, the GPUs' drivers",
        judge=_secure_boot,
        needs=Needs(files=(SECURE_BOOT,), folders=(EFI,)),
        explains=("mode", "vfs-off", "vfio-dev"),
    ),
)
