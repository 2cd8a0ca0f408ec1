# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups and BARs: what the firmware and the kernel gave to each GPU.

Sources: kernel vfio.rst (a group goes to one VM as a whole); Documentation/ABI/testing/sysfs-bus-pci and
include/linux/ioport.h for `resource`: start, end and flags of each BAR, IORESOURCE_MEM 0x200, IORESOURCE_UNSET
0x20000000.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.doctor.check import Check, Finding, Look, Needs, fail, judged_by_host, not_applicable, ok, unknown, warn
from vgpuctl.doctor.gpus import shortened
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.sizes import bytes_text
from vgpuctl.model.snapshot import Snapshot

_MEMORY, _UNSET = 0x200, 0x20000000
_EACH_ITS_GROUP = (Backend.VENDOR_VF, Backend.SRIOV_VF, Backend.MDEV_VF)
_FIRMWARE = "turn on 'Above 4G decoding' and SR-IOV (with ACS and ARI) in the firmware, and raise its MMIO size"


def _groups(look: Look, snapshot: Snapshot) -> Finding:
    gpus = [
        g for g in snapshot.gpus if g.iommu_group is not None or any(f.iommu_group is not None for f in g.functions)
    ]
    if not gpus:
        return not_applicable("no GPU here has an IOMMU group")
    shared = [line for g in gpus if g.backend in _EACH_ITS_GROUP for line in _together(g)]
    if shared:
        return fail(
            *shortened(shared),
            "VFs of one group can only go to one VM together",
            fix="turn on ACS in the firmware, or use a slot behind a root port that has it",
        )
    strangers = [
        f"{g.address} shares group {g.iommu_group} with {m.address} (driver {m.driver or 'none'})"
        for g in gpus
        for m in g.group_members
        if not m.same_slot and m.driver not in (None, "vfio-pci", "pci-stub", "pcieport")
    ]
    if strangers:
        return warn(
            *shortened(strangers),
            fix="they cannot be passed through alone: turn on ACS in the firmware, or use another slot",
        )
    return ok(f"the groups of {len(gpus)} GPU(s) can be given to VMs one by one")


def _together(gpu: Gpu) -> Iterator[str]:
    by_group: dict[int, list[str]] = {}
    for function in gpu.functions:
        if function.iommu_group is not None:
            by_group.setdefault(function.iommu_group, []).append(function.address)
    for group, members in sorted(by_group.items()):
        if len(members) > 1:
            yield f"group {group}: {', '.join(members[:3])}{' and more' if len(members) > 3 else ''}"


def _bars(look: Look, snapshot: Snapshot) -> Finding:
    gpus = [g for g in snapshot.gpus if _is_pci(g)]
    if not gpus:
        return not_applicable("there is no PCI GPU here")
    wrong, unread, seen = [], [], 0
    for gpu in gpus:
        read = look.file(f"{gpu.path}/resource")
        if read.text is None:
            unread.append(read.problem or f"there is no {gpu.path}/resource")
            continue
        seen += 1
        wrong += [f"{gpu.path}/resource: {line}" for line in _unassigned(read.text, gpu)]
    if wrong:
        return fail(*shortened(wrong), fix=f"{_FIRMWARE}; else boot with pci=realloc and read journalctl -k -g BAR")
    if unread:
        return unknown(*shortened(unread))
    return ok(f"every memory BAR of {seen} GPU(s) has an address")


def _unassigned(text: str, gpu: Gpu) -> Iterator[str]:
    """Yield the BARs that have a size and no address: 0-5, the ROM, then the VFs' (those only matter with SR-IOV)."""
    for number, line in enumerate(text.splitlines()):
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if not flags & _MEMORY or end <= start or number == _ROM:
            continue
        if flags & _UNSET or start == 0:
            what = f"BAR {number}" if number < _ROM else f"VF BAR {number - _ROM - 1}"
            yield f"{what} of {gpu.address} has no address (size {bytes_text(end - start + 1)})"


_ROM = 6


def _is_pci(gpu: Gpu) -> bool:
    return gpu.vendor_id is not None


def _resources(snapshot: Snapshot) -> Needs:
    return Needs(files=tuple(f"{g.path}/resource" for g in snapshot.gpus if _is_pci(g)))


CHECKS = (
    Check(
        id="iommu-groups",
        title="GPUs and VFs can be given to VMs one by one",
        looks_at="`iommu_group` of each function, and who else is in it",
        judge=judged_by_host(_groups),
        explains=("libvirt-failed", "in-use"),
    ),
    Check(
        id="bars",
        title="the firmware gave each GPU's BARs an address",
        looks_at="`resource` of each GPU",
        judge=judged_by_host(_bars),
        needs_of=_resources,
        explains=("device-failed", "vfs-off", "gpu-missing"),
    ),
)
