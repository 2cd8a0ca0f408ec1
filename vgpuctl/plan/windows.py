# SPDX-License-Identifier: Apache-2.0
"""What Windows 11 asks of a VM: its installer refuses less (Microsoft, "Windows 11 requirements")."""

from __future__ import annotations

from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.model.records import HypervisorCapabilities
from vgpuctl.model.sizes import mib_text
from vgpuctl.model.wish import VmWish

WINDOWS_11 = "windows11"
LEAST_MEMORY_MIB = 4096
LEAST_VCPUS = 2


def check_windows(wish: VmWish, capabilities: HypervisorCapabilities) -> None:
    """Refuse a Windows 11 VM that could not be installed or started; other systems pass.

    Raises:
        InvalidInput: too little memory, or too few CPUs.
        HostCannot: no firmware with secure boot and keys, or no TPM emulator.
    """
    if wish.os != WINDOWS_11:
        return
    if wish.memory_mib < LEAST_MEMORY_MIB:
        raise InvalidInput(
            f"Windows 11 does not install with {mib_text(wish.memory_mib)} of memory: "
            f"it needs {mib_text(LEAST_MEMORY_MIB)}",
            hint="--memory 4GiB, or more",
            memory_mib=wish.memory_mib,
            least_memory_mib=LEAST_MEMORY_MIB,
        )
    if wish.vcpus < LEAST_VCPUS:
        raise InvalidInput(
            f"Windows 11 does not install on {wish.vcpus} virtual CPU: it needs {LEAST_VCPUS}",
            hint=f"--vcpus {LEAST_VCPUS}, or more",
            vcpus=wish.vcpus,
            least_vcpus=LEAST_VCPUS,
        )
    if not capabilities.secure_boot:
        raise HostCannot(
            "Windows 11 needs UEFI with secure boot and Microsoft's keys enrolled, and this host has no such firmware",
            hint="apt install ovmf (Debian, Ubuntu) or dnf install edk2-ovmf (RHEL, Fedora)",
            check="uefi-secure-boot",
        )
    if not capabilities.tpm:
        raise HostCannot(
            "Windows 11 needs a TPM 2.0, and libvirt finds no emulator of one on this host",
            hint="apt install swtpm swtpm-tools (Debian, Ubuntu) or dnf install swtpm swtpm-tools (RHEL, Fedora)",
            check="tpm",
        )


def refuse_bios(image: str) -> None:
    """Refuse an image that boots only with BIOS.

    Raises:
        InvalidInput: naming the image.
    """
    raise InvalidInput(
        f"{image} boots only with BIOS, and Windows 11 needs UEFI with secure boot",
        hint="convert it in the guest with mbr2gpt, or say --os generic",
        image=image,
    )
