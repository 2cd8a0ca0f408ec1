# SPDX-License-Identifier: Apache-2.0
"""How much address space above 4 GiB a guest's PCI devices get: whole GPUs have BARs of 64 to 512 GiB.

OVMF's 64-bit window is 32 GiB in old versions, and an eighth of the guest's address space in new ones where the guest
knows how wide its addresses are; a BAR that does not fit gets no address, and the guest's driver no GPU. So the guest
gets the host's width (libvirt: `<maxphysaddr>`, from 8.7 on) and a window of its own size (`<pcihole64>`).
Sources: OvmfPkg/Library/PlatformInitLib/MemDetect.c; libvirt, formatdomain.
"""

from __future__ import annotations

from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.wish import DomainDesign, VmWish
from vgpuctl.spec.fields import PCI_WINDOW_AUTO, PCI_WINDOW_NONE
from vgpuctl.spec.sizes import memory_mib, render_size

USUAL_WINDOW_MIB = 32 * 1024
WIDTH_SINCE = 8_007_000
_MEMORY = 0x200
_ROM = 6


def bars_mib(resource: str) -> int:
    """Return the size of a function's memory BARs together, by its `resource` in sysfs, in whole MiB.

    Source: Documentation/ABI/testing/sysfs-bus-pci and include/linux/ioport.h: start, end and flags of each BAR.
    """
    total = 0
    for line in resource.splitlines()[:_ROM]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if flags & _MEMORY and end > start:
            total += end - start + 1
    return -(-total >> 20)


def window_mib(wish: VmWish, needed_mib: int) -> int | None:
    """Return the window that a VM gets, in MiB; None where the usual one is left as it is.

    `needed_mib`: the BARs of its whole GPU. Twice as much is enough for all and for what else the guest has.
    """
    if wish.pci_window == PCI_WINDOW_NONE:
        return None
    if wish.pci_window != PCI_WINDOW_AUTO:
        return memory_mib(wish.pci_window)
    if needed_mib < USUAL_WINDOW_MIB:
        return None
    return 1 << needed_mib.bit_length()


def knows_width(snapshot: Snapshot) -> bool:
    """Say whether this libvirt can give a guest the host's address width."""
    return (snapshot.hypervisor.libvirt_version or 0) >= WIDTH_SINCE


def window_warnings(snapshot: Snapshot, wish: VmWish, design: DomainDesign, needed_mib: int) -> tuple[str, ...]:
    """Return why the guest may still give a BAR no address."""
    if needed_mib < USUAL_WINDOW_MIB:
        return ()
    bars = f"the BARs of its GPU need {needed_mib >> 10} GiB of address space"
    if design.pci_window_mib is None:
        return (f"{bars}, and --pci-window {wish.pci_window} leaves the guest's window as it is: it may be 32 GiB",)
    if design.pci_window_mib <= needed_mib:
        return (f"{bars}, and --pci-window is {render_size(design.pci_window_mib)}: the GPU does not fit into it",)
    if design.firmware != "uefi":
        return (f"{bars}, which many BIOS guests do not give: boot with UEFI (--os linux, and an image that can)",)
    if not knows_width(snapshot):
        return (f"{bars}, and only libvirt from 8.7 on tells the guest how wide its addresses are",)
    return ()
