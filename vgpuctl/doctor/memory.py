# SPDX-License-Identifier: Apache-2.0
"""Memory of VMs with devices: VFIO locks all of it when the VM starts (kernel vfio.rst), none can be swapped out."""

from __future__ import annotations

from vgpuctl.doctor.check import Check, Finding, Look, Needs, judged_by_host, not_applicable, ok, unknown, warn
from vgpuctl.model.digits import meminfo_mib
from vgpuctl.model.sizes import mib_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import VmState

MEMINFO = "/proc/meminfo"


def _locked(look: Look, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    vms = [vm for vm in snapshot.vms if vm.hostdevs]
    if not vms:
        return not_applicable("no VM here has a device")
    read = look.file(MEMINFO)
    total, free = (meminfo_mib(read.text or "", name) for name in ("MemTotal", "MemAvailable"))
    if total is None or free is None:
        return unknown(read.problem or f"there is no MemTotal or MemAvailable in {MEMINFO}")
    needed = sum(vm.memory_mib for vm in vms)
    seen = f"{len(vms)} VM{'s' if len(vms) > 1 else ''} with devices: {mib_text(needed)}, all of it locked"
    host = f"{MEMINFO}: MemTotal {mib_text(total)}, MemAvailable {mib_text(free)}"
    if needed > total:
        return warn(seen, host, fix="they cannot all run at once: give them less memory")
    too_big = [vm for vm in vms if vm.state is VmState.STOPPED and vm.memory_mib > free]
    if too_big:
        named = ", ".join(f"{vm.name} ({mib_text(vm.memory_mib)})" for vm in too_big)
        return warn(seen, host, f"too big to start now: {named}", fix="stop other VMs before these are started")
    return ok(seen, host)


CHECKS = (
    Check(
        id="locked-memory",
        title="the memory that VMs with devices lock is there",
        looks_at=f"the VMs' memory, `{MEMINFO}`",
        judge=judged_by_host(_locked),
        needs=Needs(files=(MEMINFO,)),
        vms=True,
    ),
)
