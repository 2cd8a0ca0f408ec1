# SPDX-License-Identifier: Apache-2.0
"""VMs whose definition would harm the host, and VMs that lost a vGPU while they run.

libvirt takes a function with managed='yes' away from its driver at the start of the VM. NVIDIA's vGPU driver does not
survive that on a VF that it serves itself: the start hangs in the kernel.
"""

from __future__ import annotations

from vgpuctl.doctor.check import Check, Finding, Look, fail, judged_by_host, not_applicable, ok, unknown
from vgpuctl.doctor.gpus import shortened
from vgpuctl.model.gpu import Backend
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import VmState


def _managed(look: Look, snapshot: Snapshot) -> Finding:
    served = {f.address for g in snapshot.gpus if g.backend is Backend.VENDOR_VF for f in g.functions}
    if not served:
        return not_applicable("no GPU here has vendor-specific VFs")
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    wrong = [
        f"VM {vm.name}: {ref.carrier} with managed='yes'"
        for vm in snapshot.vms
        for ref in vm.hostdevs
        if ref.managed and ref.carrier in served
    ]
    if wrong:
        return fail(
            *shortened(wrong),
            fix="write managed='no' with virsh edit VM before it is started: else that hangs in the kernel until the"
            " host is rebooted",
        )
    return ok(f"no VM takes one of {len(served)} vendor-specific VFs from its driver")


def _lost(look: Look, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    running = {vm.uuid: vm.name for vm in snapshot.vms if vm.state is VmState.RUNNING}
    lost = [v for v in snapshot.vgpus if v.vm_uuid in running and not v.present]
    if lost:
        lines = [f"VM {running[v.vm_uuid or '']} runs, but {v.profile} on {v.function} is gone" for v in lost]
        return fail(*shortened(lines), fix="vgpuctl stop-vm NAME, then vgpuctl start-vm NAME makes it again")
    return ok(f"{len(running)} VMs run, and none of them has lost a vGPU")


CHECKS = (
    Check(
        id="lost-vgpus",
        title="every running VM has its vGPUs",
        looks_at="the vGPUs of running VMs: devices in `/sys/bus/mdev/devices`, types of VFs",
        judge=judged_by_host(_lost),
        explains=("no-capacity",),
        vms=True,
    ),
    Check(
        id="managed-vfs",
        title="no VM takes a vendor-specific VF from its driver",
        looks_at="`managed` of the VMs' PCI devices",
        judge=judged_by_host(_managed),
        vms=True,
    ),
)
