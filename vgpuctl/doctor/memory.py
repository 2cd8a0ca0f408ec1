# SPDX-License-Identifier: Apache-2.0
"""Memory of VMs with devices: VFIO locks all of it when the VM starts (kernel vfio.rst), none can be swapped out."""

from __future__ import annotations

from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    not_applicable,
    ok,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.model.numbers import format_mib, parse_meminfo_mib
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import VmState

MEMINFO = "/proc/meminfo"


def _check_locked_memory(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    vms = [vm for vm in snapshot.vms if vm.hostdevs]
    if not vms:
        return not_applicable("no VM here has a device")
    meminfo = context.file(MEMINFO)
    total, free = (parse_meminfo_mib(meminfo.text or "", name) for name in ("MemTotal", "MemAvailable"))
    if total is None or free is None:
        return unknown(meminfo.problem or f"{MEMINFO} has no MemTotal or MemAvailable")
    needed = sum(vm.memory_mib for vm in vms)
    vms_line = f"{len(vms)} VM{'s' if len(vms) > 1 else ''} with devices: {format_mib(needed)}, all of it locked"
    host_line = f"{MEMINFO}: MemTotal {format_mib(total)}, MemAvailable {format_mib(free)}"
    if needed > total:
        return warn(vms_line, host_line, fix="they cannot all run at the same time: give them less memory")
    too_big = [vm for vm in vms if vm.state is VmState.STOPPED and vm.memory_mib > free]
    if too_big:
        vm_names = ", ".join(f"{vm.name} ({format_mib(vm.memory_mib)})" for vm in too_big)
        return warn(
            vms_line,
            host_line,
            f"not enough free memory to start: {vm_names}",
            fix="stop other VMs before you start these",
        )
    return ok(vms_line, host_line)


CHECKS = (
    Check(
        id="locked-memory",
        title="the memory that VMs with devices lock",
        looks_at=f"the VMs' memory, `{MEMINFO}`",
        run=require_snapshot(_check_locked_memory),
        paths=PathsToRead(files=(MEMINFO,)),
        needs_vms=True,
    ),
)
