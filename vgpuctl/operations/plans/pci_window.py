# SPDX-License-Identifier: Apache-2.0
"""How much address space above 4 GiB a guest's PCI devices get: whole GPUs have BARs of 64 to 512 GiB.

OVMF's 64-bit window is 32 GiB in old versions. In new ones it is an eighth of the guest's address space, if the guest
knows the width of its addresses. A BAR that does not fit gets no address, and the guest's driver then has no GPU. So
vgpuctl gives the guest the host's width (libvirt: `<maxphysaddr>`, from 8.7 on) and a window of its own size
(`<pcihole64>`). Sources: OvmfPkg/Library/PlatformInitLib/MemDetect.c; libvirt, formatdomain.
"""

from __future__ import annotations

from vgpuctl.config.size_text import format_size, parse_memory_size
from vgpuctl.config.vm_fields import PCI_WINDOW_AUTO, PCI_WINDOW_NONE
from vgpuctl.model.request import DomainDesign, VmRequest
from vgpuctl.model.snapshot import Snapshot

DEFAULT_WINDOW_MIB = 32 * 1024
MAXPHYSADDR_SINCE = 8_007_000
_IORESOURCE_MEM = 0x200
_PCI_ROM_RESOURCE = 6


def bars_mib(resource: str) -> int:
    """Return the total size of a function's memory BARs in whole MiB, from its `resource` file in sysfs.

    Source: Documentation/ABI/testing/sysfs-bus-pci and include/linux/ioport.h: start, end and flags of each BAR.
    """
    total = 0
    for line in resource.splitlines()[:_PCI_ROM_RESOURCE]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if flags & _IORESOURCE_MEM and end > start:
            total += end - start + 1
    return -(-total >> 20)


def window_mib(request: VmRequest, needed_mib: int) -> int | None:
    """Return the window that a VM gets, in MiB; None keeps the default window.

    `needed_mib`: the BARs of its whole GPU. Twice that is enough for the BARs and the guest's other devices.
    """
    if request.pci_window == PCI_WINDOW_NONE:
        return None
    if request.pci_window != PCI_WINDOW_AUTO:
        return parse_memory_size(request.pci_window)
    if needed_mib < DEFAULT_WINDOW_MIB:
        return None
    return 1 << needed_mib.bit_length()


def supports_maxphysaddr(snapshot: Snapshot) -> bool:
    """Say whether this libvirt can give a guest the host's address width."""
    return (snapshot.hypervisor.libvirt_version or 0) >= MAXPHYSADDR_SINCE


def window_warnings(snapshot: Snapshot, request: VmRequest, design: DomainDesign, needed_mib: int) -> tuple[str, ...]:
    """Return reasons why the guest may still assign a BAR no address."""
    if needed_mib < DEFAULT_WINDOW_MIB:
        return ()
    bars = f"the BARs of its GPU need {needed_mib >> 10} GiB of address space"
    if design.pci_window_mib is None:
        return (f"{bars}, and --pci-window {request.pci_window} keeps the guest's default window, which may be 32 GiB",)
    if design.pci_window_mib <= needed_mib:
        return (f"{bars}, and --pci-window is {format_size(design.pci_window_mib)}: too small for the GPU",)
    if design.firmware != "uefi":
        return (f"{bars}, which many BIOS guests lack: boot with UEFI (--os linux, and an image that can)",)
    if not supports_maxphysaddr(snapshot):
        return (f"{bars}, and only libvirt 8.7 or newer reports the address width to the guest",)
    return ()
