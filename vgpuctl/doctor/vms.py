# SPDX-License-Identifier: Apache-2.0
"""VMs whose definition would harm the host, and running VMs that lost a vGPU.

libvirt detaches a function with managed='yes' from its driver at the start of the VM. NVIDIA's vGPU driver does not
survive that on a VF that it drives itself: the start hangs in the kernel.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import Check, CheckContext, Finding, fail, not_applicable, ok, require_snapshot, unknown
from vgpuctl.doctor.gpus import shorten
from vgpuctl.model.numbers import format_count
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import VmState


def _check_managed_vfs(context: CheckContext, snapshot: Snapshot) -> Finding:
    vgpu_vfs = {f.address for g in snapshot.gpus if backend_for(g.backend).functions_stay_bound for f in g.functions}
    if not vgpu_vfs:
        return not_applicable("no GPU here has vendor-specific VFs")
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    problems = [
        f"VM {vm.name}: {hostdev.carrier} with managed='yes'"
        for vm in snapshot.vms
        for hostdev in vm.hostdevs
        if hostdev.managed and hostdev.carrier in vgpu_vfs
    ]
    if problems:
        return fail(
            *shorten(problems),
            fix="set managed='no' with virsh edit VM before you start it: otherwise the start hangs in the kernel "
            "until the"
            " host is rebooted",
        )
    return ok(f"no VM would unbind one of {len(vgpu_vfs)} vendor-specific VFs from its driver")


def _check_lost_vgpus(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    running = {vm.uuid: vm.name for vm in snapshot.vms if vm.state is VmState.RUNNING}
    lost = [v for v in snapshot.vgpus if v.vm_uuid in running and not v.present]
    if lost:
        lines = [f"VM {running[v.vm_uuid or '']} runs, but {v.profile} on {v.function} is gone" for v in lost]
        return fail(*shorten(lines), fix="vgpuctl stop-vm NAME, then vgpuctl start-vm NAME, which creates it again")
    return ok(f"{format_count(len(running), 'VM')} running, and none has lost a vGPU")


CHECKS = (
    Check(
        id="lost-vgpus",
        title="every running VM has its vGPUs",
        looks_at="the vGPUs of running VMs: devices in `/sys/bus/mdev/devices`, types of VFs",
        run=require_snapshot(_check_lost_vgpus),
        explains=("no-capacity",),
        needs_vms=True,
    ),
    Check(
        id="managed-vfs",
        title="no VM would unbind a vendor-specific VF from its driver",
        looks_at="`managed` of the VMs' PCI devices",
        run=require_snapshot(_check_managed_vfs),
        needs_vms=True,
    ),
)
