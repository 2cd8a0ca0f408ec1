# SPDX-License-Identifier: Apache-2.0
"""Windows 11's requirements for a VM: its installer refuses less (Microsoft, "Windows 11 requirements")."""

from __future__ import annotations

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.port_values import HypervisorCapabilities

WINDOWS_11 = "windows11"
MIN_MEMORY_MIB = 4096
MIN_VCPUS = 2


def check_windows(request: VmRequest, capabilities: HypervisorCapabilities) -> None:
    """Refuse a Windows 11 VM that could not be installed or started; other systems pass.

    Raises:
        InvalidInput: too little memory, or too few CPUs.
        HostCannot: no firmware with secure boot and keys, or no TPM emulator.
    """
    if request.os != WINDOWS_11:
        return
    if not capabilities.is_x86:
        raise HostCannot(
            f"a Windows 11 VM needs a host with x86_64, and this one has {capabilities.arch}",
            hint="use --os generic with an image and a template for this architecture",
            check="arch",
        )
    if request.memory_mib < MIN_MEMORY_MIB:
        raise InvalidInput(
            f"Windows 11 does not install with {format_mib(request.memory_mib)} of memory: "
            f"it needs {format_mib(MIN_MEMORY_MIB)}",
            hint="use --memory 4GiB or more",
            memory_mib=request.memory_mib,
            least_memory_mib=MIN_MEMORY_MIB,
        )
    if request.vcpus < MIN_VCPUS:
        raise InvalidInput(
            f"Windows 11 does not install with {request.vcpus} virtual CPU: it needs {MIN_VCPUS}",
            hint=f"use --vcpus {MIN_VCPUS} or more",
            vcpus=request.vcpus,
            least_vcpus=MIN_VCPUS,
        )
    if not capabilities.secure_boot:
        raise HostCannot(
            "Windows 11 needs UEFI with secure boot and Microsoft's keys enrolled, and this host has no such firmware",
            hint="apt install ovmf (Debian, Ubuntu) or dnf install edk2-ovmf (RHEL, Fedora)",
            check="uefi-secure-boot",
        )
    if not capabilities.tpm:
        raise HostCannot(
            "Windows 11 needs a TPM 2.0, and libvirt finds no TPM emulator on this host",
            hint="apt install swtpm swtpm-tools (Debian, Ubuntu) or dnf install swtpm swtpm-tools (RHEL, Fedora)",
            check="tpm",
        )


def refuse_bios_image(image: str) -> None:
    """Refuse an image that boots only with BIOS.

    Raises:
        InvalidInput: naming the image.
    """
    raise InvalidInput(
        f"{image} boots only with BIOS, and Windows 11 needs UEFI with secure boot",
        hint="convert it in the guest with mbr2gpt, or use --os generic",
        image=image,
    )
