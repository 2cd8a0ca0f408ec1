# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups and BARs: what the firmware and the kernel assigned to each GPU.

Sources: kernel vfio.rst (a group goes to one VM as a whole); Documentation/ABI/testing/sysfs-bus-pci and
include/linux/ioport.h for `resource`: start, end and flags of each BAR, IORESOURCE_MEM 0x200, IORESOURCE_UNSET
0x20000000.
"""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.doctor.gpus import shorten
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import count_text, format_bytes
from vgpuctl.model.snapshot import Snapshot

_RESOURCE_MEM, _RESOURCE_UNSET = 0x200, 0x20000000
_FIRMWARE_FIX = "turn on 'Above 4G decoding' and SR-IOV (with ACS and ARI) in the firmware, and raise its MMIO size"


def _check_iommu_groups(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [
        g
        for g in snapshot.gpus
        if g.iommu_group is not None or any(function.iommu_group is not None for function in g.functions)
    ]
    if not gpus:
        return not_applicable("no GPU here has an IOMMU group")
    shared = [line for g in gpus if backend_for(g.backend).on_vfs for line in _shared_groups(g)]
    if shared:
        return fail(
            *shorten(shared),
            "all VFs of one group must go to the same VM",
            fix="turn on ACS in the firmware, or use a slot behind a root port that has it",
        )
    other_devices = [
        f"{g.address} shares group {g.iommu_group} with {member.address} (driver {member.driver or 'none'})"
        for g in gpus
        for member in g.group_members
        if not member.same_slot and member.driver not in (None, "vfio-pci", "pci-stub", "pcieport")
    ]
    if other_devices:
        return warn(
            *shorten(other_devices),
            fix="they cannot be passed through alone: turn on ACS in the firmware, or use another slot",
        )
    return ok(f"each function of {count_text(len(gpus), 'GPU')} can be assigned to a VM by itself")


def _shared_groups(gpu: Gpu) -> Iterator[str]:
    by_group: dict[int, list[str]] = {}
    for function in gpu.functions:
        if function.iommu_group is not None:
            by_group.setdefault(function.iommu_group, []).append(function.address)
    for group, members in sorted(by_group.items()):
        if len(members) > 1:
            yield f"group {group}: {', '.join(members[:3])}{' and more' if len(members) > 3 else ''}"


def _check_bars(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = [g for g in snapshot.gpus if _is_pci(g)]
    if not gpus:
        return not_applicable("there is no PCI GPU here")
    unassigned, unreadable, checked_count = [], [], 0
    for gpu in gpus:
        content = context.file(f"{gpu.path}/resource")
        if content.text is None:
            unreadable.append(content.problem or f"{gpu.path}/resource does not exist")
            continue
        checked_count += 1
        unassigned += [f"{gpu.path}/resource: {line}" for line in _unassigned_bars(content.text, gpu)]
    if unassigned:
        return fail(
            *shorten(unassigned), fix=f"{_FIRMWARE_FIX}; otherwise boot with pci=realloc, and see journalctl -k -g BAR"
        )
    if unreadable:
        return unknown(*shorten(unreadable))
    return ok(f"every memory BAR of {count_text(checked_count, 'GPU')} has an address")


def _unassigned_bars(text: str, gpu: Gpu) -> Iterator[str]:
    """Yield the BARs that have a size but no address: 0-5, then the VFs' (relevant only with SR-IOV). Skip the ROM."""
    for number, line in enumerate(text.splitlines()):
        try:
            start, end, flags = (int(field, 16) for field in line.split())
        except ValueError:
            continue
        if not flags & _RESOURCE_MEM or end <= start or number == _ROM_BAR:
            continue
        if flags & _RESOURCE_UNSET or start == 0:
            bar_name = f"BAR {number}" if number < _ROM_BAR else f"VF BAR {number - _ROM_BAR - 1}"
            yield f"{bar_name} of {gpu.address} has no address (size {format_bytes(end - start + 1)})"


_ROM_BAR = 6


def _is_pci(gpu: Gpu) -> bool:
    return gpu.vendor_id is not None


def _resource_paths(snapshot: Snapshot) -> PathsToRead:
    return PathsToRead(files=tuple(f"{g.path}/resource" for g in snapshot.gpus if _is_pci(g)))


CHECKS = (
    Check(
        id="iommu-groups",
        title="the IOMMU groups of GPUs and VFs",
        looks_at="`iommu_group` of each function, and its other members",
        run=require_snapshot(_check_iommu_groups),
        explains=("libvirt-failed", "in-use"),
    ),
    Check(
        id="bars",
        title="the addresses of each GPU's BARs",
        looks_at="`resource` of each GPU",
        run=require_snapshot(_check_bars),
        find_paths=_resource_paths,
        explains=("device-failed", "vfs-off", "gpu-missing"),
    ),
)
