# SPDX-License-Identifier: Apache-2.0
"""How much address space above 4 GiB a guest's PCI devices get: whole GPUs have BARs of 64 to 512 GiB.

OVMF's 64-bit window is 32 GiB in old versions. In new ones it is an eighth of the guest's address space, if the guest
knows the width of its addresses. A BAR that does not fit gets no address, and the guest's driver then has no GPU. So
vgpuctl gives the guest the host's width (libvirt: `<maxphysaddr>`, from 8.7 on) and a window of its own size
(`<pcihole64>`). Sources: OvmfPkg/Library/PlatformInitLib/MemDetect.c; libvirt, formatdomain.

An OVMF from before 2022-11 has another way only: `-fw_cfg name=opt/ovmf/X-PciMmio64Mb`. libvirt refuses that name in
`<sysinfo type='fwcfg'>` (qemu_validate.c: "That firmware name is reserved"), so only a template with
`<qemu:commandline>` can give it.

Each GPU is behind a root port of its own. A BAR begins at a multiple of its size, and so does the window of the port
above it, which the GPU's smaller BARs make a little larger than the large one (PCI Local Bus Specification 3.0,
6.2.5.1; MdeModulePkg/Bus/Pci/PciBusDxe/PciResourceSupport.c). So several GPUs need the next power of two for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vgpuctl.config.arguments import PCI_WINDOW_AUTO, PCI_WINDOW_NONE
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.model.numbers import format_size, parse_memory_size
from vgpuctl.model.request import DomainDesign
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu

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


def gpu_bars_mib(bars: Mapping[str, int], vgpus: Iterable[AssignedVgpu]) -> tuple[int, ...]:
    """Return the total size of the BARs of each whole GPU of a VM; `bars`: by function.

    A GPU whose BARs were not read counts as the largest one that was: another one was chosen since.
    """
    totals: dict[str, int] = {}
    largest = max(bars.values(), default=0)
    for vgpu in vgpus:
        own = bars.get(vgpu.function, largest if vgpu.function == vgpu.gpu else 0)
        totals[vgpu.gpu] = totals.get(vgpu.gpu, 0) + own
    return tuple(totals.values())


def window_mib(pci_window: str, gpus_mib: Sequence[int]) -> int | None:
    """Return the window that a VM gets, in MiB; None keeps the default window.

    `pci_window`: what is requested. `gpus_mib`: the BARs of each of its whole GPUs. The next power of two for each, and
    then for all, is enough for them and the guest's other devices.
    """
    if pci_window == PCI_WINDOW_NONE:
        return None
    if pci_window != PCI_WINDOW_AUTO:
        return parse_memory_size(pci_window)
    if sum(gpus_mib) < DEFAULT_WINDOW_MIB:
        return None
    return 1 << (sum(1 << bars.bit_length() for bars in gpus_mib) - 1).bit_length()


def _least_mib(gpus_mib: Sequence[int]) -> int:
    """Return the smallest window that has room for the BARs: a GPU behind another begins at the next power of two."""
    *others, largest = sorted(gpus_mib) or [0]
    return sum(1 << bars.bit_length() for bars in others) + largest


def supports_maxphysaddr(snapshot: Snapshot) -> bool:
    """Say whether this libvirt can give a guest the host's address width."""
    return (snapshot.hypervisor.libvirt_version or 0) >= MAXPHYSADDR_SINCE


def window_warnings(
    snapshot: Snapshot, request: VmRequest, design: DomainDesign, gpus_mib: Sequence[int]
) -> tuple[str, ...]:
    """Return reasons why the guest may still assign a BAR no address."""
    needed_mib = sum(gpus_mib)
    if needed_mib < DEFAULT_WINDOW_MIB or design.machine == "virt":
        return ()
    what = "GPU" if len(gpus_mib) == 1 else f"{len(gpus_mib)} GPUs"
    bars = f"the BARs of its {what} need {needed_mib >> 10} GiB of address space"
    if design.pci_window_mib is None:
        return (f"{bars}, and --pci-window {request.pci_window} keeps the guest's default window, which may be 32 GiB",)
    if design.pci_window_mib <= _least_mib(gpus_mib):
        return (f"{bars}, and --pci-window is {format_size(design.pci_window_mib)}: too small for the {what}",)
    if design.firmware != "uefi":
        return (f"{bars}, which many BIOS guests lack: boot with UEFI (--os linux, and an image that can)",)
    if not supports_maxphysaddr(snapshot):
        return (f"{bars}, and only libvirt 8.7 or newer reports the address width to the guest",)
    return ()
